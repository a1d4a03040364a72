//! What is left of a shared GPU is worth the fractions it will still take.

use super::ask::WHOLE;
use super::sizes;

/// Fractions that come by while a piece may wait for a better one. More make it too proud to be used before the cluster is full.
const ARRIVALS: u32 = 60;
/// How much less a GPU is worth for being in pieces: the prices alone do not mind whether a fraction is put into a gap that it closes or opens
/// another, as long as the rest of the mix would close both; but the less stands open, the less must come as expected.
const TIDINESS: f64 = 0.1;

#[derive(Debug, Clone)]
pub(crate) struct Parts {
    step: u16,
    /// By what is left, in steps.
    worth: Vec<f64>,
}

impl Default for Parts {
    fn default() -> Self {
        Self::of(&[], &[], &[])
    }
}

impl Parts {
    /// For fractions of these sizes and prices, wanted in these proportions.
    pub fn of(sizes: &[u16], prices: &[f64], demand: &[f64]) -> Self {
        let step = sizes::step(sizes);
        let steps = usize::from(WHOLE / step);
        let total: f64 = demand.iter().sum();
        let mut worth = vec![0.0; steps + 1];
        for _ in 0..ARRIVALS {
            let before = worth.clone();
            for ((size, price), wanted) in sizes.iter().zip(prices).zip(demand) {
                let size = usize::from(size / step);
                for left in size..=steps {
                    // It is taken only where that beats waiting.
                    let gain = price + before[left - size] - before[left];
                    worth[left] += wanted / total * gain.max(0.0);
                }
            }
        }
        worth[steps] = 1.0;
        for (left, worth) in worth.iter_mut().enumerate() {
            let left = left as f64 / steps as f64;
            *worth = (1.0 - TIDINESS) * *worth + TIDINESS * left * left;
        }
        Self { step, worth }
    }

    /// In GPUs.
    pub fn worth(&self, left: u16) -> f64 {
        let at = usize::from(left / self.step).min(self.worth.len() - 1);
        self.worth[at]
    }
}
