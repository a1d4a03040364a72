//! `stoke agent`: what the chart runs on every node of a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use kube::Client;
use stoke_node::agent::{self, AgentOptions, Scope};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::args::WorldArgs;
use crate::terminal;
use crate::world;

const EXAMPLES: &str = "\
Examples:
  stoke agent --node gpu-7                         on that node, as the chart runs it
  stoke agent --node gpu-7 --all-pods --listen 127.0.0.1:8081";

/// Measure the memory of a node's containers, and keep workers from being killed at their limits
///
/// The chart runs it on every node, without root and with nothing but a read-only view of the host's cgroups. A worker that
/// is about to need more memory than it may have is given more, up to its job's memory.max and while the node has some to
/// spare; else it is asked for a checkpoint. /metrics has the figures of the containers of jobs, second by second; a digest
/// is written on a job's pod when its container ends.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The node this runs on
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node: String,
    /// Where /metrics and /healthz are served
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8081")]
    listen: SocketAddr,
    /// Where the host's cgroups are mounted
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroup_root: PathBuf,
    /// Where the kubelet keeps its pods' volumes, to read which phase and step a worker says it is in; only root can look there
    #[arg(long, value_name = "DIR")]
    pod_volumes: Option<PathBuf>,
    /// Measure every pod, not only those of jobs
    #[arg(long)]
    all_pods: bool,
}

pub fn run(args: Args, world: &WorldArgs) -> anyhow::Result<ExitCode> {
    terminal::log_service();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = runtime.block_on(serve(args, world));
    runtime.shutdown_background();
    result
}

async fn serve(args: Args, world: &WorldArgs) -> anyhow::Result<ExitCode> {
    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            shutdown.cancel();
        }
    });
    let mut config = world::service_config(world).await?;
    // Who writes and who watches waits by itself, and says why.
    config.default_retry = false;
    let client = Client::try_from(config).context("cannot set up a client")?;
    let options = AgentOptions {
        node: args.node,
        listen: args.listen,
        cgroup_root: args.cgroup_root,
        pod_volumes: args.pod_volumes,
        scope: if args.all_pods {
            Scope::AllPods
        } else {
            Scope::Jobs
        },
    };
    agent::run(client, options, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}
