//! `stoke mpi launch`: waits for the gang's workers, runs mpirun over all of them, and ends as it ends.
//!
//! It keeps a connection to every worker for as long as it lives. A worker that loses it ends what it runs; a launcher
//! that loses one ends mpirun: neither half of a gang goes on alone.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::channel::{ChannelError, Message, Receiver, Sender, Token};
use super::descendants;
use super::hosts::{Gang, Host, HostsError};
use super::{HOSTS, SettingError, call, code_of, exit_code, setting, token};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Processes in all; absent: every slot of every host
    #[arg(long = "np", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    processes: Option<u32>,
    /// Processes on each host
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    /// Seconds to wait for all workers before giving up
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    start_timeout: u64,
    /// What every process runs
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("{HOSTS} cannot be read")]
    Hosts(#[source] HostsError),
    #[error(
        "cannot start mpirun; the launcher runs the Open MPI of its own pod (on Debian: apt install openmpi-bin)"
    )]
    Mpirun(#[source] io::Error),
    #[error("after {seconds} s these workers do not answer: {}", .missing.join(", "))]
    Missing {
        seconds: u64,
        missing: Vec<String>,
        #[source]
        source: ChannelError,
    },
    #[error("cannot prepare the run of mpirun")]
    Prepare(#[source] io::Error),
    #[error(
        "mpirun cannot be given a path with blanks or colons in it: {0}; set TMPDIR to a plainer one"
    )]
    Path(String),
}

/// Between two tries to reach a worker.
const RETRY: Duration = Duration::from_millis(50);
/// After so long, say whom we wait for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long mpirun may take to end after a worker is lost, before the next measure is taken.
const GRACE: Duration = Duration::from_secs(8);

enum Event {
    Signal(i32),
    Lost(String),
    Ended,
}

pub fn run(args: &Args) -> Result<ExitCode, LaunchError> {
    let gang = Gang::parse(&setting(HOSTS)?).map_err(LaunchError::Hosts)?;
    let token = token()?;
    let (events, heard) = mpsc::channel();
    let mut signals =
        Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2]).map_err(LaunchError::Prepare)?;
    let signalled = events.clone();
    thread::spawn(move || {
        for signal in &mut signals {
            let _ = signalled.send(Event::Signal(signal));
        }
    });

    let timeout = Duration::from_secs(args.start_timeout);
    let mut workers = match gather(&gang, &token, timeout, &heard)? {
        Gathering::All(workers) => workers,
        Gathering::Signalled(signal) => return Ok(exit_code(128 + signal)),
    };
    let scratch = tempfile::Builder::new()
        .prefix("stoke-mpi-")
        .tempdir()
        .map_err(LaunchError::Prepare)?;
    descendants::adopt().map_err(LaunchError::Prepare)?;
    let child = mpirun(args, &gang, scratch.path())?;
    for worker in &mut workers {
        worker.watch(&events);
    }
    let code = attend(child, &events, &heard);
    descendants::end(GRACE);
    for worker in &mut workers {
        // One that is gone needs no telling.
        let _ = worker.say.send(&Message::Done);
    }
    Ok(exit_code(code))
}

/// A worker that answered.
struct Worker {
    name: String,
    say: Sender<TcpStream>,
    hear: Option<Receiver<TcpStream>>,
}

impl Worker {
    fn greet(host: &Host, token: &Token) -> Result<Self, ChannelError> {
        let (mut say, mut hear) = call(host, token)?;
        say.send(&Message::Attend)?;
        match hear.receive()? {
            Message::Ready => Ok(Self {
                name: host.name.clone(),
                say,
                hear: Some(hear),
            }),
            _ => Err(ChannelError::Unknown),
        }
    }

    /// Tells when the worker is gone.
    fn watch(&mut self, events: &mpsc::Sender<Event>) {
        let (name, events) = (self.name.clone(), events.clone());
        if let Some(mut hear) = self.hear.take() {
            thread::spawn(move || {
                let _ = hear.receive();
                let _ = events.send(Event::Lost(name));
            });
        }
    }
}

enum Gathering {
    All(Vec<Worker>),
    Signalled(i32),
}

