//! `stoke up`, wired: store, API server, node and controllers in one process.
//!
//! This is the only place that knows them all. Invariant: they meet only at the API. The node and the controllers get a
//! client, the server gets a way to read logs, and nobody gets anybody else.

pub mod log;
mod logs;
mod ready;
pub mod shims;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use stoke_apiserver::pki::Authority;
use stoke_apiserver::serve::Token;
use stoke_apiserver::{ApiServer, housekeeping, kubeconfig};
use stoke_node::NodeOptions;
use stoke_store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::data_dir::{Claim, DataDir, EngineRecord};
use crate::failure::{Exit, Failure};

/// An address to serve on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    pub address: SocketAddr,
    /// The last engine of this data directory had it.
    pub was_ours: bool,
}

pub struct EngineOptions {
    pub data_dir: DataDir,
    /// Where to serve, best first.
    pub listen: Vec<Wish>,
    pub simulated_gpus: u32,
    /// How much datasets may take on the disk.
    pub data_cache: Option<stoke_api::Bytes>,
    /// Where to log; `None` is stderr.
    pub log: Option<PathBuf>,
}

/// Runs an engine until it is told to stop; `ready` is called once it serves. The claim is held until the end.
pub fn run(
    options: EngineOptions,
    claim: Claim,
    ready: impl FnOnce(&EngineRecord),
) -> anyhow::Result<()> {
    start_log(options.log.as_deref())?;
    // Work here is short and mostly waiting; a thread per core of a large machine would only cost memory.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = runtime.block_on(serve(options, ready));
    runtime.shutdown_background();
    drop(claim);
    result
}

