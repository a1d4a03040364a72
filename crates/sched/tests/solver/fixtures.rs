//! Small clusters and gangs to ask about.

use std::collections::BTreeMap;
use std::sync::Arc;

use stoke_api::{Bytes, CpuMilli, GpuRequest};
use stoke_sched::{Gang, GpuModel, Node, Resources, Snapshot, place};

pub fn resources(cpu: u64, gib: u64, gpus: u32) -> Resources {
    Resources {
        cpu: CpuMilli(cpu * 1000),
        memory: Bytes::gib(gib),
        gpus,
        pods: 110,
        ..Resources::default()
    }
}

pub fn node(name: &str, gpus: u32) -> Node {
    Node {
        name: name.to_owned(),
        allocatable: resources(32, 256, gpus),
        ready: true,
        schedulable: true,
        gpu: (gpus > 0).then(|| GpuModel {
            product: "NVIDIA-A100-SXM4-80GB".to_owned(),
            ..GpuModel::default()
        }),
        ..Node::default()
    }
}

pub fn gang(workers: u32, gpus: u32) -> Gang {
    Gang {
        workers,
        ask: Resources {
            pods: 1,
            ..resources(4, 32, gpus)
        },
        gpus: GpuRequest::Whole(gpus),
        ..Gang::default()
    }
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
