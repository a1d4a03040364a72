//! What the controllers know of the cluster: one mirror a kind, what is used of each node, who wants room and who has some, and who must be
//! woken by a change.
//!
//! Synchronous and without a client, so that it can be asked under a lock and tested without a server. Everything that is derived from the
//! mirrors is kept up change by change: no change costs a walk over all pods, and only a changed node or dataset one over all jobs; that a dataset is
//! warm on one node more costs none.

mod holding;
mod kinds;
mod leaving;
mod ledger;
mod profiles;
mod rooms;
mod serving;
mod shortage;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::runtime::watcher::Event;
use stoke_api::{Bytes, Dataset, DatasetSpec, JobProfile, Queue, TrainJob};

pub use self::holding::{first, joined, plan_of};
use self::holding::{holds, lease, lease_of, live_attempt, promise_of};
pub use self::kinds::Kind;
use self::ledger::{Ledger, Used};
pub use self::profiles::Outlived;
use self::rooms::Rooms;
pub use self::rooms::{Ask, Demand, Grant, Room, id_of, key_of};
pub use self::serving::{Changed, fetches, needs_nodes};
pub use self::shortage::Shortage;
use crate::cluster::{self, Claim, Notice};
use crate::config::Config;
use crate::mirror::{Change, Key, Mirror, Mirrored as _};
use crate::seen;

#[derive(Debug)]
pub struct World {
    config: Config,
    pub jobs: Mirror<TrainJob>,
    pub pods: Mirror<seen::Pod>,
    pub nodes: Mirror<Node>,
    pub datasets: Mirror<Dataset>,
    pub queues: Mirror<Queue>,
    profiles: Mirror<JobProfile>,
    claims: Mirror<PersistentVolumeClaim>,
    volumes: Mirror<PersistentVolume>,
    ledger: Ledger,
    rooms: Rooms,
    /// The pods that carry each job's label, by name; job and pods share a namespace.
    workers: HashMap<Key, BTreeSet<Box<str>>>,
    /// The jobs that learn from each profile, whether it is there or not.
    learners: HashMap<Key, BTreeSet<Key>>,
    /// By namespace, when each profile was touched last and its name.
    ages: BTreeMap<String, BTreeSet<(Timestamp, Box<str>)>>,
    /// Pods without a node.
    unbound: BTreeSet<Key>,
    addresses: Arc<BTreeMap<String, String>>,
    /// Nodes that go away, or may.
    notices: BTreeMap<String, Notice>,
    /// Were most nodes silent when the last change of one was noted?
    was_outage: bool,
    /// The ports that each job's latest attempt has, or its next will. Empty where pods have a network of their own.
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
    /// Queues that were changed, by name.
    pub queues: Vec<String>,
    /// Queues of which a job has changed; those above them included.
    pub queues_soon: Vec<String>,
    /// There may be more profiles than are kept.
    pub profiles: bool,
    /// The scheduler may decide something new.
    pub room: bool,
}

