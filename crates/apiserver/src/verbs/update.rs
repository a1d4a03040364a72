//! Changes: whole objects, patches, and the subresources that are parts of an object.
//!
//! The change is made inside the writer, on the latest state, so that a patch never conflicts and a whole object
//! conflicts only if its author says which version it was made from.

use jiff::Timestamp;
use serde_json::Value;
use stoke_store::{Key, Write};

use crate::admission::{self, Admitted, Part, Reading};
use crate::object;
use crate::patch::{self, PatchError};
use crate::quota;
use crate::registry::DEFINITIONS;
use crate::reply::{Document, Reply};
use crate::request::{Body, Patch, PatchKind, WriteOptions};
use crate::resource::Resource;
use crate::schema::{FieldError, FieldReason};
use crate::server::Core;
use crate::status::Status;

/// How the next state comes from the present one.
pub(crate) enum Change {
    Replace(Body),
    Patch(Patch),
}

pub(crate) async fn update(
    core: &Core,
    resource: &Resource,
    key: Key,
    part: Part,
    change: Change,
    options: WriteOptions,
) -> Result<Reply, Status> {
    if let Change::Patch(patch) = &change
        && patch.kind == PatchKind::Strategic
        && !resource.is_builtin()
    {
        return Err(Status::unsupported_media_type(
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        ));
    }
    let owned = resource.clone();
    let change = match change {
        Change::Replace(body) => Next::Read(read(resource, &key, body, options)?),
        Change::Patch(patch) => Next::Patched(patch),
    };
    let (document, warnings) = core
        .store
        .write(move |write| apply(write, &owned, &key, part, change, options))
        .await?;
    if resource.key() == DEFINITIONS && !options.dry_run {
        core.registry.reload(&core.store).await?;
    }
    Ok(Reply {
        warnings,
        ..Reply::ok(document)
    })
}

/// A change on its way into the writer: whole objects are read before, patches meet their object there.
enum Next {
    Read(Reading),
    Patched(Patch),
}

fn apply(
    write: &mut Write<'_>,
    resource: &Resource,
    key: &Key,
    part: Part,
    next: Next,
    options: WriteOptions,
) -> Result<(Document, Vec<String>), Status> {
    let Some(stored) = write.get(key)? else {
        let missing = Status::not_found(resource, &key.name);
        return Err(match next {
            Next::Read(reading) => reading.refused(missing),
            Next::Patched(_) => missing,
        });
    };
    let mut old = stored.value(key)?;
    resource.from_stored(&mut old);
    let now = Timestamp::now();
    let admitted = match next {
        Next::Read(reading) => admission::update(resource, part, &old, reading, false, now),
        Next::Patched(patch) => {
            let body = Body {
                value: patched(resource, &old, &patch)?,
                duplicates: Vec::new(),
            };
            let mut reading = admission::read(resource, body, options).map_err(about_patch)?;
            check_name(&mut reading.value, key)?;
            admission::update(resource, part, &old, reading, true, now).map_err(about_patch)
        }
    };
    let Admitted {
        object: mut new,
        warnings,
    } = admitted?;
    if resource.key() == quota::QUOTAS {
        quota::tally(write, &mut new, now)?;
    }
    if new == old {
        return Ok((Document::Stored(stored.document), warnings));
    }
    if options.dry_run {
        return Ok((Document::Served(new), warnings));
    }
    let document = save(write, resource, key, new)?;
    Ok((document, warnings))
}

/// Reads a whole object that is to take the place of the one at `key`.
fn read(
    resource: &Resource,
    key: &Key,
    body: Body,
    options: WriteOptions,
) -> Result<Reading, Status> {
    let mut reading = admission::read(resource, body, options)?;
    check_name(&mut reading.value, key).map_err(|status| reading.refused(status))?;
    Ok(reading)
}

/// What is sent to a place must say that it belongs there.
fn check_name(value: &mut Value, key: &Key) -> Result<(), Status> {
    let name = object::name(value);
    if name.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            key.name
        )));
    }
    if name != key.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            key.name
        )));
    }
    let namespace = Some(key.namespace.as_str()).filter(|text| !text.is_empty());
    admission::check_namespace(value, namespace)
}

/// Stores the next state of an object, or lets it go if nothing holds it any more.
pub(crate) fn save(
    write: &mut Write<'_>,
    resource: &Resource,
    key: &Key,
    mut new: Value,
) -> Result<Document, Status> {
    if is_released(&new) {
        // Never written in the state in which nothing holds it: watchers see it as it last was, and gone.
        write.delete(key)?;
        return Ok(Document::Served(new));
    }
    resource.to_stored(&mut new);
    let stored = write.update(key, new)?;
    Ok(Document::Stored(stored.document))
}

/// Being deleted, past its grace, and held by no finalizer.
pub(crate) fn is_released(object: &Value) -> bool {
    let graceful = object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0)
        > 0;
    let held_as_namespace = object["kind"] == "Namespace"
        && object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty());
    object::is_deleting(object)
        && !graceful
        && !held_as_namespace
        && object::finalizers(object).next().is_none()
}

fn patched(resource: &Resource, old: &Value, patch: &Patch) -> Result<Value, Status> {
    let mut new = old.clone();
    let done = match patch.kind {
        PatchKind::Json => patch::json_patch(&mut new, &patch.body),
        PatchKind::Merge => {
            patch::merge_patch(&mut new, &patch.body);
            Ok(())
        }
        PatchKind::Strategic => patch::strategic_merge(&mut new, &patch.body, &resource.kind),
    };
    done.map_err(|error| match error {
        PatchError::Malformed(why) => Status::bad_request(why),
        PatchError::TooLarge(why) => Status::patch_too_large(why),
        PatchError::Unprocessable(why) => Status::unprocessable(why),
    })?;
    if !new.is_object() {
        return Err(Status::unprocessable("the patch leaves no object"));
    }
    Ok(new)
}

/// A patch whose result cannot be decoded is an invalid patch: 422 where a whole object gets 400.
fn about_patch(status: Status) -> Status {
    if status.code() != 400 {
        return status;
    }
    let error = FieldError {
        path: "patch".into(),
        reason: FieldReason::Invalid,
        detail: format!("Invalid value: {}", status.message()),
    };
    Status::invalid("", "", "", &[error])
}
