//! What there is at a place: every object once, written to a file as it is told, so that memory stays small however many there are.
//!
//! Invariant: two listings have the same version if and only if they name the same objects in the same state, in whatever order.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::blocks::{self, digest, hex};
use crate::error::{DataError, OnDisk};
use crate::keys::{KeyError, Keys};
use crate::progress::Progress;
use crate::retry::{Patience, Verdict, failure, judge};
use crate::source::{Remote, Scheme};

/// In place of an etag: its checksum is known, so it does not matter when it was written.
pub(crate) const ANY_STATE: &str = "*";

/// One object, as a line of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Below the prefix; empty for an object that is the prefix itself.
    #[serde(rename = "p")]
    pub(crate) path: String,
    #[serde(rename = "s")]
    pub(crate) size: u64,
    #[serde(rename = "m")]
    pub(crate) modified_ms: i64,
    #[serde(rename = "e", skip_serializing_if = "Option::is_none")]
    pub(crate) etag: Option<String>,
    /// Where it lies, if that is not the path below the prefix.
    #[serde(rename = "k", skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) version: String,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// What it takes on a disk that gives out 4 KiB at a time.
    pub(crate) footprint: u64,
    pub(crate) blocks: u64,
}

pub(crate) struct Listed {
    pub(crate) file: NamedTempFile,
    pub(crate) summary: Summary,
}

/// A sum of checksums: the order does not matter, and no two sums are kept.
#[derive(Default)]
struct Tally {
    lanes: [u64; 4],
    files: u64,
    bytes: u64,
    footprint: u64,
    blocks: u64,
}

impl Tally {
    fn add(&mut self, entry: &Entry) {
        let state = match &entry.etag {
            Some(etag) => etag.clone(),
            None => entry.modified_ms.to_string(),
        };
        let line = digest(format!("{}\0{}\0{state}", entry.path, entry.size).as_bytes());
        for (lane, bytes) in self.lanes.iter_mut().zip(line.0.chunks_exact(8)) {
            *lane = lane.wrapping_add(
                bytes
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            );
        }
        self.files += 1;
        self.bytes = self.bytes.saturating_add(entry.size);
        self.footprint = self
            .footprint
            .saturating_add(entry.size.saturating_add(4095) / 4096 * 4096);
        self.blocks += blocks::count(entry.size);
    }

    fn summary(self, uri: &str) -> Summary {
        let text = format!("1\n{uri}\n{:?}\n{}", self.lanes, self.files);
        let version = hex(&digest(text.as_bytes()).0[..16]);
        Summary {
            version,
            files: self.files,
            bytes: self.bytes,
            footprint: self.footprint,
            blocks: self.blocks,
        }
    }
}

impl Summary {
    /// The same for those of one scope only: another scope's listing that says the same is another version.
    pub(crate) fn within(mut self, scope: &str) -> Self {
        if !scope.is_empty() {
            let text = format!("{scope}\n{}", self.version);
            self.version = hex(&digest(text.as_bytes()).0[..16]);
        }
        self
    }
}

/// Asks for everything below a place, or for the one object that it is.
pub(crate) async fn list(
    remote: &Remote,
    tmp: &Path,
    folds_case: bool,
    patience: &Patience,
    progress: &Progress,
) -> Result<Listed, DataError> {
    let mut tries = 0;
    loop {
        match attempt(remote, tmp, folds_case, patience, progress).await {
            Ok(listed) => return Ok(listed),
            Err(Trouble::Final(error)) => return Err(error),
            Err(Trouble::Store(error)) if judge(&error) == Verdict::Again => {
                patience.again(tries, remote, &error).await?;
            }
            Err(Trouble::Store(error)) => return Err(failure(remote, &error)),
        }
        tries += 1;
    }
}

enum Trouble {
    Final(DataError),
    Store(object_store::Error),
}

