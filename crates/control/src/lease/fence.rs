//! A loser writes nothing.
//!
//! What is guaranteed, by the local clock alone: no write is begun later than `renew_deadline` after the last renewal that succeeded was
//! begun, and every write that is under way when the lease is about to run out is dropped, with its connection, before another may
//! take the lease. A process that was stopped and goes on looks at the clock before it does anything else with a request.
//!
//! What is not: bytes that have left this process are beyond it. A request may lie in a socket's buffer or in the API server's queue
//! and be carried out late. That is safe by what we write, not by when:
//!
//! - A status is written on condition of the version that was read, so a late one either changes nothing that anyone has built on,
//!   or is refused. An attempt is on record before its pods are made.
//! - A pod's name says its job, attempt and rank: the same one made twice is one, and one that comes late, of an attempt that is over, is
//!   seen and deleted by whoever leads then.
//! - Deletions name the uid of what was seen, and a changed Service the version.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The lease is not known to be ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another may lead by now; nothing is written")]
pub struct Fenced;

/// Up while we lead. Each term has its own, which once down is never up again.
#[derive(Debug)]
pub struct Fence {
    up: watch::Sender<Option<Up>>,
    /// From a renewal until no write may be begun, and until none may be under way.
    begin_within: Duration,
    end_within: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Up {
    begin_before: Instant,
    end_before: Instant,
}

impl Fence {
    /// Up, by a lease that was renewed then.
    pub fn new(renewed: Instant, lease_duration: Duration, renew_deadline: Duration) -> Self {
        // What is dropped at the very end would be in flight at that instant: a fifth of the gap is for that, and for clocks that differ.
        let slack = lease_duration.saturating_sub(renew_deadline) / 5;
        let fence = Self {
            up: watch::Sender::new(None),
            begin_within: renew_deadline,
            end_within: lease_duration.saturating_sub(slack),
        };
        fence.up.send_replace(Some(fence.since(renewed)));
        fence
    }

    fn since(&self, renewed: Instant) -> Up {
        Up {
            begin_before: renewed + self.begin_within,
            end_before: renewed + self.end_within,
        }
    }

    /// A renewal that was begun then has succeeded.
    pub fn renewed(&self, began: Instant) {
        let next = self.since(began);
        self.up.send_if_modified(|up| match up {
            Some(up) => {
                *up = next;
                true
            }
            None => false,
        });
    }

    /// Down, for good; what is under way is dropped.
    pub fn lower(&self) {
        self.up.send_replace(None);
    }

    /// May a write be begun now?
    pub fn check(&self) -> Result<(), Fenced> {
        let up = *self.up.borrow();
        match up {
            Some(up) if Instant::now() < up.begin_before => Ok(()),
            _ => Err(Fenced),
        }
    }

    /// Does a write, for as long as it may be under way.
    pub async fn within<T>(&self, write: impl Future<Output = T>) -> Result<T, Fenced> {
        self.check()?;
        let mut write = pin!(write);
        let mut changes = self.up.subscribe();
        loop {
            let Some(Up { end_before, .. }) = *changes.borrow_and_update() else {
                return Err(Fenced);
            };
            // Timers are late in a process that was stopped; the clock is not.
            let looked = poll_fn(|context| {
                if self.is_over() {
                    return Poll::Ready(Err(Fenced));
                }
                write.as_mut().poll(context).map(Ok)
            });
            tokio::select! {
                biased;
                done = looked => return done,
                // We hold the sender, so it cannot be gone.
                _ = changes.changed() => {}
                () = tokio::time::sleep_until(end_before) => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        let up = *self.up.borrow();
        up.is_none_or(|up| Instant::now() >= up.end_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fence() -> Fence {
        Fence::new(Instant::now(), 15 * SECOND, 10 * SECOND)
    }

    #[tokio::test(start_paused = true)]
    async fn writes_are_begun_until_the_deadline_and_ended_before_the_lease_runs_out() {
        let fence = fence();
        let began = Instant::now();
        tokio::time::advance(9 * SECOND).await;
        fence.check().expect("it is ours still");
        let slow = fence.within(std::future::pending::<()>()).await;
        assert_eq!(slow, Err(Fenced));
        assert_eq!(began.elapsed(), 14 * SECOND);
        let late = fence.within(async {}).await;
        assert_eq!(late, Err(Fenced), "and none is begun after that");
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_carry_slow_writes_on() {
        let fence = fence();
        let write = fence.within(tokio::time::sleep(30 * SECOND));
        let renewals = async {
            for _ in 0..20 {
                tokio::time::sleep(2 * SECOND).await;
                fence.renewed(Instant::now());
            }
        };
        let (written, ()) = tokio::join!(write, renewals);
        assert_eq!(written, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_that_is_down_stays_down() {
        let fence = fence();
        let write = fence.within(std::future::pending::<()>());
        let lowering = async {
            tokio::time::sleep(SECOND).await;
            fence.lower();
            fence.renewed(Instant::now());
        };
        let (written, ()) = tokio::join!(write, lowering);
        assert_eq!(written, Err(Fenced));
        assert_eq!(fence.check(), Err(Fenced));
    }

    /// As in a process that was stopped: the request can go on before any timer has gone off.
    #[tokio::test(start_paused = true)]
    async fn who_was_stopped_looks_at_the_clock_first() {
        let fence = fence();
        let (wake, woken) = tokio::sync::oneshot::channel::<()>();
        let write = fence.within(async {
            let _ = woken.await;
            panic!("it went on");
        });
        let mut write = pin!(write);
        assert!(futures::poll!(write.as_mut()).is_pending());
        tokio::time::advance(60 * SECOND).await;
        let _ = wake.send(());
        assert_eq!(futures::poll!(write.as_mut()), Poll::Ready(Err(Fenced)));
    }
}
