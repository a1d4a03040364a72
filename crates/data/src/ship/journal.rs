//! What is known of an upload to whoever goes on with it: a line for each thing that the store has confirmed.
//!
//! Invariant: a line is written after what it tells of has happened. Whatever is not on record is done again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use object_store::MultipartId;
use serde::{Deserialize, Serialize};

use crate::blocks::FileDigest;
use crate::error::{DataError, OnDisk};

/// A file here, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) modified_ns: i64,
}

/// All of a file is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrived {
    #[serde(flatten)]
    pub(super) seen: Seen,
    pub(super) sha256: FileDigest,
    pub(super) etag: Option<String>,
}

/// A file is sent in parts, and this is what the store calls it until it has all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    #[serde(flatten)]
    pub(super) seen: Seen,
    pub(super) upload: MultipartId,
    #[serde(skip)]
    pub(super) parts: BTreeMap<u64, Part>,
}

/// One of them is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) upload: MultipartId,
    pub(super) part: u64,
    /// What the store calls it.
    pub(super) id: String,
    /// Of each block in it.
    pub(super) sha256: Vec<FileDigest>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Arrived(Arrived),
    Begun(Begun),
    Part(Part),
}

/// What a journal tells.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) arrived: BTreeMap<String, Arrived>,
    /// By path. What was begun anew is told of by its last beginning.
    pub(super) begun: BTreeMap<String, Begun>,
}

impl Known {
    /// What is not a whole line was not written to its end.
    pub(super) fn read(path: &Path) -> Self {
        let mut known = Self::default();
        let Ok(file) = File::open(path) else {
            return known;
        };
        let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
        for line in lines.filter_map(|line| serde_json::from_slice::<Line>(&line).ok()) {
            known.learn(line);
        }
        known
    }

    fn learn(&mut self, line: Line) {
        match line {
            Line::Arrived(arrived) => {
                self.begun.remove(&arrived.seen.path);
                self.arrived.insert(arrived.seen.path.clone(), arrived);
            }
            Line::Begun(begun) => {
                self.begun.insert(begun.seen.path.clone(), begun);
            }
            Line::Part(part) => {
                let of = |begun: &&mut Begun| begun.upload == part.upload;
                if let Some(begun) = self.begun.values_mut().find(of) {
                    begun.parts.insert(part.part, part);
                }
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Journal {
    file: Mutex<File>,
    path: PathBuf,
}

impl Journal {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let open = || -> io::Result<File> {
            let mut file = File::options()
                .create(true)
                .read(true)
                .append(true)
                .open(path)?;
            let mut last = [b'\n'];
            if file.seek(SeekFrom::End(0))? > 0 {
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
            }
            if last != *b"\n" {
                // Who wrote it was killed in the middle of a line, and the next must not become a part of that.
                file.write_all(b"\n")?;
            }
            Ok(file)
        };
        Ok(Self {
            file: Mutex::new(open().on_disk("write", path)?),
            path: path.to_owned(),
        })
    }

    pub(super) fn note(&self, line: &Line) -> Result<(), DataError> {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&text).on_disk("write", &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(path: &str) -> Seen {
        Seen {
            path: path.to_owned(),
            size: 1,
            modified_ns: 2,
        }
    }

    fn begun(path: &str, upload: &str) -> Line {
        Line::Begun(Begun {
            seen: seen(path),
            upload: upload.to_owned(),
            parts: BTreeMap::new(),
        })
    }

    fn part(upload: &str, part: u64) -> Line {
        Line::Part(Part {
            upload: upload.to_owned(),
            part,
            id: format!("{upload}/{part}"),
            sha256: vec![FileDigest("00".to_owned())],
        })
    }

    #[test]
    fn what_was_noted_is_known_and_a_torn_line_spoils_no_other() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal");
        let journal = Journal::open(&path).expect("a journal");
        for line in [
            begun("a", "old"),
            part("old", 0),
            begun("a", "new"),
            part("new", 1),
            part("new", 3),
            begun("b", "whole"),
            part("whole", 0),
            Line::Arrived(Arrived {
                seen: seen("b"),
                sha256: FileDigest("11".to_owned()),
                etag: None,
            }),
        ] {
            journal.note(&line).expect("noted");
        }
        let text = std::fs::read(&path).expect("a journal");
        for length in [text.len(), text.len() - 5] {
            std::fs::write(&path, &text[..length]).expect("torn");
            let journal = Journal::open(&path).expect("a journal");
            journal.note(&part("new", 4)).expect("noted");
            let known = Known::read(&path);
            let parts: Vec<_> = known.begun["a"].parts.keys().copied().collect();
            assert_eq!(
                (known.begun["a"].upload.as_str(), parts),
                ("new", vec![1, 3, 4])
            );
            let is_whole = length == text.len();
            assert_eq!(known.arrived.contains_key("b"), is_whole);
            assert_eq!(known.begun.contains_key("b"), !is_whole);
        }
    }
}
