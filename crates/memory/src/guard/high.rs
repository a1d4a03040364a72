//! The most that a container has used, lately and ever.

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
/// Memory that comes in bursts pauses for no longer than this.
const NEW_FOR: Duration = Duration::from_secs(5);

/// The most that was used lately: over the last whole minute and the one that runs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HighWater {
    begun: Option<Duration>,
    now: u64,
    last: Option<u64>,
    before_last: Option<u64>,
    /// The most ever, and when that was exceeded last.
    ever: Option<u64>,
    exceeded_at: Option<Duration>,
}

impl HighWater {
    pub(super) fn observe(&mut self, at: Duration, used: u64) {
        if self.ever.is_some_and(|ever| used > ever) {
            self.exceeded_at = Some(at);
        }
        self.ever = self.ever.max(Some(used));
        let begun = *self.begun.get_or_insert(at);
        if at.saturating_sub(begun) >= MINUTE {
            self.before_last = self.last.replace(self.now);
            self.now = used;
            self.begun = Some(at);
        } else {
            self.now = self.now.max(used);
        }
    }

    /// `None` before it was watched for long enough to tell.
    pub(super) fn most(&self) -> Option<u64> {
        self.last.map(|last| last.max(self.now))
    }

    /// Whether it used more than ever in these seconds.
    pub(super) fn is_new(&self, at: Duration) -> bool {
        self.exceeded_at
            .is_some_and(|exceeded| at.saturating_sub(exceeded) < NEW_FOR)
    }

    /// How fast it grew in each of the last two minutes: one that begins, and grows for one, may be about to stop.
    pub(super) fn per_second(&self) -> u64 {
        let (Some(last), Some(before)) = (self.last, self.before_last) else {
            return 0;
        };
        let grown = self.now.saturating_sub(last);
        grown.min(last.saturating_sub(before)) / MINUTE.as_secs()
    }
}
