//! The subresources only pods have: `log`, `binding`, `eviction`.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http::{StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};
use stoke_store::{Key, Write};
use tokio::sync::OwnedSemaphorePermit;

use super::delete::{check_preconditions, delete_in};
use super::update::save;
use crate::admission::pod::container_names;
use crate::logs::LogError;
use crate::object;
use crate::reply::{encode, json_response};
use crate::request::{
    Body as RequestBody, DeleteOptions, LogOptions, Preconditions, Propagation, WriteOptions,
};
use crate::resource::Resource;
use crate::server::Core;
use crate::status::{self, Status};

pub(crate) async fn log(
    core: &Core,
    resource: &Resource,
    key: Key,
    options: LogOptions,
    permit: OwnedSemaphorePermit,
) -> Result<Response, Status> {
    let owned = resource.clone();
    let pod = core
        .store
        .read(move |read| {
            let stored = read
                .get(&key)?
                .ok_or_else(|| Status::not_found(&owned, &key.name))?;
            Ok::<_, Status>(stored.value(&key)?)
        })
        .await?;
    let container = chosen_container(&pod, options.container.as_deref())?;
    if pod["spec"]["nodeName"]
        .as_str()
        .unwrap_or_default()
        .is_empty()
    {
        // Nobody has a log of a pod that is nowhere yet.
        return Ok(text(Body::empty()));
    }
    let stream = core
        .logs
        .open(&pod, &container, options)
        .await
        .map_err(|error| match error {
            LogError::Waiting { .. } | LogError::NoPrevious { .. } => {
                Status::bad_request(error.to_string())
            }
            LogError::Read(ref source) => Status::internal(format!("{error}: {source}")),
        })?;
    let shutdown = core.shutdown.clone();
    let stream = stream
        .take_until(async move { shutdown.cancelled().await })
        .map(move |chunk| {
            let _held = &permit;
            chunk
        });
    Ok(text(Body::from_stream(stream)))
}

fn text(body: Body) -> Response {
    (
        StatusCode::OK,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        body,
    )
        .into_response()
}

fn chosen_container(pod: &Value, wanted: Option<&str>) -> Result<String, Status> {
    let name = object::name(pod);
    let names: Vec<&str> = container_names(pod).collect();
    let chosen = match wanted {
        Some(wanted) => names.iter().find(|name| **name == wanted).ok_or_else(|| {
            Status::bad_request(format!("container {wanted} is not valid for pod {name}"))
        })?,
        None => match names.as_slice() {
            [only] => only,
            _ => {
                return Err(Status::bad_request(format!(
                    "a container name must be specified for pod {name}, choose one of: [{}]",
                    names.join(" ")
                )));
            }
        },
    };
    Ok((*chosen).to_owned())
}

/// `POST pods/NAME/binding`: the pod is to run on a node.
pub(crate) async fn bind(
    core: &Core,
    resource: &Resource,
    key: Key,
    body: RequestBody,
    options: WriteOptions,
) -> Result<Response, Status> {
    let binding = body.value;
    check_kind(&binding, "Binding", "v1")?;
    let name = object::name(&binding);
    if !name.is_empty() && name != key.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    let annotations = binding["metadata"]["annotations"].clone();
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    let kind = binding["target"]["kind"].as_str().unwrap_or("Node");
    if node.is_empty() || !matches!(kind, "Node" | "") {
        return Err(Status::bad_request(
            "a binding must name a Node as its target",
        ));
    }
    let node = node.to_owned();
    let said = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let preconditions = Preconditions {
        uid: said(object::uid(&binding)),
        resource_version: said(object::resource_version(&binding)),
    };
    let resource = resource.clone();
    core.store
        .write(move |write| {
            bind_in(
                write,
                &resource,
                &key,
                (&node, &annotations),
                &preconditions,
                options.dry_run,
            )
        })
        .await?;
    created()
}

