//! What it costs that a gang's data has to be copied to a node first.
//!
//! While data is copied, the GPUs of those who wait for it stand idle. That is the same kind of loss as room that nobody can use because of
//! where a gang went, and it is counted in the same coin: hundredths of a GPU. Only their lengths differ. Room is lost for as long as the gang
//! runs, the copy ends after bytes divided by a rate; so the GPUs of the workers that wait are counted for the part of a usual run that the copy
//! takes. A node that has the data and a node that loses less worth are weighed by that sum, and the smaller loss wins:
//! 100 GiB for eight GPUs are worth 177 hundredths, so they outweigh the loss of a GPU, and 1 GiB for one GPU is worth nothing, so it
//! breaks only ties.
//!
//! Nearness comes before data. A gang spread over the network is slower in every step, and a copy is made once: so the innermost level of
//! the topology that holds the gang is chosen as if there were no data. Which of the domains of that level is then a matter of data, by
//! whole GPUs; where that is equal, of tightness, so that small data does not break a large domain open.
//!
//! A gang waits for the last of its nodes, but each node is counted with its own workers only. That is too little rather than too much, and
//! it makes three warm nodes of four better than none.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::need::Need;
use super::survey::Spot;
use crate::data::Data;
use crate::gpu::units;
use crate::snapshot::Snapshot;

/// Bytes a second that an object store gives to one node, to be on the safe side.
const RATE: u128 = 128 << 20;
/// How long a usual run is, in seconds.
const RUN: u128 = 3600;
/// Hundredths of a GPU that a worker counts for which has less: its CPUs stand idle as well.
const WORKER_MIN: u128 = 10;
const GPU: i64 = 100;

/// What has to be copied, by where. Nothing where no node has any of it: then all are alike.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// Bytes that most nodes lack.
    total: u64,
    /// What nodes have, by chunk and place in it.
    on: BTreeMap<u32, Vec<(u32, u64)>>,
}

/// What is lost by copying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Delay {
    /// Hundredths of a GPU.
    pub worth: i64,
    /// All that is copied.
    pub bytes: u64,
}

impl Copying {
    pub fn of(snapshot: &Snapshot, data: &Data<'_>) -> Self {
        let mut on: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
        for (node, bytes) in data.on() {
            if let Some(position) = snapshot.find(node) {
                let here = on.entry(position.chunk).or_default();
                here.push((position.place, bytes));
            }
        }
        let total = if on.is_empty() { 0 } else { data.total() };
        Self { total, on }
    }

    pub fn is_none(&self) -> bool {
        self.total == 0
    }

    /// The same spots, each of nodes that lack as much.
    pub fn split(&self, spots: Vec<Spot>) -> Vec<Spot> {
        if self.is_none() {
            return spots;
        }
        let mut split = Vec::with_capacity(spots.len());
        for spot in spots {
            let mut by_lack: BTreeMap<u64, u64> = BTreeMap::new();
            let mut cold = spot.members;
            for (place, bytes) in self.on.get(&spot.chunk).into_iter().flatten() {
                let bit = spot.members & (1 << place);
                if bit != 0 {
                    let lacks = self.total.saturating_sub(*bytes);
                    *by_lack.entry(lacks).or_default() |= bit;
                    cold &= !bit;
                }
            }
            if cold != 0 {
                *by_lack.entry(self.total).or_default() |= cold;
            }
            split.extend(by_lack.into_iter().map(|(lacks, members)| Spot {
                members,
                lacks,
                ..spot
            }));
        }
        split
    }
}

impl Delay {
    /// So many workers on one node that lacks so much.
    pub fn of(need: &Need, workers: u32, lacks: u64) -> Self {
        Self {
            worth: worth(need, u128::from(workers) * u128::from(lacks)),
            bytes: lacks,
        }
    }

    /// So many workers in a domain, on the warmest nodes of it.
    pub fn within(need: &Need, spots: &[Spot], workers: u64) -> Self {
        let mut warmest: Vec<&Spot> = spots.iter().collect();
        warmest.sort_by_key(|spot| (spot.lacks, Reverse(spot.each)));
        let mut missing = workers;
        let mut waits = 0_u128;
        let mut bytes = 0_u64;
        for spot in warmest {
            let here = spot.workers().min(missing);
            let nodes = here.div_ceil(u64::from(spot.each).max(1));
            waits += u128::from(here) * u128::from(spot.lacks);
            bytes = bytes.saturating_add(nodes.saturating_mul(spot.lacks));
            missing -= here;
        }
        Self {
            worth: worth(need, waits),
            bytes,
        }
    }

    pub fn whole_gpus(self) -> i64 {
        self.worth / GPU
    }
}

/// Of workers times the bytes that each waits for.
fn worth(need: &Need, waits: u128) -> i64 {
    let each = match need.part {
        Some(milli) => u128::from(milli) / 10,
        None => u128::from(units(&need.ask)) * 100,
    };
    let lost = waits.saturating_mul(each.max(WORKER_MIN)) / RATE / RUN;
    i64::try_from(lost).unwrap_or(i64::MAX)
}
