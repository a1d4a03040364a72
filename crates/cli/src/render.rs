//! What is shown, as text made from values and a given moment.
//!
//! Invariant: nothing here asks a server, a clock or a terminal; colours are written always and taken away by the stream.

pub mod describe;
pub mod explain;
pub mod history;
pub mod memory;
pub mod object;
pub mod outlook;
pub mod queue;
pub mod table;
pub mod top;

use stoke_api::trainjob::{Attempt, Exit};

/// How a worker ended, in a few words: `rank 1 OOMKilled, exit code 137`.
pub fn exit(exit: &Exit) -> String {
    let reason = if exit.reason.is_empty() {
        "ended"
    } else {
        &exit.reason
    };
    match exit.exit_code {
        Some(code) => format!("rank {} {reason}, exit code {code}", exit.rank),
        None => format!("rank {} {reason}", exit.rank),
    }
}

/// How an attempt ended, as a sentence: the controller's own where it has one, which names rank and code itself.
pub fn ending(end: &Exit) -> String {
    if end.message.is_empty() {
        exit(end)
    } else {
        end.message.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// `node-a`, or `node-a x4, node-b x4`.
pub fn nodes(attempt: &Attempt) -> String {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for node in &attempt.nodes {
        match counted.iter_mut().find(|(name, _)| name == node) {
            Some((_, count)) => *count += 1,
            None => counted.push((node, 1)),
        }
    }
    let told: Vec<String> = match counted.as_slice() {
        [(only, _)] => vec![(*only).to_owned()],
        many => many
            .iter()
            .map(|(name, count)| format!("{name} x{count}"))
            .collect(),
    };
    told.join(", ")
}

/// `1 worker`, `2 workers`.
pub fn count(n: u32, one: &str, many: &str) -> String {
    if n == 1 {
        format!("1 {one}")
    } else {
        format!("{n} {many}")
    }
}

#[cfg(test)]
pub mod fixtures {
    //! Objects as the engine writes them, for snapshots.

    use k8s_openapi::api::core::v1::{Event, Node, Pod};
    use serde_json::json;
    use stoke_api::TrainJob;

    use crate::jobs::JobView;

    pub fn now() -> jiff::Timestamp {
        "2026-11-15T12:00:00Z".parse().unwrap()
    }

    pub fn job(status: serde_json::Value) -> TrainJob {
        serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {
                "name": "resnet50", "namespace": "default", "uid": "u1", "generation": 1,
                "creationTimestamp": "2026-11-15T11:50:00Z", "labels": {"team": "vision"}
            },
            "spec": {
                "framework": "torch", "workers": 2, "gpus": 4, "command": ["python", "train.py", "--epochs", "90", "--note", "two words"],
                "queue": "vision", "checkpoint": {"path": "/ckpt", "size": "20Gi", "every": "15m"}, "retries": 3, "maxDuration": "48h"
            },
            "status": status
        }))
        .unwrap()
    }

    pub fn running() -> TrainJob {
        job(json!({
            "phase": "Running", "phaseSince": "2026-11-15T11:57:00Z", "reason": "WorkersRunning",
            "message": "2 of 2 workers run", "ready": "2/2", "attempt": 2, "failures": 1,
            "startedAt": "2026-11-15T11:50:05Z", "ranSeconds": 300,
            "conditions": [
                {"type": "Admitted", "status": "True", "reason": "Placed", "message": "on node-a", "lastTransitionTime": "2026-11-15T11:50:01Z"},
                {"type": "Running", "status": "True", "reason": "WorkersRunning", "message": "2 of 2 workers run", "lastTransitionTime": "2026-11-15T11:57:00Z"}
            ],
            "attempts": [
                {"number": 1, "placedAt": "2026-11-15T11:50:01Z", "runningAt": "2026-11-15T11:50:05Z", "finishedAt": "2026-11-15T11:55:05Z",
                 "nodes": ["node-a", "node-a"], "port": 30001, "memory": {"request": "8Gi", "limit": "8Gi", "why": "a quarter of the node's memory"},
                 "outcome": "Failed", "exit": {"rank": 1, "exitCode": 137, "reason": "OOMKilled", "message": "it used 8Gi of its limit 8Gi"}},
                {"number": 2, "placedAt": "2026-11-15T11:56:58Z", "runningAt": "2026-11-15T11:57:00Z",
                 "nodes": ["node-a", "node-a"], "port": 30002, "memory": {"request": "8Gi", "limit": "8Gi", "why": "a quarter of the node's memory"}}
            ]
        }))
    }

    pub fn queued() -> TrainJob {
        job(json!({
            "phase": "Queued", "phaseSince": "2026-11-15T11:50:01Z", "reason": "InsufficientCapacity",
            "message": "needs 8 GPUs; node-a has 2 of 8 free", "ready": "0/2", "attempt": 0, "failures": 0, "ranSeconds": 0
        }))
    }

    pub fn failed() -> TrainJob {
        job(json!({
            "phase": "Failed", "phaseSince": "2026-11-15T11:55:06Z", "reason": "RetriesExhausted",
            "message": "1 attempt failed and no retry is left", "ready": "0/2", "attempt": 1, "failures": 1,
            "startedAt": "2026-11-15T11:50:05Z", "finishedAt": "2026-11-15T11:55:06Z", "ranSeconds": 300,
            "attempts": [
                {"number": 1, "placedAt": "2026-11-15T11:50:01Z", "runningAt": "2026-11-15T11:50:05Z", "finishedAt": "2026-11-15T11:55:05Z",
                 "nodes": ["node-a", "node-a"], "memory": {"request": "8Gi", "limit": "8Gi", "why": "as the job says"},
                 "outcome": "Failed", "exit": {"rank": 1, "exitCode": 137, "reason": "OOMKilled", "message": "it used 8Gi of its limit 8Gi"}}
            ]
        }))
    }

    pub fn pod(attempt: u32, rank: u32, memory: u64) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("resnet50-{attempt}-{rank}"), "namespace": "default", "uid": format!("p{attempt}{rank}"),
                "labels": {"stokehold.dev/job": "resnet50", "stokehold.dev/attempt": attempt.to_string(), "stokehold.dev/rank": rank.to_string()},
                "annotations": {
                    "stokehold.dev/usage": json!({"memoryBytes": memory, "limitBytes": 8_u64 << 30, "cpuMillicores": 3500, "containers": {}}).to_string(),
                    "stokehold.dev/gpu-devices": "0,1,2,3"
                }
            },
            "spec": {"nodeName": "node-a", "containers": [{"name": "worker", "resources": {"limits": {"memory": "8Gi", "nvidia.com/gpu": "4"}}}]},
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "worker", "ready": true, "restartCount": 0, "image": "host", "imageID": "",
                "state": {"running": {"startedAt": "2026-11-15T11:57:00Z"}}
            }]}
        }))
        .unwrap()
    }

    pub fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "node-a", "labels": {"nvidia.com/gpu.product": "simulated", "stokehold.dev/gpu-simulated": "true"}},
            "status": {
                "allocatable": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"},
                "capacity": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryLimitsEnforced", "status": "True", "reason": "CgroupV1"}]
            }
        }))
        .unwrap()
    }

    pub fn view(job: TrainJob) -> JobView {
        let event: Event = serde_json::from_value(json!({
            "metadata": {"name": "e1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "resnet50-1-1"},
            "type": "Warning", "reason": "OOMKilled", "message": "worker was killed at its memory limit of 8Gi",
            "lastTimestamp": "2026-11-15T11:55:05Z", "count": 1
        }))
        .unwrap();
        let is_running = job
            .status
            .as_ref()
            .is_some_and(|status| status.attempt == 2);
        JobView {
            job,
            pods: if is_running {
                vec![pod(2, 0, 6 << 30), pod(2, 1, 7_900 << 20)]
            } else {
                Vec::new()
            },
            events: vec![event],
        }
    }
}
