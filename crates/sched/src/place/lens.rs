//! Questions about a cluster that is changed in thought.

use crate::snapshot::Taint;

/// What is changed in thought before the question is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Lens {
    /// Nothing else runs.
    pub idle: bool,
    waived: Waivers,
}

/// A condition that can be thought away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiver {
    Ready,
    Cordon,
    Selector,
    Volumes,
    Trouble,
    Taints,
    Spot,
    GpuTypes,
    Topology,
}

/// A set of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Waivers(u16);

impl Waiver {
    /// What does away with a taint. A node that is ready again, or no longer cordoned, has lost the taint that Kubernetes gave it for that.
    pub fn of(taint: &Taint) -> Self {
        if taint.is_of_unready() {
            Self::Ready
        } else if taint.is_of_cordon() {
            Self::Cordon
        } else if taint.trouble().is_some() {
            Self::Trouble
        } else {
            Self::Taints
        }
    }
}

impl Waivers {
    pub fn has(self, waiver: Waiver) -> bool {
        self.0 & (1 << waiver as u16) != 0
    }

    #[must_use]
    fn with(self, waiver: Waiver) -> Self {
        Self(self.0 | 1 << waiver as u16)
    }
}

impl FromIterator<Waiver> for Waivers {
    fn from_iter<I: IntoIterator<Item = Waiver>>(waivers: I) -> Self {
        waivers.into_iter().fold(Self::default(), Self::with)
    }
}

impl Lens {
    pub const IDLE: Self = Self {
        idle: true,
        waived: Waivers(0),
    };

    #[must_use]
    pub fn without(self, waiver: Waiver) -> Self {
        let waived = self.waived.with(waiver);
        Self { waived, ..self }
    }

    pub fn holds(self, waiver: Waiver) -> bool {
        !self.waived.has(waiver)
    }
}
