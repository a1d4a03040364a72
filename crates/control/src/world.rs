//! What the controllers know of the cluster: one mirror a kind, what is used of each node, who waits for room, and who must be woken by a
//! change.
//!
//! Synchronous and without a client, so that it can be asked under a lock and tested without a server. Everything that is derived from the
//! mirrors is kept up change by change: no change costs a walk over all pods, and only a changed node or dataset one over all jobs.

mod ledger;
mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{self as core, Node, PersistentVolume, PersistentVolumeClaim};
use kube::runtime::watcher::Event;
use serde::de::DeserializeOwned;
use stoke_api::trainjob::Attempt;
use stoke_api::{Dataset, TrainJob};
use stoke_sched::{Snapshot, fitting};

use self::ledger::{Ledger, Promise, Share};
pub use self::line::Shortage;
use self::line::{Line, Place};
use crate::cluster::{self, Claim};
use crate::mirror::{Change, Key, Mirror, Mirrored};
use crate::seen;
use crate::trainjob::pod;
use crate::trainjob::rendezvous::port_count;

#[derive(Debug, Default)]
pub struct World {
    pub jobs: Mirror<TrainJob>,
    pub pods: Mirror<seen::Pod>,
    pub nodes: Mirror<Node>,
    pub datasets: Mirror<Dataset>,
    claims: Mirror<PersistentVolumeClaim>,
    volumes: Mirror<PersistentVolume>,
    ledger: Ledger,
    line: Line,
    /// The pods that carry each job's label, by name; job and pods share a namespace.
    workers: HashMap<Key, BTreeSet<Box<str>>>,
    /// Pods without a node.
    unbound: BTreeSet<Key>,
    addresses: Arc<BTreeMap<String, String>>,
    /// The ports that each job's latest attempt has. Empty where pods have a network of their own.
    leased: BTreeMap<Key, RangeInclusive<u16>>,
}

/// What to look at again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// The job that its author has changed.
    pub forced: Option<Key>,
    /// At once: jobs that have an attempt.
    pub jobs: Vec<Key>,
    /// At once, after those: jobs that have none.
    pub jobs_waiting: Vec<Key>,
    /// Something has moved that decides nothing yet.
    pub jobs_soon: Vec<Key>,
    /// What is said of them may be out of date.
    pub jobs_later: Vec<Key>,
    /// Pods without a node.
    pub pods: Vec<Key>,
    /// Someone who waits for room may get it now.
    pub room: bool,
}

/// A kind that is mirrored.
pub trait Kind:
    kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static
{
    /// What is kept of it.
    type Seen: Mirrored + fmt::Debug;

    fn see(self) -> Self::Seen;

    fn mirror(world: &mut World) -> &mut Mirror<Self::Seen>;

    /// Takes note of a change in the mirror, and says who is concerned.
    fn changed(world: &mut World, change: &Change<Self::Seen>) -> Wakes;
}

impl Kind for TrainJob {
    type Seen = Self;

    /// Our own copy of what kubectl has sent is the spec once more.
    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        if let Some(annotations) = &mut self.metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.jobs
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.job_changed(change)
    }
}

impl Kind for core::Pod {
    type Seen = seen::Pod;

    fn see(self) -> seen::Pod {
        self.into()
    }

    fn mirror(world: &mut World) -> &mut Mirror<seen::Pod> {
        &mut world.pods
    }

    fn changed(world: &mut World, change: &Change<seen::Pod>) -> Wakes {
        world.pod_changed(change)
    }
}

impl Kind for Node {
    type Seen = Self;

    /// The list of images alone is larger than all the rest.
    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self.metadata.annotations = None;
        if let Some(status) = &mut self.status {
            status.images = None;
            status.volumes_attached = None;
            status.volumes_in_use = None;
            status.node_info = None;
            status.config = None;
        }
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.nodes
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.node_changed(change)
    }
}

impl Kind for Dataset {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.datasets
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.dataset_changed(change)
    }
}

impl Kind for PersistentVolumeClaim {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.claims
    }

    fn changed(world: &mut World, change: &Change<Self>) -> Wakes {
        world.claim_changed(change)
    }
}

impl Kind for PersistentVolume {
    type Seen = Self;

    fn see(mut self) -> Self {
        self.metadata.managed_fields = None;
        self
    }

    fn mirror(world: &mut World) -> &mut Mirror<Self> {
        &mut world.volumes
    }

