//! Whose turn it is among siblings: the one with the smallest dominant share goes first.
//!
//! A queue's dominant share is its part of the resource that it uses the largest part of: a GPU model, CPU or memory. What it used before
//! counts beside what it uses now, and half as much with each half-life, so that who had much lately waits for those who had little.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stoke_api::Span;

use super::amount::{Models, Use};

/// A part of the cluster over a weight. Ordered, as whatever decides must be.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Share(pub f64);

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What a queue used, as a mean in which a time counts the less the longer ago it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Past {
    /// Thousandths, by product.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, f64>,
    pub cpu: f64,
    pub memory: f64,
    /// When one of its jobs last went first because of its age.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_at: Option<Timestamp>,
}

/// Below this nobody's turn is decided by it.
const FORGOTTEN: f64 = 1e-3;

impl Past {
    /// Time has passed, all of it with this use.
    pub fn pass(&mut self, used: &Use, models: &Models, kept: f64) {
        let blend = |past: &mut f64, now: u64| *past = *past * kept + now as f64 * (1.0 - kept);
        blend(&mut self.cpu, used.cpu);
        blend(&mut self.memory, used.memory);
        for (id, model) in models.numbered() {
            let now = used.gpus.get(id);
            if now > 0 || self.gpus.contains_key(&model.product) {
                blend(self.gpus.entry(model.product.clone()).or_default(), now);
            }
        }
        self.gpus.retain(|_, past| *past > FORGOTTEN);
    }

    /// The largest part of any resource, past and present.
    pub fn dominant(&self, used: &Use, capacity: &Use, models: &Models) -> f64 {
        let part = |past: f64, now: u64, all: u64| {
            if all == 0 {
                0.0
            } else {
                (past + now as f64) / all as f64
            }
        };
        let gpus = models.numbered().map(|(id, model)| {
            let past = self.gpus.get(&model.product).copied().unwrap_or_default();
            part(past, used.gpus.get(id), capacity.gpus.get(id))
        });
        gpus.fold(0.0, f64::max)
            .max(part(self.cpu, used.cpu, capacity.cpu))
            .max(part(self.memory, used.memory, capacity.memory))
    }
}

/// How much of a past mean is left after so long.
pub fn kept(since: Timestamp, now: Timestamp, half_life: Span) -> f64 {
    let passed = now.duration_since(since).as_secs_f64().max(0.0);
    if half_life.seconds == 0 {
        return if passed > 0.0 { 0.0 } else { 1.0 };
    }
    (-passed / half_life.seconds as f64).exp2()
}
