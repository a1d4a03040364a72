//! Who uses what in a cache. A pin is a file, so that it is there for every process and outlives the one that made it.
//!
//! Invariant: pins come and versions go under the cache's one lock; so nothing goes under somebody who has a pin.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk;
use crate::error::{DataError, OnDisk};

/// How long a version is kept for whom.
#[derive(Debug, Clone, Copy)]
pub enum Pin<'a> {
    /// While this process lives and holds what it was given.
    Held,
    /// Until it is taken away by this name, also over restarts: a pod's id.
    Kept(&'a str),
}

/// Holds a version as long as it is there.
#[derive(Debug)]
pub(crate) struct Guard {
    path: PathBuf,
    _lock: File,
}

impl Drop for Guard {
    fn drop(&mut self) {
        // What is left of it after a crash is told from a pin by its lock.
        let _ = fs::remove_file(&self.path);
    }
}

const HELD: &str = "held-";
const KEPT: &str = "kept-";

#[derive(Debug, Clone)]
pub(crate) struct Pins {
    dir: PathBuf,
}

impl Pins {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Under the cache's lock.
    pub(crate) fn add(&self, version: &str, pin: Pin<'_>) -> Result<Option<Guard>, DataError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = self.dir.join(version);
        disk::make_dirs(&dir)?;
        match pin {
            Pin::Kept(holder) => {
                let path = dir.join(format!("{KEPT}{}", file_name(holder)));
                File::create(&path)
                    .on_disk("write", &path)?
                    .sync_all()
                    .on_disk("write", &path)?;
                Ok(None)
            }
            Pin::Held => {
                let path = dir.join(format!(
                    "{HELD}{}-{}",
                    std::process::id(),
                    NEXT.fetch_add(1, Ordering::Relaxed)
                ));
                Ok(Some(Guard {
                    _lock: disk::lock(&path)?,
                    path,
                }))
            }
        }
    }

    /// Under the cache's lock. Pins of processes that died are swept on the way.
    pub(crate) fn any(&self, version: &str) -> Result<bool, DataError> {
        let mut any = false;
        for path in entries(&self.dir.join(version))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(HELD) && disk::try_lock(&path)?.is_some() {
                let _ = fs::remove_file(&path);
            } else {
                any = true;
            }
        }
        Ok(any)
    }

    /// Takes away every pin by these names.
    pub(crate) fn remove(&self, is_gone: impl Fn(&str) -> bool) -> Result<(), DataError> {
        for version in entries(&self.dir)? {
            for path in entries(&version)? {
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                if name.strip_prefix(KEPT).is_some_and(&is_gone) {
                    fs::remove_file(&path).on_disk("remove", &path)?;
                }
            }
            // Only when it is empty.
            let _ = fs::remove_dir(&version);
        }
        Ok(())
    }
}

/// Names come from pods; none leads anywhere else.
fn file_name(holder: &str) -> String {
    holder
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' || c == '_' {
                c
            } else {
                '_'
            }
        })
        .take(200)
        .collect()
}

pub(crate) fn entries(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    match fs::read_dir(dir) {
        Ok(found) => {
            let mut paths: Vec<PathBuf> =
                found.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.sort();
            Ok(paths)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(DataError::disk("read", dir, &error)),
    }
}
