//! The typed rules of kinds: what a schema cannot say.
//!
//! For built-in kinds these are the rules of Kubernetes about single values that a person is likely
//! to meet; what the server itself adds to a kind, and what depends on other objects, is admission.
//! For our own kinds they are the CEL rules of the CRD, written in Rust by `stoke-api`.

use std::collections::HashSet;

use serde_json::Value;

use super::cells::{count, list, text};
use super::{Resource, crd};
use crate::names;
use crate::schema::FieldError;

/// As in Kubernetes: the values of a secret or config map together.
const DATA_BYTES_MAX: usize = 1 << 20;

pub(super) fn check(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if resource.group == crd::OWN_GROUP {
        return own(&resource.kind, new, old);
    }
    if !resource.is_builtin() {
        return Vec::new();
    }
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "ConfigMap" | "Secret") => data(new),
        ("", "Service") => service(new),
        ("", "PersistentVolumeClaim") => claim(new, old),
        ("", "PersistentVolume") => volume(new),
        ("", "Event") => event(new, "involvedObject"),
        ("events.k8s.io", "Event") => event(new, "regarding"),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(new, old),
        ("coordination.k8s.io", "Lease") => lease(new),
        ("scheduling.k8s.io", "PriorityClass") => priority_class(new),
        _ => Vec::new(),
    }
}

/// The rules of our own kinds.
fn own(kind: &str, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let nothing = Value::Null;
    stoke_api::violations(kind, new, old)
        .into_iter()
        .map(|violation| {
            let pointer = pointer(&violation.path);
            let value = new.pointer(&pointer).unwrap_or(&nothing);
            FieldError::invalid(&violation.path, value, &violation.message)
        })
        .collect()
}

/// `spec.datasets[0].name` as a JSON pointer.
fn pointer(path: &str) -> String {
    format!("/{}", path.replace(['.', '['], "/").replace(']', ""))
}

/// A value of a closed set; nothing is said of an absent one.
fn one_of(object: &Value, pointer: &str, path: &str, allowed: &[&str]) -> Option<FieldError> {
    let value = text(object, pointer);
    if value.is_empty() || allowed.contains(&value) {
        return None;
    }
    let supported: Vec<String> = allowed.iter().map(|name| format!("{name:?}")).collect();
    Some(FieldError::not_supported(
        path,
        &Value::from(value),
        &supported,
    ))
}

/// Says so if a field that may not change did.
fn immutable(new: &Value, old: &Value, pointer: &str, path: &str) -> Option<FieldError> {
    let (new, old) = (new.pointer(pointer), old.pointer(pointer));
    (new != old)
        .then(|| FieldError::invalid(path, new.unwrap_or(&Value::Null), "field is immutable"))
}

fn port(value: i64, path: &str) -> Option<FieldError> {
    (!(1..=65535).contains(&value)).then(|| {
        FieldError::invalid(
            path,
            &Value::from(value),
            "must be between 1 and 65535, inclusive",
        )
    })
}

fn data(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut bytes = 0;
    for part in ["data", "binaryData"] {
        let entries = new.get(part).and_then(Value::as_object);
        for (key, value) in entries.into_iter().flatten() {
            let path = format!("{part}[{key}]");
            bytes += value.as_str().map_or(0, str::len);
            let is_plain = key.len() <= 253
                && !key.is_empty()
                && key
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'));
            if !is_plain || key == "." || key.starts_with("..") {
                errors.push(FieldError::invalid_text(
                    &path,
                    key,
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.', and must not be a \
                     relative path",
                ));
            }
        }
    }
    if bytes > DATA_BYTES_MAX {
        errors.push(FieldError::too_long("data", DATA_BYTES_MAX));
    }
    errors
}

fn service(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    errors.extend(one_of(
        new,
        "/spec/sessionAffinity",
        "spec.sessionAffinity",
        &["ClientIP", "None"],
    ));
    let ports = list(new, "/spec/ports");
    let is_headless = text(new, "/spec/clusterIP") == "None";
    if ports.is_empty() && !is_headless && text(new, "/spec/type") != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let mut seen = HashSet::new();
    let mut seen_names = HashSet::new();
    for (index, entry) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let (number, protocol, name) = (
            count(entry, "/port"),
            text(entry, "/protocol"),
            text(entry, "/name"),
        );
        errors.extend(port(number, &format!("{path}.port")));
        errors.extend(one_of(
            entry,
            "/protocol",
            &format!("{path}.protocol"),
            &["SCTP", "TCP", "UDP"],
        ));
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(&format!("{path}.name"), ""));
            }
        } else {
            if let Err(why) = names::dns_label(name) {
                errors.push(FieldError::invalid_text(
                    &format!("{path}.name"),
                    name,
                    &why,
                ));
            }
            if !seen_names.insert(name) {
                errors.push(FieldError::duplicate(
                    &format!("{path}.name"),
                    &Value::from(name),
                ));
            }
        }
        if !seen.insert((number, protocol)) {
            errors.push(FieldError::duplicate(&path, entry));
        }
    }
    errors
}

