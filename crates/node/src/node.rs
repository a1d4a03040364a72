//! The node itself: it registers, recovers what ran before, and gives every pod bound to it a task of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::causes::chain;
use crate::cgroup::{self, Cgroups};
use crate::commons::Commons;
use crate::events::Recorder;
use crate::gpu::{self, GpuSource};
use crate::ledger::Ledger;
use crate::machine::Machine;
use crate::options::NodeOptions;
use crate::pod::{Intent, Shared, Worker};
use crate::pod_dir::{self, PodDirError};
use crate::registration::{Registration, quantities};
use crate::resources;
use crate::shim::{self, Capabilities, Life, MountMethod};
use crate::spec::NodeFacts;
use crate::staging::{self, Stager};
use crate::sweep;
use crate::volumes::claims::{Bound, Provisioner};

/// How long a pod whose task broke is left alone, so that one that breaks every time costs little.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Why a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("the node could not be registered")]
    Register(#[source] kube::Error),
    #[error("cannot use the directory {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("a pod's directory cannot be used")]
    PodDir(#[from] PodDirError),
    #[error("finding out what the machine can do was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
    #[error("the watch on pods ended")]
    WatchEnded,
}

/// Runs the node until it is told to stop. Pods go on without it: their shims outlive the engine, and the next call takes
/// them over.
pub async fn run(
    client: Client,
    options: NodeOptions,
    shutdown: CancellationToken,
) -> Result<(), NodeError> {
    let pods_dir = options.data_dir.join("pods");
    let volumes_dir = options.data_dir.join("volumes");
    pod_dir::private_dir(&pods_dir)?;
    pod_dir::private_dir(&volumes_dir)?;

    // Loading a driver and trying out namespaces take their time, at the same time.
    let (simulated, stoke_exe) = (options.simulated_gpus, options.stoke_exe.clone());
    let gpu_source = tokio::task::spawn_blocking(move || gpu::Machine::detect(simulated));
    let capabilities = tokio::task::spawn_blocking(move || shim::capabilities(&stoke_exe));
    let gpu_source: Arc<dyn GpuSource> =
        Arc::new(gpu_source.await.map_err(NodeError::Interrupted)?);
    let capabilities = capabilities.await.map_err(NodeError::Interrupted)?;
    if let Err(reason) = &capabilities.mounts {
        tracing::warn!(
            reason,
            "no mount namespaces: pods with volumes at paths of their own cannot run"
        );
    }
    let gpus = gpu_source.devices();
    let cgroups = cgroup::detect(&engine_id(&options.data_dir));
    if let Cgroups::Unusable { reason } = &cgroups {
        tracing::warn!(
            reason,
            "no cgroups: memory limits are enforced by sampling, CPU and process limits not at all"
        );
    }
    let machine = Machine::read(&options.data_dir);
    let registration = Registration::new(&options, machine, gpus.clone(), cgroups.clone());

    let (events, event_writer) = Recorder::start(client.clone(), &options.name);
    let (bound_to, claims) = watch::channel(Bound::new());
    let shared = Arc::new(Shared {
        facts: facts(&options, &registration, &capabilities),
        client: client.clone(),
        cgroups,
        secrets_dir: secrets_dir(&options.data_dir),
        pods_dir: pods_dir.clone(),
        stoke_exe: options.stoke_exe.clone(),
        events: events.clone(),
        claims,
        stager: Stager::new(
            staging::cache_dir(&options.data_dir),
            options.data_cache_max_bytes,
        ),
        gpu_source,
        commons: Arc::new(Commons::new(
            registration.machine.memory_bytes,
            registration
                .allocatable
                .get(resources::MEMORY)
                .copied()
                .unwrap_or(0),
        )),
        ledger: Mutex::new(Ledger::new(registration.allocatable.clone(), gpus)),
        released: watch::channel(0).0,
    });
    let found = recover(&shared)?;

    let conditions = registration
        .register(&client)
        .await
        .map_err(NodeError::Register)?;
    let mut beside = JoinSet::new();
    beside.spawn(registration.keep(client.clone(), conditions, shutdown.clone()));
    let provisioner = Provisioner {
        client: client.clone(),
        root: volumes_dir,
        bound: bound_to,
        events,
    };
    beside.spawn(provisioner.run(shutdown.clone()));
    beside.spawn(shared.commons.clone().watch());

    let ended = Pods {
        shared,
        found,
        tasks: BTreeMap::new(),
        workers: JoinSet::new(),
    }
    .run(&client, &options.name, &shutdown)
    .await;
    beside.abort_all();
    event_writer.abort();
    ended
}

/// Tells this engine's cgroups from those of other engines on the machine: a short hash of where its data is.
fn engine_id(data_dir: &Path) -> String {
    let path = std::fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    format!("{:016x}", fnv1a(path.as_os_str().as_encoded_bytes()))
}

/// FNV-1a: stable across versions of the compiler, which the standard library's hasher is not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn facts(
    options: &NodeOptions,
    registration: &Registration,
    capabilities: &Capabilities,
) -> NodeFacts {
    let engine_uid = rustix::process::geteuid().as_raw();
    NodeFacts {
        name: options.name.clone(),
        address: options.address.to_string(),
        allocatable: quantities(&registration.allocatable),
        base_env: options.base_env.clone(),
        engine_uid,
        has_gpus: !registration.gpus.is_empty(),
        free_mounts: capabilities.mounts == Ok(MountMethod::Privileged),
        log_max_bytes: options.log_max_bytes,
        log_max_files: options.log_max_files,
        pids_max: options.pids_max,
    }
}

