//! Why there is no room, and what would help.
//!
//! Each node is counted once, under the first thing that stands in the way there, so the numbers add up to the nodes.
//! What would help is found by asking the same solver about a changed cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use stoke_api::{GpuRequest, Reason};

use crate::gang::Gang;
use crate::place::Judge;
use crate::resources::Resources;
use crate::snapshot::Snapshot;

/// Why a gang was not placed. Its `Display` is one sentence, with what would help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Explanation {
    /// It asks for what this version cannot give.
    Unsupported {
        gpus: GpuRequest,
    },
    NoRoom(Box<NoRoom>),
}

/// Too little room, now or ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    pub workers: u32,
    pub ask: Resources,
    /// All nodes there are.
    pub nodes: u32,
    /// Workers there is room for now.
    pub fitting: u32,
    /// Nodes that have no room for even one worker, by the first thing in the way.
    pub obstacles: BTreeMap<Obstacle, u32>,
    pub help: Help,
}

/// What stands in the way of a worker on a node, in the order in which it is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    NotReady,
    Cordoned,
    NotSelected,
    FarFromVolume,
    Tainted,
    WrongSpot,
    WrongGpuType,
    PartedGpus,
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

    /// Said of one node, and of several.
    fn says(self) -> (&'static str, &'static str) {
        match self {
            Self::NotReady => ("is not ready", "are not ready"),
            Self::Cordoned => ("is cordoned", "are cordoned"),
            Self::NotSelected => ("is not selected", "are not selected"),
            Self::FarFromVolume => (
                "cannot reach one of its volumes",
                "cannot reach one of its volumes",
            ),
            Self::Tainted => ("is tainted", "are tainted"),
            Self::WrongSpot => (
                "is of the wrong kind (spot)",
                "are of the wrong kind (spot)",
            ),
            Self::WrongGpuType => ("has other GPUs", "have other GPUs"),
            Self::PartedGpus => (
                "gives its GPUs out in parts",
                "give their GPUs out in parts",
            ),
            Self::TooFewGpus => ("has too few GPUs", "have too few GPUs"),
            Self::TooLittleMemory => ("has too little memory", "have too little memory"),
            Self::TooFewCpus => ("has too few CPUs", "have too few CPUs"),
            Self::TooLittleDisk => ("has too little local disk", "have too little local disk"),
            Self::TooFewPods => ("takes too few pods", "take too few pods"),
            Self::LacksDevice => (
                "lacks a device or huge pages it asks for",
                "lack a device or huge pages it asks for",
            ),
            Self::GpusInUse => ("lacks free GPUs", "lack free GPUs"),
            Self::MemoryInUse => ("lacks free memory", "lack free memory"),
            Self::CpusInUse => ("lacks free CPUs", "lack free CPUs"),
            Self::DiskInUse => ("lacks free local disk", "lack free local disk"),
            Self::PodsInUse => ("lacks room for pods", "lack room for pods"),
            Self::DeviceInUse => (
                "lacks a free device, huge page or port it asks for",
                "lack a free device, huge page or port it asks for",
            ),
        }
    }
}

/// The next thing to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Help {
    /// Nothing: there is room when others are done.
    Wait,
    /// There is no node yet.
    AddNode,
    /// One worker asks for more than any node has, even idle.
    AskLess {
        largest: Resources,
    },
    /// Idle, the cluster has room for so many workers.
    FewerWorkers {
        fitting: u32,
    },
    OtherGpuTypes {
        products: BTreeSet<String>,
    },
    /// No node has so many of these.
    Provide {
        what: String,
    },
    WholeGpus,
    NearVolume,
    WaitForReady,
    Uncordon,
    OtherSelector,
    Tolerate,
    OtherSpot,
}

impl Explanation {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Unsupported { .. } => Reason::Misconfigured,
            Self::NoRoom(no_room) => no_room.reason(),
        }
    }
}

