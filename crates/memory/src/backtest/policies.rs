//! The policies that are compared. Those that are not ours are as their authors describe them.

use stoke_api::Bytes;

use super::Policy;
use super::table::Row;
use crate::history::{FailureCost, Learner, Sample};

const MIB: f64 = (1_u64 << 20) as f64;

/// Sizes the runs of one task. Amounts are in bytes.
pub trait Sizer {
    /// What a run gets at first.
    fn size(&self, row: &Row) -> f64;
    /// What it gets after it failed with `had`.
    fn again(&self, had: f64) -> f64;
    fn learn(&mut self, row: &Row);
}

pub fn of(policy: Policy, failure_cost_gib_h: f64) -> Box<dyn Sizer> {
    match policy {
        Policy::User => Box::new(User(Largest::default())),
        Policy::Vpa => Box::new(Vpa::default()),
        Policy::Krr => Box::new(Krr(Largest::default())),
        Policy::Maxseen => Box::new(Largest::default()),
        Policy::Stokehold => Box::new(Stokehold(Learner::new(FailureCost::GibHours(
            failure_cost_gib_h,
        )))),
    }
}

#[derive(Default)]
struct Largest {
    peak: u64,
}

impl Sizer for Largest {
    fn size(&self, _: &Row) -> f64 {
        self.peak as f64
    }

    fn again(&self, had: f64) -> f64 {
        2.0 * had
    }

    fn learn(&mut self, row: &Row) {
        self.peak = self.peak.max(row.peak);
    }
}

struct User(Largest);

impl Sizer for User {
    fn size(&self, row: &Row) -> f64 {
        match row.requested {
            0 => self.0.size(row),
            requested => requested as f64,
        }
    }

    fn again(&self, had: f64) -> f64 {
        self.0.again(had)
    }

    fn learn(&mut self, row: &Row) {
        self.0.learn(row);
    }
}

/// The 90th percentile of all earlier peaks and 15 %, 250 MiB at least.
#[derive(Default)]
struct Vpa {
    sorted: Vec<u64>,
}

impl Sizer for Vpa {
    fn size(&self, _: &Row) -> f64 {
        let rank = (0.9 * self.sorted.len() as f64).ceil() as usize;
        let peak = self
            .sorted
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default();
        (1.15 * peak as f64).max(250.0 * MIB)
    }

    fn again(&self, had: f64) -> f64 {
        (had + 100.0 * MIB).max(1.2 * had)
    }

    fn learn(&mut self, row: &Row) {
        let place = self.sorted.partition_point(|peak| *peak < row.peak);
        self.sorted.insert(place, row.peak);
    }
}

/// The largest peak seen and 15 %, 100 MB at least.
struct Krr(Largest);

impl Sizer for Krr {
    fn size(&self, row: &Row) -> f64 {
        (1.15 * self.0.size(row)).max(1e8)
    }

    fn again(&self, had: f64) -> f64 {
        1.25 * had
    }

    fn learn(&mut self, row: &Row) {
        self.0.learn(row);
    }
}

struct Stokehold(Learner);

impl Sizer for Stokehold {
    fn size(&self, row: &Row) -> f64 {
        let prediction = self.0.predict(row.input.map(Bytes));
        prediction.map_or(row.requested as f64, |prediction| prediction.enough)
    }

    /// A second failure would cost more than the memory: twice as much, and at least what held every run before.
    fn again(&self, had: f64) -> f64 {
        let largest = self.0.largest().unwrap_or_default();
        (2.0 * had).max(1.1 * largest)
    }

    fn learn(&mut self, row: &Row) {
        let input = row.input.map(Bytes);
        self.0
            .learn(Sample::new(input, Bytes(row.peak), row.seconds, false));
    }
}
