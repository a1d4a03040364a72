//! Pods as the controllers see them: what is read of them, and nothing else.
//!
//! A pod of the Kubernetes API takes about ten kilobytes in memory, most of it room for fields that are empty, and there are more pods than
//! anything else. Fields have the names and shapes that they have there.

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use serde_json::Value;
use stoke_api::contract::checkpoints::Saved;
use stoke_api::dataset::Staging;
use stoke_api::digest::{ContainerDigest, PodDigest};
use stoke_api::names::{
    ATTEMPT_LABEL, CHECKPOINT_REQUEST_ANNOTATION, GPU_DEVICES_ANNOTATION, IDLE_ANNOTATION,
    JOB_LABEL, LAST_CHECKPOINT_ANNOTATION, MEMORY_DIGEST_ANNOTATION, MEMORY_RISK_ANNOTATION,
    RANK_LABEL, SAVED_ANNOTATION, STAGING_ANNOTATION, STAGING_MANAGER, USAGE_ANNOTATION,
};
use stoke_api::risk::MemoryRisk;
use stoke_sched::Resources;

use crate::cluster;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    pub name: Box<str>,
    pub namespace: Box<str>,
    pub uid: Option<Box<str>>,
    pub resource_version: Option<u64>,
    /// The owners' uids.
    pub owners: Box<[Box<str>]>,
    pub deletion_timestamp: Option<Time>,
    pub deletion_grace_period_seconds: Option<i64>,
    /// What our own labels say.
    pub job: Option<Box<str>>,
    pub attempt: Option<u32>,
    pub rank: Option<u32>,
    /// What its worker used, as its node says; with no samples where that is only the latest.
    pub digest: Option<Box<ContainerDigest>>,
    /// What the kernel said of its killed processes, as its node says.
    pub kernel: Box<[Box<str>]>,
    /// Its worker may soon need more memory than it may have.
    pub risk: Option<Box<MemoryRisk>>,
    /// The latest that was written to it about a checkpoint.
    pub checkpoint_request: Option<Box<str>>,
    /// The GPUs it was given, by index, where it is told which.
    pub devices: Option<Box<[u32]>>,
    pub last_checkpoint: Option<Timestamp>,
    /// Which that is, where its node knows.
    pub saved: Option<Box<Saved>>,
    /// How far its node is with its data, where the kubelet does not say it.
    pub staging: Option<Box<Told>>,
}

