//! Nodes and gangs of any size.

use stoke_api::{Bytes, CpuMilli, GpuRequest};
use stoke_sched::{Gang, GpuModel, Node, Resources};

/// Of a node; what a worker asks for is one pod.
pub fn resources(cpu: u64, gib: u64, gpus: u32) -> Resources {
    Resources {
        cpu: CpuMilli(cpu * 1000),
        memory: Bytes::gib(gib),
        gpus,
        pods: 110,
        ..Resources::default()
    }
}

pub fn node(name: &str, product: &str, allocatable: Resources) -> Node {
    Node {
        name: name.to_owned(),
        ready: true,
        schedulable: true,
        gpu: (allocatable.gpus > 0).then(|| GpuModel {
            product: product.to_owned(),
            ..GpuModel::default()
        }),
        allocatable,
        ..Node::default()
    }
}

pub fn gang(workers: u32, each: Resources) -> Gang {
    Gang {
        workers,
        gpus: GpuRequest::Whole(each.gpus),
        ask: Resources { pods: 1, ..each },
        ..Gang::default()
    }
}
