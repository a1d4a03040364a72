//! Keeps a job's status from being written for every word that changes in it. A gang of 64 goes from `0/64` to `64/64` within seconds, and
//! the reason for which a job waits counts nodes that come and go: what is written at once is what matters, the rest when it has lasted.
//!
//! Nothing is lost by it: a status that is held back is planned again and written when its time has come, or with the next that matters.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stoke_api::trainjob::{Phase, TrainJobStatus};
use tokio::time::Instant;

use crate::mirror::Key;

/// How long a change of words must have lasted: while a job waits for room, and otherwise.
const WAITING: Duration = Duration::from_secs(60);
const STARTING: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Pace {
    /// Since when a job's status has differed from what is written.
    since: Mutex<HashMap<Key, Instant>>,
}

impl Pace {
    /// How long the change has still to wait; none where it is to be written now, or there is none.
    pub fn wait(
        &self,
        key: &Key,
        written: &TrainJobStatus,
        new: &TrainJobStatus,
    ) -> Option<Duration> {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if written == new || matters(written, new) {
            since.remove(key);
            return None;
        }
        let lasting = match new.phase {
            Phase::Queued => WAITING,
            _ => STARTING,
        };
        let now = Instant::now();
        let first = *since.entry(key.clone()).or_insert(now);
        let left = lasting.saturating_sub(now.duration_since(first));
        if left.is_zero() {
            since.remove(key);
            return None;
        }
        Some(left)
    }

    /// The job is no more.
    pub fn forget(&self, key: &Key) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.remove(key);
    }
}

/// Is it more than other words for the same?
fn matters(written: &TrainJobStatus, new: &TrainJobStatus) -> bool {
    let mut reworded = written.clone();
    reworded.message.clone_from(&new.message);
    reworded.ready.clone_from(&new.ready);
    // Of a gang that ends, worker by worker. A pod is not removed in a moment.
    if let Some((written, new)) = reworded.attempts.last_mut().zip(new.attempts.last()) {
        written.succeeded.clone_from(&new.succeeded);
    }
    for (condition, new) in reworded.conditions.iter_mut().zip(&new.conditions) {
        condition.message.clone_from(&new.message);
    }
    reworded != *new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(phase: Phase, reason: &str, ready: &str) -> TrainJobStatus {
        TrainJobStatus {
            phase,
            reason: reason.to_owned(),
            ready: ready.to_owned(),
            message: format!("{ready} run"),
            ..TrainJobStatus::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn words_wait_and_what_matters_does_not() {
        let (pace, key) = (Pace::default(), Key::new("ns", "a"));
        let starting = |ready| status(Phase::Starting, "StartingWorkers", ready);
        let written = starting("0/64");
        assert_eq!(pace.wait(&key, &written, &written), None);
        assert_eq!(pace.wait(&key, &written, &starting("1/64")), Some(STARTING));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(
            pace.wait(&key, &written, &starting("9/64")),
            Some(Duration::from_secs(6))
        );
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(pace.wait(&key, &written, &starting("40/64")), None);
        let running = status(Phase::Running, "WorkersRunning", "64/64");
        assert_eq!(pace.wait(&key, &starting("40/64"), &running), None);
        let queued = |ready| status(Phase::Queued, "InsufficientCapacity", ready);
        assert_eq!(
            pace.wait(&key, &queued("a"), &queued("b")),
            Some(WAITING),
            "what was held back before does not count"
        );
    }
}
