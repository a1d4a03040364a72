//! `stoke logs`: what a job's workers printed, merged by time, each with its rank.

mod merge;
pub mod print;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use stoke_api::{Span, TrainJob};

use crate::clock;
use crate::failure::{Exit, Failure};
use crate::follow::{self, Choice, Happening, Opening};
use crate::jobs;
use crate::session::Session;
use crate::terminal;
use print::Printer;

const EXAMPLES: &str = "\
Examples:
  stoke logs -f resnet50
  stoke logs resnet50 --rank 1 --tail 50
  stoke logs resnet50 --previous          the attempt before this one
  stoke logs pod/resnet50-1-0";

/// Show what a job's workers printed
///
/// Lines of several workers are merged by time and marked with their rank. With -f they come as they are printed,
/// over new attempts and restarts of the engine, until the job is over.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The job, or pod/NAME
    #[arg(value_name = "JOB")]
    name: String,
    /// Go on with new lines until the job is over
    #[arg(short, long)]
    follow: bool,
    /// Only this worker's lines
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Of the attempt before the current one
    #[arg(short, long, conflicts_with_all = ["follow", "attempt"])]
    previous: bool,
    /// Of this attempt
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// Only the last lines of each worker
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,
    /// Only lines of the last 90s, 15m, 2h
    #[arg(long, value_name = "TIME")]
    since: Option<Span>,
    /// With the time at which each line was printed
    #[arg(long)]
    timestamps: bool,
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let client = session.client().await?;
    let opening = Opening {
        tail: args.tail,
        since: args.since.and_then(before_now),
    };
    if let Some(pod) = args
        .name
        .strip_prefix("pod/")
        .or_else(|| args.name.strip_prefix("pods/"))
    {
        return of_pod(&client, &session, pod, &args, opening).await;
    }
    let job = jobs::find(&client, &session.namespace, &args.name).await?;
    if let Some(rank) = args.rank.filter(|rank| *rank >= job.spec.workers) {
        let what = format!("job {:?} has no rank {rank}", args.name);
        let hint = format!("its ranks are 0 to {}", job.spec.workers.saturating_sub(1));
        return Err(Failure::new(Exit::NotFound, what).hint(hint).into());
    }
    let printer = Printer {
        with_rank: job.spec.workers > 1 && args.rank.is_none(),
        with_job: false,
        with_time: args.timestamps,
        with_colour: terminal::stdout_has_colour(),
    };
    if args.follow && !job.is_finished() {
        let choice = Choice {
            rank: args.rank,
            attempt: args.attempt,
            opening,
        };
        return follow_job(session, job, choice, &printer).await;
    }
    let attempt = which_attempt(&job, &args)?;
    let mut pods = jobs::pods_of(&client, &job).await?;
    pods.retain(|pod| {
        jobs::attempt_of(pod) == Some(attempt)
            && args
                .rank
                .is_none_or(|rank| jobs::rank_of(pod) == Some(rank))
    });
    if pods.is_empty() {
        return Err(no_pods(&job, attempt).into());
    }
    merge::print(&client, &pods, &opening, &printer).await?;
    Ok(ExitCode::SUCCESS)
}

fn before_now(span: Span) -> Option<jiff::Timestamp> {
    let second = clock::now()
        .as_second()
        .checked_sub_unsigned(span.seconds)?;
    jiff::Timestamp::from_second(second).ok()
}

fn which_attempt(job: &TrainJob, args: &Args) -> anyhow::Result<u32> {
    let current = job.status.as_ref().map_or(0, |status| status.attempt);
    if args.previous {
        if current < 2 {
            let what = format!("job {:?} has no attempt before this one", job.name());
            return Err(Failure::new(Exit::NotFound, what)
                .hint(format!("stoke logs {}", job.name()))
                .into());
        }
        return Ok(current - 1);
    }
    Ok(args.attempt.unwrap_or(current))
}

fn no_pods(job: &TrainJob, attempt: u32) -> Failure {
    let name = job.name();
    let status = job.status.clone().unwrap_or_default();
    if status.attempt == 0 {
        return Failure::new(
            Exit::NotFound,
            format!(
                "job {name:?} has not started yet: {} {}",
                status.reason, status.message
            ),
        )
        .hint(format!(
            "follow it from its first line: stoke logs -f {name}"
        ));
    }
    let what = format!("no lines are kept of attempt {attempt} of job {name:?}");
    Failure::new(Exit::NotFound, what).hint(format!("how its attempts ended: stoke explain {name}"))
}

async fn of_pod(
    client: &Client,
    session: &Session,
    name: &str,
    args: &Args,
    opening: Opening,
) -> anyhow::Result<ExitCode> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &session.namespace);
    let pod = pods
        .get(name)
        .await
        .with_context(|| format!("cannot get pod {name:?}"))?;
    let printer = Printer {
        with_rank: false,
        with_job: false,
        with_time: args.timestamps,
        with_colour: terminal::stdout_has_colour(),
    };
    if !args.follow {
        merge::print(client, &[pod], &opening, &printer).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let (sender, mut receiver) = tokio::sync::mpsc::channel(64);
    tokio::spawn(follow::Lines::of(&pod, opening).follow(session.clone(), sender, Arc::default()));
    while let Some(happening) = receiver.recv().await {
        match happening {
            Happening::Line(line) => printer.print(&mut terminal::raw_stdout(), &line)?,
            other => print::interruption(name, &other, session)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn follow_job(
    session: Session,
    job: TrainJob,
    choice: Choice,
    printer: &Printer,
) -> anyhow::Result<ExitCode> {
    let name = job.name().to_owned();
    let mut attempt = job.status.as_ref().map_or(0, |status| status.attempt);
    let mut happenings = follow::start(session.clone(), job, choice);
    while let Some(happening) = happenings.recv().await {
        match happening {
            Happening::Line(line) => {
                let mut out = terminal::raw_stdout();
                printer.print(&mut out, &line)?;
                out.flush()?;
            }
            Happening::Job(job) => {
                let now = job.status.as_ref().map_or(0, |status| status.attempt);
                if now > attempt && attempt > 0 {
                    print::new_attempt(&job);
                }
                attempt = now;
            }
            Happening::Finished(_) => return Ok(ExitCode::SUCCESS),
            other => print::interruption(&name, &other, &session)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
