//! Replays a published trace of arrivals against a policy, and says how much of the GPUs it leaves idle.
//!
//! Pods arrive in the order of the trace and are placed once or never: none leaves, none is tried again, none is moved. A pod that fits nowhere has
//! failed, and counts as arrived. No policy sees what comes next; [`Policy::Fgd`] knows the trace's mix of pods beforehand, as it was published, and ours does not.

mod chance;
mod floor;
mod policies;
mod ranking;
mod report;
mod trace;

use std::str::FromStr;

use serde::Serialize;

pub use floor::floor;
pub use report::{DecisionTime, MARKS, Report};
pub use trace::{File, Trace, TraceError};

use crate::value::Room;
use chance::Chance;
use policies::{BestFit, Fgd, Packing, Random, Stokehold};
use ranking::{Judge, Ranking};
use report::Samples;

/// Who decides where a pod goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    Stokehold,
    Fgd,
    BestFit,
    Packing,
    Random,
}

impl Policy {
    pub const ALL: [Self; 5] = [
        Self::Stokehold,
        Self::Fgd,
        Self::BestFit,
        Self::Packing,
        Self::Random,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Stokehold => "stokehold",
            Self::Fgd => "fgd",
            Self::BestFit => "bestfit",
            Self::Packing => "packing",
            Self::Random => "random",
        }
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy {0:?}; there are stokehold, fgd, bestfit, packing and random")]
pub struct NoSuchPolicy(String);

impl FromStr for Policy {
    type Err = NoSuchPolicy;

    fn from_str(name: &str) -> Result<Self, NoSuchPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| NoSuchPolicy(name.to_owned()))
    }
}

/// A pod that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its row in the pod file, from 0.
    pub pod: usize,
    /// The row of its node in the node file, from 0; nothing where it fits nowhere.
    pub node: Option<usize>,
}

/// One run of a trace: an iterator that places one pod a step.
pub struct Replay<'a> {
    trace: &'a Trace,
    policy: Policy,
    judge: Box<dyn Judge + 'a>,
    ranking: Ranking,
    /// The nodes in the order in which ties are decided, and the row of each in the node file.
    rooms: Vec<Room>,
    rows: Vec<usize>,
    at: usize,
    arrived: u64,
    allocated: u64,
    failed: u64,
    samples: Samples,
}

impl<'a> Replay<'a> {
    /// `seed`: of whatever a policy leaves to chance, ties and [`Policy::Random`]'s choices. Ours leaves nothing to it.
    pub fn new(trace: &'a Trace, policy: Policy, seed: u64) -> Self {
        let count = trace.nodes.len();
        let rows = match policy {
            Policy::Stokehold => (0..count).collect(),
            _ => Chance::new(seed).order(count),
        };
        let rooms: Vec<Room> = rows.iter().map(|row| trace.nodes[*row].clone()).collect();
        let judge: Box<dyn Judge> = match policy {
            Policy::Stokehold => Box::new(Stokehold::default()),
            Policy::Fgd => Box::new(Fgd::new(trace)),
            Policy::BestFit => Box::new(BestFit::new(trace)),
            Policy::Packing => Box::new(Packing::new(&rooms)),
            Policy::Random => Box::new(Random::new(seed)),
        };
        Self {
            trace,
            policy,
            judge,
            ranking: Ranking::new(trace.kinds.len()),
            rooms,
            rows,
            at: 0,
            arrived: 0,
            allocated: 0,
            failed: 0,
            samples: Samples::new(trace.gpu_milli),
        }
    }

    /// What has come of it so far; of the whole trace once the iterator has ended.
    pub fn report(&self) -> Report {
        Report {
            policy: self.policy,
            unallocated: self.samples.means(),
            floor: None,
            failed_pods: self.failed,
            decision_us: None,
        }
    }

    /// What is left of each node, by its row in the node file.
    pub fn rooms(&self) -> Vec<&Room> {
        let mut rooms: Vec<(usize, &Room)> = self.rows.iter().copied().zip(&self.rooms).collect();
        rooms.sort_by_key(|(row, _)| *row);
        rooms.into_iter().map(|(_, room)| room).collect()
    }
}

impl Iterator for Replay<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let pod = *self.trace.order.get(self.at)? as usize;
        self.at += 1;
        let kind = self.trace.pods[pod] as usize;
        let ask = &self.trace.kinds[kind];
        if self.judge.arrives(ask, &self.rooms) {
            self.ranking.forget();
        }
        let best = self
            .ranking
            .best(kind, ask, &self.rooms, self.judge.as_ref());
        self.arrived += ask.gpu_milli();
        match best {
            Some((place, seat)) => {
                self.rooms[place].take(ask, seat);
                self.judge.changed(place, &self.rooms[place]);
                self.ranking.changed(place);
                self.allocated += ask.gpu_milli();
            }
            None => self.failed += 1,
        }
        if let Some(mark) = self.samples.mark(self.arrived) {
            self.samples.add(mark, self.allocated as f64);
        }
        Some(Arrival {
            pod,
            node: best.map(|(place, _)| self.rows[place]),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.trace.order.len() - self.at;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Replay<'_> {}

#[cfg(test)]
mod tests;
