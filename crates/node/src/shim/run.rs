//! One run of a container: its processes from the start to the last of them being gone, and what the end was.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{Pid, Signal, WaitStatus, kill_process, kill_process_group};

use super::init::{Order, Start};
use super::launch::{Handshake, launch};
use super::protocol::{ContainerSpec, Exit, ShimSpec, reason};
use super::supervise::Event;
use super::{ROOT_DIR, processes};
use crate::cgroup::{CgroupError, CgroupSpec, Limits, MemorySample};
use crate::logs::format::Source;
use crate::logs::write::{Writer, pump};

/// How long the rest of a container may take to die after SIGKILL, and its last output to be written, before the shim goes
/// on without. Reached only by processes stuck in the kernel and by a disk that hangs.
const LEFTOVERS_WITHIN: Duration = Duration::from_secs(10);

/// How long a container whose limit may be raised waits for that. A node that is there raises it within one.
pub(super) const HELD_MAX: Duration = Duration::from_secs(2);

const SIGKILL: i32 = 9;
const EXIT_START_ERROR: i32 = 128;

pub(super) struct Run {
    pub pid: u32,
    pub start_ticks: u64,
    pub started_at: Option<Timestamp>,
    pub cgroup: Option<CgroupSpec>,
    pub oom_kills: u64,
    oom_kills_before: u64,
    peak_bytes: Option<u64>,
    /// Since when it was seen to wait at its limit.
    pub held_since: Option<Instant>,
    /// When the grace period is over.
    pub kill_at: Option<Instant>,
    /// Given by a `Kill`, or by the guard.
    pub kill_reason: Option<(String, Option<String>)>,
    handshake: Option<Handshake>,
    ended: Option<Ended>,
    /// Pipes that still have a reader thread.
    pumping: Arc<AtomicUsize>,
    mark: String,
}

struct Ended {
    status: WaitStatus,
    at: Timestamp,
    give_up_at: Instant,
}

/// Children of the shim that it did not start: they lost their parent, and the kernel gave them to the shim. None where
/// cgroups tell who belongs where.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    pub pids: BTreeSet<u32>,
    /// Only one container runs, so they are all its own. Otherwise their mark tells, unless they have thrown it away.
    pub of_one: bool,
}

impl Orphans {
    fn of(&self, mark: &str) -> impl Iterator<Item = u32> {
        self.pids
            .iter()
            .copied()
            .filter(move |pid| self.of_one || processes::is_marked(*pid, mark))
    }
}

/// Names one run of one container in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunId {
    pub slot: usize,
    pub generation: u64,
}

impl Run {
    /// Makes the cgroup and the log, and starts the process.
    pub(super) fn start(
        dir: &Path,
        pod: &ShimSpec,
        container: &ContainerSpec,
        restart: u32,
        id: RunId,
        events: &Sender<Event>,
    ) -> Result<Self, String> {
        let cgroup = pod.cgroup.as_ref().map(|pod| pod.child(&container.name));
        if let Some(cgroup) = &cgroup {
            let limits = Limits {
                memory_bytes: container.memory_limit_bytes,
                cpu_request_millis: container.cpu_request_millis,
                cpu_limit_millis: container.cpu_limit_millis,
                pids_max: container.pids_max,
            };
            cgroup.create(&limits).map_err(|error| with_cause(&error))?;
            hold(cgroup, container);
        }
        let log = crate::logs::path(dir, &container.name, restart);
        let writer = Writer::open(&log, pod.log_max_bytes, pod.log_max_files)
            .map_err(|error| format!("cannot open the log {}: {error}", log.display()))?;
        let pumping = Arc::new(AtomicUsize::new(2));
        let mark = mark_of(pod, &container.name);
        let mut container = container.clone();
        if cgroup.is_none() {
            container
                .env
                .push((processes::MARK.to_owned(), mark.clone()));
        }
        let order = Order::Start(Start {
            container,
            hostname: pod.hostname.clone(),
            cgroup: cgroup.clone(),
            root: dir.join(ROOT_DIR),
            shim_pid: std::process::id(),
        });
        let pid = Self::start_process(&order, writer, &pumping, id, events)
            .map_err(|error| format!("cannot start a process: {error}"))?;
        Ok(Self {
            pid,
            // Not there if it has ended already; then nobody will ask.
            start_ticks: processes::start_ticks(pid).unwrap_or(0),
            started_at: None,
            oom_kills: 0,
            oom_kills_before: cgroup.as_ref().map_or(0, CgroupSpec::oom_kills),
            cgroup,
            peak_bytes: None,
            held_since: None,
            kill_at: None,
            kill_reason: None,
            handshake: None,
            ended: None,
            pumping,
            mark,
        })
    }

