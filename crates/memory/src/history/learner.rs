//! Learns run by run what predicts the peak.
//!
//! Two predictions stand side by side: the largest peak seen, and the largest among runs whose input was alike. Each is held against
//! every run before it learns from that run, as if it had decided, so that what is chosen has proved itself. The input is not trusted
//! until it has paid. Where peaks rise from run to run, both take earlier peaks for what they would be by now.

use std::collections::VecDeque;

use stoke_api::Bytes;
use stoke_api::profile::{RUNS_KEPT, Run};

use super::advice::FailureCost;
use super::margin::{Miss, Stakes, margin};
use super::rise::rise;

const GIB: f64 = (1_u64 << 30) as f64;
/// Runs are alike whose input differs by less than this factor, as a logarithm: 1.3.
pub const ALIKE: f64 = 0.262_364_264_467_491_06;
/// As many runs are looked at, however far their input is.
pub const NEAREST: usize = 5;
/// The input is believed when it has been held against as many runs and cost less than this part of what the largest peak cost.
const TRIED_RUNS: usize = 5;
const CLEARLY_LESS: f64 = 0.9;
/// What a prediction cost of late: each run further back counts a fiftieth less.
const COST_FADE: f64 = 0.98;
const COSTS_KEPT: usize = 128;
/// How much more a run wanted that was killed at its limit is unknown: half as much again.
const KILLED_WANTED: f64 = 1.5;
/// Peaks that rose by less than a twentieth over all runs are as good as steady to a person.
const WORTH_A_WORD: f64 = 0.05;
/// A container needs this much to start at all, whatever its program does.
const LEAST_ADDED: f64 = (16_u64 << 20) as f64;

/// One run, of which one amount is looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub(super) ln_input: Option<f64>,
    pub(super) ln_peak: f64,
    hours: f64,
    censored: bool,
}

impl Sample {
    pub fn of(run: &Run, peak: Bytes) -> Self {
        Self::new(run.input, peak, run.seconds as f64, run.censored)
    }

    pub fn new(input: Option<Bytes>, peak: Bytes, seconds: f64, censored: bool) -> Self {
        Self {
            ln_input: ln(input),
            ln_peak: (peak.0.max(1) as f64).ln(),
            hours: seconds.max(1.0) / 3600.0,
            censored,
        }
    }
}

fn ln(input: Option<Bytes>) -> Option<f64> {
    input
        .filter(|input| input.0 > 0)
        .map(|input| (input.0 as f64).ln())
}

/// How far apart two inputs are, as the logarithm of a factor.
pub fn distance(one: Option<Bytes>, other: Option<Bytes>) -> Option<f64> {
    let (one, other) = ln(one).zip(ln(other))?;
    Some((one - other).abs())
}

/// What a prediction stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The largest peak of all runs.
    Largest,
    /// The largest peak of runs with an input like this one's.
    Alike,
    /// The same, and larger because the input is larger than any seen.
    Beyond,
}

/// What the next run is expected to use at most, and what it should get.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    pub basis: Basis,
    /// What is expected, in bytes.
    pub expected: f64,
    /// The same with its margin.
    pub enough: f64,
    /// What is expected is more than any peak that it stands on, because peaks rise from run to run.
    pub rises: bool,
}

/// A way to predict, with how it did.
#[derive(Debug, Clone, Default)]
struct Track {
    misses: VecDeque<Miss>,
    costs: VecDeque<f64>,
}

impl Track {
    fn cost(&self) -> f64 {
        let newest_first = self.costs.iter().rev();
        let (cost, _) = newest_first.fold((0.0, 1.0), |(sum, weight), cost| {
            (sum + weight * cost, weight * COST_FADE)
        });
        cost
    }
}

