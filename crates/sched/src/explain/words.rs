//! The sentences.

use std::fmt;

use stoke_api::GpuRequest;

use super::{Explanation, Help, NoRoom, Obstacle};
use crate::gang::HOSTNAME;
use crate::snapshot::Trouble;

/// More than this makes no sentence.
const HELPS_TOLD_MAX: usize = 3;

impl Obstacle {
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
            Self::InTrouble => ("is in trouble", "are in trouble"),
            Self::Tainted => ("is tainted", "are tainted"),
            Self::WrongSpot => (
                "is of the wrong kind (spot)",
                "are of the wrong kind (spot)",
            ),
            Self::NoDomain => (
                "lacks the label of the required topology level",
                "lack the label of the required topology level",
            ),
            Self::WrongGpuType => ("has other GPUs", "have other GPUs"),
            Self::PartedGpus => (
                "gives its GPUs out in parts",
                "give their GPUs out in parts",
            ),
            Self::WholeGpusOnly => ("gives out whole GPUs only", "give out whole GPUs only"),
            Self::PartsTooSmall => (
                "gives its GPUs out in smaller parts",
                "give their GPUs out in smaller parts",
            ),
            Self::OtherSlices => ("has no such MIG slice", "have no such MIG slice"),
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

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchLevel { level, levels } if levels.is_empty() => write!(
                f,
                "its topology requires one domain of {level}, and this cluster has no topology levels; set it to preferred, or configure the levels"
            ),
            Self::NoSuchLevel { level, levels } => write!(
                f,
                "its topology requires one domain of {level}, which is no level of this cluster; there is {}",
                levels.join(", ")
            ),
            Self::NoRoom(no_room) => no_room.fmt(f),
        }
    }
}

impl NoRoom {
    fn worker(&self) -> String {
        match &self.gpus {
            GpuRequest::Fraction(_) => {
                let gpus = format!("{} of a GPU", self.gpus);
                self.ask.told(Some(gpus))
            }
            GpuRequest::Mig(profile) => self.ask.told(Some(format!("a {profile} slice"))),
            GpuRequest::None | GpuRequest::Whole(_) => self.ask.to_string(),
        }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worker = self.worker();
        match self.workers {
            1 => write!(f, "no room for a worker with {worker}")?,
            n if self.fitting > 0 => {
                let fitting = self.fitting;
                write!(f, "room for {fitting} of {n} workers with {worker} each")?;
            }
            n => write!(f, "no room for {n} workers with {worker} each")?,
        }
        if self.min_workers < self.workers {
            write!(f, ", at least {}", self.min_workers)?;
        }
        match self.within.as_deref() {
            Some(HOSTNAME) => f.write_str(", all on one node")?,
            Some(level) => write!(f, ", all in one {}", short(level))?,
            None => {}
        }
        let of = |count: u32| if count == 1 { "node" } else { "nodes" };
        write!(f, "; {} {}", self.nodes, of(self.nodes))?;
        for (i, (obstacle, count)) in self.obstacles.iter().enumerate() {
            let (one, many) = obstacle.says();
            let says = if *count == 1 { one } else { many };
            let lead = if i == 0 { ": " } else { ", " };
            write!(f, "{lead}{count} {says}")?;
        }
        let waits = self.help.contains(&Help::Wait);
        // Who has only to wait is not told to buy machines.
        let told = self.help.iter();
        let told = told.filter(|help| !(waits && matches!(help, Help::MoreNodes { .. })));
        let told = told.take(HELPS_TOLD_MAX);
        for (i, help) in told.enumerate() {
            let lead = match i {
                0 => "; ",
                1 if waits => ", or at once if you ",
                _ => ", or ",
            };
            f.write_str(lead)?;
            help.tell(f, waits)?;
        }
        Ok(())
    }
}

/// `topology.example.com/rack` is a rack.
fn short(level: &str) -> &str {
    level.rsplit('/').next().unwrap_or(level)
}

fn told(items: impl Iterator<Item = impl fmt::Display>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    items.join(", ")
}

/// What to do about it, and by what it is known.
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mend = match self {
            Self::Disk => "free its disk",
            Self::Memory => "free its memory",
            Self::Pids => "end some of its processes",
            Self::Network => "set up its network",
        };
        write!(f, "{mend} ({})", self.key())
    }
}

impl Help {
    /// `waits`: waiting would do, and this is what can be done instead.
    fn tell(&self, f: &mut fmt::Formatter<'_>, waits: bool) -> fmt::Result {
        match self {
            Self::Wait => f.write_str("it starts when enough of the work that runs has ended"),
            Self::AddNode => f.write_str("it starts when a node has joined"),
            Self::OtherNodes => {
                f.write_str("add nodes that give out what it asks for: none that is there does")
            }
            Self::MoreNodes { count: 1, like } => write!(f, "add a node like {like}"),
            Self::MoreNodes { count, like } => write!(f, "add {count} nodes like {like}"),
            Self::AskLess { largest } => {
                write!(f, "ask for less: the largest that matches has {largest}")
            }
            Self::FewerWorkers { fitting: 1 } if waits => f.write_str("ask for 1 worker"),
            Self::FewerWorkers { fitting } if waits => write!(f, "ask for {fitting} workers"),
            Self::FewerWorkers { fitting } => write!(
                f,
                "even idle there is room for only {fitting}: ask for fewer or smaller workers"
            ),
            Self::OtherGpuTypes { products } if products.is_empty() => {
                f.write_str("leave gpuTypes out")
            }
            Self::OtherGpuTypes { products } => {
                write!(f, "change gpuTypes: there is {}", told(products.iter()))
            }
            Self::OtherGpus { gpus } => {
                write!(f, "set gpus to what there is: {}", told(gpus.iter()))
            }
            Self::WiderTopology { level: Some(level) } => {
                write!(f, "require one {} only", short(level))
            }
            Self::WiderTopology { level: None } => f.write_str("set topology to preferred"),
            Self::Provide { what } => write!(
                f,
                "no node has that much {what}: ask for less of it in the template, or add nodes that have it"
            ),
            Self::NearVolume => f.write_str(
                "add a node where its volume is: kubectl get pv tells the zone or node in its node affinity",
            ),
            Self::WaitForReady if waits => f.write_str("mend a node that is not ready"),
            Self::WaitForReady => f.write_str("it starts when a node is ready"),
            Self::Uncordon => f.write_str("uncordon a node: kubectl uncordon NODE"),
            Self::OtherSelector => f.write_str(
                "label a node as template.spec.nodeSelector and affinity ask, or change them",
            ),
            Self::Tolerate { taints, more } => {
                write!(f, "tolerate {}", told(taints.iter()))?;
                if *more > 0 {
                    write!(f, " and {more} more")?;
                }
                f.write_str(" in template.spec.tolerations")
            }
            Self::Mend { troubles } => write!(f, "mend a node: {}", told(troubles.iter())),
            Self::OtherSpot => f.write_str("set spot to allowed, or add nodes of the other kind"),
            Self::All(helps) => {
                for (i, help) in helps.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", and ")?;
                    }
                    help.tell(f, waits)?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(f, false)
    }
}
