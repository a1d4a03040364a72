//! `stoke operator`: the controllers in a cluster, of which several may be started and one works.

mod endpoints;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::Client;
use stoke_control::{Config, LeaseOptions, Vitals};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::WorldArgs;
use crate::engine::stop_signals;
use crate::failure::{Exit, Failure};
use crate::terminal;
use crate::world;

const EXAMPLES: &str = "\
Examples:
  stoke operator                          in a pod, as its service account; the chart does this
  stoke operator --kubeconfig admin.conf --listen 127.0.0.1:8080
                                          from a machine of one's own, against a cluster
  kubectl get lease stokehold-operator -n stokehold-system
                                          who leads

It serves /healthz (alive), /readyz (leads or stands by, or why not) and /metrics (for Prometheus).
SIGTERM ends it: what is under way is finished and the lease is given back, so that another takes
over at once.";

/// Run the controllers of a cluster: place jobs, make their pods, follow them to their end
///
/// Several may run at once. They share a Lease: one leads and works, the others stand by and take over when it gives the
/// lease back, or has not renewed it for as long as it lasts. Who has lost it writes nothing more.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where health and metrics are served
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Jobs worked on at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Requests to the API server under way at once; fewer while it says that it has too much to do
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    requests: u32,
    /// Image that holds this program, for workers that need it (MPI)
    #[arg(long, value_name = "IMAGE", env = "STOKE_IMAGE", hide_env = true)]
    image: Option<String>,
    /// Give every job with several workers a NetworkPolicy of its own
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    network_policy: bool,
    /// The nodes run `stoke data-driver`, so jobs may name datasets in object stores
    #[arg(long)]
    data_driver: bool,
    /// How long a gang may take to start before it is placed anew, elsewhere where it can
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = time)]
    start_deadline: Duration,
    /// How long a gang whose node goes away may take to write a checkpoint, at most; less where the node has less time
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = time)]
    notice_wait: Duration,
    /// How long a gang that gives way to another job may take to write one
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    save_wait: Duration,
    /// A level of the network, as the key of a node label; say it once for each level, the outermost first. One node is the innermost
    #[arg(long = "topology-label", value_name = "KEY", value_parser = label_key)]
    topology_labels: Vec<String>,
    /// Make pods for gangs that no node has room for, so that Karpenter or Cluster Autoscaler brings nodes for them
    #[arg(long)]
    autoscaling: bool,
    /// How long such a gang waits for its nodes, until its pods are removed and it is tried again later
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = time, requires = "autoscaling")]
    autoscaling_deadline: Duration,
    /// Namespace of the Lease [default: the operator's own, outside a pod stokehold-system]
    #[arg(
        long,
        value_name = "NAME",
        env = "POD_NAMESPACE",
        hide_env = true,
        help_heading = "Leading"
    )]
    lease_namespace: Option<String>,
    /// Name of the Lease
    #[arg(
        long,
        value_name = "NAME",
        default_value = "stokehold-operator",
        help_heading = "Leading"
    )]
    lease_name: String,
    /// How long others wait for a leader that gives no sign of life, in whole seconds
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = time, help_heading = "Leading")]
    lease_duration: Duration,
    /// When a leader that cannot renew its lease stops
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time, help_heading = "Leading")]
    renew_deadline: Duration,
    /// How often it is renewed, and looked at
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time, help_heading = "Leading")]
    retry_period: Duration,
    /// What we are known by
    #[arg(long, env = "POD_NAME", hide = true)]
    pod_name: Option<String>,
}

/// A gang that waits holds its GPUs, and a machine that goes does not wait.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// `15s`, `2m`, `300ms`.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u32 = number
        .parse()
        .map_err(|_| "a number and a unit, as in 15s".to_owned())?;
    let number = u64::from(number);
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        _ => Err("a unit is missing or unknown: ms, s or m, as in 15s".to_owned()),
    }
}

/// The key of a label: `example.com/rack`.
pub fn label_key(text: &str) -> Result<String, String> {
    if stoke_api::rules::is_label_key(text) {
        Ok(text.to_owned())
    } else {
        Err("the key of a node label, such as topology.kubernetes.io/zone".to_owned())
    }
}

pub fn run(args: Args, world: &WorldArgs) -> anyhow::Result<ExitCode> {
    start_log();
    // Work here is short and mostly waiting; a thread per core of a large machine would only cost memory.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = runtime.block_on(operate(args, world));
    // Its socket and its timers go with the process.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// kube tells of every failed request by itself, each time; what matters of them is told once, by us.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("STOKE_LOG").unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new("warn,stoke=info,kube_client=off,kube_runtime=off")
    });
    // A second subscriber is refused; then the first one has it.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_writer(std::io::stderr)
        .with_ansi(terminal::stderr_is_terminal())
        .try_init();
}