impl From<object_store::Error> for Trouble {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<DataError> for Trouble {
    fn from(error: DataError) -> Self {
        Self::Final(error)
    }
}

async fn attempt(
    remote: &Remote,
    tmp: &Path,
    folds_case: bool,
    patience: &Patience,
    progress: &Progress,
) -> Result<Listed, Trouble> {
    let uri = remote.uri();
    let key_error = |error: KeyError| DataError::Key {
        uri: uri.to_owned(),
        error,
    };
    let mut file = NamedTempFile::new_in(tmp).on_disk("write in", tmp)?;
    let (mut keys, mut tally) = (Keys::new(folds_case), Tally::default());
    {
        let mut out = BufWriter::new(file.as_file_mut());
        let mut put =
            |entry: &Entry, keys: &mut Keys, tally: &mut Tally| -> Result<(), DataError> {
                keys.add(&entry.path, entry.size).map_err(key_error)?;
                tally.add(entry);
                write_line(&mut out, entry).on_disk("write in", tmp)
            };
        if remote.scheme != Scheme::Http {
            let prefix = (!remote.prefix.as_ref().is_empty()).then_some(&remote.prefix);
            let mut objects = remote.store.list(prefix);
            while let Some(object) = objects
                .try_next()
                .await
                .map_err(|error| bad_key(remote, error))?
            {
                put(&entry(remote, object)?, &mut keys, &mut tally)?;
                if tally.files.is_multiple_of(1000) {
                    patience.good();
                    progress.listed(tally.files, tally.bytes);
                }
            }
        }
        if tally.files == 0 {
            if remote.prefix.as_ref().is_empty() {
                return Err(DataError::Missing {
                    uri: uri.to_owned(),
                    why: "it holds no object".to_owned(),
                }
                .into());
            }
            let object = remote.store.head(&remote.prefix).await?;
            let name = remote.prefix.filename().unwrap_or_default().to_owned();
            let key = Some(object.location.to_string());
            put(
                &Entry {
                    path: name,
                    key,
                    ..of(object)
                },
                &mut keys,
                &mut tally,
            )?;
        }
        out.flush().on_disk("write in", tmp)?;
    }
    if keys.has_markers() {
        (file, tally) = without_markers(file, tmp, &keys)?;
    }
    patience.good();
    Ok(Listed {
        file,
        summary: tally.summary(uri),
    })
}

/// Empty objects that stand for directories are no files.
fn without_markers(
    file: NamedTempFile,
    tmp: &Path,
    keys: &Keys,
) -> Result<(NamedTempFile, Tally), DataError> {
    let mut kept = NamedTempFile::new_in(tmp).on_disk("write in", tmp)?;
    let mut tally = Tally::default();
    {
        let mut out = BufWriter::new(kept.as_file_mut());
        for entry in Entries::open(file.path())? {
            let entry = entry?;
            if !keys.is_marker(&entry.path, entry.size) {
                tally.add(&entry);
                write_line(&mut out, &entry).on_disk("write in", tmp)?;
            }
        }
        out.flush().on_disk("write in", tmp)?;
    }
    Ok((kept, tally))
}

/// A key that is no path at all is told as what it is, and not as a broken answer.
fn bad_key(remote: &Remote, error: object_store::Error) -> Trouble {
    use object_store::Error::InvalidPath;
    use object_store::path::Error as PathError;
    let InvalidPath { source } = &error else {
        return Trouble::Store(error);
    };
    let (key, why) = match source {
        PathError::EmptySegment { path } => {
            (path.clone(), "it has an empty part: two slashes in a row")
        }
        PathError::BadSegment { path, .. } => (
            path.clone(),
            "it has a part . or .., or one with characters that no path has",
        ),
        _ => (source.to_string(), "it is no path"),
    };
    let error = if key.split('/').any(|part| part == "..") {
        KeyError::Escapes { key, why }
    } else {
        KeyError::Unusable { key, why }
    };
    Trouble::Final(DataError::Key {
        uri: remote.uri().to_owned(),
        error,
    })
}

fn of(object: ObjectMeta) -> Entry {
    Entry {
        path: String::new(),
        size: object.size,
        modified_ms: object.last_modified.timestamp_millis(),
        etag: object.e_tag.filter(|etag| !etag.is_empty()),
        key: None,
    }
}

fn entry(remote: &Remote, object: ObjectMeta) -> Result<Entry, DataError> {
    let whole = object.location.as_ref();
    let below = match remote.prefix.as_ref() {
        "" => Some(whole),
        prefix => whole
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix('/')),
    };
    let path = below.ok_or_else(|| DataError::Broken {
        uri: remote.uri().to_owned(),
        why: format!("the server lists {whole:?}, which is not below it"),
    })?;
    Ok(Entry {
        path: path.to_owned(),
        ..of(object)
    })
}

pub(crate) fn write_line(out: &mut impl Write, entry: &Entry) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, entry)?;
    out.write_all(b"\n")
}

/// The entries of a listing that lies on disk, one at a time.
pub(crate) struct Entries {
    lines: BufReader<File>,
    line: String,
    path: std::path::PathBuf,
}

impl Entries {
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).on_disk("open", path)?;
        Ok(Self {
            lines: BufReader::with_capacity(64 << 10, file),
            line: String::new(),
            path: path.to_owned(),
        })
    }
}

