//! The tables that a mix makes: what pieces of GPUs and what nodes are worth.

use std::collections::BTreeMap;

use super::ask::{Ask, WHOLE};
use super::grid::{Grid, Need};
use super::history::Share;
use super::parts::Parts;
use super::room::Room;
use super::sizes;

/// Sizes of fractions that have prices of their own; rarer ones have that of the next larger.
const SIZES_MAX: usize = 32;

#[derive(Debug, Clone, Default)]
pub(crate) struct Tables {
    /// Ascending.
    sizes: Vec<u16>,
    prices: Vec<f64>,
    parts: Parts,
    cpu: Grid,
    memory: Grid,
}

/// The largest amounts of any room, which tables must reach up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Extent {
    pub cpu: u64,
    pub memory: u64,
    pub gpus: u32,
}

impl Extent {
    pub fn include(&mut self, room: &Room) {
        self.cpu = self.cpu.max(room.cpu);
        self.memory = self.memory.max(room.memory);
        self.gpus = self
            .gpus
            .max(room.whole.saturating_add(room.parts().len() as u32));
    }
}

impl Tables {
    pub fn of(mix: &[Share], extent: Extent) -> Self {
        let (sizes, demand) = fractions(mix);
        let prices = sizes::prices(&sizes, &demand);
        let parts = Parts::of(&sizes, &prices, &demand);
        let mut tables = Self {
            sizes,
            prices,
            parts,
            ..Self::default()
        };
        // Only work with GPUs: the rest goes where its CPU and memory are missed least, which the worth of the GPUs beside them says.
        let on_gpus = || mix.iter().filter(|share| share.gpus > 0);
        let need = |share: &Share, amount: f64| Need {
            share: share.share,
            amount,
            worth: tables.price(share.gpus, share.milli),
        };
        let cpu: Vec<Need> = on_gpus().map(|share| need(share, share.cpu)).collect();
        let memory: Vec<Need> = on_gpus().map(|share| need(share, share.memory)).collect();
        tables.cpu = Grid::of(&cpu, extent.cpu, extent.gpus);
        tables.memory = Grid::of(&memory, extent.memory, extent.gpus);
        tables
    }

    /// What work is worth, in GPUs.
    pub fn worth(&self, ask: &Ask) -> f64 {
        self.price(ask.gpus, ask.milli)
    }

    pub fn price(&self, gpus: u32, milli: u16) -> f64 {
        if gpus != 1 || milli >= WHOLE {
            return f64::from(gpus);
        }
        let at = self.sizes.partition_point(|size| *size < milli);
        let by_size = f64::from(milli) / f64::from(WHOLE);
        self.prices.get(at).copied().unwrap_or(by_size)
    }

    /// What is left of one GPU, in GPUs.
    pub fn part(&self, left: u16) -> f64 {
        self.parts.worth(left)
    }

    /// What is left of all GPUs of a node, in GPUs.
    pub fn gpus(&self, room: &Room) -> f64 {
        let parts: f64 = room.parts().iter().map(|left| self.part(*left)).sum();
        f64::from(room.whole) + parts
    }

    /// What those GPUs are worth beside so much CPU and memory: as much as the scarcer of the two allows.
    pub fn node(&self, cpu: u64, memory: u64, gpus: f64) -> f64 {
        let by_cpu = self.cpu.worth(cpu, gpus);
        by_cpu.min(self.memory.worth(memory, gpus))
    }
}

/// The sizes of fractions in the mix, ascending, and how much each is wanted.
fn fractions(mix: &[Share]) -> (Vec<u16>, Vec<f64>) {
    let mut demand = BTreeMap::<u16, f64>::new();
    for share in mix.iter().filter(|share| share.is_fraction()) {
        *demand.entry(share.milli.max(1)).or_default() += share.share;
    }
    while demand.len() > SIZES_MAX {
        let rarest = demand.iter().min_by(|a, b| a.1.total_cmp(b.1));
        let Some((rarest, wanted)) = rarest.map(|(size, wanted)| (*size, *wanted)) else {
            break;
        };
        demand.remove(&rarest);
        let next = demand.range(rarest..).next().map(|(size, _)| *size);
        // The largest of all has none above it: the pieces it is cut from go to the one below.
        let next = next.or_else(|| demand.keys().next_back().copied());
        *demand.entry(next.unwrap_or(rarest)).or_default() += wanted;
    }
    demand.into_iter().unzip()
}
