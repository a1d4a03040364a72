//! The least that any policy can leave idle: GPUs as stock to be cut, without nodes, CPU, memory or models.
//!
//! A policy may not turn away a pod that it has room for. So all that came before the GPUs were full must lie on them, and of what came later as much as
//! can be. Both are linear programs over the ways to fill one GPU, in which a GPU may be filled partly one way and partly another; so no real packing does
//! better. Where there are many sizes they are rounded down, and the bound is a little lower for it.

use std::collections::BTreeMap;

use super::report::Samples;
use super::trace::Trace;
use crate::value::{Ask, WHOLE, simplex, sizes};

/// Sizes of fractions that are told apart.
const SIZES_MAX: usize = 32;
/// Ways to fill a GPU that are tried. Usual are a hundred.
const PATTERNS_MAX: usize = 500;
/// How much more what must be placed is worth than what may be: enough that it always is placed first.
const MUST: f64 = 1000.0;

/// The least idle part of all GPUs, in percent, at each mark; where the programs were not solved in bounded time, 0.
pub fn floor(trace: &Trace) -> BTreeMap<u32, Option<f64>> {
    let stock = Stock::of(trace);
    let asks: Vec<&Ask> = trace.asks().collect();
    let fitting = longest(asks.len(), |count| {
        stock.needed(&stock.count(&asks[..count])) <= stock.gpus + 1e-6
    });
    let must = stock.count(&asks[..fitting]);

    let mut samples = Samples::new(trace.gpu_milli);
    let mut at_mark: [(u32, usize); super::MARKS.len()] = Default::default();
    let mut arrived = 0;
    for (at, ask) in asks.iter().enumerate() {
        arrived += ask.gpu_milli();
        let Some(mark) = samples.mark(arrived) else {
            continue;
        };
        if at < fitting {
            samples.add(mark, arrived as f64);
        } else {
            // What lies on the GPUs only grows; so its end is a bound for all of the mark.
            at_mark[mark] = (at_mark[mark].0 + 1, at + 1);
        }
    }
    for (mark, (times, count)) in at_mark.into_iter().enumerate() {
        if times > 0 {
            let placed = stock.most(&must, &stock.count(&asks[..count]));
            for _ in 0..times {
                samples.add(mark, placed * f64::from(WHOLE));
            }
        }
    }
    samples.means()
}

/// The greatest number up to `most` for which `holds`, which holds for 0 and, once it does not, never again.
fn longest(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut fits, mut over) = (0, most + 1);
    while over - fits > 1 {
        let middle = usize::midpoint(fits, over);
        if holds(middle) {
            fits = middle;
        } else {
            over = middle;
        }
    }
    fits
}

/// GPUs, and the sizes they are cut to.
struct Stock {
    gpus: f64,
    /// Ascending.
    sizes: Vec<u16>,
    /// By size: the largest pod that is counted as that size, in GPUs.
    amounts: Vec<f64>,
    /// Sizes are rounded down to multiples of it.
    step: u16,
}

/// Pods by size of fraction, and whole GPUs last.
type Pods = Vec<f64>;

impl Stock {
    fn of(trace: &Trace) -> Self {
        let fractions = || trace.kinds.iter().filter(|ask| ask.is_fraction());
        let distinct = |step: u16| {
            let mut amounts = BTreeMap::<u16, u16>::new();
            for ask in fractions() {
                let amount = amounts.entry(ask.milli - ask.milli % step).or_default();
                *amount = ask.milli.max(*amount);
            }
            amounts
        };
        let mut step = 1;
        while distinct(step).len() > SIZES_MAX {
            step += 1;
        }
        let amounts = distinct(step);
        Self {
            gpus: trace.gpu_milli as f64 / f64::from(WHOLE),
            // What rounds to nothing takes no room, as far as this bound goes.
            sizes: amounts.keys().map(|size| (*size).max(1)).collect(),
            amounts: amounts
                .values()
                .map(|milli| f64::from(*milli) / f64::from(WHOLE))
                .collect(),
            step,
        }
    }

