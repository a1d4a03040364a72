//! What is used, by whom, against which limit: the picture behind `stoke top`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use stoke_api::names::{GPU_MILLI_RESOURCE, GPU_RESOURCE, GPU_SIMULATED_LABEL, USAGE_ANNOTATION};
use stoke_api::{Bytes, CpuMilli, GpuAmount, TrainJob};

use super::table::Grid;
use crate::clock;
use crate::jobs::{Life, life_of, worker_container};

/// What a pod uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory: Option<u64>,
    pub limit: Option<u64>,
    pub cpu_milli: Option<u64>,
}

/// A pod's usage as the node wrote it on the pod; the limit is known from the pod itself where nothing was measured yet.
pub fn usage(pod: &Pod) -> Usage {
    let written = pod
        .annotations()
        .get(USAGE_ANNOTATION)
        .and_then(|text| serde_json::from_str::<stoke_node::usage::Usage>(text).ok());
    let limit = written.as_ref().and_then(|usage| usage.limit_bytes);
    Usage {
        memory: written.as_ref().map(|usage| usage.memory_bytes),
        limit: limit.or_else(|| limit_of(pod, "memory").map(|bytes: Bytes| bytes.0)),
        cpu_milli: written.map(|usage| usage.cpu_millicores),
    }
}

fn limit_of<T: for<'a> TryFrom<&'a k8s_openapi::apimachinery::pkg::api::resource::Quantity>>(
    pod: &Pod,
    resource: &str,
) -> Option<T> {
    let name = worker_container(pod)?;
    let container = pod
        .spec
        .as_ref()?
        .containers
        .iter()
        .find(|container| container.name == name)?;
    let quantity = container
        .resources
        .as_ref()?
        .limits
        .as_ref()?
        .get(resource)?;
    T::try_from(quantity).ok()
}

