//! A command run inside a container: probes and hooks.

use std::io::{self, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitStatus, kill_process_group};

use super::init::{Exec, Order};
use super::launch::{Handshake, launch};
use super::processes;
use super::protocol::{ContainerSpec, Response, ShimSpec};
use super::run::{Run, kill_pid, mark_of};
use super::supervise::Event;

const OUTPUT_BYTES_MAX: usize = 16 << 10;
/// How long output is waited for after the command's end: it may have left somebody behind who holds the pipe.
const OUTPUT_WITHIN: Duration = Duration::from_millis(500);

pub(super) struct ExecRun {
    pub number: u64,
    /// The container it runs in.
    pub slot: usize,
    pub pid: u32,
    deadline: Instant,
    timed_out: bool,
    handshake: Option<Handshake>,
    ended: Option<(WaitStatus, Instant)>,
    output: Arc<Output>,
    answer: SyncSender<Response>,
}

#[derive(Default)]
struct Output {
    bytes: Mutex<Vec<u8>>,
    complete: AtomicBool,
}

impl ExecRun {
    #[expect(
        clippy::too_many_arguments,
        reason = "one caller, and a struct would only name them again"
    )]
    pub(super) fn start(
        number: u64,
        slot: usize,
        pod: &ShimSpec,
        mut container: ContainerSpec,
        run: &Run,
        timeout: Duration,
        answer: SyncSender<Response>,
        events: &Sender<Event>,
    ) -> io::Result<Self> {
        if run.cgroup.is_none() {
            container
                .env
                .push((processes::MARK.to_owned(), mark_of(pod, &container.name)));
        }
        let order = Order::Exec(Exec {
            container,
            cgroup: run.cgroup.clone(),
            pid: run.pid,
            start_ticks: run.start_ticks,
            shim_pid: std::process::id(),
        });
        let (pipe, stdout) = io::pipe()?;
        let stderr = stdout.try_clone()?;
        let output = Arc::new(Output::default());
        let reader = {
            let (output, events) = (Arc::clone(&output), events.clone());
            move || {
                collect(pipe, &output.bytes);
                output.complete.store(true, Ordering::Release);
                let _ = events.send(Event::Look);
            }
        };
        thread::Builder::new()
            .name("exec-output".to_owned())
            .spawn(reader)?;
        let events = events.clone();
        let pid = launch(&order, stdout, stderr, move |handshake| {
            let _ = events.send(Event::ExecHandshake { number, handshake });
        })?;
        Ok(Self {
            number,
            slot,
            pid,
            deadline: Instant::now() + timeout,
            timed_out: false,
            handshake: None,
            ended: None,
            output,
            answer,
        })
    }

    pub(super) fn shake(&mut self, handshake: Handshake) {
        self.handshake = Some(handshake);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(super) fn main_ended(&mut self, status: WaitStatus, now: Instant) {
        self.ended = Some((status, now));
    }

    /// The command and all that came of it, as far as it stayed in the family.
    pub(super) fn kill(&self) {
        if self.ended.is_some() {
            return;
        }
        let family = processes::descendants(self.pid);
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            // While it is still starting there is no group of its own.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        kill_pid(self.pid);
        family.into_iter().for_each(kill_pid);
    }

    /// Sees to the timeout; answers and says true when it is over.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        let Some((status, at)) = self.ended else {
            if now >= self.deadline && !self.timed_out {
                self.timed_out = true;
                self.kill();
            }
            return false;
        };
        let complete = self.output.complete.load(Ordering::Acquire) && self.handshake.is_some();
        if !complete && now < at + OUTPUT_WITHIN {
            return false;
        }
        let response = match &self.handshake {
            Some(Err(message)) => Response::Error {
                message: message.clone(),
            },
            _ => Response::Exec {
                exit_code: match status.terminating_signal() {
                    Some(signal) => 128 + signal,
                    None => status.exit_status().unwrap_or(128),
                },
                timed_out: self.timed_out,
                output: String::from_utf8_lossy(
                    &self
                        .output
                        .bytes
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner),
                )
                .into_owned(),
            },
        };
        // The client may have gone.
        let _ = self.answer.send(response);
        true
    }

    pub(super) fn next_look(&self, now: Instant, soon: Duration) -> Instant {
        if self.ended.is_some() || self.timed_out {
            now + soon
        } else {
            self.deadline
        }
    }
}

/// Keeps the beginning and reads the rest away, so that the command never waits for a reader.
fn collect(mut pipe: io::PipeReader, bytes: &Mutex<Vec<u8>>) {
    let mut chunk = [0; 4096];
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => return,
            Ok(read) => {
                let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
                let room = OUTPUT_BYTES_MAX.saturating_sub(bytes.len());
                bytes.extend_from_slice(&chunk[..read.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
