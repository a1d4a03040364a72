//! What the driver must still know after it was killed: which volume is for whom, and which datasets are said to lie here. One small file each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A volume of a pod. It is on record before anything is done for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) target: PathBuf,
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) dataset: String,
}

/// A dataset that was copied here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uri: String,
    /// It is on the dataset's own record, too.
    pub(super) is_told: bool,
}

impl Known {
    /// A namespace has no dot in it.
    pub(super) fn id(&self) -> String {
        format!("{}.{}", self.namespace, self.name)
    }
}

/// A directory of records.
#[derive(Debug)]
pub(super) struct Ledger {
    dir: PathBuf,
}

impl Ledger {
    pub(super) fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    pub(super) fn put(&self, id: &str, record: &impl Serialize) -> io::Result<()> {
        let whole = self.path(id);
        let part = whole.with_extension("part");
        fs::write(&part, serde_json::to_vec(record)?)?;
        fs::rename(part, whole)
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.path(id).is_file()
    }

    pub(super) fn get<T: DeserializeOwned>(&self, id: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path(id)).ok()?).ok()
    }

    pub(super) fn remove(&self, id: &str) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// What cannot be read is nobody's.
    pub(super) fn all<T: DeserializeOwned>(&self) -> io::Result<Vec<T>> {
        let mut paths: Vec<PathBuf> = fs::read_dir(&self.dir)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension() == Some("json".as_ref()))
            .collect();
        paths.sort();
        let read = |path: &Path| serde_json::from_slice(&fs::read(path).ok()?).ok();
        Ok(paths.iter().filter_map(|path| read(path)).collect())
    }
}

/// Names of files come from a kubelet, and lead nowhere else.
pub(super) fn is_safe(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !id.is_empty() && id.len() <= 200 && id.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_whoever_wrote_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let known = Known {
            namespace: "ns".to_owned(),
            name: "a.b".to_owned(),
            uri: "s3://a/b".to_owned(),
            is_told: false,
        };
        let ledger = Ledger::open(dir.path().to_owned()).expect("a ledger");
        ledger.put(&known.id(), &known).expect("written");
        fs::write(dir.path().join("half.part"), "{").expect("a file");
        fs::write(dir.path().join("broken.json"), "{").expect("a file");
        let again = Ledger::open(dir.path().to_owned()).expect("a ledger");
        let all = again.all::<Known>().expect("records");
        assert_eq!(all, std::slice::from_ref(&known));
        again.remove(&known.id()).expect("removed");
        again.remove(&known.id()).expect("gone already");
        assert!(!again.has(&known.id()));
    }

    #[test]
    fn ids_lead_nowhere() {
        assert!(is_safe("csi-0af9"));
        for id in ["", ".", "..", "a/b", "a.b", "a b"] {
            assert!(!is_safe(id), "{id:?}");
        }
    }
}
