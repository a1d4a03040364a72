//! `stoke mpi worker`: runs what the launcher asks for in its own pod, until the launcher says that all is done.
//!
//! Invariant: what a caller started is asked to end when its connection ends, and nothing that was started here is
//! there any more when the worker ends.

use std::collections::HashSet;
use std::io::{self, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::channel::{self, ChannelError, Message, Receiver, Sender, Stream, Token};
use super::descendants;
use super::{
    HANDSHAKE_TIMEOUT, LISTEN, SettingError, TOKEN, code_of, exit_code, notice_silence, setting,
    token,
};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Seconds to wait for the launcher before giving up
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    start_timeout: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("cannot listen on {0}")]
    Listen(String, #[source] io::Error),
    #[error("cannot prepare the pod for Open MPI")]
    Prepare(#[source] io::Error),
    #[error("no launcher came within {0} s")]
    NoLauncher(u64),
    #[error("the launcher went away without a word")]
    LauncherGone,
}

/// At most so many connections at once: the launcher's, and one a daemon.
const CONNECTIONS_MAX: usize = 64;
/// How long what runs may take to end when asked, before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// How long output may still come after a command has ended.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

enum Event {
    Attended,
    Done,
    LauncherGone,
    Signal(i32),
}

/// What all connections share.
struct Worker {
    token: Token,
    /// See [`scratch`].
    scratch: PathBuf,
    running: Running,
    connections: AtomicUsize,
}

pub fn run(args: &Args) -> Result<ExitCode, WorkerError> {
    let address = setting(LISTEN)?;
    // Kept here and not in what threads share, so that it is removed when this function ends.
    let scratch = scratch().map_err(WorkerError::Prepare)?;
    let worker = Arc::new(Worker {
        token: token()?,
        scratch: scratch.path().to_owned(),
        running: Running::default(),
        connections: AtomicUsize::new(0),
    });
    descendants::adopt().map_err(WorkerError::Prepare)?;
    let (events, heard) = mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(WorkerError::Prepare)?;
    let signalled = events.clone();
    thread::spawn(move || {
        for signal in &mut signals {
            let _ = signalled.send(Event::Signal(signal));
        }
    });
    let listener =
        TcpListener::bind(&address).map_err(|error| WorkerError::Listen(address, error))?;
    let serving = Arc::clone(&worker);
    thread::spawn(move || serving.listen(&listener, &events));

    let end = await_end(&heard, Duration::from_secs(args.start_timeout));
    worker.running.stop(GRACE);
    descendants::end(GRACE);
    match end {
        Some(Event::Signal(signal)) => Ok(exit_code(128 + signal)),
        Some(Event::LauncherGone) => Err(WorkerError::LauncherGone),
        Some(Event::Done | Event::Attended) => Ok(ExitCode::SUCCESS),
        None => Err(WorkerError::NoLauncher(args.start_timeout)),
    }
}

/// What ends the worker; None if no launcher came in time.
fn await_end(heard: &mpsc::Receiver<Event>, start_timeout: Duration) -> Option<Event> {
    match heard.recv_timeout(start_timeout) {
        Ok(Event::Attended) => Some(heard.recv().unwrap_or(Event::LauncherGone)),
        Ok(event) => Some(event),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
    }
}

/// Open MPI keeps sockets and shared memory in directories named after the host. Pods that share a machine's /tmp,
/// /dev/shm and perhaps its name would write into each other's, so each worker has a directory of its own.
fn scratch() -> io::Result<tempfile::TempDir> {
    let named = |parent: &Path| {
        tempfile::Builder::new()
            .prefix("stoke-mpi-")
            .tempdir_in(parent)
    };
    named(Path::new("/dev/shm")).or_else(|_| named(&std::env::temp_dir()))
}

impl Worker {
    fn listen(self: Arc<Self>, listener: &TcpListener, events: &mpsc::Sender<Event>) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Out of file descriptors, most likely; connections that end give some back.
                thread::sleep(Duration::from_millis(100));
                continue;
            };
            if self.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
                self.connections.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (worker, events) = (Arc::clone(&self), events.clone());
            thread::spawn(move || {
                let peer = stream.peer_addr();
                if let Err(error) = worker.serve(stream, &events) {
                    let peer = peer.map_or_else(|_| "a caller".to_owned(), |p| p.to_string());
                    eprintln!("stoke mpi worker: {peer}: {:#}", anyhow::Error::from(error));
                }
                worker.connections.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }

    fn serve(&self, stream: TcpStream, events: &mpsc::Sender<Event>) -> Result<(), ChannelError> {
        stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
        stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let (mut say, mut hear) =
            channel::answer(&self.token, stream.try_clone()?, stream.try_clone()?)?;
        let first = hear.receive()?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        notice_silence(&stream)?;
        match first {
            Message::Attend => {
                let _ = events.send(Event::Attended);
                let end = match say.send(&Message::Ready).and_then(|()| hear.receive()) {
                    Ok(Message::Done) => Event::Done,
                    _ => Event::LauncherGone,
                };
                let _ = events.send(end);
                Ok(())
            }
            Message::Exec(line) => self.exec(&line, &stream, say, hear),
            _ => Err(ChannelError::Unknown),
        }
    }

    /// Runs the line in a shell, as ssh would, with this pod's environment.
    fn exec(
        &self,
        line: &str,
        stream: &TcpStream,
        say: Sender<TcpStream>,
        mut hear: Receiver<TcpStream>,
    ) -> Result<(), ChannelError> {
        let mut command = Command::new("sh");
        command
            .args(["-c", line])
            .env_remove(TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        for name in [
            "OMPI_MCA_orte_tmpdir_base",
            "OMPI_MCA_btl_vader_backing_directory",
            "OMPI_MCA_btl_sm_backing_directory",
            "PRTE_MCA_prte_tmpdir_base",
        ] {
            if std::env::var_os(name).is_none() {
                command.env(name, &self.scratch);
            }
        }
        let (mut child, group) = self.running.start(&mut command)?;

        let say = Arc::new(Mutex::new(say));
        let (finished, pumps) = mpsc::channel::<()>();
        let outputs: [(Stream, Option<Box<dyn Read + Send>>); 2] = [
            (
                Stream::Stdout,
                child.stdout.take().map(|o| Box::new(o) as _),
            ),
            (
                Stream::Stderr,
                child.stderr.take().map(|e| Box::new(e) as _),
            ),
        ];
        for (name, output) in outputs {
            let (say, finished) = (Arc::clone(&say), finished.clone());
            thread::spawn(move || {
                pump(name, output, &say);
                drop(finished);
            });
        }
        drop(finished);

        thread::scope(|scope| {
            scope.spawn(|| {
                // The caller says nothing more; what is heard next is that it is gone.
                let _ = hear.receive();
                self.running.end(group, GRACE);
            });
            let status = self.running.wait(&mut child, group);
            // Comes as `Disconnected` once both pumps are through.
            let _ = pumps.recv_timeout(OUTPUT_GRACE);
            let code = status.map_or(1, code_of);
            let told = lock(&say).send(&Message::Exit(code));
            stream.shutdown(Shutdown::Both)?;
            told
        })
    }
}

/// Sends on what comes, to the end. What the caller no longer takes is thrown away, so that the command is not held up.
fn pump(name: Stream, output: Option<Box<dyn Read + Send>>, say: &Mutex<Sender<TcpStream>>) {
    let Some(mut output) = output else { return };
    let mut buffer = vec![0; 16 << 10];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                let bytes = buffer[..length].to_vec();
                let _ = lock(say).send(&Message::Output(name, bytes));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// The process groups that run now.
#[derive(Default)]
struct Running {
    groups: Mutex<Groups>,
    changed: Condvar,
}

#[derive(Default)]
struct Groups {
    alive: HashSet<Pid>,
    /// The worker is ending: nothing may start any more.
    closed: bool,
}

impl Running {
    /// Under the lock, so that nothing starts beside [`Running::stop`].
    fn start(&self, command: &mut Command) -> io::Result<(Child, Pid)> {
        let mut groups = lock(&self.groups);
        if groups.closed {
            return Err(io::Error::other("the worker is ending"));
        }
        let child = command.spawn()?;
        let group = Pid::from_child(&child);
        groups.alive.insert(group);
        Ok((child, group))
    }

    /// Waits for the command itself, then takes the rest of its group along.
    fn wait(&self, child: &mut Child, group: Pid) -> io::Result<std::process::ExitStatus> {
        // Left unreaped until the group is off the list: till then its number cannot belong to anyone else.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(group), ended) {}
        let mut groups = lock(&self.groups);
        let _ = kill_process_group(group, Signal::KILL);
        groups.alive.remove(&group);
        self.changed.notify_all();
        drop(groups);
        child.wait()
    }

    /// Ends one group if it still runs: asks, waits, kills.
    fn end(&self, group: Pid, grace: Duration) {
        self.end_those(grace, |candidate| *candidate == group);
    }

    /// Ends all groups and lets no other start.
    fn stop(&self, grace: Duration) {
        lock(&self.groups).closed = true;
        self.end_those(grace, |_| true);
    }

    fn end_those(&self, grace: Duration, chosen: impl Fn(&Pid) -> bool) {
        let deadline = Instant::now() + grace;
        let mut groups = lock(&self.groups);
        groups.signal(&chosen, Signal::TERM);
        while groups.alive.iter().any(&chosen) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                groups.signal(&chosen, Signal::KILL);
                break;
            }
            groups = self
                .changed
                .wait_timeout(groups, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Groups {
    fn signal(&self, chosen: impl Fn(&Pid) -> bool, signal: Signal) {
        for group in self.alive.iter().copied().filter(|group| chosen(group)) {
            let _ = kill_process_group(group, signal);
        }
    }
}

/// A thread that panicked left nothing half-done here: every change is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