/// What a node says of a pod's data, and when it last did.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub staging: Staging,
    pub at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodSpec {
    pub node_name: Option<Box<str>>,
    /// The one node that its affinity leaves.
    pub pinned_to: Option<Box<str>>,
    pub scheduler_name: Option<Box<str>>,
    /// The names of its containers; ours is the first.
    pub containers: Box<[Box<str>]>,
    /// What it takes of its node.
    pub requests: Resources,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodStatus {
    pub phase: Option<Box<str>>,
    pub reason: Option<Box<str>>,
    pub message: Option<Box<str>>,
    /// That it cannot be scheduled, that it is being disrupted, and that it does nothing. Others are not kept.
    pub conditions: Box<[PodCondition]>,
    pub init_container_statuses: Box<[ContainerStatus]>,
    pub container_statuses: Box<[ContainerStatus]>,
    /// Its volumes and its network are there: what it still waits for are images and containers.
    pub has_sandbox: bool,
    /// Since when its status is what it is, as far as is known.
    pub since: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodCondition {
    pub type_: Box<str>,
    pub status: Box<str>,
    pub reason: Option<Box<str>>,
    pub message: Option<Box<str>>,
    pub last_transition_time: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ContainerStatus {
    pub name: Box<str>,
    pub state: ContainerState,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub enum ContainerState {
    #[default]
    Unknown,
    Waiting(Box<Waiting>),
    Running(Option<Time>),
    Terminated(Box<Terminated>),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Waiting {
    pub reason: Option<Box<str>>,
    pub message: Option<Box<str>>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Terminated {
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub reason: Option<Box<str>>,
    pub message: Option<Box<str>>,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
}

/// Whoever may write annotations may have written more.
const KERNEL_LINES_MAX: usize = 8;

/// What Kubernetes writes where a pod names no scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

impl Pod {
    pub fn is_finished(&self) -> bool {
        matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// The node a pod is on, or is meant for.
    pub fn node(&self) -> Option<&str> {
        let bound = self.spec.node_name.as_deref();
        bound.or(self.spec.pinned_to.as_deref())
    }

    /// It waits for us to give it a node. A pod that names another scheduler waits for that one.
    pub fn is_unbound(&self) -> bool {
        let scheduler = self.spec.scheduler_name.as_deref();
        self.spec.node_name.is_none()
            && scheduler.is_none_or(|name| name == DEFAULT_SCHEDULER)
            && self.metadata.deletion_timestamp.is_none()
            && !self.is_finished()
    }

    /// It starts or runs as it should: nothing about it has ended or is about to.
    pub fn is_on_its_way(&self) -> bool {
        let ended =
            |status: &ContainerStatus| matches!(status.state, ContainerState::Terminated(_));
        !self.is_finished()
            && self.metadata.deletion_timestamp.is_none()
            && self.status.conditions.is_empty()
            && !self.status.container_statuses.iter().any(ended)
    }

    pub fn is_running(&self) -> bool {
        self.status.phase.as_deref() == Some("Running")
    }
}

impl From<core::Pod> for Pod {
    fn from(pod: core::Pod) -> Self {
        let requests = cluster::held(&pod);
        let spec = pod.spec.unwrap_or_default();
        let annotations = pod.metadata.annotations.as_ref();
        let worker = spec.containers.first().map(|worker| worker.name.as_str());
        let whole =
            annotations.and_then(|all| PodDigest::parse(all.get(MEMORY_DIGEST_ANNOTATION)?));
        let mut whole = whole.unwrap_or_default();
        let digest = annotations.zip(worker).and_then(|(all, worker)| {
            let ended = whole.containers.remove(worker);
            ended.or_else(|| latest(all.get(USAGE_ANNOTATION)?, worker))
        });
        let idle = annotations.and_then(|all| match all.get(IDLE_ANNOTATION) {
            Some(told) => Some(does_nothing(told)),
            None => idle(all.get(USAGE_ANNOTATION)?),
        });
        let kernel = whole.kernel.into_iter().take(KERNEL_LINES_MAX);
        let status = pod.status.unwrap_or_default();
        let conditions = || status.conditions.iter().flatten();
        let writes = pod.metadata.managed_fields.iter().flatten();
        let of_status = writes.filter(|write| write.subresource.as_deref() == Some("status"));
        let since = of_status.filter_map(|write| write.time.clone()).max();
        let has_sandbox =
            conditions().any(|c| c.type_ == "PodReadyToStartContainers" && c.status == "True");
        Self {
            metadata: Metadata {
                digest: digest.map(Box::new),
                kernel: kernel.map(boxed).collect(),
                ..pod.metadata.into()
            },
            spec: PodSpec {
                pinned_to: cluster::pinned_to(&spec).map(Into::into),
                requests,
                node_name: spec.node_name.filter(|name| !name.is_empty()).map(boxed),
                scheduler_name: spec.scheduler_name.map(boxed),
                containers: spec.containers.into_iter().map(|c| boxed(c.name)).collect(),
            },
            status: PodStatus {
                phase: status.phase.map(boxed),
                reason: status.reason.map(boxed),
                message: status.message.map(boxed),
                conditions: status
                    .conditions
                    .into_iter()
                    .flatten()
                    .filter(matters)
                    .map(Into::into)
                    .chain(idle)
                    .collect(),
                init_container_statuses: statuses(status.init_container_statuses),
                container_statuses: statuses(status.container_statuses),
                has_sandbox,
                since,
            },
        }
    }
}

impl From<ObjectMeta> for Metadata {
    fn from(metadata: ObjectMeta) -> Self {
        let labels = metadata.labels.unwrap_or_default();
        let number = |key: &str| labels.get(key).and_then(|value| value.parse().ok());
        let annotations = metadata.annotations.unwrap_or_default();
        let risk = annotations.get(MEMORY_RISK_ANNOTATION);
        let request = annotations.get(CHECKPOINT_REQUEST_ANNOTATION);
        let devices = annotations.get(GPU_DEVICES_ANNOTATION);
        let checkpoint = annotations.get(LAST_CHECKPOINT_ANNOTATION);
        let saved = annotations.get(SAVED_ANNOTATION);
        let staging = annotations.get(STAGING_ANNOTATION);
        let staging = staging
            .and_then(|text| Staging::parse(text))
            .map(|staging| {
                let writes = metadata.managed_fields.iter().flatten();
                let of_node = writes.filter(|it| it.manager.as_deref() == Some(STAGING_MANAGER));
                let at = of_node.filter_map(|it| Some(it.time.as_ref()?.0)).max();
                Box::new(Told { staging, at })
            });
        let owners = metadata.owner_references.into_iter().flatten();
        Self {
            name: boxed(metadata.name.unwrap_or_default()),
            namespace: boxed(metadata.namespace.unwrap_or_default()),
            uid: metadata.uid.map(boxed),
            resource_version: metadata.resource_version.and_then(|v| v.parse().ok()),
            owners: owners.map(|owner| boxed(owner.uid)).collect(),
            deletion_timestamp: metadata.deletion_timestamp,
            deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
            job: labels.get(JOB_LABEL).map(|job| job.as_str().into()),
            attempt: number(ATTEMPT_LABEL),
            rank: number(RANK_LABEL),
            devices: devices.and_then(|text| indices(text)),
            last_checkpoint: checkpoint.and_then(|text| text.parse().ok()),
            saved: saved.and_then(|text| Saved::parse(text)).map(Box::new),
            digest: None,
            kernel: Box::default(),
            risk: risk.and_then(|text| MemoryRisk::parse(text)).map(Box::new),
            checkpoint_request: request.map(|text| text.as_str().into()),
            staging,
        }
    }
}

/// What a node last said of a worker that it has not seen to its end.
fn latest(usage: &str, worker: &str) -> Option<ContainerDigest> {
    let usage: Value = serde_json::from_str(usage).ok()?;
    let peak = usage["containers"][worker]["recentPeakBytes"].as_u64()?;
    Some(ContainerDigest {
        peak_bytes: peak,
        ..ContainerDigest::default()
    })
}

/// That it does nothing, as its node says.
pub const IDLE: &str = "Idle";

/// Few ever are, so it takes no room of its own.
fn idle(usage: &str) -> Option<PodCondition> {
    // Nearly all that is said is of others.
    let usage: Value = serde_json::from_str(usage.contains("\"idle\"").then_some(usage)?).ok()?;
    Some(does_nothing(usage["idle"].as_str()?))
}

fn does_nothing(told: &str) -> PodCondition {
    PodCondition {
        type_: IDLE.into(),
        status: "True".into(),
        message: Some(told.into()),
        ..PodCondition::default()
    }
}

/// `0,1`. What is no list of indices tells nothing.
pub fn indices(text: &str) -> Option<Box<[u32]>> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts.map(|part| part.parse().ok()).collect()
}

fn matters(condition: &core::PodCondition) -> bool {
    matches!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("PodScheduled", "False") | ("DisruptionTarget", "True")
    )
}

impl From<core::PodCondition> for PodCondition {
    fn from(condition: core::PodCondition) -> Self {
        Self {
            type_: boxed(condition.type_),
            status: boxed(condition.status),
            reason: condition.reason.map(boxed),
            message: condition.message.map(boxed),
            last_transition_time: condition.last_transition_time,
        }
    }
}

fn statuses(statuses: Option<Vec<core::ContainerStatus>>) -> Box<[ContainerStatus]> {
    let seen = |status: core::ContainerStatus| ContainerStatus {
        name: boxed(status.name),
        state: status.state.map(Into::into).unwrap_or_default(),
    };
    statuses.into_iter().flatten().map(seen).collect()
}

impl From<core::ContainerState> for ContainerState {
    fn from(state: core::ContainerState) -> Self {
        if let Some(ended) = state.terminated {
            Self::Terminated(Box::new(Terminated {
                exit_code: ended.exit_code,
                signal: ended.signal,
                reason: ended.reason.map(boxed),
                message: ended.message.map(boxed),
                started_at: ended.started_at,
                finished_at: ended.finished_at,
            }))
        } else if let Some(running) = state.running {
            Self::Running(running.started_at)
        } else if let Some(waiting) = state.waiting {
            Self::Waiting(Box::new(Waiting {
                reason: waiting.reason.map(boxed),
                message: waiting.message.map(boxed),
            }))
        } else {
            Self::Unknown
        }
    }
}

fn boxed(text: String) -> Box<str> {
    text.into_boxed_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn seen(pod: Value) -> Pod {
        serde_json::from_value::<core::Pod>(pod)
            .expect("a pod")
            .into()
    }

    #[test]
    fn only_pods_that_wait_for_us_are_bound() {
        for (spec, waits) in [
            (json!({"containers": []}), true),
            (json!({"containers": [], "nodeName": ""}), true),
            (
                json!({"containers": [], "schedulerName": "default-scheduler"}),
                true,
            ),
            (json!({"containers": [], "schedulerName": "another"}), false),
            (json!({"containers": [], "nodeName": "n"}), false),
        ] {
            let pod = seen(json!({"metadata": {"name": "a"}, "spec": spec}));
            assert_eq!(pod.is_unbound(), waits, "{spec}");
        }
    }

    #[test]
    fn what_is_decided_by_is_kept() {
        let pod = seen(json!({
            "metadata": {"name": "j-2-3", "namespace": "ns", "uid": "u", "resourceVersion": "17",
                "labels": {"stokehold.dev/job": "j", "stokehold.dev/attempt": "2", "stokehold.dev/rank": "3"},
                "annotations": {"stokehold.dev/gpu-devices": "0, 2", "stokehold.dev/last-checkpoint": "2027-01-15T08:00:00Z"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "j", "uid": "owner"}],
                "managedFields": [
                    {"manager": "kubelet", "subresource": "status", "time": "2026-01-01T00:00:07Z"},
                    {"manager": "agent", "time": "2026-01-01T00:00:09Z"},
                    {"manager": "scheduler", "subresource": "status", "time": "2026-01-01T00:00:01Z"}]},
            "spec": {"nodeName": "n", "containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "2"}}}, {"name": "log"}]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "True", "reason": "Drained"}],
                "containerStatuses": [
                    {"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
                    {"name": "log", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}},
                ],
            },
        }));
        let metadata = &pod.metadata;
        assert_eq!(
            (metadata.job.as_deref(), metadata.attempt, metadata.rank),
            (Some("j"), Some(2), Some(3))
        );
        assert_eq!(metadata.devices.as_deref(), Some([0, 2].as_slice()));
        assert_eq!(
            metadata.last_checkpoint.map(Timestamp::as_second),
            Some(1_800_000_000)
        );
        assert_eq!(metadata.owners.as_ref(), ["owner".into()]);
        assert_eq!(metadata.resource_version, Some(17));
        assert_eq!(pod.node(), Some("n"));
        assert_eq!(pod.spec.requests.gpus, 2);
        assert_eq!(pod.status.conditions.len(), 1);
        let since = pod.status.since.as_ref().map(|time| time.0.to_string());
        assert_eq!(since.as_deref(), Some("2026-01-01T00:00:07Z"));
        assert!(pod.is_running() && !pod.is_on_its_way() && !pod.is_finished());
        assert!(
            size_of::<Pod>() < 512,
            "there are tens of thousands of them: {}",
            size_of::<Pod>()
        );
    }
}
