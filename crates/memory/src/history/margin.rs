//! How much to add to a prediction: as much as costs least.
//!
//! More margin wastes memory on every run; less lets more runs fail. How often a margin fails is read from how far earlier predictions
//! were off, as logarithms of what was used over what was predicted:
//!
//! - over the long run, the tail of the worst of them, continued as an exponential, because the next record is beyond any seen;
//! - of late, because peaks that rose will stay up more often than chance would have it;
//! - and a little for what no earlier run can tell.

use std::collections::VecDeque;

/// How far a prediction was off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Miss {
    /// ln(used / predicted); above 0 it used more.
    pub ln: f64,
    /// The run was killed at its limit: it would have used more.
    pub censored: bool,
}

/// What is at stake, in GiB times hours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stakes {
    /// The prediction held for as long as a run takes: what a margin of 100 % wastes, and what a failed attempt wastes.
    pub run: f64,
    /// What a failure costs beyond that.
    pub failure: f64,
}

/// Before anything is known, misses are taken to be of this size. That weighs as much as two runs after the first, and less the more
/// there are: a guess gives way to what was seen.
const SPREAD_BEFORE: f64 = 0.03;
const SPREAD_BEFORE_WEIGHT: f64 = 2.0;
/// Of what will happen next, this much is as it was in the last few runs and not as it was in all.
const OF_LATE: f64 = 0.25;
/// Each run further back counts half as much.
const LATE_FADE: f64 = 0.5;
const LATE_RUNS: usize = 8;
/// One run in a hundred is unlike any before it, by a quarter and more.
const UNLIKE: f64 = 0.01;
const UNLIKE_SPREAD: f64 = 0.25;
/// Margins that are tried: from half a percent to almost threefold, as logarithms.
const LEAST: f64 = 0.005;
const MOST: f64 = 1.0;
const TRIED: i32 = 60;

/// The margin of least cost, as a logarithm. `misses` come oldest first.
pub fn margin(misses: &VecDeque<Miss>, stakes: Stakes) -> f64 {
    let tail = Tail::of(misses);
    let cost = |margin: f64| {
        let wasted = stakes.run * margin.exp_m1();
        let lost = (stakes.failure + stakes.run) * chance(&tail, misses, margin);
        wasted + lost
    };
    let tried = (0..=TRIED).map(|i| LEAST * (MOST / LEAST).powf(f64::from(i) / f64::from(TRIED)));
    let costs = tried.map(|margin| (cost(margin), margin));
    costs
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(MOST, |(_, margin)| margin)
}

/// How likely the next run is to use more than a margin allows.
fn chance(tail: &Tail, misses: &VecDeque<Miss>, margin: f64) -> f64 {
    let long = tail.share * beyond(margin, tail.from, tail.spread);
    let mut late = 0.0;
    let mut weight = 1.0 - LATE_FADE;
    for miss in misses.iter().rev().take(LATE_RUNS) {
        late += weight * beyond(margin, miss.ln, tail.spread);
        weight *= LATE_FADE;
    }
    (1.0 - OF_LATE) * long + OF_LATE * late + UNLIKE * beyond(margin, 0.0, UNLIKE_SPREAD)
}

fn beyond(margin: f64, from: f64, spread: f64) -> f64 {
    (-(margin - from).max(0.0) / spread).exp()
}

/// The worst misses: a `share` of all lies above `from`, by `spread` on average.
struct Tail {
    from: f64,
    share: f64,
    spread: f64,
}

impl Tail {
    /// Early predictions stood on few runs and say little about one that stands on many, so a miss weighs the more the later it was.
    fn of(misses: &VecDeque<Miss>) -> Self {
        let count = misses.len();
        let weight = |index: usize| (index + 1) as f64 / count as f64;
        let mut worst: Vec<(Miss, f64)> = misses
            .iter()
            .copied()
            .enumerate()
            .map(|(index, miss)| (miss, weight(index)))
            .collect();
        worst.sort_by(|(a, _), (b, _)| b.ln.total_cmp(&a.ln));
        let all: f64 = worst.iter().map(|(_, weight)| weight).sum();
        let Some(last) = worst.last().map(|(miss, _)| *miss) else {
            return Self {
                from: 0.0,
                share: 1.0,
                spread: SPREAD_BEFORE,
            };
        };
        let wanted = all.sqrt();
        let mut weighs = 0.0;
        let mut length = 0;
        for (_, weight) in &worst {
            if length > 0 && weighs + weight > wanted {
                break;
            }
            weighs += weight;
            length += 1;
        }
        let from = worst.get(length).map_or(last, |(miss, _)| *miss).ln;
        let above = &worst[..length];
        let excess: f64 = above
            .iter()
            .map(|(miss, weight)| (miss.ln - from) * weight)
            .sum();
        // A run that was killed adds what it was seen to use, but is no run that ended there: the estimate of an exponential with censoring.
        let ended: f64 = above
            .iter()
            .filter(|(miss, _)| !miss.censored)
            .map(|(_, weight)| weight)
            .sum();
        let before = SPREAD_BEFORE_WEIGHT / (count as f64).sqrt();
        Self {
            from,
            share: weighs / all,
            spread: (excess + before * SPREAD_BEFORE) / (ended + before),
        }
    }
}
