//! Stays beside a worker's program whose last checkpoint is to be copied elsewhere, and ends as it ends.
//!
//! A container is over when its first process is, and takes all others along. So where copies are wanted, the first process is this one:
//! it passes signals on, takes in orphans, and gives what carries copies a while after the program is over.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    set_child_subreaper, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use stoke_node::heed;

/// How long the last checkpoint of a program that has done all its work may take to get there.
const COMPLETED_MAX: Duration = Duration::from_secs(600);
/// And of one that failed: the next attempt has most likely the same volume, and goes on with it.
const FAILED_MAX: Duration = Duration::from_secs(30);
/// Of the time that a pod has to end, what is left for ending.
const LEFT_AT_END: Duration = Duration::from_secs(5);
/// When it is said that it takes a while.
const SAY_AFTER: Duration = Duration::from_secs(2);
/// What died, of memory perhaps, is started again, and each time later.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

enum Event {
    Signal(i32),
    /// Who, and with which code.
    Ended(u32, u8),
    AllEnded,
}

pub struct Attended<'a> {
    pub program: &'a mut Command,
    pub words: &'a [String],
    /// What carries its copies.
    pub carrier: &'a mut Command,
    pub watching: Option<u32>,
    /// What a pod has between being told to end and its end.
    pub grace: Duration,
}

/// Runs the program and what carries its copies. From here on whoever is told to end passes that on, and does not end at once.
pub fn attend(attended: Attended<'_>, ends_at_once: &AtomicBool) -> ExitCode {
    let Attended {
        program,
        words,
        carrier,
        watching,
        grace,
    } = attended;
    let (events, heard) = mpsc::channel();
    // Before anything is started, so that none is missed.
    if let Err(error) = listen(&events) {
        return heed::cannot_run(&error, words);
    }
    ends_at_once.store(false, Ordering::SeqCst);
    // What the program leaves behind is found below this process.
    let _ = set_child_subreaper(Some(getpid()));
    let program = match program.process_group(0).spawn() {
        Ok(program) => program.id(),
        Err(error) => return heed::cannot_run(&error, words),
    };
    let mut carrier = Carrier::new(carrier);
    carrier.start();
    thread::spawn(move || reap(&events));
    let (code, told_to_end) = until_it_ends(program, &mut carrier, &heard);
    // It may have died, and not of what is left to send.
    carrier.start_if_due(Instant::now() + PAUSE_MAX);
    // Who watches has yet to tell of the last checkpoint.
    let spared: Vec<u32> = carrier.pid().into_iter().chain(watching).collect();
    heed::end_rest(&spared);
    if let Some(child) = &mut carrier.running {
        let max = patience(code, told_to_end.map(|then| then.elapsed()), grace);
        // Its input ends: that tells it.
        if let (Some(mut input), Some(_)) = (child.stdin.take(), told_to_end) {
            let _ = input.write_all(heed::HURRY);
        }
        finish(child.id(), max, &heard);
    }
    ExitCode::from(code)
}

/// What sends copies, for as long as the program runs.
struct Carrier<'a> {
    command: &'a mut Command,
    running: Option<Child>,
    /// When it is started again.
    due: Option<Instant>,
    pause: Duration,
}

impl<'a> Carrier<'a> {
    fn new(command: &'a mut Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0);
        Self {
            command,
            running: None,
            due: None,
            pause: PAUSE_FIRST,
        }
    }

    fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(Child::id)
    }

    fn start(&mut self) {
        self.due = None;
        match self.command.spawn() {
            Ok(child) => self.running = Some(child),
            Err(error) => self.again(&format!("cannot be started: {error}")),
        }
    }

    fn start_if_due(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.start();
        }
    }

    /// It is gone, and its number may be another's by now.
    fn ended(&mut self, code: u8) {
        self.running = None;
        // It ends by itself only where another attempt has taken over.
        if code != 0 {
            self.again(&format!("has ended with exit code {code}"));
        }
    }

    fn again(&mut self, why: &str) {
        eprintln!(
            "stokehold: what sends copies of its checkpoints {why}; it is started again in {} s",
            self.pause.as_secs()
        );
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// How long the last copy is waited for.
fn patience(code: u8, ending_since: Option<Duration>, grace: Duration) -> Duration {
    match ending_since {
        Some(since) => grace.saturating_sub(since).saturating_sub(LEFT_AT_END),
        None if code == 0 => COMPLETED_MAX,
        None => FAILED_MAX,
    }
}

fn code(status: WaitStatus) -> u8 {
    let signal = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(signal).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn listen(events: &Sender<Event>) -> std::io::Result<()> {
    let all = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH];
    let mut signals = Signals::new(all)?;
    let events = events.clone();
    thread::spawn(move || {
        for signal in &mut signals {
            let _ = events.send(Event::Signal(signal));
        }
    });
    Ok(())
}

/// Takes in whoever ends, orphans too.
fn reap(events: &Sender<Event>) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let pid = pid.as_raw_nonzero().get().unsigned_abs();
                if events.send(Event::Ended(pid, code(status))).is_err() {
                    return;
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                let _ = events.send(Event::AllEnded);
                return;
            }
        }
    }
}

