//! Stays beside a worker's program whose last checkpoint is to be copied elsewhere, and ends as it ends.
//!
//! A container is over when its first process is, and takes all others along. So where copies are wanted, the first process is this one:
//! it passes signals on, takes in orphans, and gives what carries copies a while after the program is over.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
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

enum Event {
    Signal(i32),
    /// Who, and with which code.
    Ended(u32, u8),
    AllEnded,
}

/// Runs the program and what carries its copies. `grace` is what a pod has between being told to end and its end.
pub fn attend(
    program: &mut Command,
    words: &[String],
    carrier: &mut Command,
    watching: Option<u32>,
    grace: Duration,
) -> ExitCode {
    let (events, heard) = mpsc::channel();
    // Before anything is started, so that none is missed.
    if let Err(error) = listen(&events) {
        return heed::cannot_run(&error, words);
    }
    // What the program leaves behind is found below this process.
    let _ = set_child_subreaper(Some(getpid()));
    let program = match program.process_group(0).spawn() {
        Ok(program) => program.id(),
        Err(error) => return heed::cannot_run(&error, words),
    };
    let carrying = carrier
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn();
    let mut carrying = match carrying {
        Ok(carrying) => Some(carrying),
        Err(error) => {
            eprintln!("stokehold: copies of its checkpoints are not sent: {error}");
            None
        }
    };
    thread::spawn(move || reap(&events));
    let (code, told_to_end) = until_it_ends(
        program,
        carrying.as_ref().map(std::process::Child::id),
        &heard,
    );
    let carrier = carrying.iter().map(std::process::Child::id);
    // Who watches has yet to tell of the last checkpoint.
    let spared: Vec<u32> = carrier.chain(watching).collect();
    heed::end_rest(&spared);
    if let Some(carrying) = &mut carrying {
        let max = patience(code, told_to_end.map(|then| then.elapsed()), grace);
        // Its input ends: that tells it.
        drop(carrying.stdin.take());
        finish(carrying.id(), max, &heard);
    }
    ExitCode::from(code)
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
    carrier: Option<u32>,
    heard: &Receiver<Event>,
) -> (u8, Option<Instant>) {
    let mut told_to_end = None;
    loop {
        match heard.recv() {
            Ok(Event::Signal(signal)) => {
                if signal == SIGTERM {
                    told_to_end.get_or_insert_with(Instant::now);
                }
                pass_on(program, signal);
            }
            Ok(Event::Ended(pid, code)) if pid == program => return (code, told_to_end),
            Ok(Event::Ended(pid, _)) if Some(pid) == carrier => {
                eprintln!(
                    "stokehold: what sends copies of its checkpoints has ended; none are sent until the next attempt"
                );
            }
            Ok(Event::Ended(..)) => {}
            Ok(Event::AllEnded) | Err(_) => return (1, told_to_end),
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
