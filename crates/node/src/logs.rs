//! Logs of containers: the text format of container runtimes on disk, its writer in the shim and its reader for the API.
//!
//! Invariant: memory does not grow with the length of a file or of a line, and a reader never holds up a writer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;

use bytes::Bytes;
use futures::Stream;
use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::shim::protocol::{ContainerState, ContainerStatus};
use crate::shim::{self, FileError};

mod follow;
pub(crate) mod format;
mod read;
pub(crate) mod write;

/// Blocks that may wait for a slow client, each of at most [`read::BLOCK_BYTES`] and a record.
const BLOCKS_WAITING_MAX: usize = 8;

/// What is asked of a log. The default is all of the current run, without timestamps, and no waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Wait for more until the container ends.
    pub follow: bool,
    /// The run before the current one.
    pub previous: bool,
    pub tail_lines: Option<u64>,
    pub since: Option<Timestamp>,
    /// Begin every line with the time it was written.
    pub timestamps: bool,
    pub limit_bytes: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("container {container:?} does not exist")]
    NoContainer { container: String },
    #[error("container {container:?} is waiting to start: {reason}")]
    NotStarted { container: String, reason: String },
    #[error("previous terminated container {container:?} not found")]
    NoPrevious { container: String },
    #[error("cannot tell which log is the current one")]
    Status(#[source] FileError),
    #[error("cannot open the log {}", path.display())]
    Open { path: PathBuf, source: io::Error },
}

/// Where the log of one run of a container is.
pub fn path(pod_dir: &Path, container: &str, restart: u32) -> PathBuf {
    pod_dir
        .join("logs")
        .join(container)
        .join(format!("{restart}.log"))
}

/// Bytes of a log as they come. Ends by itself, when following with the container.
#[derive(Debug)]
pub struct LogStream {
    blocks: mpsc::Receiver<io::Result<Bytes>>,
}

impl Stream for LogStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.blocks.poll_recv(context)
    }
}

/// Opens the log of a container of the pod in `pod_dir`. Looks at a few files; the reading itself is done by a thread that
/// ends with the stream.
pub fn open(pod_dir: &Path, container: &str, options: &LogOptions) -> Result<LogStream, LogError> {
    let restart = choose_run(pod_dir, container, options.previous)?;
    let path = path(pod_dir, container, restart);
    let failed = |source| LogError::Open {
        path: path.clone(),
        source,
    };
    let (sender, blocks) = mpsc::channel(BLOCKS_WAITING_MAX);
    let following = options
        .follow
        .then(|| follow::Follower::new(pod_dir, container, restart, &path));
    let files = read::open_all(&path).map_err(failed)?;
    let options = options.clone();
    thread::Builder::new()
        .name("log-reader".to_owned())
        .spawn({
            let path = path.clone();
            move || read::run(&path, files, &options, following, &sender)
        })
        .map_err(failed)?;
    Ok(LogStream { blocks })
}

/// The last lines of one run, at most `bytes` of them: what a failed container said at last.
pub fn tail(
    pod_dir: &Path,
    container: &str,
    restart: u32,
    lines: u64,
    bytes: usize,
) -> io::Result<Vec<u8>> {
    let files = read::open_all(&path(pod_dir, container, restart))?;
    read::tail(files, lines, bytes)
}

/// Removes the logs of a container's runs before `restart`, as a kubelet keeps only one that ended.
pub(crate) fn remove_before(pod_dir: &Path, container: &str, restart: u32) {
    let dir = pod_dir.join("logs").join(container);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let run = name
            .to_str()
            .and_then(|name| name.split_once(".log")?.0.parse::<u32>().ok());
        if run.is_some_and(|run| run < restart) {
            // A log that cannot be removed is still bounded in size.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Which run's log is meant, as a kubelet decides it.
fn choose_run(pod_dir: &Path, container: &str, previous: bool) -> Result<u32, LogError> {
    let status = shim::read_status(pod_dir).map_err(LogError::Status)?;
    let status = status
        .as_ref()
        .and_then(|status| status.container(container));
    let Some(status) = status else {
        return Err(LogError::NoContainer {
            container: container.to_owned(),
        });
    };
    choose_run_of(status, previous)
}

fn choose_run_of(status: &ContainerStatus, previous: bool) -> Result<u32, LogError> {
    let container = status.name.clone();
    match &status.state {
        // Held back between two runs: the one that ended is both the current and the previous one.
        ContainerState::Waiting { .. } if status.last.is_some() => Ok(status.restart_count),
        ContainerState::Waiting { reason, .. } if !previous => Err(LogError::NotStarted {
            container,
            reason: reason.clone(),
        }),
        _ if !previous => Ok(status.restart_count),
        _ => status
            .restart_count
            .checked_sub(1)
            .ok_or(LogError::NoPrevious { container }),
    }
}
