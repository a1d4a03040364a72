//! What runs on a node of a cluster: finds the containers of jobs, samples their memory every second, serves it to Prometheus, keeps
//! workers from being killed at their limits, and writes a digest on a pod when a container of it ends.
//!
//! What it does for a worker it does through the API, within two seconds and whether or not the operator is there: it raises the limit by
//! the pod's `resize` subresource, or asks for a checkpoint by an annotation that the worker sees as a file. Invariant: it reads the host's
//! cgroup tree and never writes to it, it needs neither root nor a capability nor the host's process ids, and of the API it lists and
//! watches the pods of its own node, resizes them and patches our annotations of them.

mod deeds;
mod layout;
mod metrics;
mod neighbours;
mod outbox;
mod report;
mod roster;
mod sample;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use jiff::Timestamp;
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use layout::LayoutError;
pub use roster::Scope;

use deeds::Deed;
use metrics::Own;
use neighbours::NodeLook;
use report::Writer;
use roster::Roster;
use sample::{Sampler, Work};

const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// How often a container is glanced at that could be full before the second is over.
const GLANCE_EVERY: Duration = Duration::from_millis(100);
/// How often pods are looked at that are not measured, where it matters what they use.
const STRANGERS_EVERY: u64 = 5;
/// Things to be done at once. Each pod has two under way at most.
const DEEDS_MAX: usize = 256;
/// Without a finished look for this long, the sampler hangs and the process is better started anew.
const STUCK: Duration = Duration::from_secs(30);
/// Digests that wait to be written. A node ends no more containers at once than it has.
const REPORTS_MAX: usize = 512;

#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The node this process is on.
    pub node: String,
    pub listen: SocketAddr,
    /// Where the host's cgroup tree is mounted.
    pub cgroup_root: PathBuf,
    /// Where the kubelet keeps its pods' volumes. Without it, programs are not asked where they are.
    pub pod_volumes: Option<PathBuf>,
    pub scope: Scope,
}

/// Why the agent could not go on.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot make out the node's cgroups")]
    Layout(#[source] LayoutError),
    #[error("cannot serve metrics")]
    Serve(#[source] io::Error),
}

/// What the watch, the sampler and the server have in common.
struct Shared {
    roster: Mutex<Roster>,
    own: Mutex<Own>,
    last_pass: Mutex<Instant>,
}

impl Shared {
    fn roster(&self) -> MutexGuard<'_, Roster> {
        hold(&self.roster)
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        hold(&self.own)
    }
}

/// Nothing here breaks halfway through a change, so a lock whose holder panicked holds what it held.
fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until it is told to stop. The API server may be away for as long as it likes: what is known is measured meanwhile.
pub async fn run(
    client: Client,
    options: AgentOptions,
    shutdown: CancellationToken,
) -> Result<(), AgentError> {
    let sampler = Sampler::new(options.cgroup_root.clone(), options.pod_volumes.clone())
        .map_err(AgentError::Layout)?;
    let layout = sampler.layout();
    tracing::info!(
        node = options.node,
        cgroup = %layout.version,
        roots = ?layout.roots,
        "measuring"
    );
    let listener =
        TcpListener::bind(options.listen)
            .await
            .map_err(|source| AgentError::Listen {
                address: options.listen,
                source,
            })?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving /metrics and /healthz");
    }
    let shared = Arc::new(Shared {
        roster: Mutex::new(Roster::new(options.scope)),
        own: Mutex::default(),
        last_pass: Mutex::new(Instant::now()),
    });
    let (reports, waiting) = mpsc::channel(REPORTS_MAX);
    let writer = Writer::new(client.clone(), Arc::clone(&shared));
    let writing = tokio::spawn(writer.run(waiting));
    let (deeds, to_do) = mpsc::channel(DEEDS_MAX);
    let doing = deeds::keep_doing(client.clone(), Arc::clone(&shared), to_do);
    let serving = serve(listener, Arc::clone(&shared), shutdown.clone());
    let result = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        () = watch::keep(client, &options.node, &shared, reports) => Ok(()),
        () = sample(sampler, &shared, deeds) => Ok(()),
        () = doing => Ok(()),
        served = serving => served.map_err(AgentError::Serve),
    };
    // The senders are gone with the watch; what was handed in is written, if the server answers soon.
    let _ = tokio::time::timeout(report::LAST_WORDS, writing).await;
    result
}

/// Looks at all containers every second, and in between at those for whom a second may be too long.
async fn sample(sampler: Sampler, shared: &Arc<Shared>, deeds: mpsc::Sender<Deed>) {
    let begun = Instant::now();
    let mut sampler = Some(sampler);
    let mut next_pass = begun;
    let mut passes = 0_u64;
    let mut node = NodeLook::default();
    loop {
        // Whom a glance is worth only a look tells.
        let is_any_alert = shared.roster().is_any_alert();
        let next = if is_any_alert {
            next_pass.min(Instant::now() + GLANCE_EVERY)
        } else {
            next_pass
        };
        tokio::time::sleep_until(next.into()).await;
        let started = Instant::now();
        let is_pass = started >= next_pass;
        let work = if is_pass {
            next_pass = started + SAMPLE_EVERY;
            passes += 1;
            let roster = shared.roster();
            let is_due = passes.is_multiple_of(STRANGERS_EVERY) || node.used.is_empty();
            Work::Pass {
                targets: roster.targets(begun.elapsed()),
                strangers: is_due.then(|| roster.strangers()),
            }
        } else {
            Work::Glance(shared.roster().alert())
        };
        if work.is_nothing() {
            continue;
        }
        let Some(mut own) = sampler.take() else {
            return;
        };
        // Reading files blocks, if only for a moment.
        let look = tokio::task::spawn_blocking(move || {
            let found = own.work(work);
            (own, found)
        });
        let Ok((own, found)) = look.await else {
            return;
        };
        sampler = Some(own);
        let now = Timestamp::now();
        let at = begun.elapsed();
        let mut roster = shared.roster();
        if let Some(mut look) = found.node {
            if !found.has_strangers {
                look.used = std::mem::take(&mut node.used);
            }
            node = look;
            roster.judge(at, &node, now);
        }
        let lines = roster.record(at, found.readings, &node, now);
        let to_do = roster.due();
        drop(roster);
        for line in lines {
            tracing::warn!("{line}");
        }
        for deed in to_do {
            if let Err(error) = deeds.try_send(deed) {
                let why = "too much is to be done at once";
                tracing::warn!("{why}; something is left out");
                shared.roster().done(&error.into_inner(), Some(why));
            }
        }
        if is_pass {
            *hold(&shared.last_pass) = Instant::now();
            let mut own = shared.own();
            own.passes += 1;
            own.pass_seconds = started.elapsed().as_secs_f64();
        }
    }
}

async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    const TEXT: [(&str, &str); 1] = [("content-type", "text/plain; version=0.0.4; charset=utf-8")];
    let measured = Arc::clone(&shared);
    let metrics = move || async move {
        let own = *measured.own();
        (TEXT, metrics::text(&measured.roster(), own))
    };
    let health = move || async move {
        let silent = hold(&shared.last_pass).elapsed();
        if silent < STUCK {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            let told = format!("no look at the node for {} s\n", silent.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, told)
        }
    };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health));
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { shutdown.cancelled().await })
        .await
}
