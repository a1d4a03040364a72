//! What can go wrong, in words for whoever owns the dataset.

use std::io;
use std::path::{Path, PathBuf};

use crate::keys::KeyError;
use crate::room::Shortfall;

/// Why data is not where it should be. Each says what failed, why, and what to do; none holds a credential.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("{uri}: {why}")]
    Uri { uri: String, why: String },
    #[error("{uri}: {why}; check the keys in its Secret and what they allow")]
    Refused { uri: String, why: String },
    #[error("{uri}: there is nothing there ({why})")]
    Missing { uri: String, why: String },
    #[error("{uri}: {why}")]
    Broken { uri: String, why: String },
    #[error(
        "{uri}: no answer for {seconds} s, the last being: {why}; what arrived is kept, and trying again goes on from there"
    )]
    GaveUp {
        uri: String,
        seconds: u64,
        why: String,
    },
    #[error("{uri}: {error}")]
    Key { uri: String, error: KeyError },
    #[error(
        "{uri} was changed while it was read: {what} is not what was listed; what was read is put aside and it is read anew"
    )]
    Changed { uri: String, what: String },
    #[error(
        "{uri}: {what} arrived with the wrong bytes, again and again: its checksum is not the one on record"
    )]
    Corrupt { uri: String, what: String },
    #[error("no room for {bytes}: {shortfall}; give the cache more (stoke up --data-cache SIZE; on a cluster the chart's data.cache.size), or free some: stoke data evict NAME", bytes = crate::progress::amount(*needed))]
    NoRoom { needed: u64, shortfall: Shortfall },
    #[error("the disk of {} is full; free some space there, or give the cache less of it (stoke up --data-cache SIZE; on a cluster the chart's data.cache.size)", path.display())]
    DiskFull { path: PathBuf },
    #[error("cannot {what} {}: {why}", path.display())]
    Disk {
        what: &'static str,
        path: PathBuf,
        why: String,
    },
    #[error(
        "{uri} has no complete upload: there is no {} in it; what was begun there is never restored",
        crate::ship::MANIFEST
    )]
    Incomplete { uri: String },
    #[error(
        "{uri}: cannot upload to it, because it is a file and not a place for files; name another place"
    )]
    TargetIsFile { uri: String },
    #[error("{} exists already, and is not replaced", path.display())]
    Exists { path: PathBuf },
    #[error("{} was changed while it was uploaded", path.display())]
    ChangedHere { path: PathBuf },
    #[error("its directory {} is in use by another process for too long", path.display())]
    Busy { path: PathBuf },
}

impl DataError {
    /// Whether trying the same again later may help without anybody doing anything.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::GaveUp { .. }
                | Self::Changed { .. }
                | Self::NoRoom { .. }
                | Self::DiskFull { .. }
                | Self::Busy { .. }
                | Self::ChangedHere { .. }
        )
    }

    pub(crate) fn disk(what: &'static str, path: &Path, error: &io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path },
            _ => Self::Disk {
                what,
                path,
                why: error.to_string(),
            },
        }
    }
}

/// Says what was tried with which path when it fails.
pub(crate) trait OnDisk<T> {
    fn on_disk(self, what: &'static str, path: &Path) -> Result<T, DataError>;
}

impl<T> OnDisk<T> for io::Result<T> {
    fn on_disk(self, what: &'static str, path: &Path) -> Result<T, DataError> {
        self.map_err(|error| DataError::disk(what, path, &error))
    }
}

impl<T> OnDisk<T> for rustix::io::Result<T> {
    fn on_disk(self, what: &'static str, path: &Path) -> Result<T, DataError> {
        self.map_err(|error| DataError::disk(what, path, &error.into()))
    }
}
