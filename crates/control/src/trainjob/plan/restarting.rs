//! A job goes on from a checkpoint with its memory given back, before it has used up what it may have, or what its node has.
//!
//! It is asked for the checkpoint first: by its node, when that sees the end of its limit coming, or has counted the steps that its restart
//! schedule lets it do; from here, when it has run as long as a schedule without steps lets it (twice as long as one with steps), or when
//! its node runs out as a whole and it is the one that loses least. Only what is saved is begun anew, so that no work is lost and no job
//! restarts without getting on.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::Reason;
use stoke_api::trainjob::{Attempt, Outcome};

use super::ending::Ending;
use super::{Action, Turn, after, telling};
use crate::trainjob::workers::{Stage, Worker};
use crate::world::Shortage;

/// Restarts in a row, each soon after the one before: whoever needs more than that gets nowhere, and is left to its limit and its retries.
const IN_A_ROW_MAX: usize = 8;
const SOON: SignedDuration = SignedDuration::from_secs(600);
/// Ranks of a gang save at about the same time, and not in the same moment.
const ALL_SAVED_AFTER: Duration = Duration::from_secs(2);
/// How long after one job has left a node that is short of memory the next one does, if it still is.
const LEFT_FOR: Duration = Duration::from_secs(90);

impl Turn<'_> {
    /// The end of an attempt that has saved what it was asked to.
    pub(super) fn saved_in_time(&self, attempt: &Attempt) -> Option<Ending> {
        let asked = self.asked_to_save(attempt)?;
        if self.restarts_in_a_row() >= IN_A_ROW_MAX {
            return None;
        }
        let saved = self.saved_since(attempt, asked)?;
        (self.now >= saved).then(|| {
            let leaves = self.leaves().map(|(_, shortage)| shortage);
            let why = leaves.map(|shortage| &shortage.why);
            let why = why.or(self.risk(attempt).map(|risk| &risk.why));
            let message = telling::restarted(attempt, why.map(String::as_str));
            Ending {
                avoid: leaves
                    .map(|shortage| shortage.node.clone())
                    .into_iter()
                    .collect(),
                ..Ending::begun_anew(Outcome::Restarted, Reason::Restarted, message, self.now)
            }
        })
    }

    /// When all who save have, since they were asked.
    pub(super) fn saved_since(&self, attempt: &Attempt, asked: Timestamp) -> Option<Timestamp> {
        let running = attempt.running_at.as_ref()?.0;
        // A file's time may be in whole seconds.
        let is_since = |saved: Timestamp| saved.as_second() >= asked.as_second();
        let saved = self.status.last_checkpoint.as_ref()?.0;
        let ranks = self.ranks(attempt);
        let of_ranks = ranks.iter().flatten();
        let mut of_ranks = of_ranks.filter_map(|worker| worker.pod.metadata.last_checkpoint);
        // Who has told of a checkpoint in this attempt tells of the next one as well.
        let are_all = of_ranks.all(|saved| saved < running || is_since(saved));
        let settled = match ranks.len() {
            1 => saved,
            _ => after(saved, ALL_SAVED_AFTER),
        };
        (is_since(saved) && are_all).then(|| settled.max(asked))
    }

    /// Asks for a checkpoint where it is time for one, all of a gang alike: ranks agree on a step to save at, and one alone cannot.
    pub(super) fn ask_to_save(&mut self, attempt: &Attempt) {
        if let Some((_, Some(until))) = self.gives_way(attempt) {
            self.wake_at(until);
        }
        let to_restart = self.asked_to_save(attempt);
        if to_restart.is_none() {
            let leaves = self.leaves().map(|(at, _)| at);
            let now = self.now;
            let due = self.restart_due(attempt).into_iter().chain(leaves);
            for due in due.filter(|at| *at > now) {
                self.wake_at(due);
            }
        }
        let to_leave = self.gives_way(attempt).map(|(asked, _)| asked);
        let Some(asked) = to_restart.max(to_leave) else {
            return;
        };
        // Who was only asked to be sure runs on when it has saved, and there is nothing more to look at.
        let settles = self.saved_since(attempt, asked);
        if let Some(settles) = settles.filter(|at| *at > self.now) {
            self.wake_at(settles);
        }
        let text = asked.to_string();
        let running = self.ranks(attempt).into_iter().flatten();
        let unasked = running.filter(|worker| {
            let known = worker.pod.metadata.checkpoint_request.as_deref();
            worker.stage() == Stage::Running
                && !worker.is_stopping()
                && known.and_then(requested_at).is_none_or(|at| at < asked)
        });
        let requests: Vec<Action> = unasked.map(|worker| request(&worker, &text)).collect();
        self.actions.extend(requests);
    }

    /// Since when its workers are meant to save because they have to go or may have to, and until when they are waited for.
    fn gives_way(&self, attempt: &Attempt) -> Option<(Timestamp, Option<Timestamp>)> {
        attempt.running_at.as_ref()?;
        self.job.spec.checkpoint.as_ref()?;
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        let leaving = attempt.leaving.as_ref();
        let leaving = leaving.and_then(|it| Some((time(&it.asked_at)?, time(&it.until))));
        let preemption = attempt.preemption.as_ref();
        let preemption = preemption.and_then(|it| Some((time(&it.asked_at)?, time(&it.until))));
        let asked = leaving.into_iter().chain(preemption);
        asked.reduce(|(one, by), (other, too)| {
            let first = by.into_iter().chain(too).min();
            (one.max(other), first)
        })
    }

    /// Since when its workers are meant to save to begin anew from it, where they are.
    fn asked_to_save(&self, attempt: &Attempt) -> Option<Timestamp> {
        let running = attempt.running_at.as_ref()?.0;
        self.job.spec.checkpoint.as_ref()?;
        let by_node = self.risk(attempt).and_then(|risk| {
            let asked = risk.checkpoint_asked_at.as_deref()?;
            requested_at(asked)
        });
        let by_schedule = self.restart_due(attempt).filter(|due| *due <= self.now);
        let to_leave = self.leaves().map(|(at, _)| at).filter(|at| *at <= self.now);
        // What was asked of the attempt before is not asked of this one.
        let asked = by_node
            .into_iter()
            .chain(by_schedule)
            .chain(to_leave)
            .max()?;
        (asked >= running).then_some(asked)
    }

    fn restarts_in_a_row(&self) -> usize {
        let is_soon = |attempt: &&Attempt| {
            let ran = attempt
                .running_at
                .as_ref()
                .zip(attempt.finished_at.as_ref());
            // Who ran as long as its schedule let it was not stopped before its time.
            let enough = attempt.tuning.restart_every.map_or(SOON, |every| {
                // How long steps take is a guess: they may be several times as fast on another node.
                let quarters = if every.steps.is_some() { 1 } else { 3 };
                SignedDuration::try_from(Duration::from_secs(every.seconds / 4 * quarters))
                    .map_or(SOON, |scheduled| scheduled.min(SOON))
            });
            attempt.outcome == Some(Outcome::Restarted)
                && ran.is_some_and(|(from, to)| to.0.duration_since(from.0) < enough)
        };
        let before = self.status.attempts.iter().rev().skip(1);
        before.take_while(is_soon).count()
    }

    /// When it has run as long as its schedule lets it. One by steps is its nodes' to heed: they see them, and say so as a risk. Here it is
    /// only seen to that it is heeded at all.
    fn restart_due(&self, attempt: &Attempt) -> Option<Timestamp> {
        let running = attempt.running_at.as_ref()?.0;
        let every = attempt.tuning.restart_every?;
        self.job.spec.checkpoint.as_ref()?;
        let times = if every.steps.is_some() { 2 } else { 1 };
        let seconds = every.seconds.saturating_mul(times);
        (seconds > 0).then(|| after(running, Duration::from_secs(seconds)))
    }

    /// When it is to leave its node, where it is. One job leaves at a time: its memory may be all that was missing.
    fn leaves(&self) -> Option<(Timestamp, &Shortage)> {
        let shortage = self.observed.shortage.as_ref()?;
        let after_others = shortage.left_at.map(|left| after(left, LEFT_FOR));
        let at = after_others.map_or(shortage.since, |at| at.max(shortage.since));
        Some((at, shortage))
    }

    /// The worker that its node sees at the end of its memory.
    fn risk(&self, attempt: &Attempt) -> Option<&stoke_api::risk::MemoryRisk> {
        let ranks = self
            .workers
            .iter()
            .filter(|it| it.attempt == attempt.number);
        let risks = ranks.filter_map(|worker| worker.pod.metadata.risk.as_deref());
        risks
            .filter(|risk| risk.checkpoint_asked_at.is_some())
            .max_by(|one, other| one.checkpoint_asked_at.cmp(&other.checkpoint_asked_at))
    }
}

fn requested_at(text: &str) -> Option<Timestamp> {
    text.split_whitespace().next()?.parse().ok()
}

fn request(worker: &Worker<'_>, text: &str) -> Action {
    Action::AskToSave {
        name: worker.name().to_owned(),
        uid: worker.uid().to_owned(),
        text: text.to_owned(),
    }
}
