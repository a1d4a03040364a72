//! One block of one object onto the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

use crate::blocks::{self, Digest, Hasher, Sum};
use crate::error::DataError;
use crate::listing::{ANY_STATE, Unit};
use crate::progress::Progress;
use crate::retry::{Patience, Verdict, failure, judge};
use crate::source::Remote;

/// So often a block that comes only in part is a sign of life, and no more: something cuts it off each time.
const ROUNDS_MAX: u32 = 30;

enum Fault {
    Store(object_store::Error),
    Disk(io::Error),
}

impl From<object_store::Error> for Fault {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

/// Fetches a block and writes it to its place in `file`, however often that takes. It is asked for only as it was listed: an object that has
/// changed since is an error.
pub(crate) async fn fetch(
    remote: &Remote,
    (unit, sum): (&Unit, Sum),
    (file, path): (&File, &std::path::Path),
    patience: &Patience,
    progress: &Progress,
) -> Result<Digest, DataError> {
    let entry = &unit.entry;
    let key = match &entry.key {
        Some(key) => Path::parse(key).map_err(|error| DataError::Uri {
            uri: remote.uri().to_owned(),
            why: error.to_string(),
        })?,
        None => remote.at(&entry.path)?,
    };
    let (mut tries, mut rounds) = (0, 0);
    loop {
        let mut written = 0;
        let error = match attempt(remote, &key, (unit, sum), file, progress, &mut written).await {
            Ok(digest) => {
                patience.good();
                return Ok(digest);
            }
            Err(Fault::Disk(error)) => return Err(DataError::disk("write", path, &error)),
            Err(Fault::Store(error)) => error,
        };
        progress.undone(written);
        rounds += 1;
        if written > 0 && rounds < ROUNDS_MAX {
            patience.good();
            tries = 0;
        }
        match judge(&error) {
            Verdict::Again => patience.again(tries, remote, &error).await?,
            // It was there when it was listed.
            Verdict::Changed | Verdict::Missing => {
                return Err(DataError::Changed {
                    uri: remote.uri().to_owned(),
                    what: entry.path.clone(),
                });
            }
            Verdict::Refused | Verdict::Broken => return Err(failure(remote, &error)),
        }
        tries += 1;
    }
}

async fn attempt(
    remote: &Remote,
    key: &Path,
    (unit, sum): (&Unit, Sum),
    file: &File,
    progress: &Progress,
    written: &mut u64,
) -> Result<Digest, Fault> {
    let (entry, range) = (&unit.entry, unit.range());
    if range.is_empty() {
        return Ok(Hasher::new(sum).finish());
    }
    let is_whole = blocks::count(entry.size) == 1;
    let options = GetOptions {
        range: (!is_whole).then(|| GetRange::Bounded(range.clone())),
        if_match: entry.etag.clone().filter(|etag| etag != ANY_STATE),
        ..GetOptions::default()
    };
    let answer = remote.store.get_opts(key, options).await?;
    // Seconds are all that HTTP tells of a time.
    let is_as_listed = entry.etag.is_some()
        || answer.meta.last_modified.timestamp() == entry.modified_ms.div_euclid(1000);
    if answer.meta.size != entry.size || answer.range != range || !is_as_listed {
        return Err(Fault::Store(object_store::Error::Precondition {
            path: key.to_string(),
            source: "another size than listed".into(),
        }));
    }
    let mut hasher = Hasher::new(sum);
    let mut chunks = answer.into_stream();
    let mut at = range.start;
    while let Some(chunk) = chunks.try_next().await? {
        if at + chunk.len() as u64 > range.end {
            break;
        }
        hasher.update(&chunk);
        file.write_all_at(&chunk, at).map_err(Fault::Disk)?;
        at += chunk.len() as u64;
        *written += chunk.len() as u64;
        progress.fetched(chunk.len() as u64);
    }
    if at != range.end {
        let source = "the answer ended early".into();
        return Err(Fault::Store(object_store::Error::Generic {
            store: "HTTP",
            source,
        }));
    }
    Ok(hasher.finish())
}
