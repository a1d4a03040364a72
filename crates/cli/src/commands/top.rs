//! `stoke top`: what is used now, against which limit; live on a terminal, a table elsewhere.

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
use crate::render::top::{self, Picture};
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke top
  stoke top --once -A";

/// Show what jobs use: memory against limits, CPU, GPUs
///
/// On a terminal it is live; q leaves. Of each job the worker nearest to its memory limit is shown.
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

/// The node measures every few seconds; looking more often shows nothing new.
const EVERY: Duration = Duration::from_secs(1);

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let namespace = (!args.all_namespaces).then(|| session.namespace.clone());
    let first = look(&client, namespace.as_deref()).await?;
    if args.once || !terminal::stdout_is_terminal() {
        write!(
            terminal::stdout(),
            "{}",
            top::plain(&first, args.all_namespaces)
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    screen::run(first, async || {
        // A new client each time it fails: the engine may have been restarted at another address.
        look(&session.client().await?, namespace.as_deref()).await
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn look(client: &Client, namespace: Option<&str>) -> anyhow::Result<Picture> {
    let (jobs, pods): (Api<TrainJob>, Api<Pod>) = match namespace {
        Some(namespace) => (
            Api::namespaced(client.clone(), namespace),
            Api::namespaced(client.clone(), namespace),
        ),
        None => (Api::all(client.clone()), Api::all(client.clone())),
    };
    let nodes: Api<Node> = Api::all(client.clone());
    let everything = ListParams::default();
    let of_jobs = ListParams::default().labels(JOB_LABEL);
    let (jobs, pods, nodes) = tokio::try_join!(
        jobs.list(&everything),
        pods.list(&of_jobs),
        nodes.list(&everything)
    )
    .context("cannot look at the engine")?;
    Ok(top::picture(
        &jobs.items,
        &pods.items,
        &nodes.items,
        clock::now(),
    ))
}