/// A directory in memory for secrets, where the machine has one for us.
fn secrets_dir(data_dir: &Path) -> Option<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let root = rustix::process::geteuid()
        .is_root()
        .then(|| PathBuf::from("/run"));
    let dir = own.into_iter().chain(root).find(|dir| is_in_memory(dir))?;
    Some(dir.join("stokehold").join(engine_id(data_dir)))
}

fn is_in_memory(dir: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    rustix::fs::statfs(dir).is_ok_and(|found| matches!(found.f_type as u64, TMPFS | RAMFS))
}

/// Pods found in the data directory, by uid.
type Found = BTreeMap<String, Arc<Pod>>;

/// Finds the pods of an earlier engine and books what they hold, before anyone else can ask for it.
fn recover(shared: &Shared) -> Result<Found, NodeError> {
    let directory = |source| NodeError::Directory {
        path: shared.pods_dir.clone(),
        source,
    };
    let mut found = Found::new();
    for entry in std::fs::read_dir(&shared.pods_dir).map_err(directory)? {
        let entry = entry.map_err(directory)?;
        let Ok(uid) = entry.file_name().into_string() else {
            continue;
        };
        let dir = shared.pod_dir(&uid);
        let record = match dir.read_record() {
            Ok(record) => record,
            // Written by a newer engine: touching its pods would be guessing.
            Err(error @ PodDirError::Version { .. }) => return Err(error.into()),
            Err(error) => {
                tracing::warn!(uid, error = %chain(&error), "what was known of a pod cannot be read");
                None
            }
        };
        let pod = dir.read_pod().unwrap_or_default();
        let runs = shim::life(dir.path()).is_ok_and(|life| life == Life::Running);
        let over = shim::read_status(dir.path())
            .ok()
            .flatten()
            .is_some_and(|status| status.finished);
        if let (Some(record), Some(pod)) = (&record, &pod)
            && (runs || !over)
        {
            let held = resources::requests(&resources::as_granted(pod, &record.granted))
                .unwrap_or_default();
            shared.ledger().restore(&uid, held, &record.gpus);
        }
        found.insert(uid, Arc::new(pod.unwrap_or_default()));
    }
    let known: BTreeSet<String> = found.keys().cloned().collect();
    // What a pod of an earlier engine reads stays where it is.
    shared.stager.sweep(|uid| !known.contains(uid));
    if let Some(dir) = &shared.secrets_dir {
        sweep::secrets(dir, &known);
    }
    let (removed, problems) = shared.cgroups.remove_orphans(&known);
    for name in removed {
        tracing::info!(name, "processes of a pod that is no more were ended");
    }
    for problem in problems {
        tracing::warn!(error = %chain(&problem), "a cgroup of a pod that is no more could not be removed");
    }
    Ok(found)
}

/// The pods of this node and their tasks.
struct Pods {
    shared: Arc<Shared>,
    /// Found at the start and not yet seen in the API.
    found: Found,
    tasks: BTreeMap<String, Task>,
    /// Give back the uid of their pod.
    workers: JoinSet<String>,
}

/// The task of one pod.
struct Task {
    id: tokio::task::Id,
    pod: Arc<Pod>,
    intent: watch::Sender<Intent>,
}

