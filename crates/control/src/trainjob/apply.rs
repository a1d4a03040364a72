//! Carries out a plan. Only writes, and decides nothing but what "already there" means.
//!
//! Invariant: every write may be repeated. What we write is put into the mirrors at once.

use futures::StreamExt as _;
use futures::TryStreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::response::Status;
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use stoke_api::names::{
    ATTEMPT_LABEL, CHECKPOINT_REQUEST_ANNOTATION, JOB_LABEL, RANK_LABEL, pod_name,
};
use stoke_api::trainjob::TrainJobStatus;
use stoke_api::{JobProfile, TrainJob};
use uuid::Uuid;

use super::children;
use super::plan::{Action, Telling};
use super::refusal::{Cause, Refusal};
use crate::guard::is_fenced;
use crate::hub::Hub;
use crate::mirror::Key;

/// Pods written at once for one job.
const POD_WRITES_MAX: usize = 32;
/// What an Event's note may hold.
const NOTE_LENGTH_MAX: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("something was changed by someone else meanwhile")]
    Conflict,
    #[error("the job is no more")]
    Gone,
    /// The API server will not have it: the job's author is told.
    #[error("{0}")]
    Refused(Refusal),
    /// Another may lead by now.
    #[error("nothing may be written")]
    Fenced,
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
        // What is wrong with a status cannot be told in it.
        Err(source) => Err(failed("write the job's status", source)),
    }
}

/// The merge patch that makes `after` of `before`; none where they are the same.
pub fn difference(before: &Value, after: &Value) -> Option<Value> {
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
///
/// What is refused while the pods of `attempt` are being made stands in the way of all of them.
pub async fn carry_out(
    hub: &Hub,
    job: &TrainJob,
    attempt: u32,
    actions: Vec<Action>,
) -> Result<(), ApplyError> {
    let of_attempt = |error| match error {
        ApplyError::Refused(refusal) => ApplyError::Refused(refusal.of_attempt(attempt)),
        error => error,
    };
    let mut creations = Vec::new();
    let mut deletions = Vec::new();
    let mut requests = Vec::new();
    let mut later = Vec::new();
    for action in actions {
        match action {
            Action::EnsureClaim(claim) => {
                let ensured = ensure(hub, job, "claim", claim.as_ref()).await;
                ensured.map_err(of_attempt)?;
            }
            Action::EnsureSecret { .. } => {
                // Two random identifiers: 244 bits that nobody can guess.
                let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
                let created = create_secret(hub, job, &children::secret(job, token)).await;
                created.map_err(of_attempt)?;
            }
            Action::EnsurePolicy(policy) => {
                let ensured = ensure(hub, job, "network policy", policy.as_ref()).await;
                ensured.map_err(of_attempt)?;
            }
            Action::EnsureService(service) => {
                let ensured = ensure_service(hub, job, &service).await;
                ensured.map_err(of_attempt)?;
            }
            Action::CreatePod(pod) => creations.push(pod),
            Action::DeletePod { name, uid } => deletions.push((name, uid)),
            Action::AskToSave { name, uid, text } => requests.push((name, uid, text)),
            action @ (Action::DeleteJob { .. } | Action::Tell(_) | Action::Learn(_)) => {
                later.push(action);
            }
        }
    }
    let creations = stream::iter(creations.into_iter().map(|pod| create_pod(hub, job, pod)));
    creations
        .buffer_unordered(POD_WRITES_MAX)
        .try_collect::<()>()
        .await
        .map_err(of_attempt)?;
    let deletions = deletions
        .into_iter()
        .map(|(name, uid)| delete_pod(hub, job, name, uid));
    stream::iter(deletions)
        .buffer_unordered(POD_WRITES_MAX)
        .try_collect::<()>()
        .await?;
    let requests = requests
        .into_iter()
        .map(|(name, uid, text)| ask_to_save(hub, job, name, uid, text));
    stream::iter(requests)
        .buffer_unordered(POD_WRITES_MAX)
        .try_collect::<()>()
        .await?;
    // Events first: what follows may have to be done again, and they would not be told again.
    let (tellings, later): (Vec<_>, Vec<_>) = later
        .into_iter()
        .partition(|action| matches!(action, Action::Tell(_)));
    let is_last = later
        .iter()
        .any(|action| matches!(action, Action::DeleteJob { .. }));
    for action in tellings.into_iter().chain(later) {
        match action {
            Action::Learn(profile) => learn(hub, job, &profile, is_last).await?,
            Action::Tell(telling) => tell(hub, job, telling).await,
            Action::DeleteJob { uid } => delete_job(hub, job, uid).await?,
            _ => {}
        }
    }
    Ok(())
}

async fn create_pod(hub: &Hub, job: &TrainJob, pod: Box<Pod>) -> Result<(), ApplyError> {
    let found = ensure(hub, job, "pod", pod.as_ref()).await?;
    if !is_the_same(&pod, &found) {
        return Err(taken("pod", &pod.name_any()));
    }
    hub.wrote(found);
    Ok(())
}

/// Is what was found under a pod's name the pod that was to be made, the same worker of the same attempt? One that a leader before us, or
/// a request that we gave up on, has made is as good as our own. That the job owns it, and not one of its name, is known by now.
fn is_the_same(wanted: &Pod, found: &Pod) -> bool {
    let labels = [JOB_LABEL, ATTEMPT_LABEL, RANK_LABEL];
    labels
        .iter()
        .all(|label| wanted.labels().get(*label) == found.labels().get(*label))
}

fn taken(kind: &str, name: &str) -> ApplyError {
    ApplyError::Refused(Refusal {
        cause: Cause::Other,
        message: format!("{kind} {name} is there already and is not of this job; it must go first"),
        attempt: None,
    })
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
            let found = api.get_opt(&name).await;
            let found = found.map_err(|error| refused(&format!("read {kind} {name}"), error))?;
            // There and gone again: it is made in the next turn.
            let found = found.ok_or(ApplyError::Conflict)?;
            let owners = found.owner_references();
            // One that nobody owns was put there by someone on purpose; but a pod never is, and a Service of ours changes with the attempt.
            let unowned = owners.is_empty() && !matches!(kind, "pod" | "service");
            let ours = |owner: &OwnerReference| Some(&owner.uid) == job.metadata.uid.as_ref();
            if unowned || owners.iter().any(ours) {
                Ok(found)
            } else {
                Err(taken(kind, &name))
            }
        }
        Err(error) => Err(refused(&format!("create {kind} {name}"), error)),
    }
}

