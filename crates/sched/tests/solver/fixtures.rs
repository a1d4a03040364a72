//! Small clusters and gangs to ask about.

use std::collections::BTreeMap;
use std::sync::Arc;

use stoke_sched::{Gang, Node, Resources, Snapshot, place};

use crate::sized;
pub use crate::sized::resources;

pub fn node(name: &str, gpus: u32) -> Node {
    sized::node(name, "NVIDIA-A100-SXM4-80GB", resources(32, 256, gpus))
}

pub fn gang(workers: u32, gpus: u32) -> Gang {
    sized::gang(workers, resources(4, 32, gpus))
}

pub fn busy(mut node: Node, used: Resources) -> Node {
    node.used = Resources { pods: 1, ..used };
    node
}

pub fn cluster(nodes: impl IntoIterator<Item = Node>) -> Snapshot {
    nodes.into_iter().collect()
}

pub fn says(snapshot: &Snapshot, gang: &Gang) -> String {
    match place(snapshot, gang) {
        Ok(plan) => plan.nodes.join(" "),
        Err(explanation) => format!("{}: {explanation}", explanation.reason()),
    }
}

pub fn labels(labels: &[(&str, &str)]) -> Arc<BTreeMap<String, String>> {
    let labels = labels.iter();
    let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Arc::new(labels.collect())
}

pub const LEVELS: [&str; 2] = ["block", "rack"];

/// With levels `block` and `rack`.
pub fn racked(nodes: impl IntoIterator<Item = Node>) -> Snapshot {
    let mut snapshot = cluster(nodes);
    snapshot.set_levels(LEVELS.map(str::to_owned));
    snapshot
}
