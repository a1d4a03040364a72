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

/// How long a change of words must have lasted: while a job waits for room, and otherwise. The latter doubles with each that is written,
/// up to some times: what takes long to start is not followed by the second.
const WAITING: Duration = Duration::from_secs(60);
const STARTING: Duration = Duration::from_secs(10);
const DOUBLINGS_MAX: u32 = 2;

/// The least time between two looks at what would help someone who waits: a whole cluster is tried out for each, and thousands may wait.
const EXPLAINING: Duration = Duration::from_millis(200);

/// What the scheduler may take each time without a rest, and the longest rest.
const WALK_FREE: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Pace {
    jobs: Mutex<HashMap<Key, Words>>,
    /// When that was last done.
    explained: Mutex<Option<Instant>>,
    /// Until when the scheduler rests.
    rests: Mutex<Option<Instant>>,
}

/// What became of a job's words since something that matters was written.
#[derive(Debug, Default)]
struct Words {
    /// Since when they have differed from what is written.
    since: Option<Instant>,
    /// How often they were written.
    written: u32,
}

impl Pace {
    /// How long the change has still to wait; none where it is to be written now, or there is none.
    pub fn wait(
        &self,
        key: &Key,
        written: &TrainJobStatus,
        new: &TrainJobStatus,
    ) -> Option<Duration> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if written == new {
            if let Some(words) = jobs.get_mut(key) {
                words.since = None;
            }
            return None;
        }
        if matters(written, new) {
            jobs.remove(key);
            return None;
        }
        let words = jobs.entry(key.clone()).or_default();
        let lasting = match new.phase {
            Phase::Queued => WAITING,
            _ => STARTING * (1 << words.written.min(DOUBLINGS_MAX)),
        };
        let now = Instant::now();
        let first = *words.since.get_or_insert(now);
        let left = lasting.saturating_sub(now.duration_since(first));
        if left.is_zero() {
            words.since = None;
            words.written = words.written.saturating_add(1);
            return None;
        }
        Some(left)
    }

    /// May it be found out now what would help a job that waits? Where not, it is told why it waits, and the rest some other time.
    pub fn may_explain(&self) -> bool {
        let mut explained = self
            .explained
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let may = explained.is_none_or(|last| now >= last + EXPLAINING);
        if may {
            *explained = Some(now);
        }
        may
    }

    /// The scheduler has looked at all who wait, which took so long. After a long walk it rests ten times as long.
    pub fn walked(&self, took: Duration) {
        let rest = took.saturating_mul(10).min(REST_MAX);
        let until = (took > WALK_FREE).then(|| Instant::now() + rest);
        *self.rests.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// How long it still rests.
    pub fn rest(&self) -> Option<Duration> {
        let until = *self.rests.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// The job is no more.
    pub fn forget(&self, key: &Key) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.remove(key);
    }
}

/// Is it more than other words for the same?
fn matters(written: &TrainJobStatus, new: &TrainJobStatus) -> bool {
    let mut reworded = written.clone();
    reworded.message.clone_from(&new.message);
    reworded.ready.clone_from(&new.ready);
    reworded.waiting.clone_from(&new.waiting);
    reworded.last_checkpoint.clone_from(&new.last_checkpoint);
    reworded.saved.clone_from(&new.saved);
    // Of a gang that ends, worker by worker. A pod is not removed in a moment.
    if let Some((written, new)) = reworded.attempts.last_mut().zip(new.attempts.last()) {
        written.succeeded.clone_from(&new.succeeded);
        written.saved_at.clone_from(&new.saved_at);
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

    #[tokio::test(start_paused = true)]
    async fn what_costs_much_is_done_now_and_then() {
        let pace = Pace::default();
        let mut may = Vec::new();
        for _ in 0..4 {
            may.push(pace.may_explain());
            tokio::time::advance(EXPLAINING / 2).await;
        }
        assert_eq!(may, [true, false, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_scheduler_rests_after_a_long_walk() {
        let pace = Pace::default();
        pace.walked(Duration::from_millis(1));
        assert_eq!(pace.rest(), None);
        pace.walked(Duration::from_millis(40));
        assert_eq!(pace.rest(), Some(Duration::from_millis(400)));
        tokio::time::advance(Duration::from_millis(400)).await;
        assert_eq!(pace.rest(), None);
        pace.walked(Duration::from_secs(3));
        assert_eq!(pace.rest(), Some(REST_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_to_start_is_told_less_and_less_often() {
        let (pace, key) = (Pace::default(), Key::new("ns", "a"));
        let starting = |ready| status(Phase::Starting, "StartingWorkers", ready);
        let mut waits = Vec::new();
        let mut write = || {
            let wait = pace.wait(&key, &starting("0/64"), &starting("1/64"));
            waits.push(wait.map_or(0, |wait| wait.as_secs()));
            wait.unwrap_or_default()
        };
        for _ in 0..4 {
            tokio::time::advance(write()).await;
            assert_eq!(write(), Duration::ZERO);
        }
        assert_eq!(waits, [10, 0, 20, 0, 40, 0, 40, 0]);
        let running = status(Phase::Running, "WorkersRunning", "64/64");
        assert_eq!(pace.wait(&key, &starting("40/64"), &running), None);
        let ending = status(Phase::Running, "WorkersRunning", "63/64");
        assert_eq!(pace.wait(&key, &running, &ending), Some(STARTING), "anew");
    }
}
