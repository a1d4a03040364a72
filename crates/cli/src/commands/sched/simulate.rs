//! `stoke sched simulate`: what would happen if this were submitted.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use stoke_api::{Dataset, Queue, TrainJob};
use stoke_control::Supposed;

use crate::args::DataFormat;
use crate::clock;
use crate::commands::operator::label_key;
use crate::failure::{Exit, Failure};
use crate::manifest::{Document, Manifest, Source};
use crate::outlook::{self, Hidden};
use crate::render;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke sched simulate job.yaml           would it start now, and where; if not, why not and until when
  stoke sched simulate queues.yaml jobs/*.yaml
                                          with these queues in place of those of the same name
  stoke sched simulate -o json job.yaml | jq '.[].start.nodes'";

/// Tell what would happen if these jobs were submitted now; nothing is submitted
///
/// The scheduler itself is asked, with the nodes, pods, jobs and queues that are there, and decides as it would for real. What it
/// cannot know is who else submits what, and when jobs without a limit end.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files with jobs, and with the queues and datasets to be supposed; - is stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A level of the cluster's network, as the operator was told; the outermost first
    #[arg(long = "topology-label", value_name = "KEY", value_parser = label_key)]
    topology_labels: Vec<String>,
    /// Print what would happen as data
    #[arg(short, long, value_enum)]
    output: Option<DataFormat>,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let supposed = read(&args.files, &session)?;
    let client = session.client().await?;
    let outlook = match outlook::of(&client, &session, &args.topology_labels).await? {
        Ok(outlook) => outlook,
        Err(Hidden { what }) => {
            let refused = format!(
                "what the scheduler would do depends on {what} of all namespaces, and you may not list them"
            );
            return Err(Failure::new(Exit::Refused, refused)
                .hint("submit the job and see why it waits: stoke explain JOB")
                .into());
        }
    };
    if let Some(taken) = outlook.taken(&supposed) {
        let what = format!("a job {taken} is here already");
        return Err(Failure::new(Exit::Refused, what)
            .hint("give the job in the file another name")
            .into());
    }
    let verdicts = outlook.suppose(supposed);
    let text = match args.output {
        Some(DataFormat::Json) => render::object::json(&verdicts)?,
        Some(DataFormat::Yaml) => render::object::yaml(&verdicts)?,
        None => render::outlook::verdicts(&verdicts, clock::now()),
    };
    terminal::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn read(files: &[PathBuf], session: &Session) -> anyhow::Result<Supposed> {
    let mut supposed = Supposed::default();
    for file in files {
        let source = match file.to_str() {
            Some("-") => Source::Stdin,
            _ => Source::File(file.clone()),
        };
        let manifest = Manifest::read(&source)?;
        manifest.check()?;
        for document in &manifest.documents {
            suppose(&mut supposed, document, session)
                .with_context(|| format!("{}: {}", source.name(), document.title()))?;
        }
    }
    if supposed.jobs.is_empty() {
        return Err(
            Failure::new(Exit::Refused, "there is no job in what was given")
                .hint("a job is: apiVersion: stokehold.dev/v1alpha1, kind: TrainJob")
                .into(),
        );
    }
    Ok(supposed)
}

fn suppose(supposed: &mut Supposed, document: &Document, session: &Session) -> anyhow::Result<()> {
    let value: &Value = &document.value;
    match document.kind.as_str() {
        "TrainJob" => {
            let mut job: TrainJob = serde_json::from_value(value.clone())?;
            let metadata = &mut job.metadata;
            metadata
                .namespace
                .get_or_insert_with(|| session.namespace.clone());
            let order = supposed.jobs.len();
            let prefix = metadata.generate_name.take();
            metadata
                .name
                .get_or_insert_with(|| format!("{}{order}", prefix.as_deref().unwrap_or("job-")));
            metadata.uid = Some(format!("supposed-{order}"));
            metadata.creation_timestamp = Some(Time(clock::now()));
            metadata.generation = Some(1);
            job.status = None;
            supposed.jobs.push(job);
        }
        "Queue" => supposed
            .queues
            .push(serde_json::from_value::<Queue>(value.clone())?),
        "Dataset" => {
            let mut dataset: Dataset = serde_json::from_value(value.clone())?;
            let namespace = &mut dataset.metadata.namespace;
            namespace.get_or_insert_with(|| session.namespace.clone());
            supposed.datasets.push(dataset);
        }
        // A claim or a config map beside a job does not decide where it runs before it is bound.
        _ => {}
    }
    Ok(())
}
