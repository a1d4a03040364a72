//! The few fields every Kubernetes object has, read from and written to plain JSON.
//!
//! Objects stay [`Value`]s here on purpose: what a client sent and we do not know survives a round trip.
//! Invariant: every reader tolerates any shape; an absent or ill-typed field reads as absent.

mod light;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub(crate) use light::{Light, Owner};

pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
pub const ORPHAN_FINALIZER: &str = "orphan";

pub fn name(object: &Value) -> &str {
    text(object, "name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

/// A text field of the metadata; empty if it is not there.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

pub fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or(0)
}

pub fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let list = object["metadata"]["finalizers"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str)
}

pub fn has_finalizer(object: &Value, wanted: &str) -> bool {
    finalizers(object).any(|finalizer| finalizer == wanted)
}

pub fn add_finalizer(object: &mut Value, finalizer: &str) {
    if has_finalizer(object, finalizer) {
        return;
    }
    let metadata = metadata_mut(object);
    let list = metadata
        .entry("finalizers")
        .or_insert_with(|| json!([]))
        .as_array_mut();
    if let Some(list) = list {
        list.push(finalizer.into());
    }
}

pub fn remove_finalizer(object: &mut Value, finalizer: &str) {
    let metadata = metadata_mut(object);
    if let Some(list) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
        list.retain(|other| other != finalizer);
        if list.is_empty() {
            metadata.remove("finalizers");
        }
    }
}

/// The metadata, made if it is missing or not an object. The object itself must be one.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(object, "metadata")
}

/// A field that holds an object, made so if it does not.
pub fn child_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let child = &mut object[field];
    if !child.is_object() {
        *child = json!({});
    }
    match child {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// Copies `field` from `from` to `to`, or removes it there if it is absent.
pub fn carry(from: &Map<String, Value>, to: &mut Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => {
            to.insert(field.to_owned(), value.clone());
        }
        None => {
            to.remove(field);
        }
    }
}

/// Sets `field` only if it is absent or null.
pub fn fill(map: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.to_owned(), value.into());
    }
}

/// `metav1.Time`: whole seconds, UTC.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Whether two objects differ in anything but what the server itself writes.
pub fn spec_differs(old: &Value, new: &Value) -> bool {
    let fields = |object: &Value| -> Map<String, Value> {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        for field in ["metadata", "status", "apiVersion", "kind"] {
            fields.remove(field);
        }
        fields
    };
    fields(old) != fields(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_shape_is_tolerated() {
        for shape in [
            json!(null),
            json!([]),
            json!({"metadata": 3}),
            json!({"metadata": {"name": 1}}),
        ] {
            assert_eq!(name(&shape), "");
            assert_eq!(finalizers(&shape).count(), 0);
            let mut shape = shape;
            add_finalizer(&mut shape, "a");
            assert!(has_finalizer(&shape, "a"));
            remove_finalizer(&mut shape, "a");
            assert!(shape["metadata"].get("finalizers").is_none());
        }
    }

    #[test]
    fn times_are_whole_seconds() {
        let at: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        assert_eq!(time(at), "2026-01-02T03:04:05Z");
    }
}
