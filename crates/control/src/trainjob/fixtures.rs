//! Jobs, nodes and pods for tests, written as people write them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use stoke_api::names::{
    CHECKPOINT_REQUEST_ANNOTATION, JOB_LABEL, LAST_CHECKPOINT_ANNOTATION, MEMORY_DIGEST_ANNOTATION,
    MEMORY_RISK_ANNOTATION,
};
use stoke_api::{Dataset, JobProfile, Queue, TrainJob};
use stoke_memory::LogScan;

use super::admission;
use super::observe::{Aside, observe};
use super::plan::{Action, Plan};
use super::refusal::Refusal;
use super::tail::{Read, Tails, Wanted};
use crate::cluster;
use crate::config::Config;
use crate::forecast::Listed;
use crate::mirror::Key;
use crate::seen;
use crate::world::World;

pub fn config() -> Config {
    Config::machine(PathBuf::from("/usr/bin/stoke"))
}

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

/// A job named `j` with this spec.
pub fn job(spec: Value) -> TrainJob {
    serde_json::from_value(json!({
        "apiVersion": "stokehold.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "j", "namespace": "default", "uid": "uid-j", "generation": 1, "resourceVersion": "1"},
        "spec": spec,
    }))
    .expect("a job")
}

pub fn node(name: &str, gpus: u32) -> Node {
    let mut node = json!({
        "metadata": {"name": name, "labels": {}},
        "status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": format!("10.0.0.{}", name.len())}],
        },
    });
    if gpus > 0 {
        node["status"]["allocatable"]["nvidia.com/gpu"] = json!(gpus.to_string());
        node["metadata"]["labels"]["nvidia.com/gpu.product"] = json!("NVIDIA-A100-SXM4-80GB");
    }
    serde_json::from_value(node).expect("a node")
}

/// A world in memory: what an API server would hold, and the clock.
#[derive(Clone)]
pub struct Stage {
    pub jobs: BTreeMap<String, TrainJob>,
    pub pods: BTreeMap<String, Pod>,
    pub nodes: BTreeMap<String, Node>,
    pub queues: Vec<Queue>,
    pub datasets: Vec<Dataset>,
    pub profiles: BTreeMap<String, JobProfile>,
    pub claims: Vec<PersistentVolumeClaim>,
    pub volumes: Vec<PersistentVolume>,
    pub refused: Option<Refusal>,
    /// What pods printed, by name. One that is not here has no log to read.
    pub logs: BTreeMap<String, String>,
    /// Events, by the node that they are about or that the worker they are about was on.
    pub events: BTreeMap<String, Vec<(String, String)>>,
    pub now: Timestamp,
    pub config: Config,
    uids: u64,
}

impl Stage {
    pub fn new(
        jobs: impl IntoIterator<Item = TrainJob>,
        nodes: impl IntoIterator<Item = Node>,
    ) -> Self {
        let named = |node: Node| (node.metadata.name.clone().unwrap_or_default(), node);
        Self {
            jobs: jobs
                .into_iter()
                .map(|job| (job.name().to_owned(), job))
                .collect(),
            pods: BTreeMap::new(),
            nodes: nodes.into_iter().map(named).collect(),
            queues: Vec::new(),
            datasets: Vec::new(),
            profiles: BTreeMap::new(),
            claims: Vec::new(),
            volumes: Vec::new(),
            refused: None,
            logs: BTreeMap::new(),
            events: BTreeMap::new(),
            now: at(0),
            config: config(),
            uids: 0,
        }
    }

    /// Its pods, as the controller sees them.
    pub fn seen(&self) -> Vec<seen::Pod> {
        self.pods.values().cloned().map(Into::into).collect()
    }

    pub fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// Through the real mirrors, as a controller that has just started would see it.
    pub fn world(&self) -> World {
        let listed = Listed {
            jobs: self.jobs.values().cloned().collect(),
            pods: self.pods.values().cloned().collect(),
            nodes: self.nodes.values().cloned().collect(),
            queues: self.queues.clone(),
            datasets: self.datasets.clone(),
            profiles: self.profiles.values().cloned().collect(),
            claims: self.claims.clone(),
            volumes: self.volumes.clone(),
        };
        listed.world(&self.config)
    }

