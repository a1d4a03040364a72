//! What shows datasets to pods of a cluster: a driver of the Container Storage Interface, one on each node, called by its kubelet.
//!
//! A pod's volume of driver `data.stokehold.dev` names a Dataset of the pod's namespace. Before the pod starts the kubelet asks for the volume
//! to be there: the dataset is copied to the node's disk, once for all that want it, and shown at the pod's own place, read-only. The keys
//! come with that question, out of the Secret that the volume names; the driver may read no Secret.
//!
//! Copying may take hours and a kubelet's question minutes. So copying goes on while nobody asks; who asks too early is told how far it is, and
//! asks again. Invariant: what is shown anywhere has a pin, and a pin goes only when its volume is shown nowhere. Invariant: namespaces share
//! nothing, for a copy is known by what its owner's store tells, and that may be told by anybody.

mod copying;
mod door;
mod grpc;
mod ledger;
mod messages;
mod mounts;
mod tell;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::{get, post};
use kube::Client;
use stoke_api::Dataset;
use stoke_api::names::{DATA_DRIVER, DATA_DRIVER_DATASET};
use stoke_data::{Credentials, DataError, Held, Remote};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use copying::Copying;
use door::Door;
use grpc::{Code, Status, call};
use ledger::{Known, Ledger, Volume};
use messages::{
    Introduced, Introduction, NodeInfo, Nothing, PluginInfo, Probed, PublishRequest, Truth,
    UnpublishRequest,
};
use tell::{Change, Teller};

use crate::causes::chain;
use crate::staging::Stager;

/// A kubelet gives up after two minutes. Less, so that it is told how far it is and not left to guess.
const ANSWER_WITHIN: Duration = Duration::from_secs(100);
/// A kubelet that still wants a volume asks again within three minutes.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// As a kubelet puts them there, by leave of the driver's own object.
const POD_NAME: &str = "csi.storage.k8s.io/pod.name";
const POD_NAMESPACE: &str = "csi.storage.k8s.io/pod.namespace";

#[derive(Debug, Clone)]
pub struct DriverOptions {
    /// The node this process is on.
    pub node: String,
    /// Where copies and records are kept; and how much copies may take.
    pub dir: PathBuf,
    pub bytes_max: Option<u64>,
    /// The directory of the driver's own socket, under the same name for the kubelet.
    pub socket_dir: PathBuf,
    /// Where the kubelet looks for drivers.
    pub registry: PathBuf,
    pub listen: SocketAddr,
}

/// Why the driver could not go on.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("cannot use {}", path.display())]
    Place { path: PathBuf, source: io::Error },
    #[error("cannot use the cache of datasets")]
    Cache(#[source] DataError),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot serve the kubelet")]
    Serve(#[source] io::Error),
}

/// What everybody here needs.
struct Shared {
    teller: Teller,
    stager: Stager,
    volumes: Ledger,
    known: Ledger,
    copying: Mutex<BTreeMap<String, Arc<Copying>>>,
    /// Held while something is shown or hidden.
    turn: tokio::sync::Mutex<()>,
    node: String,
}

/// Runs until it is told to stop.
pub async fn run(
    client: Client,
    options: DriverOptions,
    shutdown: CancellationToken,
) -> Result<(), DriverError> {
    let shared = Shared::open(client, &options)?;
    shared.sweep().map_err(DriverError::Cache)?;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| DriverError::Place { path, source }
    };
    let socket = options.socket_dir.join("csi.sock");
    let csi = Door::open(&socket).map_err(at(&socket))?;
    let registration = options.registry.join(format!("{DATA_DRIVER}-reg.sock"));
    let listener =
        TcpListener::bind(options.listen)
            .await
            .map_err(|source| DriverError::Listen {
                address: options.listen,
                source,
            })?;
    // Last, for whoever finds it calls at once.
    let registry = Door::open(&registration).map_err(at(&registration))?;
    tracing::info!(node = options.node, dir = %options.dir.display(), "serving datasets");
    let health = Router::new().route("/healthz", get(|| async { "ok\n" }));
    let result = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        served = axum::serve(csi, services(Arc::clone(&shared))) => served,
        served = axum::serve(registry, introduction(&socket)) => served,
        served = axum::serve(listener, health) => served,
        () = shared.keep_tidy() => Ok(()),
    };
    // So that the kubelet knows that nobody is there.
    let _ = std::fs::remove_file(&registration);
    result.map_err(DriverError::Serve)
}

