//! What keeps pods off a node that would have room for them.

use std::fmt;

/// A taint that keeps pods away; those that only prefer it are not here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    NoSchedule,
    NoExecute,
}

/// What Kubernetes taints a node with while it lasts. It is to be mended, and not to be tolerated: more pods make it worse, and are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    Disk,
    Memory,
    Pids,
    Network,
}

impl Trouble {
    const ALL: [Self; 4] = [Self::Disk, Self::Memory, Self::Pids, Self::Network];

    pub fn key(self) -> &'static str {
        match self {
            Self::Disk => "node.kubernetes.io/disk-pressure",
            Self::Memory => "node.kubernetes.io/memory-pressure",
            Self::Pids => "node.kubernetes.io/pid-pressure",
            Self::Network => "node.kubernetes.io/network-unavailable",
        }
    }
}

impl Taint {
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let mut all = Trouble::ALL.into_iter();
        all.find(|trouble| trouble.key() == self.key)
    }

    /// Set while its node is not ready.
    pub(crate) fn is_of_unready(&self) -> bool {
        matches!(
            self.key.as_str(),
            "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable"
        )
    }

    /// Set while its node is cordoned.
    pub(crate) fn is_of_cordon(&self) -> bool {
        self.key == "node.kubernetes.io/unschedulable"
    }
}

/// As kubectl shows it.
impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if !self.value.is_empty() {
            write!(f, "={}", self.value)?;
        }
        f.write_str(match self.effect {
            Effect::NoSchedule => ":NoSchedule",
            Effect::NoExecute => ":NoExecute",
        })
    }
}
