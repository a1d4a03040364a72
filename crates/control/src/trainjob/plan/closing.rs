//! What follows from an attempt's end: the next one after a wait, or the end of the job.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::trainjob::{Attempt, FailureCause, Outcome, Phase};
use stoke_api::{Reason, Span};

use stoke_memory::Diagnosis;

use super::ending::Ending;
use super::{Action, Turn, after, telling};
use crate::trainjob::rendezvous::fnv;
use crate::trainjob::workers::Worker;

impl Turn<'_> {
    /// When the last of its workers began, if all did.
    fn began_at(&self, attempt: &Attempt) -> Option<Timestamp> {
        let own = self
            .workers
            .iter()
            .filter(|it| it.attempt == attempt.number);
        let began: Vec<Timestamp> = own.map(Worker::started_at).collect::<Option<_>>()?;
        let is_whole = began.len() >= attempt.nodes.len();
        began.into_iter().max().filter(|_| is_whole)
    }

    /// Puts an attempt's end on record. What follows from it is decided by [`Self::prepare`] and [`Self::retire`].
    pub(super) fn end(&mut self, ending: Ending) {
        let is_reclaimed = self.is_reclaimed(&ending);
        let Ending {
            outcome,
            exit,
            reason,
            mut message,
            at,
            last_phase,
            avoid,
            preemption,
            diagnosis,
        } = ending;
        let last = self.status.attempts.last();
        let began = last.and_then(|attempt| self.began_at(attempt));
        let Some(attempt) = self.status.attempts.last_mut() else {
            return;
        };
        // It may be over before anyone has seen it run.
        if attempt.running_at.is_none()
            && let Some(began) = began
        {
            attempt.running_at = Some(Time(began.min(at)));
            self.status.started_at.get_or_insert(Time(began.min(at)));
        }
        let has_run = attempt.running_at.is_some();
        attempt.outcome = Some(outcome);
        attempt.exit = exit;
        attempt.avoid = avoid;
        attempt.preemption = preemption;
        attempt.finished_at = Some(Time(at));
        if let Some(running) = &attempt.running_at {
            self.status.ran_seconds +=
                u64::try_from(at.duration_since(running.0).as_secs()).unwrap_or(0);
        }
        attempt.diagnosis = diagnosis.as_ref().map(Diagnosis::finding);
        if outcome == Outcome::Failed {
            self.status.failures += 1;
            attempt.failed_for = failed_for(reason, diagnosis.as_ref());
            if let Some(cause) = attempt.failed_for {
                self.status.failures_by_cause.count(cause);
            }
        }
        self.status.spot_interruptions += u32::from(is_reclaimed);
        self.status.ready = telling::none_of(attempt.nodes.len());
        let last_phase = last_phase.or_else(|| {
            message = self.recover(diagnosis.as_ref()?).err()?;
            Some(Phase::Failed)
        });
        self.note_progress();
        let limit = self.job.spec.spot_interruptions;
        if is_reclaimed && limit.is_some_and(|limit| self.status.spot_interruptions >= limit) {
            let words = telling::stays_off_spot(self.status.spot_interruptions);
            message.push_str(&words);
            let exit = self.status.attempts.last_mut();
            if let Some(exit) = exit.and_then(|attempt| attempt.exit.as_mut()) {
                exit.message.push_str(&words);
            }
        }
        let is_sent_away = matches!(
            outcome,
            Outcome::Preempted | Outcome::Resized | Outcome::Restarted
        );
        let is_moved = reason == Reason::NodeLeaving && has_run;
        match (last_phase, outcome) {
            (Some(phase), _) => self.finish(phase, reason, message, at),
            (None, Outcome::Suspended) => {}
            // It has done nothing wrong, and goes on as soon as there is room; unless that happens again and again.
            (None, _) if is_sent_away || (is_moved && self.failures_in_a_row() == 1) => {
                self.status.next_attempt_at = None;
                self.say(Phase::Restarting, reason, message);
            }
            (None, _) => {
                let failures = self.failures_in_a_row();
                let delay = self.config.retry.delay(failures, self.chance());
                self.status.next_attempt_at = Some(Time(after(self.now, delay)));
                self.say(Phase::Restarting, reason, message);
            }
        }
    }

    /// A number of this job and its attempt, like no other's.
    fn chance(&self) -> u32 {
        let uid = self.job.metadata.uid.as_deref().unwrap_or_default();
        fnv(&format!("{}/{uid}", self.status.attempt))
    }

    /// Attempts at the end of the record that went wrong soon after they started.
    fn failures_in_a_row(&self) -> u32 {
        let forget =
            SignedDuration::try_from(self.config.retry.forget_after).unwrap_or(SignedDuration::MAX);
        let went_wrong = |attempt: &&Attempt| {
            let ran = match (&attempt.running_at, &attempt.finished_at) {
                (Some(from), Some(to)) => to.0.duration_since(from.0),
                _ => SignedDuration::ZERO,
            };
            let wrong = matches!(
                attempt.outcome,
                Some(Outcome::Failed | Outcome::Interrupted)
            );
            wrong && ran < forget && attempt.saved_at.is_none()
        };
        let attempts = self.status.attempts.iter().rev();
        // There is always some wait, even after one that ran long.
        attempts.take_while(went_wrong).count().max(1) as u32
    }

    /// The wait for the next attempt, once it is known that the last one got on.
    pub(super) fn wait_no_longer_than_needed(&mut self) {
        let last = self.status.attempts.last();
        let finished = last.and_then(|attempt| attempt.finished_at.as_ref());
        let Some(finished) = finished.map(|time| time.0) else {
            return;
        };
        let delay = (self.config.retry).delay(self.failures_in_a_row(), self.chance());
        if let Some(next) = &mut self.status.next_attempt_at {
            next.0 = next.0.min(after(finished, delay));
        }
    }

    pub(super) fn is_exhausted(&self) -> bool {
        let last = self
            .status
            .attempts
            .last()
            .and_then(|attempt| attempt.outcome);
        let is_over = self.status.failures > self.job.spec.retries || self.is_at_a_limit();
        last == Some(Outcome::Failed) && is_over
    }

    /// What the last attempt failed for, how often that may be tried again, and how often it was seen; where that has a limit of its own.
    pub(super) fn last_of_its_cause(&self) -> Option<(FailureCause, u32, u32)> {
        let cause = self.status.attempts.last()?.failed_for?;
        let limit = self.job.spec.retry_limits?.get(cause)?;
        let failures = self.status.failures_by_cause.get(cause).unwrap_or(0);
        Some((cause, limit, failures))
    }

    fn is_at_a_limit(&self) -> bool {
        let last = self.last_of_its_cause();
        last.is_some_and(|(_, limit, failures)| failures > limit)
    }

    pub(super) fn fail_for_good(&mut self) {
        let last = self.last_of_its_cause();
        // Where all of its retries are used up as well, that is the shorter thing to say, and the cause is told with it.
        let limit = last.filter(|_| self.status.failures <= self.job.spec.retries);
        let fresh = self.status.phase == Phase::Restarting;
        let message = telling::given_up(&self.status);
        let at = self
            .status
            .attempts
            .last()
            .and_then(|attempt| attempt.finished_at.clone());
        let at = at.map_or(self.now, |time| time.0);
        if let Some((cause, limit, failures)) = limit {
            let message = telling::limit_reached(cause, limit, failures, &self.status);
            self.finish(Phase::Failed, Reason::RetryLimitReached, message, at);
        } else if fresh && self.job.spec.retries == 0 {
            let reason = self.status.reason.clone();
            self.finish(Phase::Failed, Reason::WorkerFailed, message, at);
            self.status.reason = reason;
        } else {
            self.finish(Phase::Failed, Reason::RetriesExhausted, message, at);
        }
    }

    pub(super) fn finish(&mut self, phase: Phase, reason: Reason, message: String, at: Timestamp) {
        self.status.finished_at = Some(Time(at));
        self.status.next_attempt_at = None;
        self.say(phase, reason, message);
    }

    /// When a job that is over goes itself, if it is to. What it used is on its pods, and they go with it: that is waited for.
    pub(super) fn goes_at(&self, learns_until: Option<Timestamp>) -> Option<Timestamp> {
        let is_over = self.status.phase.is_final();
        let finished = self.status.finished_at.as_ref().filter(|_| is_over)?.0;
        let Span { seconds } = self.job.spec.ttl?;
        let due = after(finished, Duration::from_secs(seconds));
        Some(learns_until.map_or(due, |until| due.max(until)))
    }

    /// The job is over: nothing of it runs on, and in time it goes itself.
    pub(super) fn retire(&mut self, learns_until: Option<Timestamp>) {
        self.stop(|_| true);
        let Some(due) = self.goes_at(learns_until) else {
            return;
        };
        match &self.job.metadata.uid {
            Some(uid) if due <= self.now => {
                self.actions.push(Action::DeleteJob { uid: uid.clone() });
            }
            _ => self.wake_at(due),
        }
    }
}

/// What a failed attempt counts as. One that ran for as long as its job may is the job's end anyway.
fn failed_for(reason: Reason, diagnosis: Option<&Diagnosis>) -> Option<FailureCause> {
    match diagnosis {
        Some(diagnosis) => Some(diagnosis.cause.counts_as()),
        None => (reason == Reason::Hung).then_some(FailureCause::Hung),
    }
}
