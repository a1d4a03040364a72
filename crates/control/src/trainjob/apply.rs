//! Carries out a plan. Only writes, and decides nothing but what "already there" means.
//!
//! Invariant: every write may be repeated. What we write is put into the mirrors at once.

use futures::StreamExt as _;
use futures::TryStreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Secret, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::response::Status;
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use stoke_api::TrainJob;
use stoke_api::names::pod_name;
use stoke_api::trainjob::TrainJobStatus;
use uuid::Uuid;

use super::children;
use super::plan::{Action, Telling};
use crate::hub::Hub;
use crate::mirror::Key;

/// Pods written at once for one job.
const POD_WRITES_MAX: usize = 8;
/// What an Event's note may hold.
const NOTE_LENGTH_MAX: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("the job was changed by someone else")]
    Conflict,
    #[error("the job is no more")]
    Gone,
    /// The API server will not have it. The message is the server's, for the job's author.
    #[error("{message}")]
    Refused { message: String },
    #[error("could not {what}")]
    Failed {
        what: String,
        #[source]
        source: kube::Error,
    },
}

/// Writes what changed of the status, if anything did, on condition that the job is as it was read.
pub async fn write_status(
    hub: &Hub,
    job: &TrainJob,
    status: &TrainJobStatus,
) -> Result<(), ApplyError> {
    let to_value = |status: &TrainJobStatus| serde_json::to_value(status).unwrap_or_default();
    let before = job.status.as_ref().map_or_else(|| json!({}), to_value);
    let Some(changed) = difference(&before, &to_value(status)) else {
        return Ok(());
    };
    let patch = json!({
        "metadata": {"uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version},
        "status": changed,
    });
    let api: Api<TrainJob> = Api::namespaced(hub.client.clone(), job.namespace());
    let written = api
        .patch_status(job.name(), &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match written {
        Ok(job) => {
            hub.wrote(job);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Err(ApplyError::Gone),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(ApplyError::Conflict),
        Err(source) => Err(ApplyError::Failed {
            what: "write the job's status".to_owned(),
            source,
        }),
    }
}

/// The merge patch that makes `after` of `before`; none where they are the same.
fn difference(before: &Value, after: &Value) -> Option<Value> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            let mut patch = Map::new();
            for (key, value) in after {
                let changed = match before.get(key) {
                    Some(known) => difference(known, value),
                    None => Some(value.clone()),
                };
                patch.extend(changed.map(|changed| (key.clone(), changed)));
            }
            let gone = before.keys().filter(|key| !after.contains_key(*key));
            patch.extend(gone.map(|key| (key.clone(), Value::Null)));
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ => (before != after).then(|| after.clone()),
    }
}

/// Does the actions in their order; pods are created, and deleted, several at once.
pub async fn carry_out(hub: &Hub, job: &TrainJob, actions: Vec<Action>) -> Result<(), ApplyError> {
    let mut creations = Vec::new();
    let mut deletions = Vec::new();
    let mut later = Vec::new();
    for action in actions {
        match action {
            Action::EnsureClaim(claim) => {
                ensure(hub, job, "claim", claim.as_ref()).await?;
            }
            Action::EnsureSecret { .. } => {
                // Two random identifiers: 244 bits that nobody can guess.
                let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
                let secret: Secret = children::secret(job, token);
                ensure(hub, job, "secret", &secret).await?;
            }
            Action::EnsureService(service) => ensure_service(hub, job, &service).await?,
            Action::CreatePod(pod) => creations.push(pod),
            Action::DeletePod { name, uid } => deletions.push((name, uid)),
            action @ (Action::DeleteJob { .. } | Action::Tell(_)) => later.push(action),
        }
    }
    let creations = stream::iter(creations.into_iter().map(|pod| create_pod(hub, job, pod)));
    creations
        .buffer_unordered(POD_WRITES_MAX)
        .try_collect::<()>()
        .await?;
    let deletions = deletions
        .into_iter()
        .map(|(name, uid)| delete_pod(hub, job, name, uid));
    stream::iter(deletions)
        .buffer_unordered(POD_WRITES_MAX)
        .try_collect::<()>()
        .await?;
    for action in later {
        match action {
            Action::Tell(telling) => tell(hub, job, telling).await,
            Action::DeleteJob { uid } => delete_job(hub, job, uid).await?,
            _ => {}
        }
    }
    Ok(())
}

async fn create_pod(hub: &Hub, job: &TrainJob, pod: Box<Pod>) -> Result<(), ApplyError> {
    let pod = ensure(hub, job, "pod", pod.as_ref()).await?;
    hub.wrote(pod);
    Ok(())
}

/// Creates a child, or finds the one that an earlier turn created.
async fn ensure<K>(hub: &Hub, job: &TrainJob, kind: &str, child: &K) -> Result<K, ApplyError>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(hub.client.clone(), job.namespace());
    let name = child.name_any();
    match api.create(&PostParams::default(), child).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) if is_already_there(&status) => {
            let found = api
                .get(&name)
                .await
                .map_err(|error| refused(&format!("read {kind} {name}"), error))?;
            let owners = found.owner_references();
            // One that nobody owns was put there by someone on purpose; a pod never is.
            let unowned = owners.is_empty() && kind != "pod";
            if unowned
                || owners
                    .iter()
                    .any(|owner| Some(&owner.uid) == job.metadata.uid.as_ref())
            {
                Ok(found)
            } else {
                let message = format!(
                    "{kind} {name} is there already and belongs to another job; it must go first"
                );
                Err(ApplyError::Refused { message })
            }
        }
        Err(error) => Err(refused(&format!("create {kind} {name}"), error)),
    }
}

