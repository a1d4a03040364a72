//! Following the log from a revision, in order, every change exactly once.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::params;
use tokio::sync::watch;

use crate::change::{Change, ChangeType};
use crate::read::Read;
use crate::{Error, Key, Revision, Store};

/// Changes handed out at a time: enough to amortise a wake-up, few enough to bound memory.
const BATCH_MAX: usize = 256;

/// A place in the log. It holds no queue: what it has not read yet is in the ring or on disk.
pub struct Watcher {
    store: Store,
    latest: watch::Receiver<Revision>,
    resource: Option<String>,
    seen: Revision,
}

impl Watcher {
    pub(crate) fn new(store: Store, resource: Option<&str>, after: Revision) -> Self {
        let latest = store.inner.ring.subscribe();
        Self {
            store,
            latest,
            resource: resource.map(str::to_owned),
            seen: after,
        }
    }

    /// Everything up to this revision has been returned by [`Watcher::next`], or does not concern this watcher.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// Waits for the next changes: one or more, in order.
    ///
    /// May be cancelled at any await: what was not returned comes again. [`Error::Gone`] means that changes after
    /// [`Watcher::seen`] were compacted away, so that the watcher must begin anew from a list.
    pub async fn next(&mut self) -> Result<Vec<Arc<Change>>, Error> {
        loop {
            let latest = *self.latest.borrow_and_update();
            if self.seen >= latest {
                self.latest.changed().await.map_err(|_| Error::Closed)?;
                continue;
            }
            let (seen, changes) = match self.store.inner.ring.after(self.seen, BATCH_MAX) {
                Some(mut changes) => {
                    let seen = changes.last().map_or(latest, |change| change.revision);
                    if let Some(resource) = &self.resource {
                        changes.retain(|change| change.key.resource == *resource);
                    }
                    (seen, changes)
                }
                None => self.read_disk().await?,
            };
            self.seen = seen;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    async fn read_disk(&self) -> Result<(Revision, Vec<Arc<Change>>), Error> {
        let after = self.seen;
        let resource = self.resource.clone();
        self.store
            .read(move |read| {
                read.check_covered(after)?;
                let changes = changes_after(read, after, resource.as_deref())?;
                let seen = if changes.len() < BATCH_MAX {
                    read.revision()?
                } else {
                    changes.last().map_or(after, |change| change.revision)
                };
                Ok((seen, changes))
            })
            .await
    }
}

fn changes_after(
    read: &Read<'_>,
    after: Revision,
    resource: Option<&str>,
) -> Result<Vec<Arc<Change>>, Error> {
    let mut statement = read.connection().prepare_cached(
        "SELECT revision, type, resource, namespace, name, document, previous FROM log
         WHERE revision > ?1 AND (?2 IS NULL OR resource = ?2) ORDER BY revision LIMIT ?3",
    )?;
    let changes = statement
        .query_map(params![after, resource, BATCH_MAX as i64], |row| {
            let code = row.get(1)?;
            let change = ChangeType::from_code(code)
                .ok_or(rusqlite::Error::IntegralValueOutOfRange(1, code))?;
            Ok(Arc::new(Change::new(
                row.get(0)?,
                Key::new(
                    row.get::<_, String>(2)?,
                    row.get::<_, String>(3)?,
                    row.get::<_, String>(4)?,
                ),
                change,
                row.get_ref(5)?.as_blob()?,
                row.get::<_, Option<Vec<u8>>>(6)?.map(Bytes::from),
            )))
        })?
        .collect::<Result<_, _>>()?;
    Ok(changes)
}
