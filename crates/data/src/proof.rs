//! Whether what lies in a store is what was sent there.
//!
//! An S3 server holds every request against the SHA-256 that comes with it and answers with what it made of it. So what it lists is compared with what
//! it answered: a few requests, and no bytes. A directory answers for nothing, and reading it costs nobody: its files are read.

use std::collections::BTreeMap;

use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use crate::blocks::{self, FileDigest};
use crate::error::DataError;
use crate::retry::Patience;
use crate::ship::{MANIFEST, persist};
use crate::source::{Remote, Scheme};

/// What a store confirmed of an upload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt(pub(crate) Vec<Confirmed>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) sha256: FileDigest,
    /// None where nobody knows: it arrived in somebody else's time.
    pub(crate) etag: Option<String>,
}

/// Names a file of a complete upload that is not what was sent, if there is one. Nothing is changed.
pub async fn find_damage(
    at: &Remote,
    receipt: &Receipt,
    patience: std::time::Duration,
) -> Result<Option<String>, DataError> {
    let patience = Patience::new(patience);
    let prefix = (!at.prefix.as_ref().is_empty()).then_some(&at.prefix);
    let listed = persist(at, &patience, || {
        let objects = at.store.list(prefix);
        objects
            .map_ok(|object| (object.location, (object.size, object.e_tag)))
            .try_collect::<BTreeMap<_, _>>()
    })
    .await?;
    if !listed.contains_key(&at.at(MANIFEST)?) {
        return Ok(Some(MANIFEST.to_owned()));
    }
    for sent in &receipt.0 {
        let found = listed.get(&at.at(&sent.path)?);
        let is_same = found.is_some_and(|(size, etag)| {
            *size == sent.size && is_same_etag(etag.as_deref(), sent.etag.as_deref())
        });
        if !is_same || (at.scheme == Scheme::File && !reads_back(at, sent, &patience).await?) {
            return Ok(Some(sent.path.clone()));
        }
    }
    Ok(None)
}

/// Some servers quote them in one answer and not in the other.
fn is_same_etag(found: Option<&str>, sent: Option<&str>) -> bool {
    let plain = |etag: &str| etag.trim_start_matches("W/").trim_matches('"').to_owned();
    match (found, sent) {
        (Some(found), Some(sent)) => plain(found) == plain(sent),
        _ => true,
    }
}

/// One block after the other: nobody waits for it.
async fn reads_back(at: &Remote, sent: &Confirmed, patience: &Patience) -> Result<bool, DataError> {
    let path = at.at(&sent.path)?;
    let mut digests = Vec::new();
    for block in 0..blocks::count(sent.size) {
        let range = blocks::range(sent.size, block);
        let bytes = if range.is_empty() {
            bytes::Bytes::new()
        } else {
            persist(at, patience, || at.store.get_range(&path, range.clone())).await?
        };
        digests.push(blocks::digest(&bytes));
    }
    Ok(blocks::whole(&digests) == sent.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_compared_however_they_are_quoted() {
        assert!(is_same_etag(Some("\"a-2\""), Some("a-2")));
        assert!(is_same_etag(Some("W/\"a\""), Some("\"a\"")));
        assert!(is_same_etag(None, Some("a")));
        assert!(!is_same_etag(Some("a"), Some("b")));
    }
}
