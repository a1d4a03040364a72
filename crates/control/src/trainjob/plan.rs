//! What to do next for a job. Pure and total: everything it decides by is an argument, and it has an answer to anything.
//!
//! A plan is a new status and actions. The status is written first: an attempt is on record before its pods are created, and its end
//! before they are deleted. So a crash between any two writes loses no attempt and counts none twice; the next plan finds what
//! is left to do.
//!
//! Invariant: planning again after a plan was carried out whole yields the same status and no actions.

mod ending;
mod placing;
mod resizing;
mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::names::{MANAGED_BY, pod_name};
use stoke_api::trainjob::{Attempt, Framework, Network, Outcome, Phase, TrainJobStatus};
use stoke_api::{Reason, Span, TrainJob};
use stoke_sched::Wait;

use self::ending::Ending;
use super::children;
use super::frameworks;
use super::observe::Observed;
use super::pod::{Blueprint, Site};
use super::rendezvous::fnv;
use super::template::Misconfigured;
use super::workers::{Stage, Worker};
use crate::cluster;
use crate::config::{Config, Home};
use crate::world::{Ask, Room, needs_nodes};
pub use telling::Telling;

/// Attempts in a row that are given room and do not start, until the job is given up: each keeps others from it.
const STARTS_IN_VAIN_MAX: usize = 5;

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub status: TrainJobStatus,
    /// In this order, after the status.
    pub actions: Vec<Action>,
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

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    EnsureClaim(Box<PersistentVolumeClaim>),
    /// The secret itself is drawn when this is carried out.
    EnsureSecret {
        name: String,
    },
    EnsureService(Box<Service>),
    EnsurePolicy(Box<NetworkPolicy>),
    CreatePod(Box<Pod>),
    /// With its grace period; `uid` is the pod that was seen, not one that has its name since.
    DeletePod {
        name: String,
        uid: String,
    },
    DeleteJob {
        uid: String,
    },
    Tell(Telling),
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
        requeue_after: turn.wake.map(|at| until(now, at)),
        ask: turn.ask,
        pool: turn.pool,
        declines: turn.declines,
        is_told_in_passing: turn.is_told_in_passing,
    }
}

