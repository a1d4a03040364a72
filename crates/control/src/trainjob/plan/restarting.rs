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
use crate::world::{Demand, Shortage};

/// Restarts in a row, each soon after the one before: whoever needs more than that gets nowhere, and is left to its limit and its retries.
const IN_A_ROW_MAX: usize = 8;
const SOON: SignedDuration = SignedDuration::from_secs(600);
/// Ranks of a gang save at about the same time, and not in the same moment.
const ALL_SAVED_AFTER: Duration = Duration::from_secs(2);
/// Who has saved so short ago is not asked to again before it gives way.
const SAVED_LATELY: Duration = Duration::from_secs(10);
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

    /// When all who save have, since they were asked. The times of checkpoints are of other clocks, which may be far from ours: a new one is
    /// one that was not known when its worker was asked.
    pub(super) fn saved_since(&self, attempt: &Attempt, asked: Timestamp) -> Option<Timestamp> {
        let running = attempt.running_at.as_ref()?.0;
        let ranks = self.ranks(attempt);
        let at_work = ranks.iter().flatten();
        let at_work = at_work.filter(|worker| worker.stage() == Stage::Running);
        let mut newest = None;
        for worker in at_work {
            let Some(saved) = worker.pod.metadata.last_checkpoint else {
                continue;
            };
            let request = worker.pod.metadata.checkpoint_request.as_deref();
            let request = request.and_then(Request::read);
            let request = request.filter(|request| request.at >= asked);
            if request.is_some_and(|request| request.is_heeded_by(saved, running)) {
                newest = newest.max(Some(saved));
            } else if saved >= running {
                // Who has told of a checkpoint in this attempt tells of the next one as well.
                return None;
            }
        }
        let saved = newest?;
        let is_by_our_clock = saved.as_second() >= asked.as_second() && saved <= self.now;
        let settles = is_by_our_clock && ranks.len() > 1;
        Some(if settles {
            after(saved, ALL_SAVED_AFTER)
        } else {
            asked
        })
    }

    /// Did it save so short ago that there is nothing to ask for? Not where others of the gang may be about to.
    pub(super) fn saved_just_now(&self, attempt: &Attempt) -> bool {
        let is_settled = attempt.nodes.len() == 1 || !self.saved_within(ALL_SAVED_AFTER);
        is_settled && self.saved_within(SAVED_LATELY)
    }

    /// Was there a checkpoint in this time before now, as far as clocks agree? One from the future says nothing.
    pub(super) fn saved_within(&self, time: Duration) -> bool {
        let saved = self.status.last_checkpoint.as_ref().map(|time| time.0);
        saved.is_some_and(|saved| saved <= self.now && after(saved, time) > self.now)
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
        let running = self.ranks(attempt).into_iter().flatten();
        let unasked = running.filter(|worker| {
            let known = worker.pod.metadata.checkpoint_request.as_deref();
            worker.stage() == Stage::Running
                && !worker.is_stopping()
                && known.and_then(requested_at).is_none_or(|at| at < asked)
        });
        let requests: Vec<Action> = unasked.map(|worker| request(&worker, asked)).collect();
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
        // Room that is not there any more is nothing to save for.
        let is_offered = matches!(self.observed.demand, Some(Demand::Grow { .. }));
        let growing = attempt.growing.as_ref().filter(|_| is_offered);
        let growing = growing.and_then(|it| Some((time(&it.asked_at)?, time(&it.until))));
        let growing = growing.filter(|(_, until)| until.is_some_and(|until| until > self.now));
        let asked = leaving.into_iter().chain(preemption).chain(growing);
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

/// What a worker was asked for.
#[derive(Debug, Clone, Copy)]
struct Request {
    at: Timestamp,
    asked_by: AskedBy,
}

#[derive(Debug, Clone, Copy)]
enum AskedBy {
    /// From here, when this was the last checkpoint that was known of the worker.
    Us { known: Option<Timestamp> },
    /// By its node, whose clock says when checkpoints are written as well.
    Node,
}

/// Between when a worker was asked and the last checkpoint that was known of it then.
const KNOWN: &str = " after the checkpoint of ";

impl Request {
    fn read(text: &str) -> Option<Self> {
        let at = requested_at(text)?;
        let known = text.split_once(KNOWN).map(|(_, known)| known.parse());
        let asked_by = match known {
            Some(Ok(known)) => AskedBy::Us { known: Some(known) },
            None if !text.trim().contains(' ') => AskedBy::Us { known: None },
            Some(Err(_)) | None => AskedBy::Node,
        };
        Some(Self { at, asked_by })
    }

    /// Is this checkpoint what was asked for, of a worker that runs since `running`?
    fn is_heeded_by(self, saved: Timestamp, running: Timestamp) -> bool {
        // A file's time may be in whole seconds.
        match self.asked_by {
            AskedBy::Us { known: Some(known) } => saved != known,
            // It may also be what the attempt began with.
            AskedBy::Us { known: None } => saved.as_second() >= running.as_second(),
            AskedBy::Node => saved.as_second() >= self.at.as_second(),
        }
    }
}

fn request(worker: &Worker<'_>, asked: Timestamp) -> Action {
    let known = worker.pod.metadata.last_checkpoint;
    Action::AskToSave {
        name: worker.name().to_owned(),
        uid: worker.uid().to_owned(),
        text: match known {
            Some(known) => format!("{asked}{KNOWN}{known}"),
            None => asked.to_string(),
        },
    }
}