/// All of it at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Picture {
    pub nodes: Vec<NodeRow>,
    pub jobs: Vec<JobRow>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeRow {
    pub name: String,
    pub memory_used: u64,
    pub memory: u64,
    pub cpu_used_milli: u64,
    pub cpu_milli: u64,
    pub gpus_given: GpuAmount,
    pub gpus: u64,
    pub are_gpus_simulated: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobRow {
    pub namespace: String,
    pub name: String,
    pub phase: String,
    pub why: String,
    pub ready: String,
    pub since: String,
    pub workers: Vec<WorkerRow>,
    pub gpus: GpuAmount,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerRow {
    pub rank: u32,
    pub usage: Usage,
}

impl WorkerRow {
    /// Memory against its limit, from 0 to 1.
    pub fn fullness(&self) -> Option<f64> {
        let limit = self.usage.limit.filter(|limit| *limit > 0)?;
        Some(self.usage.memory? as f64 / limit as f64)
    }
}

impl JobRow {
    /// The worker nearest to its limit: the one that will be killed first.
    pub fn fullest(&self) -> Option<&WorkerRow> {
        self.workers.iter().max_by(|a, b| {
            a.fullness()
                .unwrap_or(0.0)
                .total_cmp(&b.fullness().unwrap_or(0.0))
        })
    }

    pub fn cpu_milli(&self) -> Option<u64> {
        self.workers
            .iter()
            .filter_map(|worker| worker.usage.cpu_milli)
            .reduce(|a, b| a + b)
    }
}

pub fn picture(jobs: &[TrainJob], pods: &[Pod], nodes: &[Node], now: Timestamp) -> Picture {
    let alive: Vec<&Pod> = pods
        .iter()
        .filter(|pod| life_of(pod) == Life::Running)
        .collect();
    let mut rows: Vec<JobRow> = jobs.iter().map(|job| job_row(job, &alive, now)).collect();
    // What moves stands first, then what waits, then what is over; within that by name.
    rows.sort_by_key(|row| (order(&row.phase), row.namespace.clone(), row.name.clone()));
    Picture {
        nodes: nodes.iter().map(|node| node_row(node, &alive)).collect(),
        jobs: rows,
    }
}

fn order(phase: &str) -> u8 {
    match phase {
        "Running" => 0,
        "Starting" | "Restarting" => 1,
        "Queued" => 2,
        "Suspended" => 3,
        "Failed" => 4,
        _ => 5,
    }
}

fn job_row(job: &TrainJob, pods: &[&Pod], now: Timestamp) -> JobRow {
    let status = job.status.clone().unwrap_or_default();
    let mine: Vec<&&Pod> = pods
        .iter()
        .filter(|pod| {
            pod.labels()
                .get(stoke_api::names::JOB_LABEL)
                .map(String::as_str)
                == Some(job.name())
                && pod.namespace().as_deref() == Some(job.namespace())
        })
        .collect();
    let mut workers: Vec<WorkerRow> = mine
        .iter()
        .map(|pod| WorkerRow {
            rank: crate::jobs::rank_of(pod).unwrap_or_default(),
            usage: usage(pod),
        })
        .collect();
    workers.sort_by_key(|worker| worker.rank);
    JobRow {
        namespace: job.namespace().to_owned(),
        name: job.name().to_owned(),
        phase: format!("{:?}", status.phase),
        why: status.reason,
        ready: status.ready,
        since: status
            .phase_since
            .map(|time| clock::ago(time.0, now))
            .unwrap_or_default(),
        workers,
        gpus: gpus_of(mine.iter().map(|pod| **pod)),
    }
}

/// What pods were given of GPUs, whole ones and parts.
fn gpus_of<'a>(pods: impl Iterator<Item = &'a Pod>) -> GpuAmount {
    let limit = |pod, name| limit_of::<Bytes>(pod, name).map_or(0, |count| count.0);
    let milli = pods.map(|pod| {
        let whole = limit(pod, GPU_RESOURCE).saturating_mul(1000);
        whole.saturating_add(limit(pod, GPU_MILLI_RESOURCE))
    });
    GpuAmount {
        milli: milli.fold(0, u64::saturating_add),
    }
}

pub fn given_text(gpus: GpuAmount) -> String {
    match gpus.milli {
        0 => "-".to_owned(),
        _ => gpus.to_string(),
    }
}

pub fn is_on(pod: &Pod, node: &Node) -> bool {
    let place = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    place.is_some() && place == node.metadata.name.as_deref()
}

fn node_row(node: &Node, pods: &[&Pod]) -> NodeRow {
    let name = node.name_any();
    let here: Vec<&&Pod> = pods.iter().filter(|pod| is_on(pod, node)).collect();
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let amount = |resource: &str| {
        let quantity = allocatable?.get(resource)?;
        Bytes::try_from(quantity).ok().map(|amount| amount.0)
    };
    let cpu = allocatable
        .and_then(|all| all.get("cpu"))
        .and_then(|cpu| CpuMilli::try_from(cpu).ok());
    NodeRow {
        memory_used: here.iter().filter_map(|pod| usage(pod).memory).sum(),
        memory: amount("memory").unwrap_or_default(),
        cpu_used_milli: here.iter().filter_map(|pod| usage(pod).cpu_milli).sum(),
        cpu_milli: cpu.unwrap_or_default().0,
        gpus_given: gpus_of(here.iter().map(|pod| **pod)),
        gpus: amount(GPU_RESOURCE).unwrap_or_default(),
        are_gpus_simulated: node
            .labels()
            .get(GPU_SIMULATED_LABEL)
            .is_some_and(|value| value == "true"),
        name,
    }
}

pub fn memory_text(used: Option<u64>, limit: Option<u64>) -> String {
    match (used, limit) {
        (Some(used), Some(limit)) => format!("{} / {}", Bytes(used).human(), Bytes(limit).human()),
        (Some(used), None) => Bytes(used).human(),
        (None, Some(limit)) => format!("- / {}", Bytes(limit).human()),
        (None, None) => "-".to_owned(),
    }
}

/// In CPUs, as people count them: `3.5`.
pub fn cpu_text(milli: Option<u64>) -> String {
    milli.map_or_else(
        || "-".to_owned(),
        |milli| format!("{}.{}", milli / 1000, milli % 1000 / 100),
    )
}

pub fn gpu_text(row: &NodeRow) -> String {
    if row.gpus == 0 {
        return "-".to_owned();
    }
    let simulated = if row.are_gpus_simulated {
        " (simulated)"
    } else {
        ""
    };
    format!("{} / {}{simulated}", row.gpus_given, row.gpus)
}

/// The picture without a terminal.
pub fn plain(picture: &Picture, with_namespace: bool) -> String {
    let mut nodes = Grid::with_head(&["NODE", "MEMORY", "CPU", "GPUS"]);
    for row in &picture.nodes {
        nodes.push(vec![
            row.name.clone(),
            memory_text(Some(row.memory_used), Some(row.memory)),
            format!(
                "{} / {}",
                cpu_text(Some(row.cpu_used_milli)),
                cpu_text(Some(row.cpu_milli))
            ),
            gpu_text(row),
        ]);
    }
    let mut head = vec![
        "JOB",
        "PHASE",
        "WORKERS",
        "FULLEST WORKER",
        "OF LIMIT",
        "CPU",
        "GPUS",
        "SINCE",
    ];
    if with_namespace {
        head.insert(0, "NAMESPACE");
    }
    let mut jobs = Grid::with_head(&head);
    for row in &picture.jobs {
        let fullest = row.fullest();
        let usage = fullest.map(|worker| worker.usage).unwrap_or_default();
        let percent = fullest.and_then(WorkerRow::fullness).map(percent);
        let mut cells = vec![
            row.name.clone(),
            row.phase.clone(),
            row.ready.clone(),
            memory_text(usage.memory, usage.limit),
            percent.unwrap_or_else(|| "-".to_owned()),
            cpu_text(row.cpu_milli()),
            given_text(row.gpus),
            row.since.clone(),
        ];
        if with_namespace {
            cells.insert(0, row.namespace.clone());
        }
        jobs.push(cells);
    }
    match (picture.nodes.is_empty(), jobs.is_empty()) {
        (true, true) => String::new(),
        (false, true) => nodes.text(),
        (true, false) => jobs.text(),
        (false, false) => format!("{}\n{}", nodes.text(), jobs.text()),
    }
}

pub fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixtures;

    #[test]
    fn the_fullest_worker_speaks_for_its_job() {
        let mut other = fixtures::queued();
        other.metadata.name = Some("bert".to_owned());
        let picture = picture(
            &[other, fixtures::running()],
            &[fixtures::pod(2, 0, 2 << 30), fixtures::pod(2, 1, 7 << 30)],
            &[fixtures::node()],
            fixtures::now(),
        );
        assert_eq!(picture.jobs[0].fullest().unwrap().rank, 1);
        insta::assert_snapshot!(anstream::adapter::strip_str(&plain(&picture, false)).to_string(), @"
        NODE     MEMORY             CPU          GPUS
        node-a   9.0 GiB / 64 GiB   7.0 / 16.0   8 / 8 (simulated)

        JOB        PHASE     WORKERS   FULLEST WORKER      OF LIMIT   CPU   GPUS   SINCE
        resnet50   Running   2/2       7.0 GiB / 8.0 GiB   88%        7.0   8      3m
        bert       Queued    0/2       -                   -          -     -      9m59s
        ");
    }

    #[test]
    fn a_pod_that_was_not_measured_yet_has_its_limit_only() {
        let mut pod = fixtures::pod(1, 0, 0);
        pod.metadata.annotations = None;
        let usage = usage(&pod);
        assert_eq!(memory_text(usage.memory, usage.limit), "- / 8.0 GiB");
        pod.metadata.annotations =
            Some([(USAGE_ANNOTATION.to_owned(), "{broken".to_owned())].into());
        assert_eq!(super::usage(&pod), usage, "nonsense is no measurement");
    }
}
