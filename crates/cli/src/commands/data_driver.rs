//! `stoke data-driver`: what the chart runs on the nodes of a cluster that copy datasets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use kube::Client;
use stoke_api::Bytes;
use stoke_node::driver::{self, DriverOptions};
use tokio_util::sync::CancellationToken;

use crate::args::WorldArgs;
use crate::engine::stop_signals;
use crate::terminal;
use crate::world;

const EXAMPLES: &str = "\
Example:
  stoke data-driver --node gpu-7 --cache-size 500Gi      on that node, as root; the chart does this";

/// Copy datasets from object stores to a node's disk, and show them to its pods
///
/// The chart runs it on every node where data.enabled is set. It is a driver of the Container Storage Interface: the kubelet asks it
/// for the data of a pod before the pod starts, and hands it the keys. It mounts for other processes, so it is root and privileged.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The node this runs on
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: String,
    /// Where copies are kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/stokehold-data")]
    dir: PathBuf,
    /// How much all copies may take [default: all but a twentieth of the disk]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<Bytes>,
    /// Where the kubelet keeps its files
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Where /healthz is served
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8082")]
    listen: SocketAddr,
}

pub fn run(args: Args, world: &WorldArgs) -> anyhow::Result<ExitCode> {
    terminal::log_service();
    // Copying has threads of its own.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = runtime.block_on(serve(args, world));
    runtime.shutdown_background();
    result
}

async fn serve(args: Args, world: &WorldArgs) -> anyhow::Result<ExitCode> {
    let stop = stop_signals()?;
    let shutdown = CancellationToken::new();
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            let signal = stop.await;
            tracing::info!(signal, "stopping");
            shutdown.cancel();
        }
    });
    let mut config = world::service_config(world).await?;
    // A kubelet waits for what is asked, and asks again.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    config.read_timeout = Some(Duration::from_secs(30));
    config.write_timeout = Some(Duration::from_secs(30));
    let client = Client::try_from(config).context("cannot set up a client")?;
    let socket_dir = args
        .kubelet_dir
        .join("plugins")
        .join(stoke_api::names::DATA_DRIVER);
    let options = DriverOptions {
        node: args.node,
        dir: args.dir,
        bytes_max: args.cache_size.map(|size| size.0),
        socket_dir,
        registry: args.kubelet_dir.join("plugins_registry"),
        listen: args.listen,
    };
    driver::run(client, options, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}