    fn count(&self, asks: &[&Ask]) -> Pods {
        let mut pods = vec![0.0; self.sizes.len() + 1];
        for ask in asks {
            let size = (ask.milli - ask.milli % self.step).max(1);
            match self.sizes.binary_search(&size) {
                Ok(at) if ask.is_fraction() => pods[at] += 1.0,
                _ => pods[self.sizes.len()] += f64::from(ask.gpus),
            }
        }
        pods
    }

    /// How many GPUs these pods need at least.
    fn needed(&self, pods: &Pods) -> f64 {
        let fractions = &pods[..self.sizes.len()];
        let prices = sizes::prices(&self.sizes, fractions);
        let parts: f64 = prices
            .iter()
            .zip(fractions)
            .map(|(price, count)| price * count)
            .sum();
        parts + pods[self.sizes.len()]
    }

    /// The most that can lie on the GPUs, in GPUs, with all of `must` on them and nothing that is not in `all`.
    fn most(&self, must: &Pods, all: &Pods) -> f64 {
        let kinds = self.sizes.len() + 1;
        let mut amounts = self.amounts.clone();
        amounts.push(1.0);
        let mut patterns: Vec<Vec<f64>> = Vec::new();
        for kind in 0..kinds {
            let mut pattern = vec![0.0; kinds];
            pattern[kind] = self
                .sizes
                .get(kind)
                .map_or(1.0, |size| f64::from(WHOLE / size));
            patterns.push(pattern);
        }
        while patterns.len() <= PATTERNS_MAX {
            let Some(found) = self.fill(must, all, &amounts, &patterns) else {
                break;
            };
            // The first rows say what one more of each size is worth, the last what one more GPU is.
            let gpu = found.duals.last().copied().unwrap_or(0.0);
            let (worth, pattern) = sizes::dearest(&self.sizes, &found.duals[..self.sizes.len()]);
            if worth <= gpu + 1e-6 {
                let placed = found.point.iter().zip(amounts.iter().chain(&amounts));
                return placed
                    .map(|(count, amount)| count * amount)
                    .sum::<f64>()
                    .min(self.gpus);
            }
            let mut pattern: Vec<f64> = pattern.into_iter().map(f64::from).collect();
            pattern.push(0.0);
            patterns.push(pattern);
        }
        self.gpus
    }

    /// With only these ways to fill a GPU. Variables: of each kind what must be placed; what may be; GPUs filled by each pattern.
    fn fill(
        &self,
        must: &Pods,
        all: &Pods,
        amounts: &[f64],
        patterns: &[Vec<f64>],
    ) -> Option<simplex::Optimum> {
        let kinds = amounts.len();
        let mut gain: Vec<f64> = amounts.iter().map(|amount| MUST * amount).collect();
        gain.extend(amounts);
        gain.resize(2 * kinds + patterns.len(), 0.0);
        let mut rows = Vec::with_capacity(3 * kinds + 1);
        let mut limits = Vec::with_capacity(3 * kinds + 1);
        let mut limit = |limit: f64, terms: &mut dyn Iterator<Item = (usize, f64)>| {
            let mut row = vec![0.0; gain.len()];
            for (variable, factor) in terms {
                row[variable] = factor;
            }
            rows.push(row);
            limits.push(limit);
        };
        for kind in 0..kinds {
            let cut = patterns
                .iter()
                .enumerate()
                .map(|(at, pattern)| (2 * kinds + at, -pattern[kind]));
            limit(
                0.0,
                &mut [(kind, 1.0), (kinds + kind, 1.0)].into_iter().chain(cut),
            );
        }
        for kind in 0..kinds {
            limit(must[kind], &mut [(kind, 1.0)].into_iter());
            limit(
                (all[kind] - must[kind]).max(0.0),
                &mut [(kinds + kind, 1.0)].into_iter(),
            );
        }
        limit(
            self.gpus,
            &mut (0..patterns.len()).map(|at| (2 * kinds + at, 1.0)),
        );
        simplex::maximise(&gain, &rows, &limits)
    }
}
