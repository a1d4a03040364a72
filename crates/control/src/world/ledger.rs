//! What is used of each node, kept up as pods and promises come and go.
//!
//! A pod that has not ended uses what it asks of its node. So does a worker whose attempt is on record, for as long as its pod is not there.
//! A node's use is summed anew from what is on it whenever that changes: a handful of pods. Nothing is ever subtracted, so nothing drifts.
//! What was given and is not on record yet is the scheduler's to count.
//!
//! Cost: a changed pod costs the pods on its node.

use std::collections::{BTreeSet, HashMap, HashSet};

use stoke_api::names::pod_name;
use stoke_sched::Resources;

use crate::cluster::devices::Taken;
use crate::mirror::Key;

#[derive(Debug, Default)]
pub struct Ledger {
    /// By pod.
    claims: HashMap<Key, Claim>,
    /// The pods that claim something of a node, be it there or not.
    on_node: HashMap<String, HashSet<Key>>,
    /// By job.
    promises: HashMap<Key, Promise>,
    /// By node, be it there or not.
    sums: HashMap<String, Resources>,
}

/// Something of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub node: String,
    pub amount: Resources,
    /// The GPUs it was given by index, where that is told.
    pub devices: Option<Box<[u32]>>,
}

/// Room for a gang whose pods need not be there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    pub attempt: u32,
    /// By rank; empty for one whose node an autoscaler has yet to bring.
    pub nodes: Vec<String>,
    pub each: Resources,
    /// By rank; none where the nodes pick.
    pub devices: Vec<Box<[u32]>>,
}

/// What is used of a node now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    pub node: String,
    pub amount: Resources,
    /// There is more room than before.
    pub freed: bool,
}

#[derive(Debug, Default)]
struct Claim {
    held: Option<Share>,
    promised: Option<Share>,
}

impl Claim {
    /// A pod that is there holds what it holds, whatever was promised.
    fn share(&self) -> Option<&Share> {
        self.held.as_ref().or(self.promised.as_ref())
    }
}

impl Ledger {
    pub fn used(&self, node: &str) -> Resources {
        self.sums.get(node).cloned().unwrap_or_default()
    }

    /// Pods that claim something of this node.
    pub fn on_node(&self, name: &str) -> impl Iterator<Item = &Key> {
        self.on_node.get(name).into_iter().flatten()
    }

    /// Says what a pod holds.
    pub fn hold(&mut self, pod: Key, share: Option<Share>) -> Vec<Used> {
        let nodes = self.claim(pod, |claim| claim.held = share);
        self.settle(nodes)
    }

    /// Says what a job is promised, in place of what it was before.
    pub fn promise(&mut self, job: &Key, promise: Option<Promise>) -> Vec<Used> {
        if self.promises.get(job) == promise.as_ref() {
            return Vec::new();
        }
        let mut touched = BTreeSet::new();
        if let Some(before) = self.promises.remove(job) {
            for (_, (pod, _)) in pods(job, &before) {
                touched.extend(self.claim(pod, |claim| claim.promised = None));
            }
        }
        if let Some(promise) = promise {
            for (rank, (pod, node)) in pods(job, &promise) {
                let devices = promise.devices.get(rank as usize);
                let share = Share {
                    node: node.to_owned(),
                    amount: promise.each.clone(),
                    devices: devices.cloned(),
                };
                touched.extend(self.claim(pod, |claim| claim.promised = Some(share)));
            }
            self.promises.insert(job.clone(), promise);
        }
        self.settle(touched)
    }

    /// Changes a claim and says of which nodes something else is used since.
    fn claim(&mut self, pod: Key, change: impl FnOnce(&mut Claim)) -> BTreeSet<String> {
        let claim = self.claims.entry(pod.clone()).or_default();
        let before = claim.share().cloned();
        change(claim);
        let after = claim.share().cloned();
        if after.is_none() {
            self.claims.remove(&pod);
        }
        if before == after {
            return BTreeSet::new();
        }
        let (before, after) = (before.map(|it| it.node), after.map(|it| it.node));
        if before != after {
            if let Some(before) = &before
                && let Some(on_node) = self.on_node.get_mut(before)
            {
                on_node.remove(&pod);
                if on_node.is_empty() {
                    self.on_node.remove(before);
                }
            }
            if let Some(after) = &after {
                self.on_node.entry(after.clone()).or_default().insert(pod);
            }
        }
        before.into_iter().chain(after).collect()
    }

    /// What pods and promises have of a node.
    pub fn taken(&self, node: &str) -> impl Iterator<Item = Taken<'_>> {
        let claims = self.on_node(node).filter_map(|pod| self.claims.get(pod));
        claims.filter_map(Claim::share).map(|share| Taken {
            amount: &share.amount,
            devices: share.devices.as_deref(),
        })
    }

    /// Sums up nodes anew.
    fn settle(&mut self, nodes: BTreeSet<String>) -> Vec<Used> {
        let mut changed = Vec::new();
        for node in nodes {
            let taken = self.taken(&node);
            let after = taken.fold(Resources::default(), |sum, taken| sum.plus(taken.amount));
            let before = self.used(&node);
            if after == Resources::default() {
                self.sums.remove(&node);
            } else {
                self.sums.insert(node.clone(), after.clone());
            }
            changed.push(Used {
                freed: before.max(&after) != after,
                amount: after,
                node,
            });
        }
        changed
    }
}

/// The pods of a promise by rank, and their nodes.
fn pods<'a>(job: &Key, promise: &'a Promise) -> impl Iterator<Item = (u32, (Key, &'a str))> {
    let placed = (0..)
        .zip(&promise.nodes)
        .filter(|(_, node)| !node.is_empty());
    placed.map(move |(rank, node)| {
        let name = pod_name(&job.name, promise.attempt, rank);
        (rank, (Key::new(&job.namespace, &name), node.as_str()))
    })
}