    fn start_process(
        order: &Order,
        writer: Writer,
        pumping: &Arc<AtomicUsize>,
        id: RunId,
        events: &Sender<Event>,
    ) -> io::Result<u32> {
        let (stdout, stdout_end) = io::pipe()?;
        let (stderr, stderr_end) = io::pipe()?;
        let writer = Arc::new(Mutex::new(writer));
        for (pipe, source) in [(stdout, Source::Stdout), (stderr, Source::Stderr)] {
            let (writer, pumping, events) =
                (Arc::clone(&writer), Arc::clone(pumping), events.clone());
            thread::Builder::new()
                .name("log".to_owned())
                .spawn(move || {
                    pump(pipe, source, &writer);
                    pumping.fetch_sub(1, Ordering::AcqRel);
                    let _ = events.send(Event::Look);
                })?;
        }
        let events = events.clone();
        launch(order, stdout_end, stderr_end, move |handshake| {
            let at = Timestamp::now();
            let _ = events.send(Event::Handshake { id, at, handshake });
        })
    }

    /// The process became the container, or said why not.
    pub(super) fn shake(&mut self, handshake: Handshake, at: Timestamp) {
        if handshake.is_ok() {
            // A short run may be over before its start is heard of.
            self.started_at = Some(self.ended.as_ref().map_or(at, |ended| at.min(ended.at)));
        }
        self.handshake = Some(handshake);
    }

    pub(super) fn is_running(&self) -> bool {
        self.handshake == Some(Ok(())) && self.ended.is_none()
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ended.is_some()
    }

    /// How the main process ended, if it has.
    pub(super) fn has_failed(&self) -> Option<bool> {
        self.ended
            .as_ref()
            .map(|ended| ended.status.exit_status() != Some(0))
    }

    /// The main process has ended. All others of the container go with it, as they do in a pid namespace.
    pub(super) fn main_ended(&mut self, status: WaitStatus, now: Instant) {
        self.ended = Some(Ended {
            status,
            at: Timestamp::now(),
            give_up_at: now + LEFTOVERS_WITHIN,
        });
    }

