//! A directory of files to an object store: a checkpoint that must outlive its machine.
//!
//! Invariant: the manifest is written when everything else is there, and goes before anything is overwritten; so a place with a manifest is whole.

mod journal;
mod parts;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::blocks::{self, BLOCK_BYTES, Digest, FileDigest};
use crate::error::{DataError, OnDisk};
use crate::keys;
use crate::progress::Progress;
use crate::proof::{Confirmed, Receipt};
use crate::retry::{Patience, Verdict, failure, judge};
use crate::source::Remote;

use journal::{Arrived, Journal, Known, Line, Seen};
pub use parts::abandon_upload;

/// The object that makes an upload complete.
pub const MANIFEST: &str = ".stoke-manifest.json";

/// Blocks in memory at once, beside a training that wants all of it.
const IN_FLIGHT: u32 = 6;
/// Files on their way at once.
const FILES: usize = 8;

/// What a request that sends little may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// And one that sends much: who sends slower than this sends nothing. Several share the wire.
const BYTES_PER_SECOND_MIN: u64 = 32 << 10;

/// What goes where.
#[derive(Debug, Clone)]
pub struct Shipment {
    pub dir: PathBuf,
    pub to: Remote,
    /// A file that remembers what has arrived, so that another try sends only the rest. It may be missing, and is removed when all is there.
    pub journal: PathBuf,
    /// How long the store may be silent before this try is given up.
    pub patience: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shipped {
    pub files: u64,
    pub bytes: u64,
    /// Without what had arrived before.
    pub sent_bytes: u64,
    /// What the store has confirmed.
    pub receipt: Receipt,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    pub(crate) files: Vec<Item>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Item {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) modified_ms: i64,
    /// Of the file if it has no more than 8 MiB, else of the SHA-256 of each 8 MiB in a row.
    pub(crate) sha256: FileDigest,
}

struct Work {
    shipment: Shipment,
    known: Known,
    queue: Mutex<Vec<Seen>>,
    journal: Journal,
    done: Mutex<Vec<Arrived>>,
    room: Arc<Semaphore>,
    patience: Patience,
    progress: Arc<Progress>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a directory. Whatever interrupts it, the next call goes on; a manifest appears when everything has arrived.
pub async fn upload(shipment: Shipment, progress: &Arc<Progress>) -> Result<Shipped, DataError> {
    let files = look(&shipment.dir)?;
    let bytes = files.iter().map(|file| file.size).sum();
    progress.begin(files.len() as u64, bytes);
    let patience = Patience::new(shipment.patience);
    let to = shipment.to.clone();
    check_target(&to, &patience).await?;
    let known = Known::read(&shipment.journal);
    if let Some(manifest) = manifest(&to, &patience).await? {
        if is_same(&manifest, &files, &known) {
            let confirmed = manifest.files.into_iter().map(|item| Confirmed {
                etag: known.arrived.get(&item.path).and_then(|it| it.etag.clone()),
                path: item.path,
                size: item.size,
                sha256: item.sha256,
            });
            return Ok(Shipped {
                files: files.len() as u64,
                bytes,
                sent_bytes: 0,
                receipt: Receipt(confirmed.collect()),
            });
        }
        // What is there is about to be overwritten, and must not look complete meanwhile.
        let path = to.at(MANIFEST)?;
        persist(&to, &patience, || to.store.delete(&path)).await?;
    }
    // Of files that are others now. What cannot be removed just now stays on record.
    let is_wanted = |seen: &Seen| {
        files
            .binary_search_by(|it| it.path.cmp(&seen.path))
            .is_ok_and(|at| files[at] == *seen)
    };
    let _ = parts::forget(&to, &known, is_wanted).await;
    let journal = Journal::open(&shipment.journal)?;
    let work = Arc::new(Work {
        known,
        queue: Mutex::new(files.iter().rev().cloned().collect()),
        journal,
        done: Mutex::default(),
        room: Arc::new(Semaphore::new(IN_FLIGHT as usize)),
        patience,
        progress: progress.clone(),
        shipment,
    });
    let before = progress.fetched_bytes();
    let mut workers = JoinSet::new();
    for _ in 0..FILES.min(files.len()) {
        let work = work.clone();
        workers.spawn(async move { run(&work).await });
    }
    while let Some(ended) = workers.join_next().await {
        let ended = ended.map_err(|error| DataError::Broken {
            uri: to.uri().to_owned(),
            why: error.to_string(),
        });
        if let Err(error) = ended.and_then(|ended| ended) {
            workers.shutdown().await;
            return Err(error);
        }
    }
    let mut arrived = std::mem::take(&mut *locked(&work.done));
    arrived.sort_by(|a, b| a.seen.path.cmp(&b.seen.path));
    let item = |arrived: &Arrived| Item {
        path: arrived.seen.path.clone(),
        size: arrived.seen.size,
        modified_ms: arrived.seen.modified_ns / 1_000_000,
        sha256: arrived.sha256.clone(),
    };
    let text = serde_json::to_vec(&Manifest {
        format: 1,
        files: arrived.iter().map(item).collect(),
    })
    .unwrap_or_default();
    let (path, payload) = (to.at(MANIFEST)?, PutPayload::from(text));
    persist(&to, &work.patience, || {
        within(0, to.sender.put(&path, payload.clone()))
    })
    .await?;
    let _ = fs::remove_file(&work.shipment.journal);
    let confirmed = arrived.into_iter().map(|arrived| Confirmed {
        path: arrived.seen.path,
        size: arrived.seen.size,
        sha256: arrived.sha256,
        etag: arrived.etag,
    });
    Ok(Shipped {
        files: files.len() as u64,
        bytes,
        sent_bytes: progress.fetched_bytes() - before,
        receipt: Receipt(confirmed.collect()),
    })
}

async fn run(work: &Work) -> Result<(), DataError> {
    loop {
        let Some(file) = locked(&work.queue).pop() else {
            return Ok(());
        };
        let arrived = match is_there(work, &file).await? {
            Some(arrived) => {
                work.progress.found(file.size);
                arrived
            }
            None => send(work, &file).await?,
        };
        work.progress.file_done();
        locked(&work.done).push(arrived);
    }
}

/// Whether the file as it is now is what arrived earlier and still lies there.
async fn is_there(work: &Work, file: &Seen) -> Result<Option<Arrived>, DataError> {
    let Some(arrived) = work
        .known
        .arrived
        .get(&file.path)
        .filter(|arrived| arrived.seen == *file)
    else {
        return Ok(None);
    };
    let to = &work.shipment.to;
    let path = to.at(&file.path)?;
    let found = maybe(to, &work.patience, || to.store.head(&path)).await?;
    let same = found.is_some_and(|found| found.size == file.size && found.e_tag == arrived.etag);
    Ok(same.then(|| arrived.clone()))
}

async fn send(work: &Work, file: &Seen) -> Result<Arrived, DataError> {
    let local = work.shipment.dir.join(&file.path);
    let opened = Arc::new(File::open(&local).on_disk("open", &local)?);
    let (digests, etag) = if file.size <= BLOCK_BYTES {
        whole(work, file, &opened, &local).await?
    } else if let Some(store) = &work.shipment.to.parts {
        parts::send(work, store.as_ref(), file, &opened, &local).await?
    } else {
        in_a_row(work, file, &opened, &local).await?
    };
    let now = seen(
        &file.path,
        &fs::metadata(&local).on_disk("look at", &local)?,
    );
    if now != *file {
        return Err(DataError::ChangedHere { path: local });
    }
    let arrived = Arrived {
        seen: file.clone(),
        sha256: blocks::whole(&digests),
        etag,
    };
    work.journal.note(&Line::Arrived(arrived.clone()))?;
    Ok(arrived)
}

async fn whole(
    work: &Work,
    file: &Seen,
    opened: &Arc<File>,
    local: &Path,
) -> Result<(Vec<Digest>, Option<String>), DataError> {
    let _room = work.room.acquire().await;
    let (payload, digests) = read(opened, 0..file.size, local).await?;
    let to = &work.shipment.to;
    let path = to.at(&file.path)?;
    let put = persist(to, &work.patience, || {
        within(file.size, to.sender.put(&path, payload.clone()))
    })
    .await?;
    work.progress.fetched(file.size);
    Ok((digests, put.e_tag))
}

/// For a directory: it takes parts one after the other.
async fn in_a_row(
    work: &Work,
    file: &Seen,
    opened: &Arc<File>,
    local: &Path,
) -> Result<(Vec<Digest>, Option<String>), DataError> {
    let to = &work.shipment.to;
    let path = to.at(&file.path)?;
    let mut upload = to
        .store
        .put_multipart(&path)
        .await
        .map_err(|error| failure(to, &error))?;
    let mut digests = Vec::new();
    for block in 0..blocks::count(file.size) {
        let range = blocks::range(file.size, block);
        let bytes = range.end - range.start;
        let (payload, digest) = read(opened, range, local).await?;
        upload
            .put_part(payload)
            .await
            .map_err(|error| failure(to, &error))?;
        work.progress.fetched(bytes);
        digests.extend(digest);
    }
    let put = upload
        .complete()
        .await
        .map_err(|error| failure(to, &error))?;
    Ok((digests, put.e_tag))
}

/// Reads and hashes away from the threads that serve requests.
async fn read(
    file: &Arc<File>,
    range: std::ops::Range<u64>,
    local: &Path,
) -> Result<(PutPayload, Vec<Digest>), DataError> {
    use std::os::unix::fs::FileExt;
    let file = file.clone();
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start)?;
        let digests = if bytes.is_empty() {
            vec![blocks::digest(b"")]
        } else {
            bytes
                .chunks(BLOCK_BYTES as usize)
                .map(blocks::digest)
                .collect()
        };
        Ok((PutPayload::from(bytes), digests))
    });
    match read.await {
        Ok(Err(error)) if std::io::Error::kind(&error) == std::io::ErrorKind::UnexpectedEof => {
            Err(DataError::ChangedHere {
                path: local.to_owned(),
            })
        }
        Ok(read) => read.on_disk("read", local),
        Err(error) => Err(DataError::Disk {
            what: "read",
            path: local.to_owned(),
            why: error.to_string(),
        }),
    }
}

