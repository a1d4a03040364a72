//! What earlier runs of a job used, and what the next one should be given.
//!
//! [`History`] is the runs themselves, bounded and mergeable; [`Learner`] replays them to find out what predicts the peak and how far
//! its predictions were off. Invariant: the same runs give the same advice, in whatever order they came in.

mod advice;
mod learner;
mod margin;
mod rise;

use std::collections::VecDeque;

use stoke_api::Bytes;
use stoke_api::profile::{RUNS_KEPT, Run};

pub use advice::{Advice, FailureCost};
pub(crate) use learner::{Learner, Sample};

/// A key names an attempt; longer ones are nobody's.
const KEY_LENGTH_MAX: usize = 32;
/// More than an exbibyte was not measured.
const AMOUNT_MAX: Bytes = Bytes(1 << 60);

/// The latest runs of one kind of job, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    runs: VecDeque<Run>,
}

impl History {
    /// Reads what was kept. It may have been written by another version or by hand, so nothing about it is taken on trust.
    pub fn of(runs: &[Run]) -> Self {
        let mut history = Self::default();
        for run in runs {
            history.learn(run.clone());
        }
        history
    }

    /// Takes a run in. A run that is known already, by its key, is joined: each amount is the larger of both.
    pub fn learn(&mut self, run: Run) {
        let Some(mut run) = tidy(run) else { return };
        if let Some(known) = self.runs.iter().position(|known| known.key == run.key)
            && let Some(known) = self.runs.remove(known)
        {
            run.join(&known);
        }
        let place = self
            .runs
            .partition_point(|known| (known.at, &known.key) < (run.at, &run.key));
        self.runs.insert(place, run);
        if self.runs.len() > RUNS_KEPT {
            self.runs.pop_front();
        }
    }

    /// Takes in what another has learned. Doing so twice changes nothing.
    pub fn merge(&mut self, other: &Self) {
        for run in &other.runs {
            self.learn(run.clone());
        }
    }

    /// Oldest first.
    pub fn runs(&self) -> Vec<Run> {
        self.runs.iter().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// What the next run should get. None where nothing was learned yet.
    ///
    /// `input` is how much the next run will read, where that is known beforehand.
    pub fn advise(&self, input: Option<Bytes>, cost: FailureCost) -> Option<Advice> {
        advice::advise(&self.runs, input, cost)
    }
}

/// The run as it is kept, or none if it says nothing.
fn tidy(run: Run) -> Option<Run> {
    let is_said = |amount: &Bytes| amount.0 > 0 && *amount <= AMOUNT_MAX;
    let is_named = !run.key.is_empty() && run.key.len() <= KEY_LENGTH_MAX;
    (is_named && is_said(&run.peak)).then(|| Run {
        input: run.input.filter(is_said).map(rounded),
        peak: rounded(run.peak),
        median: rounded(run.median.min(run.peak)),
        storage: run.storage.filter(is_said).map(rounded),
        shm: run.shm.filter(is_said).map(rounded),
        gpu: run.gpu.filter(is_said).map(rounded),
        ..run
    })
}

/// Up to twelve binary digits: `3021Mi` instead of `3167748813`. It is off by half a thousandth at most and keeps a profile small.
fn rounded(bytes: Bytes) -> Bytes {
    const DIGITS: u32 = 12;
    let spare = (u64::BITS - bytes.0.leading_zeros()).saturating_sub(DIGITS);
    let step = 1_u64 << spare;
    Bytes(bytes.0.next_multiple_of(step))
}

#[cfg(test)]
mod tests;
