//! An attempt that was asked to give its room to another, or to go on with more or fewer workers.
//!
//! One that is known to write checkpoints is asked for one first, and waited for a while. Its end is on record before its workers are told:
//! SIGTERM, and then their grace period. It counts as no failure. One that is resized has its next attempt on record in the same write, so
//! that nobody else is given its room meanwhile.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::Reason;
use stoke_api::trainjob::{Attempt, Growing, Outcome, Preemption};
use stoke_sched::Plan;

use super::ending::Ending;
use super::{Turn, after, placing, telling};
use crate::mirror::Key;
use crate::trainjob::pod;
use crate::trainjob::rendezvous::{lease, port_count};
use crate::trainjob::workers::{Stage, Worker};
use crate::world::{Demand, first, joined, plan_of};

/// So long after a checkpoint little is lost.
const JUST_SAVED: Duration = Duration::from_secs(60);
/// A gang that could have more workers has them after this time, whatever it loses by it.
const UNSAVED_MAX: Duration = Duration::from_secs(1800);

/// What came of asking a gang for a checkpoint before it grows.
enum Answer {
    Awaited,
    Saved,
    /// It was not asked, or did not answer in time.
    None,
}

impl Turn<'_> {
    /// Does what the attempt was asked to.
    pub(super) fn heed(&mut self, attempt: &Attempt) {
        let demand = self.observed.demand.clone();
        if !matches!(demand, Some(Demand::Yield { .. } | Demand::Shrink { .. })) {
            self.set_preemption(None);
        }
        let moves = attempt
            .leaving
            .as_ref()
            .is_some_and(|it| it.until.is_some());
        match demand {
            None => {}
            // All of its room comes free when it moves, which is soon.
            Some(Demand::Shrink { .. }) if moves => {}
            Some(Demand::Yield { by, why } | Demand::Shrink { by, why, .. })
                if self.saves_first(attempt) =>
            {
                let preemption = self.asked_to_give_way(attempt, &by, why);
                self.set_preemption(Some(preemption));
            }
            Some(Demand::Yield { by, why }) => self.give_way(attempt, &by, why),
            Some(Demand::Shrink { to, by, why }) => {
                let kept = first(plan_of(attempt), to as usize);
                let preemption = self.preemption(attempt, &by, why);
                self.resize(attempt, &kept, Some(preemption));
            }
            // What a worker that has ended well gave back is offered, and is its own the next time. On a node that goes it would grow to begin
            // anew at once.
            Some(Demand::Grow { .. }) if self.is_about_to_end(attempt) || moves => {
                self.declines = true;
            }
            Some(Demand::Grow { plan }) => {
                match self.save_to_grow(attempt) {
                    Answer::Awaited => return,
                    Answer::Saved => {}
                    Answer::None => {
                        if let Err(later) = self.may_grow(attempt) {
                            return self.wake_at(later);
                        }
                    }
                }
                let whole = joined(plan_of(attempt), plan);
                self.resize(attempt, &whole, None);
            }
        }
    }

    /// Have some of its workers ended well?
    fn is_about_to_end(&self, attempt: &Attempt) -> bool {
        let ranks = self.ranks(attempt);
        let mut workers = ranks.iter().flatten();
        !attempt.succeeded.is_empty() || workers.any(|worker| worker.stage() == Stage::Succeeded)
    }

    /// It grows when a checkpoint was just written, for with what it did since then it begins anew. Where none is seen it is not waited for
    /// without end: its workers are asked to write one before they stop.
    fn may_grow(&self, attempt: &Attempt) -> Result<(), Timestamp> {
        let Some(running) = attempt.running_at.as_ref().map(|time| time.0) else {
            return Err(after(self.now, UNSAVED_MAX));
        };
        let saved = self.status.last_checkpoint.as_ref().map(|time| time.0);
        let saved = saved.filter(|saved| *saved >= running);
        let is_fresh = saved.is_some_and(|saved| after(saved, JUST_SAVED) > self.now);
        let last = after(saved.unwrap_or(running), UNSAVED_MAX);
        if is_fresh || last <= self.now {
            Ok(())
        } else {
            Err(last)
        }
    }

    /// Asks it to save its work before it goes on with more workers, where it can be seen to answer, and not again soon: room comes and goes.
    /// Who does not answer in time goes on as if it had not been asked.
    fn save_to_grow(&mut self, attempt: &Attempt) -> Answer {
        let (now, until) = (self.now, after(self.now, self.config.save_wait));
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        let known = attempt.growing.as_ref();
        let asked = known.and_then(|known| time(&known.asked_at));
        if let Some(asked) = asked.filter(|asked| after(*asked, UNSAVED_MAX) > now) {
            let is_over = known
                .and_then(|it| time(&it.until))
                .is_none_or(|at| at <= now);
            return match self.saved_since(attempt, asked) {
                _ if is_over => Answer::None,
                Some(saved) if saved <= now => Answer::Saved,
                _ => Answer::Awaited,
            };
        }
        let can_answer = attempt.running_at.is_some() && self.is_seen_to_save();
        if !can_answer || self.may_grow(attempt).is_ok() {
            return Answer::None;
        }
        if let Some(attempt) = self.status.attempts.last_mut() {
            attempt.growing = Some(Growing {
                asked_at: Some(Time(now)),
                until: Some(Time(until)),
            });
        }
        Answer::Awaited
    }

    /// Can it be seen whether it heeds a request for a checkpoint?
    fn is_seen_to_save(&self) -> bool {
        let checkpoint = self.job.spec.checkpoint.as_ref();
        checkpoint.is_some_and(|it| it.signal.is_some() || self.status.last_checkpoint.is_some())
    }

    fn set_preemption(&mut self, preemption: Option<Preemption>) {
        if let Some(attempt) = self.status.attempts.last_mut() {
            attempt.preemption = preemption;
        }
    }

    /// Is it still to save its work before it is told to end? Only where it can be seen that it has: who asked for the room waits.
    fn saves_first(&self, attempt: &Attempt) -> bool {
        if attempt.running_at.is_none() || !self.is_seen_to_save() {
            return false;
        }
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        let known = attempt.preemption.as_ref();
        let known = known.and_then(|known| Some((time(&known.asked_at)?, time(&known.until)?)));
        let Some((asked, until)) = known else {
            return !self.saved_just_now(attempt);
        };
        let saved = self.saved_since(attempt, asked);
        until > self.now && saved.is_none_or(|saved| saved > self.now)
    }

    /// Whoever asks, it is asked once.
    fn asked_to_give_way(&self, attempt: &Attempt, by: &Key, why: String) -> Preemption {
        let known = attempt.preemption.clone().unwrap_or_else(|| Preemption {
            asked_at: Some(Time(self.now)),
            until: Some(Time(after(self.now, self.config.save_wait))),
            ..Preemption::default()
        });
        Preemption {
            by: by.to_string(),
            why,
            ..known
        }
    }

    fn preemption(&self, attempt: &Attempt, by: &Key, why: String) -> Preemption {
        let grace = pod::grace(self.job, self.config);
        let known = attempt.preemption.as_ref();
        let asked = known.and_then(|known| known.asked_at.clone());
        Preemption {
            by: by.to_string(),
            why,
            asked_at: Some(asked.unwrap_or(Time(self.now))),
            until: Some(Time(after(self.now, grace))),
        }
    }

    fn give_way(&mut self, attempt: &Attempt, by: &Key, why: String) {
        let preemption = self.preemption(attempt, by, why);
        let message = telling::preempted(&preemption, self.job.spec.checkpoint.is_some());
        self.end(Ending {
            preemption: Some(preemption),
            ..Ending::begun_anew(Outcome::Preempted, Reason::Preempted, message, self.now)
        });
    }

    /// Ends the attempt and puts the one after it on record, which has this room.
    fn resize(&mut self, attempt: &Attempt, plan: &Plan, preemption: Option<Preemption>) {
        let port = self.port_for(attempt, plan);
        if attempt.port.is_some() != port.is_some() {
            // Too few neighbouring ports are free.
            self.declines = true;
            return;
        }
        let message = telling::resized(attempt.nodes.len(), plan.nodes.len(), preemption.as_ref());
        let next = Attempt {
            number: attempt.number.saturating_add(1),
            placed_at: Some(Time(self.now)),
            generation: attempt.generation,
            port,
            cpus: attempt.cpus,
            memory: attempt.memory.clone(),
            memory_max: attempt.memory_max,
            memory_expected: attempt.memory_expected,
            storage: attempt.storage,
            storage_promised: attempt.storage_promised,
            shm: attempt.shm,
            tuning: attempt.tuning.clone(),
            spot: self.has_spot(&plan.nodes),
            ..placing::placed(self.job, plan)
        };
        self.end(Ending {
            preemption,
            ..Ending::begun_anew(Outcome::Resized, Reason::Resized, message, self.now)
        });
        self.status.push_attempt(next);
    }

    /// The first port of the next attempt, where it needs any and there are some.
    fn port_for(&self, attempt: &Attempt, plan: &Plan) -> Option<u16> {
        attempt.port?;
        let workers = u32::try_from(plan.nodes.len()).unwrap_or(u32::MAX);
        let count = port_count(self.job.spec.framework, workers);
        let uid = self.job.metadata.uid.as_deref().unwrap_or_default();
        let next = attempt.number.saturating_add(1);
        lease(&self.config.ports, &self.observed.leased, count, uid, next)
    }

    /// Does this attempt still wait for the one before it to end?
    pub(super) fn follows_another(&self, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> bool {
        let earlier = |worker: &Worker<'_>| worker.attempt < attempt.number;
        let mut workers = self.workers.iter();
        ranks.iter().all(Option::is_none)
            && workers.any(|worker| earlier(worker) && !worker.is_finished())
    }
}
