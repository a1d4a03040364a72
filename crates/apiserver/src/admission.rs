//! Between a decoded body and the store: what the server fills in, what it protects, and what it refuses.
//!
//! Every write passes here, whoever makes it. The functions are pure but for those that take a [`Write`], which ask
//! whether the things an object refers to exist.

pub(crate) mod definition;
pub(crate) mod kinds;
pub(crate) mod pod;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use stoke_store::{Key, Write};

use crate::object::{self, Light};
use crate::registry::{DEFINITIONS, Registry};
use crate::request::{Body, FieldValidation, WriteOptions};
use crate::resource::Resource;
use crate::schema::{FieldError, FieldReason};
use crate::status::Status;

/// Which part of an object a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status, where the status is a subresource.
    Main,
    Status,
    /// `pods/resize`: the resources of containers.
    Resize,
    /// `namespaces/finalize`: `spec.finalizers`.
    Finalize,
}

/// An object that may be stored, and what its author should hear about it.
pub(crate) struct Admitted {
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
}

/// Metadata that only the server writes.
const SYSTEM_METADATA: [&str; 7] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "managedFields",
];

/// Makes a new object of what the client sent.
pub(crate) fn create(
    resource: &Resource,
    namespace: Option<&str>,
    body: Body,
    options: WriteOptions,
    now: Timestamp,
) -> Result<Admitted, Status> {
    let mut object = body.value;
    check_type(resource, &mut object)?;
    check_namespace(&mut object, namespace)?;
    if !object::resource_version(&object).is_empty() {
        return Err(Status::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let warnings = check_fields(resource, &mut object, &body.duplicates, options)?;
    let metadata = object::metadata_mut(&mut object);
    for field in SYSTEM_METADATA {
        metadata.remove(field);
    }
    metadata.remove("resourceVersion");
    metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".into(), object::time(now).into());
    if has_generation(resource) {
        metadata.insert("generation".into(), 1.into());
    }
    generate_name(&mut object);
    if resource.subresources.status && !keeps_status_at_birth(resource) {
        remove(&mut object, "status");
    }
    resource.default(&mut object);
    kinds::on_create(resource, &mut object, now);
    check(resource, &object, None)?;
    Ok(Admitted { object, warnings })
}

/// Makes the next state of an object from what the client sent. `old` is the stored one, in the same version.
pub(crate) fn update(
    resource: &Resource,
    part: Part,
    old: &Value,
    body: Body,
    options: WriteOptions,
    now: Timestamp,
) -> Result<Admitted, Status> {
    let mut new = body.value;
    check_type(resource, &mut new)?;
    check_expectations(resource, old, &new)?;
    let warnings = check_fields(resource, &mut new, &body.duplicates, options)?;
    protect(resource, part, old, &mut new);
    resource.default(&mut new);
    kinds::on_update(resource, old, &mut new, now);
    if part != Part::Status && has_generation(resource) && object::spec_differs(old, &new) {
        let next = object::generation(old) + 1;
        object::metadata_mut(&mut new).insert("generation".into(), next.into());
    }
    check(resource, &new, Some(old))?;
    let mut errors = finalizer_errors(old, &new);
    if resource.key() == "pods" {
        errors.extend(pod::update_errors(part, old, &new));
    }
    refuse(resource, &new, errors)?;
    Ok(Admitted {
        object: new,
        warnings,
    })
}

/// The parts of admission that ask the store, inside the write that will create `object`.
pub(crate) fn check_surroundings(
    write: &Write<'_>,
    resource: &Resource,
    object: &mut Value,
) -> Result<(), Status> {
    if resource.namespaced {
        let namespace = object::namespace(object).to_owned();
        let found = write.get(&Key::new("namespaces", "", &namespace))?;
        let Some(found) = found else {
            return Err(Status::not_found(
                Registry::builtin("namespaces"),
                &namespace,
            ));
        };
        if Light::read(&found.document).is_deleting() {
            return Err(Status::terminating(
                resource,
                object::name(object),
                &namespace,
            ));
        }
    }
    if !resource.is_builtin() {
        let definition = Key::new(DEFINITIONS, "", resource.group_resource());
        match write.get(&definition)? {
            None => return Err(Status::no_such_resource()),
            Some(found) if Light::read(&found.document).is_deleting() => {
                return Err(Status::method_not_allowed());
            }
            Some(_) => {}
        }
    }
    match resource.key().as_str() {
        "pods" => pod::check_surroundings(write, resource, object),
        DEFINITIONS => definition::accept_names(write, object),
        _ => Ok(()),
    }
}

/// What comes into being together with `object`, in the same write.
pub(crate) fn after_create(
    write: &mut Write<'_>,
    resource: &Resource,
    object: &Value,
    now: Timestamp,
) -> Result<(), Status> {
    if resource.key() == "namespaces" {
        kinds::add_default_service_account(write, object::name(object), now)?;
    }
    Ok(())
}

/// Kinds whose objects count the changes of their spec.
fn has_generation(resource: &Resource) -> bool {
    !resource.is_builtin() || matches!(resource.kind.as_str(), "Pod" | "CustomResourceDefinition")
}

/// A kubelet registers its node together with what it found there.
fn keeps_status_at_birth(resource: &Resource) -> bool {
    resource.key() == "nodes"
}

fn check_type(resource: &Resource, value: &mut Value) -> Result<(), Status> {
    let expected = resource.api_version();
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let kind = value["kind"].as_str().unwrap_or_default();
    if kind.is_empty() && !resource.is_builtin() {
        return Err(Status::bad_request("Object 'Kind' is missing"));
    }
    if !api_version.is_empty() && api_version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    if !kind.is_empty() && kind != resource.kind {
        return Err(Status::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}",
            resource.version, resource.kind
        )));
    }
    if !matches!(value["metadata"], Value::Null | Value::Object(_)) {
        return Err(wrong_type(resource, "metadata: must be an object"));
    }
    value["apiVersion"] = expected.into();
    value["kind"] = resource.kind.clone().into();
    object::metadata_mut(value);
    Ok(())
}