    /// What matters of a volume is known when its claim is bound to it, and that is told of the claim.
    fn changed(_: &mut World, _: &Change<Self>) -> Wakes {
        Wakes::default()
    }
}

impl World {
    pub fn is_complete(&self) -> bool {
        self.jobs.is_complete()
            && self.pods.is_complete()
            && self.nodes.is_complete()
            && self.datasets.is_complete()
            && self.claims.is_complete()
            && self.volumes.is_complete()
    }

    /// Takes what a watch tells.
    pub fn watched<K: Kind>(&mut self, event: Event<K>) -> Vec<Wakes> {
        let event = match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(object) => Event::InitApply(object.see()),
            Event::Apply(object) => Event::Apply(object.see()),
            Event::Delete(object) => Event::Delete(object.see()),
        };
        let changes = K::mirror(self).watched(event);
        changes
            .iter()
            .map(|change| K::changed(self, change))
            .collect()
    }

    /// Takes an object as the API server answered our write.
    pub fn wrote<K: Kind>(&mut self, object: K) -> Option<Wakes> {
        let change = K::mirror(self).wrote(object.see())?;
        Some(K::changed(self, &change))
    }

    /// Takes it that an object is no more.
    pub fn forget<K: Kind>(&mut self, key: &Key, uid: &str) -> Option<Wakes> {
        let change = K::mirror(self).forget(key, Some(uid))?;
        Some(K::changed(self, &change))
    }

    fn job_changed(&mut self, change: &Change<TrainJob>) -> Wakes {
        let Some(job) = change.latest() else {
            return Wakes::default();
        };
        let key = Key::of(&job.metadata);
        let after = change.after.as_deref();
        let generation = |job: &Arc<TrainJob>| job.metadata.generation;
        let edited =
            change.before.as_ref().map(generation) != change.after.as_ref().map(generation);
        // What was set aside for it in memory alone is now on record, or was decided by a job that is no more what it was.
        let freed = self.ledger.promise(&key, after.and_then(promise_of));
        let lease = after.and_then(lease_of);
        let leased = match lease.clone() {
            Some(lease) => self.leased.insert(key.clone(), lease),
            None => self.leased.remove(&key),
        };
        let ports = leased.is_some() && leased != lease && self.line.gain_ports();
        self.line.see(&key, after, edited);
        let mut wakes = Wakes {
            room: self.line.gain(&freed) || ports,
            forced: edited.then(|| key.clone()),
            ..Wakes::default()
        };
        if after.and_then(live_attempt).is_some() {
            wakes.jobs.push(key);
        } else {
            wakes.jobs_waiting.push(key);
        }
        wakes
    }

    fn pod_changed(&mut self, change: &Change<seen::Pod>) -> Wakes {
        let Some(pod) = change.latest() else {
            return Wakes::default();
        };
        let key = pod.key();
        let after = change.after.as_deref();
        let freed = self.ledger.hold(key.clone(), after.and_then(holds));
        let mut wakes = Wakes {
            room: self.line.gain(&freed),
            ..Wakes::default()
        };
        if let Some(job) = &pod.metadata.job {
            let job = Key::new(&key.namespace, job);
            self.index_worker(&job, &key, after.is_some());
            if self.decides(&job, change) {
                wakes.jobs.push(job);
            } else {
                wakes.jobs_soon.push(job);
            }
        }
        if after.is_some_and(seen::Pod::is_unbound) {
            self.unbound.insert(key.clone());
            wakes.pods.push(key);
        } else {
            self.unbound.remove(&key);
        }
        wakes
    }

    fn index_worker(&mut self, job: &Key, pod: &Key, is_there: bool) {
        if is_there {
            let names = self.workers.entry(job.clone()).or_default();
            names.insert(pod.name.as_str().into());
        } else if let Some(names) = self.workers.get_mut(job) {
            names.remove(pod.name.as_str());
            if names.is_empty() {
                self.workers.remove(job);
            }
        }
    }

    /// Is there something to decide for the job now? Not while its workers come up one by one, until the last has: with large gangs most
    /// changes are of that kind, and each look at the job would be one more write.
    fn decides(&self, job: &Key, change: &Change<seen::Pod>) -> bool {
        let Some(pod) = change.after.as_deref().filter(|pod| pod.is_on_its_way()) else {
            return true;
        };
        let attempt = self.jobs.get(job).and_then(|job| live_attempt(job));
        let expected = attempt.map_or(0, |attempt| attempt.nodes.len());
        let has_run = |pod: &seen::Pod| pod.is_running() || pod.is_finished();
        let was_running = change.before.as_deref().is_some_and(seen::Pod::is_running);
        pod.is_running()
            && !was_running
            && self.workers_of(job).filter(|pod| has_run(pod)).count() >= expected
    }

    /// All pods that carry the job's label, by name.
    pub fn workers_of<'a>(&'a self, job: &'a Key) -> impl Iterator<Item = &'a Arc<seen::Pod>> {
        let names = self.workers.get(job).into_iter().flatten();
        names.filter_map(|name| self.pods.get(&Key::new(&job.namespace, name)))
    }

    /// Heartbeats change a node every few seconds and nobody's plans.
    fn node_changed(&mut self, change: &Change<Node>) -> Wakes {
        let Some(node) = change.latest() else {
            return Wakes::default();
        };
        let name = Key::of(&node.metadata).name;
        let address = change.after.as_deref().and_then(cluster::address);
        let after = change.after.as_deref().map(cluster::node);
        let known = self.ledger.snapshot().node(&name);
        let is_same = match (known, &after) {
            (Some(known), Some(after)) => {
                let used = known.used.clone();
                *known
                    == stoke_sched::Node {
                        used,
                        ..after.clone()
                    }
            }
            (None, None) => true,
            _ => false,
        };
        if is_same && self.addresses.get(&name).map(String::as_str) == address {
            return Wakes::default();
        }
        let addresses = Arc::make_mut(&mut self.addresses);
        match address {
            Some(address) => addresses.insert(name.clone(), address.to_owned()),
            None => addresses.remove(&name),
        };
        match after {
            Some(after) => self.ledger.put_node(after),
            None => self.ledger.remove_node(&name),
        }
        Wakes {
            room: self.line.start_over(),
            jobs: self.jobs_on(&name),
            jobs_later: self.line.waiting().cloned().collect(),
            pods: self.unbound.iter().cloned().collect(),
            ..Wakes::default()
        }
    }

    /// The jobs that have a worker on a node, or will.
    fn jobs_on(&self, node: &str) -> Vec<Key> {
        let job_of = |pod: &Key| {
            let job = match self.pods.get(pod) {
                Some(pod) => pod.metadata.job.as_deref()?,
                None => promised_to(&pod.name)?,
            };
            Some(Key::new(&pod.namespace, job))
        };
        let jobs: BTreeSet<Key> = self.ledger.on_node(node).filter_map(job_of).collect();
        jobs.into_iter().collect()
    }

    fn dataset_changed(&mut self, change: &Change<Dataset>) -> Wakes {
        let Some(dataset) = change.latest() else {
            return Wakes::default();
        };
        let name = dataset.metadata.name.as_deref().unwrap_or_default();
        let names = |job: &TrainJob| {
            !job.is_finished()
                && job.metadata.namespace == dataset.metadata.namespace
                && job.spec.datasets.iter().any(|mount| mount.name == name)
        };
        let jobs = self.jobs.iter().filter(|(_, job)| names(job));
        let mut jobs: Vec<Place> = jobs.map(|(key, job)| Place::of(key, job)).collect();
        jobs.sort();
        Wakes {
            jobs_waiting: jobs.into_iter().map(Place::into_key).collect(),
            ..Wakes::default()
        }
    }

    /// Who waits in its namespace may have waited for it to be bound, or to be another.
    fn claim_changed(&mut self, change: &Change<PersistentVolumeClaim>) -> Wakes {
        let namespace = change
            .latest()
            .and_then(|claim| claim.metadata.namespace.as_deref());
        let waiting = self.line.waiting();
        let jobs = waiting.filter(|key| Some(key.namespace.as_str()) == namespace);
        Wakes {
            jobs_waiting: jobs.cloned().collect(),
            ..Wakes::default()
        }
    }

    /// A claim, as placement sees it.
    pub fn claim(&self, key: &Key) -> Option<Claim> {
        let claim = self.claims.get(key)?;
        let volume = Claim::volume_name(claim);
        let volume = volume.and_then(|name| self.volumes.get(&Key::new("", name)));
        Some(Claim::of(claim, volume.map(AsRef::as_ref)))
    }

    /// The cluster as this job may use it: what was set aside for it, and is not on record yet, is free.
    pub fn snapshot_for(&self, key: &Key) -> Arc<Snapshot> {
        let on_record = self.jobs.get(key).and_then(|job| live_attempt(job));
        match on_record {
            Some(_) => self.ledger.snapshot().clone(),
            None => self.ledger.snapshot_without(key),
        }
    }

    pub fn addresses(&self) -> Arc<BTreeMap<String, String>> {
        self.addresses.clone()
    }

    /// Ports that other jobs have.
    pub fn ports_of_others(&self, key: &Key) -> Vec<RangeInclusive<u16>> {
        let others = self.leased.iter().filter(|(owner, _)| *owner != key);
        others.map(|(_, ports)| ports.clone()).collect()
    }

    /// Has this job no attempt, and may want to begin one?
    pub fn wants_room(&self, key: &Key) -> bool {
        self.jobs
            .get(key)
            .is_some_and(|job| !job.is_finished() && live_attempt(job).is_none())
    }

    /// The first in line who may get room; of those ahead of `key`, if that is given. Some are known to be too large by looking at
    /// the nodes, with no need to plan: they are turned away here, each at the price of one walk over the nodes.
    pub fn next_in_line(&mut self, ahead_of: Option<&Key>) -> Option<Next> {
        let place = match ahead_of {
            Some(key) => Some(Place::of(key, self.jobs.get(key)?)),
            None => None,
        };
        let next = self.line.first(place.as_ref())?;
        let Some(gang) = next.gang else {
            return Some(Next::Serve(next.key));
        };
        let missing = gang
            .workers
            .saturating_sub(fitting(self.ledger.snapshot(), &gang));
        if missing == 0 {
            return Some(Next::Serve(next.key));
        }
        let shortage = Shortage::Workers { gang, missing };
        self.line.turn_away(&next.key, Some(shortage));
        Some(Next::TurnedAway)
    }

    /// Takes note that there is no room for this job as things are, or that it wants none.
    pub fn turn_away(&mut self, key: &Key, shortage: Option<Shortage>) -> Wakes {
        let freed = if self.wants_room(key) {
            self.ledger.promise(key, None)
        } else {
            // What is promised to it is its attempt's.
            Vec::new()
        };
        self.line.turn_away(key, shortage);
        Wakes {
            room: self.line.gain(&freed),
            ..Wakes::default()
        }
    }

    /// Sets room aside for an attempt that is about to be put on record: until the job changes nobody else is given it. None where the job
    /// is not what it was when that was decided.
    pub fn set_aside(&mut self, decided_by: &Arc<TrainJob>, attempt: &Attempt) -> Option<Wakes> {
        let key = Key::of(&decided_by.metadata);
        let job = self.jobs.get(&key)?;
        if !Arc::ptr_eq(job, decided_by) {
            return None;
        }
        let promise = promise(decided_by, attempt);
        let freed = self.ledger.promise(&key, Some(promise));
        self.line.serve(&key);
        Some(Wakes {
            room: self.line.gain(&freed),
            ..Wakes::default()
        })
    }
}