    /// As the controller decides: everyone is looked at, the scheduler is asked, and then the job is looked at by what came of it.
    pub fn plan(&self, job: &str) -> Option<Plan> {
        let mut world = self.world();
        let key = Key::new("default", job);
        admission::look_at_all(&mut world, &self.config, self.now);
        world.serve(self.now);
        let look = |world: &World| {
            let aside = Aside {
                refused: self.refused.clone(),
                tails: Tails::default(),
            };
            let mut observed = observe(world, &key, aside)?;
            let mut plan = super::plan::plan(&observed, &self.config, self.now);
            // Logs first, then Events where those leave something open.
            for _ in 0..2 {
                if plan.logs.is_empty() {
                    break;
                }
                let read = plan.logs.iter().map(|wanted| self.read(wanted));
                let read = Tails::of(plan.status.attempt, read);
                observed.tails = std::mem::take(&mut observed.tails).and(read);
                plan = super::plan::plan(&observed, &self.config, self.now);
            }
            assert!(plan.logs.is_empty(), "each is read once");
            Some((observed, plan))
        };
        let (observed, plan) = look(&world)?;
        if admission::takes_room(&observed, &plan) || !world.wants_room(&key) {
            return Some(plan);
        }
        let _ = world.ask(&observed.job, plan.ask.clone());
        if plan.pool {
            world.give_pool(&key, self.now);
        }
        world.serve(self.now);
        look(&world).map(|(_, plan)| plan)
    }

    fn read(&self, wanted: &Wanted) -> Read {
        match wanted {
            Wanted::Log { rank, pod, .. } => {
                let log = self.logs.get(pod);
                Read::Log(*rank, log.map(|log| LogScan::read(log.as_bytes())))
            }
            Wanted::Silence { rank, pod, .. } => {
                Read::Silence(*rank, self.logs.get(pod).map(String::is_empty))
            }
            Wanted::Events { rank, node, .. } => {
                let events = self.events.get(node).cloned();
                Read::Events(*rank, events.unwrap_or_default())
            }
        }
    }

    /// Carries out the first `writes` writes of a plan; then the controller dies.
    pub fn carry_out(&mut self, job: &str, plan: &Plan, mut writes: usize) {
        let Some(known) = self.jobs.get_mut(job) else {
            return;
        };
        if known.status.as_ref() != Some(&plan.status) {
            if writes == 0 {
                return;
            }
            writes -= 1;
            known.status = Some(plan.status.clone());
        }
        for action in plan.actions.iter().take(writes) {
            self.act(job, action);
        }
    }

    /// As an API server takes a status: on condition that the job is as it was read.
    pub fn carry_out_read_before(&mut self, read: &TrainJob, plan: &Plan) {
        let writes_status = read.status.as_ref() != Some(&plan.status);
        let known = self.jobs.get(read.name());
        if writes_status && !known.is_some_and(|known| is_same(known, read)) {
            return;
        }
        self.carry_out(read.name(), plan, usize::MAX);
    }

