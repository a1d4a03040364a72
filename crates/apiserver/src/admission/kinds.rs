//! What the server itself adds to or asks of single kinds, beyond their schema.

use base64::Engine;
use jiff::Timestamp;
use serde_json::{Value, json};
use stoke_store::{Key, Write};

use super::{definition, pod};
use crate::object;
use crate::registry::DEFINITIONS;
use crate::resource::Resource;
use crate::schema::FieldError;
use crate::status::Status;

pub(super) fn on_create(resource: &Resource, object: &mut Value, now: Timestamp) {
    match resource.key().as_str() {
        "pods" => pod::on_create(object, now),
        "namespaces" => begin_namespace(object),
        "secrets" => fold_string_data(object),
        "services" => make_headless(object),
        "persistentvolumeclaims" => begin_phase(object, "Pending"),
        "persistentvolumes" => {
            begin_phase(object, "Available");
            let status = object::child_mut(object, "status");
            status.insert("lastPhaseTransitionTime".into(), object::time(now).into());
        }
        DEFINITIONS => definition::on_create(object, now),
        _ => {}
    }
}

pub(super) fn on_update(resource: &Resource, old: &Value, new: &mut Value, now: Timestamp) {
    match resource.key().as_str() {
        "pods" => pod::on_update(new),
        "secrets" => fold_string_data(new),
        "services" => make_headless(new),
        "namespaces" => label_namespace(new),
        DEFINITIONS => definition::on_update(old, new, now),
        _ => {}
    }
}

pub(super) fn errors(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match resource.key().as_str() {
        "pods" => pod::errors(new),
        "namespaces" => phase_errors(new),
        "secrets" => {
            let mut errors = secret_errors(new);
            errors.extend(data_errors(new, old));
            errors.extend(unchanged(new, old, &["type"]));
            errors
        }
        "configmaps" => data_errors(new, old),
        "services" => service_errors(new),
        "priorityclasses.scheduling.k8s.io" => {
            let mut errors = unchanged(new, old, &["preemptionPolicy"]);
            if old.is_some_and(|old| old["value"] != new["value"]) {
                let why = "may not be changed in an update.";
                errors.push(FieldError::forbidden("value", why));
            }
            errors
        }
        DEFINITIONS => definition::errors(new, old),
        _ => Vec::new(),
    }
}

/// The finalizer of the namespace itself; it goes when the namespace is empty.
pub(crate) const NAMESPACE_FINALIZER: &str = "kubernetes";

fn begin_namespace(namespace: &mut Value) {
    label_namespace(namespace);
    object::child_mut(namespace, "spec").insert("finalizers".into(), json!([NAMESPACE_FINALIZER]));
    object::child_mut(namespace, "status").insert("phase".into(), "Active".into());
}

/// Every namespace can be selected by its name.
fn label_namespace(namespace: &mut Value) {
    let name = object::name(namespace).to_owned();
    let metadata = &mut namespace["metadata"];
    object::child_mut(metadata, "labels").insert("kubernetes.io/metadata.name".into(), name.into());
}

fn phase_errors(namespace: &Value) -> Vec<FieldError> {
    let phase = &namespace["status"]["phase"];
    let (expected, when) = if object::is_deleting(namespace) {
        ("Terminating", "not ")
    } else {
        ("Active", "")
    };
    if phase.is_null() || phase == expected {
        return Vec::new();
    }
    let why = format!("may only be '{expected}' if `deletionTimestamp` is {when}empty");
    vec![FieldError::invalid("status.Phase", phase, &why)]
}

/// What a secret of a known type must hold.
fn secret_errors(secret: &Value) -> Vec<FieldError> {
    const ACCOUNT: &str = "kubernetes.io/service-account.name";
    let required = |key: &str| FieldError::required(&format!("data[{key}]"), "");
    let missing = |keys: &[&str]| -> Vec<FieldError> {
        let absent = keys.iter().filter(|key| secret["data"][**key].is_null());
        absent.map(|key| required(key)).collect()
    };
    match secret["type"].as_str().unwrap_or_default() {
        "kubernetes.io/tls" => missing(&["tls.crt", "tls.key"]),
        "kubernetes.io/dockerconfigjson" => missing(&[".dockerconfigjson"]),
        "kubernetes.io/dockercfg" => missing(&[".dockercfg"]),
        "kubernetes.io/ssh-auth" => missing(&["ssh-privatekey"]),
        "kubernetes.io/basic-auth" => {
            // Either will do.
            let absent = missing(&["username", "password"]);
            if absent.len() == 2 {
                absent
            } else {
                Vec::new()
            }
        }
        "kubernetes.io/service-account-token"
            if secret["metadata"]["annotations"][ACCOUNT].is_null() =>
        {
            let path = format!("metadata.annotations[{ACCOUNT}]");
            vec![FieldError::required(&path, "")]
        }
        _ => Vec::new(),
    }
}