fn is_already_there(status: &Status) -> bool {
    status.code == 409 && status.reason == "AlreadyExists"
}

async fn ensure_service(hub: &Hub, job: &TrainJob, service: &Service) -> Result<(), ApplyError> {
    let found = ensure(hub, job, "service", service).await?;
    let selector = |service: &Service| service.spec.as_ref().and_then(|spec| spec.selector.clone());
    if selector(&found) == selector(service) {
        return Ok(());
    }
    let api: Api<Service> = Api::namespaced(hub.client.clone(), job.namespace());
    let name = service.name_any();
    let patch = Patch::Merge(json!({"spec": {"selector": selector(service)}}));
    let patched = api.patch(&name, &PatchParams::default(), &patch).await;
    patched
        .map(drop)
        .map_err(|error| refused(&format!("change service {name}"), error))
}

async fn delete_pod(
    hub: &Hub,
    job: &TrainJob,
    name: String,
    uid: String,
) -> Result<(), ApplyError> {
    let api: Api<Pod> = Api::namespaced(hub.client.clone(), job.namespace());
    let deletion = DeleteParams::default().preconditions(Preconditions {
        uid: Some(uid.clone()),
        resource_version: None,
    });
    match api.delete(&name, &deletion).await {
        Ok(either) => {
            if let Some(pod) = either.left() {
                hub.wrote(pod);
            }
            Ok(())
        }
        // It is gone, and perhaps another has its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            hub.forget::<Pod>(&Key::new(job.namespace(), &name), &uid);
            Ok(())
        }
        Err(error) => Err(refused(&format!("delete pod {name}"), error)),
    }
}

async fn delete_job(hub: &Hub, job: &TrainJob, uid: String) -> Result<(), ApplyError> {
    let api: Api<TrainJob> = Api::namespaced(hub.client.clone(), job.namespace());
    let deletion = DeleteParams::background().preconditions(Preconditions {
        uid: Some(uid),
        resource_version: None,
    });
    match api.delete(job.name(), &deletion).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(refused("delete the job", error)),
    }
}

/// An Event that cannot be written is told in the log and not tried again: the job's status says the same.
async fn tell(hub: &Hub, job: &TrainJob, telling: Telling) {
    let event = Event {
        type_: if telling.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: telling.reason,
        note: Some(telling.message.chars().take(NOTE_LENGTH_MAX).collect()),
        action: "Reconcile".to_owned(),
        secondary: first_pod(job),
    };
    let regarding = ObjectReference {
        // The same thing told of another version is still the same thing, and counted as such.
        resource_version: None,
        ..job.object_ref(&())
    };
    if let Err(error) = hub.recorder.publish(&event, &regarding).await {
        tracing::warn!(
            job = job.name(),
            error = &error as &dyn std::error::Error,
            "an Event was not written"
        );
    }
}

/// Events of one reason are counted as one, with the words of the first. The same step of another attempt is another event.
fn first_pod(job: &TrainJob) -> Option<ObjectReference> {
    let attempt = job.status.as_ref()?.attempt;
    (attempt > 0).then(|| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(job.namespace().to_owned()),
        name: Some(pod_name(job.name(), attempt, 0)),
        ..ObjectReference::default()
    })
}

/// The server's word goes to the job's author; silence goes to the log.
fn refused(what: &str, error: kube::Error) -> ApplyError {
    match error {
        kube::Error::Api(status) => ApplyError::Refused {
            message: format!("could not {what}: {}", status.message),
        },
        source => ApplyError::Failed {
            what: what.to_owned(),
            source,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_written() {
        let before = json!({"phase": "Queued", "attempt": 0, "reason": "A", "attempts": [{"number": 1}], "nested": {"a": 1, "b": 2}});
        let after = json!({"phase": "Running", "attempt": 0, "attempts": [{"number": 1}, {"number": 2}], "nested": {"a": 1, "b": 3}});
        assert_eq!(difference(&before, &before), None);
        let expected = json!({"phase": "Running", "reason": null, "attempts": [{"number": 1}, {"number": 2}], "nested": {"b": 3}});
        assert_eq!(difference(&before, &after), Some(expected));
    }
}
