//! One pod on this node, from the moment it is seen to the moment nothing of it is left.
//!
//! Each pod has one task, and that task is the only one that changes anything of the pod: its directory, its shim, its
//! status, its place in the ledger. It may be dropped at any instant, with the whole engine, and a new one carries on from
//! the pod's directory.
//!
//! ```text
//! begin ──> start ──> supervise ──> end ──> leave
//!   │         ^ |         │          ^
//!   │         └─┴─────────┘          │     (a lost shim is started again, if the restart policy says so)
//!   └── adopted, turned away ────────┘
//! ```
//!
//! Invariant: what a pod holds is released before anyone is told that it ended, and its object leaves the API after its
//! processes and files have left the machine.

mod begin;
mod data;
mod end;
mod guarding;
mod notice;
mod publish;
mod resize;
mod start;
mod supervise;
pub(crate) mod watched;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod};
use kube::{Api, Client, ResourceExt};
use stoke_api::digest::PodDigest;
use stoke_api::names::{MEMORY_DIGEST_ANNOTATION, MEMORY_RISK_ANNOTATION};
use stoke_api::risk::MemoryRisk;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::causes::chain;
use crate::cgroup::Cgroups;
use crate::commons::Commons;
use crate::events::{self, Recorder};
use crate::gpu::{Gpu, GpuSource};
use crate::ledger::Ledger;
use crate::pod_dir::{PodDir, Record};
use crate::resources::{self, Granted};
use crate::shim::protocol::ShimStatus;
use crate::spec::NodeFacts;
use crate::staging::Stager;
use crate::status::{Fate, Health, Hold, Resize};
use crate::vigil;
use crate::volumes::claims::Bound;

use guarding::annotated;
use watched::Watched;

/// How soon something that failed is tried again: doubled each time, up to the maximum.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// What all pods of the node share.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) facts: NodeFacts,
    pub(crate) cgroups: Cgroups,
    pub(crate) pods_dir: PathBuf,
    /// A directory in memory for secret volumes of all pods, where the machine has one.
    pub(crate) secrets_dir: Option<PathBuf>,
    pub(crate) stoke_exe: PathBuf,
    pub(crate) events: Recorder,
    pub(crate) claims: watch::Receiver<Bound>,
    pub(crate) stager: Stager,
    pub(crate) gpu_source: Arc<dyn GpuSource>,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) commons: Arc<Commons>,
    /// Counts releases, so that those who wait for room notice.
    pub(crate) released: watch::Sender<u64>,
}

impl Shared {
    /// The ledger. No await while it is held.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pod_dir(&self, uid: &str) -> PodDir {
        PodDir::new(&self.pods_dir, uid)
    }

    fn release(&self, uid: &str) {
        self.commons.forget(uid);
        self.ledger().release(uid);
        self.released.send_modify(|count| *count += 1);
    }
}

/// What the API says about a pod.
#[derive(Debug, Clone)]
pub(crate) enum Intent {
    /// It exists, like this.
    Wanted(Arc<Pod>),
    /// Its object is gone.
    Gone,
}

/// Where a pod's life goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Start,
    Supervise,
    End,
}

/// The task of one pod.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    uid: String,
    dir: PodDir,
    about: ObjectReference,
    intent: watch::Receiver<Intent>,
    /// As last seen in the API.
    pod: Arc<Pod>,
    gone: bool,
    /// What was decided when the pod was accepted; `None` for a pod that was not.
    record: Option<Record>,
    gpus: Vec<Gpu>,
    fate: Option<Fate>,
    shim: Option<ShimStatus>,
    hold: Option<Hold>,
    health: BTreeMap<String, Health>,
    resize: Option<Resize>,
    watched: Watched,
    /// What is to be said of its own memory.
    risk: Option<MemoryRisk>,
    /// What is said of it: the machine may matter more.
    risk_told: Option<MemoryRisk>,
    /// What its ended runs used, and whether that is told.
    digests: PodDigest,
    digests_told: bool,
    /// The request that its program has been shown.
    request_shown: Option<String>,
    ended: bool,
    stopping: Option<Stopping>,
    /// Between tries to reach a shim that runs but cannot be followed.
    reconnect: Backoff,
}

