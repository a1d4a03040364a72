//! `stoke memory JOB`: a picture of what a job used, and what the next run gets.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use kube::Api;
use stoke_api::{JobProfile, TrainJob};
use stoke_control::Fingerprint;

use crate::clock;
use crate::failure::{self, Exit, Failure};
use crate::jobs;
use crate::outlook;
use crate::render;
use crate::session::Session;
use crate::terminal;

#[derive(Debug, clap::Args)]
#[group(id = "shown")]
pub struct Args {
    /// The job
    #[arg(value_name = "JOB")]
    name: String,
    /// Which attempt; absent: the latest
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let view = jobs::view(&client, &session.namespace, &args.name).await?;
    if let Some(number) = args.attempt {
        known(&view.job, number)?;
    }
    let profiles: Api<JobProfile> = Api::namespaced(client.clone(), view.job.namespace());
    let profile = profile(&profiles, &view.job).await?;
    let next = outlook::next_run(&client, &session, &view.job, profile.as_ref()).await?;
    let text = render::memory::job(&view, profile.as_ref(), &next, args.attempt, clock::now());
    terminal::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Is that attempt still on record?
fn known(job: &TrainJob, number: u32) -> Result<(), Failure> {
    let attempts = job.status.iter().flat_map(|status| &status.attempts);
    let kept: Vec<String> = attempts.map(|it| it.number.to_string()).collect();
    if kept.contains(&number.to_string()) {
        return Ok(());
    }
    let name = job.name();
    let what = match kept.as_slice() {
        [] => format!("job {name:?} has not run yet"),
        kept => format!(
            "job {name:?} has no attempt {number} on record; there is {}",
            kept.join(", ")
        ),
    };
    Err(Failure::new(Exit::NotFound, what).hint(format!("stoke memory {name}")))
}

/// What runs like it used. Who may not see that is told so, and sees the rest.
async fn profile(api: &Api<JobProfile>, job: &TrainJob) -> anyhow::Result<Option<JobProfile>> {
    match api.get_opt(&Fingerprint::of(job).name).await {
        Err(error) if failure::is_forbidden(&error) => {
            terminal::talk(format_args!(
                "earlier runs are left out: you may not see their profile"
            ));
            Ok(None)
        }
        found => found.context("cannot read the profile of runs like it"),
    }
}