/// Go cannot decode what has the wrong type, so built-in kinds answer 400 where custom ones answer 422.
fn wrong_type(resource: &Resource, what: &str) -> Status {
    let kind = &resource.kind;
    Status::bad_request(format!(
        "{kind} in version \"{}\" cannot be handled as a {kind}: {what}",
        resource.version
    ))
}

pub(crate) fn check_namespace(value: &mut Value, namespace: Option<&str>) -> Result<(), Status> {
    let metadata = object::metadata_mut(value);
    let said = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match namespace {
        Some(namespace) if said.is_empty() => {
            metadata.insert("namespace".into(), namespace.into());
        }
        Some(namespace) if said != namespace => {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Some(_) => {}
        None => {
            metadata.remove("namespace");
        }
    }
    Ok(())
}

/// The caller's belief about the object: its identity and, if it says so, its version.
fn check_expectations(resource: &Resource, old: &Value, new: &Value) -> Result<(), Status> {
    let name = object::name(old);
    let (old_uid, new_uid) = (object::uid(old), object::uid(new));
    if !new_uid.is_empty() && new_uid != old_uid {
        return Err(Status::conflict(
            resource,
            name,
            &format!(
                "Precondition failed: UID in precondition: {new_uid}, UID in object meta: {old_uid}"
            ),
        ));
    }
    let version = object::resource_version(new);
    if version.is_empty() && !allows_unconditional_update(resource) {
        let error = FieldError {
            path: "metadata.resourceVersion".into(),
            reason: FieldReason::Invalid,
            detail: "Invalid value: 0: must be specified for an update".into(),
        };
        return Err(Status::invalid_object(resource, name, &[error]));
    }
    if !version.is_empty() && version != object::resource_version(old) {
        return Err(Status::modified(resource, name));
    }
    Ok(())
}

fn allows_unconditional_update(resource: &Resource) -> bool {
    resource.is_builtin()
        && !matches!(
            resource.kind.as_str(),
            "CustomResourceDefinition" | "Lease" | "EndpointSlice" | "PriorityClass"
        )
}

/// Unknown and doubled fields: dropped, with what `fieldValidation` asks to be said about them.
fn check_fields(
    resource: &Resource,
    value: &mut Value,
    duplicates: &[String],
    options: WriteOptions,
) -> Result<Vec<String>, Status> {
    let unknown = resource.prune(value);
    let mut findings: Vec<String> = unknown
        .iter()
        .map(|path| format!("unknown field \"{path}\""))
        .collect();
    findings.extend(
        duplicates
            .iter()
            .map(|path| format!("duplicate field \"{path}\"")),
    );
    match options.field_validation {
        FieldValidation::Strict if !findings.is_empty() => Err(wrong_type(
            resource,
            &format!("strict decoding error: {}", findings.join(", ")),
        )),
        FieldValidation::Warn => Ok(findings),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// Puts back what this write may not touch.
fn protect(resource: &Resource, part: Part, old: &Value, new: &mut Value) {
    let empty = Map::new();
    let old_metadata = old["metadata"].as_object().unwrap_or(&empty);
    if part == Part::Main {
        let metadata = object::metadata_mut(new);
        for field in SYSTEM_METADATA {
            object::carry(old_metadata, metadata, field);
        }
        object::carry(old_metadata, metadata, "generateName");
        object::carry(old_metadata, metadata, "resourceVersion");
        if resource.subresources.status {
            restore(old, new, "status");
        }
        if resource.key() == "namespaces" {
            restore(old, new, "spec");
        }
        return;
    }
    let mut next = old.clone();
    match part {
        Part::Main => {}
        Part::Status => restore(new, &mut next, "status"),
        Part::Resize => pod::take_resources(new, &mut next),
        Part::Finalize => {
            let finalizers = new
                .pointer("/spec/finalizers")
                .cloned()
                .unwrap_or_else(|| json!([]));
            object::child_mut(&mut next, "spec").insert("finalizers".into(), finalizers);
        }
    }
    *new = next;
}

fn restore(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => remove(to, field),
    }
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

fn finalizer_errors(old: &Value, new: &Value) -> Vec<FieldError> {
    if !object::is_deleting(old) {
        return Vec::new();
    }
    let added: Vec<&str> = object::finalizers(new)
        .filter(|finalizer| !object::has_finalizer(old, finalizer))
        .collect();
    if added.is_empty() {
        return Vec::new();
    }
    vec![FieldError {
        path: "metadata.finalizers".into(),
        reason: FieldReason::Forbidden,
        detail: format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
        ),
    }]
}

fn check(resource: &Resource, new: &Value, old: Option<&Value>) -> Result<(), Status> {
    let mut errors = resource.validate(new, old);
    let wrong: Vec<String> = errors
        .iter()
        .filter(|error| resource.is_builtin() && error.reason == FieldReason::TypeInvalid)
        .map(ToString::to_string)
        .collect();
    if !wrong.is_empty() {
        return Err(wrong_type(resource, &wrong.join(", ")));
    }
    errors.extend(kinds::errors(resource, new, old));
    refuse(resource, new, errors)
}

fn refuse(resource: &Resource, object: &Value, errors: Vec<FieldError>) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid_object(
        resource,
        object::name(object),
        &errors,
    ))
}

/// The characters of generated names: no vowels, so that no word comes out, and none that are mistaken for others.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX_LENGTH: usize = 5;
const GENERATED_LENGTH_MAX: usize = 63;

/// Completes `generateName` if there is no name; draws anew each time it is called.
pub(crate) fn generate_name(object: &mut Value) {
    let metadata = object::metadata_mut(object);
    let named = metadata
        .get("name")
        .and_then(Value::as_str)
        .is_some_and(|name| !name.is_empty());
    let Some(base) = metadata.get("generateName").and_then(Value::as_str) else {
        return;
    };
    if named || base.is_empty() {
        return;
    }
    let name = drawn_name(base);
    metadata.insert("name".into(), name.into());
}

pub(crate) fn drawn_name(base: &str) -> String {
    let mut name: String = base
        .chars()
        .take(GENERATED_LENGTH_MAX - SUFFIX_LENGTH)
        .collect();
    let random = uuid::Uuid::new_v4();
    for byte in &random.as_bytes()[..SUFFIX_LENGTH] {
        name.push(char::from(SUFFIX[usize::from(*byte) % SUFFIX.len()]));
    }
    name
}
