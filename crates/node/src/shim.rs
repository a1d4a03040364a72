//! The shim: one small process per pod that owns the pod's processes, their logs and their exit status.
//!
//! It has no parent that matters, so `stoke up` can be killed, upgraded and started again under a running training. The
//! engine talks to it over a socket in the pod's directory and, where the shim is gone, reads what it wrote.
//!
//! ```text
//! engine --spawn()--> stoke shim DIR (main) --socket--> stoke shim-container (container_main) --exec--> the job
//!        <--Connection (shim.sock), status.json--
//! ```
//!
//! Both entries must be called before the program starts its first thread: they change namespaces, which a process with
//! threads may not.
//!
//! Invariant: a shim never restarts what ended for good, and never leaves a process of its pod behind when it says `finished`.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

mod backoff;
mod client;
mod exec;
mod init;
mod launch;
mod main;
pub(crate) mod processes;
pub mod protocol;
mod root;
mod run;
mod serve;
mod settle;
mod spawn;
mod supervise;
mod sys;

pub use client::{Connection, ConnectionError, Watch};
pub use init::{MountMethod, container_main};
pub use launch::{Capabilities, capabilities};
pub use main::main;
use protocol::{ShimSpec, ShimStatus};
pub use settle::settle;
pub use spawn::{SpawnError, spawn};

const SPEC_FILE: &str = "shim.json";
const STATUS_FILE: &str = "status.json";
const LOCK_FILE: &str = "shim.lock";
const SOCKET_FILE: &str = "shim.sock";
const OWN_LOG_FILE: &str = "shim.log";
const LOCK_WITHIN: Duration = Duration::from_millis(200);
/// An empty directory on which containers build their root, each in its own mount namespace.
const ROOT_DIR: &str = "root";

/// A file of the pod's directory that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not what a shim writes", path.display())]
    Decode {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// What has become of a pod's shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs; connect to it.
    Running,
    /// It left after all had ended, or was never started: the status file, if any, is the last word.
    Gone,
}

/// Whether the pod's shim runs. Told by a lock that dies with it, so neither a reused process id nor a reboot can deceive.
pub fn life(dir: &Path) -> io::Result<Life> {
    let lock = match File::open(dir.join(LOCK_FILE)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Life::Gone),
        Err(error) => return Err(error),
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Life::Gone),
        Err(Errno::WOULDBLOCK) => Ok(Life::Running),
        Err(error) => Err(error.into()),
    }
}

/// Takes the lock that [`life`] asks for; `None` if a shim has it. Released when the file is closed.
fn lock(dir: &Path) -> io::Result<Option<File>> {
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(LOCK_FILE))?;
    let deadline = Instant::now() + LOCK_WITHIN;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(lock)),
            // Whoever asks whether a shim runs has the lock for a moment.
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The last status the shim wrote; `None` before its first.
pub fn read_status(dir: &Path) -> Result<Option<ShimStatus>, FileError> {
    read_json(&dir.join(STATUS_FILE))
}

/// What the shim was started with.
pub fn read_spec(dir: &Path) -> Result<Option<ShimSpec>, FileError> {
    read_json(&dir.join(SPEC_FILE))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(FileError::Read {
                path: path.to_owned(),
                source,
            });
        }
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|source| FileError::Decode {
            path: path.to_owned(),
            source,
        })
}

/// Whether a power cut right after may not undo the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durable {
    Yes,
    No,
}

/// Replaces a file so that a reader sees the old or the new text and nothing between.
fn write_json<T: serde::Serialize>(
    path: &Path,
    value: &T,
    durable: Durable,
) -> Result<(), FileError> {
    let write = || -> io::Result<()> {
        let temporary = path.with_extension("json.new");
        std::fs::write(&temporary, serde_json::to_vec(value)?)?;
        if durable == Durable::Yes {
            File::open(&temporary)?.sync_all()?;
        }
        std::fs::rename(&temporary, path)?;
        match path.parent() {
            Some(dir) if durable == Durable::Yes => File::open(dir)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().map_err(|source| FileError::Write {
        path: path.to_owned(),
        source,
    })
}
