//! Strategic merge: a merge patch that also knows how to merge lists.
//!
//! Directives, as kubectl and other clients send them: `$patch: replace|delete` in an object or a
//! list element, `$retainKeys`, `$setElementOrder/LIST`, `$deleteFromPrimitiveList/LIST`.

use serde_json::{Map, Value};

use super::strategy::{List, MergeStrategy};
use super::{DEPTH_MAX, PatchError};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder/";
const DELETE_VALUES: &str = "$deleteFromPrimitiveList/";

pub(super) fn apply(
    doc: &mut Value,
    patch: &Value,
    strategy: &MergeStrategy,
) -> Result<(), PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::Malformed(
            "a strategic merge patch is an object".into(),
        ));
    };
    let Value::Object(doc) = doc else {
        return Err(PatchError::Unprocessable(
            "only an object can be merged".into(),
        ));
    };
    merge_object(doc, patch, strategy, 0)
}

fn merge_object(
    doc: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    strategy: &MergeStrategy,
    depth: usize,
) -> Result<(), PatchError> {
    if depth > DEPTH_MAX {
        return Err(PatchError::Unprocessable(
            "the patch is nested too deeply".into(),
        ));
    }
    match patch
        .get(PATCH)
        .map(|directive| directive.as_str().unwrap_or_default())
    {
        None | Some("merge") => {}
        Some("replace") => {
            *doc = patch
                .iter()
                .filter(|(name, _)| *name != PATCH)
                .map(|(name, value)| (name.clone(), plain(value)))
                .collect();
            return Ok(());
        }
        Some("delete") => {
            doc.clear();
            return Ok(());
        }
        Some(other) => {
            return Err(PatchError::Malformed(format!(
                "unknown patch type: {other:?}"
            )));
        }
    }
    retain_keys(doc, patch)?;
    let orders = orders(doc, patch, strategy)?;
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_VALUES) {
            delete_values(doc, list, value)?;
        } else if !name.starts_with('$') {
            merge_field(doc, name, value, strategy, depth)?;
        }
    }
    // Last, so that the order holds whatever else the patch did to the list.
    for Order {
        list,
        order,
        before,
        how,
    } in orders
    {
        if let Some(Value::Array(items)) = doc.get_mut(list) {
            reorder(items, order, &before, how);
        }
    }
    Ok(())
}

/// A `$setElementOrder` of a patch, with the list as it was.
struct Order<'a> {
    list: &'a str,
    order: &'a [Value],
    before: Vec<Value>,
    how: List,
}

fn orders<'a>(
    doc: &Map<String, Value>,
    patch: &'a Map<String, Value>,
    strategy: &MergeStrategy,
) -> Result<Vec<Order<'a>>, PatchError> {
    let mut orders = Vec::new();
    for (name, order) in patch {
        let Some(list) = name.strip_prefix(SET_ORDER) else {
            continue;
        };
        let order = order
            .as_array()
            .ok_or_else(|| PatchError::Malformed(format!("{SET_ORDER}{list} must be a list")))?;
        let (how, _) = strategy.field(list);
        if how != List::Replace {
            check_order(list, order, patch.get(list), how)?;
            let items = doc
                .get(list)
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice);
            orders.push(Order {
                list,
                order,
                before: places(items, how),
                how,
            });
        }
    }
    Ok(orders)
}

fn merge_field(
    doc: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    strategy: &MergeStrategy,
    depth: usize,
) -> Result<(), PatchError> {
    if value.is_null() {
        doc.remove(name);
        return Ok(());
    }
    let (how, below) = strategy.field(name);
    match (doc.get_mut(name), value) {
        (Some(Value::Object(doc)), Value::Object(patch)) => {
            merge_object(doc, patch, below, depth + 1)
        }
        (Some(Value::Array(doc)), Value::Array(patch)) => {
            let before = places(doc, how);
            match how {
                List::Values => merge_values(doc, patch),
                List::ByKey(key) | List::ByKeyRetaining(key) => {
                    merge_by_key(doc, patch, key, below, depth)?;
                }
                List::Replace => *doc = patch.iter().map(plain).collect(),
            }
            if how != List::Replace {
                reorder(doc, patch, &before, how);
            }
            Ok(())
        }
        _ => {
            let value = if value.get(PATCH).and_then(Value::as_str) == Some("delete") {
                Value::Object(Map::new())
            } else {
                plain(value)
            };
            doc.insert(name.to_owned(), value);
            Ok(())
        }
    }
}