/// `STOKE_LOG` chooses how much, as `RUST_LOG` does elsewhere.
fn start_log(path: Option<&Path>) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("STOKE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,stoke=info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false);
    // A second subscriber is refused; then the first one has it.
    let _ = match path {
        None => log
            .with_writer(io::stderr)
            .with_ansi(crate::terminal::stderr_is_terminal())
            .try_init(),
        Some(path) => {
            let file = log::EngineLog::open(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            log.with_writer(Mutex::new(file))
                .with_ansi(false)
                .try_init()
        }
    };
    Ok(())
}

async fn serve(options: EngineOptions, ready: impl FnOnce(&EngineRecord)) -> anyhow::Result<()> {
    // Before anything is begun, so that no signal finds us halfway without a handler.
    let stop = stop_signals()?;
    let data_dir = &options.data_dir;
    let exe = std::env::current_exe().context("cannot find this program")?;
    let shutdown = CancellationToken::new();
    let mut parts = JoinSet::new();

    let listener = listen(&options.listen).await?;
    let address = listener.local_addr().context("cannot tell the address")?;
    let store = open_store(&data_dir.path().join("store.db")).await?;
    let server = ApiServer::new(
        store,
        Arc::new(logs::PodLogs::new(data_dir.path())),
        stoke_apiserver::Options {
            address: address.to_string(),
            ..stoke_apiserver::Options::default()
        },
    )
    .await
    .map_err(|status| {
        anyhow::anyhow!("{}", status.message()).context("cannot start the API server")
    })?;

    let url = open_door(data_dir, &server, listener, address, &shutdown, &mut parts)?;
    parts.spawn({
        let work = housekeeping::run(
            server.clone(),
            housekeeping::Options::default(),
            shutdown.clone(),
        );
        async {
            work.await;
            named("housekeeping", Ok(()))
        }
    });
    let node = NodeOptions {
        simulated_gpus: options.simulated_gpus,
        data_cache_max_bytes: options.data_cache.map(|size| size.0),
        ..NodeOptions::new(data_dir.path(), &exe)
    };
    let node_name = node.name.clone();
    let started = clock::now();
    let node = stoke_node::run(server.client(), node, shutdown.clone());
    parts.spawn(async { named("the node", node.await.map_err(Into::into)) });
    let ended = tokio::select! {
        ended = parts.join_next() => Some(ended),
        () = ready::node(server.client(), &node_name, started) => None,
    };
    if let Some(ended) = ended {
        return Err(early(ended));
    }
    // Only now: before, the node's capacity is what an earlier engine had.
    let control = stoke_control::run(
        server.client(),
        stoke_control::Config::machine(exe),
        shutdown.clone(),
    );
    parts.spawn(async { named("the controllers", control.await.map_err(Into::into)) });

    let record = EngineRecord {
        pid: std::process::id().cast_signed(),
        url,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: started,
    };
    data_dir.write_record(&record)?;
    tracing::info!(url = record.url, pid = record.pid, "the engine is ready");
    ready(&record);

    let result = tokio::select! {
        name = stop => {
            tracing::info!(signal = name, "stopping; jobs go on");
            Ok(())
        }
        ended = parts.join_next() => Err(early(ended)),
    };
    shutdown.cancel();
    while parts.join_next().await.is_some() {}
    result
}

type Ended = (&'static str, anyhow::Result<()>);

fn named(name: &'static str, result: anyhow::Result<()>) -> Ended {
    (name, result)
}

/// A part that ends by itself takes the engine with it: half an engine would accept jobs and never run them.
fn early(ended: Option<Result<Ended, tokio::task::JoinError>>) -> anyhow::Error {
    match ended {
        Some(Ok((name, Err(error)))) => error.context(format!("{name} stopped")),
        Some(Ok((name, Ok(())))) => anyhow::anyhow!("{name} stopped by itself"),
        Some(Err(error)) => anyhow::Error::new(error).context("a part of the engine broke"),
        None => anyhow::anyhow!("nothing runs"),
    }
}

/// Serves TLS on the listener and writes the kubeconfig that opens it.
fn open_door(
    data_dir: &DataDir,
    server: &ApiServer,
    listener: TcpListener,
    address: SocketAddr,
    shutdown: &CancellationToken,
    parts: &mut JoinSet<Ended>,
) -> anyhow::Result<String> {
    let authority =
        Authority::open(&data_dir.path().join("pki")).context("cannot open the authority")?;
    let tls = authority
        .server_config(&[address.ip()])
        .context("cannot make a certificate")?;
    let token = Token::open(&data_dir.path().join("token")).context("cannot open the token")?;
    let url = format!("https://{address}");
    let access = kubeconfig::Access {
        url: &url,
        ca_pem: authority.certificate_pem(),
        token: &token,
    };
    let path = data_dir.kubeconfig();
    kubeconfig::write(&path, &access)
        .with_context(|| format!("cannot write {}", path.display()))?;
    let serving = stoke_apiserver::serve(server.clone(), listener, tls, token, shutdown.clone());
    parts.spawn(async {
        serving.await;
        named("the API server", Ok(()))
    });
    Ok(url)
}

/// We have the claim, so whoever still holds the store or the address is an engine that was killed a moment ago and has
/// not let go of everything yet.
const PREDECESSOR: Duration = Duration::from_secs(2);
const PREDECESSOR_STEP: Duration = Duration::from_millis(10);

async fn open_store(path: &Path) -> anyhow::Result<Store> {
    let deadline = Instant::now() + PREDECESSOR;
    loop {
        match Store::open(path, &stoke_store::Options::default()) {
            Ok(store) => return Ok(store),
            Err(stoke_store::OpenError::InUse(_)) if Instant::now() < deadline => {
                tokio::time::sleep(PREDECESSOR_STEP).await;
            }
            Err(error) => return Err(anyhow::Error::new(error).context("cannot open the store")),
        }
    }
}

/// The first address that can be had.
async fn listen(wishes: &[Wish]) -> anyhow::Result<TcpListener> {
    let mut last = None;
    for Wish { address, was_ours } in wishes {
        let deadline = Instant::now() + PREDECESSOR;
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => return Ok(listener),
                Err(error)
                    if *was_ours
                        && error.kind() == io::ErrorKind::AddrInUse
                        && Instant::now() < deadline =>
                {
                    tokio::time::sleep(PREDECESSOR_STEP).await;
                }
                Err(error) => {
                    last = Some((address, error));
                    break;
                }
            }
        }
    }
    let Some((address, error)) = last else {
        anyhow::bail!("no address to listen on");
    };
    Err(
        Failure::new(Exit::Failed, format!("cannot listen on {address}"))
            .hint("leave --listen out to have a free port chosen")
            .source(error)
            .into(),
    )
}

/// Waits for a request to stop, and names it.
pub fn stop_signals() -> anyhow::Result<impl Future<Output = &'static str>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot handle signals")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hangup.recv() => "SIGHUP",
        }
    })
}
