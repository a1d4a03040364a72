//! CustomResourceDefinitions: their conditions, and when their kinds are served.

use std::ops::ControlFlow;

use jiff::Timestamp;
use serde_json::{Value, json};
use stoke_store::{Scan, Write};

use crate::object;
use crate::registry::DEFINITIONS;
use crate::resource::Resource;
use crate::schema::FieldError;
use crate::status::Status;

/// Holds a definition until its objects are gone.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

pub(crate) fn is_established(definition: &Value) -> bool {
    condition(definition, "Established") == Some("True")
}

fn condition<'a>(definition: &'a Value, wanted: &str) -> Option<&'a str> {
    let conditions = definition["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == wanted)?;
    found["status"].as_str()
}

pub(super) fn on_create(definition: &mut Value, now: Timestamp) {
    object::add_finalizer(definition, CLEANUP_FINALIZER);
    let names = definition["spec"]["names"].clone();
    let stored = storage_version(definition).unwrap_or_default().to_owned();
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind,
            "status": "True",
            "lastTransitionTime": object::time(now),
            "reason": reason,
            "message": message,
        })
    };
    definition["status"] = json!({
        "acceptedNames": names,
        "storedVersions": [stored],
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    });
}

pub(super) fn on_update(old: &Value, new: &mut Value, now: Timestamp) {
    if object::is_deleting(new) {
        return;
    }
    if !new["status"].is_object() {
        on_create(new, now);
        return;
    }
    let stored = storage_version(new).unwrap_or_default().to_owned();
    let names = new["spec"]["names"].clone();
    let renamed = old["spec"]["names"] != names;
    let status = object::child_mut(new, "status");
    if renamed {
        status.insert("acceptedNames".into(), names);
    }
    let versions = status
        .get_mut("storedVersions")
        .and_then(Value::as_array_mut);
    if let Some(versions) = versions
        && !versions.iter().any(|version| *version == stored)
    {
        versions.push(stored.into());
    }
}

/// Says that the objects of the kind are about to go.
pub(crate) fn begin_termination(definition: &mut Value, now: Timestamp) {
    let condition = json!({
        "type": "Terminating",
        "status": "True",
        "lastTransitionTime": object::time(now),
        "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    });
    let conditions = definition["status"]["conditions"].as_array_mut();
    if let Some(conditions) = conditions {
        conditions.push(condition);
    }
}

fn storage_version(definition: &Value) -> Option<&str> {
    let versions = definition["spec"]["versions"].as_array()?;
    let stored = versions.iter().find(|version| version["storage"] == true)?;
    stored["name"].as_str()
}

pub(super) fn errors(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Resource::from_crd(new).err().unwrap_or_default();
    let Some(old) = old else {
        return errors;
    };
    for field in ["group", "scope"] {
        let (before, after) = (&old["spec"][field], &new["spec"][field]);
        if before != after {
            let path = format!("spec.{field}");
            errors.push(FieldError::invalid(&path, after, "field is immutable"));
        }
    }
    // Objects may still be stored in any version that was ever the storage version.
    let stored = old["status"]["storedVersions"]
        .as_array()
        .into_iter()
        .flatten();
    for (place, version) in stored.enumerate() {
        let mut versions = new["spec"]["versions"].as_array().into_iter().flatten();
        if !versions.any(|known| known["name"] == *version) {
            let path = format!("status.storedVersions[{place}]");
            errors.push(FieldError::invalid(
                &path,
                version,
                "must appear in spec.versions",
            ));
        }
    }
    errors
}

/// A kind, plural or short name that another definition of the group has taken is not given twice: the definition is
/// stored, but says so and is not served, as in Kubernetes.
pub(super) fn accept_names(write: &Write<'_>, definition: &mut Value) -> Result<(), Status> {
    let name = object::name(definition).to_owned();
    let group = definition["spec"]["group"].clone();
    let mine = names(definition);
    let mut conflict = Resource::builtins()
        .iter()
        .filter(|resource| group == resource.group.as_str())
        .find(|resource| mine.contains(&resource.kind) || mine.contains(&resource.plural))
        .map(|resource| resource.kind.clone());
    write.scan(&Scan::all(DEFINITIONS), |item| {
        let Ok(other) = serde_json::from_slice::<Value>(item.document) else {
            return ControlFlow::Continue(());
        };
        if item.name != name && other["spec"]["group"] == group {
            conflict = names(&other).into_iter().find(|name| mine.contains(name));
        }
        match conflict {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    })?;
    if let Some(taken) = conflict
        && let Some(conditions) = definition["status"]["conditions"].as_array_mut()
    {
        for condition in conditions {
            let accepted = condition["type"] == "NamesAccepted";
            condition["status"] = "False".into();
            condition["reason"] = if accepted {
                "NameConflict"
            } else {
                "NotAccepted"
            }
            .into();
            condition["message"] = if accepted {
                format!("{taken:?} is already in use").into()
            } else {
                "not all names are accepted".into()
            };
        }
    }
    Ok(())
}

fn names(definition: &Value) -> Vec<String> {
    let names = &definition["spec"]["names"];
    let single = ["kind", "plural", "singular", "listKind"]
        .iter()
        .map(|field| &names[*field]);
    single
        .chain(names["shortNames"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}