impl World {
    pub fn new(config: Config) -> Self {
        let mut rooms = Rooms::default();
        rooms.stir().set_levels(config.topology.iter().cloned());
        Self {
            config,
            jobs: Mirror::default(),
            pods: Mirror::default(),
            nodes: Mirror::default(),
            datasets: Mirror::default(),
            queues: Mirror::default(),
            profiles: Mirror::default(),
            claims: Mirror::default(),
            volumes: Mirror::default(),
            ledger: Ledger::default(),
            rooms,
            workers: HashMap::new(),
            learners: HashMap::new(),
            ages: BTreeMap::new(),
            unbound: BTreeSet::new(),
            addresses: Arc::default(),
            notices: BTreeMap::new(),
            was_outage: false,
            leased: BTreeMap::new(),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.jobs.is_complete()
            && self.pods.is_complete()
            && self.nodes.is_complete()
            && self.datasets.is_complete()
            && self.queues.is_complete()
            && self.profiles.is_complete()
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
        let used = self.ledger.promise(&key, after.and_then(promise_of));
        let room = self.tell_used(used);
        self.stand(&key, change);
        self.lease(&key);
        if edited {
            self.index_learner(&key, change);
        }
        let queues = [&change.before, &change.after];
        let queues = queues.into_iter().flatten().filter_map(|job| job.queue());
        let mut wakes = Wakes {
            room: room || self.rooms.is_stirred(),
            forced: edited.then(|| key.clone()),
            queues_soon: self.with_those_above(queues),
            ..Wakes::default()
        };
        if after.and_then(live_attempt).is_some() {
            wakes.jobs.push(key);
        } else {
            wakes.jobs_waiting.push(key);
        }
        wakes
    }

    /// Takes note of the ports that a job has: those that it was given with its room, or else those of its latest attempt.
    fn lease(&mut self, key: &Key) {
        let job = self.jobs.get(key);
        let given = self.rooms.given(key).zip(job);
        let given = given.and_then(|(grant, job)| {
            let workers = grant.plan.nodes.len();
            Some(lease(job, grant.port?, workers))
        });
        let lease = given.or_else(|| lease_of(job?));
        let before = match lease.clone() {
            Some(lease) => self.leased.insert(key.clone(), lease),
            None => self.leased.remove(key),
        };
        if before.is_some() && before != lease {
            self.rooms.gain_ports();
        }
    }

    /// Tells the scheduler what is used of nodes. True where there is more room than before.
    fn tell_used(&mut self, used: Vec<Used>) -> bool {
        let mut freed = false;
        for Used {
            node,
            amount,
            freed: has_more,
        } in used
        {
            freed |= has_more;
            let known = self.rooms.scheduler().snapshot().node(&node);
            let devices = known.and_then(|known| cluster::devices(known, self.ledger.taken(&node)));
            self.rooms.set_used(&node, amount, devices);
        }
        freed
    }

    /// These queues and all above them, once each.
    fn with_those_above<'a>(&'a self, queues: impl Iterator<Item = &'a str>) -> Vec<String> {
        let mut found = BTreeSet::new();
        for mut name in queues {
            // Whoever is above itself is met again.
            while found.insert(name.to_owned()) {
                let queue = self.queues.get(&Key::new("", name));
                match queue.and_then(|queue| queue.spec.parent.as_deref()) {
                    Some(parent) => name = parent,
                    None => break,
                }
            }
        }
        found.into_iter().collect()
    }

