//! An attempt that is on: its pods are there and no others, and it is watched that they start in time.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::Reason;
use stoke_api::trainjob::{Attempt, Framework, Network, Phase};

use super::ending::{self, Ending};
use super::{Action, Turn, after, telling};
use crate::config::Home;
use crate::trainjob::children;
use crate::trainjob::pod::{Blueprint, Site};
use crate::trainjob::template::Misconfigured;
use crate::trainjob::workers::{Stage, Worker};

impl Turn<'_> {
    /// Keeps the attempt going: its pods there, all others not.
    pub(super) fn carry_on(&mut self, attempt: &Attempt) {
        self.status.waiting = None;
        let leaving = attempt.leaving.as_ref();
        if let Some(until) = leaving.and_then(|leaving| leaving.until.as_ref()) {
            self.wake_at(until.0);
        }
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
            let spot = self.has_spot(&attempt.nodes);
            if let Some(attempt) = self.status.attempts.last_mut() {
                attempt.running_at = Some(Time(at));
                // Nodes that were yet to come are known by now.
                attempt.spot |= spot;
            }
            self.status.started_at.get_or_insert(Time(at));
        }
        let running = present()
            .filter(|worker| worker.stage() == Stage::Running)
            .count();
        self.status.ready = format!("{running}/{}", ranks.len());
        self.note_succeeded(&ranks);
        if started || attempt.running_at.is_some() {
            let saves = self.job.spec.checkpoint.is_some();
            let (reason, message) = standing(attempt, ranks.len(), saves, self.now);
            self.say(Phase::Running, reason, message);
        } else if let Some(limit) = self.awaits_nodes(attempt) {
            let waiting = present().find(|worker| worker.pod.node().is_none());
            let message = telling::awaiting_nodes(ranks.len(), limit, waiting);
            self.say(Phase::Queued, Reason::WaitingForNodes, message);
        } else {
            let waiting = present().find(|worker| worker.stage() == Stage::Waiting);
            let data = self.awaited_data(waiting);
            let message = telling::starting(attempt, waiting, data);
            self.say(Phase::Starting, Reason::StartingWorkers, message);
        }
        self.watch_the_clock();
        self.ask_to_save(attempt);
    }

    /// What its node must copy before the worker starts, where nobody has said yet that it does.
    fn awaited_data<'b>(
        &'b self,
        worker: Option<&Worker<'_>>,
    ) -> Option<(&'b str, Option<&'b str>)> {
        worker.filter(|worker| worker.awaits_data())?;
        if self.config.home != Home::Cluster {
            return None;
        }
        let mut wanted = self.job.spec.datasets.iter();
        wanted.find_map(|mount| {
            let dataset = self.observed.datasets.get(&mount.name)?;
            dataset.staged_uri()?;
            Some((mount.name.as_str(), dataset.secret.as_deref()))
        })
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
                // What is told of data that is copied wakes it.
                let workers = self.ranks(&attempt);
                if workers.iter().flatten().any(Worker::is_staging) {
                    return;
                }
                if let Some(until) = ending::stages_until(&attempt, &workers) {
                    self.wake_at(until);
                    return;
                }
                let begun = ending::begun(placed, &workers);
                self.wake_at(after(begun, self.config.start_deadline));
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
        let blueprint = blueprint.on(self.spot());
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

    pub(super) fn datasets_are_there(&self) -> Result<(), String> {
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
    pub(super) fn claims_can_be_shared(&self) -> Result<(), Misconfigured> {
        if self.job.spec.workers_max() == 1 || self.config.home == Home::Machine {
            return Ok(());
        }
        let workers = self.job.spec.workers_max();
        let checkpoint = self.job.spec.checkpoint.as_ref();
        let of_first = checkpoint.is_some_and(|it| it.is_for_first_only(workers));
        let mut claims = self.observed.claims.iter();
        let unshared = claims.find(|(path, (_, claim))| {
            let is_of_first = of_first && path.as_str() == "checkpoint";
            !claim.shared && !is_of_first
        });
        match unshared {
            None => Ok(()),
            Some((path, (name, _))) if path == "checkpoint" => {
                let problem = format!(
                    "claim {name} can be mounted on one node only, and {workers} workers may be on several; say accessMode: ReadWriteOnce if \
                     only the first needs it, or use a volume that is ReadWriteMany"
                );
                Err(Misconfigured::new(path.clone(), problem))
            }
            Some((path, (name, _))) => {
                let problem = format!(
                    "claim {name} can be mounted on one node only, and {workers} workers may be on several; make it ReadWriteMany or \
                     ReadOnlyMany, or run one worker"
                );
                Err(Misconfigured::new(path.clone(), problem))
            }
        }
    }
}

/// What is said of an attempt that runs: that it does, or for how long.
fn standing(attempt: &Attempt, workers: usize, saves: bool, now: Timestamp) -> (Reason, String) {
    let leaving = attempt.leaving.as_ref().filter(|it| it.until.is_some());
    match (leaving, &attempt.preemption) {
        (Some(leaving), _) => (Reason::NodeLeaving, telling::leaving(leaving, saves)),
        (None, Some(preemption)) => (Reason::Preempted, telling::giving_way(preemption)),
        (None, None) => {
            let growing = attempt.growing.as_ref();
            let until = growing.and_then(|it| it.until.as_ref());
            let until = until.map(|until| until.0).filter(|until| *until > now);
            (Reason::WorkersRunning, telling::running(workers, until))
        }
    }
}
