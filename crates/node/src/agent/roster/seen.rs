//! What a pod's object says of it.
//!
//! Pure.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;
use stoke_api::names::{ATTEMPT_LABEL, JOB_LABEL, MEMORY_RISK_ANNOTATION, RANK_LABEL};
use stoke_api::risk::MemoryRisk;

use super::Labels;
use crate::resources::{self, MEMORY};

/// On a pod that a kubelet read from a file: the uid under which it keeps it, which is not the API's.
pub(super) const STATIC_HASH: &str = "kubernetes.io/config.hash";
pub(super) const STATIC_MARK: &str = "kubernetes.io/config.mirror";

/// What the pod may count on; nothing once it has ended.
pub(super) fn promised(pod: &Pod) -> u64 {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return 0;
    }
    let amounts = resources::requests(pod).unwrap_or_default();
    amounts.get(MEMORY).copied().unwrap_or(0)
}

/// Why the kubelet does not give the pod the size it asks for: it never could, or not now.
pub(super) fn objection(pod: &Pod) -> Option<String> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let pending = conditions
        .find(|condition| condition.type_ == "PodResizePending" && condition.status == "True")?;
    let reason = pending.reason.clone().unwrap_or_default();
    let message = pending.message.clone().unwrap_or_default();
    Some(format!("{reason}: {message}"))
}

/// The limit that its worker is to have.
pub(super) fn asked_limit(pod: &Pod) -> Option<u64> {
    resources::memory_limit(pod.spec.as_ref()?.containers.first()?)
}

pub(super) fn annotated_risk(pod: &Pod) -> Option<MemoryRisk> {
    MemoryRisk::parse(pod.annotations().get(MEMORY_RISK_ANNOTATION)?)
}

/// How long a run that has ended was, and whether the kernel ended it for its memory, as the pod says.
pub(super) fn end_of(pod: &Pod, id: &str) -> (Option<Duration>, bool) {
    let states = statuses(pod).flat_map(|status| [&status.state, &status.last_state]);
    let mut ends = states.filter_map(|state| state.as_ref()?.terminated.as_ref());
    let own = |text: &Option<String>| text.as_deref().is_some_and(|text| text.ends_with(id));
    let Some(end) = ends.find(|end| own(&end.container_id)) else {
        return (None, false);
    };
    let ran = end.started_at.as_ref().zip(end.finished_at.as_ref());
    let ran = ran.and_then(|(from, to)| Duration::try_from(to.0.duration_since(from.0)).ok());
    (ran, end.reason.as_deref() == Some("OOMKilled"))
}

pub(super) fn labels(pod: &Pod) -> Labels {
    let label = |key: &str| {
        let labels = pod.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(key))
            .cloned()
            .unwrap_or_default()
    };
    Labels {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pod: pod.metadata.name.clone().unwrap_or_default(),
        job: label(JOB_LABEL),
        attempt: label(ATTEMPT_LABEL),
        rank: label(RANK_LABEL),
    }
}

pub(super) fn cgroup_uid(pod: &Pod, uid: &str) -> String {
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).cloned();
    let hash = annotation(STATIC_MARK).and_then(|_| annotation(STATIC_HASH));
    hash.unwrap_or_else(|| uid.to_owned())
}

pub(super) fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let all = status.map(|status| {
        [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ]
    });
    all.into_iter().flatten().flatten().flatten()
}

pub(super) fn is_running(status: &ContainerStatus) -> bool {
    status
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some())
}

/// `containerd://9f86d0...` without its scheme.
pub(super) fn bare_id(status: &ContainerStatus) -> Option<String> {
    let (_, id) = status.container_id.as_deref()?.split_once("://")?;
    (!id.is_empty()).then(|| id.to_owned())
}
