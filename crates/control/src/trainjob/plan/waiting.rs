//! Between attempts: what is left of the last must stop, its wait be over, and there must be room for the next.

use std::sync::Arc;
use std::time::Duration;

use stoke_api::Reason;
use stoke_api::names::pod_name;
use stoke_api::trainjob::Phase;
use stoke_sched::Wait;

use super::{Turn, after, ending, placing, telling};
use crate::trainjob::workers::Worker;
use crate::world::{Ask, Room, needs_nodes};

/// Attempts in a row that are given room and do not start, until the job is given up: each keeps others from it.
const STARTS_IN_VAIN_MAX: usize = 5;
/// How often someone who waits for room is looked at though nothing about it has changed: the line before it moves.
const WAITING_TOLD_EVERY: Duration = Duration::from_secs(60);
/// How often its place in line is written anew though it waits for the same thing.
const PLACE_TOLD_EVERY: Duration = Duration::from_secs(600);

impl<'a> Turn<'a> {
    /// No attempt is on: stop what is left of the last, and start the next when everything is there for it.
    pub(super) fn prepare(&mut self) {
        self.status.waiting = None;
        self.status.ready = telling::none_of(self.job.spec.workers as usize);
        if self.is_exhausted() {
            return self.fail_for_good();
        }
        let in_vain = self.starts_in_vain();
        if in_vain >= STARTS_IN_VAIN_MAX {
            let message = telling::never_starts(in_vain, &self.status);
            return self.finish(Phase::Failed, Reason::StartFailed, message, self.now);
        }
        let max = self.job.spec.max_duration;
        if let Some(max) = max.filter(|max| self.status.ran_seconds >= max.seconds) {
            let message = telling::overdue(max);
            return self.finish(Phase::Failed, Reason::DeadlineExceeded, message, self.now);
        }
        self.stop(|_| true);
        let stopping = self.still_stopping(self.status.attempt.saturating_add(1));
        if self.job.spec.suspend {
            self.status.next_attempt_at = None;
            let message = telling::suspended(stopping);
            return self.say(Phase::Suspended, Reason::Suspended, message);
        }
        if stopping > 0 {
            if self.status.phase != Phase::Restarting {
                let message = format!(
                    "{} of the last attempt must stop first",
                    telling::workers(stopping)
                );
                self.say(Phase::Queued, Reason::StoppingWorkers, message);
            }
            return;
        }
        if let Some(pod) = self.namesake() {
            let message = format!("pod {pod} of an earlier job of this name must go first");
            return self.say(Phase::Queued, Reason::StoppingWorkers, message);
        }
        if let Some(at) = self
            .status
            .next_attempt_at
            .clone()
            .filter(|at| at.0 > self.now && !self.is_mended())
        {
            self.wake_at(at.0);
            let message = telling::backing_off(
                &self.status,
                self.job.spec.retries,
                self.last_of_its_cause(),
                &at,
            );
            let reason = self.refused_for().unwrap_or(Reason::BackingOff);
            return self.say(Phase::Queued, reason, message);
        }
        match placing::ask(self) {
            Err(waiting) => self.say(Phase::Queued, waiting.reason, waiting.message),
            Ok(ask) => {
                if let Some(until) = ask.until {
                    self.wake_at(until);
                }
                self.ask = Some(ask.clone());
                self.take_room(&ask);
            }
        }
    }

    /// Begins the next attempt if it was given what it asks for; says why not if it was not.
    fn take_room(&mut self, ask: &Arc<Ask>) {
        match &self.observed.room {
            Room::Given { grant, .. } if grant.ask == *ask => {
                let attempt = placing::attempt(self, grant);
                self.status.next_attempt_at = None;
                self.status.changes.clear();
                self.status.changed_for.clear();
                self.status.push_attempt(attempt.clone());
                self.carry_on(&attempt);
            }
            Room::Awaited {
                ask: asked,
                wait: Some(wait),
                is_whole,
            } if asked == ask => {
                self.pool = self.config.autoscaling.is_some()
                    && needs_nodes(wait)
                    && self.may_run_anywhere();
                self.tell_wait(wait, *is_whole);
                self.wake_at(after(self.now, WAITING_TOLD_EVERY));
            }
            Room::NoPorts { ask: asked } if asked == ask => {
                let message = telling::no_ports(&self.config.ports);
                self.say(Phase::Queued, Reason::InsufficientCapacity, message);
            }
            _ => {
                let message = "it has just asked for room".to_owned();
                self.say(Phase::Queued, Reason::WaitingForTurn, message);
            }
        }
    }