async fn operate(args: Args, world: &WorldArgs) -> anyhow::Result<()> {
    // Before anything is begun, so that no signal finds us halfway without a handler.
    let stop = stop_signals()?;
    let mut config = world::service_config(world).await?;
    set_patience(&mut config);
    let own_namespace = world::serves_from_within(world).then(|| config.default_namespace.clone());
    let lease = lease(&args, own_namespace)?;
    name_ourselves(&mut config, &lease.identity);
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).context("cannot set up a client for the cluster")?;
    let listener = TcpListener::bind(args.listen).await.map_err(|source| {
        Failure::new(Exit::Failed, format!("cannot serve on {}", args.listen))
            .hint("choose another with --listen ADDRESS:PORT")
            .source(source)
    })?;
    // The port that was had, where any would do.
    let listen = listener.local_addr().unwrap_or(args.listen);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %server, %listen, "operator");

    let vitals = Arc::<Vitals>::default();
    let shutdown = CancellationToken::new();
    // Twice what a step of whoever looks after the lease may take at most.
    let still_max = lease.lease_duration * 2;
    let served = tokio::spawn(endpoints::serve(listener, vitals.clone(), still_max));
    let signalled = tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            let signal = stop.await;
            tracing::info!(signal, "stopping");
            shutdown.cancel();
        }
    });
    let control = Config {
        concurrency: usize::from(args.concurrency),
        requests: args.requests,
        image: args.image,
        network_policies: args.network_policy,
        data_driver: args.data_driver,
        start_deadline: args.start_deadline,
        notice_wait_max: args.notice_wait.min(WAIT_MAX),
        save_wait: args.save_wait.min(WAIT_MAX),
        topology: args.topology_labels,
        autoscaling: args.autoscaling.then_some(args.autoscaling_deadline),
        ..Config::cluster()
    };
    let led = stoke_control::lead(client, lease, control, vitals, shutdown).await;
    served.abort();
    signalled.abort();
    led.context("the controllers stopped")
}

/// How long a connection may be silent.
fn set_patience(config: &mut kube::Config) {
    config.connect_timeout = Some(Duration::from_secs(10));
    config.write_timeout = Some(Duration::from_secs(30));
    // Watches share this: the API server sends each a bookmark a minute, so one that hears nothing for longer is dead, whatever its
    // socket says. Answers have shorter limits of their own.
    config.read_timeout = Some(Duration::from_secs(100));
    config.reset_reader_on_write = true;
    // The controllers wait by themselves when they are told to, and must not be held up where they would not know of it.
    config.default_retry = false;
}

/// So that the API server's audit log says which of several it was.
fn name_ourselves(config: &mut kube::Config, identity: &str) {
    let name = format!("stoke-operator/{} ({identity})", env!("CARGO_PKG_VERSION"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        config.headers.push((USER_AGENT, name));
    }
}

/// Where the chart's operators have their lease. One that is started by hand must contend for the same, and the namespace of a
/// person's context has nothing to do with it.
const USUAL_NAMESPACE: &str = "stokehold-system";

fn lease(args: &Args, own_namespace: Option<String>) -> anyhow::Result<LeaseOptions> {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let pod = args.pod_name.clone().unwrap_or(host);
    let namespace = args.lease_namespace.clone().or(own_namespace);
    let lease = LeaseOptions {
        namespace: namespace.unwrap_or_else(|| USUAL_NAMESPACE.to_owned()),
        name: args.lease_name.clone(),
        identity: LeaseOptions::identity(&pod),
        lease_duration: args.lease_duration,
        renew_deadline: args.renew_deadline,
        retry_period: args.retry_period,
    };
    lease.check().map_err(|error| {
        Failure::new(Exit::Usage, error.to_string())
            .hint("as in: --lease-duration 15s --renew-deadline 10s --retry-period 2s")
    })?;
    Ok(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn all_operators_of_a_cluster_contend_for_one_lease() {
        let table = [
            (None, Some("ours"), "ours"),
            (None, None, "stokehold-system"),
            (Some("said"), Some("ours"), "said"),
            (Some("said"), None, "said"),
        ];
        for (said, own, expected) in table {
            let mut line = <Line as clap::Parser>::parse_from(["operator"]);
            line.args.lease_namespace = said.map(str::to_owned);
            let lease = lease(&line.args, own.map(str::to_owned)).expect("good times");
            assert_eq!(lease.namespace, expected, "{said:?} {own:?}");
        }
    }

    #[test]
    fn times_have_units() {
        let table = [
            ("15s", Ok(15_000)),
            ("300ms", Ok(300)),
            ("2m", Ok(120_000)),
            ("15", Err(())),
            ("", Err(())),
            ("s", Err(())),
            ("-1s", Err(())),
            ("99999999999s", Err(())),
            ("1h", Err(())),
        ];
        for (text, expected) in table {
            let read = time(text).map(|time| time.as_millis()).map_err(drop);
            assert_eq!(read, expected, "{text}");
        }
    }
}
