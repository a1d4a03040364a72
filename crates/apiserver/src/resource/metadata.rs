//! Rules for `metadata`, the same for every kind but for the shape of names.

use serde_json::{Map, Value};

use super::Resource;
use super::cells::{list, text};
use crate::names;
use crate::object::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use crate::schema::FieldError;

/// All annotations of an object together.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

pub(super) fn check(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Some(old) = old {
        unchanged(new, old, &mut errors);
    } else {
        name(resource, new, &mut errors);
        namespace(resource, new, &mut errors);
    }
    labels(new, &mut errors);
    annotations(new, &mut errors);
    owners(new, &mut errors);
    finalizers(resource, new, &mut errors);
    errors
}

/// What the identity of an object is made of.
fn unchanged(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    for field in ["name", "namespace", "uid", "deletionTimestamp"] {
        let pointer = format!("/metadata/{field}");
        let (new, old) = (text(new, &pointer), text(old, &pointer));
        if !new.is_empty() && new != old {
            errors.push(FieldError::invalid_text(
                &format!("metadata.{field}"),
                new,
                "field is immutable",
            ));
        }
    }
}

fn invalid<'a>(
    path: &'a str,
    value: &'a str,
    wrong: Vec<String>,
) -> impl Iterator<Item = FieldError> + 'a {
    wrong
        .into_iter()
        .map(move |why| FieldError::invalid_text(path, value, &why))
}

fn name(resource: &Resource, object: &Value, errors: &mut Vec<FieldError>) {
    let check = match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Namespace") => names::dns_label,
        ("", "Service") => names::dns_1035_label,
        _ => names::dns_subdomain,
    };
    let (name, prefix) = (
        text(object, "/metadata/name"),
        text(object, "/metadata/generateName"),
    );
    if !prefix.is_empty() {
        let wrong = check(&names::completed(prefix));
        errors.extend(invalid("metadata.generateName", prefix, wrong));
    }
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        errors.extend(invalid("metadata.name", name, check(name)));
    }
}

fn namespace(resource: &Resource, object: &Value, errors: &mut Vec<FieldError>) {
    let namespace = text(object, "/metadata/namespace");
    if !resource.namespaced {
        if !namespace.is_empty() {
            errors.push(FieldError::forbidden(
                "metadata.namespace",
                "not allowed on this type",
            ));
        }
    } else if !namespace.is_empty() {
        let wrong = names::dns_label(namespace);
        errors.extend(invalid("metadata.namespace", namespace, wrong));
    }
}

fn map<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a String, &'a str)> {
    let fields = object.pointer(pointer).and_then(Value::as_object);
    fields
        .into_iter()
        .flat_map(Map::iter)
        .map(|(key, value)| (key, value.as_str().unwrap_or_default()))
}

fn labels(object: &Value, errors: &mut Vec<FieldError>) {
    for (key, value) in map(object, "/metadata/labels") {
        errors.extend(invalid("metadata.labels", key, names::qualified_name(key)));
        errors.extend(invalid("metadata.labels", value, names::label_value(value)));
    }
}

fn annotations(object: &Value, errors: &mut Vec<FieldError>) {
    let mut bytes = 0;
    for (key, value) in map(object, "/metadata/annotations") {
        bytes += key.len() + value.len();
        let wrong = names::qualified_name(&key.to_lowercase());
        errors.extend(invalid("metadata.annotations", key, wrong));
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.push(FieldError::too_long(
            "metadata.annotations",
            ANNOTATIONS_BYTES_MAX,
        ));
    }
}

fn owners(object: &Value, errors: &mut Vec<FieldError>) {
    const PATH: &str = "metadata.ownerReferences";
    let owners = list(object, "/metadata/ownerReferences");
    let mut controller: Option<String> = None;
    for owner in owners {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &format!("/{field}")).is_empty() {
                let what = if field == "apiVersion" {
                    "version "
                } else {
                    ""
                };
                errors.push(FieldError::invalid_text(
                    &format!("{PATH}.{field}"),
                    "",
                    &format!("{what}must not be empty"),
                ));
            }
        }
        if text(owner, "/apiVersion") == "v1" && text(owner, "/kind") == "Event" {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid_shown(PATH, &shown(owner), why));
        }
        if owner.get("controller") != Some(&Value::Bool(true)) {
            continue;
        }
        let this = format!("{}/{}", text(owner, "/kind"), text(owner, "/name"));
        match &controller {
            None => controller = Some(this),
            Some(first) => errors.push(FieldError::invalid_shown(
                PATH,
                &format!("[{}]", owners.iter().map(shown).collect::<Vec<_>>().join(",")),
                &format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                ),
            )),
        }
    }
}

/// An owner as Kubernetes shows it: its fields in the order in which they are declared.
fn shown(owner: &Value) -> String {
    const ORDER: [&str; 6] = [
        "apiVersion",
        "kind",
        "name",
        "uid",
        "controller",
        "blockOwnerDeletion",
    ];
    let fields: Vec<String> = ORDER
        .iter()
        .filter_map(|field| Some(format!("{field:?}:{}", owner.get(field)?)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

fn finalizers(resource: &Resource, object: &Value, errors: &mut Vec<FieldError>) {
    const PATH: &str = "metadata.finalizers";
    let all = list(object, "/metadata/finalizers");
    let has = |wanted: &str| all.iter().any(|finalizer| finalizer == wanted);
    for finalizer in all.iter().filter_map(Value::as_str) {
        errors.extend(invalid(PATH, finalizer, names::qualified_name(finalizer)));
    }
    if has(ORPHAN_FINALIZER) && has(FOREGROUND_FINALIZER) {
        let why =
            format!("finalizer {ORPHAN_FINALIZER} and {FOREGROUND_FINALIZER} cannot be both set");
        errors.push(FieldError::invalid(PATH, &Value::from(all.to_vec()), &why));
    }
    // Custom kinds are only warned about these.
    if !resource.group.is_empty() || !resource.is_builtin() {
        return;
    }
    for (index, finalizer) in all.iter().filter_map(Value::as_str).enumerate() {
        let is_standard = matches!(
            finalizer,
            ORPHAN_FINALIZER | FOREGROUND_FINALIZER | "kubernetes"
        );
        if !is_standard && !finalizer.contains('/') {
            errors.push(FieldError::invalid_text(
                &format!("{PATH}[{index}]"),
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
}
