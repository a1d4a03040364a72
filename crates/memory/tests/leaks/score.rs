//! How well a rule does on a set of series.

use crate::rules::Rule;
use crate::series::Series;

#[derive(Debug, Clone, Default)]
pub struct Score {
    pub found: usize,
    pub missed: usize,
    /// Alarms on what does not leak, or does not yet.
    pub wrong: usize,
    /// Of the way from onset to out of memory, for each that was found.
    pub ways: Vec<f64>,
}

impl Score {
    pub fn of(rule: Rule, set: &[Series]) -> Self {
        let mut score = Self::default();
        for series in set {
            score.add(series, rule.alarm(series));
        }
        score
    }

    pub fn add(&mut self, series: &Series, alarm: Option<f64>) {
        match alarm.map(|second| series.way(second)) {
            Some(Some(way)) => {
                self.found += 1;
                self.ways.push(way);
            }
            Some(None) => {
                self.wrong += 1;
                self.missed += usize::from(series.leaks());
            }
            None => self.missed += usize::from(series.leaks()),
        }
    }

    pub fn precision(&self) -> f64 {
        share(self.found, self.wrong)
    }

    pub fn recall(&self) -> f64 {
        share(self.found, self.missed)
    }

    pub fn f1(&self) -> f64 {
        let (precision, recall) = (self.precision(), self.recall());
        2.0 * precision * recall / (precision + recall).max(f64::MIN_POSITIVE)
    }

    /// The median; 1 where nothing was found.
    pub fn way(&self) -> f64 {
        let mut ways = self.ways.clone();
        ways.sort_by(f64::total_cmp);
        ways.get(ways.len() / 2).copied().unwrap_or(1.0)
    }
}

fn share(part: usize, rest: usize) -> f64 {
    part as f64 / (part + rest).max(1) as f64
}
