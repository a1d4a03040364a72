//! Starting a shim that outlives whoever starts it.
//!
//! Two steps: `stoke shim --detach DIR` opens a new session, starts `stoke shim DIR` and ends at once. So the shim's parent
//! is init, it gets no signal of the engine's terminal, and the engine has no zombie to collect.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::protocol::ShimSpec;
use super::{Durable, FileError, Life, OWN_LOG_FILE, SPEC_FILE, life, write_json};

/// How long a shim may take to say that it is ready: it mounts its volumes and listens, nothing else.
const READY_WITHIN: Duration = Duration::from_secs(20);
pub(super) const ANOTHER: &str = "another shim runs this pod";
/// What the shim says on its stdout when it listens; anything else is the reason why not.
pub(super) const READY: &str = "ready";
const DETACH: &str = "--detach";

#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("cannot write what the shim is to run")]
    Spec(#[from] FileError),
    #[error("cannot start {}", exe.display())]
    Start { exe: PathBuf, source: io::Error },
    /// The shim's own words.
    #[error("the shim could not start the pod: {0}")]
    Refused(String),
    #[error("the shim was not ready within {} s", READY_WITHIN.as_secs())]
    Late,
}

/// Writes `shim.json` into `dir` and starts the pod's shim, detached. Returns once it listens on its socket and a status is
/// on disk. Blocks for some milliseconds. A second call for a pod whose shim runs changes nothing and is refused.
pub fn spawn(dir: &Path, spec: &ShimSpec, stoke_exe: &Path) -> Result<(), SpawnError> {
    // Looked at before anything is written; the lock itself decides if two come at once.
    if matches!(life(dir), Ok(Life::Running)) {
        return Err(SpawnError::Refused(ANOTHER.to_owned()));
    }
    write_json(&dir.join(SPEC_FILE), spec, Durable::No)?;
    let failed = |source| SpawnError::Start {
        exe: stoke_exe.to_owned(),
        source,
    };
    let (mut ready, told) = io::pipe().map_err(failed)?;
    let mut first = Command::new(stoke_exe)
        .args(["shim", DETACH])
        .arg(dir)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(told)
        .stderr(Stdio::from(own_log(dir).map_err(failed)?))
        .spawn()
        .map_err(failed)?;
    let answer = read_within(&mut ready, READY_WITHIN);
    // It ends by itself as soon as it has started the shim.
    let _ = first.wait();
    match answer {
        Ok(text) if text.trim() == READY => Ok(()),
        Ok(text) if text.trim().is_empty() => Err(SpawnError::Refused(format!(
            "it ended without a word; see {}",
            dir.join(OWN_LOG_FILE).display()
        ))),
        Ok(text) => Err(SpawnError::Refused(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(SpawnError::Late),
        Err(source) => Err(failed(source)),
    }
}

/// The shim's log of its own doings; not the pod's.
fn own_log(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join(OWN_LOG_FILE))
}

fn read_within(pipe: &mut io::PipeReader, within: Duration) -> io::Result<String> {
    let deadline = Instant::now() + within;
    let mut text = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut chunk = [0; 4096];
        match pipe.read(&mut chunk)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            read => text.extend_from_slice(&chunk[..read]),
        }
        if text.contains(&b'\n') || text.len() > 64 << 10 {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
    }
}

/// The first step, in its own process: a new session, the shim in it, and out.
pub(super) fn detach(dir: &Path) -> ExitCode {
    let start = || -> io::Result<()> {
        rustix::process::setsid()?;
        Command::new("/proc/self/exe")
            .arg0("stoke")
            .arg("shim")
            .arg(dir)
            .spawn()
            .map(drop)
    };
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cannot start the shim itself: {error}");
            ExitCode::FAILURE
        }
    }
}