/// A patch as a value of its own: without directives, and without the nulls that only delete.
fn plain(patch: &Value) -> Value {
    match patch {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(name, value)| !is_directive(name) && !value.is_null())
                .map(|(name, value)| (name.clone(), plain(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(
            items
                .iter()
                .filter(|item| item.get(PATCH).and_then(Value::as_str) != Some("delete"))
                .filter(|item| {
                    item.as_object()
                        .is_none_or(|item| item.len() != 1 || !item.contains_key(PATCH))
                })
                .map(plain)
                .collect(),
        ),
        scalar => scalar.clone(),
    }
}

fn is_directive(name: &str) -> bool {
    name == PATCH
        || name == RETAIN_KEYS
        || name.starts_with(SET_ORDER)
        || name.starts_with(DELETE_VALUES)
}

fn retain_keys(doc: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), PatchError> {
    let Some(retained) = patch.get(RETAIN_KEYS) else {
        return Ok(());
    };
    let bad = || PatchError::Malformed(format!("{RETAIN_KEYS} must list every key the patch has"));
    let retained = retained.as_array().ok_or_else(bad)?;
    let is_retained = |name: &str| retained.iter().any(|key| key.as_str() == Some(name));
    let unlisted = patch
        .iter()
        .any(|(name, value)| !is_directive(name) && !value.is_null() && !is_retained(name));
    if unlisted {
        return Err(bad());
    }
    doc.retain(|name, _| is_retained(name));
    Ok(())
}

fn delete_values(
    doc: &mut Map<String, Value>,
    list: &str,
    values: &Value,
) -> Result<(), PatchError> {
    let values = values.as_array().ok_or_else(|| {
        PatchError::Malformed(format!("{DELETE_VALUES}{list} must be a list of scalars"))
    })?;
    if let Some(Value::Array(items)) = doc.get_mut(list) {
        items.retain(|item| !values.contains(item));
    }
    Ok(())
}

fn merge_values(doc: &mut Vec<Value>, patch: &[Value]) {
    for value in patch {
        if !doc.contains(value) {
            doc.push(value.clone());
        }
    }
}

fn merge_by_key(
    doc: &mut Vec<Value>,
    patch: &[Value],
    key: &str,
    below: &MergeStrategy,
    depth: usize,
) -> Result<(), PatchError> {
    let directive = |item: &Value| item.get(PATCH).and_then(Value::as_str).map(str::to_owned);
    if patch
        .iter()
        .any(|item| directive(item).as_deref() == Some("replace"))
    {
        *doc = plain(&Value::Array(patch.to_vec()))
            .as_array()
            .cloned()
            .unwrap_or_default();
        return Ok(());
    }
    for item in patch {
        let Value::Object(fields) = item else {
            return Err(PatchError::Malformed(format!(
                "an element merged by {key:?} must be an object"
            )));
        };
        let identity = fields.get(key).ok_or_else(|| {
            PatchError::Unprocessable(format!(
                "an element of the patch does not contain declared merge key: {key}"
            ))
        })?;
        let is_same = |item: &Value| item.get(key) == Some(identity);
        match directive(item).as_deref() {
            Some("delete") => doc.retain(|item| !is_same(item)),
            None | Some("merge") => match doc.iter_mut().find(|item| is_same(item)) {
                Some(Value::Object(old)) => merge_object(old, fields, below, depth + 1)?,
                _ => doc.push(plain(item)),
            },
            Some(other) => {
                return Err(PatchError::Malformed(format!(
                    "unknown patch type: {other:?}"
                )));
            }
        }
    }
    Ok(())
}

/// The elements a patch sets must stand in the order it demands; otherwise its author erred.
fn check_order(
    list: &str,
    order: &[Value],
    patch: Option<&Value>,
    how: List,
) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    let items = patch.and_then(Value::as_array).into_iter().flatten();
    for item in items.filter(|item| item.get(PATCH).is_none()) {
        let same = identity(item, how);
        if !rest.any(|ordered| identity(ordered, how) == same) {
            return Err(PatchError::Malformed(format!(
                "the elements of {list} do not match {SET_ORDER}{list}"
            )));
        }
    }
    Ok(())
}

/// What a list looked like before the patch: the place of each element by its identity.
fn places(items: &[Value], how: List) -> Vec<Value> {
    items.iter().map(|item| identity(item, how)).collect()
}

/// What makes an element the same as another.
fn identity(item: &Value, how: List) -> Value {
    match how.key() {
        Some(key) => item.get(key).cloned().unwrap_or_default(),
        None => item.clone(),
    }
}

/// Puts the elements named by `order` in that order. Elements that only the server has stay in
/// front of the first ordered element they stood in front of before.
fn reorder(items: &mut Vec<Value>, order: &[Value], before: &[Value], how: List) {
    let mut ordered: Vec<(usize, Option<usize>, Value)> = Vec::new();
    let mut others: Vec<(Option<usize>, Value)> = Vec::new();
    for item in std::mem::take(items) {
        let same = identity(&item, how);
        let place = before.iter().position(|old| *old == same);
        match order
            .iter()
            .position(|ordered| identity(ordered, how) == same)
        {
            Some(rank) => ordered.push((rank, place, item)),
            None => others.push((place, item)),
        }
    }
    ordered.sort_by_key(|(rank, ..)| *rank);
    let mut others = others.into_iter().peekable();
    for (_, place, item) in ordered {
        let in_front = |other: &(Option<usize>, Value)| matches!((other.0, place), (Some(other), Some(place)) if other < place);
        while let Some((_, other)) = others.next_if(in_front) {
            items.push(other);
        }
        items.push(item);
    }
    items.extend(others.map(|(_, item)| item));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::strategic_merge;
    use super::*;

    fn check(kind: &str, doc: &Value, patch: &Value, expected: &Value) {
        let mut patched = doc.clone();
        strategic_merge(&mut patched, patch, kind).unwrap();
        assert_eq!(&patched, expected, "{patch}");
    }

    fn pod(containers: Value) -> Value {
        json!({"spec": {"containers": containers}})
    }

    #[test]
    fn merges_lists_by_key() {
        let doc = pod(
            json!([{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]),
        );
        check(
            "Pod",
            &doc,
            &pod(json!([{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]}])),
            &pod(
                json!([{"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}, {"name": "b"}]),
            ),
        );
        check(
            "Pod",
            &doc,
            &pod(json!([{"name": "b", "$patch": "delete"}, {"name": "c", "image": null}])),
            &pod(json!([
            {"name": "c"}, {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}])),
        );
        check(
            "Pod",
            &doc,
            &pod(json!([{"name": "z"}, {"$patch": "replace"}])),
            &pod(json!([{"name": "z"}])),
        );
        check(
            "Pod",
            &doc,
            &pod(json!([{"name": "a", "env": null, "image": null}])),
            &pod(json!([{"name": "a"}, {"name": "b"}])),
        );
        check(
            "Pod",
            &doc,
            &json!({"spec": {"containers": null}}),
            &json!({"spec": {}}),
        );
    }

    #[test]
    fn replaces_other_lists_and_merges_maps() {
        check(
            "Pod",
            &json!({"spec": {"tolerations": [{"key": "a"}], "nodeSelector": {"a": "1", "b": "2"}}}),
            &json!({"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"a": null, "c": "3"}}}),
            &json!({"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"b": "2", "c": "3"}}}),
        );
        check(
            "ConfigMap",
            &json!({"data": {"a": "1", "b": "2"}}),
            &json!({"data": {"$patch": "replace", "c": "3"}}),
            &json!({"data": {"c": "3"}}),
        );
        check(
            "ConfigMap",
            &json!({"data": {"a": "1"}}),
            &json!({"data": {"$patch": "delete"}}),
            &json!({"data": {}}),
        );
        check(
            "ConfigMap",
            &json!({}),
            &json!({"data": {"$patch": "delete"}}),
            &json!({"data": {}}),
        );
        check(
            "ConfigMap",
            &json!({}),
            &json!({"data": {"x": {"y": null}}}),
            &json!({"data": {"x": {}}}),
        );
    }

    #[test]
    fn what_kubectl_apply_sends() {
        // A container added in front, one removed, an env changed.
        check(
            "Pod",
            &pod(
                json!([{"name": "old"}, {"name": "keep", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}, {"name": "injected"}]),
            ),
            &json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "spec": {
                "$setElementOrder/containers": [{"name": "new"}, {"name": "keep"}],
                "containers": [
                    {"name": "new", "image": "x"},
                    {"$setElementOrder/env": [{"name": "B"}, {"name": "A"}], "env": [{"name": "A", "value": "3"}], "name": "keep"},
                    {"$patch": "delete", "name": "old"}]}}),
            &json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, "spec": {"containers": [
                {"name": "new", "image": "x"},
                {"name": "keep", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}]},
                {"name": "injected"}]}}),
        );
        // A volume changes its type.
        check(
            "Pod",
            &json!({"spec": {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}}),
            &json!({"spec": {"$setElementOrder/volumes": [{"name": "v"}], "volumes": [
                {"$retainKeys": ["name", "hostPath"], "name": "v", "emptyDir": null, "hostPath": {"path": "/data"}}]}}),
            &json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/data"}}]}}),
        );
        // Finalizers are a set.
        check(
            "Pod",
            &json!({"metadata": {"finalizers": ["a", "b", "server"]}}),
            &json!({"metadata": {"$setElementOrder/finalizers": ["c", "a"], "$deleteFromPrimitiveList/finalizers": ["b"], "finalizers": ["c"]}}),
            &json!({"metadata": {"finalizers": ["c", "a", "server"]}}),
        );
        // The port of a service.
        check(
            "Service",
            &json!({"spec": {"ports": [{"port": 80, "targetPort": 1}]}}),
            &json!({"spec": {"$setElementOrder/ports": [{"port": 81}], "ports": [{"port": 81}, {"$patch": "delete", "port": 80}]}}),
            &json!({"spec": {"ports": [{"port": 81}]}}),
        );
        // A status patch by a kubelet.
        check(
            "Node",
            &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "X", "status": "True"}]}}),
            &json!({"status": {"$setElementOrder/conditions": [{"type": "X"}, {"type": "Ready"}], "conditions": [{"type": "Ready", "status": "True"}]}}),
            &json!({"status": {"conditions": [{"type": "X", "status": "True"}, {"type": "Ready", "status": "True"}]}}),
        );
    }

    /// A patch as kubectl 1.32 computed it from our OpenAPI document.
    #[test]
    fn what_kubectl_really_sent() {
        check(
            "Pod",
            &json!({"metadata": {"name": "a", "finalizers": ["x/y", "z/w"]}, "spec": {
                "containers": [{"name": "old", "image": "i"},
                    {"name": "keep", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}],
                "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}}),
            &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/y"], "$setElementOrder/finalizers": ["z/w", "n/n"],
                    "finalizers": ["n/n"]},
                "spec": {
                    "$setElementOrder/containers": [{"name": "new"}, {"name": "keep"}],
                    "$setElementOrder/volumes": [{"name": "v"}],
                    "containers": [{"image": "i", "name": "new"},
                        {"$setElementOrder/env": [{"name": "B"}, {"name": "A"}], "env": [{"name": "A", "value": "3"}], "image": "j", "name": "keep"},
                        {"$patch": "delete", "name": "old"}],
                    "volumes": [{"$retainKeys": ["hostPath", "name"], "emptyDir": null, "hostPath": {"path": "/data"}, "name": "v"}]}}),
            &json!({"metadata": {"name": "a", "finalizers": ["z/w", "n/n"]}, "spec": {
                "containers": [{"name": "new", "image": "i"},
                    {"name": "keep", "image": "j", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}]}],
                "volumes": [{"name": "v", "hostPath": {"path": "/data"}}]}}),
        );
    }

    #[test]
    fn fresh_values_lose_their_directives() {
        check(
            "Pod",
            &json!({}),
            &json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [
                {"name": "a", "$retainKeys": ["name"], "x": null}, {"name": "gone", "$patch": "delete"}]}}),
            &json!({"spec": {"containers": [{"name": "a"}]}}),
        );
    }

    #[test]
    fn refuses() {
        let doc = pod(json!([{"name": "a"}]));
        let table: Vec<String> = [
            json!([]),
            pod(json!([{"image": "x"}])),
            pod(json!(["a"])),
            pod(json!([{"name": "a", "$patch": "frob"}])),
            json!({"spec": {"$patch": "frob"}}),
            json!({"spec": {"$retainKeys": ["x"], "y": 1}}),
            json!({"spec": {"$retainKeys": 3}}),
            json!({"spec": {"$setElementOrder/containers": 3}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}, "spec": {"$deleteFromPrimitiveList/x": "x"}}),
        ]
        .iter()
        .map(|patch| {
            let mut patched = doc.clone();
            let error = strategic_merge(&mut patched, patch, "Pod");
            assert_eq!(patched, if error.is_err() { doc.clone() } else { patched.clone() });
            format!("{error:?}")
        })
        .collect();
        insta::assert_snapshot!(table.join("\n"), @r#"
Err(Malformed("a strategic merge patch is an object"))
Err(Unprocessable("an element of the patch does not contain declared merge key: name"))
Err(Malformed("an element merged by \"name\" must be an object"))
Err(Malformed("unknown patch type: \"frob\""))
Err(Malformed("unknown patch type: \"frob\""))
Err(Malformed("$retainKeys must list every key the patch has"))
Err(Malformed("$retainKeys must list every key the patch has"))
Err(Malformed("$setElementOrder/containers must be a list"))
Err(Malformed("$deleteFromPrimitiveList/x must be a list of scalars"))
"#);
    }

    fn any_pod_part() -> impl Strategy<Value = Value> {
        let name = || prop::sample::select(vec!["a", "b", "c"]);
        let env =
            prop::collection::btree_map(name(), prop::option::of(0..3_u8), 0..3).prop_map(|env| {
                env.into_iter()
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect::<Vec<_>>()
            });
        let container = (
            name(),
            prop::option::of(env),
            prop::option::of(0..3_u8),
            prop::bool::weighted(0.2),
        )
            .prop_map(|(name, env, image, delete)| {
                let mut container = json!({"name": name, "image": image, "env": env});
                if delete {
                    container["$patch"] = json!("delete");
                }
                container
            });
        let order = prop::option::of(prop::collection::vec(name(), 0..4)).prop_map(|order| {
            order.map(|names| {
                names
                    .into_iter()
                    .map(|name| json!({ "name": name }))
                    .collect::<Vec<_>>()
            })
        });
        (prop::collection::vec(container, 0..4), order, prop::collection::vec(name(), 0..3)).prop_map(
            |(containers, order, finalizers)| {
                let mut patch = json!({"metadata": {"finalizers": finalizers}, "spec": {"containers": containers}});
                if let Some(order) = order {
                    patch["spec"]["$setElementOrder/containers"] = json!(order);
                }
                patch
            },
        )
    }

    proptest! {
        #[test]
        fn twice_is_once(doc in any_pod_part(), patch in any_pod_part()) {
            // One element per name: what a repeated key means is undefined in Kubernetes, too.
            let (mut doc, mut patch) = (doc, patch);
            for part in [&mut doc, &mut patch] {
                if let Some(items) = part["spec"]["containers"].as_array_mut() {
                    let mut seen = std::collections::HashSet::new();
                    items.retain(|item| seen.insert(item["name"].to_string()));
                }
            }
            let doc = plain(&doc);
            let mut once = doc.clone();
            if strategic_merge(&mut once, &patch, "Pod").is_err() {
                prop_assert_eq!(once, doc);
                return Ok(());
            }
            let mut twice = once.clone();
            strategic_merge(&mut twice, &patch, "Pod").unwrap();
            prop_assert_eq!(twice, once);
        }
    }
}
