//! What came of a replay.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Policy;

/// Percentages of all GPUs that have been asked for, at which the cluster is looked at.
pub const MARKS: [u32; 6] = [50, 80, 95, 100, 110, 130];

/// The outcome of one replay. As JSON it is what `stoke sched replay -o json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub policy: Policy,
    /// By mark: GPUs that are not allocated, in percent. Nothing at marks that the arrivals do not reach or jump over.
    pub unallocated: BTreeMap<u32, Option<f64>>,
    /// By mark: the least that any policy could leave, if it was asked for ([`super::floor`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<BTreeMap<u32, Option<f64>>>,
    pub failed_pods: u64,
    /// Filled in by the caller, who has a clock.
    pub decision_us: Option<DecisionTime>,
}

/// How long decisions took, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DecisionTime {
    pub p50: f64,
    pub p99: f64,
}

impl DecisionTime {
    /// Nothing where nothing was decided.
    pub fn of(mut took: Vec<Duration>) -> Option<Self> {
        took.sort_unstable();
        let last = took.len().checked_sub(1)?;
        let at = |part: f64| took[(last as f64 * part).round() as usize].as_secs_f64() * 1e6;
        Some(Self {
            p50: at(0.5),
            p99: at(0.99),
        })
    }
}

/// A mean for each mark, of what was seen while that percentage, rounded, had arrived.
#[derive(Debug, Clone)]
pub(super) struct Samples {
    gpu_milli: u64,
    marks: [(f64, u32); MARKS.len()],
}

impl Samples {
    pub fn new(gpu_milli: u64) -> Self {
        Self {
            gpu_milli,
            marks: [(0.0, 0); MARKS.len()],
        }
    }

    /// The mark at which a sample counts when so much has arrived.
    pub fn mark(&self, arrived: u64) -> Option<usize> {
        let percent = (100.0 * arrived as f64 / self.gpu_milli as f64).round() as u32;
        MARKS.iter().position(|mark| *mark == percent)
    }

    pub fn add(&mut self, mark: usize, allocated: f64) {
        let (sum, count) = &mut self.marks[mark];
        *sum += 100.0 - 100.0 * allocated / self.gpu_milli as f64;
        *count += 1;
    }

    /// What was not allocated, in percent, by mark.
    pub fn means(&self) -> BTreeMap<u32, Option<f64>> {
        let mean = |(sum, count): &(f64, u32)| (*count > 0).then(|| sum / f64::from(*count));
        MARKS.into_iter().zip(self.marks.iter().map(mean)).collect()
    }
}
