//! From predictions to what a job is told.

use std::collections::VecDeque;

use stoke_api::Bytes;
use stoke_api::profile::Run;

use super::learner::{ALIKE, Basis, Learner, NEAREST, Prediction, Sample, distance};

const MIB: f64 = (1_u64 << 20) as f64;
/// The request is what the latest runs used half of the time; older ones may have been another program.
const LATEST: usize = 20;

/// What a failed attempt costs, beyond the memory it held for nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FailureCost {
    /// As much as that many runs' memory. A job's GPUs are worth many times its host memory and idle while work is done again.
    Runs(f64),
    /// The same for every job, in GiB times hours.
    GibHours(f64),
}

impl Default for FailureCost {
    fn default() -> Self {
        Self::Runs(20.0)
    }
}

impl FailureCost {
    /// For a run that holds `run` GiB times hours.
    pub(super) fn gib_hours(self, run: f64) -> f64 {
        let cost = match self {
            Self::Runs(runs) => runs * run,
            Self::GibHours(cost) => cost,
        };
        if cost.is_finite() { cost.max(0.0) } else { run }
    }
}

/// What the next run should get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// What it uses half of the time.
    pub request: Bytes,
    /// The peak that is expected, and a margin.
    pub limit: Bytes,
    /// Local disk, where runs were seen to use some.
    pub storage: Option<Bytes>,
    /// /dev/shm, where runs were seen to use some.
    pub shm: Option<Bytes>,
    /// How the limit came about, as part of a sentence.
    pub why: String,
}

pub(super) fn advise(
    runs: &VecDeque<Run>,
    input: Option<Bytes>,
    cost: FailureCost,
) -> Option<Advice> {
    let memory = predict(runs, input, cost, |run| Some(run.peak))?;
    let limit = whole_mebibytes(memory.enough);
    let amount = |of: fn(&Run) -> Option<Bytes>| {
        let used = predict(runs, input, cost, of)?;
        Some(whole_mebibytes(used.enough))
    };
    Some(Advice {
        request: usual(runs, input, memory.basis).min(limit),
        limit,
        storage: amount(|run| run.storage),
        shm: amount(|run| run.shm),
        why: why(runs, &memory, limit),
    })
}

/// The same maths for each amount that a run has a peak of.
fn predict(
    runs: &VecDeque<Run>,
    input: Option<Bytes>,
    cost: FailureCost,
    of: impl Fn(&Run) -> Option<Bytes>,
) -> Option<Prediction> {
    let samples: Vec<Sample> = runs
        .iter()
        .filter_map(|run| Some(Sample::of(run, of(run)?)))
        .collect();
    Learner::taught(cost, &samples).predict(input)
}

/// The middle one of what the latest runs used half of the time; of those with an input near this one's, where that tells the peak.
fn usual(runs: &VecDeque<Run>, input: Option<Bytes>, basis: Basis) -> Bytes {
    let away = |run: &Run| match basis {
        Basis::Largest => 0.0,
        Basis::Alike | Basis::Beyond => distance(input, run.input).unwrap_or(f64::INFINITY),
    };
    let mut latest: Vec<(f64, u64)> = runs
        .iter()
        .rev()
        .map(|run| (away(run), usually(run)))
        .collect();
    let alike = latest.iter().filter(|(away, _)| *away <= ALIKE).count();
    if alike < NEAREST {
        latest.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        latest.truncate(NEAREST);
    } else {
        latest.retain(|(away, _)| *away <= ALIKE);
        latest.truncate(LATEST);
    }
    let mut medians: Vec<u64> = latest.into_iter().map(|(_, median)| median).collect();
    medians.sort_unstable();
    let middle = medians.get(medians.len() / 2).copied().unwrap_or_default();
    whole_mebibytes(middle as f64)
}

/// Nobody measured a run that ended at once; its peak is what there is.
fn usually(run: &Run) -> u64 {
    if run.median.0 > 0 {
        run.median.0
    } else {
        run.peak.0
    }
}

/// Up, for a page too few is one too few; and never none, for a pod that requests nothing is the first to go.
fn whole_mebibytes(bytes: f64) -> Bytes {
    Bytes(((bytes / MIB).ceil().max(1.0) as u64).saturating_mul(1 << 20))
}

fn why(runs: &VecDeque<Run>, memory: &Prediction, limit: Bytes) -> String {
    let expected = Bytes(memory.expected as u64);
    let count = runs.len();
    let seen = match (memory.basis, count) {
        (Basis::Largest, 1) => format!("the run before peaked at {}", expected.human()),
        (Basis::Largest, _) => format!("{count} runs peaked at {} at most", expected.human()),
        (Basis::Alike, _) => format!(
            "runs with an input like this one's peaked at {} at most",
            expected.human()
        ),
        (Basis::Beyond, _) => format!(
            "its input is larger than that of {count} runs before, which makes a peak of {} likely",
            expected.human()
        ),
    };
    let seen = if memory.rises {
        format!("{seen}, raised by what peaks rose since")
    } else {
        seen
    };
    if runs.back().is_some_and(|run| run.censored) {
        return format!("{seen}, and the last one was killed there");
    }
    let percent = (limit.0 as f64 / memory.expected.max(1.0) - 1.0) * 100.0;
    format!("{seen}; {percent:.0} % more is cheaper than a failure")
}
