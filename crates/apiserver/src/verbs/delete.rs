//! Removal: at once, after a grace period, or when the last finalizer lets go.

use std::ops::ControlFlow;

use axum::response::Response;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use stoke_store::{Key, Scan, Write};

use super::select::Selection;
use super::update::is_released;
use crate::admission::definition;
use crate::object::{self, FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use crate::registry::DEFINITIONS;
use crate::reply::{Document, Reply, encode, json_response, parse};
use crate::request::{DeleteOptions, ListOptions, Preconditions, Propagation, Shape};
use crate::resource::Resource;
use crate::server::Core;
use crate::status::{self, Status};

/// Namespaces that the engine itself stands on.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Objects deleted per write of a collection, so that one request does not hold up all others.
const CHUNK: usize = 100;

/// What a deletion did.
pub(crate) struct Deleted {
    document: Document,
    /// As it was before.
    before: Document,
    /// Whether the object is gone, or only on its way.
    gone: bool,
}

pub(crate) async fn delete(
    core: &Core,
    resource: &Resource,
    key: Key,
    options: DeleteOptions,
    shape: Shape,
) -> Result<Response, Status> {
    let owned = resource.clone();
    let deleted = core
        .store
        .write(move |write| delete_in(write, &owned, &key, &options, Timestamp::now()))
        .await?;
    if resource.key() == DEFINITIONS {
        core.registry.reload(&core.store).await?;
    }
    if !deleted.gone || returns_the_object(resource) {
        return Reply::ok(deleted.document).render(resource, shape);
    }
    let object = deleted.document.into_value(resource)?;
    let mut details = json!({
        "name": object::name(&object),
        "kind": resource.plural,
        "uid": object::uid(&object),
    });
    if !resource.group.is_empty() {
        details["group"] = resource.group.clone().into();
    }
    let body = encode(&status::success(StatusCode::OK, Some(details)))?;
    Ok(json_response(StatusCode::OK, body))
}

/// Kinds whose deletion answers with their last state; the others answer with a Status.
fn returns_the_object(resource: &Resource) -> bool {
    matches!(
        resource.key().as_str(),
        "pods"
            | "services"
            | "serviceaccounts"
            | "persistentvolumes"
            | "persistentvolumeclaims"
            | "resourcequotas"
    )
}

pub(crate) async fn delete_collection(
    core: &Core,
    resource: &Resource,
    namespace: Option<&str>,
    options: DeleteOptions,
    list: ListOptions,
) -> Result<Response, Status> {
    let selection = Selection::new(resource, namespace, &list)?;
    let names = matching(core, resource, selection, list.limit).await?;
    let mut items = Vec::new();
    for chunk in names.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        let owned = resource.clone();
        let options = options.clone();
        let deleted = core
            .store
            .write(move |write| {
                let now = Timestamp::now();
                let mut items = Vec::new();
                for key in &chunk {
                    match delete_in(write, &owned, key, &options, now) {
                        Ok(deleted) => items.push(deleted.before.into_value(&owned)?),
                        // Someone else was faster.
                        Err(status) if status.code() == StatusCode::NOT_FOUND => {}
                        Err(status) => return Err(status),
                    }
                }
                Ok::<_, Status>(items)
            })
            .await?;
        items.extend(deleted);
    }
    if resource.key() == DEFINITIONS {
        core.registry.reload(&core.store).await?;
    }
    let mut meta = json!({"resourceVersion": core.store.revision().to_string()});
    if !resource.is_builtin() {
        meta["continue"] = "".into();
    }
    let body = encode(&json!({
        "kind": resource.list_kind,
        "apiVersion": resource.api_version(),
        "metadata": meta,
        "items": items,
    }))?;
    Ok(json_response(StatusCode::OK, body))
}

