//! `stoke down`: stop the engine, and what it runs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::clock;
use crate::data_dir::DataDir;
use crate::engine::shims;
use crate::failure::{Exit, Failure};
use crate::jobs::{self, Life};
use crate::render;
use crate::session::Session;
use crate::terminal;

const EXAMPLES: &str = "\
Examples:
  stoke down
  stoke down --keep-jobs                  only the engine; jobs' processes go on";

/// Stop the engine and the processes of its jobs
///
/// Nothing is deleted: workers get SIGTERM and time to write a checkpoint, and jobs that were not over go on from it at
/// the next stoke up, which counts as no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Leave jobs' processes running; stoke up picks them up again
    #[arg(long)]
    keep_jobs: bool,
    /// Time workers have between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "30s")]
    grace: stoke_api::Span,
}

/// An engine that was asked to end has nothing to wait for; one that has not ended by then is stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// Announcing is a courtesy; an engine that does not answer is stopped all the same.
const ANNOUNCE_WITHIN: Duration = Duration::from_secs(5);

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let data_dir = &session.data_dir;
    match data_dir.holder()? {
        Some(pid) => {
            if !args.keep_jobs {
                announce(&session).await;
            }
            stop_engine(data_dir, pid).await?;
        }
        None => terminal::talk(format_args!(
            "no engine runs on {}",
            data_dir.path().display()
        )),
    }
    let pods = shims::alive(data_dir);
    if pods.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let count = render::count(pods.len() as u32, "pod", "pods");
    if args.keep_jobs {
        terminal::talk(format_args!(
            "{count} left running; stoke up picks them up again"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    terminal::talk(format_args!(
        "stopping {count}, with up to {} to end well",
        args.grace
    ));
    let left = shims::stop(pods, args.grace).await;
    if left > 0 {
        let what = render::count(
            left as u32,
            "pod is still running",
            "pods are still running",
        );
        return Err(Failure::new(Exit::Failed, what)
            .hint("try again: stoke down --grace 0s")
            .into());
    }
    terminal::talk(format_args!(
        "jobs that were not over go on at the next stoke up"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Tells on every pod that it is stopped from outside, as a kubelet does before its machine goes down, so that no job takes
/// this for a failure of its own.
async fn announce(session: &Session) {
    let announced = async {
        let client = session.client().await?;
        announce_all(&client).await
    };
    match tokio::time::timeout(ANNOUNCE_WITHIN, announced).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => terminal::whisper(
            session.verbose,
            format_args!("pods could not be told: {error:#}"),
        ),
        Err(_) => terminal::whisper(session.verbose, format_args!("the engine does not answer")),
    }
}

async fn announce_all(client: &Client) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    let listed = pods.list(&ListParams::default()).await?;
    for pod in listed
        .items
        .iter()
        .filter(|pod| jobs::life_of(pod) == Life::Running)
    {
        let patch = json!({"status": {"conditions": [{
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "message": "the engine and its pods are being stopped (stoke down)",
            "lastTransitionTime": clock::now().to_string(),
        }]}});
        let of_namespace: Api<Pod> =
            Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
        let patched = of_namespace
            .patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await;
        if let Err(error) = patched
            && !matches!(&error, kube::Error::Api(status) if status.is_not_found())
        {
            return Err(error.into());
        }
    }
    Ok(())
}

async fn stop_engine(data_dir: &DataDir, pid: i32) -> anyhow::Result<()> {
    let process = Pid::from_raw(pid)
        .context("the engine's process cannot be seen from here (another container?)")?;
    kill_process(process, Signal::TERM)
        .with_context(|| format!("cannot stop the engine (pid {pid})"))?;
    if !ends(data_dir, pid).await? {
        terminal::talk(format_args!(
            "the engine does not stop; killing it (nothing is lost by that)"
        ));
        kill_process(process, Signal::KILL)
            .with_context(|| format!("cannot kill the engine (pid {pid})"))?;
        if !ends(data_dir, pid).await? {
            let what = format!("the engine (pid {pid}) cannot be stopped");
            return Err(Failure::new(Exit::Failed, what).into());
        }
    }
    terminal::talk(format_args!("the engine has stopped"));
    Ok(())
}

/// The kernel takes the lock away when the process is gone; there is no event for that to wait on.
async fn ends(data_dir: &DataDir, pid: i32) -> anyhow::Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while data_dir.holder()? == Some(pid) {
        if Instant::now() > deadline {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(true)
}
