//! What can go wrong with a read, a write or a watch, in terms the caller can act on.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{Key, Revision};

/// Cloneable, because one failed commit is the answer to every write in it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} already exists")]
    Exists(Key),
    #[error("{0} does not exist")]
    Missing(Key),
    #[error("the object for {0} is not a JSON object with an object as its `metadata`")]
    Shape(Key),
    #[error("the object for {key} cannot be stored as JSON")]
    Encode {
        key: Key,
        #[source]
        source: Arc<serde_json::Error>,
    },
    #[error("the stored object of {key} is not JSON")]
    Damaged {
        key: Key,
        #[source]
        source: Arc<serde_json::Error>,
    },
    #[error("revision {requested} is too old: the log begins after {oldest}")]
    Gone {
        requested: Revision,
        oldest: Revision,
    },
    #[error("revision {requested} is in the future: the newest is {latest}")]
    Future {
        requested: Revision,
        latest: Revision,
    },
    #[error("the disk that holds the store is full")]
    DiskFull(#[source] Arc<rusqlite::Error>),
    #[error("the store is locked by another process")]
    Busy(#[source] Arc<rusqlite::Error>),
    #[error("SQLite failed")]
    Sqlite(#[source] Arc<rusqlite::Error>),
    #[error("a request's own code failed while it used the store")]
    Panicked,
    #[error("the store is closed")]
    Closed,
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull};
        let code = error.sqlite_error_code();
        let error = Arc::new(error);
        match code {
            Some(DiskFull) => Self::DiskFull(error),
            Some(DatabaseBusy | DatabaseLocked) => Self::Busy(error),
            _ => Self::Sqlite(error),
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another engine is using {0}")]
    InUse(PathBuf),
    #[error("cannot lock {path}")]
    Lock {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot keep {path} from being read by others")]
    Private {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot open the store")]
    Sqlite(#[source] rusqlite::Error),
    #[error("cannot bring the store to this version's layout; was it written by a newer stoke?")]
    Migrate(#[source] rusqlite_migration::Error),
    #[error("cannot start the store's writer thread")]
    Thread(#[source] std::io::Error),
}

impl OpenError {
    pub(crate) fn sqlite(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}
