//! A pod's containers while they are watched: shared by the task that looks at them and the one that acts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use stoke_api::contract::checkpoints::Saved;
use stoke_api::contract::{JobStatus, STATUS_VOLUME};
use stoke_api::digest::{ContainerDigest, PodDigest};
use stoke_api::names::JOB_LABEL;
use stoke_api::risk::MemoryRisk;
use stoke_memory::guard::{Action, Terms};

use super::Shared;
use crate::pod_dir::PodDir;
use crate::shim::protocol::{ContainerUsage, Exit};
use crate::status_file;
use crate::vigil::{self, Vigil};

/// A raise on this machine is a call away, and who reaches its limit meanwhile waits for it.
const REACT: Duration = Duration::from_secs(1);
/// How much of what a run used an engine may forget that is killed.
const SAVE_EVERY: Duration = Duration::from_secs(20);

/// Something to be done about a container.
#[derive(Debug)]
pub(crate) struct Deed {
    pub(crate) container: String,
    pub(crate) action: Action,
}

#[derive(Clone)]
pub(crate) struct Watched {
    shared: Arc<Shared>,
    uid: String,
    dir: PodDir,
    is_of_job: bool,
    /// The worker of a job, and what may be done for it.
    worker: Option<(String, Terms)>,
    /// Where the program of a job says where it is.
    status_volume: Option<PathBuf>,
    state: Arc<Mutex<State>>,
}

struct State {
    begun: Instant,
    saved: Instant,
    vigils: BTreeMap<String, Vigil>,
    /// What an earlier engine knew of the runs that go on.
    known: PodDigest,
    /// A danger is told of it, and a run that begins has to take it back.
    is_in_danger: bool,
    /// When its program was last seen to have written a checkpoint, in any of its runs.
    saved_at: Option<Duration>,
    checkpoint: Option<Timestamp>,
    /// The same, where it is known which.
    saved_checkpoint: Option<Saved>,
}

impl Watched {
    pub(super) fn new(shared: Arc<Shared>, uid: &str, pod: &Pod, dir: &PodDir) -> Self {
        let mut volumes = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        let now = Instant::now();
        Self {
            shared,
            uid: uid.to_owned(),
            is_of_job: pod.labels().contains_key(JOB_LABEL),
            worker: vigil::terms(pod, REACT),
            status_volume: volumes
                .any(|volume| volume.name == STATUS_VOLUME)
                .then(|| dir.volume(STATUS_VOLUME)),
            state: Arc::new(Mutex::new(State {
                begun: now,
                saved: now,
                vigils: BTreeMap::new(),
                known: dir.read_digest(),
                is_in_danger: false,
                saved_at: None,
                checkpoint: None,
                saved_checkpoint: None,
            })),
            dir: dir.clone(),
        }
    }

    /// One look at all containers. Gives what is to be done.
    pub(crate) fn look(&self, containers: &[ContainerUsage]) -> Vec<Deed> {
        let is_short = self.shared.commons.is_short();
        let mut state = self.state();
        let State {
            begun,
            vigils,
            known,
            is_in_danger,
            saved_at,
            checkpoint,
            saved_checkpoint,
            ..
        } = &mut *state;
        let at = begun.elapsed();
        let mut deeds = Vec::new();
        for container in containers {
            let name = &container.name;
            let worker = self.worker.as_ref().filter(|(worker, _)| worker == name);
            let vigil = vigils.entry(name.clone()).or_insert_with(|| {
                let terms = worker.map(|(_, terms)| *terms);
                let mut vigil = Vigil::resume(terms, known.containers.remove(name));
                if *is_in_danger {
                    vigil.was_in_danger();
                }
                vigil
            });
            let said = worker.map_or_else(JobStatus::default, |_| self.said());
            let mut open = None;
            let room = || {
                let commons = &self.shared.commons;
                let (room, books) = commons.room(&self.uid, &self.shared.ledger());
                open = Some(books);
                room
            };
            let action = vigil.look(at, &container.memory, &said, is_short, room);
            if let Some(mut books) = open {
                books.lend(&self.uid, vigil.lent());
            }
            if vigil.saved_at() > *saved_at {
                *saved_at = vigil.saved_at();
                *checkpoint = Some(written_at(vigil));
                *saved_checkpoint = vigil.saved().cloned();
            }
            if let Some(action) = action {
                deeds.push(Deed {
                    container: name.clone(),
                    action,
                });
            }
        }
        let sum = |of: fn(&Vigil) -> u64| vigils.values().map(of).fold(0, u64::saturating_add);
        self.shared
            .commons
            .note(&self.uid, sum(Vigil::used), sum(Vigil::lent));
        drop(state);
        self.save();
        deeds
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.state().vigils.values().any(Vigil::is_urgent)
    }

    pub(crate) fn gpu(&self, id: &str, bytes: u64, since: Duration) {
        self.with_worker(|worker| worker.gpu(id, bytes, since));
    }

    pub(super) fn storage(&self, bytes: u64) {
        self.with_worker(|worker| worker.storage(bytes));
    }