impl Pods {
    async fn run(
        mut self,
        client: &Client,
        node: &str,
        shutdown: &CancellationToken,
    ) -> Result<(), NodeError> {
        let pods: Api<Pod> = Api::all(client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let mut stream = pin!(watcher(pods, config).default_backoff());
        // Uids seen since the watch was last (re)started, while its list comes in.
        let mut listed: Option<BTreeSet<String>> = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(ended) = self.workers.join_next_with_id() => match ended {
                    Ok((id, uid)) => self.ended(id, &uid),
                    Err(error) => {
                        tracing::error!(%error, "a pod's task broke; the pod is taken up again");
                        self.take_up_again(error.id());
                    }
                },
                event = stream.next() => match event.ok_or(NodeError::WatchEnded)? {
                    Err(error) => tracing::debug!(%error, "the watch on pods was interrupted"),
                    Ok(watcher::Event::Init) => listed = Some(BTreeSet::new()),
                    Ok(watcher::Event::InitApply(pod)) => {
                        if let (Some(listed), Some(uid)) = (&mut listed, pod.uid()) {
                            listed.insert(uid);
                        }
                        self.apply(pod);
                    }
                    Ok(watcher::Event::InitDone) => self.sweep(&listed.take().unwrap_or_default()),
                    Ok(watcher::Event::Apply(pod)) => self.apply(pod),
                    Ok(watcher::Event::Delete(pod)) => self.gone(&pod.uid().unwrap_or_default()),
                },
            }
        }
    }

    fn apply(&mut self, pod: Pod) {
        let Some(uid) = pod.uid() else { return };
        self.found.remove(&uid);
        let pod = Arc::new(pod);
        match self.tasks.get_mut(&uid) {
            Some(task) if !task.intent.is_closed() => {
                task.pod = pod.clone();
                // It may be ending; then it no longer matters.
                let _ = task.intent.send(Intent::Wanted(pod));
            }
            _ => self.spawn(uid, pod.clone(), Intent::Wanted(pod), Duration::ZERO),
        }
    }

    /// Forgets a task that has ended, unless its pod has a new one by now.
    fn ended(&mut self, id: tokio::task::Id, uid: &str) {
        if self.tasks.get(uid).is_some_and(|task| task.id == id) {
            self.tasks.remove(uid);
        }
    }

    /// A new task for the pod of one that broke, unless it has one by now.
    fn take_up_again(&mut self, broken: tokio::task::Id) {
        let found = self.tasks.iter().find(|(_, task)| task.id == broken);
        if let Some((uid, task)) = found {
            let intent = task.intent.borrow().clone();
            let (uid, pod) = (uid.clone(), task.pod.clone());
            self.spawn(uid, pod, intent, AGAIN_AFTER);
        }
    }

    fn gone(&mut self, uid: &str) {
        if let Some(task) = self.tasks.get(uid) {
            // The task may have ended because of its own deletion.
            let _ = task.intent.send(Intent::Gone);
        }
    }

    /// After a complete list: what is not in it is gone, whether a task has it or only a directory.
    fn sweep(&mut self, listed: &BTreeSet<String>) {
        let lost: Vec<String> = self
            .tasks
            .keys()
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect();
        for uid in lost {
            self.gone(&uid);
        }
        for (uid, pod) in std::mem::take(&mut self.found) {
            tracing::info!(
                uid,
                pod = pod.name_any(),
                "a pod was deleted while the engine was down; it is ended"
            );
            self.spawn(uid, pod, Intent::Gone, Duration::ZERO);
        }
    }

    fn spawn(&mut self, uid: String, pod: Arc<Pod>, intent: Intent, wait: Duration) {
        let (sender, intents) = watch::channel(intent);
        let (shared, own, first) = (self.shared.clone(), uid.clone(), pod.clone());
        let worker = self.workers.spawn(async move {
            tokio::time::sleep(wait).await;
            Worker::new(shared, own.clone(), first, intents).run().await;
            own
        });
        let task = Task {
            id: worker.id(),
            pod,
            intent: sender,
        };
        self.tasks.insert(uid, task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_known_by_its_directory() {
        let one = tempfile::tempdir().expect("a directory");
        let two = tempfile::tempdir().expect("a directory");
        assert_eq!(engine_id(one.path()), engine_id(one.path()));
        assert_ne!(engine_id(one.path()), engine_id(two.path()));
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