impl NoRoom {
    pub(crate) fn of(snapshot: &Snapshot, gang: &Gang) -> Self {
        let mut obstacles = BTreeMap::new();
        let mut fitting = 0_u32;
        let mut judge = Judge::of(gang);
        for node in snapshot.nodes() {
            match judge.room(node) {
                Ok(workers) => fitting = fitting.saturating_add(workers),
                Err(obstacle) => *obstacles.entry(obstacle).or_insert(0) += 1,
            }
        }
        Self {
            workers: gang.workers,
            ask: gang.ask.clone(),
            nodes: snapshot.len() as u32,
            fitting: fitting.min(gang.workers),
            help: help(snapshot, gang, &obstacles),
            obstacles,
        }
    }

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

fn help(snapshot: &Snapshot, gang: &Gang, obstacles: &BTreeMap<Obstacle, u32>) -> Help {
    if snapshot.is_empty() {
        return Help::AddNode;
    }
    // The same question, were nothing else running.
    let mut judge = Judge::of(gang);
    let rooms = snapshot
        .nodes()
        .filter_map(|node| judge.room_idle(node).ok());
    let fitting = rooms.fold(0, u32::saturating_add);
    if fitting >= gang.workers {
        return Help::Wait;
    }
    if fitting > 0 {
        return Help::FewerWorkers { fitting };
    }
    // No node will do. The obstacle that is met last is the one nearest to being a fit.
    match obstacles.keys().next_back() {
        Some(Obstacle::NotReady) => Help::WaitForReady,
        Some(Obstacle::Cordoned) => Help::Uncordon,
        Some(Obstacle::NotSelected) => Help::OtherSelector,
        Some(Obstacle::FarFromVolume) => Help::NearVolume,
        Some(Obstacle::Tainted) => Help::Tolerate,
        Some(Obstacle::WrongSpot) => Help::OtherSpot,
        Some(Obstacle::WrongGpuType) => Help::OtherGpuTypes {
            products: products(snapshot),
        },
        Some(Obstacle::PartedGpus) => Help::WholeGpus,
        Some(Obstacle::LacksDevice) => Help::Provide {
            what: lacking(snapshot, gang),
        },
        Some(_) | None => Help::AskLess {
            largest: largest(snapshot, gang),
        },
    }
}

fn products(snapshot: &Snapshot) -> BTreeSet<String> {
    let products = snapshot.nodes().filter_map(|node| node.gpu.as_ref());
    products.map(|gpu| gpu.product.clone()).collect()
}

/// What the nodes that would do otherwise have too little of.
fn lacking(snapshot: &Snapshot, gang: &Gang) -> String {
    let mut judge = Judge::of(gang);
    let mut would_do = snapshot
        .nodes()
        .filter(|node| judge.room(node) == Err(Obstacle::LacksDevice));
    let lacking = would_do.find_map(|node| node.allocatable.lacks(&gang.ask));
    lacking.map(ToString::to_string).unwrap_or_default()
}

/// The node that could do most for a worker: by GPUs, then memory.
fn largest(snapshot: &Snapshot, gang: &Gang) -> Resources {
    let mut judge = Judge::of(gang);
    let matching = snapshot.nodes().filter(|node| {
        judge
            .room(node)
            .is_err_and(|obstacle| obstacle > Obstacle::PartedGpus)
    });
    matching
        .map(|node| node.allocatable.clone())
        .max_by_key(|have| (have.gpus.min(gang.ask.gpus), have.memory, have.cpu))
        .unwrap_or_default()
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported {
                gpus: gpus @ GpuRequest::Mig(_),
            } => write!(
                f,
                "this version gives out whole GPUs, not MIG slices ({gpus}); set gpus to a whole number"
            ),
            Self::Unsupported { gpus } => write!(
                f,
                "this version gives out whole GPUs, not parts of one ({gpus}); set gpus to a whole number"
            ),
            Self::NoRoom(no_room) => no_room.fmt(f),
        }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.workers {
            1 => write!(f, "no room for a worker with {}", self.ask)?,
            n if self.fitting > 0 => {
                let fitting = self.fitting;
                write!(
                    f,
                    "room for {fitting} of {n} workers with {} each",
                    self.ask
                )?;
            }
            n => write!(f, "no room for {n} workers with {} each", self.ask)?,
        }
        let of = |count: u32| if count == 1 { "node" } else { "nodes" };
        write!(f, "; {} {}", self.nodes, of(self.nodes))?;
        for (i, (obstacle, count)) in self.obstacles.iter().enumerate() {
            let (one, many) = obstacle.says();
            let says = if *count == 1 { one } else { many };
            let lead = if i == 0 { ": " } else { ", " };
            write!(f, "{lead}{count} {says}")?;
        }
        write!(f, "; {}", self.help)
    }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait => f.write_str("it starts when enough of the work that runs has ended"),
            Self::AddNode => f.write_str("it starts when a node has joined"),
            Self::AskLess { largest } => {
                write!(f, "ask for less: the largest that matches has {largest}")
            }
            Self::FewerWorkers { fitting } => write!(
                f,
                "even idle there is room for only {fitting}: ask for fewer or smaller workers, or add nodes"
            ),
            Self::OtherGpuTypes { products } => {
                let products: Vec<&str> = products.iter().map(String::as_str).collect();
                write!(f, "change gpuTypes: there is {}", products.join(", "))
            }
            Self::Provide { what } => write!(
                f,
                "no node has that much {what}: ask for less of it in the template, or add nodes that have it"
            ),
            Self::WholeGpus => f.write_str(
                "this version gives out whole GPUs: add nodes without MIG and time-slicing",
            ),
            Self::NearVolume => f.write_str(
                "add a node where its volume is: kubectl get pv tells the zone or node in its node affinity",
            ),
            Self::WaitForReady => f.write_str("it starts when a node is ready"),
            Self::Uncordon => f.write_str("uncordon a node: kubectl uncordon NODE"),
            Self::OtherSelector => f.write_str(
                "label a node as template.spec.nodeSelector and affinity ask, or change them",
            ),
            Self::Tolerate => {
                f.write_str("add to template.spec.tolerations what the nodes are tainted with")
            }
            Self::OtherSpot => f.write_str("set spot to allowed, or add nodes of the other kind"),
        }
    }
}