fn claim(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = access_modes(new);
    if text(new, "/spec/resources/requests/storage").is_empty() {
        errors.push(FieldError::required("spec.resources[storage]", ""));
    }
    if let Some(old) = old {
        errors.extend(immutable(new, old, "/spec/accessModes", "spec.accessModes"));
        errors.extend(immutable(
            new,
            old,
            "/spec/storageClassName",
            "spec.storageClassName",
        ));
        if !text(old, "/spec/volumeName").is_empty() {
            errors.extend(immutable(new, old, "/spec/volumeName", "spec.volumeName"));
        }
    }
    errors
}

fn volume(new: &Value) -> Vec<FieldError> {
    let mut errors = access_modes(new);
    if text(new, "/spec/capacity/storage").is_empty() {
        errors.push(FieldError::required("spec.capacity", ""));
    }
    let policies = ["Delete", "Recycle", "Retain"];
    let path = "spec.persistentVolumeReclaimPolicy";
    errors.extend(one_of(
        new,
        "/spec/persistentVolumeReclaimPolicy",
        path,
        &policies,
    ));
    errors
}

fn access_modes(new: &Value) -> Vec<FieldError> {
    let modes = list(new, "/spec/accessModes");
    if modes.is_empty() {
        return vec![FieldError::required(
            "spec.accessModes",
            "at least 1 access mode is required",
        )];
    }
    let allowed = [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ];
    let checked = modes.iter().enumerate();
    checked
        .filter_map(|(index, mode)| {
            one_of(mode, "", &format!("spec.accessModes[{index}]"), &allowed)
        })
        .collect()
}

fn event(new: &Value, reference: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let about = text(new, &format!("/{reference}/namespace"));
    let namespace = text(new, "/metadata/namespace");
    // Events about cluster-wide objects live in `default`.
    let expected = if about.is_empty() { "default" } else { about };
    if !namespace.is_empty()
        && namespace != expected
        && !(about.is_empty() && namespace == "kube-system")
    {
        errors.push(FieldError::invalid_text(
            &format!("{reference}.namespace"),
            about,
            "does not match event.namespace",
        ));
    }
    if reference == "regarding" {
        errors.extend(one_of(new, "/type", "type", &["Normal", "Warning"]));
    }
    errors
}

fn endpoint_slice(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text(new, "/addressType").is_empty() {
        errors.push(FieldError::required("addressType", ""));
    }
    errors.extend(one_of(
        new,
        "/addressType",
        "addressType",
        &["FQDN", "IPv4", "IPv6"],
    ));
    for (index, endpoint) in list(new, "/endpoints").iter().enumerate() {
        if list(endpoint, "/addresses").is_empty() {
            errors.push(FieldError::required(
                &format!("endpoints[{index}].addresses"),
                "must contain at least 1 address",
            ));
        }
    }
    errors.extend(old.and_then(|old| immutable(new, old, "/addressType", "addressType")));
    errors
}

fn lease(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, least) in [("leaseDurationSeconds", 1), ("leaseTransitions", 0)] {
        let pointer = format!("/spec/{field}");
        if let Some(value) = new.pointer(&pointer)
            && count(new, &pointer) < least
        {
            let bound = if least == 1 {
                "greater than 0"
            } else {
                "greater than or equal to 0"
            };
            errors.push(FieldError::invalid(
                &format!("spec.{field}"),
                value,
                &format!("must be {bound}"),
            ));
        }
    }
    errors
}

fn priority_class(new: &Value) -> Vec<FieldError> {
    const HIGHEST: i64 = 1_000_000_000;
    let mut errors = Vec::new();
    let is_system = text(new, "/metadata/name").starts_with("system-");
    if count(new, "/value") > HIGHEST && !is_system {
        errors.push(FieldError::forbidden(
            "value",
            &format!("maximum allowed value of a user defined priority is {HIGHEST}"),
        ));
    }
    let policies = ["Never", "PreemptLowerPriority"];
    errors.extend(one_of(
        new,
        "/preemptionPolicy",
        "preemptionPolicy",
        &policies,
    ));
    errors
}
