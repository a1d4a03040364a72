//! Following submitted jobs to their end, and what that end means for the exit code.

use std::io::Write;
use std::process::ExitCode;

use futures::stream::{SelectAll, StreamExt};
use stoke_api::trainjob::Phase;
use stoke_api::{Reason, TrainJob, TrainJobStatus};
use tokio::signal::unix::{SignalKind, signal};

use super::progress::Progress;
use crate::clock;
use crate::commands::logs::print::{self, Printer};
use crate::failure::{Exit, Failure};
use crate::follow::{self, Choice, Happening};
use crate::render;
use crate::session::Session;
use crate::terminal::{self, BOLD, GREEN, paint};

/// Follows all jobs; the first that fails decides the code.
pub async fn until_over(
    session: Session,
    jobs: Vec<TrainJob>,
    with_time: bool,
) -> anyhow::Result<ExitCode> {
    let names: Vec<String> = jobs.iter().map(|job| job.name().to_owned()).collect();
    tokio::select! {
        biased;
        detached = asked_to_leave() => {
            detached?;
            leave(&names);
            Ok(Exit::Interrupted.into())
        }
        result = follow_all(session, jobs, with_time) => result,
    }
}

/// Ctrl-C, or whoever ends a process politely.
async fn asked_to_leave() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

fn leave(names: &[String]) {
    let all = names.join(" ");
    terminal::talk(format_args!(
        "\n{} {all} {}",
        paint(BOLD, "detached:"),
        if names.len() == 1 { "goes on" } else { "go on" }
    ));
    if let Some(first) = names.first() {
        terminal::talk(format_args!(
            "{}",
            terminal::hint(&format!(
                "come back: stoke logs -f {first}; stop it: stoke delete {all}"
            ))
        ));
    }
}

async fn follow_all(
    session: Session,
    jobs: Vec<TrainJob>,
    with_time: bool,
) -> anyhow::Result<ExitCode> {
    let printer = Printer {
        with_rank: jobs.iter().any(|job| job.spec.workers > 1),
        with_job: jobs.len() > 1,
        with_time,
        with_colour: terminal::stdout_has_colour(),
    };
    let mut progress: Vec<Progress> = jobs.iter().map(|_| Progress::new()).collect();
    let names: Vec<String> = jobs.iter().map(|job| job.name().to_owned()).collect();
    let mut happenings = SelectAll::new();
    for (index, job) in jobs.into_iter().enumerate() {
        let receiver = follow::start(session.clone(), job, Choice::default());
        happenings.push(
            tokio_stream::wrappers::ReceiverStream::new(receiver)
                .map(move |happening| (index, happening)),
        );
    }
    let mut failed = None;
    while let Some((index, happening)) = happenings.next().await {
        match happening {
            Happening::Line(line) => progress[index].aside(|| -> std::io::Result<()> {
                let mut out = terminal::raw_stdout();
                printer.print(&mut out, &line)?;
                out.flush()
            })?,
            Happening::Job(job) => {
                progress[index].update(&job);
                if let Some(failure) = stuck(&job) {
                    progress[index].finish();
                    return Err(failure.into());
                }
            }
            Happening::Finished(job) => {
                progress[index].finish();
                if let Err(failure) = verdict(&job)
                    && failed.is_none()
                {
                    failed = Some(failure);
                }
            }
            other => {
                progress[index].aside(|| print::interruption(&names[index], &other, &session))?;
            }
        }
    }
    match failed {
        Some(failure) => Err(failure.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// A job that waits for its author to mend it is not worth waiting for.
fn stuck(job: &TrainJob) -> Option<Failure> {
    let status = job.status.as_ref()?;
    let is_stuck =
        status.phase == Phase::Queued && status.reason == Reason::Misconfigured.to_string();
    is_stuck.then(|| {
        let name = job.name();
        Failure::new(
            Exit::Refused,
            format!("job {name:?} cannot run as it is: {}", status.message),
        )
        .hint(format!(
            "take it back, mend it and run it again: stoke delete {name}"
        ))
    })
}

fn verdict(job: &TrainJob) -> Result<(), Failure> {
    let none = TrainJobStatus::default();
    let status = job.status.as_ref().unwrap_or(&none);
    if status.phase == Phase::Complete {
        let took = status.started_at.as_ref().zip(status.finished_at.as_ref());
        let took = took.map(|(from, to)| format!(" in {}", clock::between(from.0, to.0)));
        terminal::talk(format_args!(
            "{} {}{}",
            job.name(),
            paint(GREEN, "complete"),
            took.unwrap_or_default()
        ));
        return Ok(());
    }
    Err(failure(job, status))
}

fn failure(job: &TrainJob, status: &TrainJobStatus) -> Failure {
    let end = status
        .attempts
        .last()
        .and_then(|attempt| attempt.exit.as_ref());
    let code = end
        .and_then(|end| end.exit_code)
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0);
    let exit = code.map_or(Exit::Failed, Exit::Job);
    let mut what = format!("job {:?} failed: {}", job.name(), status.reason);
    if !status.message.is_empty() {
        what = format!("{what}: {}", status.message);
    }
    // The reason often quotes the end; then once is enough.
    let evidence = end
        .map(render::ending)
        .filter(|ending| !status.message.contains(ending.as_str()))
        .map(|ending| format!("  {ending}"));
    Failure::new(exit, what)
        .body(evidence.unwrap_or_default())
        .hint(format!(
            "why, and what would help: stoke explain {}",
            job.name()
        ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixtures;
    use serde_json::json;

    #[test]
    fn a_failed_job_ends_with_its_own_code() {
        let failed = |exit: serde_json::Value| {
            let job = fixtures::job(json!({
                "phase": "Failed", "reason": "WorkerFailed", "message": "m", "attempt": 1,
                "attempts": [{"number": 1, "outcome": "Failed", "exit": exit}]
            }));
            verdict(&job).unwrap_err().exit().code()
        };
        assert_eq!(
            failed(json!({"rank": 0, "exitCode": 7, "reason": "Error"})),
            7
        );
        assert_eq!(
            failed(json!({"rank": 0, "exitCode": 137, "reason": "OOMKilled"})),
            137
        );
        assert_eq!(
            failed(json!({"rank": 0, "reason": "Evicted"})),
            1,
            "no code of its own"
        );
        assert_eq!(
            failed(json!({"rank": 0, "exitCode": 0, "reason": "Error"})),
            1,
            "a failure is never 0"
        );
        assert_eq!(
            failed(json!({"rank": 0, "exitCode": 70_000, "reason": "Error"})),
            1
        );
    }

    #[test]
    fn a_failure_tells_what_why_and_what_next() {
        let text = verdict(&fixtures::failed()).unwrap_err().shown();
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string(), @r#"
        job "resnet50" failed: RetriesExhausted: 1 attempt failed and no retry is left
          it used 8Gi of its limit 8Gi
        hint: why, and what would help: stoke explain resnet50
        "#);
    }
}