/// What became of the first in line.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Serve(Key),
    TurnedAway,
}

/// The job whose pod of this name is not there yet: `<job>-<attempt>-<rank>`.
fn promised_to(pod: &str) -> Option<&str> {
    pod.rsplitn(3, '-').nth(2)
}

fn holds(pod: &seen::Pod) -> Option<Share> {
    let node = pod.node().filter(|_| !pod.is_finished())?;
    Some(Share {
        node: node.to_owned(),
        amount: pod.spec.requests.clone(),
    })
}

fn live_attempt(job: &TrainJob) -> Option<&Attempt> {
    let attempt = job.status.as_ref()?.current_attempt()?;
    attempt.outcome.is_none().then_some(attempt)
}

/// What a job was given whose pods may not be there yet. Until all of a gang run, the room of one that has ended is kept too, for should
/// its pod vanish it is created again.
fn promise_of(job: &TrainJob) -> Option<Promise> {
    let attempt = live_attempt(job).filter(|attempt| attempt.running_at.is_none())?;
    // One that is being deleted makes no more pods.
    let goes = job.metadata.deletion_timestamp.is_some();
    (!goes).then(|| promise(job, attempt))
}

fn promise(job: &TrainJob, attempt: &Attempt) -> Promise {
    Promise {
        attempt: attempt.number,
        nodes: attempt.nodes.clone(),
        each: pod::promised(job, attempt),
    }
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
