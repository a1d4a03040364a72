//! A large file in parts, each of them once, whoever is killed meanwhile.
//!
//! A part is on record when the store has confirmed it. Whoever goes on reads it here and compares its checksum, and sends what is missing.
//! A store that no longer knows what it was sent is sent all of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};

use super::journal::{Begun, Known, Line, Part, Seen};
use super::{IN_FLIGHT, Work, persist, read, within};
use crate::blocks::{BLOCK_BYTES, Digest, FileDigest, hex};
use crate::error::DataError;
use crate::retry::{Verdict, failure, judge};
use crate::source::Remote;

/// S3 takes no more than 10,000 parts of an object.
const PARTS_MAX: u64 = 9_000;
/// How long parts that nobody needs are asked to be removed.
const ABORT_MAX: Duration = Duration::from_secs(10);

type Sent = (Vec<Digest>, Option<String>);

/// A file and where it goes.
struct Job<'a> {
    work: &'a Work,
    store: &'a dyn MultipartStore,
    path: &'a object_store::path::Path,
    file: &'a Seen,
    opened: &'a Arc<File>,
    local: &'a Path,
}

enum Fault {
    /// What is on record is not there any more.
    Forgotten,
    Other(DataError),
}

impl From<DataError> for Fault {
    fn from(error: DataError) -> Self {
        Self::Other(error)
    }
}

pub(super) async fn send(
    work: &Work,
    store: &dyn MultipartStore,
    file: &Seen,
    opened: &Arc<File>,
    local: &Path,
) -> Result<Sent, DataError> {
    let to = &work.shipment.to;
    let path = &to.at(&file.path)?;
    let job = Job {
        work,
        store,
        path,
        file,
        opened,
        local,
    };
    let known = work.known.begun.get(&file.path);
    if let Some(begun) = known.filter(|begun| begun.seen == *file) {
        match job.finish(begun).await {
            Err(Fault::Forgotten) => {
                tracing::debug!(uri = to.uri(), file = file.path, "begun anew");
                let _ = abort(store, path, &begun.upload).await;
            }
            Err(Fault::Other(error)) => return Err(error),
            Ok(sent) => return Ok(sent),
        }
    }
    let upload = persist(to, &work.patience, || {
        within(0, store.create_multipart(path))
    })
    .await?;
    let begun = Begun {
        seen: file.clone(),
        upload,
        parts: BTreeMap::new(),
    };
    work.journal.note(&Line::Begun(begun.clone()))?;
    match job.finish(&begun).await {
        Err(Fault::Forgotten) => Err(DataError::Broken {
            uri: to.uri().to_owned(),
            why: format!("it does not keep the parts of {}", file.path),
        }),
        Err(Fault::Other(error)) => Err(error),
        Ok(sent) => Ok(sent),
    }
}

impl Job<'_> {
    /// Sends the parts that are missing, side by side, each until it is through, and has all of them put together.
    async fn finish(&self, begun: &Begun) -> Result<Sent, Fault> {
        let (work, file) = (self.work, self.file);
        let count = file.size.div_ceil(part_bytes(file.size));
        let parts = futures::stream::iter(0..count).map(|part| self.part(begun, part));
        let sent: Vec<_> = parts.buffered(IN_FLIGHT as usize).try_collect().await?;
        let (ids, digests): (Vec<_>, Vec<_>) = sent.into_iter().unzip();
        let put = persist(&work.shipment.to, &work.patience, || {
            // Putting many parts together takes a store a while.
            within(
                file.size,
                self.store
                    .complete_multipart(self.path, &begun.upload, ids.clone()),
            )
        })
        .await;
        match put {
            Ok(put) => Ok((digests.concat(), put.e_tag)),
            Err(DataError::Missing { .. }) => Err(Fault::Forgotten),
            // One of the parts on record is not what the store has.
            Err(DataError::Broken { .. }) if !begun.parts.is_empty() => Err(Fault::Forgotten),
            Err(error) => Err(error.into()),
        }
    }

    async fn part(&self, begun: &Begun, part: u64) -> Result<(PartId, Vec<Digest>), Fault> {
        let (work, file) = (self.work, self.file);
        let part_bytes = part_bytes(file.size);
        let blocks = u32::try_from(part_bytes / BLOCK_BYTES)
            .unwrap_or(IN_FLIGHT)
            .min(IN_FLIGHT);
        let _room = work.room.acquire_many(blocks).await;
        let range = part * part_bytes..file.size.min((part + 1) * part_bytes);
        let bytes = range.end - range.start;
        let (payload, digests) = read(self.opened, range, self.local).await?;
        let sha256: Vec<_> = digests.iter().map(|it| FileDigest(hex(&it.0))).collect();
        let known = begun.parts.get(&part);
        if let Some(known) = known.filter(|known| known.sha256 == sha256) {
            work.progress.found(bytes);
            let id = PartId {
                content_id: known.id.clone(),
            };
            return Ok((id, digests));
        }
        let put = persist(&work.shipment.to, &work.patience, || {
            within(
                bytes,
                self.store
                    .put_part(self.path, &begun.upload, part as usize, payload.clone()),
            )
        });
        let put = match put.await {
            Err(DataError::Missing { .. }) => return Err(Fault::Forgotten),
            put => put?,
        };
        work.progress.fetched(bytes);
        work.journal.note(&Line::Part(Part {
            upload: begun.upload.clone(),
            part,
            id: put.content_id.clone(),
            sha256,
        }))?;
        Ok((put, digests))
    }
}

fn part_bytes(size: u64) -> u64 {
    size.div_ceil(PARTS_MAX).div_ceil(BLOCK_BYTES).max(1) * BLOCK_BYTES
}

async fn abort(
    store: &dyn MultipartStore,
    path: &object_store::path::Path,
    upload: &object_store::MultipartId,
) -> object_store::Result<()> {
    let asked = store.abort_multipart(path, upload);
    match tokio::time::timeout(ABORT_MAX, asked).await {
        Ok(Err(error)) if judge(&error) == Verdict::Missing => Ok(()),
        Ok(answer) => answer,
        Err(_) => Err(object_store::Error::Generic {
            store: "upload",
            source: format!("no answer within {} s", ABORT_MAX.as_secs()).into(),
        }),
    }
}

/// Has the store forget parts of objects that never come: they cost money. Of all that the journal tells, but what `is_wanted`.
pub(super) async fn forget(
    to: &Remote,
    known: &Known,
    is_wanted: impl Fn(&Seen) -> bool,
) -> Result<(), DataError> {
    let Some(store) = &to.parts else {
        return Ok(());
    };
    let begun = known.begun.values();
    let unwanted: Vec<&Begun> = begun.filter(|begun| !is_wanted(&begun.seen)).collect();
    for begun in unwanted {
        let path = to.at(&begun.seen.path)?;
        abort(store.as_ref(), &path, &begun.upload)
            .await
            .map_err(|error| failure(to, &error))?;
    }
    Ok(())
}

/// Takes away what there is of an upload that nobody will finish: the parts that its journal tells of, and the objects.
pub async fn abandon_upload(
    at: &Remote,
    journal: &Path,
    patience: Duration,
) -> Result<(), DataError> {
    forget(at, &Known::read(journal), |_| false).await?;
    super::remove_upload(at, patience).await
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
}
