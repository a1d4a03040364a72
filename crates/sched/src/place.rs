//! First fit: nodes in the order of their names, as many workers on each as it has room for.

use stoke_api::GpuRequest;

use crate::explain::{Explanation, NoRoom, Obstacle};
use crate::gang::Gang;
use crate::gpu::{self, GpuModel};
use crate::resources::Resources;
use crate::snapshot::{Node, Snapshot};

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
    let elsewhere = |node: &Node| !gang.avoid.contains(&node.name);
    let found = if gang.avoid.is_empty() {
        None
    } else {
        filled(snapshot, gang, elsewhere)
    };
    found
        .or_else(|| filled(snapshot, gang, |_| true))
        .ok_or_else(|| Explanation::NoRoom(Box::new(NoRoom::of(snapshot, gang))))
}

fn filled(snapshot: &Snapshot, gang: &Gang, wanted: impl Fn(&Node) -> bool) -> Option<Plan> {
    let mut judge = Judge::of(gang);
    let mut nodes = Vec::new();
    for node in snapshot.nodes().filter(|node| wanted(node)) {
        let missing = gang.workers.saturating_sub(nodes.len() as u32);
        if missing == 0 {
            break;
        }
        let fitting = judge.room(node).unwrap_or(0).min(missing);
        nodes.extend((0..fitting).map(|_| node.name.clone()));
    }
    (nodes.len() as u32 == gang.workers).then_some(Plan { nodes })
}

/// How many workers of the gang there is room for, up to all of them. Cheaper than [`place`] where the answer is not all.
pub fn fitting(snapshot: &Snapshot, gang: &Gang) -> u32 {
    let mut judge = Judge::of(gang);
    let mut fitting = 0_u32;
    for node in snapshot.nodes() {
        if fitting >= gang.workers {
            break;
        }
        fitting = fitting.saturating_add(judge.room(node).unwrap_or(0));
    }
    fitting.min(gang.workers)
}

/// The nodes a worker may run on at all, busy or not and however much it asks for; by name. What it asks for where its author said
/// nothing is measured by these.
pub fn candidates<'a>(snapshot: &'a Snapshot, gang: &Gang) -> Vec<&'a Node> {
    let gpus = Resources {
        gpus: gang.ask.gpus,
        ..Resources::default()
    };
    let mut judge = Judge::of(gang);
    snapshot
        .nodes()
        .filter(|node| judge.mismatch(node).is_none() && node.allocatable.times(&gpus) > 0)
        .collect()
}

/// Holds nodes against one gang. A cluster has many nodes and few models of GPU, and names of those are slow to compare: each is judged
/// once.
pub(crate) struct Judge<'a> {
    gang: &'a Gang,
    models: Vec<(GpuModel, bool)>,
}

/// Models remembered. A cluster with more is judged right, and slower.
const MODELS_MAX: usize = 16;

impl<'a> Judge<'a> {
    pub(crate) fn of(gang: &'a Gang) -> Self {
        Self {
            gang,
            models: Vec::new(),
        }
    }

    /// How many workers of the gang the node has room for now, or the first thing that stands in the way of even one.
    pub(crate) fn room(&mut self, node: &Node) -> Result<u32, Obstacle> {
        self.room_of(node, &node.free(), Obstacle::IN_USE)
    }

    /// How many there would be room for, did nothing else run there.
    pub(crate) fn room_idle(&mut self, node: &Node) -> Result<u32, Obstacle> {
        self.room_of(node, &node.allocatable, Obstacle::TOO_SMALL)
    }

    fn room_of(
        &mut self,
        node: &Node,
        free: &Resources,
        in_use: [Obstacle; 6],
    ) -> Result<u32, Obstacle> {
        if let Some(obstacle) = self.mismatch(node) {
            return Err(obstacle);
        }
        let ask = &self.gang.ask;
        let short = shortage(&node.allocatable, ask, Obstacle::TOO_SMALL)
            .or_else(|| shortage(free, ask, in_use));
        match short {
            Some(obstacle) => Err(obstacle),
            None => Ok(free.times(ask)),
        }
    }

    /// What keeps the gang off this node, however empty it is.
    fn mismatch(&mut self, node: &Node) -> Option<Obstacle> {
        let gang = self.gang;
        let wants_gpus = gang.ask.gpus > 0 && node.allocatable.gpus > 0;
        let wants_type = wants_gpus && !gang.gpu_types.is_empty();
        if !node.ready {
            Some(Obstacle::NotReady)
        } else if !node.schedulable {
            Some(Obstacle::Cordoned)
        } else if !gang.selects(node) {
            Some(Obstacle::NotSelected)
        } else if !gang.reaches_volumes(node) {
            Some(Obstacle::FarFromVolume)
        } else if !gang.tolerates(node) {
            Some(Obstacle::Tainted)
        } else if !gang.accepts_spot(node) {
            Some(Obstacle::WrongSpot)
        } else if wants_type && !node.gpu.as_ref().is_some_and(|gpu| self.is_of_type(gpu)) {
            Some(Obstacle::WrongGpuType)
        } else if wants_gpus && node.gpu.as_ref().is_some_and(|gpu| gpu.parted) {
            Some(Obstacle::PartedGpus)
        } else {
            None
        }
    }

    fn is_of_type(&mut self, gpu: &GpuModel) -> bool {
        if let Some((_, judged)) = self.models.iter().find(|(model, _)| model == gpu) {
            return *judged;
        }
        let mut asked = self.gang.gpu_types.iter();
        let judged = asked.any(|asked| gpu::is_of_type(asked, gpu));
        if self.models.len() < MODELS_MAX {
            self.models.push((gpu.clone(), judged));
        }
        judged
    }
}

/// The first resource of which there is too little for one worker; `names` in the order GPUs, memory, CPUs, disk, pods, others.
fn shortage(have: &Resources, ask: &Resources, names: [Obstacle; 6]) -> Option<Obstacle> {
    let short = [
        ask.gpus > have.gpus,
        ask.memory > have.memory,
        ask.cpu > have.cpu,
        ask.storage > have.storage,
        ask.pods > have.pods,
        have.lacks(ask).is_some(),
    ];
    short.iter().position(|short| *short).map(|i| names[i])
}
