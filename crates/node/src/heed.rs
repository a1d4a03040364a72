//! Stands beside a worker's program, for the sake of its checkpoints.
//!
//! Before the program begins it waits until no other attempt can write where this one does ([`fence`]), and says what to go on from. Then it
//! watches: it asks for a checkpoint by a signal, where the job said that it heeds one, sees those that are written ([`keeper`]), and ends the
//! program if a later attempt has taken over.
//!
//! It runs inside the worker's container. So it is of the same user and sees the same processes and files in both worlds, and nobody outside
//! needs a right to signal anyone or to read anyone's volume. The program is what the container was started as: what ends it, and how, is as
//! it would be without.
//!
//! Invariant: a signal goes only to processes that have a handler for it, for it would end any other; and once a request.

mod carrier;
mod copies;
mod fence;
mod keeper;
mod outbox;
mod shelf;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, kill_process, prlimit, test_kill_process,
};
use stoke_api::names::env::RESUME_FROM;
use stoke_api::trainjob::CheckpointSignal;

use crate::shim::processes::{children, descendants};
pub use carrier::{HURRY, carry};
pub use copies::Upload;
pub use fence::Place;
use keeper::Keeper;

/// What a request is noticed in.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks at requests between two at the volume, which may be far away.
const LOOKS_PER_VOLUME: u32 = 4;
/// Looks at a request that nobody heeds, until that is said: a program may still be loading when it is asked.
const LOOKS_UNTIL_TOLD: u32 = 40;
const REQUEST_LENGTH_MAX: u64 = 4096;
/// Processes looked at for one request.
const PROCESSES_MAX: usize = 4096;
/// Shells, which may catch signals to end in good order, and launchers, which pass them on to whole groups, with a handler or without.
/// What they run is who was meant.
const PASSED_BY: [&str; 22] = [
    "sh",
    "bash",
    "dash",
    "ash",
    "zsh",
    "ksh",
    "busybox",
    "tini",
    "dumb-init",
    "catatonit",
    "timeout",
    "uv",
    "stoke",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "orterun",
    "orted",
    "prterun",
    "prte",
    "prted",
];

/// Becomes the command, with a watcher beside it that `watcher` is the command line of. With a place, only once no other attempt can write
/// there. Returns only if that failed.
pub fn start(watcher: &mut Command, command: &[String], place: Option<&Place>) -> ExitCode {
    match prepare(watcher, command, place) {
        Ok((mut becoming, _)) => cannot_run(&becoming.exec(), command),
        Err(code) => code,
    }
}

/// The same, up to where it would become the command: for whoever stays beside it. Gives the command and the watcher's process.
pub fn prepare(
    watcher: &mut Command,
    command: &[String],
    place: Option<&Place>,
) -> Result<(Command, Option<u32>), ExitCode> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(failed("there is no command to run", 126));
    };
    let mut becoming = Command::new(program);
    becoming.args(arguments);
    if let Some(place) = place {
        match fence::enter(place, &mut say) {
            Ok(entered) => {
                match entered.resume {
                    Some(path) => becoming.env(RESUME_FROM, path),
                    None => becoming.env_remove(RESUME_FROM),
                };
                // The watcher and the command inherit it, and whatever they start.
                std::mem::forget(entered.lock);
            }
            Err(refusal) => return Err(failed(&refusal.to_string(), refusal.exit_code())),
        }
    }
    let spawned = watcher
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // What is sent to the whole group of the program is not meant for it.
        .process_group(0)
        .spawn();
    let watching = spawned.map(|watcher| watcher.id());
    if let Err(error) = &watching {
        // The file tells the same as a signal, and the lock is held: the program is no worse off than one that nobody watches.
        say(format!("nobody watches over its checkpoints: {error}"));
    }
    Ok((becoming, watching.ok()))
}

/// Says why the command could not be run.
pub fn cannot_run(error: &io::Error, command: &[String]) -> ExitCode {
    let code = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    let program = command.first().map(String::as_str).unwrap_or_default();
    failed(&format!("cannot run {program}: {error}"), code)
}

