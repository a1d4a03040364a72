//! What is used of each node, kept up as pods and promises come and go.
//!
//! A pod that has not ended uses what it asks of its node. So does a worker that was promised room, for as long as its pod is not there.
//! A node's use is summed anew from what is on it whenever that changes: a handful of pods. Nothing is ever subtracted, so nothing drifts.
//!
//! Cost: a changed pod costs the pods on its node; a snapshot costs nothing, and the first change after it one pointer a node.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use stoke_api::names::pod_name;
use stoke_sched::{Node, Resources, Snapshot};

use crate::mirror::Key;

#[derive(Debug, Default)]
pub struct Ledger {
    snapshot: Arc<Snapshot>,
    /// By pod.
    claims: HashMap<Key, Claim>,
    /// The pods that claim something of a node, be it there or not.
    on_node: HashMap<String, HashSet<Key>>,
    /// By job.
    promises: HashMap<Key, Promise>,
}

/// Something of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub node: String,
    pub amount: Resources,
}

/// Room for a gang whose pods need not be there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    pub attempt: u32,
    /// By rank.
    pub nodes: Vec<String>,
    pub each: Resources,
}

/// What a node had free, and has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freed {
    pub before: Resources,
    pub after: Resources,
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
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The cluster as it were without what is promised to this job.
    pub fn snapshot_without(&self, job: &Key) -> Arc<Snapshot> {
        let Some(promise) = self.promises.get(job) else {
            return self.snapshot.clone();
        };
        let own: HashSet<Key> = pods(job, promise).map(|(pod, _)| pod).collect();
        let nodes: BTreeSet<&str> = promise.nodes.iter().map(String::as_str).collect();
        let mut snapshot = self.snapshot.as_ref().clone();
        for node in nodes {
            let used = self.used(node, |pod, claim| {
                claim.held.is_some() || !own.contains(pod)
            });
            snapshot.set_used(node, used);
        }
        Arc::new(snapshot)
    }

    /// Adds a node, in place of the one of its name.
    pub fn put_node(&mut self, mut node: Node) {
        node.used = self.used(&node.name, |_, _| true);
        Arc::make_mut(&mut self.snapshot).put(node);
    }

    pub fn remove_node(&mut self, name: &str) {
        Arc::make_mut(&mut self.snapshot).remove(name);
    }

    /// Pods that claim something of this node.
    pub fn on_node(&self, name: &str) -> impl Iterator<Item = &Key> {
        self.on_node.get(name).into_iter().flatten()
    }

    /// Says what a pod holds.
    pub fn hold(&mut self, pod: Key, share: Option<Share>) -> Vec<Freed> {
        let nodes = self.claim(pod, |claim| claim.held = share);
        self.settle(nodes)
    }

    /// Says what a job is promised, in place of what it was before.
    pub fn promise(&mut self, job: &Key, promise: Option<Promise>) -> Vec<Freed> {
        if self.promises.get(job) == promise.as_ref() {
            return Vec::new();
        }
        let mut touched = BTreeSet::new();
        if let Some(before) = self.promises.remove(job) {
            for (pod, _) in pods(job, &before) {
                touched.extend(self.claim(pod, |claim| claim.promised = None));
            }
        }
        if let Some(promise) = promise {
            for (pod, node) in pods(job, &promise) {
                let share = Share {
                    node: node.to_owned(),
                    amount: promise.each.clone(),
                };
                touched.extend(self.claim(pod, |claim| claim.promised = Some(share)));
            }
            self.promises.insert(job.clone(), promise);
        }
        self.settle(touched)
    }

    /// Changes a claim and says which nodes that is about.
    fn claim(&mut self, pod: Key, change: impl FnOnce(&mut Claim)) -> BTreeSet<String> {
        let node = |claim: &Claim| claim.share().map(|share| share.node.clone());
        let claim = self.claims.entry(pod.clone()).or_default();
        let before = node(claim);
        change(claim);
        let after = node(claim);
        if after.is_none() {
            self.claims.remove(&pod);
        }
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

    /// Sums up nodes anew, and says which have more room than before.
    fn settle(&mut self, nodes: BTreeSet<String>) -> Vec<Freed> {
        let mut freed = Vec::new();
        for name in nodes {
            let used = self.used(&name, |_, _| true);
            let Some(node) = self.snapshot.node(&name).filter(|node| node.used != used) else {
                continue;
            };
            let before = node.free();
            let after = node.allocatable.minus(&used);
            Arc::make_mut(&mut self.snapshot).set_used(&name, used);
            if before.clone().max(&after) != before {
                freed.push(Freed { before, after });
            }
        }
        freed
    }

    fn used(&self, node: &str, counts: impl Fn(&Key, &Claim) -> bool) -> Resources {
        let claims = self
            .on_node(node)
            .filter_map(|pod| Some((pod, self.claims.get(pod)?)));
        claims
            .filter(|(pod, claim)| counts(pod, claim))
            .filter_map(|(_, claim)| claim.share())
            .fold(Resources::default(), |sum, share| sum.plus(&share.amount))
    }
}

/// The pods of a promise, and their nodes.
fn pods<'a>(job: &Key, promise: &'a Promise) -> impl Iterator<Item = (Key, &'a str)> {
    (0..).zip(&promise.nodes).map(move |(rank, node)| {
        let name = pod_name(&job.name, promise.attempt, rank);
        (Key::new(&job.namespace, &name), node.as_str())
    })
}
