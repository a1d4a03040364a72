//! How fast a container's memory grows right now.

use std::collections::VecDeque;
use std::time::Duration;

/// Looks that are remembered: four seconds of quick ones.
const LOOKS_MAX: usize = 48;
/// Growth over less than this is a breath, not a trend.
const SHORT: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(4);

#[derive(Debug, Clone, Default)]
pub(super) struct Growth {
    looks: VecDeque<(Duration, u64)>,
}

impl Growth {
    pub(super) fn observe(&mut self, at: Duration, used: u64) {
        // A clock that went back begins anew.
        if self.looks.back().is_some_and(|(last, _)| *last > at) {
            self.looks.clear();
        }
        self.looks.push_back((at, used));
        let outdated = |looks: &VecDeque<(Duration, u64)>| {
            let second = looks.get(1).map(|(at, _)| *at);
            second.is_some_and(|second| at.saturating_sub(second) >= LONG)
        };
        while self.looks.len() > LOOKS_MAX || outdated(&self.looks) {
            self.looks.pop_front();
        }
    }

    /// Bytes a second; zero for one that does not grow at this moment, whatever it did before.
    pub(super) fn per_second(&self) -> u64 {
        let short = self.over(SHORT);
        if short == 0 {
            return 0;
        }
        // The faster of the two: memory often comes in bursts with pauses between them.
        short.max(self.over(LONG))
    }

    /// Bytes a second over the last seconds: a pause does not end it, and a single step counts for a part.
    pub(super) fn lately(&self) -> u64 {
        self.since(LONG, LONG)
    }

    /// Whether it was watched for long enough to tell one that stands still.
    pub(super) fn is_known(&self) -> bool {
        let ends = self.looks.front().zip(self.looks.back());
        ends.is_some_and(|((first, _), (last, _))| last.saturating_sub(*first) >= LONG / 2)
    }

    fn over(&self, span: Duration) -> u64 {
        self.since(span, Duration::ZERO)
    }

    /// Since the newest look that is at least that old, or the oldest there is, as if it took no less than `at_least`.
    fn since(&self, span: Duration, at_least: Duration) -> u64 {
        let Some((now, used)) = self.looks.back().copied() else {
            return 0;
        };
        let since = |at: Duration| now.saturating_sub(at);
        let earlier = self.looks.iter().rev().find(|(at, _)| since(*at) >= span);
        let Some((at, before)) = earlier.or(self.looks.front()).copied() else {
            return 0;
        };
        let took = since(at).max(at_least);
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if millis == 0 {
            return 0;
        }
        let grown = u128::from(used.saturating_sub(before)) * 1000 / u128::from(millis);
        u64::try_from(grown).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(looks: &[(u64, u64)]) -> u64 {
        let mut growth = Growth::default();
        for (millis, used) in looks {
            growth.observe(Duration::from_millis(*millis), *used);
        }
        growth.per_second()
    }

    #[test]
    fn growth_is_of_this_moment() {
        assert_eq!(after(&[]), 0);
        assert_eq!(after(&[(0, 500)]), 0);
        assert_eq!(after(&[(0, 100), (1000, 150)]), 50);
        assert_eq!(
            after(&[(0, 100), (1000, 150), (2000, 150)]),
            0,
            "it has stopped"
        );
        assert_eq!(after(&[(0, 100), (1000, 90)]), 0);
        let burst = [
            (0, 0),
            (1000, 0),
            (2000, 0),
            (3000, 0),
            (3800, 0),
            (3900, 40),
            (4000, 80),
            (4100, 120),
        ];
        assert_eq!(after(&burst), 400);
        let pausing = [(0, 0), (1000, 400), (2000, 400), (3000, 800), (4000, 810)];
        assert_eq!(after(&pausing), 202, "bursts with pauses between them");
        assert_eq!(
            after(&[(9000, 1), (100, 10), (600, 20)]),
            20,
            "a clock that went back"
        );
        assert_eq!(after(&[(0, 0), (0, u64::MAX)]), 0);
    }

    #[test]
    fn a_pause_is_no_end() {
        let mut growth = Growth::default();
        let mut look = |second, used| {
            growth.observe(Duration::from_secs(second), used);
            (growth.is_known(), growth.lately())
        };
        assert_eq!(look(0, 0), (false, 0));
        assert_eq!(look(1, 400), (false, 100));
        assert_eq!(look(2, 400), (true, 100));
        assert_eq!(look(4, 400), (true, 100));
        assert_eq!(look(5, 400), (true, 0));
    }

    #[test]
    fn little_is_remembered() {
        let mut growth = Growth::default();
        for look in 0..10_000_u64 {
            growth.observe(Duration::from_millis(look * 7), look);
        }
        assert!(growth.looks.len() <= LOOKS_MAX);
        let mut slow = Growth::default();
        for look in 0..100 {
            slow.observe(Duration::from_secs(look), look);
        }
        assert_eq!(slow.looks.len(), 5);
    }
}