async fn matching(
    core: &Core,
    resource: &Resource,
    selection: Selection,
    limit: Option<usize>,
) -> Result<Vec<Key>, Status> {
    let resource = resource.clone();
    core.store
        .read(move |read| {
            let key = resource.key();
            let mut found = Vec::new();
            let scan = Scan {
                namespace: selection.namespace.as_deref(),
                ..Scan::all(&key)
            };
            read.scan(&scan, |item| {
                let matches = selection.may_match(item.namespace, item.name)
                    && (selection.takes_all()
                        || parse(item.document).is_ok_and(|mut object| {
                            resource.from_stored(&mut object);
                            selection.matches(&object)
                        }));
                if matches {
                    found.push(Key::new(&key, item.namespace, item.name));
                }
                if limit.is_some_and(|limit| found.len() >= limit) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            Ok(found)
        })
        .await
}

/// Deletes one object inside a write, or begins to.
pub(crate) fn delete_in(
    write: &mut Write<'_>,
    resource: &Resource,
    key: &Key,
    options: &DeleteOptions,
    now: Timestamp,
) -> Result<Deleted, Status> {
    let stored = write
        .get(key)?
        .ok_or_else(|| Status::not_found(resource, &key.name))?;
    let old = stored.value(key)?;
    if key.resource == "namespaces" {
        check_preconditions(resource, &old, &options.preconditions)?;
    } else {
        check_delete_preconditions(resource, &old, &options.preconditions)?;
    }
    if key.resource == "namespaces" && IMMORTAL.contains(&key.name.as_str()) {
        return Err(Status::forbidden(
            resource,
            &key.name,
            "this namespace may not be deleted",
        ));
    }
    let mut next = next_state(resource, &old, options, now);
    let gone = is_released(&next);
    let unchanged = next == old;
    let before = Document::Stored(stored.document.clone());
    let is_told = !gone || key.resource == "pods";
    let document = if unchanged || (options.dry_run && !is_told) {
        Document::Stored(stored.document)
    } else if options.dry_run {
        resource.from_stored(&mut next);
        Document::Served(next)
    } else if !gone {
        Document::Stored(write.update(key, next)?.document)
    } else if key.resource == "pods" {
        // A pod is seen to be told to go even if it goes at once, so that its node notices.
        write.update(key, next)?;
        Document::Stored(write.delete(key)?.document)
    } else {
        Document::Stored(write.delete(key)?.document)
    };
    Ok(Deleted {
        document,
        before,
        gone,
    })
}

/// A deletion is told in whole sentences which of the two objects it was about.
fn check_delete_preconditions(
    resource: &Resource,
    object: &Value,
    wanted: &Preconditions,
) -> Result<(), Status> {
    let check = |what: &str, wanted: Option<&str>, found: &str, happened: &str| match wanted {
        Some(wanted) if wanted != found => Err(Status::other_object(
            resource,
            object::name(object),
            &format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object \
                 might have been {happened}"
            ),
        )),
        _ => Ok(()),
    };
    check(
        "UID",
        wanted.uid.as_deref(),
        object::uid(object),
        "deleted and then recreated",
    )?;
    check(
        "ResourceVersion",
        wanted.resource_version.as_deref(),
        object::resource_version(object),
        "modified",
    )
}

pub(super) fn check_preconditions(
    resource: &Resource,
    object: &Value,
    wanted: &Preconditions,
) -> Result<(), Status> {
    let check = |what: &str, wanted: Option<&str>, found: &str| match wanted {
        Some(wanted) if wanted != found => Err(Status::conflict(
            resource,
            object::name(object),
            &format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            ),
        )),
        _ => Ok(()),
    };
    check("UID", wanted.uid.as_deref(), object::uid(object))?;
    check(
        "ResourceVersion",
        wanted.resource_version.as_deref(),
        object::resource_version(object),
    )
}

/// The object as it is once its deletion has begun, in its stored shape.
fn next_state(resource: &Resource, old: &Value, options: &DeleteOptions, now: Timestamp) -> Value {
    let mut next = old.clone();
    match options.propagation {
        Some(Propagation::Foreground) => {
            object::remove_finalizer(&mut next, ORPHAN_FINALIZER);
            object::add_finalizer(&mut next, FOREGROUND_FINALIZER);
        }
        Some(Propagation::Orphan) => {
            object::remove_finalizer(&mut next, FOREGROUND_FINALIZER);
            object::add_finalizer(&mut next, ORPHAN_FINALIZER);
        }
        Some(Propagation::Background) => {
            object::remove_finalizer(&mut next, FOREGROUND_FINALIZER);
            object::remove_finalizer(&mut next, ORPHAN_FINALIZER);
        }
        None => {}
    }
    let grace = grace_seconds(resource, old, options);
    let metadata = object::metadata_mut(&mut next);
    let (begun, had) = (
        metadata
            .get("deletionTimestamp")
            .and_then(Value::as_str)
            .and_then(|text| text.parse::<Timestamp>().ok()),
        metadata
            .get("deletionGracePeriodSeconds")
            .and_then(Value::as_i64)
            .unwrap_or(0),
    );
    let deadline = match begun {
        // A second deletion can only shorten the grace of the first.
        Some(_) if grace >= had => None,
        Some(begun) => Some(begun - SignedDuration::from_secs(had - grace)),
        None => Some(now + SignedDuration::from_secs(grace)),
    };
    if let Some(deadline) = deadline {
        metadata.insert("deletionTimestamp".into(), object::time(deadline).into());
        if !matches!(resource.key().as_str(), "namespaces" | DEFINITIONS) {
            metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
        }
        if resource.key() != DEFINITIONS
            && begun.is_none()
            && let Some(generation) = metadata.get("generation").and_then(Value::as_i64)
        {
            metadata.insert("generation".into(), (generation + 1).into());
        }
    }
    if resource.key() == "namespaces" {
        object::child_mut(&mut next, "status").insert("phase".into(), "Terminating".into());
    }
    if resource.key() == DEFINITIONS && begun.is_none() {
        definition::begin_termination(&mut next, now);
    }
    next
}

/// The longest grace that is kept; it must fit any calendar.
const GRACE_SECONDS_MAX: i64 = 10 * 365 * 24 * 3600;

/// Only a pod that runs somewhere needs time to end.
fn grace_seconds(resource: &Resource, object: &Value, options: &DeleteOptions) -> i64 {
    if resource.key() != "pods" {
        return 0;
    }
    let placed = object["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    let ended = matches!(
        object["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if !placed || ended {
        return 0;
    }
    let wanted = options
        .grace_seconds
        .or_else(|| object["spec"]["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(30);
    if wanted < 0 {
        1
    } else {
        wanted.min(GRACE_SECONDS_MAX)
    }
}
