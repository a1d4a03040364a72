//! What the controllers know of the cluster: one mirror a kind, what pods use, and who must be woken by a change.
//!
//! Synchronous and without a client, so that it can be asked under a lock and tested without a server.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::DeserializeOwned;
use stoke_api::trainjob::{Attempt, Phase, Priority};
use stoke_api::{Dataset, TrainJob};
use stoke_sched::{Resources, Snapshot};

use crate::cluster;
use crate::mirror::{Change, Key, Mirror};
use crate::trainjob::rendezvous::port_count;
use crate::trainjob::{pod, workers};

#[derive(Debug, Default)]
pub struct World {
    pub jobs: Mirror<TrainJob>,
    pub pods: Mirror<Pod>,
    pub nodes: Mirror<Node>,
    pub datasets: Mirror<Dataset>,
    /// What each pod that has not ended takes of its node. Read from the pods once, not at every look.
    taken: BTreeMap<Key, (String, Resources)>,
    scene: Option<Arc<Scene>>,
    /// Grows whenever there may be more room than before.
    room: u64,
    /// Jobs that found no room, and when: until there may be more they need not ask again.
    turned_away: BTreeMap<Key, u64>,
}

/// The cluster as all jobs see it; made when it is asked for and kept until something changes.
#[derive(Debug, Default)]
pub struct Scene {
    pub snapshot: Arc<Snapshot>,
    /// Addresses of nodes, by name.
    pub addresses: Arc<BTreeMap<String, String>>,
    /// The ports that each job's latest attempt has.
    pub leased: Vec<(Key, RangeInclusive<u16>)>,
}

/// What to look at again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// The job that its author has changed.
    pub forced: Option<Key>,
    pub jobs: Vec<Key>,
    /// Pods without a node.
    pub pods: Vec<Key>,
}

/// A kind that is mirrored.
pub trait Kind:
    kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
    fn mirror(world: &mut World) -> &mut Mirror<Self>;

    /// Takes note of a change in the mirror, and says who is concerned.
    fn changed(world: &mut World, change: &Change<Self>) -> Wakes;
}

impl Kind for TrainJob {
    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.jobs
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.job_changed(change)
    }
}

impl Kind for Pod {
    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.pods
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.pod_changed(change)
    }
}

impl Kind for Node {
    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.nodes
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.node_changed(change)
    }
}

impl Kind for Dataset {
    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.datasets
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.dataset_changed(change)
    }
}

impl World {
    pub fn is_complete(&self) -> bool {
        self.jobs.is_complete()
            && self.pods.is_complete()
            && self.nodes.is_complete()
            && self.datasets.is_complete()
    }

    fn job_changed(&mut self, change: &Change<TrainJob>) -> Wakes {
        self.scene = None;
        let Some(job) = change.latest() else {
            return Wakes::default();
        };
        let key = Key::of(&job.metadata);
        let generation = |job: &Arc<TrainJob>| job.metadata.generation;
        let edited =
            change.before.as_ref().map(generation) != change.after.as_ref().map(generation);
        if edited || change.after.is_none() {
            self.turned_away.remove(&key);
        }
        let held = change.before.as_deref().and_then(live_attempt).is_some();
        let holds = change.after.as_deref().and_then(live_attempt).is_some();
        Wakes {
            forced: edited.then(|| key.clone()),
            jobs: if held && !holds {
                self.room += 1;
                [vec![key], self.queued()].concat()
            } else {
                vec![key]
            },
            pods: Vec::new(),
        }
    }