/// How often someone who waits for room is looked at though nothing about it has changed: the line before it moves.
const WAITING_TOLD_EVERY: Duration = Duration::from_secs(60);
/// How often its place in line is written anew though it waits for the same thing.
const PLACE_TOLD_EVERY: Duration = Duration::from_secs(600);
/// For attempts without nodes that an operator with autoscaling left behind.
const AUTOSCALING_DEADLINE: Duration = Duration::from_secs(900);

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
        let live = self.live().filter(|_| !self.status.phase.is_final());
        if let Some(attempt) = live {
            match ending::of(self, &attempt) {
                Some(ending) => {
                    let told_by = ending::told_by(self, &attempt);
                    if let Some(at) = told_by.filter(|_| ending.exit.is_some()) {
                        return self.wake_at(at);
                    }
                    self.end(ending);
                }
                None => self.heed(&attempt),
            }
        }
        if !self.status.phase.is_final() {
            match self.live() {
                Some(attempt) => self.carry_on(&attempt),
                None => self.prepare(),
            }
        }
        if self.status.phase.is_final() {
            self.retire();
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

    /// Keeps the attempt going: its pods there, all others not.
    fn carry_on(&mut self, attempt: &Attempt) {
        self.status.waiting = None;
        let ranks = self.ranks(attempt);
        // One that goes on from another follows it when all of that has stopped.
        let earlier = self.still_stopping(attempt.number);
        if earlier > 0 && ranks.iter().all(Option::is_none) {
            self.stop(|_| true);
            self.status.ready = telling::none_of(ranks.len());
            if self.status.phase != Phase::Restarting {
                let message = telling::resizing(attempt, earlier);
                self.say(Phase::Restarting, Reason::Resized, message);
            }
            return;
        }
        let missing: Vec<u32> = (0..)
            .zip(&ranks)
            .filter(|(rank, w)| w.is_none() && !attempt.has_succeeded(*rank as usize))
            .map(|(rank, _)| rank)
            .collect();
        if !missing.is_empty() {
            match self.creation(attempt, &missing) {
                Ok(actions) => self.actions.extend(actions),
                Err(wrong) => {
                    self.end(Ending::unmakeable(wrong.to_string(), self.now));
                    self.prepare();
                    return;
                }
            }
        }
        self.stop(|worker| {
            worker.attempt != attempt.number || worker.rank as usize >= attempt.nodes.len()
        });

        let present = || ranks.iter().flatten();
        let started =
            missing.is_empty() && present().all(|worker| worker.stage() != Stage::Waiting);
        if started && attempt.running_at.is_none() {
            let at = present()
                .filter_map(Worker::started_at)
                .max()
                .unwrap_or(self.now)
                .min(self.now);
            if let Some(attempt) = self.status.attempts.last_mut() {
                attempt.running_at = Some(Time(at));
            }
            self.status.started_at.get_or_insert(Time(at));
        }
        let running = present()
            .filter(|worker| worker.stage() == Stage::Running)
            .count();
        self.status.ready = format!("{running}/{}", ranks.len());
        self.note_succeeded(&ranks);
        if started || attempt.running_at.is_some() {
            self.say(
                Phase::Running,
                Reason::WorkersRunning,
                telling::running(ranks.len()),
            );
        } else if let Some(limit) = self.awaits_nodes(attempt) {
            let waiting = present().find(|worker| worker.pod.node().is_none());
            let message = telling::awaiting_nodes(ranks.len(), limit, waiting);
            self.say(Phase::Queued, Reason::WaitingForNodes, message);
        } else {
            let waiting = present().find(|worker| worker.stage() == Stage::Waiting);
            let message = telling::starting(attempt, waiting);
            self.say(Phase::Starting, Reason::StartingWorkers, message);
        }
        self.watch_the_clock();
    }

    /// A pod that has ended may be removed at any time, with its node or by whoever tidies up. Its end must not be lost with it.
    fn note_succeeded(&mut self, ranks: &[Option<Worker<'_>>]) {
        let Some(attempt) = self.status.attempts.last_mut() else {
            return;
        };
        let workers = ranks.iter().flatten();
        let succeeded = workers.filter(|worker| worker.stage() == Stage::Succeeded);
        let known = attempt.succeeded.iter().copied();
        let all: BTreeSet<u32> = known.chain(succeeded.map(|worker| worker.rank)).collect();
        attempt.succeeded = all.into_iter().collect();
    }

    /// Looks again when the attempt or one of its workers has not started in time, or the job has run long enough.
    fn watch_the_clock(&mut self) {
        let Some(attempt) = self.live() else { return };
        match (&attempt.running_at, self.job.spec.max_duration) {
            (None, _) => {
                let placed = attempt.placed_at.as_ref().map_or(self.now, |time| time.0);
                if let Some(due) = self.awaits_nodes(&attempt) {
                    return self.wake_at(due);
                }
                self.wake_at(after(placed, self.config.start_deadline));
                for worker in self.ranks(&attempt).iter().flatten() {
                    if let Some(at) = ending::given_up_at(worker, &attempt) {
                        self.wake_at(at);
                    }
                }
            }
            (Some(running), Some(max)) => {
                let left = max.seconds.saturating_sub(self.status.ran_seconds);
                self.wake_at(after(running.0, Duration::from_secs(left)));
            }
            (Some(_), None) => {}
        }
    }

    fn creation(&self, attempt: &Attempt, missing: &[u32]) -> Result<Vec<Action>, Misconfigured> {
        self.datasets_are_there()
            .map_err(|missing| Misconfigured::new("datasets", missing))?;
        let blueprint = Blueprint::new(self.job, &self.observed.datasets, self.config)?;
        let site = Site {
            attempt,
            addresses: &self.observed.addresses,
            cluster: &self.observed.cluster,
        };
        let pods = blueprint.pods(&site, missing.iter().copied())?;
        let mut actions = Vec::new();
        if let Some(claim) = children::checkpoint(self.job, self.config) {
            actions.push(Action::EnsureClaim(Box::new(claim)));
        }
        if self.job.spec.framework == Framework::Mpi {
            let name = children::secret_name(self.job);
            actions.push(Action::EnsureSecret { name });
        }
        // One worker alone, or workers on their nodes' own network, need no names.
        if blueprint.network() == Network::Pod && attempt.nodes.len() > 1 {
            if self.config.network_policies {
                let policy = children::policy(self.job);
                actions.push(Action::EnsurePolicy(Box::new(policy)));
            }
            let service = children::service(self.job, attempt.number);
            actions.push(Action::EnsureService(Box::new(service)));
        }
        actions.extend(pods.into_iter().map(|pod| Action::CreatePod(Box::new(pod))));
        Ok(actions)
    }

    fn datasets_are_there(&self) -> Result<(), String> {
        let mut wanted = self.job.spec.datasets.iter();
        match wanted.find(|mount| !self.observed.datasets.contains_key(&mount.name)) {
            None => Ok(()),
            Some(mount) => {
                let (name, namespace) = (&mount.name, self.job.namespace());
                Err(format!(
                    "there is no Dataset {name} in namespace {namespace}; it starts when there is"
                ))
            }
        }
    }

    /// A claim that only one node may mount at a time cannot serve workers that may be on several.
    fn claims_can_be_shared(&self) -> Result<(), Misconfigured> {
        if self.job.spec.workers_max() == 1 || self.config.home == Home::Machine {
            return Ok(());
        }
        let claims = &self.observed.claims;
        match claims.iter().find(|(_, (_, claim))| !claim.shared) {
            None => Ok(()),
            Some((path, (name, _))) => {
                let workers = self.job.spec.workers_max();
                let problem = format!(
                    "claim {name} can be mounted on one node only, and {workers} workers may be on several; make it ReadWriteMany or \
                     ReadOnlyMany, or run one worker"
                );
                Err(Misconfigured::new(path.clone(), problem))
            }
        }
    }

    /// Puts an attempt's end on record. What follows from it is decided by [`Self::prepare`] and [`Self::retire`].
    fn end(&mut self, ending: Ending) {
        let Ending {
            outcome,
            exit,
            reason,
            message,
            at,
            last_phase,
            avoid,
            preemption,
        } = ending;
        let Some(attempt) = self.status.attempts.last_mut() else {
            return;
        };
        attempt.outcome = Some(outcome);
        attempt.exit = exit;
        attempt.avoid = avoid;
        attempt.preemption = preemption;
        attempt.finished_at = Some(Time(at));
        if let Some(running) = &attempt.running_at {
            self.status.ran_seconds +=
                u64::try_from(at.duration_since(running.0).as_secs()).unwrap_or(0);
        }
        self.status.failures += u32::from(outcome == Outcome::Failed);
        self.status.ready = telling::none_of(attempt.nodes.len());
        match (last_phase, outcome) {
            (Some(phase), _) => self.finish(phase, reason, message, at),
            (None, Outcome::Suspended) => {}
            // It has done nothing wrong, and goes on as soon as there is room.
            (None, Outcome::Preempted | Outcome::Resized) => {
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
            wrong && ran < forget
        };
        let attempts = self.status.attempts.iter().rev();
        // There is always some wait, even after one that ran long.
        attempts.take_while(went_wrong).count().max(1) as u32
    }

    /// No attempt is on: stop what is left of the last, and start the next when everything is there for it.
    fn prepare(&mut self) {
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
            let message = telling::backing_off(&self.status, self.job.spec.retries, &at);
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

    /// Pods without a node are bound one by one, wherever there is room: nobody can promise that they will be near each other.
    fn may_run_anywhere(&self) -> bool {
        let topology = self.job.spec.topology.as_ref();
        topology.is_none_or(|topology| topology.required.is_none())
    }

    /// When an attempt whose nodes have yet to come is given up; none where it has them all.
    fn awaits_nodes(&self, attempt: &Attempt) -> Option<Timestamp> {
        let limit = self.config.autoscaling.unwrap_or(AUTOSCALING_DEADLINE);
        let placed = attempt.placed_at.as_ref().map_or(self.now, |time| time.0);
        let awaits = attempt.nodes.iter().any(String::is_empty);
        awaits.then(|| after(placed, limit))
    }

    /// Puts on record where workers are that were made without a node, when all have one.
    fn read_nodes(&mut self) {
        let Some(attempt) = self.live() else { return };
        if self.awaits_nodes(&attempt).is_none() {
            return;
        }
        let ranks = self.ranks(&attempt);
        let node = |worker: &Option<Worker<'_>>| {
            let bound = worker.as_ref()?.pod.spec.node_name.as_deref();
            bound.map(str::to_owned)
        };
        let nodes: Option<Vec<String>> = ranks.iter().map(node).collect();
        if let (Some(nodes), Some(attempt)) = (nodes, self.status.attempts.last_mut()) {
            attempt.nodes = nodes;
            attempt.placed_at = Some(Time(self.now));
        }
    }

    fn note_checkpoint(&mut self) {
        let workers = self.workers.iter();
        let newest = workers.filter_map(|worker| worker.pod.metadata.last_checkpoint);
        let known = self.status.last_checkpoint.as_ref().map(|time| time.0);
        if let Some(newest) = newest.max().filter(|newest| Some(*newest) > known) {
            self.status.last_checkpoint = Some(Time(newest));
        }
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
                uid: worker
                    .pod
                    .metadata
                    .uid
                    .as_deref()
                    .unwrap_or_default()
                    .to_owned(),
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

    fn is_exhausted(&self) -> bool {
        let last = self
            .status
            .attempts
            .last()
            .and_then(|attempt| attempt.outcome);
        last == Some(Outcome::Failed) && self.status.failures > self.job.spec.retries
    }

    /// Attempts at the end of the record that nodes did not start in time, of the spec as it is. Those that were refused room are not among
    /// them: room comes free.
    fn starts_in_vain(&self) -> usize {
        let attempts = self.status.attempts.iter().rev();
        let generation = self.job.metadata.generation;
        attempts
            .take_while(|attempt| {
                ending::never_started(attempt) && attempt.generation == generation
            })
            .count()
    }

    fn fail_for_good(&mut self) {
        let fresh = self.status.phase == Phase::Restarting;
        let message = telling::given_up(&self.status);
        let at = self
            .status
            .attempts
            .last()
            .and_then(|attempt| attempt.finished_at.clone());
        let at = at.map_or(self.now, |time| time.0);
        if fresh && self.job.spec.retries == 0 {
            let reason = self.status.reason.clone();
            self.finish(Phase::Failed, Reason::WorkerFailed, message, at);
            self.status.reason = reason;
        } else {
            self.finish(Phase::Failed, Reason::RetriesExhausted, message, at);
        }
    }

    fn finish(&mut self, phase: Phase, reason: Reason, message: String, at: Timestamp) {
        self.status.finished_at = Some(Time(at));
        self.status.next_attempt_at = None;
        self.say(phase, reason, message);
    }

    /// The job is over: nothing of it runs on, and in time it goes itself.
    fn retire(&mut self) {
        self.stop(|_| true);
        let finished = self.status.finished_at.as_ref().map(|time| time.0);
        let Some((at, Span { seconds })) = finished.zip(self.job.spec.ttl) else {
            return;
        };
        let due = after(at, Duration::from_secs(seconds));
        match &self.job.metadata.uid {
            Some(uid) if due <= self.now => {
                self.actions.push(Action::DeleteJob { uid: uid.clone() });
            }
            _ => self.wake_at(due),
        }
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

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        match self {
            Self::EnsureClaim(claim) => write!(f, "ensure claim {}", name(&claim.metadata.name)),
            Self::EnsureSecret { name } => write!(f, "ensure secret {name}"),
            Self::EnsureService(service) => {
                write!(f, "ensure service {}", name(&service.metadata.name))
            }
            Self::EnsurePolicy(policy) => {
                write!(f, "ensure network policy {}", name(&policy.metadata.name))
            }
            Self::CreatePod(pod) => {
                let node = cluster::node_of(pod).unwrap_or("no node");
                write!(f, "create pod {} on {node}", name(&pod.metadata.name))
            }
            Self::DeletePod { name, .. } => write!(f, "delete pod {name}"),
            Self::DeleteJob { .. } => f.write_str("delete the job"),
            Self::Tell(telling) => write!(f, "tell {telling}"),
        }
    }
}