/// Waits until every worker has answered.
fn gather(
    gang: &Gang,
    token: &Token,
    timeout: Duration,
    heard: &mpsc::Receiver<Event>,
) -> Result<Gathering, LaunchError> {
    let start = Instant::now();
    let mut told = false;
    let mut workers = Vec::new();
    for (index, host) in gang.workers().iter().enumerate() {
        loop {
            let source = match Worker::greet(host, token) {
                Ok(worker) => {
                    workers.push(worker);
                    break;
                }
                Err(error) => error,
            };
            if start.elapsed() >= timeout {
                let others = &gang.workers()[index + 1..];
                let missing = std::iter::once(host)
                    .chain(others.iter().filter(|h| Worker::greet(h, token).is_err()))
                    .map(|host| format!("{} ({}:{})", host.name, host.address, host.port))
                    .collect();
                return Err(LaunchError::Missing {
                    seconds: timeout.as_secs(),
                    missing,
                    source,
                });
            }
            if !told && start.elapsed() >= PATIENCE {
                eprintln!("stoke mpi launch: waiting for {}: {source}", host.name);
                told = true;
            }
            // Who wants something of the ranks wants it of nobody yet.
            if let Ok(Event::Signal(signal)) = heard.recv_timeout(RETRY)
                && !matches!(signal, SIGUSR1 | SIGUSR2)
            {
                return Ok(Gathering::Signalled(signal));
            }
        }
    }
    Ok(Gathering::All(workers))
}

/// Starts mpirun, told through its environment what is not in the user's own.
fn mpirun(args: &Args, gang: &Gang, scratch: &Path) -> Result<Child, LaunchError> {
    let hostfile = scratch.join("hosts");
    let own_name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    fs::write(&hostfile, gang.hostfile(&own_name, args.slots)).map_err(LaunchError::Prepare)?;
    let exe = std::env::current_exe().map_err(LaunchError::Prepare)?;
    // Each daemon of mpirun looks for the agent too, though it calls nobody: the path must be there in every pod, as the binary's own is.
    // Only where mpirun would split that at a blank or a colon is it another, which pods of one machine share.
    let agent = match plain(&exe) {
        Ok(own) => own,
        Err(_) => plain(&linked(&exe, scratch)?)?,
    };
    let agent = format!("{agent} mpi rsh");
    let hostfile = plain(&hostfile)?;

    let slots = args.slots.saturating_mul(gang.hosts.len() as u32);
    let processes = args.processes.unwrap_or(slots);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new("mpirun");
    command.args(["-np", &processes.to_string()]);
    command.args(&args.command);
    for (name, value) in gang.settings(&agent, &hostfile, processes, cores) {
        if std::env::var_os(&name).is_none() {
            command.env(name, value);
        }
    }
    // In a group of its own: a signal to the pod's group would reach mpirun beside the one sent on to it, and at the
    // second it gives up without ending its ranks.
    command.process_group(0);
    command.spawn().map_err(LaunchError::Mpirun)
}

/// A path that mpirun does not split.
fn plain(path: &Path) -> Result<String, LaunchError> {
    match path.to_str() {
        Some(text) if !text.contains([' ', '\t', ':']) => Ok(text.to_owned()),
        _ => Err(LaunchError::Path(path.display().to_string())),
    }
}

fn linked(exe: &Path, scratch: &Path) -> Result<PathBuf, LaunchError> {
    let link = scratch.join("stoke");
    symlink(exe, &link).map_err(LaunchError::Prepare)?;
    Ok(link)
}

/// Sends signals on to mpirun until it has ended.
fn attend(mut child: Child, events: &mpsc::Sender<Event>, heard: &mpsc::Receiver<Event>) -> i32 {
    let pid = Pid::from_child(&child);
    let ended = events.clone();
    thread::spawn(move || {
        // Left unreaped, so that its number stays its own while signals are sent to it.
        let end = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), end) {}
        let _ = ended.send(Event::Ended);
    });
    let mut lost = false;
    // What mpirun is sent after a worker is lost, the gentlest first. It notices by itself and ends its ranks, which a
    // signal in the midst of that would keep it from.
    let mut measures = [Signal::TERM, Signal::KILL].into_iter();
    loop {
        let event = if lost {
            heard.recv_timeout(GRACE)
        } else {
            heard.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match event {
            Ok(Event::Signal(signal)) => {
                let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
                // mpirun does not know what a terminal that hangs up wants of it.
                let signal = if signal == Signal::HUP {
                    Signal::TERM
                } else {
                    signal
                };
                let _ = kill_process(pid, signal);
            }
            Ok(Event::Lost(_)) if lost => {}
            Ok(Event::Lost(name)) => {
                eprintln!("stoke mpi launch: lost the worker on {name}; ending the others");
                lost = true;
            }
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(signal) = measures.next() {
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
    let code = child.wait().map_or(1, code_of);
    if lost && code == 0 { 1 } else { code }
}
