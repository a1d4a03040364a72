//! What an API server holds and does: versions, conditions, a log that watches read, owners that take their own with them. Writes may be
//! lost on the way, done though nobody is told so, or done late.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use serde_json::json;
use stoke_api::names::CHECKPOINT_REQUEST_ANNOTATION;
use stoke_api::{JobProfile, TrainJob, TrainJobStatus};

use super::super::plan::Action;
use super::super::simulation::Ledger;
use crate::cluster;
use crate::world::{Wakes, World};

/// One change, as watches tell it.
#[derive(Clone)]
// All but a few are of pods.
#[allow(clippy::large_enum_variant)]
pub enum Told {
    Job(Event<TrainJob>),
    Pod(Event<Pod>),
    Node(Event<Node>),
    Profile(Event<JobProfile>),
}

impl Told {
    pub fn to(self, world: &mut World) -> Vec<Wakes> {
        match self {
            Self::Job(event) => world.watched(event),
            Self::Pod(event) => world.watched(event),
            Self::Node(event) => world.watched(event),
            Self::Profile(event) => world.watched(event),
        }
    }

    /// As the answer to a write of one's own.
    pub fn answers(self, world: &mut World) -> Option<Wakes> {
        match self {
            Self::Job(Event::Apply(job)) => world.wrote(job),
            Self::Pod(Event::Apply(pod)) => world.wrote(pod),
            Self::Profile(Event::Apply(profile)) => world.wrote(profile),
            _ => None,
        }
    }
}

/// A request to change something.
#[derive(Clone)]
pub enum Write {
    Status(Box<(TrainJob, TrainJobStatus)>),
    Act(String, Box<Action>),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is not as it was read.
    Conflict,
    /// Another has the name.
    Taken,
}

#[derive(Default)]
pub struct Store {
    pub now: Timestamp,
    pub jobs: BTreeMap<String, TrainJob>,
    pub pods: BTreeMap<String, Pod>,
    pub nodes: BTreeMap<String, Node>,
    pub profiles: BTreeMap<String, JobProfile>,
    /// Claims, Services and the like, with the uid of the job that owns each.
    pub children: BTreeMap<(&'static str, String), String>,
    /// Pods that came long after they were asked for, by uid: nobody may have waited for them.
    pub strays: BTreeSet<String>,
    pub log: Vec<Told>,
    pub ledger: Ledger,
    late: Vec<(Timestamp, Write)>,
    version: u64,
    uids: u64,
}

impl Store {
    fn next_version(&mut self) -> Option<String> {
        self.version += 1;
        Some(self.version.to_string())
    }

    pub fn put_job(&mut self, mut job: TrainJob) -> TrainJob {
        job.metadata.resource_version = self.next_version();
        self.log.push(Told::Job(Event::Apply(job.clone())));
        self.jobs.insert(job.name().to_owned(), job.clone());
        self.ledger.check_attempts(&job);
        job
    }

    pub fn put_pod(&mut self, mut pod: Pod) -> Pod {
        pod.metadata.resource_version = self.next_version();
        self.log.push(Told::Pod(Event::Apply(pod.clone())));
        self.pods.insert(pod.name_any(), pod.clone());
        pod
    }

    pub fn put_node(&mut self, mut node: Node) {
        node.metadata.resource_version = self.next_version();
        self.log.push(Told::Node(Event::Apply(node.clone())));
        self.nodes.insert(node.name_any(), node);
    }

    pub fn remove_pod(&mut self, name: &str) {
        if let Some(mut pod) = self.pods.remove(name) {
            pod.metadata.resource_version = self.next_version();
            self.log.push(Told::Pod(Event::Delete(pod)));
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        if let Some(mut node) = self.nodes.remove(name) {
            node.metadata.resource_version = self.next_version();
            self.log.push(Told::Node(Event::Delete(node)));
        }
    }

    fn remove_job(&mut self, name: &str) {
        if let Some(mut job) = self.jobs.remove(name) {
            job.metadata.resource_version = self.next_version();
            self.log.push(Told::Job(Event::Delete(job)));
        }
    }

    /// A pod's new status, as a kubelet writes it.
    pub fn set_pod(&mut self, name: &str, status: serde_json::Value) {
        let Some(mut pod) = self.pods.get(name).cloned() else {
            return;
        };
        let node = cluster::node_of(&pod).map(str::to_owned);
        if let Some(spec) = &mut pod.spec {
            spec.node_name = node;
        }
        pod.status = Some(serde_json::from_value(status).expect("a pod status"));
        self.put_pod(pod);
    }

    pub fn annotate(&mut self, name: &str, key: &str, value: String) {
        if let Some(mut pod) = self.pods.get(name).cloned() {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(key.to_owned(), value);
            self.put_pod(pod);
        }
    }

    /// It is carried out some time later.
    pub fn delay(&mut self, by: Duration, write: Write) {
        self.late.push((self.now + by, write));
    }

    /// Carries out what was on its way for long, and takes away what has no owner any more.
    pub fn tick(&mut self) {
        let (due, rest) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|(at, _)| *at <= self.now);
        self.late = rest;
        for (_, write) in due {
            let before: BTreeSet<String> = self.pods.keys().cloned().collect();
            let _ = self.write(&write);
            let came = self.pods.iter().filter(|(name, _)| !before.contains(*name));
            let came: Vec<String> = came.filter_map(|(_, pod)| pod.uid()).collect();
            self.strays.extend(came);
        }
        let owners: BTreeSet<String> = self.jobs.values().filter_map(TrainJob::uid).collect();
        self.children.retain(|_, owner| owners.contains(owner));
        let orphans = self.pods.values().filter(|pod| {
            let owned = pod.owner_references().iter();
            !owned.clone().any(|owner| owners.contains(&owner.uid))
        });
        let orphans: Vec<String> = orphans.map(kube::ResourceExt::name_any).collect();
        for name in orphans {
            self.delete_pod(&name, None);
        }
        let homeless = self.pods.iter().filter(|(_, pod)| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            node.is_some_and(|node| !self.nodes.contains_key(&node))
        });
        let homeless: Vec<String> = homeless.map(|(name, _)| name.clone()).collect();
        for name in homeless {
            self.remove_pod(&name);
        }
    }