    fn pod_changed(&mut self, change: &Change<Pod>) -> Wakes {
        self.scene = None;
        let Some(pod) = change.latest() else {
            return Wakes::default();
        };
        let key = Key::of(&pod.metadata);
        let takes = change.after.as_deref().and_then(takes);
        let took = match takes.clone() {
            Some(takes) => self.taken.insert(key.clone(), takes),
            None => self.taken.remove(&key),
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut jobs: Vec<Key> = workers::job_name(pod)
            .map(|job| Key::new(namespace, job))
            .into_iter()
            .collect();
        if took.is_some() && took != takes {
            self.room += 1;
            jobs.extend(self.queued());
        }
        let unbound = change.after.as_deref().is_some_and(is_unbound);
        Wakes {
            forced: None,
            jobs,
            pods: unbound.then_some(key).into_iter().collect(),
        }
    }

    /// Heartbeats change a node every few seconds and nobody's plans.
    fn node_changed(&mut self, change: &Change<Node>) -> Wakes {
        let matters = |node: &Arc<Node>| {
            (
                cluster::node(node),
                cluster::address(node).map(str::to_owned),
            )
        };
        if change.before.as_ref().map(matters) == change.after.as_ref().map(matters) {
            return Wakes::default();
        }
        self.scene = None;
        self.room += 1;
        let unbound = self.pods.iter().filter(|(_, pod)| is_unbound(pod));
        Wakes {
            forced: None,
            jobs: self.in_order(|job| !job.is_finished()),
            pods: unbound.map(|(key, _)| key.clone()).collect(),
        }
    }

    fn dataset_changed(&mut self, change: &Change<Dataset>) -> Wakes {
        let Some(dataset) = change.latest() else {
            return Wakes::default();
        };
        self.room += 1;
        let name = dataset.metadata.name.as_deref().unwrap_or_default();
        let names = |job: &TrainJob| job.spec.datasets.iter().any(|mount| mount.name == name);
        let jobs = self.in_order(|job| {
            !job.is_finished() && job.metadata.namespace == dataset.metadata.namespace && names(job)
        });
        Wakes {
            jobs,
            ..Wakes::default()
        }
    }

    /// Jobs that wait for room, the first to be served first.
    fn queued(&self) -> Vec<Key> {
        self.in_order(|job| {
            let phase = job.status.as_ref().map(|status| status.phase);
            phase.is_none_or(|phase| phase == Phase::Queued)
        })
    }

    /// Jobs that wait for room, would be served before this one, and have not been turned away as things are.
    pub fn ahead_of(&self, key: &Key) -> Vec<Key> {
        let Some(own) = self.jobs.get(key).map(|job| precedence(key, job)) else {
            return Vec::new();
        };
        let mut ahead = self.queued();
        ahead.retain(|other| {
            let is_ahead = |job| precedence(other, job) < own;
            self.turned_away.get(other) != Some(&self.room)
                && self.jobs.get(other).is_some_and(|job| is_ahead(job))
        });
        ahead
    }

    /// Takes note that there is no room for this job as things are.
    pub fn turn_away(&mut self, key: &Key) {
        self.turned_away.insert(key.clone(), self.room);
    }

    fn in_order(&self, wanted: impl Fn(&TrainJob) -> bool) -> Vec<Key> {
        let jobs = self.jobs.iter().filter(|(_, job)| wanted(job));
        let mut found: Vec<_> = jobs.map(|(key, job)| precedence(key, job)).collect();
        found.sort();
        found.into_iter().map(|(_, _, key)| key.clone()).collect()
    }

    pub fn scene(&mut self) -> Arc<Scene> {
        if let Some(scene) = &self.scene {
            return scene.clone();
        }
        let promised = self.promised();
        let taken = self.taken.values().chain(&promised);
        let nodes = self.nodes.iter().map(|(_, node)| node.as_ref());
        let snapshot = cluster::snapshot(
            nodes,
            taken.map(|(node, resources)| (node.as_str(), *resources)),
        );
        let addresses = self
            .nodes
            .iter()
            .filter_map(|(key, node)| Some((key.name.clone(), cluster::address(node)?.to_owned())));
        let scene = Arc::new(Scene {
            snapshot: Arc::new(snapshot),
            addresses: Arc::new(addresses.collect()),
            leased: self
                .jobs
                .iter()
                .filter_map(|(key, job)| Some((key.clone(), lease_of(job)?)))
                .collect(),
        });
        self.scene = Some(scene.clone());
        scene
    }

    /// What jobs were given whose pods do not hold it: those that are not there yet. Until all of a gang run, the room of one that has
    /// ended is kept too, for should its pod vanish it is created again.
    fn promised(&self) -> Vec<(String, Resources)> {
        let mut promised = Vec::new();
        for (key, job) in self.jobs.iter() {
            let starting = live_attempt(job).filter(|attempt| attempt.running_at.is_none());
            let Some(attempt) = starting else {
                continue;
            };
            for (rank, node) in (0..).zip(&attempt.nodes) {
                let name = stoke_api::names::pod_name(&key.name, attempt.number, rank);
                if !self.taken.contains_key(&Key::new(&key.namespace, &name)) {
                    promised.push((node.clone(), pod::promised(job, attempt)));
                }
            }
        }
        promised
    }
}

/// What Kubernetes writes where a pod names no scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// It waits for us to give it a node. A pod that names another scheduler waits for that one.
pub fn is_unbound(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let bound = spec.and_then(|spec| spec.node_name.as_deref());
    let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
    bound.unwrap_or_default().is_empty()
        && scheduler.is_none_or(|name| name == DEFAULT_SCHEDULER)
        && pod.metadata.deletion_timestamp.is_none()
        && !cluster::is_finished(pod)
}

/// Who is served first: the more important, then the older.
fn precedence<'a>(key: &'a Key, job: &TrainJob) -> (Reverse<Priority>, Option<Timestamp>, &'a Key) {
    let created = job.metadata.creation_timestamp.as_ref();
    (Reverse(job.spec.priority), created.map(|time| time.0), key)
}

fn takes(pod: &Pod) -> Option<(String, Resources)> {
    if cluster::is_finished(pod) {
        return None;
    }
    let node = cluster::node_of(pod)?.to_owned();
    Some((node, cluster::requests(pod.spec.as_ref()?)))
}

fn live_attempt(job: &TrainJob) -> Option<&Attempt> {
    let attempt = job.status.as_ref()?.current_attempt()?;
    attempt.outcome.is_none().then_some(attempt)
}