/// Nobody else has a secret of this name, so one that is there is ours: we need not be allowed to read secrets.
async fn create_secret(hub: &Hub, job: &TrainJob, secret: &Secret) -> Result<(), ApplyError> {
    let api: Api<Secret> = Api::namespaced(hub.client.clone(), job.namespace());
    match api.create(&PostParams::default(), secret).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if is_already_there(&status) => Ok(()),
        Err(error) => Err(refused(
            &format!("create secret {}", secret.name_any()),
            error,
        )),
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
    // On condition that it is as it was found: a request that is carried out late must not bring an old attempt's names back.
    let patch = Patch::Merge(json!({
        "metadata": {"resourceVersion": found.metadata.resource_version},
        "spec": {"selector": selector(service)},
    }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(&format!("change service {name}"), error)),
    }
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

/// The worker sees it in a file.
async fn ask_to_save(
    hub: &Hub,
    job: &TrainJob,
    name: String,
    uid: String,
    text: String,
) -> Result<(), ApplyError> {
    let api: Api<Pod> = Api::namespaced(hub.client.clone(), job.namespace());
    let patch = Patch::Merge(json!({
        "metadata": {"uid": uid, "annotations": {CHECKPOINT_REQUEST_ANNOTATION: text}},
    }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Ok(pod) => {
            hub.wrote(pod);
            Ok(())
        }
        // It is gone, and perhaps another has its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            hub.forget::<Pod>(&Key::new(job.namespace(), &name), &uid);
            Ok(())
        }
        Err(error) => Err(refused(&format!("ask pod {name} for a checkpoint"), error)),
    }
}

/// What is not learned costs the next run some memory, and this one nothing: whatever is wrong with it is told in the log, and looked at
/// again with the job's next turn. Where there is none, for the job goes now, it is kept until what will pass is over.
async fn learn(
    hub: &Hub,
    job: &TrainJob,
    profile: &JobProfile,
    is_last: bool,
) -> Result<(), ApplyError> {
    let api: Api<JobProfile> = Api::namespaced(hub.client.clone(), job.namespace());
    let name = profile.name_any();
    let written = if profile.metadata.resource_version.is_none() {
        api.create(&PostParams::default(), profile).await
    } else {
        let patch = Patch::Merge(profile);
        api.patch(&name, &PatchParams::default(), &patch).await
    };
    match written {
        Ok(profile) => {
            hub.wrote(profile);
            Ok(())
        }
        // Another run of its kind ended at the same time: what is known now comes with the watch.
        Err(kube::Error::Api(status)) if status.code == 409 => Err(ApplyError::Conflict),
        Err(error) if is_fenced(&error) => Err(ApplyError::Fenced),
        Err(error) if is_last && will_pass(&error) => Err(failed("note what the run used", error)),
        Err(error) => {
            tracing::warn!(
                job = job.name(),
                profile = name,
                error = &error as &dyn std::error::Error,
                "what the run used was not learned"
            );
            Ok(())
        }
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
        type_: EventType::Warning,
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

/// The server's word about what we asked for goes to the job's author; that it is in trouble itself, or that it does not know us, goes to
/// the log and is no matter of the job's.
fn refused(what: &str, error: kube::Error) -> ApplyError {
    match error {
        kube::Error::Api(status) if is_conflict(&status) => ApplyError::Conflict,
        kube::Error::Api(status) if is_about_the_request(&status) => {
            ApplyError::Refused(Refusal::new(what, &status))
        }
        source => failed(what, source),
    }
}

fn failed(what: &str, source: kube::Error) -> ApplyError {
    if is_fenced(&source) {
        return ApplyError::Fenced;
    }
    let what = what.to_owned();
    ApplyError::Failed { what, source }
}

/// Two wrote at once, and not only to what we asked for: pods that are created together contend for their namespace's quota.
fn is_conflict(status: &Status) -> bool {
    status.code == 409 && status.reason == "Conflict"
}

/// Is it worth trying again, as it is?
fn will_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => !is_about_the_request(status),
        // It was not reached, or did not answer.
        _ => true,
    }
}

fn is_about_the_request(status: &Status) -> bool {
    // A webhook that cannot be called is a 500, and does not go away by itself.
    let webhook = status.message.contains("failed calling webhook");
    webhook || (400..500).contains(&status.code) && !matches!(status.code, 401 | 408 | 429)
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

    #[test]
    fn only_what_the_server_says_of_the_request_itself_is_told_to_the_author() {
        let quota = r#"Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified; please apply your changes to the latest version and try again"#;
        let table = [
            (409, "Conflict", quota, "conflict"),
            (
                409,
                "AlreadyExists",
                r#"pods "j-1-0" already exists"#,
                "refused",
            ),
            (403, "Forbidden", "exceeded quota: gpus", "refused"),
            (422, "Invalid", r#"Pod "j-1-0" is invalid"#, "refused"),
            (404, "NotFound", r#"namespaces "team" not found"#, "refused"),
            (
                500,
                "InternalError",
                r#"failed calling webhook "w""#,
                "refused",
            ),
            (500, "InternalError", "etcdserver: no leader", "failed"),
            (401, "Unauthorized", "Unauthorized", "failed"),
            (429, "TooManyRequests", "too many requests", "failed"),
            (503, "ServiceUnavailable", "shutting down", "failed"),
        ];
        for (code, reason, message, expected) in table {
            let status = Status::failure(message, reason).with_code(code).boxed();
            let error = kube::Error::Api(status);
            assert_eq!(will_pass(&error), expected == "failed", "{code} {message}");
            let taken = match refused("create pod j-1-0", error) {
                ApplyError::Conflict => "conflict",
                ApplyError::Refused(_) => "refused",
                ApplyError::Failed { .. } => "failed",
                ApplyError::Gone | ApplyError::Fenced => "another",
            };
            assert_eq!(taken, expected, "{code} {message}");
        }
    }
}
