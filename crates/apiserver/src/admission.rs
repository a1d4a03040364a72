//! Between a decoded body and the store: what the server fills in, what it protects, and what it refuses.
//!
//! Every write passes here, whoever makes it. The functions are pure but for those that take a [`Write`], which ask
//! whether the things an object refers to exist.

pub(crate) mod definition;
pub(crate) mod kinds;
pub(crate) mod pod;

use jiff::Timestamp;
use serde_json::{Map, Value};
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

/// A body understood as an object of a resource: known fields only.
pub(crate) struct Reading {
    pub(crate) value: Value,
    warnings: Vec<String>,
}

/// Reads a body, or says why it is no object of `resource`. What comes after may only refuse what the object says.
pub(crate) fn read(
    resource: &Resource,
    body: Body,
    options: WriteOptions,
) -> Result<Reading, Status> {
    let mut value = body.value;
    check_type(resource, &mut value)?;
    let warnings = check_fields(resource, &mut value, &body.duplicates, options)?;
    Ok(Reading { value, warnings })
}

impl Reading {
    /// A refusal of what was read, with what its author should hear about it besides.
    pub(crate) fn refused(&self, status: Status) -> Status {
        status.with_warnings(&self.warnings)
    }
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
    let Reading {
        value: mut object,
        mut warnings,
    } = read(resource, body, options)?;
    check_namespace(&mut object, namespace)?;
    if !matches!(object::resource_version(&object), "" | "0") {
        return Err(Status::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    warnings.extend(finalizer_warnings(resource, &object, None));
    let metadata = object::metadata_mut(&mut object);
    for field in SYSTEM_METADATA {
        // Where nobody counts changes, the number is whoever's who wrote it.
        if field != "generation" || has_generation(resource) {
            metadata.remove(field);
        }
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
    check(resource, &object, None, Part::Main)
        .and_then(|errors| refuse(resource, &object, errors))
        .map_err(|status| status.with_warnings(&warnings))?;
    Ok(Admitted { object, warnings })
}

/// Makes the next state of an object from what the client sent. `old` is the stored one, in the same version.
pub(crate) fn update(
    resource: &Resource,
    part: Part,
    old: &Value,
    reading: Reading,
    is_patch: bool,
    now: Timestamp,
) -> Result<Admitted, Status> {
    let Reading {
        value: mut new,
        mut warnings,
    } = reading;
    check_expectations(resource, old, &new, is_patch)
        .map_err(|status| status.with_warnings(&warnings))?;
    warnings.extend(finalizer_warnings(resource, &new, Some(old)));
    protect(resource, part, old, &mut new);
    resource.default(&mut new);
    kinds::on_update(resource, old, &mut new, now);
    let counts = has_generation(resource) && resource.kind != "PriorityClass";
    if part != Part::Status && counts && object::spec_differs(old, &new) {
        let next = object::generation(old) + 1;
        object::metadata_mut(&mut new).insert("generation".into(), next.into());
    }
    check(resource, &new, Some(old), part)
        .and_then(|mut errors| {
            errors.extend(finalizer_errors(old, &new));
            if resource.key() == "pods" {
                errors.extend(pod::update_errors(part, old, &new));
            }
            refuse(resource, &new, errors)
        })
        .map_err(|status| status.with_warnings(&warnings))?;
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
    !resource.is_builtin()
        || matches!(
            resource.kind.as_str(),
            "Pod" | "CustomResourceDefinition" | "EndpointSlice" | "PriorityClass"
        )
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
    let is_said = !api_version.is_empty() || !resource.is_builtin();
    if is_said && api_version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    if !kind.is_empty() && kind != resource.kind && !resource.is_builtin() {
        let why = format!("must be {}", resource.kind);
        let error = FieldError::invalid_text("kind", kind, &why);
        let name = object::name(value);
        return Err(Status::invalid(kind, &resource.group, name, &[error]));
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
fn check_expectations(
    resource: &Resource,
    old: &Value,
    new: &Value,
    is_patch: bool,
) -> Result<(), Status> {
    let name = object::name(old);
    let (old_uid, new_uid) = (object::uid(old), object::uid(new));
    // A patch that says another identity is not late but wrong; that it is, is said with all else that is.
    if !new_uid.is_empty() && new_uid != old_uid && !is_patch {
        return Err(Status::conflict(
            resource,
            name,
            &format!(
                "Precondition failed: UID in precondition: {new_uid}, UID in object meta: {old_uid}"
            ),
        ));
    }
    let version = match object::resource_version(new) {
        "0" => "",
        version => version,
    };
    if version.is_empty() && !allows_unconditional_update(resource) {
        let error = FieldError::invalid(
            "metadata.resourceVersion",
            &0.into(),
            "must be specified for an update",
        );
        return Err(Status::invalid(
            &resource.plural,
            &resource.group,
            name,
            &[error],
        ));
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
            "CustomResourceDefinition" | "Lease" | "EndpointSlice"
        )
}

/// Unknown and doubled fields: dropped, with what `fieldValidation` asks to be said about them.
fn check_fields(
    resource: &Resource,
    value: &mut Value,
    duplicates: &[String],
    options: WriteOptions,
) -> Result<Vec<String>, Status> {
    let mut unknown = resource.prune(value);
    if !resource.is_builtin() {
        // The metadata of custom kinds is read before the rest.
        unknown.sort_by_key(|path| !path.starts_with("metadata."));
    }
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
            // What is said of these is checked, and silence changes nothing.
            let said = matches!(field, "uid" | "deletionTimestamp")
                && metadata.get(field).is_some_and(Value::is_string);
            if !said {
                object::carry(old_metadata, metadata, field);
            }
        }
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
        Part::Status => {
            restore(new, &mut next, "status");
            // Of custom kinds it takes the status alone.
            if resource.is_builtin() {
                take_metadata(resource, new, &mut next);
            }
        }
        Part::Resize => pod::take_resources(new, &mut next),
        Part::Finalize => {
            restore(new, &mut next, "spec");
            take_metadata(resource, new, &mut next);
        }
    }
    *new = next;
}

/// The metadata that is its author's. Who owns a pod is not for its node to say.
fn take_metadata(resource: &Resource, from: &Value, to: &mut Value) {
    let empty = Map::new();
    let said = from["metadata"].as_object().unwrap_or(&empty);
    let metadata = object::metadata_mut(to);
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        if field != "ownerReferences" || resource.key() != "pods" {
            object::carry(said, metadata, field);
        }
    }
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

/// Custom kinds may have any finalizer, but should not.
fn finalizer_warnings(resource: &Resource, new: &Value, old: Option<&Value>) -> Vec<String> {
    if resource.is_builtin() {
        return Vec::new();
    }
    object::finalizers(new)
        .filter(|finalizer| {
            let is_plain = !finalizer.contains('/');
            let is_standard = matches!(
                *finalizer,
                object::ORPHAN_FINALIZER | object::FOREGROUND_FINALIZER
            );
            let is_new = old.is_none_or(|old| !object::has_finalizer(old, finalizer));
            is_plain && !is_standard && is_new
        })
        .map(|finalizer| {
            format!(
                "metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer name to avoid accidental \
                 conflicts with other finalizer writers"
            )
        })
        .collect()
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
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers \
             []string{{{}}}",
            added
                .iter()
                .map(|finalizer| format!("{finalizer:?}"))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }]
}

/// What is wrong with an object; a refusal if it is none of its kind.
fn check(
    resource: &Resource,
    new: &Value,
    old: Option<&Value>,
    part: Part,
) -> Result<Vec<FieldError>, Status> {
    let mut errors = resource.validate(new, old);
    if part == Part::Status && !resource.is_builtin() {
        // The status of a custom kind is checked by itself, so its messages begin below it.
        for error in &mut errors {
            let below = error.path.strip_prefix("status.").unwrap_or_default();
            if !below.is_empty() {
                let whole = format!("{} in body", error.path);
                error.detail = error.detail.replace(&whole, &format!("{below} in body"));
            }
        }
    }
    // Metadata has one type in all kinds.
    let is_typed = |error: &FieldError| {
        resource.is_builtin() || error.path.split('.').next() == Some("metadata")
    };
    let wrong: Vec<String> = errors
        .iter()
        .filter(|error| error.reason == FieldReason::TypeInvalid && is_typed(error))
        .map(ToString::to_string)
        .collect();
    if !wrong.is_empty() {
        return Err(wrong_type(resource, &wrong.join(", ")));
    }
    errors.extend(kinds::errors(resource, new, old));
    Ok(errors)
}

fn refuse(resource: &Resource, object: &Value, mut errors: Vec<FieldError>) -> Result<(), Status> {
    let mut seen = std::collections::HashSet::new();
    errors.retain(|error| seen.insert(error.clone()));
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
