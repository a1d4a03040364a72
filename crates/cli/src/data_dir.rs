//! The data directory of one engine: where it is, who runs on it, and how to reach that one.
//!
//! Invariant: whether an engine runs is asked of the kernel (a lock that dies with its holder), never of a file that a
//! crash leaves behind. Asking takes no lock, so that asking can never keep an engine from starting.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};
use serde::{Deserialize, Serialize};

/// Why the data directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    #[error("neither HOME nor XDG_DATA_HOME is set, so there is no place for data")]
    NoHome,
    #[error("cannot use {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} was written by a newer stoke (layout {found}; this one knows {LAYOUT})", path.display())]
    NewerLayout { path: PathBuf, found: String },
}

/// How long a killed process may take to be gone.
const DYING: Duration = Duration::from_secs(2);

/// The layout this binary writes and reads.
pub const LAYOUT: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataDir {
    root: PathBuf,
}

/// What the engine of a data directory says of itself, once it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineRecord {
    pub pid: i32,
    pub url: String,
    pub version: String,
    pub started_at: jiff::Timestamp,
}

/// Held by the engine for as long as it lives.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
}

impl DataDir {
    /// The directory that was asked for, else the usual one of this user.
    pub fn resolve(
        asked: Option<PathBuf>,
        variable: impl Fn(&str) -> Option<OsString>,
        is_root: bool,
    ) -> Result<Self, DataDirError> {
        let absolute = |path: PathBuf| {
            std::path::absolute(&path).map_err(|source| DataDirError::Io { path, source })
        };
        let root = match asked {
            Some(path) => absolute(path)?,
            None if is_root => PathBuf::from("/var/lib/stokehold"),
            None => {
                let set = |name| {
                    variable(name)
                        .filter(|value| !value.is_empty())
                        .map(PathBuf::from)
                };
                let base = set("XDG_DATA_HOME")
                    .or_else(|| set("HOME").map(|home| home.join(".local/share")))
                    .ok_or(DataDirError::NoHome)?;
                base.join("stokehold")
            }
        };
        Ok(Self { root })
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    pub fn log(&self) -> PathBuf {
        self.root.join("engine.log")
    }

    fn record_path(&self) -> PathBuf {
        self.root.join("engine.json")
    }

    fn lock_path(&self) -> PathBuf {
        self.root.join("engine.lock")
    }

    /// Makes the directory if it is not there, and refuses one that a newer `stoke` has written.
    pub fn prepare(&self) -> Result<(), DataDirError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.root)
            .map_err(failed(self.root.clone()))?;
        let path = self.root.join("version");
        match fs::read_to_string(&path) {
            Ok(found) if found.trim() == LAYOUT.to_string() => Ok(()),
            Ok(found) => Err(DataDirError::NewerLayout {
                path: self.root.clone(),
                found: found.trim().chars().take(32).collect(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_whole(&path, format!("{LAYOUT}\n").as_bytes()).map_err(failed(path))
            }
            Err(error) => Err(failed(path)(error)),
        }
    }

    /// The process that runs an engine here, if one does.
    pub fn holder(&self) -> Result<Option<i32>, DataDirError> {
        let path = self.lock_path();
        // Reading is enough to ask: the question is whether a reader would be kept out by the engine's write lock.
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(path)(error)),
        };
        let question = Flock {
            start: 0,
            length: 0,
            pid: None,
            typ: FlockType::ReadLock,
            offset_type: FlockOffsetType::Set,
        };
        let answer = fcntl_getlk(&file, &question)
            .map_err(|error| failed(self.lock_path())(error.into()))?;
        Ok(answer.map(|lock| lock.pid.map_or(0, |pid| pid.as_raw_nonzero().get())))
    }

    /// The process that runs an engine here and goes on doing so. One that was just killed has the lock until its last thread
    /// is gone; that is waited for.
    pub fn living_holder(&self) -> Result<Option<i32>, DataDirError> {
        let deadline = Instant::now() + DYING;
        loop {
            match self.holder()? {
                Some(pid) if is_dying(pid) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                holder => return Ok(holder),
            }
        }
    }

    /// Takes the directory for an engine; `None` if another engine has it.
    pub fn claim(&self) -> Result<Option<Claim>, DataDirError> {
        let path = self.lock_path();
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed(path.clone()))?;
        match fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Claim { _lock: lock })),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
            Err(error) => Err(failed(path)(error.into())),
        }
    }

    /// Do locks work here? Tried on a file of its own; `None` where the directory is not there yet.
    pub fn try_lock(&self) -> Option<io::Result<()>> {
        if !self.root.is_dir() {
            return None;
        }
        let path = self.root.join(format!("lock-test.{}", std::process::id()));
        let tried = File::create(&path).and_then(|file| {
            fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.try_lock().map_err(io::Error::from)
        });
        // Left behind only if the disk is broken, which the next start will tell.
        let _ = fs::remove_file(&path);
        Some(tried)
    }

    /// What the last engine here said of itself. It may be gone: ask [`DataDir::holder`].
    pub fn record(&self) -> Option<EngineRecord> {
        let text = fs::read(self.record_path()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub fn write_record(&self, record: &EngineRecord) -> Result<(), DataDirError> {
        let path = self.record_path();
        let mut text = serde_json::to_vec_pretty(record)
            .map_err(|error| failed(path.clone())(error.into()))?;
        text.push(b'\n');
        write_whole(&path, &text).map_err(failed(path))
    }
}

/// Ended but for some of its threads: a zombie, or not there any more.
fn is_dying(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the state may hold anything, brackets included.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_none_or(|state| state.starts_with(['Z', 'X', 'x']))
}

fn failed(path: PathBuf) -> impl FnOnce(io::Error) -> DataDirError {
    move |source| DataDirError::Io { path, source }
}

/// Readers see the old file or the new one, never a part.
fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(asked: Option<&str>, variables: &[(&str, &str)], is_root: bool) -> String {
        let variable = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        DataDir::resolve(asked.map(PathBuf::from), variable, is_root).map_or_else(
            |error| error.to_string(),
            |dir| dir.path().display().to_string(),
        )
    }

    #[test]
    fn each_user_has_a_usual_place() {
        let home = [("HOME", "/home/ada")];
        let xdg = [("HOME", "/home/ada"), ("XDG_DATA_HOME", "/data/ada")];
        assert_eq!(
            resolve(None, &home, false),
            "/home/ada/.local/share/stokehold"
        );
        assert_eq!(resolve(None, &xdg, false), "/data/ada/stokehold");
        assert_eq!(resolve(None, &home, true), "/var/lib/stokehold");
        assert_eq!(resolve(Some("/x"), &home, true), "/x");
        assert_eq!(
            resolve(None, &[("HOME", "")], false),
            DataDirError::NoHome.to_string()
        );
    }

    #[test]
    fn a_layout_of_the_future_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir {
            root: place.path().join("d"),
        };
        dir.prepare().unwrap();
        dir.prepare().unwrap();
        fs::write(dir.path().join("version"), "2\n").unwrap();
        assert!(matches!(
            dir.prepare(),
            Err(DataDirError::NewerLayout { found, .. }) if found == "2"
        ));
    }

    #[test]
    fn the_record_survives_a_round_trip_and_nonsense_is_no_record() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir {
            root: place.path().to_owned(),
        };
        assert_eq!(dir.record(), None);
        let record = EngineRecord {
            pid: 7,
            url: "https://127.0.0.1:6553".to_owned(),
            version: "0.1.0".to_owned(),
            started_at: jiff::Timestamp::UNIX_EPOCH,
        };
        dir.write_record(&record).unwrap();
        assert_eq!(dir.record(), Some(record));
        fs::write(dir.record_path(), "{\"pid\":").unwrap();
        assert_eq!(dir.record(), None);
    }

    #[test]
    fn the_living_are_not_taken_for_dead() {
        assert!(!is_dying(std::process::id().cast_signed()));
        assert!(is_dying(i32::MAX), "a process that is not there");
    }

    #[test]
    fn nobody_holds_a_directory_that_nobody_claimed() {
        let place = tempfile::tempdir().unwrap();
        let dir = DataDir {
            root: place.path().to_owned(),
        };
        assert_eq!(dir.holder().unwrap(), None);
        // A process's own lock is no hindrance to itself; that another process sees it is tested with real engines.
        let claim = dir.claim().unwrap();
        assert!(claim.is_some());
    }
}
