//! How many requests may be under way at once: as many as the API server takes without complaint.
//!
//! Each 429 halves the number, and nobody asks again before the time it named; each answer lets in a little more, up to the most that was
//! configured. So many controllers share one server by what it says, not by a rate that someone has to guess.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Complaints this close together are about the same crowd, and one cut answers them all.
const CROWD: Duration = Duration::from_secs(1);
/// However long a server says.
const PAUSE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Gate {
    state: Mutex<State>,
    changed: Notify,
    max: u32,
}

#[derive(Debug)]
struct State {
    inside: u32,
    /// A fraction grows into one more.
    limit: f64,
    paused_until: Option<Instant>,
    cut_at: Option<Instant>,
}

/// One request under way.
#[derive(Debug)]
pub struct Pass<'a>(&'a Gate);

/// What a server made of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Fine,
    /// Too much: come back after this time.
    Pause(Duration),
    /// It broke, or said nothing in time.
    Strained,
}

impl Gate {
    pub fn new(max: u32) -> Self {
        let max = max.max(1);
        let state = State {
            inside: 0,
            limit: f64::from(max),
            paused_until: None,
            cut_at: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            max,
        }
    }

    /// Waits until one more may go.
    pub async fn enter(&self) -> Pass<'_> {
        loop {
            let wait_until = {
                let mut state = self.lock();
                let paused = state.paused_until.filter(|until| *until > Instant::now());
                if paused.is_none() && f64::from(state.inside) + 1.0 <= state.limit.max(1.0) {
                    state.inside += 1;
                    drop(state);
                    // There may be room for others, and only one is told of each change.
                    self.changed.notify_one();
                    return Pass(self);
                }
                paused
            };
            match wait_until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => self.changed.notified().await,
            }
        }
    }

    pub fn learn(&self, verdict: Verdict) {
        let now = Instant::now();
        let mut state = self.lock();
        match verdict {
            Verdict::Fine => {
                let grown = state.limit + 1.0 / state.limit;
                state.limit = grown.min(f64::from(self.max));
            }
            Verdict::Pause(wait) => {
                let until = now + wait.min(PAUSE_MAX);
                let later = state.paused_until.map_or(until, |paused| paused.max(until));
                state.paused_until = Some(later);
                state.cut(now);
            }
            Verdict::Strained => state.cut(now),
        }
    }

    /// How many may be under way now.
    pub fn limit(&self) -> u32 {
        self.lock().limit as u32
    }

    /// Every change is made whole under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn cut(&mut self, now: Instant) {
        if self.cut_at.is_none_or(|cut| now >= cut + CROWD) {
            self.limit = (self.limit / 2.0).max(1.0);
            self.cut_at = Some(now);
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.inside = state.inside.saturating_sub(1);
        drop(state);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_complaint_halves_the_crowd_once_and_answers_let_it_grow_again() {
        let gate = Gate::new(16);
        for _ in 0..20 {
            gate.learn(Verdict::Pause(SECOND));
        }
        assert_eq!(gate.limit(), 8, "one crowd, one cut");
        for _ in 0..10 {
            tokio::time::advance(SECOND).await;
            gate.learn(Verdict::Strained);
        }
        assert_eq!(gate.limit(), 1, "one always may");
        for _ in 0..500 {
            gate.learn(Verdict::Fine);
        }
        assert_eq!(gate.limit(), 16, "never more than configured");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_goes_before_the_time_that_was_named() {
        let gate = Gate::new(4);
        let asked = Instant::now();
        gate.learn(Verdict::Pause(7 * SECOND));
        gate.learn(Verdict::Pause(3 * SECOND));
        drop(gate.enter().await);
        assert_eq!(asked.elapsed(), 7 * SECOND);
        gate.learn(Verdict::Pause(Duration::MAX));
        drop(gate.enter().await);
        assert_eq!(asked.elapsed(), 67 * SECOND, "nor for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_inside_than_may_be() {
        let gate = Gate::new(3);
        let inside = std::sync::atomic::AtomicU32::new(0);
        let began = Instant::now();
        let visits = (0..30).map(|_| async {
            let _pass = gate.enter().await;
            assert!(inside.fetch_add(1, Relaxed) < 3);
            tokio::time::sleep(SECOND).await;
            inside.fetch_sub(1, Relaxed);
        });
        futures::future::join_all(visits).await;
        assert_eq!(began.elapsed(), 10 * SECOND, "and all of the room is used");
    }
}
