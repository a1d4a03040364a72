//! What to do next for a job. Pure and total: everything it decides by is an argument, and it has an answer to anything.
//!
//! A plan is a new status and actions. The status is written first: an attempt is on record before its pods are created, and its end
//! before they are deleted. So a crash between any two writes loses no attempt and counts none twice; the next plan finds what
//! is left to do.
//!
//! Invariant: planning again after a plan was carried out whole yields the same status and no actions.

mod action;
mod closing;
mod coming_nodes;
mod ending;
mod evidence;
mod going;
mod learning;
mod leaving;
mod placing;
mod recovering;
mod resizing;
mod restarting;
mod risk;
mod telling;
mod unsaved;
mod uploading;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::names::{MANAGED_BY, pod_name};
use stoke_api::trainjob::{Attempt, Phase, TrainJobStatus};
use stoke_api::{Reason, TrainJob};

use super::frameworks;
use super::observe::Observed;
use super::pod::Size;
use super::tail::Wanted;
use super::workers::Worker;
use crate::config::Config;
use crate::world::Ask;

pub use action::Action;
pub use telling::Telling;

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub status: TrainJobStatus,
    /// In this order, after the status.
    pub actions: Vec<Action>,
    /// Logs that may say what ended an attempt: it is judged when they were read.
    pub logs: Vec<Wanted>,
    /// When to look again though nothing has changed.
    pub requeue_after: Option<Duration>,
    /// The room that the next attempt needs, where nothing else keeps it.
    pub ask: Option<Arc<Ask>>,
    /// No node has room for it, and an autoscaler may bring some: pods without a node are to be made.
    pub pool: bool,
    /// It cannot do what it was asked to.
    pub declines: bool,
    /// Why it waits is told without what would help and when it starts, or that was told long ago.
    pub is_told_in_passing: bool,
}

pub fn plan(observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    let mut turn = Turn::new(observed, config, now);
    if is_ours(&observed.job) {
        if observed.job.metadata.deletion_timestamp.is_none() {
            turn.take();
            turn.tell();
        } else if !leaves_orphans(&observed.job) {
            // Someone's finalizer may keep it for long, and nothing else stops its pods before it is gone.
            turn.stop(|_| true);
        }
    }
    Plan {
        status: turn.status,
        actions: turn.actions,
        logs: turn.logs,
        requeue_after: turn.wake.map(|at| until(now, at)),
        ask: turn.ask,
        pool: turn.pool,
        declines: turn.declines,
        is_told_in_passing: turn.is_told_in_passing,
    }
}

/// What each worker of the next attempt gets by what is known now, as [`plan`] would have it. The error says what is wrong with the job.
pub fn next_size(observed: &Observed, config: &Config, now: Timestamp) -> Result<Size, String> {
    placing::next_size(&Turn::new(observed, config, now)).map_err(|wrong| wrong.to_string())
}

fn is_ours(job: &TrainJob) -> bool {
    job.spec
        .managed_by
        .as_deref()
        .is_none_or(|name| name == MANAGED_BY)
}

/// Is it being deleted in such a way that its pods stay: `kubectl delete --cascade=orphan`?
fn leaves_orphans(job: &TrainJob) -> bool {
    let mut finalizers = job.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == "orphan")
}

/// One look at a job.
struct Turn<'a> {
    observed: &'a Observed,
    job: &'a TrainJob,
    config: &'a Config,
    now: Timestamp,
    workers: Vec<Worker<'a>>,
    status: TrainJobStatus,
    actions: Vec<Action>,
    logs: Vec<Wanted>,
    wake: Option<Timestamp>,
    ask: Option<Arc<Ask>>,
    pool: bool,
    declines: bool,
    is_told_in_passing: bool,
}

impl<'a> Turn<'a> {
    fn new(observed: &'a Observed, config: &'a Config, now: Timestamp) -> Self {
        let job = observed.job.as_ref();
        let workers = observed.pods.iter().filter_map(|pod| Worker::of(job, pod));
        Self {
            observed,
            job,
            config,
            now,
            workers: workers.collect(),
            status: job.status.clone().unwrap_or_default(),
            actions: Vec::new(),
            logs: Vec::new(),
            wake: None,
            ask: None,
            pool: false,
            declines: false,
            is_told_in_passing: false,
        }
    }

