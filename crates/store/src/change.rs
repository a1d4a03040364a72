//! One entry of the revision log, and the ring of recent ones that most watchers live on.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{Key, Revision};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeType {
    Added,
    Modified,
    Deleted,
}

impl ChangeType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }

    pub(crate) fn code(self) -> i64 {
        match self {
            Self::Added => 0,
            Self::Modified => 1,
            Self::Deleted => 2,
        }
    }

    pub(crate) fn from_code(code: i64) -> Option<Self> {
        [Self::Added, Self::Modified, Self::Deleted]
            .into_iter()
            .find(|change| change.code() == code)
    }
}

/// What happened to one object.
///
/// The document is kept inside the line in which a watch sends it, so that the line is encoded once, when the
/// change is made, and every watcher shares its bytes.
#[derive(Clone, Debug)]
pub struct Change {
    pub revision: Revision,
    pub key: Key,
    pub change: ChangeType,
    line: Bytes,
    /// The object before the change; absent for `Added`.
    pub previous: Option<Bytes>,
}

const LINE_END: &[u8] = b"}\n";

impl Change {
    pub(crate) fn new(
        revision: Revision,
        key: Key,
        change: ChangeType,
        document: &[u8],
        previous: Option<Bytes>,
    ) -> Self {
        let mut line = Vec::with_capacity(document.len() + 40);
        line.extend_from_slice(line_start(change));
        line.extend_from_slice(document);
        line.extend_from_slice(LINE_END);
        Self {
            revision,
            key,
            change,
            line: line.into(),
            previous,
        }
    }

    /// `{"type":"ADDED","object":...}` and a newline.
    pub fn line(&self) -> Bytes {
        self.line.clone()
    }

    /// The object after the change; for `Deleted`, its last state at the revision of the deletion.
    pub fn document(&self) -> Bytes {
        self.line
            .slice(line_start(self.change).len()..self.line.len() - LINE_END.len())
    }

    fn bytes(&self) -> usize {
        self.line.len() + self.previous.as_ref().map_or(0, Bytes::len)
    }
}

fn line_start(change: ChangeType) -> &'static [u8] {
    match change {
        ChangeType::Added => br#"{"type":"ADDED","object":"#,
        ChangeType::Modified => br#"{"type":"MODIFIED","object":"#,
        ChangeType::Deleted => br#"{"type":"DELETED","object":"#,
    }
}

/// The recent changes, bounded by count and bytes, and the bell that wakes watchers.
///
/// Watchers pull: each remembers where it is and reads on from there, so that a slow one costs nothing and
/// falls back to the log on disk when the ring has moved past it.
pub(crate) struct Ring {
    recent: RwLock<Recent>,
    latest: watch::Sender<Revision>,
    changes_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct Recent {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
}

impl Ring {
    pub(crate) fn new(latest: Revision, changes_max: usize, bytes_max: usize) -> Self {
        Self {
            recent: RwLock::default(),
            latest: watch::Sender::new(latest),
            changes_max,
            bytes_max,
        }
    }

    pub(crate) fn latest(&self) -> Revision {
        *self.latest.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.latest.subscribe()
    }

    /// Tells watchers of changes that are on disk. `changes` follow what was published before without a gap.
    pub(crate) fn publish(&self, changes: Vec<Change>) {
        let Some(newest) = changes.last().map(|change| change.revision) else {
            return;
        };
        {
            let mut recent = self.recent.write().unwrap_or_else(PoisonError::into_inner);
            for change in changes {
                recent.bytes += change.bytes();
                recent.changes.push_back(Arc::new(change));
            }
            while recent.changes.len() > self.changes_max || recent.bytes > self.bytes_max {
                let Some(oldest) = recent.changes.pop_front() else {
                    break;
                };
                recent.bytes -= oldest.bytes();
            }
        }
        self.latest.send_replace(newest);
    }

    /// Up to `limit` changes after `after`, in order; `None` if the ring no longer reaches back that far.
    pub(crate) fn after(&self, after: Revision, limit: usize) -> Option<Vec<Arc<Change>>> {
        let recent = self.recent.read().unwrap_or_else(PoisonError::into_inner);
        let oldest = recent.changes.front()?.revision;
        // Revisions are dense, so the position follows from the number.
        let skip = after.next().0.checked_sub(oldest.0)? as usize;
        Some(
            recent
                .changes
                .iter()
                .skip(skip)
                .take(limit)
                .cloned()
                .collect(),
        )
    }
}
