//! `stoke explain`: why a job is where it is, and what would help.

use std::io::Write;
use std::process::ExitCode;

use kube::Client;
use stoke_api::trainjob::Phase;
use stoke_sched::Wait;

use crate::clock;
use crate::jobs::{self, JobView};
use crate::outlook;
use crate::render;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke explain resnet50";

/// Tell why a job is where it is, and what would help
///
/// The fields of a job are explained by kubectl: kubectl explain trainjob.spec
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The job
    #[arg(value_name = "JOB")]
    name: String,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let view = jobs::view(&client, &session.namespace, &args.name).await?;
    let wait = wait(&client, &session, &view).await?;
    let text = render::explain::job(&view, wait.as_ref(), clock::now());
    terminal::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Why a job waits, as the scheduler finds now. None where it does not wait, and where that cannot be worked out from here: then what was
/// last written of it is all there is.
async fn wait(client: &Client, session: &Session, view: &JobView) -> anyhow::Result<Option<Wait>> {
    let phase = view
        .job
        .status
        .as_ref()
        .map_or(Phase::Queued, |status| status.phase);
    // The levels of a cluster's network are the operator's to know.
    let by_level = session.is_cluster() && view.job.spec.topology.is_some();
    if phase != Phase::Queued || by_level {
        return Ok(None);
    }
    let outlook = outlook::of(client, session, &[]).await?;
    Ok(outlook.ok().and_then(|outlook| outlook.wait(&view.job)))
}
