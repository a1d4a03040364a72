//! A node that runs out as a whole: seen before its kubelet evicts someone, and without asking who is harmed least.

use std::fmt;
use std::time::Duration;

use stoke_api::Bytes;

use super::growth::Growth;

/// Told this long before what is available would be below what must stay free.
const AHEAD: Duration = Duration::from_secs(20);
/// Not taken back before there is this much more again, and for this long.
const CALM_AFTER: Duration = Duration::from_secs(30);
/// What is foreseen counts when it held for this long: a program that allocates for a second does not go on for twenty.
const HOLDS_AFTER: Duration = Duration::from_secs(5);
const MARGIN_MIN: u64 = 64 << 20;

/// Watches one node.
#[derive(Debug, Clone, Default)]
pub struct NodeGuard {
    growth: Growth,
    /// Since when it would be full soon.
    soon_since: Option<Duration>,
    since: Option<Duration>,
    calm_since: Option<Duration>,
}

/// The node is short of memory, or soon is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    pub available: u64,
    /// Below this, the kubelet evicts.
    pub reserve: u64,
    /// Less is available each second by this much.
    pub per_second: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let human = |bytes: u64| Bytes(bytes).human();
        write!(f, "the node has {} left", human(self.available))?;
        if self.per_second > 0 {
            write!(f, ", {} less each second", human(self.per_second))?;
        }
        write!(f, ", and evicts below {}", human(self.reserve))
    }
}

impl NodeGuard {
    /// Looks at the node. Gives the shortage for as long as it lasts.
    pub fn observe(
        &mut self,
        at: Duration,
        total: u64,
        available: u64,
        reserve: u64,
    ) -> Option<Shortage> {
        self.growth.observe(at, total.saturating_sub(available));
        let per_second = self.growth.lately();
        let margin = (total / 100).max(MARGIN_MIN);
        let soon = per_second.saturating_mul(AHEAD.as_secs());
        let floor = reserve.saturating_add(margin);
        // With much left there is time to see whether it comes to that.
        let is_little = available < total / 5;
        if is_little && available.saturating_sub(soon) < reserve {
            self.soon_since.get_or_insert(at);
        } else {
            self.soon_since = None;
        }
        let holds = |since: Duration| at.saturating_sub(since) >= HOLDS_AFTER;
        if available < floor || self.soon_since.is_some_and(holds) {
            self.since.get_or_insert(at);
            self.calm_since = None;
        } else if available < floor.saturating_add(margin) {
            self.calm_since = None;
        } else {
            let calm = *self.calm_since.get_or_insert(at);
            if at.saturating_sub(calm) >= CALM_AFTER {
                self.since = None;
            }
        }
        self.since.map(|_| Shortage {
            available,
            reserve,
            per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// What is said of 64 GiB, a tenth of a GiB of them in reserve, at a second.
    fn look(guard: &mut NodeGuard, second: u64, available: u64) -> Option<String> {
        let shortage = guard.observe(Duration::from_secs(second), 64 * GIB, available, GIB / 10);
        shortage.map(|shortage| shortage.to_string())
    }

    #[test]
    fn a_node_is_told_of_before_it_is_full_and_until_it_has_room_again() {
        let mut guard = NodeGuard::default();
        let mut look = |second, available| look(&mut guard, second, available);
        assert_eq!(look(0, 12 * GIB), None);
        let told = (1..11).find_map(|second| look(second, (12 - second) * GIB));
        assert_eq!(
            told.expect("it would be full in some seconds"),
            "the node has 5.0 GiB left, 1.0 GiB less each second, and evicts below 102 MiB"
        );
        assert!(look(8, 5 * GIB).is_some(), "not over at once");
        for second in 9..45 {
            look(second, 5 * GIB);
        }
        assert_eq!(look(45, 5 * GIB), None);
        let slowly = look(46, GIB / 2).expect("nearly full");
        assert!(slowly.starts_with("the node has 512 MiB left"), "{slowly}");
        for second in 47..200 {
            assert!(look(second, GIB / 2).is_some(), "it stays that full");
        }
    }

    #[test]
    fn a_moment_of_fast_growth_is_no_shortage() {
        // A step once in a while, with little left.
        let mut guard = NodeGuard::default();
        for second in 0..30 {
            let available = (12 - second / 10 * 4) * GIB;
            assert_eq!(look(&mut guard, second, available), None, "{second}");
        }
        // A program that loads for long, with much left.
        let mut guard = NodeGuard::default();
        for second in 0..20 {
            let available = (60 - 2 * second) * GIB;
            assert_eq!(look(&mut guard, second, available), None, "{second}");
        }
    }
}
