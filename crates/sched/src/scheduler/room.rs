//! The nodes, as the caller tells of them, and what was set aside beside that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::job::JobId;
use crate::gang::Gang;
use crate::place::Plan;
use crate::queues::{Milli, Models, Use};
use crate::resources::Resources;
use crate::snapshot::{DEVICE, Node, Snapshot};

#[derive(Debug, Clone, Default)]
pub struct Room {
    /// As the caller has it.
    told: Snapshot,
    /// With what was set aside.
    pub now: Snapshot,
    aside: BTreeMap<JobId, Aside>,
    /// Who has something set aside on each node.
    on_node: BTreeMap<String, BTreeSet<JobId>>,
    pub models: Models,
    /// All there is, of nodes that are ready.
    pub capacity: Use,
}

#[derive(Debug, Clone)]
struct Aside {
    plan: Plan,
    gang: Arc<Gang>,
}

/// What a change of a node means for those who wait.
#[derive(Debug)]
pub enum Gain {
    None,
    /// There is more room than before.
    Room {
        before: Resources,
        after: Resources,
    },
    /// The node is not what it was.
    Node {
        has_new_model: bool,
    },
}

impl Room {
    pub fn put(&mut self, node: Node) -> Gain {
        let name = node.name.clone();
        if self.told.node(&name) == Some(&node) {
            return Gain::None;
        }
        let is_same_but_used = self.told.node(&name).is_some_and(|known| {
            let same = Node {
                used: known.used.clone(),
                devices: known.devices.clone(),
                ..node.clone()
            };
            *known == same && known.devices.is_some() == node.devices.is_some()
        });
        if is_same_but_used {
            return self.change(&name, |told| told.put(node));
        }
        let has_new_model = node.gpu.as_ref().is_some_and(|gpu| self.models.learn(gpu));
        if let Some(known) = self.told.node(&name) {
            self.capacity -= offers(known, &self.models);
        }
        self.capacity += offers(&node, &self.models);
        self.told.put(node);
        self.refresh(&name);
        Gain::Node { has_new_model }
    }

    pub fn remove(&mut self, name: &str) -> Gain {
        let Some(known) = self.told.node(name) else {
            return Gain::None;
        };
        self.capacity -= offers(known, &self.models);
        self.told.remove(name);
        self.now.remove(name);
        Gain::Node {
            has_new_model: false,
        }
    }

    /// Takes another count of what is used of a node.
    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Snapshot)) -> Gain {
        let state = |node: &Node| (node.free(), node.devices.clone());
        let Some((before, devices)) = self.now.node(name).map(state) else {
            return Gain::None;
        };
        change(&mut self.told);
        self.refresh(name);
        match self.now.node(name).map(state) {
            Some((after, same)) if after == before && same == devices => Gain::None,
            Some((after, _)) => Gain::Room { before, after },
            None => Gain::None,
        }
    }

    /// Says which labels tell a node's domain. True where they are others than before.
    pub fn set_levels(&mut self, levels: &[String]) -> bool {
        let before = self.told.levels().to_vec();
        self.told.set_levels(levels.iter().cloned());
        self.now.set_levels(levels.iter().cloned());
        self.told.levels() != before
    }

    /// Keeps room for a job, beside what the caller says is used.
    pub fn set_aside(&mut self, id: &JobId, plan: Plan, gang: Arc<Gang>) {
        self.now.take(&plan, &gang);
        for node in &plan.nodes {
            let jobs = self.on_node.entry(node.clone()).or_default();
            jobs.insert(id.clone());
        }
        self.aside.insert(id.clone(), Aside { plan, gang });
    }

    /// Gives back what was set aside for a job: what there is free of each of its nodes, before and after.
    pub fn give_back(&mut self, id: &JobId) -> Vec<(Resources, Resources)> {
        let Some(aside) = self.aside.remove(id) else {
            return Vec::new();
        };
        let nodes: BTreeSet<&String> = aside.plan.nodes.iter().collect();
        let mut freed = Vec::new();
        for name in nodes {
            if let Some(jobs) = self.on_node.get_mut(name) {
                jobs.remove(id);
                if jobs.is_empty() {
                    self.on_node.remove(name);
                }
            }
            let before = self.now.node(name).map(Node::free);
            self.refresh(name);
            let after = self.now.node(name).map(Node::free);
            freed.extend(before.zip(after));
        }
        freed
    }

    /// Makes a node anew from what was told of it and what is set aside there.
    fn refresh(&mut self, name: &str) {
        let Some(told) = self.told.node(name) else {
            return;
        };
        self.now.put(told.clone());
        for id in self.on_node.get(name).into_iter().flatten() {
            if let Some(aside) = self.aside.get(id) {
                let here = part(&aside.plan, |_, node| node == name);
                self.now.take(&here, &aside.gang);
            }
        }
    }

    /// Counts all there is anew, after models were numbered anew.
    pub fn count(&mut self) {
        self.capacity = Use::default();
        for node in self.told.nodes() {
            self.capacity += offers(node, &self.models);
        }
    }

    /// What a gang uses that is placed so.
    pub fn used_by(&self, plan: &Plan, gang: &Gang, milli_each: u64) -> Use {
        let each = plan.each(gang);
        let mut used = Use::default();
        for name in &plan.nodes {
            let model = self.now.node(name).and_then(|node| node.gpu.as_ref());
            used += Use {
                gpus: Milli::of(self.models.id(model), milli_each),
                cpu: each.cpu.0,
                memory: each.memory.0,
            };
        }
        used
    }
}

fn offers(node: &Node, models: &Models) -> Use {
    if !node.ready {
        return Use::default();
    }
    let gpus = u64::from(node.allocatable.gpus) * 1000;
    Use {
        gpus: Milli::of(models.id(node.gpu.as_ref()), gpus),
        cpu: node.allocatable.cpu.0,
        memory: node.allocatable.memory.0,
    }
}

/// The ranks of a plan that are wanted.
pub fn part(plan: &Plan, wanted: impl Fn(usize, &str) -> bool) -> Plan {
    let ranks = || 0..plan.nodes.len();
    let is_wanted = |rank: &usize| wanted(*rank, &plan.nodes[*rank]);
    let devices = |rank: usize| plan.devices.get(rank).cloned().unwrap_or_default();
    Plan {
        nodes: ranks()
            .filter(is_wanted)
            .map(|rank| plan.nodes[rank].clone())
            .collect(),
        devices: ranks().filter(is_wanted).map(devices).collect(),
        resource: plan.resource.clone(),
    }
}

/// Of a node, whatever is used more there or in another view of it.
pub fn raise(snapshot: &mut Snapshot, floor: &Node) {
    let Some(node) = snapshot.node(&floor.name) else {
        return;
    };
    let used = node.used.clone().max(&floor.used);
    let devices = match (&node.devices, &floor.devices) {
        (Some(own), Some(other)) => {
            let both = own.iter().zip(other);
            Some(both.map(|(own, other)| *own.max(other)).collect())
        }
        (own, _) => own.clone(),
    };
    snapshot.set_used(&floor.name, used);
    snapshot.set_devices(&floor.name, devices);
}

/// Is more used of a node than it has?
pub fn is_overfull(node: &Node) -> bool {
    let (used, have) = (&node.used, &node.allocatable);
    used.cpu > have.cpu
        || used.memory > have.memory
        || used.storage > have.storage
        || used.gpus > have.gpus
        || used.pods > have.pods
        || used
            .others
            .iter()
            .any(|(other, used)| *used > have.of(other))
        || node.devices.iter().flatten().any(|in_use| *in_use > DEVICE)
}