fn bounded<T>(queue: &mut VecDeque<T>, item: T, length_max: usize) {
    if queue.len() == length_max {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// What was learned from the runs so far.
#[derive(Debug, Clone)]
pub struct Learner {
    cost: FailureCost,
    samples: VecDeque<Sample>,
    largest: Track,
    alike: Track,
}

impl Learner {
    pub fn new(cost: FailureCost) -> Self {
        Self {
            cost,
            samples: VecDeque::new(),
            largest: Track::default(),
            alike: Track::default(),
        }
    }

    /// The largest peak seen, in bytes.
    pub fn largest(&self) -> Option<f64> {
        (!self.samples.is_empty()).then(|| self.largest_ln().exp())
    }

    /// One that has learned from these, oldest first.
    pub fn taught(cost: FailureCost, samples: &[Sample]) -> Self {
        let mut learner = Self::new(cost);
        // What the early ones would have cost is forgotten by the end, and is most of the work.
        let forgotten = samples.len().saturating_sub(COSTS_KEPT);
        for (index, sample) in samples.iter().enumerate() {
            learner.take(*sample, index >= forgotten);
        }
        learner
    }

    pub fn learn(&mut self, sample: Sample) {
        self.take(sample, true);
    }

    fn take(&mut self, sample: Sample, counts_cost: bool) {
        if !self.samples.is_empty() {
            let (largest, alike) = self.expected(sample.ln_input);
            let costs = counts_cost.then(|| {
                let hours = self.hours(sample.ln_input);
                [
                    self.would_have_cost(&sample, largest, hours, &self.largest),
                    self.would_have_cost(&sample, alike, hours, &self.alike),
                ]
            });
            let tracks = [&mut self.largest, &mut self.alike];
            for (index, (track, expected)) in tracks.into_iter().zip([largest, alike]).enumerate() {
                let miss = Miss {
                    ln: sample.ln_peak - expected.ln,
                    censored: sample.censored,
                };
                bounded(&mut track.misses, miss, RUNS_KEPT);
                if let Some(costs) = costs {
                    bounded(&mut track.costs, costs[index], COSTS_KEPT);
                }
            }
        }
        bounded(&mut self.samples, sample, RUNS_KEPT);
    }

    fn would_have_cost(
        &self,
        sample: &Sample,
        expected: Expected,
        hours: f64,
        track: &Track,
    ) -> f64 {
        let held = self.enough(expected, hours, track) / GIB * sample.hours;
        let used = sample.ln_peak.exp() / GIB * sample.hours;
        if held < used {
            held + self.cost.gib_hours(held)
        } else {
            held - used
        }
    }

    /// None before the first run.
    pub fn predict(&self, input: Option<Bytes>) -> Option<Prediction> {
        let last = self.samples.back()?;
        let ln_input = ln(input);
        let (largest, alike) = self.expected(ln_input);
        let is_tried = self.alike.misses.len() >= TRIED_RUNS;
        let is_better = self.alike.cost() < CLEARLY_LESS * self.largest.cost();
        let says_input = alike.basis != Basis::Largest;
        let (chosen, track) = if says_input && is_tried && is_better {
            (alike, &self.alike)
        } else {
            (largest, &self.largest)
        };
        let mut enough = self.enough(chosen, self.hours(ln_input), track);
        if last.censored {
            enough = enough.max(last.ln_peak.exp() * KILLED_WANTED);
        }
        Some(Prediction {
            basis: chosen.basis,
            expected: chosen.ln.exp(),
            enough,
            rises: rise(&self.samples()) * self.samples.len() as f64 > WORTH_A_WORD,
        })
    }

    /// What each track expects.
    fn expected(&self, ln_input: Option<f64>) -> (Expected, Expected) {
        let by_now = self.by_now();
        let largest = Expected {
            basis: Basis::Largest,
            ln: by_now
                .iter()
                .map(|sample| sample.ln_peak)
                .fold(f64::NEG_INFINITY, f64::max),
        };
        let alike = Self::of_alike(&by_now, ln_input);
        (largest, alike.unwrap_or(largest))
    }

    fn samples(&self) -> Vec<Sample> {
        self.samples.iter().copied().collect()
    }

    /// The runs with the peaks they would have if they came next.
    fn by_now(&self) -> Vec<Sample> {
        let mut samples = self.samples();
        let rise = rise(&samples);
        for (sample, runs_since) in samples.iter_mut().rev().zip(1_u32..) {
            sample.ln_peak += rise * f64::from(runs_since);
        }
        samples
    }

    /// What is expected, in bytes, with its margin. `hours` is how long the run will take.
    fn enough(&self, expected: Expected, hours: f64, track: &Track) -> f64 {
        let bytes = expected.ln.exp();
        let run = bytes / GIB * hours;
        let stakes = Stakes {
            run,
            failure: self.cost.gib_hours(run),
        };
        let margin = margin(&track.misses, stakes);
        (bytes * margin.exp()).max(bytes + LEAST_ADDED)
    }

    /// How long runs took, those most whose input was near.
    fn hours(&self, ln_input: Option<f64>) -> f64 {
        let (mut hours, mut weights) = (0.0, 0.0);
        for sample in &self.samples {
            let distance = ln_input
                .zip(sample.ln_input)
                .map_or(0.0, |(one, other)| one - other);
            let weight = 1.0 / (1.0 + (distance / ALIKE).powi(2));
            hours += weight * sample.hours;
            weights += weight;
        }
        hours / weights
    }

    fn largest_ln(&self) -> f64 {
        self.samples
            .iter()
            .map(|sample| sample.ln_peak)
            .fold(f64::NEG_INFINITY, f64::max)
    }

    /// The largest peak of runs with an input like this one's. None where inputs are not known.
    fn of_alike(by_now: &[Sample], ln_input: Option<f64>) -> Option<Expected> {
        let ln_input = ln_input?;
        let mut nearest = [(f64::INFINITY, f64::NEG_INFINITY); NEAREST];
        let mut ln_peak = f64::NEG_INFINITY;
        let mut largest_input = f64::NEG_INFINITY;
        for (its_input, its_peak) in points(by_now) {
            largest_input = largest_input.max(its_input);
            let distance = (its_input - ln_input).abs();
            if distance <= ALIKE {
                ln_peak = ln_peak.max(its_peak);
            }
            // The newer of two that are as near: what is old is the first to be wrong.
            if distance <= nearest[NEAREST - 1].0 {
                nearest[NEAREST - 1] = (distance, its_peak);
                nearest.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
        }
        let ln_peak = nearest
            .iter()
            .map(|(_, its_peak)| *its_peak)
            .fold(ln_peak, f64::max);
        if ln_peak == f64::NEG_INFINITY {
            return None;
        }
        let larger = ln_input - largest_input;
        Some(if larger > 0.0 {
            Expected {
                basis: Basis::Beyond,
                ln: ln_peak + slope(by_now) * larger,
            }
        } else {
            Expected {
                basis: Basis::Alike,
                ln: ln_peak,
            }
        })
    }
}

/// By which power of the input the peak grows, over the larger half of inputs: nothing shrinks, and nothing outgrows its input.
fn slope(samples: &[Sample]) -> f64 {
    let mut points: Vec<(f64, f64)> = points(samples).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let points = &points[points.len() / 2..];
    let count = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / count;
    let xx: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let xy: f64 = points
        .iter()
        .map(|(x, y)| (x - mean_x) * (y - mean_y))
        .sum();
    if xx > 1e-9 {
        (xy / xx).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// Input and peak, as logarithms, of runs whose input is known.
pub fn points(samples: &[Sample]) -> impl Iterator<Item = (f64, f64)> {
    samples
        .iter()
        .filter_map(|sample| Some((sample.ln_input?, sample.ln_peak)))
}

/// A peak that is expected, as a logarithm.
#[derive(Debug, Clone, Copy)]
struct Expected {
    basis: Basis,
    ln: f64,
}