impl Iterator for Entries {
    type Item = Result<Entry, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.line.clear();
        match self.lines.read_line(&mut self.line) {
            Ok(0) => None,
            Ok(_) => Some(
                serde_json::from_str(&self.line).map_err(|error| DataError::Disk {
                    what: "read",
                    path: self.path.clone(),
                    why: error.to_string(),
                }),
            ),
            Err(error) => Some(Err(DataError::disk("read", &self.path, &error))),
        }
    }
}

/// One block of one file, and its place among all blocks.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) entry: Arc<Entry>,
    pub(crate) file: u64,
    pub(crate) block: u64,
    pub(crate) slot: u64,
}

impl Unit {
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        blocks::range(self.entry.size, self.block)
    }
}

/// All blocks of a listing in their order; of some files only, if told so.
pub(crate) struct Units {
    entries: Entries,
    only: Option<std::collections::BTreeSet<u64>>,
    now: Option<Unit>,
    files: u64,
    slots: u64,
}

impl Units {
    pub(crate) fn new(entries: Entries, only: Option<std::collections::BTreeSet<u64>>) -> Self {
        Self {
            entries,
            only,
            now: None,
            files: 0,
            slots: 0,
        }
    }
}

impl Iterator for Units {
    type Item = Result<Unit, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(unit) = &mut self.now {
            if unit.block + 1 < blocks::count(unit.entry.size) {
                unit.block += 1;
                unit.slot += 1;
                return Some(Ok(unit.clone()));
            }
            self.now = None;
        }
        loop {
            let entry = match self.entries.next()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error)),
            };
            let (file, slot) = (self.files, self.slots);
            self.files += 1;
            self.slots += blocks::count(entry.size);
            if self.only.as_ref().is_none_or(|only| only.contains(&file)) {
                let unit = Unit {
                    entry: Arc::new(entry),
                    file,
                    block: 0,
                    slot,
                };
                self.now = Some(unit.clone());
                return Some(Ok(unit));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::BLOCK_BYTES;

    fn entry(path: &str, size: u64, etag: &str) -> Entry {
        Entry {
            path: path.to_owned(),
            size,
            modified_ms: 0,
            etag: Some(etag.to_owned()),
            key: None,
        }
    }

    fn version(entries: &[Entry]) -> String {
        let mut tally = Tally::default();
        for entry in entries {
            tally.add(entry);
        }
        tally.summary("s3://a/b").version
    }

    #[test]
    fn scopes_share_no_version() {
        let plain = || Tally::default().summary("s3://a/b");
        let of = |scope: &str| plain().within(scope).version;
        assert_eq!(of(""), plain().version);
        assert_eq!(of("one"), of("one"));
        assert!(of("one") != of("other") && of("one") != of(""));
    }

    #[test]
    fn a_version_is_the_objects_and_not_their_order() {
        let (a, b) = (entry("a", 1, "x"), entry("b", 2, "y"));
        let both = version(&[a.clone(), b.clone()]);
        assert_eq!(version(&[b.clone(), a.clone()]), both);
        for other in [
            vec![a.clone()],
            vec![a.clone(), entry("b", 2, "z")],
            vec![a.clone(), entry("b", 3, "y")],
            vec![a, entry("c", 2, "y")],
        ] {
            assert_ne!(version(&other), both);
        }
    }

    #[test]
    fn blocks_have_the_same_place_whoever_asks() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("listing");
        let mut file = File::create(&path).expect("a file");
        for entry in [
            entry("a", 1, ""),
            entry("b", 2 * BLOCK_BYTES + 1, ""),
            entry("c", 0, ""),
        ] {
            write_line(&mut file, &entry).expect("a line");
        }
        let units = |only| {
            let units = Units::new(Entries::open(&path).expect("a listing"), only);
            let told = |unit: Unit| {
                format!(
                    "{} {}:{} {:?}",
                    unit.slot,
                    unit.entry.path,
                    unit.block,
                    unit.range()
                )
            };
            units
                .map(|unit| told(unit.expect("a unit")))
                .collect::<Vec<_>>()
        };
        let all = units(None);
        assert_eq!(
            all,
            [
                "0 a:0 0..1",
                "1 b:0 0..8388608",
                "2 b:1 8388608..16777216",
                "3 b:2 16777216..16777217",
                "4 c:0 0..0"
            ]
        );
        assert_eq!(units(Some([0, 2].into())), [all[0].clone(), all[4].clone()]);
        assert_eq!(units(Some([1].into())), all[1..4]);
    }
}
