//! The memory that all pods of this machine share: what each uses and was lent, so that nothing is lent to one that is another's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stoke_memory::guard::{Neighbour, Node, NodeGuard, Room, Shortage};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::ledger::Ledger;
use crate::machine;
use crate::resources::MEMORY;

const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Commons {
    total_bytes: u64,
    /// What stays free for the machine itself.
    reserve_bytes: u64,
    pods: Mutex<BTreeMap<String, Standing>>,
    shortage: watch::Sender<Option<Shortage>>,
}

/// Of one pod.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    used: u64,
    lent: u64,
}

/// What each has, while somebody takes more. No await while they are open.
pub(crate) struct Books<'a>(MutexGuard<'a, BTreeMap<String, Standing>>);

impl Books<'_> {
    pub(crate) fn lend(&mut self, uid: &str, lent: u64) {
        self.0.entry(uid.to_owned()).or_default().lent = lent;
    }
}

impl Commons {
    pub(crate) fn new(total_bytes: u64, allocatable_bytes: u64) -> Self {
        Self {
            total_bytes,
            reserve_bytes: total_bytes.saturating_sub(allocatable_bytes),
            pods: Mutex::default(),
            shortage: watch::channel(None).0,
        }
    }

    pub(crate) fn note(&self, uid: &str, used: u64, lent: u64) {
        self.pods().insert(uid.to_owned(), Standing { used, lent });
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.pods().remove(uid);
    }

    /// What there is for one pod, when all others have what is theirs. Until the books are closed again nobody else is told of it.
    pub(crate) fn room(&self, uid: &str, ledger: &Ledger) -> (Room, Books<'_>) {
        self.room_of(uid, ledger, machine::available_bytes())
    }

    fn room_of(&self, uid: &str, ledger: &Ledger, available: u64) -> (Room, Books<'_>) {
        let pods = self.pods();
        let others = ledger.held(MEMORY).filter(|(holder, _)| *holder != uid);
        let neighbours = others.map(|(holder, promised)| {
            let standing = pods.get(holder).copied().unwrap_or_default();
            Neighbour {
                promised,
                lent: standing.lent,
                used: standing.used,
            }
        });
        let node = Node {
            available,
            reserve: self.reserve_bytes,
            allocatable: ledger.allocatable(MEMORY),
            neighbours: neighbours.collect(),
        };
        let mut own = ledger.held(MEMORY).filter(|(holder, _)| *holder == uid);
        let own_promise = own.next().map_or(0, |(_, amount)| amount);
        (node.room(own_promise), Books(pods))
    }

    pub(crate) fn is_short(&self) -> bool {
        self.shortage.borrow().is_some()
    }

    pub(crate) fn found(&self) -> Option<Shortage> {
        *self.shortage.borrow()
    }

    #[cfg(test)]
    pub(crate) fn find(&self, shortage: Option<Shortage>) {
        self.shortage.send_replace(shortage);
    }

    pub(crate) fn shortage(&self) -> watch::Receiver<Option<Shortage>> {
        self.shortage.subscribe()
    }

    /// Looks after the machine as a whole, for as long as it is let.
    pub(crate) async fn watch(self: Arc<Self>) {
        let begun = Instant::now();
        let mut guard = NodeGuard::default();
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let available = machine::available_bytes();
            let found = guard.observe(
                begun.elapsed(),
                self.total_bytes,
                available,
                self.reserve_bytes,
            );
            self.shortage.send_if_modified(|known| {
                // Its figures change each second; that it is short does not.
                let is_news = known.is_some() != found.is_some();
                if is_news {
                    *known = found;
                }
                is_news
            });
        }
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Standing>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Amounts;

    #[test]
    fn what_others_may_still_want_is_not_lent() {
        let amounts = |bytes: u64| Amounts::from([(MEMORY.to_owned(), bytes)]);
        let mut ledger = Ledger::new(amounts(900), Vec::new());
        for (uid, bytes) in [("a", 100), ("b", 200), ("c", 300)] {
            ledger.admit(uid, &amounts(bytes), None).expect("fits");
        }
        let commons = Commons::new(1000, 900);
        commons.note("a", 90, 0);
        commons.note("b", 50, 0);
        commons.note("c", 310, 80);
        let room = |available| commons.room_of("a", &ledger, available).0;
        // 150 of b and 70 of c are still theirs, and 100 stay free.
        assert_eq!(room(500).free, 500 - 150 - 70 - 100);
        assert_eq!(room(500).unpromised, 300);
        assert_eq!(room(200).free, 0);
        commons.forget("b");
        assert_eq!(room(500).free, 500 - 200 - 70 - 100, "as it was promised");
    }

    #[test]
    fn the_same_memory_is_not_lent_twice() {
        let ledger = {
            let amounts = |bytes: u64| Amounts::from([(MEMORY.to_owned(), bytes)]);
            let mut ledger = Ledger::new(amounts(1000), Vec::new());
            for uid in ["a", "b"] {
                ledger.admit(uid, &amounts(100), None).expect("fits");
            }
            ledger
        };
        let commons = Commons::new(1000, 1000);
        commons.note("a", 100, 0);
        commons.note("b", 100, 0);
        let (first, mut books) = commons.room_of("a", &ledger, 500);
        assert!(commons.pods.try_lock().is_err(), "nobody else is told yet");
        books.lend("a", first.free);
        drop(books);
        let (second, _) = commons.room_of("b", &ledger, 500);
        assert_eq!((first.free, second.free), (500, 0));
    }
}