    /// What has ended goes at once, and what no kubelet has seen; another after its grace period.
    pub fn delete_pod(&mut self, name: &str, uid: Option<&str>) -> Option<Pod> {
        let mut pod = self.pods.get(name)?.clone();
        if uid.is_some_and(|uid| pod.metadata.uid.as_deref() != Some(uid)) {
            return None;
        }
        let has_node = cluster::node_of(&pod).is_some_and(|node| self.nodes.contains_key(node));
        if cluster::is_finished(&pod) || !has_node {
            self.remove_pod(name);
            return None;
        }
        if pod.metadata.deletion_timestamp.is_none() {
            let spec = pod.spec.as_ref();
            let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
            let grace = Duration::from_secs(grace.unwrap_or(30).unsigned_abs());
            pod.metadata.deletion_timestamp = Some((self.now + grace).into());
            pod.metadata.deletion_grace_period_seconds = i64::try_from(grace.as_secs()).ok();
            return Some(self.put_pod(pod));
        }
        Some(pod)
    }

    /// What an answer would tell, for the mirrors of whoever asked.
    pub fn write(&mut self, write: &Write) -> Result<Option<Told>, Refused> {
        match write {
            Write::Status(it) => {
                let (read, status) = it.as_ref();
                let known = self.jobs.get(read.name()).cloned();
                let mut known = known.ok_or(Refused::Conflict)?;
                if known.metadata.resource_version != read.metadata.resource_version {
                    return Err(Refused::Conflict);
                }
                known.status = Some(status.clone());
                Ok(Some(Told::Job(Event::Apply(self.put_job(known)))))
            }
            Write::Act(job, action) => self.act(job, action),
        }
    }

    fn act(&mut self, job: &str, action: &Action) -> Result<Option<Told>, Refused> {
        match action {
            Action::CreatePod(pod) => self.create_pod(pod),
            Action::DeletePod { name, uid } => {
                let pod = self.delete_pod(name, Some(uid));
                Ok(pod.map(|pod| Told::Pod(Event::Apply(pod))))
            }
            Action::DeleteJob { uid } => {
                let known = self.jobs.get(job);
                if known.is_some_and(|known| known.metadata.uid.as_ref() == Some(uid)) {
                    self.remove_job(job);
                }
                Ok(None)
            }
            Action::AskToSave { name, uid, text } => {
                let known = self.pods.get(name);
                if known.is_some_and(|pod| pod.metadata.uid.as_ref() == Some(uid)) {
                    self.annotate(name, CHECKPOINT_REQUEST_ANNOTATION, text.clone());
                }
                Ok(None)
            }
            Action::Learn(profile) => self.learn(profile),
            Action::EnsureClaim(claim) => self.adopt("claim", &claim.metadata),
            Action::EnsureService(service) => self.adopt("service", &service.metadata),
            Action::EnsurePolicy(policy) => self.adopt("policy", &policy.metadata),
            Action::EnsureSecret { name } => {
                let owner = self.jobs.get(job).and_then(TrainJob::uid);
                let key = ("secret", name.clone());
                self.children
                    .entry(key)
                    .or_insert(owner.unwrap_or_default());
                Ok(None)
            }
            Action::Tell(_) => Ok(None),
        }
    }

    fn adopt(
        &mut self,
        kind: &'static str,
        metadata: &kube::api::ObjectMeta,
    ) -> Result<Option<Told>, Refused> {
        let name = metadata.name.clone().unwrap_or_default();
        let owners = metadata.owner_references.iter().flatten();
        let owner = owners.map(|owner| owner.uid.clone()).next();
        let owner = owner.unwrap_or_default();
        let known = self.children.entry((kind, name)).or_insert(owner.clone());
        if *known == owner {
            Ok(None)
        } else {
            Err(Refused::Taken)
        }
    }

    fn create_pod(&mut self, pod: &Pod) -> Result<Option<Told>, Refused> {
        let name = pod.name_any();
        if let Some(found) = self.pods.get(&name) {
            let ours = found.labels() == pod.labels()
                && found.owner_references() == pod.owner_references();
            return if ours {
                Ok(Some(Told::Pod(Event::Apply(found.clone()))))
            } else {
                Err(Refused::Taken)
            };
        }
        self.uids += 1;
        let mut pod = pod.clone();
        pod.metadata.uid = Some(format!("pod-{}", self.uids));
        pod.status = serde_json::from_value(json!({"phase": "Pending"})).expect("a status");
        Ok(Some(Told::Pod(Event::Apply(self.put_pod(pod)))))
    }

    fn learn(&mut self, profile: &JobProfile) -> Result<Option<Told>, Refused> {
        let name = profile.name_any();
        let known = self.profiles.get(&name);
        let version = known.and_then(|known| known.metadata.resource_version.clone());
        if version != profile.metadata.resource_version {
            return Err(Refused::Conflict);
        }
        let mut profile = profile.clone();
        profile.metadata.uid = Some(name.clone());
        profile.metadata.resource_version = self.next_version();
        let told = Told::Profile(Event::Apply(profile.clone()));
        self.log.push(told.clone());
        self.profiles.insert(name, profile);
        Ok(Some(told))
    }
}
