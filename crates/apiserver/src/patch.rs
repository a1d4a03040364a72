//! The three ways to change an object by a patch: JSON patch, merge patch, strategic merge.
//!
//! Invariants: an object is unchanged when its patch is refused, and no patch, however small, can
//! make an object grow without bound or nest so deeply that walking it would exhaust the stack.

mod strategic;
mod strategy;

use json_patch::{AddOperation, PatchErrorKind, PatchOperation};
use serde::Deserialize as _;
use serde_json::Value;

use crate::schema::DEPTH_MAX;
pub(crate) use strategy::strategy_of_type;

/// As in Kubernetes.
const OPERATIONS_MAX: usize = 10_000;
/// `copy` may repeat a value; together the copies may not be larger than a request may be.
const COPIED_BYTES_MAX: usize = 3 << 20;

/// Why a patch was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// 400: the patch is not a patch.
    #[error("{0}")]
    Malformed(String),
    /// 413: more operations or copied bytes than the server is willing to apply.
    #[error("{0}")]
    TooLarge(String),
    /// 422: the patch does not fit the object: a failed `test`, a missing path.
    #[error("{0}")]
    Unprocessable(String),
}

/// Applies an RFC 6902 patch.
pub fn json_patch(doc: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let operations = patch
        .as_array()
        .ok_or_else(|| PatchError::Malformed("a JSON patch is a list of operations".into()))?;
    if operations.len() > OPERATIONS_MAX {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
            operations.len()
        )));
    }
    let operations = operations
        .iter()
        .map(operation)
        .collect::<Result<Vec<_>, _>>()?;
    // A copy is patched, because json-patch loses the moved value when the second half of a move fails.
    let mut patched = doc.clone();
    let mut copied_bytes = 0;
    for operation in operations {
        apply(&mut patched, operation, &mut copied_bytes)?;
    }
    *doc = patched;
    Ok(())
}

/// One operation. A value that is not given is null, as Kubernetes reads it.
fn operation(given: &Value) -> Result<PatchOperation, PatchError> {
    let mut given = given.clone();
    if let Some(fields) = given.as_object_mut() {
        fields.entry("value").or_insert(Value::Null);
    }
    PatchOperation::deserialize(given)
        .map_err(|error| PatchError::Unprocessable(format!("error decoding patch: {error}")))
}

/// To replace a field that an object does not have is to add it, as in Kubernetes.
fn as_addition(doc: &Value, operation: PatchOperation) -> PatchOperation {
    match operation {
        PatchOperation::Replace(replace) => {
            let parent = replace.path.as_str().rsplit_once('/');
            let parent = parent.and_then(|(parent, _)| doc.pointer(parent));
            if parent.is_some_and(Value::is_object) {
                PatchOperation::Add(AddOperation {
                    path: replace.path,
                    value: replace.value,
                })
            } else {
                PatchOperation::Replace(replace)
            }
        }
        other => other,
    }
}

