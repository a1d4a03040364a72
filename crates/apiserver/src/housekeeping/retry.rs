//! Tasks that failed, each with its own time to be tried again. Pure but for the wait.
//!
//! Bounded by the graph: a task is here once, and one about an object that is gone succeeds when it is tried.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::graph::Task;

const DELAY_MIN: Duration = Duration::from_secs(1);
const DELAY_MAX: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Retries(BTreeMap<Task, Retry>);

struct Retry {
    delay: Duration,
    at: Instant,
}

impl Retries {
    /// The task failed: it waits, twice as long each time.
    pub(super) fn postpone(&mut self, task: Task, now: Instant) {
        let delay = self
            .0
            .get(&task)
            .map_or(DELAY_MIN, |retry| DELAY_MAX.min(retry.delay * 2));
        let at = now + delay;
        self.0.insert(task, Retry { delay, at });
    }

    /// The task is done.
    pub(super) fn forget(&mut self, task: &Task) {
        self.0.remove(task);
    }

    /// The tasks to try now. Each stays until it is done, so that its delay grows if it fails again.
    pub(super) fn due(&self, now: Instant) -> impl Iterator<Item = &Task> {
        self.0
            .iter()
            .filter(move |(_, retry)| retry.at <= now)
            .map(|(task, _)| task)
    }

    /// Waits until a task is due; for ever if there is none.
    pub(super) async fn wait(&self) {
        match self.0.values().map(|retry| retry.at).min() {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_waits_on_its_own_and_longer_each_time() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (stuck, fresh) = (Task::Orphan("a".into()), Task::Orphan("b".into()));
        let mut retries = Retries::default();
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..8 {
            retries.postpone(stuck.clone(), now);
            let at = retries.0[&stuck].at;
            waits.push((at - now).as_secs());
            now = at;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        retries.forget(&stuck);

        retries.postpone(stuck.clone(), start);
        retries.postpone(stuck.clone(), after(1));
        retries.postpone(fresh.clone(), after(1));
        assert_eq!(retries.due(after(1)).count(), 0);
        assert_eq!(retries.due(after(2)).collect::<Vec<_>>(), [&fresh]);
        assert_eq!(retries.due(after(3)).collect::<Vec<_>>(), [&stuck, &fresh]);
        retries.forget(&fresh);
        assert_eq!(retries.due(after(3)).collect::<Vec<_>>(), [&stuck]);
    }
}