/// Kept until the job's next attempt or its end: what stops may still hold it.
fn lease_of(job: &TrainJob) -> Option<RangeInclusive<u16>> {
    let status = job
        .status
        .as_ref()
        .filter(|status| !status.phase.is_final())?;
    let attempt = status.current_attempt()?;
    let first = attempt.port?;
    let count = port_count(job.spec.framework, attempt.nodes.len() as u32).max(1);
    Some(first..=first.saturating_add(count - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    fn tell<K: Kind>(world: &mut World, object: serde_json::Value) -> Wakes {
        let object: K = serde_json::from_value(object).expect("an object");
        let changes = K::mirror(world).watched(Event::Apply(object));
        let mut wakes = Wakes::default();
        for change in changes {
            wakes = K::changed(world, &change);
        }
        wakes
    }

    fn job(
        name: &str,
        version: u32,
        priority: &str,
        created: &str,
        status: serde_json::Value,
    ) -> serde_json::Value {
        json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version.to_string(), "generation": 1,
                "creationTimestamp": created},
            "spec": {"command": ["a"], "priority": priority},
            "status": status,
        })
    }

    fn pod(version: u32, phase: &str) -> serde_json::Value {
        json!({
            "metadata": {"name": "r-1-0", "namespace": "ns", "uid": "p", "resourceVersion": version.to_string(), "labels": {"stokehold.dev/job": "r"}},
            "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": phase},
        })
    }

    fn node(version: u32, heartbeat: &str, memory: &str) -> serde_json::Value {
        json!({
            "metadata": {"name": "n", "resourceVersion": version.to_string()},
            "status": {"allocatable": {"memory": memory}, "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]},
        })
    }

    fn names(keys: &[Key]) -> Vec<&str> {
        keys.iter().map(|key| key.name.as_str()).collect()
    }

    fn world() -> World {
        let mut world = World::default();
        let queued = || json!({"phase": "Queued"});
        tell::<TrainJob>(
            &mut world,
            job("b", 1, "standard", "2026-01-02T00:00:00Z", queued()),
        );
        tell::<TrainJob>(
            &mut world,
            job("a", 2, "standard", "2026-01-03T00:00:00Z", queued()),
        );
        tell::<TrainJob>(
            &mut world,
            job("c", 3, "production", "2026-01-04T00:00:00Z", queued()),
        );
        tell::<TrainJob>(
            &mut world,
            job(
                "r",
                4,
                "standard",
                "2026-01-01T00:00:00Z",
                json!({"phase": "Running"}),
            ),
        );
        tell::<Pod>(&mut world, pod(5, "Running"));
        world
    }

    #[test]
    fn only_pods_that_wait_for_us_are_bound() {
        let pod = |spec: serde_json::Value| {
            let pod = serde_json::json!({"metadata": {"name": "a"}, "spec": spec});
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        for (spec, waits) in [
            (serde_json::json!({"containers": []}), true),
            (
                serde_json::json!({"containers": [], "schedulerName": "default-scheduler"}),
                true,
            ),
            (
                serde_json::json!({"containers": [], "schedulerName": "another"}),
                false,
            ),
            (
                serde_json::json!({"containers": [], "nodeName": "n"}),
                false,
            ),
        ] {
            assert_eq!(is_unbound(&pod(spec.clone())), waits, "{spec}");
        }
    }

    #[test]
    fn room_that_comes_free_wakes_those_who_wait_in_their_order() {
        let mut world = world();
        let wakes = tell::<Pod>(&mut world, pod(6, "Succeeded"));
        assert_eq!(names(&wakes.jobs), ["r", "c", "b", "a"]);
        let wakes = tell::<Pod>(&mut world, pod(7, "Succeeded"));
        assert_eq!(names(&wakes.jobs), ["r"], "it was free already");
    }

    #[test]
    fn a_heartbeat_wakes_nobody() {
        let mut world = world();
        assert_eq!(
            tell::<Node>(&mut world, node(8, "2026-01-01T00:00:00Z", "1Gi"))
                .jobs
                .len(),
            4
        );
        assert_eq!(
            tell::<Node>(&mut world, node(9, "2026-01-01T00:00:10Z", "1Gi")),
            Wakes::default()
        );
        assert_eq!(
            tell::<Node>(&mut world, node(10, "2026-01-01T00:00:20Z", "2Gi"))
                .jobs
                .len(),
            4
        );
    }

    #[test]
    fn who_was_turned_away_is_not_asked_again_until_there_is_more_room() {
        let mut world = world();
        let last = Key::new("ns", "a");
        assert_eq!(names(&world.ahead_of(&last)), ["c", "b"]);
        assert_eq!(
            names(&world.ahead_of(&Key::new("ns", "r"))),
            ["c"],
            "the older goes before all but the more important"
        );
        world.turn_away(&Key::new("ns", "c"));
        assert_eq!(names(&world.ahead_of(&last)), ["b"]);
        tell::<Pod>(&mut world, pod(6, "Failed"));
        assert_eq!(names(&world.ahead_of(&last)), ["c", "b"]);
    }
}