    fn pod_changed(&mut self, change: &Change<seen::Pod>) -> Wakes {
        let Some(pod) = change.latest() else {
            return Wakes::default();
        };
        let key = pod.key();
        let after = change.after.as_deref();
        let used = self.ledger.hold(key.clone(), after.and_then(holds));
        let mut wakes = Wakes {
            room: self.tell_used(used),
            ..Wakes::default()
        };
        if let Some(job) = &pod.metadata.job {
            let job = Key::new(&key.namespace, job);
            self.index_worker(&job, &key, after.is_some());
            self.worker_changed(&job, change);
            if !self.decides(&job, change) {
                wakes.jobs_soon.push(job);
            } else if after.is_some_and(seen::Pod::is_on_its_way) {
                // That all of them run is a word: who waits to be placed, or for its pods, goes before it.
                wakes.jobs_waiting.push(job);
            } else {
                wakes.jobs.push(job);
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
        let known = self.rooms.scheduler().snapshot().node(&name);
        let is_same = match (known, &after) {
            (Some(known), Some(after)) => is_same(known, after),
            (None, None) => true,
            _ => false,
        };
        let is_same = is_same && self.addresses.get(&name).map(String::as_str) == address;
        let notice = change.after.as_deref().and_then(cluster::notice);
        if is_same && self.notices.get(&name) == notice.as_ref() {
            return Wakes::default();
        }
        let others_lost = self.note(&name, notice);
        let addresses = Arc::make_mut(&mut self.addresses);
        match address {
            Some(address) => addresses.insert(name.clone(), address.to_owned()),
            None => addresses.remove(&name),
        };
        let mut jobs = self.jobs_on(&name);
        if let Some(after) = after {
            self.rooms.put_node(stoke_sched::Node {
                used: self.ledger.used(&name),
                devices: cluster::devices(&after, self.ledger.taken(&name)),
                ..after
            });
        } else {
            // Who was given room there, and has nothing on record yet, is given other room.
            for key in self.rooms.given_on(&name) {
                self.rooms.want(&key, true);
                self.lease(&key);
                jobs.push(key);
            }
            self.rooms.remove_node(&name);
        }
        for key in &jobs {
            self.hold(key, None);
        }
        jobs.extend(others_lost);
        Wakes {
            room: true,
            jobs,
            jobs_later: self.rooms.wanting().cloned().collect(),
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
        let key = Key::of(&dataset.metadata);
        let staged = change.after.as_deref().and_then(cluster::staged);
        self.rooms.put_dataset(&key, staged);
        // Where it is warm changes with every copy, and decides only where jobs go that are yet to be placed: the scheduler knows it now.
        if decides(change.before.as_deref()) == decides(change.after.as_deref()) {
            return Wakes::default();
        }
        let name = key.name.as_str();
        let names = |job: &TrainJob| {
            !job.is_finished()
                && job.metadata.namespace == dataset.metadata.namespace
                && job.spec.datasets.iter().any(|mount| mount.name == name)
        };
        let jobs = self.jobs.iter().filter(|(_, job)| names(job));
        let jobs: Vec<Key> = jobs.map(|(key, _)| key.clone()).collect();
        self.look_again(&jobs);
        Wakes {
            room: true,
            jobs_waiting: jobs,
            ..Wakes::default()
        }
    }

    /// Who wants room in its namespace may have waited for it to be bound, or to be another.
    fn claim_changed(&mut self, change: &Change<PersistentVolumeClaim>) -> Wakes {
        let namespace = change
            .latest()
            .and_then(|claim| claim.metadata.namespace.as_deref());
        let wanting = self.rooms.wanting();
        let jobs = wanting.filter(|key| Some(key.namespace.as_str()) == namespace);
        let jobs: Vec<Key> = jobs.cloned().collect();
        self.look_again(&jobs);
        Wakes {
            room: true,
            jobs_waiting: jobs,
            ..Wakes::default()
        }
    }

    /// What these asked for may be out of date.
    fn look_again(&mut self, jobs: &[Key]) {
        for key in jobs {
            if self.rooms.wants(key) {
                self.rooms.want(key, true);
                self.lease(key);
            }
        }
    }

    fn queue_changed(&mut self, change: &Change<Queue>) -> Wakes {
        let Some(queue) = change.latest() else {
            return Wakes::default();
        };
        let spec = |queue: &Option<Arc<Queue>>| queue.as_ref().map(|queue| queue.spec.clone());
        if spec(&change.before) == spec(&change.after) {
            return Wakes::default();
        }
        let all = self.queues.iter();
        let all = all.map(|(key, queue)| (key.name.clone(), queue.spec.clone()));
        self.rooms.stir().set_queues(all.collect::<Vec<_>>());
        let name = Key::of(&queue.metadata).name;
        // A parent that comes or goes is told of in all of them.
        let queues = self.queues.iter().map(|(key, _)| key.name.clone());
        Wakes {
            room: true,
            jobs_later: self.jobs_of_queue(&name),
            queues: queues.collect(),
            ..Wakes::default()
        }
    }

    /// Those who want room by way of this queue.
    fn jobs_of_queue(&self, name: &str) -> Vec<Key> {
        let of_it = |key: &&Key| {
            let job = self.jobs.get(key);
            job.is_some_and(|job| job.queue() == Some(name))
        };
        self.rooms.wanting().filter(of_it).cloned().collect()
    }

    /// A claim, as placement sees it.
    pub fn claim(&self, key: &Key) -> Option<Claim> {
        let claim = self.claims.get(key)?;
        let volume = Claim::volume_name(claim);
        let volume = volume.and_then(|name| self.volumes.get(&Key::new("", name)));
        Some(Claim::of(claim, volume.map(AsRef::as_ref)))
    }

    pub fn addresses(&self) -> Arc<BTreeMap<String, String>> {
        self.addresses.clone()
    }

    /// Ports that other jobs have.
    pub fn ports_of_others(&self, key: &Key) -> Vec<RangeInclusive<u16>> {
        let others = self.leased.iter().filter(|(owner, _)| *owner != key);
        others.map(|(_, ports)| ports.clone()).collect()
    }
}

/// What of a dataset jobs ask by: what it is, and how much, for memory is sized by that.
fn decides(dataset: Option<&Dataset>) -> Option<(&DatasetSpec, Option<Bytes>)> {
    let dataset = dataset?;
    let status = dataset.status.as_ref();
    Some((&dataset.spec, status.and_then(|status| status.size)))
}

/// The same, whatever is used of it.
fn is_same(known: &stoke_sched::Node, after: &stoke_sched::Node) -> bool {
    let as_used = stoke_sched::Node {
        used: known.used.clone(),
        devices: known.devices.clone(),
        ..after.clone()
    };
    *known == as_used
        && known.devices.as_ref().map(Vec::len) == after.devices.as_ref().map(Vec::len)
}

/// The job whose pod of this name is not there yet: `<job>-<attempt>-<rank>`.
fn promised_to(pod: &str) -> Option<&str> {
    pod.rsplitn(3, '-').nth(2)
}
