//! The typed rules of kinds: what a schema cannot say.
//!
//! For built-in kinds these are the rules of Kubernetes about single values that a person is likely
//! to meet; what the server itself adds to a kind, and what depends on other objects, is admission.
//! For our own kinds they are the CEL rules of the CRD, written in Rust by `stoke-api`.

use std::collections::HashSet;

use serde::Deserialize as _;
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
        ("", "Endpoints") => endpoints(new),
        ("", "ResourceQuota") => crate::quota::errors(new),
        ("", "Node") => taints(new),
        ("", "Event") => event(new, "involvedObject"),
        ("events.k8s.io", "Event") => {
            let mut errors = event(new, "regarding");
            if old.is_none() {
                errors.extend(new_event(new));
            }
            errors
        }
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(new, old),
        ("coordination.k8s.io", "Lease") => lease(new),
        ("scheduling.k8s.io", "PriorityClass") => priority_class(new),
        _ => Vec::new(),
    }
}

/// Whether an object of one of our own kinds has the type that its rules read.
pub(super) fn is_readable(kind: &str, object: &Value) -> bool {
    match kind {
        "TrainJob" => stoke_api::TrainJob::deserialize(object).is_ok(),
        "Queue" => stoke_api::Queue::deserialize(object).is_ok(),
        "Dataset" => stoke_api::Dataset::deserialize(object).is_ok(),
        _ => true,
    }
}

/// The rules of our own kinds. A real server evaluates them on the whole object, so that is what it says the value is.
fn own(kind: &str, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    stoke_api::violations(kind, new, old)
        .into_iter()
        .map(|violation| FieldError::invalid_text(&violation.path, "object", &violation.message))
        .collect()
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
            for why in names::config_key(key) {
                errors.push(FieldError::invalid_text(&path, key, &why));
            }
            if part == "data"
                && new
                    .get("binaryData")
                    .and_then(|data| data.get(key))
                    .is_some()
            {
                let why = "duplicate of key present in binaryData";
                errors.push(FieldError::invalid_text(&path, key, why));
            }
        }
    }
    if bytes > DATA_BYTES_MAX {
        errors.push(FieldError::too_long("[]", DATA_BYTES_MAX));
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
        if let Some(target) = entry.get("targetPort").and_then(Value::as_i64) {
            errors.extend(port(target, &format!("{path}.targetPort")));
        }
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
            for why in names::dns_label(name) {
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
    if old.is_some_and(|old| !may_change(new, old)) {
        errors.push(FieldError::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
    errors
}

/// Whether a claim changed only in what may: the volume it is given, and once it has one, its size.
fn may_change(new: &Value, old: &Value) -> bool {
    let mut spec = new["spec"].clone();
    if text(old, "/spec/volumeName").is_empty()
        && let Some(fields) = spec.as_object_mut()
    {
        fields.remove("volumeName");
    }
    if text(old, "/status/phase") == "Bound" {
        for field in ["resources", "volumeAttributesClassName"] {
            if let Some(value) = old["spec"].get(field) {
                spec[field] = value.clone();
            }
        }
    }
    spec == old["spec"]
}

/// In the order in which they are looked at: all but the first are too many.
const VOLUME_TYPES: [&str; 23] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
    "flexVolume",
    "emptyDir",
];

fn volume(new: &Value) -> Vec<FieldError> {
    let mut errors = access_modes(new);
    if text(new, "/spec/capacity/storage").is_empty() {
        if new.pointer("/spec/capacity").is_none() {
            errors.push(FieldError::required("spec.capacity", ""));
        }
        let capacity = new.pointer("/spec/capacity").unwrap_or(&Value::Null);
        let supported = ["\"storage\"".to_owned()];
        errors.push(FieldError::not_supported(
            "spec.capacity",
            capacity,
            &supported,
        ));
    }
    let given: Vec<&&str> = VOLUME_TYPES
        .iter()
        .filter(|kind| new["spec"].get(**kind).is_some())
        .collect();
    if given.is_empty() {
        errors.push(FieldError::required("spec", "must specify a volume type"));
    }
    for kind in given.iter().skip(1) {
        let why = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(&format!("spec.{kind}"), why));
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
        let is_claim = new["kind"] == "PersistentVolumeClaim";
        let why = if is_claim {
            "at least 1 access mode is required"
        } else {
            ""
        };
        return vec![FieldError::required("spec.accessModes", why)];
    }
    let allowed = [
        "ReadOnlyMany",
        "ReadWriteMany",
        "ReadWriteOnce",
        "ReadWriteOncePod",
    ];
    modes
        .iter()
        .filter_map(|mode| one_of(mode, "", "spec.accessModes", &allowed))
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
    errors
}

/// The newer face asks for more when an event is made.
fn new_event(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if text(new, "/eventTime").is_empty() {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = text(new, "/type");
    if !matches!(kind, "Normal" | "Warning") {
        let why = format!("has invalid value: {kind}");
        errors.push(FieldError::invalid_text("type", "", &why));
    }
    errors
}

fn taints(new: &Value) -> Vec<FieldError> {
    let allowed = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let taints = list(new, "/spec/taints").iter().enumerate();
    taints
        .filter_map(|(index, taint)| {
            one_of(
                taint,
                "/effect",
                &format!("metadata.taints[{index}].effect"),
                &allowed,
            )
        })
        .collect()
}

fn endpoints(new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (place, subset) in list(new, "/subsets").iter().enumerate() {
        for part in ["addresses", "notReadyAddresses"] {
            for (index, address) in list(subset, &format!("/{part}")).iter().enumerate() {
                let path = format!("subsets[{place}].{part}[{index}].ip");
                errors.extend(address_errors(text(address, "/ip"), &path));
            }
        }
        for (index, entry) in list(subset, "/ports").iter().enumerate() {
            let path = format!("subsets[{place}].ports[{index}].port");
            errors.extend(port(count(entry, "/port"), &path));
        }
    }
    errors
}

const NO_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

fn address_errors(address: &str, path: &str) -> Vec<FieldError> {
    if address.parse::<std::net::IpAddr>().is_ok() {
        return Vec::new();
    }
    [NO_ADDRESS, "must be a valid IP address"]
        .map(|why| FieldError::invalid_text(path, address, why))
        .to_vec()
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
        let is_name = text(new, "/addressType") == "FQDN";
        for (place, address) in list(endpoint, "/addresses").iter().enumerate() {
            let address = address.as_str().unwrap_or_default();
            if !is_name && address.parse::<std::net::IpAddr>().is_err() {
                let path = format!("endpoints[{index}].addresses[{place}]");
                errors.push(FieldError::invalid_text(&path, address, NO_ADDRESS));
            }
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
    let name = text(new, "/metadata/name");
    let is_system = matches!(name, "system-cluster-critical" | "system-node-critical");
    if name.starts_with("system-") && !is_system {
        errors.push(FieldError::forbidden(
            "metadata.name",
            &format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a \
                 known system priority class"
            ),
        ));
    }
    if count(new, "/value") > HIGHEST && !is_system {
        errors.push(FieldError::forbidden(
            "value",
            &format!("maximum allowed value of a user defined priority is {HIGHEST}"),
        ));
    }
    let policies = ["PreemptLowerPriority", "Never"];
    errors.extend(one_of(
        new,
        "/preemptionPolicy",
        "preemptionPolicy",
        &policies,
    ));
    errors
}