/// Gives how the program ended, and when it was told to.
fn until_it_ends(
    program: u32,
    carrier: &mut Carrier<'_>,
    heard: &Receiver<Event>,
) -> (u8, Option<Instant>) {
    let mut told_to_end = None;
    loop {
        let event = match carrier.due {
            Some(due) => heard.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Signal(signal)) => {
                if signal == SIGTERM {
                    told_to_end.get_or_insert_with(Instant::now);
                }
                pass_on(program, signal);
            }
            Ok(Event::Ended(pid, code)) if pid == program => return (code, told_to_end),
            Ok(Event::Ended(pid, code)) if Some(pid) == carrier.pid() => carrier.ended(code),
            Ok(Event::Ended(..)) => {}
            Err(RecvTimeoutError::Timeout) => carrier.start_if_due(Instant::now()),
            Ok(Event::AllEnded) | Err(RecvTimeoutError::Disconnected) => return (1, told_to_end),
        }
    }
}

/// To whom it would have gone without us: of a container the first process, elsewhere its group.
fn pass_on(program: u32, signal: i32) {
    let pid = Pid::from_raw(program as i32);
    let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) else {
        return;
    };
    let _ = if getpid().is_init() {
        kill_process(pid, signal)
    } else {
        kill_process_group(pid, signal)
    };
}

fn finish(carrier: u32, mut max: Duration, heard: &Receiver<Event>) {
    let begun = Instant::now();
    let mut has_said = false;
    while begun.elapsed() < max {
        let left = max.saturating_sub(begun.elapsed());
        let wait = if has_said { left } else { left.min(SAY_AFTER) };
        match heard.recv_timeout(wait) {
            Ok(Event::Ended(pid, _)) if pid == carrier => return,
            Ok(Event::AllEnded) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(Event::Signal(SIGTERM | SIGINT)) => {
                // It is not the program that is in a hurry now.
                max = max.min(begun.elapsed() + LEFT_AT_END);
            }
            Err(RecvTimeoutError::Timeout) if !has_said => {
                has_said = true;
                eprintln!(
                    "stokehold: the program is over; its last checkpoint is still being copied, for {} s at most",
                    max.as_secs()
                );
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
    }
    eprintln!("stokehold: the last checkpoint is not copied in time; it is in the volume still");
    if let Some(pid) = Pid::from_raw(carrier as i32) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sends_copies_is_started_again_and_a_number_that_may_be_anothers_is_forgotten() {
        let mut command = Command::new("sh");
        let mut carrier = Carrier::new(command.args(["-c", "exit 3"]));
        carrier.start();
        let first = carrier.pid().expect("it runs");
        let mut child = carrier.running.take().expect("it runs");
        let _ = child.wait();
        carrier.running = Some(child);
        let (events, heard) = mpsc::channel();
        let program = u32::MAX;
        for event in [Event::Ended(first, 3), Event::Ended(program, 0)] {
            events.send(event).expect("sent");
        }
        let (code, _) = until_it_ends(program, &mut carrier, &heard);
        assert_eq!((code, carrier.pid()), (0, None), "nobody to wait for");
        let now = Instant::now();
        let due = carrier.due.expect("it is started again");
        assert!(due <= now + PAUSE_FIRST);
        carrier.due = Some(now + PAUSE_FIRST);
        carrier.start_if_due(now);
        assert_eq!(carrier.pid(), None, "not yet");
        carrier.start_if_due(now + PAUSE_FIRST);
        assert!(carrier.pid().is_some() && carrier.due.is_none());
        let _ = carrier.running.as_mut().expect("it runs").wait();
        carrier.ended(0);
        assert_eq!(carrier.due, None, "another attempt has taken over");
    }

    #[test]
    fn the_last_copy_has_as_long_as_the_pod_does() {
        let seconds = Duration::from_secs;
        for (code, ending_since, expected) in [
            (0, None, COMPLETED_MAX),
            (1, None, FAILED_MAX),
            (0, Some(seconds(20)), seconds(95)),
            (143, Some(seconds(20)), seconds(95)),
            (1, Some(seconds(119)), seconds(0)),
        ] {
            let patience = patience(code, ending_since, seconds(120));
            assert_eq!(patience, expected, "{code} {ending_since:?}");
        }
    }
}
