//! Rules for `metadata`, the same for every kind but for the shape of names.

use serde_json::{Map, Value};

use super::Resource;
use super::cells::{list, text};
use crate::names;
use crate::schema::FieldError;

/// All annotations of an object together.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

pub(super) fn check(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    name(resource, new, &mut errors);
    namespace(resource, new, &mut errors);
    labels(new, &mut errors);
    annotations(new, &mut errors);
    for (index, finalizer) in list(new, "/metadata/finalizers")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        if let Err(why) = names::qualified_name(finalizer) {
            errors.push(FieldError::invalid_text(
                &format!("metadata.finalizers[{index}]"),
                finalizer,
                &why,
            ));
        }
    }
    owners(new, &mut errors);
    if let Some(old) = old {
        for field in ["name", "namespace", "uid"] {
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
    errors
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
    if name.is_empty() && prefix.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    }
    if !name.is_empty()
        && let Err(why) = check(name)
    {
        errors.push(FieldError::invalid_text("metadata.name", name, &why));
    }
    // A prefix is fine if some name that starts with it is.
    if !prefix.is_empty()
        && let Err(why) = check(&format!("{}x", prefix.trim_end_matches(['-', '.'])))
    {
        errors.push(FieldError::invalid_text(
            "metadata.generateName",
            prefix,
            &why,
        ));
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
    } else if !namespace.is_empty()
        && let Err(why) = names::dns_label(namespace)
    {
        errors.push(FieldError::invalid_text(
            "metadata.namespace",
            namespace,
            &why,
        ));
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
        if let Err(why) = names::qualified_name(key) {
            errors.push(FieldError::invalid_text("metadata.labels", key, &why));
        }
        if let Err(why) = names::label_value(value) {
            errors.push(FieldError::invalid_text("metadata.labels", value, &why));
        }
    }
}

fn annotations(object: &Value, errors: &mut Vec<FieldError>) {
    let mut bytes = 0;
    for (key, value) in map(object, "/metadata/annotations") {
        bytes += key.len() + value.len();
        if let Err(why) = names::qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid_text("metadata.annotations", key, &why));
        }
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.push(FieldError::too_long(
            "metadata.annotations",
            ANNOTATIONS_BYTES_MAX,
        ));
    }
}

fn owners(object: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
    for (index, owner) in list(object, "/metadata/ownerReferences").iter().enumerate() {
        let path = format!("metadata.ownerReferences[{index}]");
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &format!("/{field}")).is_empty() {
                errors.push(FieldError::required(
                    &format!("{path}.{field}"),
                    "must not be empty",
                ));
            }
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
        if controllers == 2 {
            errors.push(FieldError::invalid(
                &path,
                owner,
                "only one reference can have controller set to true",
            ));
        }
    }
}