    pub fn act(&mut self, job: &str, action: &Action) {
        match action {
            Action::CreatePod(pod) => {
                let name = pod.metadata.name.clone().expect("a name");
                self.uids += 1;
                let mut pod = pod.as_ref().clone();
                pod.metadata.uid = Some(format!("pod-{}", self.uids));
                pod.status = serde_json::from_value(json!({"phase": "Pending"})).expect("a status");
                self.pods.entry(name).or_insert(pod);
            }
            Action::DeletePod { name, uid } => self.delete_pod(name, Some(uid)),
            Action::DeleteJob { uid } => {
                assert_eq!(self.jobs[job].metadata.uid.as_ref(), Some(uid));
                self.jobs.remove(job);
                self.pods
                    .retain(|_, pod| pod.labels().get(JOB_LABEL).map(String::as_str) != Some(job));
            }
            Action::AskToSave { name, uid, text } => {
                let pod = self.pods.get_mut(name);
                if let Some(pod) = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(uid)) {
                    let annotations = pod.metadata.annotations.get_or_insert_default();
                    annotations.insert(CHECKPOINT_REQUEST_ANNOTATION.to_owned(), text.clone());
                }
            }
            Action::Learn(profile) => self.learn(profile),
            Action::EnsureClaim(_)
            | Action::EnsureSecret { .. }
            | Action::EnsureService(_)
            | Action::EnsurePolicy(_)
            | Action::Tell(_) => {}
        }
    }

    /// As an API server takes it: on condition that it is as it was read, or not there.
    fn learn(&mut self, profile: &JobProfile) {
        let name = profile.name_any();
        let known = self.profiles.get(&name);
        let version = known.and_then(|known| known.metadata.resource_version.clone());
        if version != profile.metadata.resource_version {
            return;
        }
        self.uids += 1;
        let mut profile = profile.clone();
        profile.metadata.uid = Some(name.clone());
        profile.metadata.resource_version = Some(self.uids.to_string());
        self.profiles.insert(name, profile);
    }

    /// Its node has asked a worker for a checkpoint, for it comes to the end of its memory.
    pub fn risk(&mut self, name: &str) {
        let now = self.now.to_string();
        let risk = json!({"since": now, "why": "it leaks 10 MiB a step", "stage": "AtTheEnd", "checkpointAskedAt": now});
        let pod = self.pods.get_mut(name).expect("the pod");
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(MEMORY_RISK_ANNOTATION.to_owned(), risk.to_string());
    }

    /// Its node runs out of memory as a whole.
    pub fn shortage(&mut self, name: &str) {
        let risk = json!({"since": self.now.to_string(), "why": "the node has 90 MiB left", "stage": "NodeShort"});
        let pod = self.pods.get_mut(name).expect("the pod");
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(MEMORY_RISK_ANNOTATION.to_owned(), risk.to_string());
    }

    /// A node has measured what a worker used, from its start to its end.
    pub fn measure(&mut self, name: &str, digest: Value) {
        let digest = json!({"containers": {"worker": digest}});
        let pod = self.pods.get_mut(name).expect("the pod");
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(MEMORY_DIGEST_ANNOTATION.to_owned(), digest.to_string());
    }

    /// A kubelet ends what was deleted within its grace period; what was on a node that is gone is collected.
    pub fn bury(&mut self) {
        let now = self.now;
        let nodes = &self.nodes;
        self.pods.retain(|_, pod| {
            let due = pod.metadata.deletion_timestamp.as_ref();
            let due = due.is_some_and(|time| time.0 <= now);
            let homeless = cluster::node_of(pod).is_some_and(|node| !nodes.contains_key(node));
            !(due || homeless)
        });
    }

    /// As kubectl would: a finished pod goes at once, another after its grace period.
    pub fn delete_pod(&mut self, name: &str, uid: Option<&String>) {
        let now = self.now;
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        if uid.is_some_and(|uid| pod.metadata.uid.as_ref() != Some(uid)) {
            return;
        }
        if cluster::is_finished(pod) {
            self.pods.remove(name);
        } else if pod.metadata.deletion_timestamp.is_none() {
            let spec = pod.spec.as_ref();
            let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
            let grace = grace.unwrap_or(30).unsigned_abs();
            pod.metadata.deletion_timestamp = Some((now + Duration::from_secs(grace)).into());
            pod.metadata.deletion_grace_period_seconds = i64::try_from(grace).ok();
        }
    }

    /// The kubelet's work: a pod's new status.
    pub fn set_pod(&mut self, name: &str, status: Value) {
        let pod = self
            .pods
            .get_mut(name)
            .unwrap_or_else(|| panic!("no pod {name}"));
        let node = cluster::node_of(pod).map(str::to_owned);
        if let Some(spec) = &mut pod.spec {
            spec.node_name = node;
        }
        pod.status = Some(serde_json::from_value(status).expect("a pod status"));
    }

    pub fn run_pod(&mut self, name: &str) {
        let started = self.now.to_string();
        self.set_pod(name, json!({
            "phase": "Running",
            "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": started}}}],
        }));
    }

    pub fn end_pod(&mut self, name: &str, exit_code: i32, reason: &str) {
        let phase = if exit_code == 0 {
            "Succeeded"
        } else {
            "Failed"
        };
        let finished = self.now.to_string();
        self.set_pod(name, json!({
            "phase": phase,
            "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": finished}}}],
        }));
    }

    /// A worker has written a checkpoint.
    pub fn save(&mut self, name: &str) {
        self.save_by(name, 0);
    }

    /// The same, by a clock that is so many seconds ahead of ours.
    pub fn save_by(&mut self, name: &str, ahead: i64) {
        let now = self.now + jiff::SignedDuration::from_secs(ahead);
        let now = now.to_string();
        let pod = self.pods.get_mut(name).expect("the pod");
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(LAST_CHECKPOINT_ANNOTATION.to_owned(), now);
    }

    /// Plans and carries out, and checks that planning again yields nothing.
    pub fn turn(&mut self, job: &str) -> String {
        let Some(plan) = self.plan(job) else {
            return "gone".to_owned();
        };
        self.carry_out(job, &plan, usize::MAX);
        if let Some(again) = self.plan(job) {
            let wakes = again.requeue_after;
            assert_ne!(
                wakes,
                Some(Duration::ZERO),
                "it would be looked at without end"
            );
            let actions: Vec<String> = again.actions.iter().map(ToString::to_string).collect();
            assert!(actions.is_empty(), "there was more to do: {actions:?}");
            assert_eq!(
                Some(&again.status),
                self.jobs[job].status.as_ref(),
                "there was more to say"
            );
        }
        said(&plan)
    }
}

/// The same version of the same job.
pub fn is_same(one: &TrainJob, other: &TrainJob) -> bool {
    serde_json::to_value(one).ok() == serde_json::to_value(other).ok()
}

/// A plan as one line of a table.
pub fn said(plan: &Plan) -> String {
    let status = &plan.status;
    let mut lines = vec![format!(
        "{:?} ({}) {} failures {}: {}",
        status.phase, status.reason, status.ready, status.failures, status.message
    )];
    lines.extend(plan.actions.iter().map(|action| format!("  {action}")));
    lines.extend(
        plan.requeue_after
            .map(|after| format!("  again in {after:?}")),
    );
    lines.join("\n")
}

pub fn dataset(name: &str, spec: Value) -> Dataset {
    serde_json::from_value(json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec,
    }))
    .expect("a dataset")
}
