//! Amounts of what nodes have and pods ask for, counted as kube-scheduler counts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use stoke_api::{Bytes, CpuMilli};

/// An amount of everything that is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Resources {
    pub cpu: CpuMilli,
    pub memory: Bytes,
    /// Local disk: `ephemeral-storage`.
    pub storage: Bytes,
    pub gpus: u32,
    pub pods: u32,
    /// Whatever else pods ask for.
    pub others: BTreeMap<Other, u64>,
}

/// A resource that most pods do not ask for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Other {
    /// `hugepages-2Mi` in bytes, `rdma/hca` and `vpc.amazonaws.com/efa` in pieces.
    Named(Arc<str>),
    /// A port of the node's own network. Every node has each of them once.
    Port { protocol: Protocol, port: u16 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Other {
    /// What a node has of it that says nothing about it.
    fn unsaid(&self) -> u64 {
        u64::from(matches!(self, Self::Port { .. }))
    }
}

impl Resources {
    /// How often `each` fits into this. What asks for nothing of a resource is not bounded by it.
    pub fn times(&self, each: &Self) -> u32 {
        let of = |have: u64, each: u64| have.checked_div(each).unwrap_or(u64::MAX);
        let times = of(self.cpu.0, each.cpu.0)
            .min(of(self.memory.0, each.memory.0))
            .min(of(self.storage.0, each.storage.0))
            .min(of(self.gpus.into(), each.gpus.into()))
            .min(of(self.pods.into(), each.pods.into()));
        let others = each.others.iter();
        let times = others.fold(times, |times, (other, each)| {
            times.min(of(self.of(other), *each))
        });
        u32::try_from(times).unwrap_or(u32::MAX)
    }

    /// How much of it a node with these resources has.
    pub fn of(&self, other: &Other) -> u64 {
        let said = self.others.get(other).copied();
        said.unwrap_or_else(|| other.unsaid())
    }

    /// The first of the others of which there is less than `ask`.
    pub(crate) fn lacks<'a>(&self, ask: &'a Self) -> Option<&'a Other> {
        let mut short = ask
            .others
            .iter()
            .filter(|(other, ask)| self.of(other) < **ask);
        short.next().map(|(other, _)| other)
    }

    /// What is left; nothing where more is used than there is.
    #[must_use]
    pub fn minus(&self, used: &Self) -> Self {
        let mut others = self.others.clone();
        for (other, used) in &used.others {
            others.insert(other.clone(), self.of(other).saturating_sub(*used));
        }
        Self {
            cpu: CpuMilli(self.cpu.0.saturating_sub(used.cpu.0)),
            memory: Bytes(self.memory.0.saturating_sub(used.memory.0)),
            storage: Bytes(self.storage.0.saturating_sub(used.storage.0)),
            gpus: self.gpus.saturating_sub(used.gpus),
            pods: self.pods.saturating_sub(used.pods),
            others,
        }
    }

    #[must_use]
    pub fn plus(mut self, more: &Self) -> Self {
        self.add(more);
        self
    }

    pub fn add(&mut self, more: &Self) {
        self.cpu.0 = self.cpu.0.saturating_add(more.cpu.0);
        self.memory.0 = self.memory.0.saturating_add(more.memory.0);
        self.storage.0 = self.storage.0.saturating_add(more.storage.0);
        self.gpus = self.gpus.saturating_add(more.gpus);
        self.pods = self.pods.saturating_add(more.pods);
        for (other, more) in more.others.iter().filter(|(_, more)| **more > 0) {
            let sum = self.others.entry(other.clone()).or_insert(0);
            *sum = sum.saturating_add(*more);
        }
    }

    /// Takes away what was added; nothing where more is taken than there is.
    pub(crate) fn sub(&mut self, less: &Self) {
        self.cpu.0 = self.cpu.0.saturating_sub(less.cpu.0);
        self.memory.0 = self.memory.0.saturating_sub(less.memory.0);
        self.storage.0 = self.storage.0.saturating_sub(less.storage.0);
        self.gpus = self.gpus.saturating_sub(less.gpus);
        self.pods = self.pods.saturating_sub(less.pods);
        for (other, less) in &less.others {
            if let Some(own) = self.others.get_mut(other) {
                *own = own.saturating_sub(*less);
            }
        }
        self.others.retain(|_, amount| *amount > 0);
    }

    /// The larger of each.
    #[must_use]
    pub fn max(mut self, other: &Self) -> Self {
        self.cpu = self.cpu.max(other.cpu);
        self.memory = self.memory.max(other.memory);
        self.storage = self.storage.max(other.storage);
        self.gpus = self.gpus.max(other.gpus);
        self.pods = self.pods.max(other.pods);
        for (other, amount) in &other.others {
            let own = self.others.entry(other.clone()).or_insert(0);
            *own = (*own).max(*amount);
        }
        self
    }
}

/// What a worker asks for, for people: `2 GPUs, 4 CPUs and 64 GiB of memory`. Disk and the rest are told where they are missing.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.gpus == 1 { "" } else { "s" };
        let gpus = (self.gpus > 0).then(|| format!("{} GPU{plural}", self.gpus));
        f.write_str(&self.told(gpus))
    }
}

impl Resources {
    /// The same, with these words about GPUs.
    pub(crate) fn told(&self, gpus: Option<String>) -> String {
        let mut parts: Vec<String> = gpus.into_iter().collect();
        if self.cpu > CpuMilli(0) {
            let cpus = self.cpu.0 as f64 / 1000.0;
            let plural = if self.cpu.0 == 1000 { "" } else { "s" };
            parts.push(format!("{cpus} CPU{plural}"));
        }
        if self.memory > Bytes(0) {
            parts.push(format!("{} of memory", self.memory.human()));
        }
        match parts.as_slice() {
            [] => "nothing in particular".to_owned(),
            [one] => one.clone(),
            [most @ .., last] => format!("{} and {last}", most.join(", ")),
        }
    }
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Port { protocol, port } => {
                let protocol = match protocol {
                    Protocol::Tcp => "TCP",
                    Protocol::Udp => "UDP",
                    Protocol::Sctp => "SCTP",
                };
                write!(f, "{protocol} port {port}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(others: impl IntoIterator<Item = (Other, u64)>) -> Resources {
        Resources {
            others: others.into_iter().collect(),
            ..Resources::default()
        }
    }

    #[test]
    fn what_is_named_must_be_there_and_a_port_is_there_once() {
        let hca = || Other::Named("rdma/hca".into());
        let port = || Other::Port {
            protocol: Protocol::Tcp,
            port: 80,
        };
        let node = with([(hca(), 4)]);
        assert_eq!(node.times(&with([(hca(), 2)])), 2);
        assert_eq!(Resources::default().times(&with([(hca(), 1)])), 0);
        assert_eq!(node.times(&with([(port(), 1)])), 1);
        let left = node.minus(&with([(hca(), 3), (port(), 1)]));
        assert_eq!((left.of(&hca()), left.of(&port())), (1, 0));
        assert_eq!(left.times(&with([(port(), 1)])), 0);
        let ask = with([(hca(), 1), (port(), 1)]);
        assert_eq!(
            left.lacks(&ask).map(ToString::to_string).as_deref(),
            Some("TCP port 80")
        );
    }
}