pub(crate) fn add_default_service_account(
    write: &mut Write<'_>,
    namespace: &str,
    now: Timestamp,
) -> Result<(), Status> {
    let key = Key::new("serviceaccounts", namespace, "default");
    if write.get(&key)?.is_none() {
        write.create(
            &key,
            json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {
                    "name": "default",
                    "namespace": namespace,
                    "uid": uuid::Uuid::new_v4().to_string(),
                    "creationTimestamp": object::time(now),
                },
            }),
        )?;
    }
    Ok(())
}

fn begin_phase(object: &mut Value, phase: &str) {
    object::child_mut(object, "status").insert("phase".into(), phase.into());
}

/// `stringData` is a way to write `data`; it is never stored.
fn fold_string_data(secret: &mut Value) {
    let Some(texts) = secret
        .as_object_mut()
        .and_then(|secret| secret.remove("stringData"))
    else {
        return;
    };
    for (name, text) in texts.as_object().into_iter().flatten() {
        if let Some(text) = text.as_str() {
            let encoded = base64::engine::general_purpose::STANDARD.encode(text);
            object::child_mut(secret, "data").insert(name.clone(), encoded.into());
        }
    }
}

/// Pods share the host's network and there is no service proxy, so the only honest cluster address is none.
fn make_headless(service: &mut Value) {
    let spec = object::child_mut(service, "spec");
    object::fill(spec, "type", "ClusterIP");
    let is_said = spec
        .get("clusterIP")
        .is_some_and(|address| !address.is_null());
    let ports = spec.get("ports").and_then(Value::as_array);
    // What says neither an address nor a port is refused for its ports, and is no headless service.
    let is_empty = !is_said && ports.is_none_or(Vec::is_empty);
    if spec["type"] != "ClusterIP" || is_empty {
        return;
    }
    object::fill(spec, "clusterIP", "None");
    let address = spec["clusterIP"].clone();
    object::fill(spec, "clusterIPs", json!([address]));
    object::fill(spec, "ipFamilies", json!(["IPv4"]));
    object::fill(spec, "ipFamilyPolicy", "SingleStack");
}

fn service_errors(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &service["spec"];
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    match spec["type"].as_str() {
        None | Some("ClusterIP" | "ExternalName") => {}
        Some("NodePort" | "LoadBalancer") => errors.push(FieldError::invalid(
            "spec.type",
            &spec["type"],
            "pods use the host's network here, so a service can only be headless",
        )),
        Some(_) => errors.push(FieldError::not_supported(
            "spec.type",
            &spec["type"],
            &types.map(|name| format!("{name:?}")),
        )),
    }
    if !matches!(spec["clusterIP"].as_str(), None | Some("None" | "")) {
        errors.push(FieldError::invalid(
            "spec.clusterIP",
            &spec["clusterIP"],
            "pods use the host's network here, so a service can only be headless (None)",
        ));
    }
    errors
}

/// `immutable: true` freezes the data and itself.
fn data_errors(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let frozen = old.is_some_and(|old| old["immutable"] == true);
    let Some(old) = old.filter(|_| frozen) else {
        return Vec::new();
    };
    ["immutable", "data", "binaryData"]
        .into_iter()
        .filter(|field| old[field] != new[field])
        .map(|field| FieldError::forbidden(field, "field is immutable when `immutable` is set"))
        .collect()
}

fn unchanged(new: &Value, old: Option<&Value>, fields: &[&str]) -> Vec<FieldError> {
    let Some(old) = old else {
        return Vec::new();
    };
    fields
        .iter()
        .filter(|field| old[**field] != new[**field])
        .map(|field| FieldError::invalid(field, &new[*field], "field is immutable"))
        .collect()
}