    fn take(&mut self) {
        self.read_nodes();
        self.note_checkpoint();
        self.note_leaving();
        let live = self.live().filter(|_| !self.status.phase.is_final());
        if let Some(attempt) = live {
            if let Some(ending) = ending::of(self, &attempt) {
                let told_by = ending::told_by(self, &attempt);
                if let Some(at) = told_by.filter(|_| ending.exit.is_some()) {
                    return self.wake_at(at);
                }
                self.logs = evidence::logs(self, &attempt);
                if !self.logs.is_empty() && ending.exit.is_some() {
                    return;
                }
                self.logs.clear();
                self.end(ending);
            } else {
                self.logs = evidence::silences(self, &attempt);
                if !self.logs.is_empty() {
                    return;
                }
                self.heed(&attempt);
            }
        }
        if !self.status.phase.is_final() {
            match self.live() {
                Some(attempt) => self.carry_on(&attempt),
                None => self.prepare(),
            }
        }
        let learns_until = self.learn();
        if self.status.phase.is_final() {
            self.retire(learns_until);
        }
    }

    /// The attempt that is on record and not over.
    fn live(&self) -> Option<Attempt> {
        let attempt = self.status.current_attempt()?;
        attempt.outcome.is_none().then(|| attempt.clone())
    }

    /// The worker of each rank, where its pod is there.
    fn ranks(&self, attempt: &Attempt) -> Vec<Option<Worker<'a>>> {
        let name = |rank| pod_name(self.job.name(), attempt.number, rank);
        let found: BTreeMap<&str, Worker<'a>> =
            self.workers.iter().map(|w| (w.name(), *w)).collect();
        let ranks = 0..attempt.nodes.len() as u32;
        ranks
            .map(|rank| found.get(name(rank).as_str()).copied())
            .collect()
    }

    /// Deletes what is not over, and of what is over all but the latest two attempts: people read their logs.
    fn stop(&mut self, is_unwanted: impl Fn(&Worker<'_>) -> bool) {
        let latest = self.status.attempt;
        let unwanted = self.workers.iter().filter(|worker| {
            let old = worker.is_finished() && worker.attempt.saturating_add(1) < latest;
            old || (!worker.is_finished() && is_unwanted(worker))
        });
        let deletions = unwanted
            .filter(|worker| worker.pod.metadata.deletion_timestamp.is_none())
            .map(|worker| Action::DeletePod {
                name: worker.name().to_owned(),
                uid: worker.uid().to_owned(),
            });
        self.actions.extend(deletions);
    }

    /// Workers of attempts before this that have not ended and whose end can be expected: one on a node that is gone is not waited for,
    /// nor one that has had its time.
    fn still_stopping(&mut self, before: u32) -> usize {
        let mut count = 0;
        for worker in self
            .workers
            .clone()
            .iter()
            .filter(|worker| !worker.is_finished() && worker.attempt < before)
        {
            let node = worker
                .pod
                .node()
                .and_then(|name| self.observed.cluster.node(name));
            let given_up = worker
                .stop_due()
                .map(|due| after(due, self.config.stop_slack));
            if !node.is_some_and(|node| node.ready) || given_up.is_some_and(|at| at <= self.now) {
                continue;
            }
            count += 1;
            if let Some(at) = given_up {
                self.wake_at(at);
            }
        }
        count
    }

    fn say(&mut self, phase: Phase, reason: Reason, message: String) {
        if self.status.phase != phase || self.status.phase_since.is_none() {
            self.status.phase_since = Some(Time(self.now));
        }
        self.status.phase = phase;
        self.status.reason = reason.to_string();
        self.status.message = message;
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    /// Seconds the job has run, the present attempt included.
    fn ran_seconds(&self, attempt: &Attempt) -> u64 {
        let running = attempt.running_at.as_ref();
        let now = running.map_or(0, |from| self.now.duration_since(from.0).as_secs());
        self.status
            .ran_seconds
            .saturating_add(u64::try_from(now).unwrap_or(0))
    }

    fn is_leader(&self, rank: usize) -> bool {
        frameworks::is_leader(self.job.spec.framework, rank as u32)
    }
}

/// Times far beyond what a clock shows stay at its end.
fn after(at: Timestamp, duration: Duration) -> Timestamp {
    let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    at.saturating_add(duration).unwrap_or(Timestamp::MAX)
}

fn until(now: Timestamp, at: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}
