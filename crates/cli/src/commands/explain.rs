//! `stoke explain`: why a job is where it is, and what would help.

use std::io::Write;
use std::process::ExitCode;

use crate::clock;
use crate::jobs;
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
    let text = render::explain::job(&view, clock::now());
    terminal::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