/// Ends what is left of a program that is over: all below this process but `spared` and what those started.
pub fn end_rest(spared: &[u32]) {
    let own = getpid().as_raw_nonzero().get().unsigned_abs();
    let kept: BTreeSet<u32> = spared
        .iter()
        .copied()
        .chain(spared.iter().flat_map(|pid| descendants(*pid)))
        .collect();
    for pid in descendants(own).difference(&kept) {
        if let Some(pid) = Pid::from_raw(*pid as i32) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn failed(why: &str, code: u8) -> ExitCode {
    eprintln!("stokehold: {why}");
    ExitCode::from(code)
}

fn say(line: String) {
    eprintln!("stokehold: {line}");
}

/// What is watched over.
pub struct Watch<'a> {
    /// What asks for checkpoints, beside the file.
    pub signal: Option<CheckpointSignal>,
    /// Where checkpoints are, if this worker has them.
    pub place: Option<&'a Place>,
    pub request: &'a Path,
    /// Where the node reads what there is to know.
    pub status: &'a Path,
}

/// Watches over the processes of `program`, which started this one, for as long as it is there.
pub fn watch(watch: &Watch<'_>, program: u32) -> ExitCode {
    let parent = || getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    let mut ear = Ear::default();
    let mut keeper = watch.place.filter(|place| place.rank == 0).map(|place| {
        let recorded = place.recorded();
        Keeper::new(recorded.and_then(|recorded| recorded.resume))
    });
    let mut looks = 0_u32;
    while parent() == Some(program) {
        if let Some(signal) = watch.signal {
            listen(&mut ear, signal, watch.request, program);
        }
        if let Some(place) = watch
            .place
            .filter(|_| looks.is_multiple_of(LOOKS_PER_VOLUME))
        {
            if let Some(by) = place.superseded_by() {
                let (own, by) = (place.attempt, by.attempt);
                say(format!(
                    "attempt {own} ends: attempt {by} writes its checkpoints now"
                ));
                end(program);
            } else if let Some(keeper) = &mut keeper {
                keep(keeper, place, watch.status);
            }
        }
        looks = looks.wrapping_add(1);
        thread::sleep(LOOK_EVERY);
    }
    if let (Some(keeper), Some(place)) = (&mut keeper, watch.place) {
        // What it wrote last.
        keep(keeper, place, watch.status);
    }
    ExitCode::SUCCESS
}

fn keep(keeper: &mut Keeper, place: &Place, status: &Path) {
    let now = (Instant::now(), Timestamp::now());
    if let Some(saved) = keeper.look(&place.directory, now, &mut say) {
        keeper::tell(status, &saved);
        if let Some(keep) = place.keep {
            keeper.prune(&place.directory, keep, &mut say);
        }
    }
}

fn listen(ear: &mut Ear, signal: CheckpointSignal, request: &Path, program: u32) {
    let heard = ear.look(&text(request), || send(signal, &listeners(program, signal)));
    if heard == Heard::NotYet {
        let name = signal.name();
        say(format!(
            "a checkpoint is wanted, but no process here has a handler for {name}; it is sent as soon as one has"
        ));
    }
}

/// Ends a program and all that it started, at once: not one of them may write any more.
fn end(program: u32) {
    let own = getpid().as_raw_nonzero().get().unsigned_abs();
    let kill = |pid: u32, signal: Signal| {
        Pid::from_raw(pid as i32).is_some_and(|pid| kill_process(pid, signal).is_ok())
    };
    // Who stands still starts no other.
    kill(program, Signal::STOP);
    let below = descendants(program).into_iter().filter(|pid| *pid != own);
    for pid in below {
        kill(pid, Signal::KILL);
    }
    kill(program, Signal::KILL);
    thread::sleep(LOOK_EVERY);
    // A container's first process is deaf to signals from within it, but the kernel's own reach it: it is out of processor time.
    let program = Pid::from_raw(program as i32).filter(|pid| test_kill_process(*pid).is_ok());
    if program.is_some() {
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = prlimit(program, Resource::Cpu, none);
    }
}

/// Which request was passed on, and how long one waits for someone to heed it.
#[derive(Debug, Default)]
struct Ear {
    passed_on: String,
    waited: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    PassedOn,
    /// Nobody heeds it, which is to be told now.
    NotYet,
}

impl Ear {
    /// One look at what is requested. `pass_on` says whether anyone was there to be told.
    fn look(&mut self, request: &str, pass_on: impl FnOnce() -> bool) -> Heard {
        if request.is_empty() || request == self.passed_on {
            return Heard::Nothing;
        }
        if pass_on() {
            request.clone_into(&mut self.passed_on);
            return Heard::PassedOn;
        }
        // Once is enough for one program.
        self.waited = self.waited.saturating_add(1);
        if self.waited == LOOKS_UNTIL_TOLD {
            Heard::NotYet
        } else {
            Heard::Nothing
        }
    }
}

/// What is requested; nothing where that cannot be read.
fn text(request: &Path) -> String {
    let mut text = Vec::new();
    let read =
        File::open(request).and_then(|file| file.take(REQUEST_LENGTH_MAX).read_to_end(&mut text));
    read.map_or_else(
        |_| String::new(),
        |_| String::from_utf8_lossy(&text).into_owned(),
    )
}

/// The first processes from `root` downwards that have a handler: of a launcher that has none, each of the programs it runs; of a program
/// that has one, not the loaders that it forked.
fn listeners(root: u32, signal: CheckpointSignal) -> Vec<u32> {
    let own = getpid().as_raw_nonzero().get().unsigned_abs();
    let (mut found, mut left) = (Vec::new(), vec![root]);
    for _ in 0..PROCESSES_MAX {
        let Some(pid) = left.pop() else {
            break;
        };
        if pid == own {
            continue;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if has_handler(&status, signal) && !is_passed_by(&status, executable(pid).as_deref()) {
            found.push(pid);
        } else {
            left.extend(children(pid));
        }
    }
    found
}

/// Reads `/proc/PID/status`.
fn has_handler(status: &str, signal: CheckpointSignal) -> bool {
    let caught = field(status, "SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    let bit = 1 << (number(signal).as_raw() - 1);
    caught.is_some_and(|caught| caught & bit != 0)
}

/// A script is called by its own name, and its shell is what runs; a link to a program of many names is called by the link's.
fn is_passed_by(status: &str, executable: Option<&str>) -> bool {
    let names = [field(status, "Name:"), executable];
    let mut names = names.into_iter().flatten();
    names.any(|name| PASSED_BY.contains(&name))
}

fn executable(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.file_name()?.to_str()?.to_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

fn send(signal: CheckpointSignal, to: &[u32]) -> bool {
    let pids = to.iter().filter_map(|pid| Pid::from_raw(*pid as i32));
    let sent = pids.filter(|pid| kill_process(*pid, number(signal)).is_ok());
    sent.count() > 0
}

fn number(signal: CheckpointSignal) -> Signal {
    match signal {
        CheckpointSignal::Usr1 => Signal::USR1,
        CheckpointSignal::Usr2 => Signal::USR2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};

    #[test]
    fn a_request_is_passed_on_once_and_waits_for_someone_to_heed_it() {
        let mut ear = Ear::default();
        assert_eq!(ear.look("", || true), Heard::Nothing, "nothing is wanted");
        assert_eq!(ear.look("a", || true), Heard::PassedOn);
        assert_eq!(ear.look("a", || true), Heard::Nothing, "it was told");
        let mut told = 0;
        for _ in 0..3 * LOOKS_UNTIL_TOLD {
            match ear.look("b", || false) {
                Heard::NotYet => told += 1,
                heard => assert_eq!(heard, Heard::Nothing),
            }
        }
        assert_eq!(told, 1, "said, and said once");
        assert_eq!(ear.look("b", || true), Heard::PassedOn, "now it listens");
        assert_eq!(ear.look("", || true), Heard::Nothing);
        assert_eq!(ear.look("c", || true), Heard::PassedOn);
    }

    #[test]
    fn only_who_has_a_handler_is_signalled() {
        use CheckpointSignal::{Usr1, Usr2};
        let status = |name: &str, caught: &str| {
            format!(
                "Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nSigIgn:\t0000000001001000\nSigCgt:\t{caught}\n"
            )
        };
        let usr1 = "0000000000000200";
        for (text, signal, expected) in [
            (status("python3", usr1), Usr1, true),
            (status("python3", usr1), Usr2, false),
            (status("python3", "0000000000000800"), Usr2, true),
            (status("python3", "0000000000000002"), Usr1, false),
            (status("python3", "nonsense"), Usr1, false),
            (String::new(), Usr1, false),
        ] {
            assert_eq!(has_handler(&text, signal), expected, "{text}");
        }
    }

    #[test]
    fn shells_and_launchers_are_passed_by_under_whatever_name() {
        for (name, executable, expected) in [
            ("python3", Some("python3.11"), false),
            ("bash", Some("bash"), true),
            ("train.sh", Some("bash"), true),
            ("sh", Some("busybox"), true),
            ("mpirun", Some("orterun"), true),
            ("train", None, false),
        ] {
            let status = format!("Name:\t{name}\nUmask:\t0022\n");
            assert_eq!(is_passed_by(&status, executable), expected, "{name}");
        }
    }

    /// A shell that traps it, a program that does not, and below it one that does and has forked.
    #[test]
    fn the_first_with_a_handler_are_found_below_those_without() {
        let program = "import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGUSR1, lambda *_: None)
    if os.fork() > 0:
        print(os.getpid(), flush=True)
time.sleep(600)";
        let mut shell = Command::new("sh")
            .args(["-c", "trap true USR1; python3 -c \"$0\"; true", program])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let out = shell.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let found = listeners(shell.id(), CheckpointSignal::Usr1);
        let none = listeners(shell.id(), CheckpointSignal::Usr2);
        let group = Pid::from_raw(shell.id() as i32).expect("a group");
        rustix::process::kill_process_group(group, Signal::KILL).expect("its own group");
        shell.wait().expect("the shell");
        assert_eq!(found, [line.trim().parse::<u32>().expect("a number")]);
        assert_eq!(none, [0; 0]);
    }
}
