//! `stoke describe`: everything about a job, or about any other object.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use kube::Client;

use crate::clock;
use crate::jobs::{self, event_time};
use crate::kinds::Target;
use crate::render;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke describe resnet50
  stoke describe pod/resnet50-1-0
  stoke describe node my-machine";

/// Show everything about a job: its shape, conditions, attempts, pods and events
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Jobs by name; others as KIND/NAME, or KIND first
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let targets = Target::parse_all(&client, &args.names).await?;
    for (index, target) in targets.iter().enumerate() {
        let text = describe(&client, &session.namespace, target).await?;
        let gap = if index == 0 { "" } else { "\n\n" };
        write!(terminal::stdout(), "{gap}{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn describe(client: &Client, namespace: &str, target: &Target) -> anyhow::Result<String> {
    let kind = target.kind(client).await?;
    if kind.resource.kind == "TrainJob" {
        let view = jobs::view(client, namespace, &target.name).await?;
        return Ok(render::describe::job(&view, clock::now()));
    }
    let object = kind
        .api(client.clone(), namespace)
        .get(&target.name)
        .await
        .with_context(|| format!("cannot get {}/{}", kind.singular(), target.name))?;
    let about = format!(
        "involvedObject.kind={},involvedObject.name={}",
        kind.resource.kind, target.name
    );
    // Events about what has no namespace are kept in one that is not always the same.
    let of = kind.is_namespaced.then_some(namespace);
    let mut events = jobs::events(client, of, &about).await?;
    events.sort_by_key(event_time);
    let value = serde_json::to_value(&object)?;
    render::describe::object(&value, &events, clock::now())
}
