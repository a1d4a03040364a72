//! First fit: nodes in the order of their names, as many workers on each as it has room for.

use stoke_api::GpuRequest;

use crate::explain::{Explanation, NoRoom, Obstacle};
use crate::gang::Gang;
use crate::gpu;
use crate::snapshot::{Node, Resources, Snapshot};

/// The node of each worker, by rank. As many as the gang has workers, never fewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub nodes: Vec<String>,
}

/// Finds room for the whole gang, or says why there is none.
///
/// No node is given more than it has free, and workers with neighbouring ranks share a node where they can.
pub fn place(snapshot: &Snapshot, gang: &Gang) -> Result<Plan, Explanation> {
    if matches!(gang.gpus, GpuRequest::Fraction(_) | GpuRequest::Mig(_)) {
        return Err(Explanation::Unsupported {
            gpus: gang.gpus.clone(),
        });
    }
    let mut nodes = Vec::new();
    for node in by_name(snapshot) {
        let missing = gang.workers.saturating_sub(nodes.len() as u32);
        let fitting = room(node, gang).unwrap_or(0).min(missing);
        nodes.extend((0..fitting).map(|_| node.name.clone()));
    }
    if nodes.len() as u32 == gang.workers {
        Ok(Plan { nodes })
    } else {
        Err(Explanation::NoRoom(NoRoom::of(snapshot, gang)))
    }
}

/// The nodes a worker may run on at all, busy or not and however much it asks for; by name. What it asks for where its author said
/// nothing is measured by these.
pub fn candidates<'a>(snapshot: &'a Snapshot, gang: &Gang) -> Vec<&'a Node> {
    let gpus = Resources {
        gpus: gang.ask.gpus,
        ..Resources::default()
    };
    by_name(snapshot)
        .into_iter()
        .filter(|node| mismatch(node, gang).is_none() && node.allocatable.times(gpus) > 0)
        .collect()
}

pub(crate) fn by_name(snapshot: &Snapshot) -> Vec<&Node> {
    let mut nodes: Vec<&Node> = snapshot.nodes.iter().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

/// How many workers of the gang the node has room for now, or the first thing that stands in the way of even one.
pub(crate) fn room(node: &Node, gang: &Gang) -> Result<u32, Obstacle> {
    if let Some(obstacle) = mismatch(node, gang) {
        return Err(obstacle);
    }
    if let Some(obstacle) = shortage(node.allocatable, gang.ask, Obstacle::TOO_SMALL) {
        return Err(obstacle);
    }
    if let Some(obstacle) = shortage(node.free(), gang.ask, Obstacle::IN_USE) {
        return Err(obstacle);
    }
    Ok(node.free().times(gang.ask))
}

/// What keeps the gang off this node, however empty it is.
fn mismatch(node: &Node, gang: &Gang) -> Option<Obstacle> {
    let of_type = |gpu| {
        gang.gpu_types
            .iter()
            .any(|asked| gpu::is_of_type(asked, gpu))
    };
    let wants_type = gang.ask.gpus > 0 && !gang.gpu_types.is_empty();
    if !node.ready {
        Some(Obstacle::NotReady)
    } else if !node.schedulable {
        Some(Obstacle::Cordoned)
    } else if !gang.selects(node) {
        Some(Obstacle::NotSelected)
    } else if !gang.tolerates(node) {
        Some(Obstacle::Tainted)
    } else if !gang.accepts_spot(node) {
        Some(Obstacle::WrongSpot)
    } else if wants_type && node.allocatable.gpus > 0 && !node.gpu.as_ref().is_some_and(of_type) {
        Some(Obstacle::WrongGpuType)
    } else {
        None
    }
}

/// The first resource of which there is too little for one worker; `names` in the order GPUs, memory, CPUs, pods.
fn shortage(have: Resources, ask: Resources, names: [Obstacle; 4]) -> Option<Obstacle> {
    let short = [
        ask.gpus > have.gpus,
        ask.memory > have.memory,
        ask.cpu > have.cpu,
        ask.pods > have.pods,
    ];
    short.iter().position(|short| *short).map(|i| names[i])
}
