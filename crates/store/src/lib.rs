//! A transactional object store with a watch log, on SQLite.
//!
//! Objects are JSON documents keyed by resource, namespace and name. Every change takes the next number of one
//! counter, the revision, which is written into the object as `metadata.resourceVersion`, and leaves one entry in
//! a log. A reader can therefore list at a revision and watch from it without a gap.
//!
//! Invariant: a change is acknowledged only after it is on disk (`synchronous=FULL`), and watchers are told only
//! after that. Invariant: revisions are dense, so that a missing log entry can only mean compaction.
//!
//! The store knows nothing of Kubernetes beyond `metadata.resourceVersion`. It must never interpret a spec.

mod change;
mod compact;
mod error;
mod key;
mod lock;
mod private;
mod read;
mod schema;
mod watch;
mod write;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use change::{Change, ChangeType};
pub use compact::Retention;
pub use error::{Error, OpenError};
pub use key::{Key, Revision};
pub use read::{Item, Read, Scan};
pub use watch::Watcher;
pub use write::{Stored, Write};

use change::Ring;

/// How much the store may hold in memory and in its queue.
#[derive(Clone, Debug)]
pub struct Options {
    /// Writes that may wait for the writer thread; further callers wait for a place.
    pub queued_writes_max: usize,
    /// Writes that share one commit. More means fewer syncs under load and no delay when idle.
    pub writes_per_commit_max: usize,
    /// Recent changes kept in memory for watchers, by count and by bytes.
    pub recent_changes_max: usize,
    pub recent_bytes_max: usize,
    /// Read connections, and so reads that run at the same time.
    pub readers_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queued_writes_max: 1024,
            writes_per_commit_max: 256,
            recent_changes_max: 4096,
            recent_bytes_max: 8 << 20,
            readers_max: 4,
        }
    }
}

/// A handle to an open store. Clones share it; the last one to go closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    // Declared before the lock: the writer thread ends, and only then may another engine open the file.
    writer: writer::Writer,
    readers: read::Readers,
    ring: Arc<Ring>,
    _lock: lock::Lock,
    path: PathBuf,
}

impl Store {
    /// Opens the store in `path`, creating it if it is not there. Fails at once if another process has it open.
    pub fn open(path: &Path, options: &Options) -> Result<Self, OpenError> {
        let lock = lock::Lock::take(path)?;
        let connection = schema::open_writer(path)?;
        let revision = schema::latest_revision(&connection).map_err(OpenError::sqlite)?;
        let ring = Arc::new(Ring::new(
            revision,
            options.recent_changes_max,
            options.recent_bytes_max,
        ));
        let writer = writer::Writer::start(connection, revision, Arc::clone(&ring), options)?;
        Ok(Self {
            inner: Arc::new(Inner {
                writer,
                readers: read::Readers::new(path.to_owned(), options.readers_max),
                ring,
                _lock: lock,
                path: path.to_owned(),
            }),
        })
    }

    /// Runs `work` in the writer's transaction and answers once its changes are on disk. If `work` fails, none of
    /// its changes happen; other writes in the same commit are not touched.
    ///
    /// `work` runs on the one writer thread: it sees every earlier write, needs no retry loop, and must not wait
    /// for anything.
    pub async fn write<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(&mut Write<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.inner.writer.submit(work).await
    }

    /// Runs `work` on a consistent snapshot of everything acknowledged before the call.
    pub async fn read<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce(&Read<'_>) -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.inner.readers.run(work).await
    }

    /// A watcher of the changes of `resource` (of every resource if `None`) that come after `after`.
    ///
    /// A revision that is compacted away is only found out when the watcher reads, as [`Error::Gone`].
    pub fn watch(&self, resource: Option<&str>, after: Revision) -> Watcher {
        Watcher::new(self.clone(), resource, after)
    }

    /// The newest revision that watchers have been told of.
    pub fn revision(&self) -> Revision {
        self.inner.ring.latest()
    }

    /// Forgets old log entries beyond `retention`; returns the oldest revision that can still be watched from.
    pub async fn compact(&self, retention: Retention) -> Result<Revision, Error> {
        compact::run(self, retention).await
    }

    pub fn path(&self) -> &Path {
        &self.inner.path
    }
}
