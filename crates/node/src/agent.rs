//! What runs on a node of a cluster: finds the containers of jobs, samples their memory every second, serves it to Prometheus,
//! and writes a digest on a pod when a container of it ends.
//!
//! It decides nothing and starts nothing. Invariant: it reads the host's cgroup tree and never writes to it, it needs neither
//! root nor a capability nor the host's process ids, and of the API it lists and watches the pods of its own node and patches
//! one annotation of them.

mod digest;
mod layout;
mod metrics;
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
use kube::Client;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

pub use layout::LayoutError;
pub use roster::Scope;

use metrics::Own;
use report::Writer;
use roster::Roster;
use sample::Sampler;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);
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
    let sampler = Sampler::new(options.cgroup_root.clone()).map_err(AgentError::Layout)?;
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
    let serving = serve(listener, Arc::clone(&shared), shutdown.clone());
    let result = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        () = watch::keep(client, &options.node, &shared, reports) => Ok(()),
        () = sample(sampler, &shared) => Ok(()),
        served = serving => served.map_err(AgentError::Serve),
    };
    // The senders are gone with the watch; what was handed in is written, if the server answers soon.
    let _ = tokio::time::timeout(report::LAST_WORDS, writing).await;
    result
}

async fn sample(sampler: Sampler, shared: &Arc<Shared>) {
    let begun = Instant::now();
    let mut tick = tokio::time::interval(SAMPLE_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sampler = Some(sampler);
    loop {
        tick.tick().await;
        let Some(mut own) = sampler.take() else {
            return;
        };
        let targets = shared.roster().targets();
        let started = Instant::now();
        // Reading files blocks, if only for a moment.
        let look = tokio::task::spawn_blocking(move || {
            let readings = own.pass(targets);
            (own, readings)
        });
        let Ok((own, readings)) = look.await else {
            return;
        };
        sampler = Some(own);
        let news = shared.roster().record(begun.elapsed(), readings);
        for line in news {
            tracing::warn!("{line}");
        }
        *hold(&shared.last_pass) = Instant::now();
        let mut own = shared.own();
        own.passes += 1;
        own.pass_seconds = started.elapsed().as_secs_f64();
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
