//! What placement knows of a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gpu::GpuModel;
use crate::resources::Resources;

/// A taint that keeps pods away; those that only prefer it are not here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    NoSchedule,
    NoExecute,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub name: String,
    /// What pods may use of it, all together.
    pub allocatable: Resources,
    /// What pods that have not ended asked for, and what is promised to those that are not created yet.
    pub used: Resources,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// Its agent says that it works.
    pub ready: bool,
    /// Nobody has cordoned it.
    pub schedulable: bool,
    /// Its GPUs; a node has one model.
    pub gpu: Option<GpuModel>,
    /// It can be taken away at any time.
    pub spot: bool,
}

impl Node {
    pub fn free(&self) -> Resources {
        self.allocatable.minus(&self.used)
    }
}

/// The nodes at one instant, by name.
///
/// Nodes are shared between snapshots, so that a copy costs a counter a node, and a change the one node that it is of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Invariant: in the order of names, each once.
    nodes: Vec<Arc<Node>>,
}

impl Snapshot {
    /// All nodes, in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().map(AsRef::as_ref)
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        let found = self.find(name).ok()?;
        self.nodes.get(found).map(AsRef::as_ref)
    }

    /// Adds a node, in place of the one of its name.
    pub fn put(&mut self, node: Node) {
        match self.find(&node.name) {
            Ok(found) => self.nodes[found] = Arc::new(node),
            Err(place) => self.nodes.insert(place, Arc::new(node)),
        }
    }

    pub fn remove(&mut self, name: &str) {
        if let Ok(found) = self.find(name) {
            self.nodes.remove(found);
        }
    }

    /// Says what is used of a node, if it is there.
    pub fn set_used(&mut self, name: &str, used: Resources) {
        if let Ok(found) = self.find(name)
            && self.nodes[found].used != used
        {
            Arc::make_mut(&mut self.nodes[found]).used = used;
        }
    }

    /// The same cluster with nothing running on it.
    pub fn idle(&self) -> Self {
        let mut idle = self.clone();
        for node in &mut idle.nodes {
            if node.used != Resources::default() {
                Arc::make_mut(node).used = Resources::default();
            }
        }
        idle
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.nodes
            .binary_search_by(|node| node.name.as_str().cmp(name))
    }
}

impl FromIterator<Node> for Snapshot {
    fn from_iter<I: IntoIterator<Item = Node>>(nodes: I) -> Self {
        let nodes: BTreeMap<String, Node> = nodes
            .into_iter()
            .map(|node| (node.name.clone(), node))
            .collect();
        Self {
            nodes: nodes.into_values().map(Arc::new).collect(),
        }
    }
}
