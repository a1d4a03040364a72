//! A directory of files to an object store: a checkpoint that must outlive its machine.
//!
//! Invariant: the manifest is written when everything else is there, and goes before anything is overwritten; so a place with a manifest is whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::{MultipartId, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::blocks::{self, BLOCK_BYTES, Digest, FileDigest};
use crate::error::{DataError, OnDisk};
use crate::keys;
use crate::progress::Progress;
use crate::retry::{Patience, Verdict, failure, judge};
use crate::source::Remote;

/// The object that makes an upload complete.
pub const MANIFEST: &str = ".stoke-manifest.json";

/// Blocks in memory at once, beside a training that wants all of it.
const IN_FLIGHT: u32 = 6;
/// Files on their way at once.
const FILES: usize = 8;
/// S3 takes no more than 10,000 parts of an object.
const PARTS_MAX: u64 = 9_000;

/// What a request that sends little may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// And one that sends much: who sends slower than this sends nothing. Several share the wire.
const BYTES_PER_SECOND_MIN: u64 = 32 << 10;
/// How long parts that nobody needs are asked to be removed.
const ABORT_MAX: Duration = Duration::from_secs(10);

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

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shipped {
    pub files: u64,
    pub bytes: u64,
    /// Without what had arrived before.
    pub sent_bytes: u64,
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

/// A file here, as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    path: String,
    size: u64,
    modified_ns: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Arrived {
    #[serde(flatten)]
    seen: Seen,
    sha256: FileDigest,
    etag: Option<String>,
}

struct Work {
    shipment: Shipment,
    known: BTreeMap<String, Arrived>,
    queue: Mutex<Vec<Seen>>,
    journal: Mutex<File>,
    done: Mutex<Vec<Item>>,
    room: Arc<Semaphore>,
    patience: Patience,
    progress: Arc<Progress>,
    /// Objects of which parts are there and not all, by what the store calls them.
    in_parts: Mutex<BTreeMap<MultipartId, object_store::path::Path>>,
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
    let known = read_journal(&shipment.journal);
    if let Some(manifest) = manifest(&to, &patience).await? {
        if is_same(&manifest, &files, &known) {
            return Ok(Shipped {
                files: files.len() as u64,
                bytes,
                sent_bytes: 0,
            });
        }
        // What is there is about to be overwritten, and must not look complete meanwhile.
        let path = to.at(MANIFEST)?;
        persist(&to, &patience, || to.store.delete(&path)).await?;
    }
    let journal = File::options()
        .create(true)
        .append(true)
        .open(&shipment.journal)
        .on_disk("write", &shipment.journal)?;
    let work = Arc::new(Work {
        known,
        queue: Mutex::new(files.iter().rev().cloned().collect()),
        journal: Mutex::new(journal),
        done: Mutex::default(),
        room: Arc::new(Semaphore::new(IN_FLIGHT as usize)),
        patience,
        progress: progress.clone(),
        in_parts: Mutex::default(),
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
            abort(&work).await;
            return Err(error);
        }
    }
    let mut items = std::mem::take(&mut *locked(&work.done));
    items.sort_by(|a, b| a.path.cmp(&b.path));
    let text = serde_json::to_vec(&Manifest {
        format: 1,
        files: items,
    })
    .unwrap_or_default();
    let (path, payload) = (to.at(MANIFEST)?, PutPayload::from(text));
    persist(&to, &work.patience, || {
        within(0, to.sender.put(&path, payload.clone()))
    })
    .await?;
    let _ = fs::remove_file(&work.shipment.journal);
    Ok(Shipped {
        files: files.len() as u64,
        bytes,
        sent_bytes: progress.fetched_bytes() - before,
    })
}

/// Parts of objects that never come cost money; a bucket's lifecycle rule is for those of a process that died.
async fn abort(work: &Work) {
    let begun = std::mem::take(&mut *locked(&work.in_parts));
    let Some(store) = &work.shipment.to.parts else {
        return;
    };
    let all = begun
        .iter()
        .map(|(id, path)| store.abort_multipart(path, id));
    let _ = tokio::time::timeout(ABORT_MAX, futures::future::join_all(all)).await;
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
        let sha256 = arrived.sha256;
        locked(&work.done).push(Item {
            path: file.path,
            size: file.size,
            modified_ms: file.modified_ns / 1_000_000,
            sha256,
        });
    }
}

