//! What placement knows of a cluster.

use std::collections::BTreeMap;
use std::fmt;

use stoke_api::{Bytes, CpuMilli};

use crate::gpu::GpuModel;

/// An amount of everything that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    pub cpu: CpuMilli,
    pub memory: Bytes,
    pub gpus: u32,
    pub pods: u32,
}

impl Resources {
    /// How often `each` fits into this. What asks for nothing of a resource is not bounded by it.
    pub fn times(self, each: Self) -> u32 {
        let of = |have: u64, each: u64| have.checked_div(each).unwrap_or(u64::MAX);
        let times = of(self.cpu.0, each.cpu.0)
            .min(of(self.memory.0, each.memory.0))
            .min(of(self.gpus.into(), each.gpus.into()))
            .min(of(self.pods.into(), each.pods.into()));
        u32::try_from(times).unwrap_or(u32::MAX)
    }

    /// What is left; nothing where more is used than there is.
    pub fn minus(self, used: Self) -> Self {
        Self {
            cpu: CpuMilli(self.cpu.0.saturating_sub(used.cpu.0)),
            memory: Bytes(self.memory.0.saturating_sub(used.memory.0)),
            gpus: self.gpus.saturating_sub(used.gpus),
            pods: self.pods.saturating_sub(used.pods),
        }
    }

    pub fn plus(self, more: Self) -> Self {
        Self {
            cpu: CpuMilli(self.cpu.0.saturating_add(more.cpu.0)),
            memory: Bytes(self.memory.0.saturating_add(more.memory.0)),
            gpus: self.gpus.saturating_add(more.gpus),
            pods: self.pods.saturating_add(more.pods),
        }
    }

    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            gpus: self.gpus.max(other.gpus),
            pods: self.pods.max(other.pods),
        }
    }
}

/// What a worker asks for, for people: `2 GPUs, 4 CPUs and 64 GiB of memory`.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |one: bool| if one { "" } else { "s" };
        let mut parts = Vec::new();
        if self.gpus > 0 {
            parts.push(format!("{} GPU{}", self.gpus, plural(self.gpus == 1)));
        }
        if self.cpu > CpuMilli(0) {
            let cpus = self.cpu.0 as f64 / 1000.0;
            parts.push(format!("{cpus} CPU{}", plural(self.cpu.0 == 1000)));
        }
        if self.memory > Bytes(0) {
            parts.push(format!("{} of memory", self.memory.human()));
        }
        match parts.as_slice() {
            [] => f.write_str("nothing in particular"),
            [one] => f.write_str(one),
            [most @ .., last] => write!(f, "{} and {last}", most.join(", ")),
        }
    }
}

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
        self.allocatable.minus(self.used)
    }
}

/// The nodes at one instant. Order does not matter: [`crate::place`] goes by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    pub nodes: Vec<Node>,
}

impl Snapshot {
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// The same cluster with nothing running on it.
    pub fn idle(&self) -> Self {
        let nodes = self.nodes.iter().cloned().map(|node| Node {
            used: Resources::default(),
            ..node
        });
        Self {
            nodes: nodes.collect(),
        }
    }
}
