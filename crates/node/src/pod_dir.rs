//! Where a pod's files are: `pods/<uid>/` in the data directory, and what the node itself remembers there.
//!
//! Everything needed to take a pod over after the engine was killed is in this directory. Invariant: a file is replaced in
//! one step (write beside, sync, rename), so that whoever reads it, reads all of the old or all of the new.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stoke_api::digest::PodDigest;

use crate::remove::remove_tree;
use crate::resources::Granted;
use crate::status::Fate;

/// Version of `node.json` and of this directory's layout.
pub(crate) const LAYOUT_VERSION: u32 = 1;

const POD: &str = "pod.json";
const RECORD: &str = "node.json";
const DIGEST: &str = "memory.json";

/// What was attempted in a pod's directory.
#[derive(Debug, thiserror::Error)]
pub enum PodDirError {
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not what this version wrote", path.display())]
    Decode {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{} has layout version {found}, this engine knows {LAYOUT_VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
    #[error("cannot remove {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
}

/// What the node decided about a pod and must not decide differently after a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// When the node accepted the pod: `status.startTime`.
    pub(crate) accepted_at: Timestamp,
    /// Ids of the GPUs it holds.
    #[serde(default)]
    pub(crate) gpus: Vec<String>,
    /// What its containers were granted; differs from the spec while a resize waits.
    #[serde(default)]
    pub(crate) granted: Granted,
    /// How the pod must end, once that is decided.
    #[serde(default)]
    pub(crate) fate: Option<Fate>,
    /// Where in memory its secret volumes are. Written down because the next engine may be given another such directory.
    #[serde(default)]
    pub(crate) secrets: Option<PathBuf>,
}

/// A pod's directory.
#[derive(Debug, Clone)]
pub(crate) struct PodDir {
    root: PathBuf,
    secrets: Option<PathBuf>,
}

impl PodDir {
    pub(crate) fn new(pods: &Path, uid: &str) -> Self {
        Self {
            root: pods.join(uid),
            secrets: None,
        }
    }

    /// Where in memory the pod's secret volumes are from now on; `None` for below its own directory.
    pub(crate) fn keep_secrets_in(&mut self, secrets: Option<PathBuf>) {
        self.secrets = secrets;
    }

    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        self.root.join("volumes").join(name)
    }

    /// Where a secret volume goes: memory if there is some, so that it never reaches a disk.
    pub(crate) fn secret_volume(&self, name: &str) -> PathBuf {
        self.secrets
            .as_ref()
            .map_or_else(|| self.volume(name), |dir| dir.join(name))
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub(crate) fn hosts(&self) -> PathBuf {
        self.root.join("etc/hosts")
    }

    pub(crate) fn hostname(&self) -> PathBuf {
        self.root.join("etc/hostname")
    }

    /// Makes the directories, readable by the engine's user only: environment and secrets lie below.
    pub(crate) fn create(&self) -> Result<(), PodDirError> {
        private_dir(&self.root.join("volumes"))?;
        private_dir(&self.root.join("etc"))
    }

    pub(crate) fn write_pod(&self, pod: &Pod) -> Result<(), PodDirError> {
        // Only needed to end the pod of an object that is gone, and no process outlives a power cut.
        write_json(&self.root.join(POD), pod, Durable::No)
    }

    pub(crate) fn read_pod(&self) -> Result<Option<Pod>, PodDirError> {
        read_json(&self.root.join(POD))
    }

    pub(crate) fn write_record(&self, record: &Record) -> Result<(), PodDirError> {
        write_json(&self.root.join(RECORD), record, Durable::Yes)
    }

    pub(crate) fn read_record(&self) -> Result<Option<Record>, PodDirError> {
        let path = self.root.join(RECORD);
        match read_json::<Record>(&path)? {
            Some(record) if record.version != LAYOUT_VERSION => Err(PodDirError::Version {
                path,
                found: record.version,
            }),
            found => Ok(found),
        }
    }

    /// What its containers used so far. Not worth a sync: what is lost is measured anew.
    pub(crate) fn write_digest(&self, digest: &PodDigest) -> Result<(), PodDirError> {
        write_json(&self.root.join(DIGEST), digest, Durable::No)
    }

    /// What an earlier engine wrote of it; empty where that is not there or cannot be read.
    pub(crate) fn read_digest(&self) -> PodDigest {
        let read = read_json(&self.root.join(DIGEST));
        read.ok().flatten().unwrap_or_default()
    }

    /// Removes all of it. What is already gone is no error.
    pub(crate) fn remove(&self) -> Result<(), PodDirError> {
        for dir in [Some(&self.root), self.secrets.as_ref()]
            .into_iter()
            .flatten()
        {
            remove_tree(dir).map_err(|source| PodDirError::Remove {
                path: dir.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

/// A directory for the engine's user only, with its parents.
pub(crate) fn private_dir(path: &Path) -> Result<(), PodDirError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|source| PodDirError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Whether a file must be found again after a power cut. Those that need not be are written faster; a killed engine loses
/// neither kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    Yes,
    No,
}

/// Replaces a file in one step, with mode 0600.
pub(crate) fn replace(path: &Path, bytes: &[u8], durable: Durable) -> Result<(), PodDirError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let write = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(bytes)?;
        if durable == Durable::Yes {
            file.sync_data()?;
        }
        fs::rename(&new, path)?;
        match path.parent() {
            Some(dir) if durable == Durable::Yes => fs::File::open(dir)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().map_err(|source| PodDirError::Write {
        path: path.to_owned(),
        source,
    })
}

fn write_json(path: &Path, value: &impl Serialize, durable: Durable) -> Result<(), PodDirError> {
    let bytes = serde_json::to_vec(value).map_err(|source| PodDirError::Decode {
        path: path.to_owned(),
        source,
    })?;
    replace(path, &bytes, durable)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, PodDirError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(PodDirError::Read {
                path: path.to_owned(),
                source,
            });
        }
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| PodDirError::Decode {
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn remembers_and_forgets() {
        let root = tempfile::tempdir().expect("a directory");
        let mut dir = PodDir::new(root.path(), "u-1");
        assert_eq!(dir.secret_volume("s"), dir.volume("s"));
        let secrets = root.path().join("memory/u-1");
        private_dir(&secrets).expect("made");
        dir.keep_secrets_in(Some(secrets.clone()));
        assert_eq!(dir.secret_volume("s"), secrets.join("s"));
        assert_eq!(dir.read_record().expect("readable"), None);
        dir.create().expect("made");
        let record = Record {
            version: LAYOUT_VERSION,
            accepted_at: Timestamp::UNIX_EPOCH,
            gpus: vec!["SIM-0".to_owned()],
            granted: Granted::new(),
            fate: Some(Fate::DeadlineExceeded),
            secrets: Some(secrets.clone()),
        };
        dir.write_record(&record).expect("written");
        assert_eq!(dir.read_record().expect("readable"), Some(record.clone()));
        let mode = fs::metadata(dir.path())
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "others see nothing");

        let newer = Record {
            version: 99,
            ..record
        };
        dir.write_record(&newer).expect("written");
        assert!(matches!(
            dir.read_record(),
            Err(PodDirError::Version { found: 99, .. })
        ));
        fs::write(dir.path().join(RECORD), b"{").expect("written");
        assert!(matches!(dir.read_record(), Err(PodDirError::Decode { .. })));

        dir.remove().expect("removed");
        dir.remove().expect("twice is fine");
        assert!(!dir.path().exists());
        assert!(!secrets.exists());
    }
}
