//! `stoke delete`: stop a job and forget it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use kube::api::{DeleteParams, DynamicObject, PropagationPolicy};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client};

use crate::failure::{Exit, Failure};
use crate::jobs;
use crate::kinds::Target;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke delete resnet50
  stoke delete resnet50 bert --wait
  stoke delete queue/vision";

/// Delete jobs, their pods and their logs
///
/// Running workers get SIGTERM and their grace period first. What a job keeps in its checkpoint volume goes with it, unless it says
/// checkpoint.onDelete: keep. Copy it away before, or suspend the job instead.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Jobs by name; others as KIND/NAME, or KIND first
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Return when everything is gone, not when it is asked to go
    #[arg(long)]
    wait: bool,
    /// No failure if it is not there
    #[arg(long)]
    ignore_not_found: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "5m", requires = "wait")]
    timeout: stoke_api::Span,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let targets = Target::parse_all(&client, &args.names).await?;
    let mut going = Vec::new();
    for target in &targets {
        match delete(&client, &session.namespace, target).await {
            Ok(object) => going.push(object),
            Err(error) if args.ignore_not_found && is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if args.wait {
        let limit = Duration::from_secs(args.timeout.seconds);
        for object in going {
            object.until_gone(limit).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_not_found(error: &anyhow::Error) -> bool {
    let by_api = error
        .downcast_ref::<kube::Error>()
        .is_some_and(|error| matches!(error, kube::Error::Api(status) if status.is_not_found()));
    let by_us = error
        .downcast_ref::<Failure>()
        .is_some_and(|failure| failure.exit() == Exit::NotFound);
    by_api || by_us
}

/// Something that was asked to go.
pub struct Going {
    api: Api<DynamicObject>,
    name: String,
    uid: Option<String>,
}

impl Going {
    pub async fn until_gone(&self, limit: Duration) -> anyhow::Result<()> {
        let Some(uid) = &self.uid else {
            return Ok(());
        };
        let gone = await_condition(self.api.clone(), &self.name, conditions::is_deleted(uid));
        tokio::time::timeout(limit, gone)
            .await
            .map_err(|_| {
                Failure::new(Exit::Failed, format!("{} is still there", self.name))
                    .hint(format!("what holds it: stoke describe {}", self.name))
            })?
            .with_context(|| format!("cannot watch {:?} go", self.name))?;
        Ok(())
    }
}

async fn delete(client: &Client, namespace: &str, target: &Target) -> anyhow::Result<Going> {
    let kind = target.kind(client).await?;
    let name = &target.name;
    let api = kind.api(client.clone(), namespace);
    let (uid, too) = if target.kind.is_none() {
        let job = jobs::find(client, namespace, name).await?;
        let too = match &job.spec.checkpoint {
            None => "",
            Some(checkpoint) if checkpoint.is_kept() => "; its checkpoints stay",
            Some(_) => ", with its checkpoints",
        };
        (job.metadata.uid, too)
    } else {
        let found = api.get(name).await;
        let found = found.with_context(|| format!("cannot delete {}/{name}", kind.singular()))?;
        (found.metadata.uid, "")
    };
    // In the foreground the job is there until its pods are not, so that waiting for it means waiting for them.
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    api.delete(name, &parameters)
        .await
        .with_context(|| format!("cannot delete {}/{name}", kind.singular()))?;
    terminal::talk(format_args!("{}/{name} deleted{too}", kind.singular()));
    Ok(Going {
        api,
        name: name.clone(),
        uid,
    })
}

/// Deletes a job and waits until it is gone, for a new one to take its name.
pub async fn make_way(client: &Client, namespace: &str, job: &str) -> anyhow::Result<()> {
    let target = Target {
        kind: None,
        name: job.to_owned(),
    };
    let going = delete(client, namespace, &target).await?;
    going.until_gone(Duration::from_secs(300)).await
}
