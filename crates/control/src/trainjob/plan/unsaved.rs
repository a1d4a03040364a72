//! What a job has saved, and a warning where it is long since it did.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::condition::{self, ConditionType};
use stoke_api::trainjob::SavedCheckpoint;
use stoke_api::trainjob::unsaved::{self, Unsaved};
use stoke_api::{Reason, Span, TrainJob};

use super::{Action, Telling, Turn, after};

/// So much work in no checkpoint is worth a warning, whatever it runs on.
const RISKED_MAX: Duration = Duration::from_secs(2 * 3600);
/// A checkpoint that is so many times later than meant is not coming.
const OVERDUE: u32 = 3;

impl Turn<'_> {
    pub(super) fn note_checkpoint(&mut self) {
        // By the attempt first, for clocks of nodes differ: one that is ahead is not to hide what is saved on others later.
        let workers = self.workers.iter();
        let told = workers.filter_map(|it| Some((it.attempt, it.pod.metadata.last_checkpoint?)));
        if let Some((number, newest)) = told.max() {
            let known = self.status.last_checkpoint.as_ref().map(|time| time.0);
            let mut attempts = self.status.attempts.iter();
            let attempt = attempts.find(|attempt| attempt.number == number);
            let begun = attempt.and_then(|attempt| attempt.running_at.as_ref());
            // What is older is what it began with.
            let is_own = begun.is_some_and(|begun| newest >= begun.0);
            if Some(newest) > known || is_own {
                self.status.last_checkpoint = Some(Time(newest));
            }
        }
        if self.note_progress() {
            self.wait_no_longer_than_needed();
        }
        let workers = self.workers.iter();
        let saved = workers.filter(|worker| worker.pod.metadata.saved.is_some());
        let saved = saved.max_by_key(|worker| (worker.attempt, std::cmp::Reverse(worker.rank)));
        let saved = saved.and_then(|worker| worker.pod.metadata.saved.as_deref());
        if let Some(mut saved) = saved.map(SavedCheckpoint::from) {
            if let Some(known) = self.status.saved.take() {
                // An attempt that has sent none yet does not know of those before it.
                saved.uploaded = saved.uploaded.or_else(|| known.uploaded.clone());
                if is_same(&known, &saved) {
                    saved.at = known.at;
                    saved.seconds = known.seconds;
                }
            }
            self.status.saved = Some(saved);
        }
    }

    /// Which attempts have saved something. It may become known after they are over, when a worker has said its last word. True if it
    /// is news of one.
    pub(super) fn note_progress(&mut self) -> bool {
        let mut has_news = false;
        for worker in &self.workers {
            let saved = worker.pod.metadata.last_checkpoint;
            let mut attempts = self.status.attempts.iter_mut();
            let attempt = attempts.find(|attempt| attempt.number == worker.attempt);
            let (Some(saved), Some(attempt)) = (saved, attempt) else {
                continue;
            };
            let begun = attempt.running_at.as_ref().map(|time| time.0);
            let known = attempt.saved_at.as_ref().map(|time| time.0);
            // What is older is what it began with.
            if begun.is_some_and(|begun| saved >= begun) && known < Some(saved) {
                has_news |= known.is_none();
                attempt.saved_at = Some(Time(saved));
            }
        }
        has_news
    }

    /// Sets the condition `WorkAtRisk`, with an Event when it begins to hold.
    pub(super) fn tell_unsaved(&mut self) {
        let kind = ConditionType::WorkAtRisk;
        let known = condition::get(&self.status.conditions, kind);
        let held = known.is_some_and(|known| known.status == "True");
        let due = unsaved::since(&self.status);
        let due = due.map(|since| after(since.0, patience(self.job)));
        let (holds, reason, message) = match due {
            Some(due) if due <= self.now => (true, self.why_unsaved(), self.at_stake(due)),
            due => {
                if let Some(due) = due {
                    self.wake_at(due);
                }
                if !held {
                    return;
                }
                let (reason, message) = match due {
                    Some(_) => (
                        Reason::CheckpointWritten,
                        "it has written a checkpoint since",
                    ),
                    None => (Reason::NotRunning, "its workers do not run"),
                };
                (false, reason, message.to_owned())
            }
        };
        condition::set(
            &mut self.status.conditions,
            kind,
            holds,
            &reason.to_string(),
            &message,
            self.job.metadata.generation,
            &Time(self.now),
        );
        if holds && !held {
            self.actions.push(Action::Tell(Telling {
                reason: kind.as_str().to_owned(),
                message,
            }));
        }
    }

    /// What was at stake when it was too much: the same words for as long as it goes on.
    fn at_stake(&self, due: Timestamp) -> String {
        let job = &self.job.spec;
        let unsaved = Unsaved::of(job, &self.status, &Time(due));
        let hours = unsaved.map_or_else(String::new, |unsaved| {
            format!(
                " ({} {}-hours)",
                unsaved.total_seconds / 3600,
                unsaved.unit()
            )
        });
        let span = Span::seconds(patience(self.job).as_secs());
        let lost =
            format!("more than {span} of its work{hours} would be lost if it were interrupted");
        match &job.checkpoint {
            None => format!(
                "{lost}: it keeps no checkpoints; set checkpoint.path, and write them there"
            ),
            Some(checkpoint) => format!(
                "{lost}: no checkpoint was seen in {} for as long; does its program write them there?",
                checkpoint.path
            ),
        }
    }

    fn why_unsaved(&self) -> Reason {
        match self.job.spec.checkpoint {
            Some(_) => Reason::CheckpointOverdue,
            None => Reason::NoCheckpoints,
        }
    }
}

/// The one an attempt began with is seen anew on its node, a moment later by another clock.
fn is_same(known: &SavedCheckpoint, seen: &SavedCheckpoint) -> bool {
    known.name == seen.name && known.step == seen.step && known.bytes == seen.bytes
}

fn patience(job: &TrainJob) -> Duration {
    let every = job.spec.checkpoint.as_ref().and_then(|it| it.every);
    let every = every.map_or(Duration::ZERO, |every| Duration::from_secs(every.seconds));
    RISKED_MAX.max(every.saturating_mul(OVERDUE))
}
