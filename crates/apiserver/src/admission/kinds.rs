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
        "pods" => pod::on_create(object),
        "namespaces" => begin_namespace(object),
        "secrets" => fold_string_data(object),
        "services" => make_headless(object),
        "persistentvolumeclaims" => begin_phase(object, "Pending"),
        "persistentvolumes" => begin_phase(object, "Available"),
        DEFINITIONS => definition::on_create(object, now),
        _ => {}
    }
}

pub(super) fn on_update(resource: &Resource, old: &Value, new: &mut Value, now: Timestamp) {
    match resource.key().as_str() {
        "pods" => pod::on_update(new),
        "secrets" => fold_string_data(new),
        "services" => make_headless(new),
        DEFINITIONS => definition::on_update(old, new, now),
        _ => {}
    }
}

pub(super) fn errors(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    match resource.key().as_str() {
        "pods" => pod::errors(new),
        "secrets" => {
            let mut errors = data_errors(new, old);
            errors.extend(unchanged(new, old, &["type"]));
            errors
        }
        "configmaps" => data_errors(new, old),
        "services" => service_errors(new),
        "priorityclasses.scheduling.k8s.io" => unchanged(new, old, &["value", "preemptionPolicy"]),
        DEFINITIONS => definition::errors(new, old),
        _ => Vec::new(),
    }
}

/// The finalizer of the namespace itself; it goes when the namespace is empty.
pub(crate) const NAMESPACE_FINALIZER: &str = "kubernetes";

fn begin_namespace(namespace: &mut Value) {
    let name = object::name(namespace).to_owned();
    object::child_mut(namespace, "spec").insert("finalizers".into(), json!([NAMESPACE_FINALIZER]));
    object::child_mut(namespace, "status").insert("phase".into(), "Active".into());
    let metadata = &mut namespace["metadata"];
    object::child_mut(metadata, "labels").insert("kubernetes.io/metadata.name".into(), name.into());
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
    if spec["type"] == "ClusterIP" {
        object::fill(spec, "clusterIP", "None");
        let address = spec["clusterIP"].clone();
        object::fill(spec, "clusterIPs", json!([address]));
    }
}

fn service_errors(service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &service["spec"];
    if !matches!(
        spec["type"].as_str(),
        None | Some("ClusterIP" | "ExternalName")
    ) {
        let supported = ["\"ClusterIP\"".to_owned(), "\"ExternalName\"".to_owned()];
        errors.push(FieldError::not_supported(
            "spec.type",
            &spec["type"],
            &supported,
        ));
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
