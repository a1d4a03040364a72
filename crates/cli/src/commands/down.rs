//! `stoke down`: stop the engine, and what it runs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::data_dir::DataDir;
use crate::engine::shims;
use crate::failure::{Exit, Failure};
use crate::render;
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

pub async fn run(args: Args, data_dir: DataDir) -> anyhow::Result<ExitCode> {
    let data_dir = &data_dir;
    match data_dir.holder()? {
        Some(pid) => {
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
