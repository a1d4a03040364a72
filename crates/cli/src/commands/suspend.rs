//! `stoke suspend` and `stoke resume`: stop a job's workers and keep the job, and let it go on.

use std::process::ExitCode;

use anyhow::Context;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use stoke_api::TrainJob;

use crate::jobs;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke suspend resnet50
  stoke resume resnet50                   let it go on";

/// Stop jobs' workers and keep the jobs
///
/// A suspended job's workers are stopped with SIGTERM and its grace period; it goes on from its last checkpoint
/// in a new attempt, which counts as no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The jobs
    #[arg(required = true, value_name = "JOB")]
    names: Vec<String>,
}

pub async fn run(args: Args, session: Session, suspend: bool) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let api: Api<TrainJob> = Api::namespaced(client.clone(), &session.namespace);
    for name in &args.names {
        let job = jobs::find(&client, &session.namespace, name).await?;
        let told = match (job.is_finished(), job.spec.suspend == suspend) {
            (true, _) => "is over already",
            (false, true) if suspend => "is suspended already",
            (false, true) => "is not suspended",
            (false, false) => {
                let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
                api.patch(name, &PatchParams::default(), &patch)
                    .await
                    .with_context(|| format!("cannot change job {name:?}"))?;
                if suspend { "suspended" } else { "resumed" }
            }
        };
        terminal::talk(format_args!("{name} {told}"));
    }
    Ok(ExitCode::SUCCESS)
}
