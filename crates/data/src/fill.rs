//! Makes the files of a listing: verifies what is there, fetches what is not, many at a time, and remembers each block when it is.
//!
//! Invariant: a block is on record only after its bytes were written; so whoever is killed here goes on where they were.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinSet;

use crate::blocks::{self, Sum};
use crate::disk::{self, Digests};
use crate::error::{DataError, OnDisk};
use crate::fetch::fetch;
use crate::listing::{Entries, Unit, Units};
use crate::progress::Progress;
use crate::retry::Patience;
use crate::source::Remote;

/// Requests at once: enough to hide the distance of a store when files are small. Each holds a few chunks in memory.
const WORKERS: usize = 64;
/// How often bytes with the wrong checksum are fetched again.
const MISMATCHES_MAX: u32 = 3;

/// A directory with a listing, checksums and files.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) dir: PathBuf,
}

impl Tree {
    pub(crate) fn listing(&self) -> PathBuf {
        self.dir.join("listing")
    }

    pub(crate) fn digests(&self) -> PathBuf {
        self.dir.join("digests")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }
}

struct Work {
    remote: Remote,
    data: PathBuf,
    digests: Digests,
    units: Mutex<Units>,
    /// How many blocks are missing of the files that several work on.
    left: Mutex<HashMap<u64, u64>>,
    sum: Sum,
    /// Whether a checksum on record is the truth, or merely what an earlier try saw.
    strict: bool,
    mended: Mutex<BTreeSet<u64>>,
    progress: Arc<Progress>,
    patience: Patience,
}

/// What to make of a tree.
pub(crate) struct Fill {
    /// How blocks are summed up that have no checksum on record.
    pub(crate) sum: Sum,
    /// These files only, by their place in the listing.
    pub(crate) only: Option<BTreeSet<u64>>,
    /// Files were whole once: fetched bytes must have the checksum on record.
    pub(crate) strict: bool,
    pub(crate) patience: Patience,
}

/// Returns the files of which something had to be fetched, if the fill was strict.
pub(crate) async fn fill(
    remote: &Remote,
    tree: &Tree,
    how: Fill,
    progress: &Arc<Progress>,
) -> Result<BTreeSet<u64>, DataError> {
    disk::make_dirs(&tree.data())?;
    let work = Arc::new(Work {
        remote: remote.clone(),
        data: tree.data(),
        digests: Digests::open(&tree.digests())?,
        units: Mutex::new(Units::new(Entries::open(&tree.listing())?, how.only)),
        left: Mutex::default(),
        sum: how.sum,
        strict: how.strict,
        mended: Mutex::default(),
        progress: progress.clone(),
        patience: how.patience,
    });
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let work = work.clone();
        workers.spawn(async move { run(&work).await });
    }
    while let Some(ended) = workers.join_next().await {
        // The first error ends all; the others are dropped with the set.
        ended.map_err(|error| DataError::Broken {
            uri: remote.uri().to_owned(),
            why: error.to_string(),
        })??;
    }
    Ok(std::mem::take(&mut *locked(&work.mended)))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run(work: &Work) -> Result<(), DataError> {
    let mut made = PathBuf::new();
    loop {
        let Some(unit) = locked(&work.units).next() else {
            return Ok(());
        };
        one(work, unit?, &mut made).await?;
    }
}

async fn one(work: &Work, unit: Unit, made: &mut PathBuf) -> Result<(), DataError> {
    let path = work.data.join(&unit.entry.path);
    let file = open(&path, &unit, made)?;
    let (range, recorded) = (unit.range(), work.digests.get(unit.slot));
    let bytes = range.end - range.start;
    let is_there = match recorded {
        Some(digest) => {
            let found = disk::block_digest(&file, range, digest.sum());
            found.on_disk("read", &path)? == Some(digest)
        }
        None => false,
    };
    if is_there {
        work.progress.found(bytes);
    } else {
        // As on record, where it may have to be the same.
        let sum = recorded.map_or(work.sum, |recorded| recorded.sum());
        let mut tries = 0;
        let digest = loop {
            let digest = fetch(
                &work.remote,
                (&unit, sum),
                (&file, &path),
                &work.patience,
                &work.progress,
            )
            .await?;
            if !work.strict || recorded.is_none_or(|recorded| recorded == digest) {
                break digest;
            }
            tries += 1;
            if tries == MISMATCHES_MAX {
                return Err(DataError::Corrupt {
                    uri: work.remote.uri().to_owned(),
                    what: unit.entry.path.clone(),
                });
            }
            work.progress.undone(bytes);
        };
        work.digests
            .set(unit.slot, Some(digest))
            .on_disk("write", &path)?;
        if work.strict {
            locked(&work.mended).insert(unit.file);
        }
    }
    finish(work, &unit, &file).on_disk("write", &path)
}

/// The file with the size it will have; `made` is the directory that was made last.
fn open(path: &Path, unit: &Unit, made: &mut PathBuf) -> Result<File, DataError> {
    let parent = path.parent().unwrap_or(path);
    if parent != made {
        disk::make_dirs(parent)?;
        parent.clone_into(made);
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .on_disk("open", path)?;
    let size = file.metadata().on_disk("open", path)?.len();
    let is_large = blocks::count(unit.entry.size) > 1;
    if size > unit.entry.size || (is_large && size < unit.entry.size) {
        file.set_len(unit.entry.size).on_disk("write", path)?;
    }
    Ok(file)
}

/// With its last block a file gets the time its object has, by which it is known later.
fn finish(work: &Work, unit: &Unit, file: &File) -> std::io::Result<()> {
    let blocks = blocks::count(unit.entry.size);
    if blocks > 1 {
        let mut all = locked(&work.left);
        let left = all.entry(unit.file).or_insert(blocks);
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        all.remove(&unit.file);
    }
    disk::set_modified_ms(file, unit.entry.modified_ms)?;
    work.progress.file_done();
    Ok(())
}

/// The files that are not as they were left, by size and time alone: what a look at each costs.
pub(crate) fn changed(tree: &Tree) -> Result<BTreeSet<u64>, DataError> {
    let data = tree.data();
    let mut changed = BTreeSet::new();
    for (file, entry) in Entries::open(&tree.listing())?.enumerate() {
        let entry = entry?;
        let as_left = fs::symlink_metadata(data.join(&entry.path)).is_ok_and(|found| {
            found.is_file()
                && found.len() == entry.size
                && disk::modified_ms(&found) == entry.modified_ms
        });
        if !as_left {
            changed.insert(file as u64);
        }
    }
    Ok(changed)
}
