//! From a change of the store to the line a watcher reads.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use stoke_store::{Change, ChangeType, Item, Revision};

use super::Selection;
use crate::reply::{Partial, is_stored_shape, parse};
use crate::request::Shape;
use crate::resource::Resource;
use crate::status::Status;
use crate::table;

/// Turns changes into lines for one watch.
#[derive(Clone)]
pub(super) struct Encoder {
    resource: Resource,
    selection: Selection,
    shape: Shape,
    /// Whether stored bytes may be sent as they are.
    raw: bool,
    /// The columns of a Table are sent once.
    columns_sent: bool,
}

impl Encoder {
    pub(super) fn new(resource: Resource, selection: Selection, shape: Shape) -> Self {
        Self {
            raw: shape == Shape::Whole && is_stored_shape(&resource),
            resource,
            selection,
            shape,
            columns_sent: false,
        }
    }

    pub(super) fn key(&self) -> String {
        self.resource.key()
    }

    pub(super) fn selection(&self) -> &Selection {
        &self.selection
    }

    /// The event of a change, if it concerns this watch. An object that stops matching the selector is deleted as
    /// far as this watch can see, and one that begins to match is added.
    pub(super) fn change(&mut self, change: &Change) -> Result<Option<Bytes>, Status> {
        if !self
            .selection
            .may_match(&change.key.namespace, &change.key.name)
        {
            return Ok(None);
        }
        if self.selection.takes_all() {
            if self.raw {
                return Ok(Some(change.line()));
            }
            let object = self.served(&change.document())?;
            return Ok(Some(self.line(change.change.as_str(), object)));
        }
        let previous = match &change.previous {
            Some(previous) => Some(self.served(previous)?),
            None => None,
        };
        let matched = previous
            .as_ref()
            .is_some_and(|previous| self.selection.matches(previous));
        let object = self.served(&change.document())?;
        let matches = change.change != ChangeType::Deleted && self.selection.matches(&object);
        let (kind, object) = match (matched, matches) {
            (false, false) => return Ok(None),
            (true, true) => ("MODIFIED", object),
            (false, true) => ("ADDED", object),
            (true, false) if change.change == ChangeType::Deleted => ("DELETED", object),
            (true, false) => {
                let mut last = previous.unwrap_or(object);
                last["metadata"]["resourceVersion"] = change.revision.to_string().into();
                ("DELETED", last)
            }
        };
        if self.raw && kind == change.change.as_str() {
            return Ok(Some(change.line()));
        }
        Ok(Some(self.line(kind, object)))
    }

    /// The event that an object is there, for the state a watch begins with.
    pub(super) fn present(&mut self, item: &Item<'_>) -> Result<Option<Bytes>, Status> {
        if !self.selection.may_match(item.namespace, item.name) {
            return Ok(None);
        }
        if self.raw && self.selection.takes_all() {
            let start = br#"{"type":"ADDED","object":"#;
            let mut line = Vec::with_capacity(start.len() + item.document.len() + 2);
            line.extend_from_slice(start);
            line.extend_from_slice(item.document);
            line.extend_from_slice(b"}\n");
            return Ok(Some(line.into()));
        }
        let object = self.served(item.document)?;
        if !self.selection.matches(&object) {
            return Ok(None);
        }
        Ok(Some(self.line("ADDED", object)))
    }

    /// "You have seen everything up to here."
    pub(super) fn bookmark(&mut self, revision: Revision, ends_state: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if ends_state {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({
            "kind": self.resource.kind,
            "apiVersion": self.resource.api_version(),
            "metadata": metadata,
        });
        self.line("BOOKMARK", object)
    }

    fn served(&self, document: &[u8]) -> Result<Value, Status> {
        let mut object = parse(document)?;
        self.resource.from_stored(&mut object);
        Ok(object)
    }

    fn line(&mut self, kind: &str, object: Value) -> Bytes {
        match self.shape {
            Shape::Whole => line(kind, &object),
            Shape::Metadata => line(kind, &Partial::of(&object)),
            Shape::Table(include) => {
                let now = Timestamp::now();
                let mut table = table::table(&self.resource, &object, include, now);
                if self.columns_sent {
                    table.column_definitions = None;
                }
                self.columns_sent = true;
                line(kind, &table)
            }
        }
    }
}

pub(super) fn error(status: &Status) -> Bytes {
    line("ERROR", &status.to_value())
}

fn line(kind: &str, object: &impl Serialize) -> Bytes {
    match serde_json::to_string(object) {
        Ok(object) => format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into(),
        Err(fault) => error(&Status::internal(fault)),
    }
}
