//! One engine per store. SQLite would let two engines share a file, but each keeps its own revision counter and
//! its own memory of recent changes, so that sharing would break every watch.

use std::fs::{File, TryLockError};
use std::path::Path;

use crate::{OpenError, private};

/// Holds the lock for as long as it lives; the kernel lets go of it when the process dies, however it dies.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(store: &Path) -> Result<Self, OpenError> {
        let path = store.with_extension("lock");
        let failed = |source| OpenError::Lock {
            path: path.clone(),
            source,
        };
        let file = private::open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse(store.to_owned())),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}
