//! The mix: what was asked for lately, by kind, in a bounded number of kinds.

use std::collections::BTreeMap;

use super::ask::{Ask, Models, WHOLE};

/// So much more counts an ask than the one before it: after 8,192 more it counts half.
const GROWTH: f64 = 1.000_084_616;
/// Weights are scaled down before they grow beyond this.
const WEIGHT_MAX: f64 = 1e6;
/// Kinds of work that are told apart. When there are more, the rarer half is forgotten.
const KINDS_MAX: usize = 1024;

/// Work that is alike: the same GPUs, and about the same CPU and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    gpus: u32,
    milli: u16,
    models: Models,
    cpu: u64,
    memory: u64,
}

impl Kind {
    fn of(ask: &Ask) -> Self {
        let on_gpus = ask.gpus > 0;
        Self {
            gpus: ask.gpus,
            milli: if on_gpus { ask.milli } else { 0 },
            models: if on_gpus { ask.models } else { Models::ANY },
            cpu: about(ask.cpu),
            memory: about(ask.memory),
        }
    }
}

/// The amount to four binary digits, so that amounts nearly the same are one kind.
fn about(amount: u64) -> u64 {
    let spare = (u64::BITS - amount.leading_zeros()).saturating_sub(4);
    amount >> spare << spare
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    weight: f64,
    cpu: f64,
    memory: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct History {
    kinds: BTreeMap<Kind, Tally>,
    /// Of the next ask. It grows, instead of all tallies shrinking.
    weight: f64,
    count: u64,
}

/// One kind of work in the mix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    kind: Kind,
    /// Of all asks; the shares of a mix add up to 1.
    pub share: f64,
    pub cpu: f64,
    pub memory: f64,
    pub gpus: u32,
    pub milli: u16,
    pub models: Models,
}

impl Share {
    pub fn is_fraction(&self) -> bool {
        self.gpus == 1 && self.milli < WHOLE
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            kinds: BTreeMap::new(),
            weight: 1.0,
            count: 0,
        }
    }
}

impl History {
    pub fn observe(&mut self, ask: &Ask) {
        let tally = self.kinds.entry(Kind::of(ask)).or_default();
        tally.weight += self.weight;
        tally.cpu += self.weight * ask.cpu as f64;
        tally.memory += self.weight * ask.memory as f64;
        self.count += 1;
        self.weight *= GROWTH;
        if self.kinds.len() > KINDS_MAX || self.weight > WEIGHT_MAX {
            self.tidy();
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mix, in a fixed order.
    pub fn shares(&self) -> Vec<Share> {
        let total: f64 = self.kinds.values().map(|tally| tally.weight).sum();
        let share = |(kind, tally): (&Kind, &Tally)| Share {
            kind: *kind,
            share: tally.weight / total,
            cpu: tally.cpu / tally.weight,
            memory: tally.memory / tally.weight,
            gpus: kind.gpus,
            milli: kind.milli,
            models: kind.models,
        };
        self.kinds.iter().map(share).collect()
    }

    /// How far the mix is from what it was: 0 where it is the same, 1 where nothing is left of it.
    pub fn drift(&self, before: &[Share]) -> f64 {
        let mut moved: BTreeMap<Kind, f64> = BTreeMap::new();
        for share in self.shares() {
            *moved.entry(share.kind).or_default() += share.share;
        }
        for share in before {
            *moved.entry(share.kind).or_default() -= share.share;
        }
        moved.values().map(|moved| moved.abs()).sum::<f64>() / 2.0
    }

    fn tidy(&mut self) {
        let mut weights: Vec<f64> = self.kinds.values().map(|tally| tally.weight).collect();
        weights.sort_unstable_by(f64::total_cmp);
        let least = if weights.len() > KINDS_MAX {
            // Of equal weights the newest kinds go too, or there would be no bound where none comes twice.
            weights[weights.len() / 2].next_up()
        } else {
            0.0
        };
        let scale = self.weight;
        self.kinds.retain(|_, tally| {
            let stays = tally.weight >= least;
            tally.weight /= scale;
            tally.cpu /= scale;
            tally.memory /= scale;
            stays
        });
        self.weight = 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(cpu: u64, gpus: u32) -> Ask {
        Ask {
            cpu,
            memory: 1,
            gpus,
            milli: WHOLE,
            models: Models::ANY,
        }
    }

    #[test]
    fn shares_are_of_what_was_asked() {
        let mut history = History::default();
        assert!(history.shares().is_empty());
        for turn in 0..100 {
            history.observe(&ask(if turn % 4 == 0 { 8000 } else { 8010 }, 1));
            history.observe(&ask(1000, 0));
        }
        let shares = history.shares();
        assert_eq!(shares.len(), 2, "about the same CPU is one kind");
        assert!((shares.iter().map(|share| share.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((shares[1].cpu - 8007.5).abs() < 0.1, "{}", shares[1].cpu);
    }

    #[test]
    fn what_was_long_ago_fades() {
        let mut history = History::default();
        for _ in 0..8192 {
            history.observe(&ask(1000, 1));
        }
        let before = history.shares();
        for _ in 0..8192 {
            history.observe(&ask(1000, 2));
        }
        let now = history.shares();
        assert!((now[0].share - 1.0 / 3.0).abs() < 0.01, "{}", now[0].share);
        assert!((history.drift(&before) - 2.0 / 3.0).abs() < 0.01);
        assert!(history.drift(&now) < 1e-9);
        for _ in 0..1_000_000 {
            history.observe(&ask(1000, 2));
        }
        assert!(history.shares()[0].share < 1e-9, "and weights stay finite");
    }

    #[test]
    fn kinds_are_bounded() {
        let mut history = History::default();
        for turn in 0..100_000_u32 {
            history.observe(&ask(1000, turn));
            if turn % 3 == 0 {
                history.observe(&ask(1000, 7));
            }
            assert!(history.kinds.len() <= KINDS_MAX);
        }
        let shares = history.shares();
        let common = shares.iter().find(|share| share.gpus == 7);
        assert!(
            common.is_some_and(|share| share.share > 0.2),
            "the common one is not forgotten"
        );
    }
}
