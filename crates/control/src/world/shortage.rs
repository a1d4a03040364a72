//! Nodes that run out of memory as a whole: of all jobs on one, the one that loses least makes room before its kubelet takes someone.

use std::cmp::Reverse;

use jiff::Timestamp;
use stoke_api::TrainJob;
use stoke_api::risk::{MemoryRisk, Stage};
use stoke_api::trainjob::{Outcome, Priority};

use super::World;
use super::holding::live_attempt;
use crate::mirror::Key;
use crate::seen;

/// A node that is short of memory, as the job is told that is to leave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub node: String,
    pub since: Timestamp,
    pub why: String,
    /// When another job last left it for that.
    pub left_at: Option<Timestamp>,
}

impl World {
    /// Of the jobs on a node that is short of memory, is this the one to leave?
    pub fn shortage_for(&self, key: &Key) -> Option<Shortage> {
        let (node, since, risk) = self
            .workers_of(key)
            .filter_map(|pod| {
                let risk = told_of(pod)?;
                Some((pod.node()?, risk.since.parse().ok()?, risk))
            })
            .min_by_key(|(_, since, _): &(_, Timestamp, _)| *since)?;
        let harm = |key: &Key| harm(self.jobs.get(key)?);
        let on_it = self.jobs_on(node).into_iter().filter(|key| {
            let mut workers = self.workers_of(key);
            workers.any(|pod| pod.node() == Some(node) && told_of(pod).is_some())
        });
        let least = on_it
            .filter_map(|key| Some((harm(&key)?, key)))
            .min()
            .map(|(_, key)| key)?;
        (least == *key).then(|| Shortage {
            node: node.to_owned(),
            since,
            why: risk.why.clone(),
            left_at: self.left_at(node),
        })
    }

    fn left_at(&self, node: &str) -> Option<Timestamp> {
        let jobs = self.jobs.iter().filter_map(|(_, job)| job.status.as_ref());
        let left = jobs.flat_map(|status| &status.attempts).filter(|attempt| {
            attempt.outcome == Some(Outcome::Restarted) && attempt.avoid.iter().any(|it| it == node)
        });
        left.filter_map(|attempt| Some(attempt.finished_at.as_ref()?.0))
            .max()
    }
}

/// A worker that its node has told of a shortage.
fn told_of(pod: &seen::Pod) -> Option<&MemoryRisk> {
    let risk = pod.metadata.risk.as_deref();
    risk.filter(|risk| risk.stage == Stage::NodeShort && pod.is_running())
}

/// What a job would lose; none where it must not, or could not go on from a checkpoint. The more important, and the longer ago it saved,
/// the more.
fn harm(job: &TrainJob) -> Option<(Priority, Reverse<Timestamp>)> {
    job.spec.checkpoint.as_ref()?;
    let running = live_attempt(job)?.running_at.as_ref()?.0;
    let saved = job.status.as_ref()?.last_checkpoint.as_ref();
    let saved = saved.map_or(running, |saved| saved.0.max(running));
    (job.spec.priority != Priority::Production).then_some((job.spec.priority, Reverse(saved)))
}
