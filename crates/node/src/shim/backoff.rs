//! How long a container that ended is held back before its next start: a kubelet's rule.

use std::time::{Duration, Instant};

use super::protocol::Backoff;

/// The history of one container's starts, as far as the rule needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restarts {
    rule: Backoff,
    /// The wait before the next start, and when it was set: at the last start that followed an end.
    next: Option<(Duration, Instant)>,
}

impl Restarts {
    pub(super) fn new(rule: Backoff) -> Self {
        Self { rule, next: None }
    }

    /// The container ended at `ended`: how long to wait from then. The first restart is immediate, and so is one after a
    /// run of twice the longest wait.
    pub(super) fn wait(&mut self, ended: Instant) -> Duration {
        let longest = Duration::from_millis(self.rule.max_ms.max(1));
        // Never none at all: what fails at once would be started without end.
        let initial = Duration::from_millis(self.rule.initial_ms.max(1)).min(longest);
        let (wait, next) = match self.next {
            Some((wait, set)) if ended.saturating_duration_since(set) <= longest * 2 => {
                (wait, (wait * 2).min(longest))
            }
            _ => (Duration::ZERO, initial),
        };
        self.next = Some((next, ended + wait));
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_longest_and_starts_afresh_after_a_long_run() {
        let mut restarts = Restarts::new(Backoff::default());
        let mut now = Instant::now();
        let mut crash = |ran: u64| {
            now += Duration::from_secs(ran);
            let wait = restarts.wait(now);
            now += wait;
            wait.as_secs()
        };
        let waits: Vec<u64> = (0..8).map(|_| crash(1)).collect();
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(crash(599), 300, "not long enough");
        assert_eq!(crash(601), 0);
        assert_eq!(crash(1), 10);
    }
}