/// Whether the file as it is now is what arrived earlier and still lies there.
async fn is_there(work: &Work, file: &Seen) -> Result<Option<Arrived>, DataError> {
    let Some(arrived) = work
        .known
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
    } else if work.shipment.to.parts.is_some() {
        in_parts(work, file, &opened, &local).await?
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
    let mut line = serde_json::to_vec(&arrived).unwrap_or_default();
    line.push(b'\n');
    locked(&work.journal)
        .write_all(&line)
        .on_disk("write", &work.shipment.journal)?;
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

/// Parts side by side, each until it is through.
async fn in_parts(
    work: &Work,
    file: &Seen,
    opened: &Arc<File>,
    local: &Path,
) -> Result<(Vec<Digest>, Option<String>), DataError> {
    let to = &work.shipment.to;
    let Some(store) = &to.parts else {
        return in_a_row(work, file, opened, local).await;
    };
    let path = &to.at(&file.path)?;
    let part_bytes = part_bytes(file.size);
    let id = &persist(to, &work.patience, || {
        within(0, store.create_multipart(path))
    })
    .await?;
    locked(&work.in_parts).insert(id.clone(), path.clone());
    let parts = futures::stream::iter(0..file.size.div_ceil(part_bytes)).map(|part| async move {
        let blocks = u32::try_from(part_bytes / BLOCK_BYTES)
            .unwrap_or(IN_FLIGHT)
            .min(IN_FLIGHT);
        let _room = work.room.acquire_many(blocks).await;
        let range = part * part_bytes..file.size.min((part + 1) * part_bytes);
        let bytes = range.end - range.start;
        let (payload, digests) = read(opened, range, local).await?;
        let put = persist(to, &work.patience, || {
            within(
                bytes,
                store.put_part(path, id, part as usize, payload.clone()),
            )
        })
        .await?;
        work.progress.fetched(bytes);
        Ok::<_, DataError>((put, digests))
    });
    let sent: Vec<_> = parts.buffered(IN_FLIGHT as usize).try_collect().await?;
    let (ids, digests): (Vec<_>, Vec<_>) = sent.into_iter().unzip();
    let put = persist(to, &work.patience, || {
        // Putting many parts together takes a store a while.
        within(file.size, store.complete_multipart(path, id, ids.clone()))
    })
    .await?;
    locked(&work.in_parts).remove(id);
    Ok((digests.concat(), put.e_tag))
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

fn part_bytes(size: u64) -> u64 {
    size.div_ceil(PARTS_MAX).div_ceil(BLOCK_BYTES).max(1) * BLOCK_BYTES
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

fn is_same(manifest: &Manifest, files: &[Seen], known: &BTreeMap<String, Arrived>) -> bool {
    let there = |file: &Seen, item: &Item| {
        let same = item.path == file.path
            && item.size == file.size
            && item.modified_ms == file.modified_ns / 1_000_000;
        same && known
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

/// What is not a whole line was not written to its end.
fn read_journal(path: &Path) -> BTreeMap<String, Arrived> {
    let Ok(file) = File::open(path) else {
        return BTreeMap::new();
    };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let arrived = lines.filter_map(|line| serde_json::from_str::<Arrived>(&line).ok());
    arrived
        .map(|arrived| (arrived.seen.path.clone(), arrived))
        .collect()
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
    fn an_object_never_has_more_parts_than_s3_takes() {
        for size in [BLOCK_BYTES + 1, 50 << 30, 100 << 30, 5 << 40] {
            let part = part_bytes(size);
            assert!(
                part.is_multiple_of(BLOCK_BYTES) && size.div_ceil(part) <= 10_000,
                "{size}"
            );
        }
        assert_eq!(part_bytes(50 << 30), BLOCK_BYTES);
    }

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