fn apply(
    doc: &mut Value,
    operation: PatchOperation,
    copied_bytes: &mut usize,
) -> Result<(), PatchError> {
    let operation = as_addition(doc, operation);
    let below = match &operation {
        PatchOperation::Add(add) => depth(&add.value),
        PatchOperation::Replace(replace) => depth(&replace.value),
        PatchOperation::Move(from) => doc.pointer(from.from.as_str()).map_or(0, depth),
        PatchOperation::Copy(from) => {
            let source = doc.pointer(from.from.as_str());
            *copied_bytes += source.map_or(0, |value| value.to_string().len());
            if *copied_bytes > COPIED_BYTES_MAX {
                return Err(PatchError::TooLarge(format!(
                    "copy operations of a JSON patch may add up to {COPIED_BYTES_MAX} bytes"
                )));
            }
            source.map_or(0, depth)
        }
        // A test for null holds where nothing is, as the patches of Kubernetes clients rely on.
        PatchOperation::Test(test)
            if test.value.is_null() && doc.pointer(test.path.as_str()).is_none() =>
        {
            return Ok(());
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
    };
    let path = operation.path().as_str();
    if path.matches('/').count() + below > DEPTH_MAX {
        let start: String = path.chars().take(64).collect();
        return Err(PatchError::Unprocessable(format!(
            "path {start}... is nested too deeply"
        )));
    }
    json_patch::patch_unsafe(doc, &[operation]).map_err(|error| {
        let path = &error.path;
        PatchError::Unprocessable(match error.kind {
            PatchErrorKind::TestFailed => format!("testing path {path} failed: the value differs"),
            PatchErrorKind::InvalidFromPointer => format!("the from path of {path} does not exist"),
            PatchErrorKind::CannotMoveInsideItself => {
                format!("cannot move a value into itself: {path}")
            }
            _ => format!("path {path} does not exist"),
        })
    })
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Applies an RFC 7386 patch.
pub fn merge_patch(doc: &mut Value, patch: &Value) {
    merge_at(doc, patch, 0);
}

fn merge_at(doc: &mut Value, patch: &Value, depth: usize) {
    let Value::Object(patch) = patch else {
        *doc = patch.clone();
        return;
    };
    if depth > DEPTH_MAX {
        return;
    }
    if !doc.is_object() {
        *doc = Value::Object(serde_json::Map::new());
    }
    let Some(doc) = doc.as_object_mut() else {
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            doc.remove(name);
        } else {
            merge_at(
                doc.entry(name.as_str()).or_insert(Value::Null),
                value,
                depth + 1,
            );
        }
    }
}

/// Applies a strategic merge patch to an object of a built-in `kind`.
pub fn strategic_merge(doc: &mut Value, patch: &Value, kind: &str) -> Result<(), PatchError> {
    let mut patched = doc.clone();
    strategic::apply(&mut patched, patch, strategy::strategy_of_kind(kind))?;
    *doc = patched;
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_patches() {
        let doc = json!({"a": {"b": [1, 2]}, "c/d": 1});
        for (patch, expected) in [
            (
                json!([{"op": "add", "path": "/a/b/-", "value": 3}]),
                json!({"a": {"b": [1, 2, 3]}, "c/d": 1}),
            ),
            (
                json!([{"op": "replace", "path": "/c~1d", "value": 2}]),
                json!({"a": {"b": [1, 2]}, "c/d": 2}),
            ),
            (
                json!([{"op": "remove", "path": "/a/b/0"}]),
                json!({"a": {"b": [2]}, "c/d": 1}),
            ),
            (
                json!([{"op": "move", "from": "/c~1d", "path": "/e"}]),
                json!({"a": {"b": [1, 2]}, "e": 1}),
            ),
            (
                json!([{"op": "copy", "from": "/a/b", "path": "/a/c"}]),
                json!({"a": {"b": [1, 2], "c": [1, 2]}, "c/d": 1}),
            ),
            (
                json!([{"op": "test", "path": "/a/b/0", "value": 1}, {"op": "test", "path": "/x/y", "value": null}]),
                doc.clone(),
            ),
        ] {
            let mut patched = doc.clone();
            json_patch(&mut patched, &patch).unwrap();
            assert_eq!(patched, expected, "{patch}");
        }
    }

    #[test]
    fn json_patches_refused() {
        let doc = json!({"a": {"b": [1, 2]}});
        let table: Vec<String> = [
            json!({}),
            json!([{"op": "frob", "path": "/a"}]),
            json!([{"op": "add", "path": "a", "value": 1}]),
            json!([{"op": "test", "path": "/a/b/0", "value": 2}]),
            json!([{"op": "replace", "path": "/a/b/7", "value": 2}]),
            json!([{"op": "remove", "path": "/a/b/2"}]),
            json!([{"op": "add", "path": "/a/b/9", "value": 2}]),
            json!([{"op": "move", "from": "/a/b", "path": "/x/y"}]),
            json!([{"op": "move", "from": "/a", "path": "/a/c"}]),
            json!([{"op": "copy", "from": "/x", "path": "/y"}]),
            json!([{"op": "add", "path": "/x".repeat(200), "value": 2}]),
        ]
        .iter()
        .map(|patch| {
            let mut patched = doc.clone();
            let error = json_patch(&mut patched, patch).unwrap_err();
            assert_eq!(patched, doc);
            format!("{error:?}")
        })
        .collect();
        insta::assert_snapshot!(table.join("\n"), @r#"
Malformed("a JSON patch is a list of operations")
Unprocessable("error decoding patch: unknown variant `frob`, expected one of `add`, `remove`, `replace`, `move`, `copy`, `test`")
Unprocessable("error decoding patch: json pointer failed to parse; does not start with a slash ('/') and is not empty")
Unprocessable("testing path /a/b/0 failed: the value differs")
Unprocessable("path /a/b/7 does not exist")
Unprocessable("path /a/b/2 does not exist")
Unprocessable("path /a/b/9 does not exist")
Unprocessable("path /x/y does not exist")
Unprocessable("cannot move a value into itself: /a/c")
Unprocessable("the from path of /y does not exist")
Unprocessable("path /x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x... is nested too deeply")
"#);
    }

    #[test]
    fn json_patches_stay_small() {
        let operation = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let doubling = Value::from(vec![operation.clone(); 60]);
        let mut doc = json!({"a": ["0123456789"]});
        assert!(json_patch(&mut doc, &doubling).is_err());
        let many = Value::from(vec![
            json!({"op": "test", "path": "", "value": {}});
            OPERATIONS_MAX + 1
        ]);
        assert!(matches!(
            json_patch(&mut json!({}), &many),
            Err(PatchError::TooLarge(_))
        ));
    }

    #[test]
    fn merge_patches_of_the_rfc() {
        for (doc, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut patched = doc.clone();
            merge_patch(&mut patched, &patch);
            assert_eq!(patched, expected, "{doc} {patch}");
        }
    }

    /// The pseudo-code of RFC 7386, written as it stands there.
    fn rfc_merge(target: Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else {
            return patch.clone();
        };
        let mut target = match target {
            Value::Object(target) => target,
            _ => serde_json::Map::new(),
        };
        for (name, value) in patch {
            if value.is_null() {
                target.remove(name);
            } else {
                let merged = rfc_merge(target.remove(name).unwrap_or(Value::Null), value);
                target.insert(name.clone(), merged);
            }
        }
        Value::Object(target)
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<u8>().prop_map(Value::from),
            "[ab]".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn merge_is_the_rfc(doc in any_json(), patch in any_json()) {
            let mut patched = doc.clone();
            merge_patch(&mut patched, &patch);
            prop_assert_eq!(&patched, &rfc_merge(doc, &patch));
            let mut again = patched.clone();
            merge_patch(&mut again, &patch);
            prop_assert_eq!(again, patched);
        }

        #[test]
        fn any_json_patch_is_applied_or_refused(doc in any_json(), paths in prop::collection::vec(
            ("(add|remove|replace|move|copy|test)", "(/[a-d0-2-]){0,3}", "(/[a-d0-2-]){0,3}", any_json()), 0..6)) {
            let patch: Vec<Value> = paths.into_iter()
                .map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value})).collect();
            let mut patched = doc.clone();
            if json_patch(&mut patched, &Value::from(patch)).is_err() {
                prop_assert_eq!(patched, doc);
            }
        }
    }
}