/// How the driver is made known to the kubelet.
fn introduction(endpoint: &Path) -> Router {
    let introduction = Introduction {
        kind: "CSIPlugin".to_owned(),
        name: DATA_DRIVER.to_owned(),
        endpoint: endpoint.display().to_string(),
        supported_versions: vec!["1.0.0".to_owned()],
    };
    let info = move |request: Request| {
        let introduction = introduction.clone();
        call(request, move |_: Nothing| async { Ok(introduction) })
    };
    let status = |request: Request| {
        call(request, |introduced: Introduced| async move {
            if introduced.registered {
                tracing::info!("the kubelet knows this driver");
            } else {
                tracing::warn!(
                    why = introduced.error,
                    "the kubelet does not take this driver"
                );
            }
            Ok(Nothing {})
        })
    };
    Router::new()
        .route("/pluginregistration.Registration/GetInfo", post(info))
        .route(
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            post(status),
        )
        .fallback(|request: Request| async move { unknown(&request) })
}

fn unknown(request: &Request) -> Status {
    let path = request.uri().path();
    Status::new(Code::Unimplemented, format!("there is no {path} here"))
}

/// What the kubelet asks of it.
fn services(shared: Arc<Shared>) -> Router {
    let info = |request: Request| {
        call(request, |_: Nothing| async {
            Ok(PluginInfo {
                name: DATA_DRIVER.to_owned(),
                vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            })
        })
    };
    let nothing = |request: Request| call(request, |_: Nothing| async { Ok(Nothing {}) });
    let probe = |request: Request| {
        let ready = Some(Truth { value: true });
        call(request, |_: Nothing| async { Ok(Probed { ready }) })
    };
    let node_id = shared.node.clone();
    let node_info = move |request: Request| {
        let node_id = node_id.clone();
        call(request, move |_: Nothing| async {
            Ok(NodeInfo { node_id })
        })
    };
    let publishing = Arc::clone(&shared);
    let publish = move |request: Request| {
        let shared = Arc::clone(&publishing);
        call(request, move |asked: PublishRequest| shared.publish(asked))
    };
    let unpublish = move |request: Request| {
        let shared = Arc::clone(&shared);
        call(request, move |asked: UnpublishRequest| {
            shared.unpublish(asked)
        })
    };
    Router::new()
        .route("/csi.v1.Identity/GetPluginInfo", post(info))
        .route("/csi.v1.Identity/GetPluginCapabilities", post(nothing))
        .route("/csi.v1.Identity/Probe", post(probe))
        .route("/csi.v1.Node/NodeGetInfo", post(node_info))
        .route("/csi.v1.Node/NodeGetCapabilities", post(nothing))
        .route("/csi.v1.Node/NodePublishVolume", post(publish))
        .route("/csi.v1.Node/NodeUnpublishVolume", post(unpublish))
        .fallback(|request: Request| async move { unknown(&request) })
}

/// What a kubelet asks for, if it makes sense.
fn volume(asked: &PublishRequest) -> Result<Volume, Status> {
    let bad = |what: String| Status::new(Code::InvalidArgument, what);
    let said = |key: &str| {
        let value = asked.volume_context.get(key).filter(|it| !it.is_empty());
        value
            .cloned()
            .ok_or_else(|| bad(format!("the volume says no {key}")))
    };
    let target = PathBuf::from(&asked.target_path);
    if !ledger::is_safe(&asked.volume_id) {
        return Err(bad(format!("{:?} is no id of a volume", asked.volume_id)));
    }
    if !target.is_absolute() {
        return Err(bad(format!("{} is no place for it", target.display())));
    }
    Ok(Volume {
        id: asked.volume_id.clone(),
        target,
        namespace: said(POD_NAMESPACE)?,
        pod: said(POD_NAME)?,
        dataset: said(DATA_DRIVER_DATASET)?,
    })
}

/// Where a dataset is, with the keys that came with the question.
fn source(dataset: &Dataset, keys: &Credentials) -> Result<Remote, String> {
    let spec = &dataset.spec;
    let uri = spec
        .staged_uri()
        .ok_or("it is used as it is; there is nothing to copy")?;
    if let Some(secret) = spec.secret.as_ref().filter(|_| keys.is_empty()) {
        return Err(format!(
            "its keys are in Secret {secret}, and the pod was made without them or the Secret is empty"
        ));
    }
    Remote::open(uri, spec.endpoint.as_deref(), keys).map_err(|error| chain(&error))
}

impl Shared {
    fn open(client: Client, options: &DriverOptions) -> Result<Arc<Self>, DriverError> {
        let ledger = |name: &str| {
            let path = options.dir.join(name);
            Ledger::open(path.clone()).map_err(|source| DriverError::Place { path, source })
        };
        for path in [&options.socket_dir, &options.registry] {
            std::fs::create_dir_all(path).map_err(|source| DriverError::Place {
                path: path.clone(),
                source,
            })?;
        }
        let teller = Teller {
            client,
            node: options.node.clone(),
            standing: Mutex::default(),
        };
        Ok(Arc::new(Self {
            teller,
            stager: Stager::new(options.dir.join("cache"), options.bytes_max),
            volumes: ledger("volumes")?,
            known: ledger("known")?,
            copying: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            node: options.node.clone(),
        }))
    }

