//! Why there is no room, and what would help.
//!
//! Each node is counted once, under the first thing that stands in the way there, so the numbers add up to the nodes.
//! What would help is found by asking the same solver about a changed cluster, or a changed gang.

mod help;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use stoke_api::{GpuRequest, Reason};

use crate::gang::{Gang, Topology};
use crate::place::Survey;
use crate::resources::Resources;
use crate::snapshot::{Taint, Trouble};

/// Why a gang was not placed. Its `Display` is one sentence, with what would help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explanation {
    /// Its workers must share a domain of a level that this cluster does not know.
    NoSuchLevel {
        level: String,
        levels: Vec<String>,
    },
    NoRoom(Box<NoRoom>),
}

/// Too little room, now or ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    pub workers: u32,
    /// An elastic gang would begin with so many.
    pub min_workers: u32,
    pub ask: Resources,
    /// What was asked for of GPUs, where that is not what `ask` counts.
    pub gpus: GpuRequest,
    /// The level of the topology within one domain of which all must be.
    pub within: Option<String>,
    /// All nodes there are.
    pub nodes: u32,
    /// Workers there is room for now.
    pub fitting: u32,
    /// Nodes that have no room for even one worker, by the first thing in the way.
    pub obstacles: BTreeMap<Obstacle, u32>,
    /// What would help, each by itself, the simplest first. Where [`Help::Wait`] is among it, each of the others lets it start at once;
    /// else each lets it start when enough of the work that runs has ended.
    pub help: Vec<Help>,
}

/// What stands in the way of a worker on a node, in the order in which it is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    NotReady,
    Cordoned,
    NotSelected,
    FarFromVolume,
    /// Kubernetes says that it lacks what no pod can do without, and lets none come.
    InTrouble,
    Tainted,
    WrongSpot,
    /// All workers must be in one domain of the topology, and nobody knows in which one it is.
    NoDomain,
    WrongGpuType,
    /// A whole GPU is asked for.
    PartedGpus,
    /// A part of a GPU is asked for.
    WholeGpusOnly,
    PartsTooSmall,
    /// A slice of a profile that it has none of.
    OtherSlices,
    // Even empty, the node is too small.
    TooFewGpus,
    TooLittleMemory,
    TooFewCpus,
    TooLittleDisk,
    TooFewPods,
    LacksDevice,
    // It would do, were it not for what runs there.
    GpusInUse,
    MemoryInUse,
    CpusInUse,
    DiskInUse,
    PodsInUse,
    DeviceInUse,
}

impl Obstacle {
    pub(crate) const TOO_SMALL: [Self; 6] = [
        Self::TooFewGpus,
        Self::TooLittleMemory,
        Self::TooFewCpus,
        Self::TooLittleDisk,
        Self::TooFewPods,
        Self::LacksDevice,
    ];
    pub(crate) const IN_USE: [Self; 6] = [
        Self::GpusInUse,
        Self::MemoryInUse,
        Self::CpusInUse,
        Self::DiskInUse,
        Self::PodsInUse,
        Self::DeviceInUse,
    ];
}

/// Something to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Help {
    /// Nothing: there is room when others are done.
    Wait,
    /// There is no node yet.
    AddNode,
    /// No node that is there could run it, whatever is changed.
    OtherNodes,
    /// A bigger pool: so many more nodes like this one.
    MoreNodes {
        count: u32,
        like: String,
    },
    /// One worker asks for more than any node has, even idle.
    AskLess {
        largest: Resources,
    },
    /// There is room for so many workers.
    FewerWorkers {
        fitting: u32,
    },
    /// Of each of these there is enough; none: only if any will do.
    OtherGpuTypes {
        products: BTreeSet<String>,
    },
    /// These there are, whole or in parts.
    OtherGpus {
        gpus: Vec<GpuRequest>,
    },
    /// There is room within one domain of this level; None: only if any domain will do.
    WiderTopology {
        level: Option<String>,
    },
    /// No node has so much of this.
    Provide {
        what: String,
    },
    NearVolume,
    WaitForReady,
    Uncordon,
    OtherSelector,
    /// Some of the taints, and how many more there are.
    Tolerate {
        taints: Vec<Taint>,
        more: usize,
    },
    /// Nodes that are in trouble.
    Mend {
        troubles: BTreeSet<Trouble>,
    },
    OtherSpot,
    /// Only all of these together.
    All(Vec<Help>),
}

impl Explanation {
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoSuchLevel { .. } => Reason::Misconfigured,
            Self::NoRoom(no_room) => no_room.reason(),
        }
    }
}

impl NoRoom {
    pub(crate) fn of(survey: &Survey<'_>) -> Self {
        let gang = survey.gang;
        let obstacles = survey.obstacles();
        Self {
            workers: gang.workers,
            min_workers: gang.least(),
            ask: gang.ask.clone(),
            gpus: gang.gpus.clone(),
            within: required_level(gang).map(str::to_owned),
            nodes: survey.snapshot.len() as u32,
            fitting: survey.fitting(),
            help: help::find(survey, &obstacles),
            obstacles,
        }
    }

    /// Is there room for it once others are done, or for some of it now?
    fn reason(&self) -> Reason {
        let possible = self.fitting > 0
            || Obstacle::IN_USE
                .iter()
                .any(|o| self.obstacles.contains_key(o));
        if possible {
            Reason::InsufficientCapacity
        } else {
            Reason::NoMatchingNodes
        }
    }
}

fn required_level(gang: &Gang) -> Option<&str> {
    match &gang.topology {
        Some(Topology::Required { level }) => Some(level),
        _ => None,
    }
}