    /// The stop signal to the process group, and SIGKILL when the grace period is over. A process that is not the job yet
    /// has nothing to save, and might miss the signal: it is killed at once.
    pub(super) fn ask_to_end(&mut self, signal: Option<i32>, kill_at: Instant) {
        let first = self.kill_at.is_none();
        let kill_at = if self.handshake.is_none() {
            Instant::now()
        } else {
            kill_at
        };
        self.kill_at = Some(self.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
        if first {
            let signal = signal
                .and_then(Signal::from_named_raw)
                .unwrap_or(Signal::TERM);
            self.signal_group(signal);
        }
    }

    /// While it is still starting it is not yet the leader of a group; nor is anything else of it there.
    fn signal_group(&self, signal: Signal) {
        if self.ended.is_some() {
            // The number may be another's by now.
            return;
        }
        if let Some(pid) = Pid::from_raw(self.pid as i32)
            && kill_process_group(pid, signal).is_err()
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// SIGKILL to all of the container.
    pub(super) fn kill(&self, orphans: &Orphans) {
        self.signal_group(Signal::KILL);
        match &self.cgroup {
            Some(cgroup) => cgroup.kill_now(),
            None => self.members(orphans).into_iter().for_each(kill_pid),
        }
    }

    /// All processes of the container. Without a cgroup: the family of the main process, and of its orphans.
    fn members(&self, orphans: &Orphans) -> BTreeSet<u32> {
        if let Some(cgroup) = &self.cgroup {
            return cgroup.processes();
        }
        let mut members = BTreeSet::new();
        let main = self.ended.is_none().then_some(self.pid);
        for root in main.into_iter().chain(orphans.of(&self.mark)) {
            members.insert(root);
            members.extend(processes::descendants(root));
        }
        members
    }

    /// For a run whose main process has ended: kills what is left, and says whether all is over, output included.
    pub(super) fn is_over(&self, now: Instant, orphans: &Orphans) -> bool {
        let Some(ended) = &self.ended else {
            return false;
        };
        let give_up = now >= ended.give_up_at;
        if !self.members(orphans).is_empty() && !give_up {
            self.kill(orphans);
            return false;
        }
        let settled = self.handshake.is_some() && self.pumping.load(Ordering::Acquire) == 0;
        settled || give_up
    }

    /// One look at the memory counters; whether something to be told has changed.
    pub(super) fn look_at_memory(&mut self) -> bool {
        let Some(cgroup) = &self.cgroup else {
            return false;
        };
        let kills = cgroup.oom_kills().saturating_sub(self.oom_kills_before);
        std::mem::replace(&mut self.oom_kills, kills) != kills
    }

    /// Who waits at the limit for longer than it takes to raise it is waited for no more: then the kernel does what it does.
    pub(super) fn let_go_if_held(&mut self, limit: Option<u64>, now: Instant) {
        let (Some(cgroup), Some(limit)) = (&self.cgroup, limit) else {
            return;
        };
        if !cgroup.is_holding() {
            self.held_since = None;
            return;
        }
        let since = *self.held_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= HELD_MAX {
            // Where this fails the group is gone, and nobody waits.
            let _ = cgroup.hold(limit, false);
        }
    }

    /// Memory of the run: from its cgroup, else summed over its processes.
    pub(super) fn sample(
        &mut self,
        limit: Option<u64>,
        orphans: &Orphans,
    ) -> Result<MemorySample, CgroupError> {
        if let Some(cgroup) = &self.cgroup {
            return cgroup.memory();
        }
        let usage = processes::memory(&self.members(orphans), limit);
        self.peak_bytes = self.peak_bytes.max(Some(usage));
        Ok(MemorySample {
            usage_bytes: usage,
            working_set_bytes: usage,
            anon_bytes: usage,
            peak_bytes: self.peak_bytes,
            limit_bytes: limit,
            ..MemorySample::default()
        })
    }

    /// What the end was. Reads the cgroup's last counters and removes it.
    pub(super) fn finish(mut self, limit: Option<u64>) -> Exit {
        self.look_at_memory();
        let peak = match &self.cgroup {
            Some(cgroup) => cgroup.memory().ok().and_then(|sample| sample.peak_bytes),
            None => self.peak_bytes,
        };
        if let Some(cgroup) = &self.cgroup {
            // If it is still busy, the next run takes it over, or the pod's end removes it.
            let _ = cgroup.remove(Duration::from_millis(100));
        }
        let mut exit = self.verdict(limit);
        exit.peak_memory_bytes = peak;
        exit.oom_kills = self.oom_kills;
        exit
    }

    fn verdict(&self, limit: Option<u64>) -> Exit {
        let finished_at = self
            .ended
            .as_ref()
            .map_or_else(Timestamp::now, |ended| ended.at);
        if let Some(Err(message)) = &self.handshake {
            return start_error(message.clone(), finished_at);
        }
        let status = self.ended.as_ref().map(|ended| ended.status);
        let signal = status.and_then(WaitStatus::terminating_signal);
        let exit_code = match signal {
            Some(signal) => 128 + signal,
            None => status
                .and_then(WaitStatus::exit_status)
                .unwrap_or(EXIT_START_ERROR),
        };
        // A shell reports the death of its child as its own exit code.
        let killed = signal == Some(SIGKILL) || exit_code == 128 + SIGKILL;
        let (reason, message) = match &self.kill_reason {
            Some((reason, message)) if killed => (reason.clone(), message.clone()),
            _ if killed && self.oom_kills > 0 => {
                (reason::OOM_KILLED.to_owned(), Some(over_limit(limit)))
            }
            _ if exit_code == 0 => (reason::COMPLETED.to_owned(), None),
            _ => {
                let by_signal = signal.map(|signal| format!("ended by signal {signal}"));
                let children = (self.oom_kills > 0).then(|| {
                    format!(
                        "{} of its processes were killed by the kernel: {}",
                        self.oom_kills,
                        over_limit(limit)
                    )
                });
                (reason::ERROR.to_owned(), children.or(by_signal))
            }
        };
        Exit {
            exit_code,
            signal,
            oom_killed: reason == reason::OOM_KILLED,
            reason,
            message,
            started_at: self.started_at,
            finished_at,
            peak_memory_bytes: None,
            oom_kills: 0,
        }
    }
}

/// Lets a container wait at its limit where that may be raised, and nowhere else. It is a help and no promise, so a kernel that cannot
/// is none the worse.
pub(super) fn hold(cgroup: &CgroupSpec, container: &ContainerSpec) {
    if let (Some(limit), Some(max)) = (container.memory_limit_bytes, container.memory_max_bytes) {
        let _ = cgroup.hold(limit, limit < max);
    }
}

pub(super) fn over_limit(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!("the memory limit of {} MiB was reached", limit >> 20),
        None => "no memory was left".to_owned(),
    }
}

/// The end of a run that never began.
pub(super) fn start_error(message: String, at: Timestamp) -> Exit {
    Exit {
        exit_code: EXIT_START_ERROR,
        signal: None,
        oom_killed: false,
        reason: reason::START_ERROR.to_owned(),
        message: Some(message),
        started_at: None,
        finished_at: at,
        peak_memory_bytes: None,
        oom_kills: 0,
    }
}

/// The mark of a container's processes; that of a pod's is its beginning.
pub(super) fn mark_of(pod: &ShimSpec, container: &str) -> String {
    format!("{}/{container}/", pod.uid)
}

pub(super) fn kill_pid(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // It may be gone already.
        let _ = kill_process(pid, Signal::KILL);
    }
}

pub(super) fn with_cause(error: &CgroupError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