fn bind_in(
    write: &mut Write<'_>,
    resource: &Resource,
    key: &Key,
    (node, annotations): (&str, &Value),
    preconditions: &Preconditions,
    dry_run: bool,
) -> Result<(), Status> {
    let stored = write
        .get(key)?
        .ok_or_else(|| Status::not_found(resource, &key.name))?;
    let mut pod = stored.value(key)?;
    // The name may have passed to another pod since the binding was decided.
    check_preconditions(resource, &pod, preconditions)?;
    let name = &key.name;
    if object::is_deleting(&pod) {
        let why = format!("pod {name} is being deleted, cannot be assigned to a host");
        return Err(Status::binding_conflict(name, &why));
    }
    let assigned = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !assigned.is_empty() {
        let why = format!("pod {name} is already assigned to node \"{assigned}\"");
        return Err(Status::binding_conflict(name, &why));
    }
    object::child_mut(&mut pod, "spec").insert("nodeName".into(), node.into());
    for (name, value) in annotations.as_object().into_iter().flatten() {
        object::child_mut(&mut pod["metadata"], "annotations").insert(name.clone(), value.clone());
    }
    let now = object::time(Timestamp::now());
    let scheduled = json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": now,
    });
    set_condition(&mut pod, scheduled);
    if !dry_run {
        save(write, resource, key, pod)?;
    }
    Ok(())
}

/// Puts `condition` in the place of the one of its type.
fn set_condition(pod: &mut Value, condition: Value) {
    let status = object::child_mut(pod, "status");
    object::fill(status, "conditions", json!([]));
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.retain(|other| other["type"] != condition["type"]);
        conditions.push(condition);
    }
}

/// `POST pods/NAME/eviction`: a deletion that a disruption budget could refuse. There are none here.
pub(crate) async fn evict(
    core: &Core,
    resource: &Resource,
    key: Key,
    body: RequestBody,
    options: WriteOptions,
) -> Result<Response, Status> {
    let eviction = body.value;
    check_kind(&eviction, "Eviction", "policy/v1")?;
    let name = object::name(&eviction);
    if !name.is_empty() && name != key.name {
        return Err(Status::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let said = &eviction["deleteOptions"];
    let precondition = |name: &str| said["preconditions"][name].as_str().map(str::to_owned);
    let delete = DeleteOptions {
        grace_seconds: said["gracePeriodSeconds"].as_i64(),
        propagation: said["propagationPolicy"]
            .as_str()
            .and_then(Propagation::parse),
        preconditions: Preconditions {
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        },
        dry_run: options.dry_run,
    };
    let resource = resource.clone();
    core.store
        .write(move |write| evict_in(write, &resource, &key, delete))
        .await?;
    created()
}

/// Says why the pod goes, so that its owner can tell a disruption from a failure of its own; then deletes it.
fn evict_in(
    write: &mut Write<'_>,
    resource: &Resource,
    key: &Key,
    mut delete: DeleteOptions,
) -> Result<(), Status> {
    let now = Timestamp::now();
    let stored = write
        .get(key)?
        .ok_or_else(|| Status::not_found(resource, &key.name))?;
    let mut pod = stored.value(key)?;
    check_preconditions(resource, &pod, &delete.preconditions)?;
    if !delete.dry_run {
        let evicted = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": null,
            "lastTransitionTime": object::time(now),
        });
        set_condition(&mut pod, evicted);
        save(write, resource, key, pod)?;
        // It held, and the condition has moved the version on.
        delete.preconditions.resource_version = None;
    }
    delete_in(write, resource, key, &delete, now)?;
    Ok(())
}

fn check_kind(body: &Value, kind: &str, api_version: &str) -> Result<(), Status> {
    let said = (
        body["kind"].as_str().unwrap_or(kind),
        body["apiVersion"].as_str().unwrap_or(api_version),
    );
    if said == (kind, api_version) {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "{} in version \"{}\" cannot be handled as a {kind}",
        said.0, said.1
    )))
}

fn created() -> Result<Response, Status> {
    let body = encode(&status::success(StatusCode::CREATED, None))?;
    Ok(json_response(StatusCode::CREATED, body))
}