/// A pod that is being ended.
#[derive(Debug, Clone, Copy)]
struct Stopping {
    /// What its shim was told; `None` while it could not be told.
    grace_seconds: Option<u64>,
    /// When the shim itself is killed.
    kill_at: Instant,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        uid: String,
        pod: Arc<Pod>,
        intent: watch::Receiver<Intent>,
    ) -> Self {
        let dir = shared.pod_dir(&uid);
        let gone = matches!(&*intent.borrow(), Intent::Gone);
        let risk_told = annotated(&pod, MEMORY_RISK_ANNOTATION, MemoryRisk::parse);
        let risk = vigil::own_risk(risk_told.as_ref());
        let watched = Watched::new(shared.clone(), &uid, &pod, &dir);
        watched.note_risk(risk.as_ref());
        Self {
            about: events::about(&pod),
            intent,
            gone,
            record: None,
            gpus: Vec::new(),
            fate: None,
            shim: None,
            hold: None,
            health: BTreeMap::new(),
            resize: None,
            watched,
            risk,
            risk_told,
            digests: annotated(&pod, MEMORY_DIGEST_ANNOTATION, PodDigest::parse)
                .unwrap_or_default(),
            digests_told: true,
            request_shown: None,
            ended: false,
            stopping: None,
            reconnect: Backoff::new(),
            shared,
            dir,
            pod,
            uid,
        }
    }

    /// Lives the pod's life. Returns when nothing of it is left, on the machine or in the API.
    pub(crate) async fn run(mut self) {
        let mut next = self.begin().await;
        loop {
            next = match next {
                Next::Start => self.start().await,
                Next::Supervise => self.supervise().await,
                Next::End => return self.end().await,
            };
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(
            self.shared.client.clone(),
            &self.pod.namespace().unwrap_or_default(),
        )
    }

    /// Takes over what the API says now, if it says anything new.
    fn read_intent(&mut self) {
        let intent = self.intent.borrow_and_update().clone();
        match intent {
            Intent::Gone => self.gone = true,
            Intent::Wanted(pod) => {
                if !is_older(&pod, &self.pod) {
                    self.pod = pod;
                }
            }
        }
    }

    /// Waits for the API to say something new about the pod.
    async fn intent_changed(&mut self) {
        if self.intent.changed().await.is_err() {
            // The node is shutting down and will drop this task.
            std::future::pending::<()>().await;
        }
        self.read_intent();
    }

    /// Whether the pod is to go away.
    fn is_leaving(&self) -> bool {
        self.gone || self.pod.metadata.deletion_timestamp.is_some()
    }

    fn granted(&self) -> Granted {
        self.record.as_ref().map_or_else(
            || resources::asked(&self.pod),
            |record| record.granted.clone(),
        )
    }

    /// The pod with what it was granted in place of what it asks for.
    fn pod_as_granted(&self) -> Pod {
        resources::as_granted(&self.pod, &self.granted())
    }

    fn save_record(&self) {
        if let Some(record) = &self.record
            && let Err(error) = self.dir.write_record(record)
        {
            tracing::error!(pod = self.pod.name_any(), error = %chain(&error), "what was decided about a pod could not be written down");
        }
    }

    /// Decides how the pod must end. The first decision stands.
    fn condemn(&mut self, fate: Fate) {
        if self.fate.is_some() {
            return;
        }
        self.fate = Some(fate.clone());
        if let Some(record) = &mut self.record {
            record.fate = Some(fate);
        }
        self.save_record();
    }

    fn container(&self, name: &str) -> Option<&Container> {
        self.pod
            .spec
            .as_ref()?
            .containers
            .iter()
            .find(|container| container.name == name)
    }
}

/// Whether `a` is an earlier version of the object than `b`. A response to our own write can be newer than what the watch
/// brings next.
fn is_older(a: &Pod, b: &Pod) -> bool {
    let version = |pod: &Pod| {
        pod.resource_version()
            .and_then(|text| text.parse::<u64>().ok())
    };
    match (version(a), version(b)) {
        (Some(a), Some(b)) => a < b,
        _ => false,
    }
}

/// Waits that grow.
#[derive(Debug)]
struct Backoff {
    next: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { next: RETRY_MIN }
    }

    fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (self.next * 2).min(RETRY_MAX);
        wait
    }
}