    fn copying(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Copying>>> {
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a start: whoever was being served is asked for again, or is gone. Only what is shown keeps its pin.
    fn sweep(&self) -> Result<(), DataError> {
        let broken = |error: io::Error| DataError::Disk {
            what: "read what is mounted and",
            path: PathBuf::from("volumes"),
            why: error.to_string(),
        };
        let mounted = mounts::now().map_err(broken)?;
        let all: Vec<Volume> = self.volumes.all().map_err(broken)?;
        let (shown, gone): (Vec<Volume>, Vec<Volume>) = all
            .into_iter()
            .partition(|volume| mounts::is_mounted(&mounted, &volume.target));
        let is_gone = |id: &str| !shown.iter().any(|volume| volume.id == id);
        self.stager.cache()?.unpin_where(is_gone)?;
        for volume in &gone {
            self.volumes.remove(&volume.id).map_err(broken)?;
        }
        tracing::info!(shown = shown.len(), gone = gone.len(), "volumes");
        Ok(())
    }

    async fn publish(self: Arc<Self>, asked: PublishRequest) -> Result<Nothing, Status> {
        let volume = volume(&asked)?;
        if self.is_shown(&volume)? {
            return Ok(Nothing {});
        }
        let copying = self.begin(&volume, Credentials::new(asked.secrets)).await?;
        let Ok(ended) = tokio::time::timeout(ANSWER_WITHIN, copying.ended()).await else {
            let message = format!("copying {}: {}", volume.dataset, copying.far(&self));
            return Err(Status::new(Code::Aborted, message));
        };
        {
            let mut all = self.copying();
            let is_it = |it: &Arc<Copying>| Arc::ptr_eq(it, &copying);
            if all.get(&volume.id).is_some_and(is_it) {
                all.remove(&volume.id);
            }
        }
        match ended {
            Ok(source) => self.show(volume, source).await,
            Err(why) => {
                let message = format!("dataset {}: {why}", volume.dataset);
                Err(Status::new(Code::Unavailable, message))
            }
        }
    }

    /// The same asked twice is done once. What was shown and not yet closed, because we were killed in between, is closed.
    fn is_shown(&self, volume: &Volume) -> Result<bool, Status> {
        if !self.volumes.has(&volume.id) {
            return Ok(false);
        }
        let mounted = mounts::now().map_err(internal)?;
        let is_shown = mounts::is_mounted(&mounted, &volume.target);
        if is_shown {
            mounts::close(&volume.target).map_err(internal)?;
        }
        Ok(is_shown)
    }

    /// Begins to copy for a volume, or finds that it is being done.
    async fn begin(
        self: &Arc<Self>,
        volume: &Volume,
        keys: Credentials,
    ) -> Result<Arc<Copying>, Status> {
        if let Some(copying) = self.copying().get(&volume.id) {
            return Ok(Arc::clone(copying));
        }
        let (namespace, name) = (&volume.namespace, &volume.dataset);
        let unavailable = |why: &str| {
            let message = format!("dataset {name}: {why}");
            Status::new(Code::Unavailable, message)
        };
        let found = self.teller.datasets(namespace).get_opt(name).await;
        let found = found.map_err(|error| unavailable(&chain(&error)))?;
        let there = found.ok_or_else(|| format!("there is none in namespace {namespace}"));
        let remote = match there.and_then(|dataset| source(&dataset, &keys)) {
            Ok(remote) => remote,
            Err(why) => {
                copying::failed(self, volume, &why).await;
                return Err(unavailable(&why));
            }
        };
        let mut all = self.copying();
        // Somebody else may have asked for the same meanwhile.
        if let Some(copying) = all.get(&volume.id) {
            return Ok(Arc::clone(copying));
        }
        let put = self.volumes.put(&volume.id, volume);
        put.map_err(|error| unavailable(&error.to_string()))?;
        let uri = remote.uri().to_owned();
        let begun = self
            .stager
            .begin(namespace, remote, name.clone(), volume.id.clone())
            .map_err(|error| unavailable(&chain(&error)))?;
        let copying = Copying::follow(Arc::clone(self), volume.clone(), uri, begun);
        all.insert(volume.id.clone(), Arc::clone(&copying));
        Ok(copying)
    }

    /// Not given up halfway, whoever asked for it.
    async fn show(self: Arc<Self>, volume: Volume, source: PathBuf) -> Result<Nothing, Status> {
        let doing = tokio::spawn(async move {
            let _turn = self.turn.lock().await;
            // It was let go of while it was copied.
            if !self.volumes.has(&volume.id) {
                self.unpin(&volume.id).await?;
                let message = "the volume is no longer wanted";
                return Err(Status::new(Code::Aborted, message));
            }
            let target = volume.target.clone();
            let shown = tokio::task::spawn_blocking(move || mounts::show(&source, &target)).await;
            shown.map_err(internal)?.map_err(|error| {
                let place = volume.target.display();
                let message = format!("cannot show dataset {} at {place}: {error}", volume.dataset);
                Status::new(Code::Unavailable, message)
            })
        });
        doing.await.map_err(internal)?.map(|()| Nothing {})
    }

    async fn unpublish(self: Arc<Self>, asked: UnpublishRequest) -> Result<Nothing, Status> {
        let target = PathBuf::from(&asked.target_path);
        if !ledger::is_safe(&asked.volume_id) || !target.is_absolute() {
            let message = "no volume is called that";
            return Err(Status::new(Code::InvalidArgument, message));
        }
        let doing = tokio::spawn(async move { self.let_go(&asked.volume_id, Some(target)).await });
        doing.await.map_err(internal)?.map(|()| Nothing {})
    }

    /// Nobody reads it any more, or ever will. Without a place it was never shown.
    async fn let_go(&self, id: &str, target: Option<PathBuf>) -> Result<(), Status> {
        let copying = self.copying().remove(id);
        if let Some(copying) = copying {
            copying.stop().await;
        }
        self.teller.forget(id);
        let _turn = self.turn.lock().await;
        // Who was about to give it up may have come too late for that.
        let record: Option<Volume> = self.volumes.get(id);
        if target.is_none()
            && let Some(volume) = record
            && self.is_shown(&volume)?
        {
            return Ok(());
        }
        if let Some(target) = target {
            let hidden = tokio::task::spawn_blocking(move || mounts::hide(&target)).await;
            let hidden = hidden.map_err(internal)?;
            hidden.map_err(|error| {
                Status::new(Code::Unavailable, format!("cannot unmount it: {error}"))
            })?;
        }
        self.unpin(id).await?;
        let removed = self.volumes.remove(id);
        removed.map_err(|error| Status::new(Code::Unavailable, error.to_string()))
    }

    async fn unpin(&self, id: &str) -> Result<(), Status> {
        let cache = self.stager.cache();
        let id = id.to_owned();
        // A lock of the cache may be waited for.
        let unpinned = tokio::task::spawn_blocking(move || cache?.unpin(&id)).await;
        let unpinned = unpinned.map_err(internal)?;
        unpinned.map_err(|error| Status::new(Code::Unavailable, chain(&error)))
    }

    /// Gives up what nobody has asked for in a long time, and says what could not be said before.
    async fn keep_tidy(&self) {
        loop {
            self.tell_gone().await;
            tokio::time::sleep(TIDY_EVERY).await;
            let forgotten: Vec<String> = {
                let all = self.copying();
                let all = all.iter();
                let old = all.filter(|(_, it)| it.unasked() > FORGOTTEN_AFTER);
                old.map(|(id, _)| id.clone()).collect()
            };
            for id in forgotten {
                tracing::info!(volume = id, "nobody asks for it any more");
                if let Err(status) = self.let_go(&id, None).await {
                    tracing::warn!(volume = id, why = status.message, "could not be let go of");
                }
            }
        }
    }

    fn know(&self, known: &Known) {
        if let Err(error) = self.known.put(&known.id(), known) {
            tracing::warn!(%error, "what lies here could not be noted");
        }
    }

    /// Brings what datasets say of this node in line with what lies here.
    async fn tell_gone(&self) {
        let cache = self.stager.cache();
        let held = tokio::task::spawn_blocking(move || cache?.held()).await;
        let held: Vec<Held> = match held {
            Ok(Ok(held)) => held,
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "the data cache cannot be read");
                return;
            }
            Err(_) => return,
        };
        let all: Vec<Known> = self.known.all().unwrap_or_default();
        for mut known in all {
            let here = held
                .iter()
                .find(|it| it.is_whole && it.scope == known.namespace && it.uri == known.uri);
            let change = match here {
                Some(_) if known.is_told => continue,
                Some(here) => Change::Here {
                    bytes: here.bytes,
                    files: here.files,
                },
                None => Change::Gone,
            };
            let told = self.teller.dataset(&known.namespace, &known.name, change);
            if !told.await {
                continue;
            }
            known.is_told = true;
            if here.is_some() {
                self.know(&known);
            } else if let Err(error) = self.known.remove(&known.id()) {
                tracing::warn!(%error, "what is gone could not be forgotten");
            }
        }
    }
}

fn internal(error: impl std::fmt::Display) -> Status {
    Status::new(Code::Internal, error.to_string())
}

#[cfg(test)]
mod tests;
