//! `stoke top`: what is used now, against which limit; live on a terminal, a table elsewhere.

mod metrics;
mod screen;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use stoke_api::TrainJob;
use stoke_api::names::JOB_LABEL;

use crate::clock;
use crate::failure;
use crate::render::top::{self, Picture};
use crate::session::Session;
use crate::terminal;
use crate::world::Place;

const EXAMPLES: &str = "\
Examples:
  stoke top
  stoke top --once -A";

/// Show what jobs use: memory against limits, CPU, GPUs
///
/// On a terminal it is live; q leaves. Of each job the worker nearest to its memory limit is shown. On a cluster the figures
/// are those of its metrics API.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print it once, as a table
    #[arg(long)]
    once: bool,
    /// Of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

/// The engine's node measures every few seconds; looking more often shows nothing new.
const EVERY: Duration = Duration::from_secs(1);
/// A cluster's metrics are renewed a few times a minute, and it has others to serve.
const EVERY_ON_CLUSTER: Duration = Duration::from_secs(5);

/// How often the live picture is drawn anew, and whose it is.
struct Rhythm {
    every: Duration,
    place: Place,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let namespace = (!args.all_namespaces).then(|| session.namespace.clone());
    let (first, gaps) = look(&client, &session, namespace.as_deref()).await?;
    if args.once || !terminal::stdout_is_terminal() {
        for gap in gaps {
            terminal::talk(format_args!("{gap}"));
        }
        write!(
            terminal::stdout(),
            "{}",
            top::plain(&first, args.all_namespaces)
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let rhythm = Rhythm {
        every: if session.is_cluster() {
            EVERY_ON_CLUSTER
        } else {
            EVERY
        },
        place: session.place(),
    };
    screen::run(first, rhythm, async || {
        // A new client each time it fails: the engine may have been restarted at another address.
        let client = session.client().await?;
        let (picture, _) = look(&client, &session, namespace.as_deref()).await?;
        Ok(picture)
    })
    .await?;
    for gap in gaps {
        terminal::talk(format_args!("{gap}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// What can be seen, and a sentence for each part of it that cannot.
async fn look(
    client: &Client,
    session: &Session,
    namespace: Option<&str>,
) -> anyhow::Result<(Picture, Vec<String>)> {
    let (jobs, pods): (Api<TrainJob>, Api<Pod>) = match namespace {
        Some(namespace) => (
            Api::namespaced(client.clone(), namespace),
            Api::namespaced(client.clone(), namespace),
        ),
        None => (Api::all(client.clone()), Api::all(client.clone())),
    };
    // What the server has in memory is new enough to look at, and costs it least.
    let everything = ListParams::default().match_any();
    let of_jobs = everything.clone().labels(JOB_LABEL);
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = async {
        match nodes.list(&everything).await {
            Err(error) if failure::is_forbidden(&error) => Ok(None),
            nodes => nodes.map(|nodes| Some(nodes.items)),
        }
    };
    let (jobs, pods, nodes) = tokio::try_join!(jobs.list(&everything), pods.list(&of_jobs), nodes)
        .context("cannot see what is used")?;
    let mut pods = pods.items;
    let mut gaps = Vec::new();
    let mut nodes = nodes.unwrap_or_else(|| {
        gaps.push("nodes are left out: you may not list them".to_owned());
        Vec::new()
    });
    if session.is_cluster() {
        // Of a thousand nodes those are of interest that jobs are on.
        nodes.retain(|node| pods.iter().any(|pod| top::is_on(pod, node)));
        if let Err(why) = metrics::lay_over(client, namespace, &mut pods).await {
            gaps.push(format!("use is not known, only limits: {why}"));
        }
    }
    if jobs.items.is_empty() {
        let place = namespace.map(|namespace| format!(" in namespace {namespace}"));
        gaps = vec![format!("no jobs{}", place.unwrap_or_default())];
    }
    let picture = top::picture(&jobs.items, &pods, &nodes, clock::now());
    Ok((picture, gaps))
}