    /// The line moves with every job that ends, and that alone is not worth a write: while a job waits for the same thing, what was written of
    /// it stands, of which what is known in passing is the beginning.
    fn tell_wait(&mut self, wait: &Wait, is_whole: bool) {
        let (reason, message) = (wait.reason(), telling::waiting(wait));
        let written = self.job.status.as_ref().filter(|written| {
            let is_same = written.phase == Phase::Queued && written.reason == reason.to_string();
            is_same && written.waiting.is_some() && written.message.starts_with(&message)
        });
        let (message, waiting) = match written {
            Some(written) if !is_whole => (written.message.clone(), written.waiting.clone()),
            _ => {
                let told_at = is_whole.then_some(self.now);
                (message, Some(telling::place_in_line(wait, told_at)))
            }
        };
        self.say(Phase::Queued, reason, message);
        self.status.waiting = waiting;
        self.is_told_in_passing = !is_whole && self.is_place_outdated();
    }

    /// Was it never told when it should start, or long ago?
    fn is_place_outdated(&self) -> bool {
        let waiting = self.status.waiting.as_ref();
        let told_at = waiting.and_then(|waiting| waiting.as_of.as_ref());
        told_at.is_none_or(|at| after(at.0, PLACE_TOLD_EVERY) <= self.now)
    }

    /// Why the API server would not have the last attempt, where that ended it.
    fn refused_for(&self) -> Option<Reason> {
        let exit = self.status.attempts.last()?.exit.as_ref()?;
        let reasons = [Reason::WaitingForQuota, Reason::ApplyFailed];
        reasons
            .into_iter()
            .find(|reason| reason.to_string() == exit.reason)
    }

    /// What was refused has been changed since, so it need not wait.
    fn is_mended(&self) -> bool {
        let last = self.status.attempts.last();
        let changed = last.is_some_and(|last| last.generation != self.job.metadata.generation);
        changed && self.refused_for().is_some()
    }

    /// A pod that has the name of one to come, and is not ours.
    fn namesake(&self) -> Option<&'a str> {
        let next = self.status.attempt.saturating_add(1);
        let names = |name: &str| {
            (0..self.job.spec.workers_max())
                .any(|rank| pod_name(self.job.name(), next, rank) == name)
        };
        let pods = self
            .observed
            .pods
            .iter()
            .filter(|pod| Worker::of(self.job, pod).is_none());
        pods.map(|pod| pod.metadata.name.as_ref())
            .find(|name| names(name))
    }

    /// The node that does not answer and may still have a volume that only one can mount, with the claim's name: a worker of an attempt
    /// before this is on it. No other node can start the next one until its machine is known to be off, and none is to blame for that.
    pub(super) fn keeps_volume(&self, before: u32) -> Option<(&'a str, &str)> {
        let mut claims = self.observed.claims.values();
        let (claim, _) = claims.find(|(_, claim)| !claim.shared)?;
        let mut earlier = self.workers.iter();
        let node = earlier.find_map(|worker| {
            let is_left = worker.attempt < before && !worker.is_finished();
            let name = worker.pod.node().filter(|_| is_left)?;
            let node = self.observed.cluster.node(name)?;
            (!node.ready).then_some(name)
        })?;
        Some((node, claim))
    }

    /// Attempts at the end of the record that nodes did not start in time, of the spec as it is. Those that were refused room are not among
    /// them: room comes free.
    fn starts_in_vain(&self) -> usize {
        let next = self.status.attempt.saturating_add(1);
        if self.keeps_volume(next).is_some() {
            return 0;
        }
        let attempts = self.status.attempts.iter().rev();
        let generation = self.job.metadata.generation;
        attempts
            .take_while(|attempt| {
                ending::never_started(attempt) && attempt.generation == generation
            })
            .count()
    }
}