/// Who sends so much in vain for so long sends it to nobody.
fn send_max(bytes: u64) -> Duration {
    ANSWER_MAX + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

/// The answer to a request that sends so many bytes, in the time it may take.
async fn within<T>(
    bytes: u64,
    asked: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    let max = send_max(bytes);
    tokio::time::timeout(max, asked).await.unwrap_or_else(|_| {
        Err(object_store::Error::Generic {
            store: "upload",
            source: format!("no answer within {} s", max.as_secs()).into(),
        })
    })
}

/// Asks until there is an answer.
pub(crate) async fn persist<T, F: Future<Output = object_store::Result<T>>>(
    to: &Remote,
    patience: &Patience,
    mut ask: impl FnMut() -> F,
) -> Result<T, DataError> {
    let mut tries = 0;
    loop {
        match ask().await {
            Ok(answer) => {
                patience.good();
                return Ok(answer);
            }
            Err(error) if judge(&error) == Verdict::Again => {
                patience.again(tries, to, &error).await?;
            }
            Err(error) => return Err(failure(to, &error)),
        }
        tries += 1;
    }
}

/// The same, where nothing is an answer as well.
async fn maybe<T, F: Future<Output = object_store::Result<T>>>(
    to: &Remote,
    patience: &Patience,
    ask: impl FnMut() -> F,
) -> Result<Option<T>, DataError> {
    match persist(to, patience, ask).await {
        Ok(found) => Ok(Some(found)),
        Err(DataError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// An object where the directory would be.
async fn check_target(to: &Remote, patience: &Patience) -> Result<(), DataError> {
    if to.prefix.as_ref().is_empty() {
        return Ok(());
    }
    match maybe(to, patience, || to.store.head(&to.prefix)).await? {
        // Consoles make an empty object for a directory.
        Some(found) if found.size > 0 => Err(DataError::TargetIsFile {
            uri: to.uri().to_owned(),
        }),
        _ => Ok(()),
    }
}

pub(crate) async fn manifest(
    at: &Remote,
    patience: &Patience,
) -> Result<Option<Manifest>, DataError> {
    let path = at.at(MANIFEST)?;
    let text = maybe(at, patience, || async {
        at.store.get(&path).await?.bytes().await
    })
    .await?;
    let Some(text) = text else { return Ok(None) };
    let broken = |why: String| DataError::Broken {
        uri: format!("{}/{MANIFEST}", at.uri()),
        why,
    };
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| broken(format!("it cannot be read: {error}")))?;
    if manifest.format != 1 {
        return Err(broken(format!(
            "it has format {}, and this version reads 1",
            manifest.format
        )));
    }
    Ok(Some(manifest))
}

fn is_same(manifest: &Manifest, files: &[Seen], known: &Known) -> bool {
    let there = |file: &Seen, item: &Item| {
        let same = item.path == file.path
            && item.size == file.size
            && item.modified_ms == file.modified_ns / 1_000_000;
        same && known
            .arrived
            .get(&file.path)
            .is_none_or(|arrived| arrived.seen != *file || arrived.sha256 == item.sha256)
    };
    manifest.files.len() == files.len()
        && files
            .iter()
            .zip(&manifest.files)
            .all(|(file, item)| there(file, item))
}

fn seen(path: &str, metadata: &fs::Metadata) -> Seen {
    Seen {
        path: path.to_owned(),
        size: metadata.len(),
        modified_ns: metadata
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(metadata.mtime_nsec()),
    }
}

/// All files below a directory, by path. A link to a file inside is that file; one that leads out is an error.
fn look(dir: &Path) -> Result<Vec<Seen>, DataError> {
    let root = fs::canonicalize(dir).on_disk("open", dir)?;
    let mut files = Vec::new();
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        for path in crate::pins::entries(&dir)? {
            let kind = fs::symlink_metadata(&path).on_disk("look at", &path)?;
            if kind.is_dir() {
                dirs.push(path);
                continue;
            }
            let real = fs::canonicalize(&path).on_disk("follow", &path)?;
            let metadata = fs::metadata(&real).on_disk("look at", &path)?;
            let unusable = |why: &str| DataError::Disk {
                what: "upload",
                path: path.clone(),
                why: why.to_owned(),
            };
            if !metadata.is_file() || !real.starts_with(&root) {
                return Err(unusable(
                    "it is neither a file nor a directory nor a link to a file beside it",
                ));
            }
            let below = path
                .strip_prefix(&root)
                .ok()
                .and_then(Path::to_str)
                .ok_or_else(|| unusable("its name is not UTF-8"))?;
            if below == MANIFEST {
                return Err(unusable("the name is the one of our own manifest"));
            }
            keys::path(below).map_err(|error| unusable(&error.to_string()))?;
            files.push(seen(below, &metadata));
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The names below a place that hold complete uploads, in their order.
pub async fn complete_uploads(at: &Remote, patience: Duration) -> Result<Vec<String>, DataError> {
    let patience = Patience::new(patience);
    let prefix = (!at.prefix.as_ref().is_empty()).then_some(&at.prefix);
    let found = persist(at, &patience, || at.store.list_with_delimiter(prefix)).await?;
    let mut complete = Vec::new();
    for name in found
        .common_prefixes
        .iter()
        .filter_map(|path| path.filename())
    {
        let path = at.below(name)?.at(MANIFEST)?;
        if maybe(at, &patience, || at.store.head(&path))
            .await?
            .is_some()
        {
            complete.push(name.to_owned());
        }
    }
    complete.sort();
    Ok(complete)
}

/// Removes an upload, its manifest first: what is left of one is never restored.
pub async fn remove_upload(at: &Remote, patience: Duration) -> Result<(), DataError> {
    let patience = Patience::new(patience);
    if at.prefix.as_ref().is_empty() && at.scheme != crate::source::Scheme::File {
        return Err(DataError::Uri {
            uri: at.uri().to_owned(),
            why: "a whole bucket is not removed".to_owned(),
        });
    }
    let path = at.at(MANIFEST)?;
    maybe(at, &patience, || at.store.delete(&path)).await?;
    let prefix = (!at.prefix.as_ref().is_empty()).then_some(&at.prefix);
    let objects = at
        .store
        .list(prefix)
        .map_ok(|object| object.location)
        .boxed();
    let mut gone = at.store.delete_stream(objects);
    while let Some(removed) = gone.next().await {
        match removed {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(failure(at, &error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_sends_slowly_has_time_and_whoever_is_silent_has_not() {
        assert_eq!(send_max(0), ANSWER_MAX);
        // Six blocks at once over a wire of two megabits.
        let all = u64::from(IN_FLIGHT) * BLOCK_BYTES;
        let takes = Duration::from_secs(all / (2_000_000 / 8));
        assert!(send_max(BLOCK_BYTES) > takes, "{takes:?}");
        assert!(send_max(BLOCK_BYTES) < Duration::from_secs(600));
    }
}
