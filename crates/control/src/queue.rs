//! What to look at next: names that wait their turn, each once, some only at a later time.
//!
//! There are two lanes. Of what is due the first goes before the second, but for one turn in some, so that nobody waits for ever.
//!
//! A name is worked on by one at a time; if it is woken meanwhile it is looked at again afterwards. After an error it waits longer
//! each time, and being woken does not cut that short unless it is forced: an error that causes its own wake-up would spin.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Quick at first, since most errors are of a moment.
const ERROR_DELAY_FIRST: Duration = Duration::from_millis(20);
const ERROR_DELAY_MAX: Duration = Duration::from_secs(30);

/// Of every so many turns, one is of the second lane.
const SECOND_EVERY: u64 = 4;

/// Which of those that are due go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    First,
    Second,
}

#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    /// The lanes, each by time, then by who came first.
    due: [BTreeMap<(Instant, u64), K>; 2],
    entries: HashMap<K, Entry>,
    counter: u64,
    turns: u64,
}

#[derive(Debug)]
struct Entry {
    /// Where it waits, or waited for the turn that it has.
    lane: Lane,
    waits: Option<(Instant, u64)>,
    running: bool,
    /// Woken while running: when to look again, and where it waits then.
    again: Option<(Instant, Lane)>,
    errors: u32,
    not_before: Option<Instant>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Look again after this time, if ever.
    Well(Option<Duration>),
    /// Look again soon, and later each time.
    Error,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                due: Default::default(),
                entries: HashMap::new(),
                counter: 0,
                turns: 0,
            }),
            changed: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Something about it has changed.
    pub fn wake(&self, key: K, lane: Lane) {
        self.wake_within(key, lane, Duration::ZERO);
    }

    /// Something about it has changed that can wait, together with what else changes meanwhile.
    pub fn wake_within(&self, key: K, lane: Lane, delay: Duration) {
        self.lock().wake(key, lane, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Someone has changed it on purpose: an earlier error does not hold it back.
    pub fn force(&self, key: K, lane: Lane) {
        {
            let mut state = self.lock();
            if let Some(entry) = state.entries.get_mut(&key) {
                entry.errors = 0;
                entry.not_before = None;
            }
            state.wake(key, lane, Instant::now());
        }
        self.changed.notify_one();
    }

    /// The next name that is due. Whoever takes it must call [`Self::done`].
    pub async fn next(&self) -> K {
        loop {
            let wait_until = {
                let mut state = self.lock();
                if let Some(key) = state.start_next(Instant::now()) {
                    // Others may be due as well, and only one waiter is told of each change.
                    self.changed.notify_one();
                    return key;
                }
                state.next_due()
            };
            match wait_until {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    pub fn done(&self, key: &K, done: Done) {
        self.lock().done(key, done);
        self.changed.notify_one();
    }

    /// How many are due or have their turn; those that wait for a later time are not counted.
    pub fn depth(&self) -> usize {
        let state = self.lock();
        let now = (Instant::now(), u64::MAX);
        let due: usize = state
            .due
            .iter()
            .map(|lane| lane.range(..=now).count())
            .sum();
        due + state.entries.values().filter(|entry| entry.running).count()
    }

    /// A panic elsewhere leaves no half-made state here: every change is made whole under the lock.
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn wake(&mut self, key: K, lane: Lane, at: Instant) {
        let entry = self.entries.entry(key.clone()).or_insert(Entry {
            lane,
            waits: None,
            running: false,
            again: None,
            errors: 0,
            not_before: None,
        });
        let at = entry.not_before.map_or(at, |not_before| at.max(not_before));
        if entry.running {
            entry.again = Some(entry.again.map_or((at, lane), |(again, known)| {
                (again.min(at), known.min(lane))
            }));
            return;
        }
        let (mut at, mut lane) = (at, lane);
        if let Some(waits) = entry.waits {
            let is_sooner = at < waits.0;
            let is_before = lane < entry.lane && at <= waits.0.max(Instant::now());
            if !is_sooner && !is_before {
                return;
            }
            at = at.min(waits.0);
            lane = lane.min(entry.lane);
            self.due[entry.lane as usize].remove(&waits);
        }
        self.counter += 1;
        entry.lane = lane;
        entry.waits = Some((at, self.counter));
        self.due[lane as usize].insert((at, self.counter), key);
    }

    /// The first time at which something is due.
    fn next_due(&self) -> Option<Instant> {
        let firsts = self.due.iter().filter_map(BTreeMap::first_key_value);
        firsts.map(|((at, _), _)| *at).min()
    }

    fn start_next(&mut self, now: Instant) -> Option<K> {
        let lanes = if self.turns % SECOND_EVERY == SECOND_EVERY - 1 {
            [Lane::Second, Lane::First]
        } else {
            [Lane::First, Lane::Second]
        };
        let found = lanes.into_iter().find_map(|lane| {
            let (at, _) = self.due[lane as usize].first_key_value()?;
            (at.0 <= now).then_some((lane, *at))
        });
        let (lane, at) = found?;
        self.turns += 1;
        let key = self.due[lane as usize].remove(&at)?;
        let entry = self.entries.get_mut(&key)?;
        entry.waits = None;
        entry.running = true;
        Some(key)
    }

    fn done(&mut self, key: &K, done: Done) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let now = Instant::now();
        entry.running = false;
        let again = entry.again.take();
        let lane = again.map_or(entry.lane, |(_, lane)| lane);
        let again = again.map(|(at, _)| at);
        let next = match done {
            Done::Well(after) => {
                entry.errors = 0;
                entry.not_before = None;
                let after = after.and_then(|after| now.checked_add(after));
                again.into_iter().chain(after).min()
            }
            Done::Error => {
                let factor = 1_u32.checked_shl(entry.errors).unwrap_or(u32::MAX);
                let delay = ERROR_DELAY_FIRST
                    .saturating_mul(factor)
                    .min(ERROR_DELAY_MAX);
                entry.errors = entry.errors.saturating_add(1);
                entry.not_before = Some(now + delay);
                entry.not_before
            }
        };
        match next {
            Some(at) => self.wake(key.clone(), lane, at),
            // Nothing is held for names that will never come again.
            None => {
                self.entries.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn next_within(queue: &Queue<&'static str>, millis: u64) -> Option<&'static str> {
        tokio::time::timeout(Duration::from_millis(millis), queue.next())
            .await
            .ok()
    }

    #[tokio::test(start_paused = true)]
    async fn each_name_waits_once_and_in_order() {
        let queue = Queue::default();
        for name in ["b", "a", "b"] {
            queue.wake(name, Lane::First);
        }
        assert_eq!(next_within(&queue, 1).await, Some("b"));
        assert_eq!(next_within(&queue, 1).await, Some("a"));
        assert_eq!(next_within(&queue, 1).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_lane_goes_first_and_the_second_is_not_forgotten() {
        let queue = Queue::default();
        for name in ["w", "x", "y"] {
            queue.wake(name, Lane::Second);
        }
        for name in ["a", "b", "c", "d", "e"] {
            queue.wake(name, Lane::First);
        }
        // One that is woken for a better reason changes lanes, and not back.
        queue.wake("y", Lane::First);
        queue.wake("y", Lane::Second);
        // One that is due only later does not hold up another.
        queue.wake_within("z", Lane::First, Duration::from_secs(60));
        let mut order = Vec::new();
        while let Some(name) = next_within(&queue, 1).await {
            order.push(name);
        }
        assert_eq!(order, ["a", "b", "c", "w", "d", "e", "y", "x"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_is_due_in_one_lane_is_not_kept_for_its_time_in_the_other() {
        let queue = Queue::default();
        queue.wake_within("a", Lane::First, Duration::from_secs(60));
        queue.wake("a", Lane::Second);
        assert_eq!(next_within(&queue, 1).await, Some("a"));
        queue.done(&"a", Done::Well(None));
        assert_eq!(next_within(&queue, 1_000_000).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_woken_while_worked_on_is_looked_at_again_afterwards() {
        let queue = Queue::default();
        queue.wake("a", Lane::First);
        assert_eq!(queue.next().await, "a");
        queue.wake("a", Lane::First);
        assert_eq!(next_within(&queue, 1).await, None, "one at a time");
        queue.done(&"a", Done::Well(Some(Duration::from_secs(60))));
        assert_eq!(next_within(&queue, 1).await, Some("a"));
        queue.done(&"a", Done::Well(None));
        assert_eq!(next_within(&queue, 1_000_000).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_wait_is_looked_at_once_for_all_of_it() {
        let queue = Queue::default();
        let second = Duration::from_secs(1);
        queue.wake_within("a", Lane::First, second);
        tokio::time::advance(second / 2).await;
        queue.wake_within("a", Lane::First, second);
        assert_eq!(next_within(&queue, 499).await, None);
        assert_eq!(next_within(&queue, 2).await, Some("a"));
        queue.wake_within("a", Lane::First, second);
        queue.done(&"a", Done::Well(None));
        assert_eq!(next_within(&queue, 900).await, None);
        queue.wake("a", Lane::First);
        assert_eq!(next_within(&queue, 1).await, Some("a"), "until it cannot");
        queue.done(&"a", Done::Well(None));
        assert_eq!(next_within(&queue, 1_000_000).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_wait_longer_each_time_and_are_not_cut_short_by_their_own_noise() {
        let queue = Queue::default();
        queue.wake("a", Lane::First);
        let mut waits = Vec::new();
        for _ in 0..14 {
            let asked = Instant::now();
            assert_eq!(queue.next().await, "a");
            waits.push(asked.elapsed().as_millis());
            queue.wake("a", Lane::First);
            queue.done(&"a", Done::Error);
            queue.wake("a", Lane::First);
        }
        assert_eq!(waits[..4], [0, 20, 40, 80]);
        assert_eq!(waits[13], ERROR_DELAY_MAX.as_millis());
        queue.force("a", Lane::First);
        assert_eq!(next_within(&queue, 1).await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_time_is_kept_until_something_happens() {
        let queue = Queue::default();
        queue.wake("a", Lane::First);
        queue.next().await;
        queue.done(&"a", Done::Well(Some(Duration::from_secs(60))));
        assert_eq!(next_within(&queue, 59_000).await, None);
        assert_eq!(next_within(&queue, 2_000).await, Some("a"));
        queue.done(&"a", Done::Well(Some(Duration::from_secs(60))));
        queue.wake("a", Lane::First);
        assert_eq!(next_within(&queue, 1).await, Some("a"));
    }
}
