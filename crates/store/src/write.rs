//! What a write may do while it holds the writer's transaction.

use bytes::Bytes;
use rusqlite::{Connection, params};
use serde_json::Value;
use std::sync::Arc;

use crate::change::{Change, ChangeType};
use crate::read::Read;
use crate::{Error, Item, Key, Revision, Scan};

/// A document with the revision at which it was written.
#[derive(Clone, Debug)]
pub struct Stored {
    pub revision: Revision,
    pub document: Bytes,
}

impl Stored {
    pub fn value(&self, key: &Key) -> Result<Value, Error> {
        parse(key, &self.document)
    }
}

pub(crate) fn parse(key: &Key, document: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(document).map_err(|source| Error::Damaged {
        key: key.clone(),
        source: Arc::new(source),
    })
}

/// The writer's view: everything committed, plus what this commit's earlier writes did.
pub struct Write<'c> {
    read: Read<'c>,
    connection: &'c Connection,
    revision: Revision,
    now_ms: i64,
    changes: Vec<Change>,
}

impl<'c> Write<'c> {
    pub(crate) fn new(connection: &'c Connection, revision: Revision, now_ms: i64) -> Self {
        Self {
            read: Read::new(connection),
            connection,
            revision,
            now_ms,
            changes: Vec::new(),
        }
    }

    pub(crate) fn into_changes(self) -> Vec<Change> {
        self.changes
    }

    pub(crate) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// The revision of the newest change this write can see.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn get(&self, key: &Key) -> Result<Option<Stored>, Error> {
        self.read.get(key)
    }

    /// The resources that have objects, in order.
    pub fn resources(&self) -> Result<Vec<String>, Error> {
        self.read.resources()
    }

    /// How many objects a scan would visit.
    pub fn count(&self, scan: &Scan<'_>) -> Result<u64, Error> {
        self.read.count(scan)
    }

    /// Visits objects in order of namespace and name until `visit` breaks. `scan.at` must be absent: a write
    /// sees the present only.
    pub fn scan(
        &self,
        scan: &Scan<'_>,
        visit: impl FnMut(Item<'_>) -> std::ops::ControlFlow<()>,
    ) -> Result<(), Error> {
        debug_assert!(scan.at.is_none(), "a write reads the present");
        self.read.scan(scan, visit)
    }

    /// Stores a new object. Its `metadata.resourceVersion` is set here, whatever it was.
    pub fn create(&mut self, key: &Key, object: Value) -> Result<Stored, Error> {
        if self.read.contains(key)? {
            return Err(Error::Exists(key.clone()));
        }
        let (revision, document) = self.encode(key, object)?;
        self.connection
            .prepare_cached(
                "INSERT INTO object (resource, namespace, name, revision, document) VALUES (?, ?, ?, ?, ?)",
            )?
            .execute(params![
                key.resource,
                key.namespace,
                key.name,
                revision,
                document.as_slice()
            ])?;
        self.record(key, ChangeType::Added, revision, &document, None)
    }

    /// Replaces an object. Whether the caller saw its latest state is the caller's question: compare with
    /// [`Write::get`] in the same write.
    pub fn update(&mut self, key: &Key, object: Value) -> Result<Stored, Error> {
        let previous = self.existing(key)?;
        let (revision, document) = self.encode(key, object)?;
        self.connection
            .prepare_cached(
                "UPDATE object SET revision = ?4, document = ?5 WHERE resource = ?1 AND namespace = ?2 AND name = ?3",
            )?
            .execute(params![
                key.resource,
                key.namespace,
                key.name,
                revision,
                document.as_slice()
            ])?;
        self.record(
            key,
            ChangeType::Modified,
            revision,
            &document,
            Some(previous.document),
        )
    }

    /// Removes an object and returns its last state, with the revision of the removal in it.
    pub fn delete(&mut self, key: &Key) -> Result<Stored, Error> {
        let previous = self.existing(key)?;
        let (revision, document) = self.encode(key, previous.value(key)?)?;
        self.connection
            .prepare_cached(
                "DELETE FROM object WHERE resource = ?1 AND namespace = ?2 AND name = ?3",
            )?
            .execute(params![key.resource, key.namespace, key.name])?;
        self.record(
            key,
            ChangeType::Deleted,
            revision,
            &document,
            Some(previous.document),
        )
    }

    fn existing(&self, key: &Key) -> Result<Stored, Error> {
        self.get(key)?.ok_or_else(|| Error::Missing(key.clone()))
    }

    fn encode(&self, key: &Key, mut object: Value) -> Result<(Revision, Vec<u8>), Error> {
        let revision = self.revision.next();
        object
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .ok_or_else(|| Error::Shape(key.clone()))?
            .insert("resourceVersion".into(), revision.to_string().into());
        let document = serde_json::to_vec(&object).map_err(|source| Error::Encode {
            key: key.clone(),
            source: Arc::new(source),
        })?;
        Ok((revision, document))
    }

    fn record(
        &mut self,
        key: &Key,
        change: ChangeType,
        revision: Revision,
        document: &[u8],
        previous: Option<Bytes>,
    ) -> Result<Stored, Error> {
        self.connection
            .prepare_cached(
                "INSERT INTO log (revision, at_ms, type, resource, namespace, name, document, previous)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                revision,
                self.now_ms,
                change.code(),
                key.resource,
                key.namespace,
                key.name,
                document,
                previous.as_deref()
            ])?;
        let change = Change::new(revision, key.clone(), change, document, previous);
        let stored = Stored {
            revision,
            document: change.document(),
        };
        self.changes.push(change);
        self.revision = revision;
        Ok(stored)
    }
}