    pub(super) fn refused(&self, container: &str, why: String) {
        if let Some(vigil) = self.state().vigils.get_mut(container) {
            vigil.refused(why);
        }
    }

    /// A request for a checkpoint did not get through.
    pub(super) fn ask_again(&self, container: &str) {
        if let Some(vigil) = self.state().vigils.get_mut(container) {
            vigil.ask_again();
        }
    }

    /// Nobody had the time to do it: it is as if it had failed.
    pub(crate) fn left_out(&self, deed: Deed) {
        let mut state = self.state();
        let Some(vigil) = state.vigils.get_mut(&deed.container) else {
            return;
        };
        match deed.action {
            Action::Raise { .. } | Action::GiveBack { .. } => {
                vigil.refused("too much is to be done at once".to_owned());
            }
            Action::AskCheckpoint { .. } | Action::AskInTime { .. } => vigil.ask_again(),
            Action::Calm => vigil.was_in_danger(),
        }
    }

    /// What is said of the pod's own memory from now on.
    pub(super) fn note_risk(&self, risk: Option<&MemoryRisk>) {
        self.state().is_in_danger = vigil::is_danger(risk);
    }

    /// Whether its program has a place to say where it is.
    pub(super) fn has_status(&self) -> bool {
        self.status_volume.is_some()
    }

    /// The worker of a job, by its container's name.
    pub(crate) fn worker(&self) -> Option<&str> {
        self.worker.as_ref().map(|(worker, _)| worker.as_str())
    }

    /// The step that its program is at, where it says so.
    pub(crate) fn step(&self) -> Option<u64> {
        self.said().step
    }

    fn said(&self) -> JobStatus {
        let volume = self.status_volume.as_deref();
        volume.and_then(status_file::read).unwrap_or_default()
    }

    /// When its program last said that it wrote a checkpoint.
    pub(super) fn checkpoint(&self) -> Option<Timestamp> {
        self.state().checkpoint
    }

    /// Its newest checkpoint, where it is known which.
    pub(super) fn saved(&self) -> Option<Saved> {
        self.state().saved_checkpoint.clone()
    }

    /// What is to be said of the worker's growth, given what was said before.
    pub(super) fn forewarning(
        &self,
        before: Option<&MemoryRisk>,
        now: Timestamp,
    ) -> Option<MemoryRisk> {
        let worker = self.worker.as_ref();
        worker
            .and_then(|(worker, _)| self.of(worker, |vigil| vigil.forewarning(before, now)))
            .unwrap_or_else(|| before.cloned())
    }

    /// What a container is, to whoever has to do with its vigil.
    pub(super) fn of<T>(&self, container: &str, ask: impl FnOnce(&Vigil) -> T) -> Option<T> {
        self.state().vigils.get(container).map(ask)
    }

    /// A run is over: what it used.
    pub(super) fn end(&self, container: &str, id: &str, exit: &Exit) -> Option<ContainerDigest> {
        let mut state = self.state();
        let known = state.known.containers.remove(container);
        let mut vigil = state
            .vigils
            .remove(container)
            .unwrap_or_else(|| Vigil::resume(None, known));
        if self.worker.as_ref().is_some_and(|(it, _)| it == container) {
            // What it said since it was last looked at.
            vigil.hear(state.begun.elapsed(), &self.said());
            if vigil.saved_at() > state.saved_at {
                state.saved_at = vigil.saved_at();
                state.checkpoint = Some(written_at(&vigil));
                state.saved_checkpoint = vigil.saved().cloned();
            }
        }
        let ran = exit
            .started_at
            .map(|started| exit.finished_at.duration_since(started));
        let ran = ran.and_then(|ran| Duration::try_from(ran).ok());
        vigil.end(exit.peak_memory_bytes, ran, exit.oom_killed);
        vigil.told(id)
    }

    /// Written down now and then, for an engine that is killed.
    fn save(&self) {
        let mut state = self.state();
        if !self.is_of_job || state.saved.elapsed() < SAVE_EVERY {
            return;
        }
        state.saved = Instant::now();
        let told = |(name, vigil): (&String, &Vigil)| Some((name.clone(), vigil.told("")?));
        let digest = PodDigest {
            containers: state.vigils.iter().filter_map(told).collect(),
            kernel: Vec::new(),
        };
        drop(state);
        let dir = self.dir.clone();
        // What was not written is measured anew.
        tokio::task::spawn_blocking(move || dir.write_digest(&digest));
    }

    /// As if it had been watched for that much longer.
    #[cfg(test)]
    pub(super) fn age(&self, by: Duration) {
        self.state().begun -= by;
    }

    fn with_worker(&self, tell: impl FnOnce(&mut Vigil)) {
        let Some((worker, _)) = &self.worker else {
            return;
        };
        if let Some(vigil) = self.state().vigils.get_mut(worker) {
            tell(vigil);
        }
    }

    /// No await while it is held.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When the checkpoint was written that is news just now.
fn written_at(vigil: &Vigil) -> Timestamp {
    let told = vigil.saved().and_then(|saved| saved.at.parse().ok());
    told.unwrap_or_else(Timestamp::now)
}
