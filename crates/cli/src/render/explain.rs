//! `stoke explain JOB`: why a job is where it is, told as a short story, and what would help.
//!
//! Everything said here stands in the job's status, its pods or its events, or is what the scheduler says of a job that waits; this only
//! puts it into words.

use std::fmt::Write as _;

use jiff::Timestamp;
use stoke_api::condition::{self, ConditionType};
use stoke_api::trainjob::{Attempt, Exit, Finding, Outcome, Phase};
use stoke_api::{Bytes, TrainJobStatus};
use stoke_memory::Remedy;
use stoke_sched::Wait;

use super::describe::ran;
use super::outlook;
use super::{count, ending, exit, nodes, top};
use crate::clock;
use crate::jobs::{self, JobView};
use crate::terminal::{BOLD, DIM, mood, paint};

/// Memory this near to the limit is worth a word.
const NEAR_LIMIT: f64 = 0.9;

/// `wait`: why it waits, as the scheduler finds now; absent where it does not, or where nobody could be asked.
pub fn job(view: &JobView, wait: Option<&Wait>, now: Timestamp) -> String {
    let none = TrainJobStatus::default();
    let status = view.job.status.as_ref().unwrap_or(&none);
    let wait = wait.filter(|_| status.phase == Phase::Queued);
    let mut text = headline(view, status, wait, now);
    for line in wait
        .map(|wait| outlook::standing(wait, now))
        .unwrap_or_default()
    {
        let _ = writeln!(text, "{line}");
    }
    let story = story(view, status, now);
    if !story.is_empty() {
        let _ = writeln!(text, "\n{}", paint(BOLD, "What happened"));
        for (at, line) in story {
            let when = at.map_or_else(String::new, |at| format!("{} ago", clock::ago(at, now)));
            let _ = writeln!(text, "  {} {line}", paint(DIM, format!("{when:>10}")));
        }
    }
    let advice = advice(view, status, wait, now);
    if !advice.is_empty() {
        let _ = writeln!(text, "\n{}", paint(BOLD, "What would help"));
        for line in advice {
            let _ = writeln!(text, "  - {line}");
        }
    }
    text
}

fn headline(
    view: &JobView,
    status: &TrainJobStatus,
    wait: Option<&Wait>,
    now: Timestamp,
) -> String {
    let phase = format!("{:?}", status.phase);
    let since = status
        .phase_since
        .as_ref()
        .map(|time| clock::ago(time.0, now));
    let state = match status.phase {
        Phase::Queued => "waits in the queue",
        Phase::Starting => "has its place and is starting",
        Phase::Running => "runs",
        Phase::Restarting => "is being stopped before its next attempt",
        Phase::Suspended => "is suspended",
        Phase::Complete => "ended well",
        Phase::Failed => "failed",
    };
    let when = match (&since, status.phase.is_final()) {
        (Some(since), false) => format!(", for {since} now"),
        (Some(since), true) => format!(" {since} ago"),
        (None, _) => String::new(),
    };
    let mut text = format!(
        "{} {}{when}.\n",
        paint(BOLD, view.job.name()),
        paint(mood(&phase), state)
    );
    if view.job.status.is_none() {
        text.push_str(
            "Nobody has looked at it yet; that takes a second or two while the engine or the operator runs.\n",
        );
    }
    let why = match wait {
        Some(wait) => [wait.reason().to_string(), wait.constraint.to_string()],
        None => [status.reason.clone(), status.message.clone()],
    };
    let why: Vec<String> = why.into_iter().filter(|part| !part.is_empty()).collect();
    if !why.is_empty() {
        let _ = writeln!(text, "{}", why.join(": "));
    }
    text
}

/// What happened, oldest first.
fn story(
    view: &JobView,
    status: &TrainJobStatus,
    now: Timestamp,
) -> Vec<(Option<Timestamp>, String)> {
    let mut story = vec![(
        view.job
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0),
        format!("submitted: {}", super::describe::shape(&view.job)),
    )];
    for attempt in &status.attempts {
        story.extend(attempt_story(attempt, &status.message, now));
    }
    let limit = view.job.spec.spot_interruptions;
    if limit.is_some_and(|limit| status.spot_interruptions >= limit) {
        let times = super::count(status.spot_interruptions, "interruption", "interruptions");
        let told = format!(
            "after {times} on machines that can be taken away it uses others only (spotInterruptions)"
        );
        story.push((None, told));
    }
    if view.job.spec.retry_limits.is_some() && !status.failures_by_cause.is_empty() {
        let used = super::describe::retries(&view.job, status);
        story.push((None, format!("retries: {used} (retryLimits)")));
    }
    if let Some(next) = &status.next_attempt_at
        && next.0 > now
    {
        story.push((
            None,
            format!("the next attempt starts in {}", clock::between(now, next.0)),
        ));
    }
    story
}

/// `told` is the sentence that stands above already; what it says of an end is not said again.
fn attempt_story(
    attempt: &Attempt,
    told: &str,
    now: Timestamp,
) -> Vec<(Option<Timestamp>, String)> {
    let number = attempt.number;
    let at = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        time.as_ref().map(|time| time.0)
    };
    let mut placed = format!("attempt {number} placed on {}", nodes(attempt));
    if let Some(sizing) = &attempt.memory {
        let _ = write!(
            placed,
            "; each worker may use {} of memory ({})",
            sizing.limit, sizing.why
        );
    }
    if let Some(data) = &attempt.data {
        let _ = write!(placed, "; {data}");
    }
    let mut lines = vec![(at(&attempt.placed_at), placed)];
    if !attempt.changes.is_empty() {
        let changes = attempt.changes.join(", and ");
        lines.push((None, format!("attempt {number} differs: it has {changes}")));
    }
    if attempt.running_at.is_some() && attempt.outcome.is_none() {
        lines.push((
            at(&attempt.running_at),
            format!("attempt {number}: all workers run"),
        ));
    }
    if let Some(growing) = &attempt.growing {
        let told = format!(
            "attempt {number}: there was room for more workers; a checkpoint was asked for"
        );
        lines.push((at(&growing.asked_at), told));
    }
    if let Some(leaving) = &attempt.leaving {
        let stays = match leaving.until {
            Some(_) => "goes away",
            None => "may go away",
        };
        let told = format!(
            "attempt {number}: node {} {stays}, says {}: {}; a checkpoint was asked for",
            leaving.node, leaving.by, leaving.why
        );
        lines.push((at(&leaving.asked_at), told));
    }
    let Some(outcome) = attempt.outcome else {
        return lines;
    };
    let how = match outcome {
        Outcome::Succeeded => "succeeded",
        Outcome::Failed => "failed",
        Outcome::Interrupted => "was interrupted, which counts as no failure",
        Outcome::Suspended => "was suspended",
        Outcome::Preempted => "gave its room to another job, which counts as no failure,",
        Outcome::Resized => "was stopped to go on with another number of workers",
        Outcome::Restarted => "was stopped to go on from its checkpoint with its memory given back",
    };
    let mut ended = format!("attempt {number} {how} after {}", ran(attempt, now));
    if let Some(preemption) = &attempt.preemption {
        let _ = write!(ended, ": {} got it; {}", preemption.by, preemption.why);
    }
    if let Some(end) = &attempt.exit {
        let ending = if told.contains(&ending(end)) {
            exit(end)
        } else {
            ending(end)
        };
        let _ = write!(ended, ": {ending}");
    }
    lines.push((at(&attempt.finished_at), ended));
    if let Some(finding) = &attempt.diagnosis {
        lines.extend(evidence(finding).map(|line| (None, line)));
    }
    lines
}

/// What it is held to have died of, and what says so.
fn evidence(finding: &Finding) -> impl Iterator<Item = String> {
    let cause = match finding.shape.as_str() {
        "" | "Plain" => finding.cause.clone(),
        shape => format!("{} ({shape})", finding.cause),
    };
    let sure = match finding.confidence.as_str() {
        "" => String::new(),
        confidence => format!(", {}", confidence.to_lowercase()),
    };
    let held = (!finding.cause.is_empty()).then(|| format!("  held to be {cause}{sure}"));
    let quotes = finding.quotes.iter().map(|quote| {
        let quote: Vec<&str> = quote.split_whitespace().collect();
        format!("  > {}", quote.join(" "))
    });
    held.into_iter().chain(quotes)
}

fn advice(
    view: &JobView,
    status: &TrainJobStatus,
    wait: Option<&Wait>,
    now: Timestamp,
) -> Vec<String> {
    let name = view.job.name();
    let last = status.attempts.last();
    let mut advice = match status.phase {
        Phase::Complete | Phase::Running => Vec::new(),
        Phase::Suspended => vec![format!("to let it go on: stoke resume {name}")],
        Phase::Failed => after_failure(name, status, last),
        Phase::Queued | Phase::Restarting | Phase::Starting => {
            let reason = wait.map(|wait| wait.reason().to_string());
            let remedies = wait.map(outlook::remedies).unwrap_or_default();
            let general = waiting(
                name,
                status,
                reason.as_deref().unwrap_or(&status.reason),
                now,
            );
            remedies.into_iter().chain(general).collect()
        }
    };
    if !status.phase.is_final() {
        advice.extend(memory_at_risk(view, status));
    }
    advice
}

fn waiting(name: &str, status: &TrainJobStatus, reason: &str, now: Timestamp) -> Vec<String> {
    let text = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    match reason {
        "InsufficientCapacity" => text(&[
            "it starts by itself when there is room; who has it now: stoke top",
            "make room: stoke suspend OTHER, or stoke delete OTHER",
            "or ask for less: fewer workers, gpus, cpus or memory",
        ]),
        "WaitingForQuota" => text(&[
            "it starts by itself when its queue has GPUs to spare; what each queue uses: stoke queue",
            "or ask for fewer GPUs, or for another queue",
        ]),
        "WaitingForTurn" => text(&[
            "it starts by itself when its turn has come; who is before it: stoke queue, stoke get",
            "a job that is known to end in time may go before: set maxDuration",
        ]),
        "WaitingForPreemption" => {
            text(&["others write a checkpoint and make room; it starts by itself"])
        }
        "WaitingForNodes" => text(&[
            "it starts by itself when the autoscaler has added nodes; its pods tell what it says: stoke describe JOB",
        ]),
        "QueueNotFound" | "QueueUnusable" => {
            text(&["what queues there are, and what is wrong with them: stoke queue"])
        }
        "NoMatchingNodes" => text(&[
            "no node is large enough or has such GPUs, so waiting will not help; what there is: stoke get nodes -o wide",
            "ask for less, or for other gpuTypes",
            "to try a job's shape without GPUs: stoke up --gpus N gives simulated ones",
        ]),
        "WaitingForDataset" => text(&["see whether the dataset is there: stoke get datasets"]),
        "BackingOff" => {
            let next = status.next_attempt_at.as_ref().filter(|next| next.0 > now);
            let mut lines = vec![match next {
                Some(next) => format!(
                    "it tries again by itself in {}",
                    clock::between(now, next.0)
                ),
                None => "it tries again by itself".to_owned(),
            }];
            lines.push(format!(
                "what the last attempt printed: stoke logs {name} --previous --tail 50"
            ));
            lines
        }
        "Misconfigured" | "ApplyFailed" => vec![format!(
            "change what the message names and run it again: stoke run --replace FILE (the job as it is: stoke get job {name} -o yaml)"
        )],
        _ if status.phase == Phase::Starting => {
            vec![format!("what its pods wait for: stoke describe {name}")]
        }
        _ => Vec::new(),
    }
}

fn after_failure(name: &str, status: &TrainJobStatus, last: Option<&Attempt>) -> Vec<String> {
    let finding = last.and_then(|attempt| attempt.diagnosis.as_ref());
    let mut lines = finding.map_or_else(Vec::new, |finding| finding.remedies.clone());
    // It has had its attempts.
    lines.retain(|remedy| *remedy != Remedy::TryAgain.to_string());
    let is_known = !lines.is_empty();
    let end = last.and_then(|attempt| attempt.exit.as_ref());
    if status.reason == "DeadlineExceeded" {
        lines.push(
            "it ran into its maxDuration: raise it, or write checkpoints and run it again"
                .to_owned(),
        );
    } else if is_known {
        // What is said in general does not fit every cause.
    } else if end.is_some_and(|end| end.reason == "OOMKilled") || status.reason == "OutOfMemory" {
        lines.extend(more_memory(last));
    } else if end.is_some_and(|end| end.reason == "Evicted") || status.reason == "Evicted" {
        lines.push("it filled the disk: write less beside its checkpoints, or free space in the data directory (stoke doctor)".to_owned());
    } else if let Some(Exit {
        exit_code: Some(code),
        ..
    }) = end
    {
        lines.extend(about_code(*code));
    }
    if let Some(end) = end {
        let attempt = last.map_or(1, |attempt| attempt.number);
        lines.push(format!(
            "what it printed last: stoke logs {name} --attempt {attempt} --rank {} --tail 50",
            end.rank
        ));
    }
    lines
}

fn more_memory(last: Option<&Attempt>) -> Vec<String> {
    let limit = last
        .and_then(|attempt| attempt.memory.as_ref())
        .map(|sizing| sizing.limit);
    let more = match limit {
        Some(limit) => format!(
            "give it more memory: {} was not enough, so try memory: {{limit: {}}}",
            limit,
            Bytes(limit.0.saturating_mul(2))
        ),
        None => "give it more memory: memory: {limit: ...}".to_owned(),
    };
    vec![
        more,
        "or use less: a smaller batch, fewer data-loading workers".to_owned(),
    ]
}

/// Exit codes that mean the same everywhere.
fn about_code(code: i32) -> Option<String> {
    let text = match code {
        126 => "126 means the command was found but may not be executed: check its permissions",
        127 => {
            "127 means the command was not found: check command and the PATH of the job (stoke run passes yours)"
        }
        134 => "134 means it aborted itself, often on a failed assertion in native code",
        135 => {
            "135 is a bus error: often /dev/shm is full; fewer data-loading workers need less of it"
        }
        137 => {
            "137 means it was killed, but not for its own memory limit: look at the machine's own log (dmesg)"
        }
        139 => "139 is a segmentation fault in native code",
        143 => "143 means it was asked to stop from outside",
        _ => return None,
    };
    Some(text.to_owned())
}

fn memory_at_risk(view: &JobView, status: &TrainJobStatus) -> Vec<String> {
    let mut lines: Vec<String> = condition::get(&status.conditions, ConditionType::MemoryAtRisk)
        .filter(|risk| risk.status == "True")
        .map(|risk| risk.message.clone())
        .into_iter()
        .collect();
    let near: Vec<u32> = view
        .pods
        .iter()
        .filter(|pod| {
            let usage = top::usage(pod);
            let fullness = usage.memory.zip(usage.limit.filter(|limit| *limit > 0));
            fullness.is_some_and(|(used, limit)| used as f64 / limit as f64 >= NEAR_LIMIT)
        })
        .filter_map(jobs::rank_of)
        .collect();
    if let [first, rest @ ..] = near.as_slice() {
        let who = match rest.len() {
            0 => format!("rank {first} is"),
            more => format!("{} are", count(more as u32 + 1, "worker", "workers")),
        };
        lines.push(format!(
            "{who} above {} of the memory limit and may be killed: watch it with stoke top",
            top::percent(NEAR_LIMIT)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use crate::render::fixtures;
    use serde_json::json;
    use stoke_sched::Wait;

    fn told(job: stoke_api::TrainJob) -> String {
        let text = super::job(&fixtures::view(job), None, fixtures::now());
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_job_that_waits() {
        insta::assert_snapshot!(told(fixtures::queued()), @"
        resnet50 waits in the queue, for 9m59s now.
        InsufficientCapacity: needs 8 GPUs; node-a has 2 of 8 free

        What happened
             10m ago submitted: torch, 2 workers with 4 GPUs each, 8 processes in all

        What would help
          - it starts by itself when there is room; who has it now: stoke top
          - make room: stoke suspend OTHER, or stoke delete OTHER
          - or ask for less: fewer workers, gpus, cpus or memory
        ");
    }

    #[test]
    fn a_job_that_runs_again_near_its_limit() {
        insta::assert_snapshot!(told(fixtures::running()), @"
        resnet50 runs, for 3m now.
        WorkersRunning: 2 of 2 workers run

        What happened
             10m ago submitted: torch, 2 workers with 4 GPUs each, 8 processes in all
           9m59s ago attempt 1 placed on node-a; each worker may use 8Gi of memory (a quarter of the node's memory)
           4m55s ago attempt 1 failed after 5m: it used 8Gi of its limit 8Gi
            3m2s ago attempt 2 placed on node-a; each worker may use 8Gi of memory (a quarter of the node's memory)
              3m ago attempt 2: all workers run

        What would help
          - rank 1 is above 90% of the memory limit and may be killed: watch it with stoke top
        ");
    }

    #[test]
    fn a_job_that_went_to_its_data() {
        let mut job = fixtures::running();
        let status = job.status.as_mut().expect("a status");
        status.attempts[0].data = Some("imagenet (150 GiB) is copied to node-a".to_owned());
        status.attempts[1].data = Some("imagenet (150 GiB) is on node-a already".to_owned());
        let told = told(job);
        let first = "attempt 1 placed on node-a; each worker may use 8Gi of memory (a quarter of the node's memory); imagenet (150 GiB) is copied to node-a";
        assert!(told.contains(first), "{told}");
        assert!(
            told.contains("; imagenet (150 GiB) is on node-a already\n"),
            "{told}"
        );
    }

    #[test]
    fn a_job_that_ran_out_of_memory() {
        insta::assert_snapshot!(told(fixtures::failed()), @"
        resnet50 failed 4m54s ago.
        RetriesExhausted: 1 attempt failed and no retry is left

        What happened
             10m ago submitted: torch, 2 workers with 4 GPUs each, 8 processes in all
           9m59s ago attempt 1 placed on node-a; each worker may use 8Gi of memory (as the job says)
           4m55s ago attempt 1 failed after 5m: it used 8Gi of its limit 8Gi

        What would help
          - give it more memory: 8Gi was not enough, so try memory: {limit: 16Gi}
          - or use less: a smaller batch, fewer data-loading workers
          - what it printed last: stoke logs resnet50 --attempt 1 --rank 1 --tail 50
        ");
    }

    #[test]
    fn a_job_that_nobody_has_looked_at() {
        let mut fresh = fixtures::queued();
        fresh.status = None;
        insta::assert_snapshot!(told(fresh), @"
        resnet50 waits in the queue.
        Nobody has looked at it yet; that takes a second or two while the engine or the operator runs.

        What happened
             10m ago submitted: torch, 2 workers with 4 GPUs each, 8 processes in all
        ");
    }

    #[test]
    fn a_job_that_made_room_for_another() {
        let job = fixtures::job(json!({
            "phase": "Queued", "phaseSince": "2026-11-15T11:58:00Z", "reason": "InsufficientCapacity", "message": "no room", "attempt": 1,
            "attempts": [{"number": 1, "placedAt": "2026-11-15T11:50:01Z", "runningAt": "2026-11-15T11:50:05Z", "finishedAt": "2026-11-15T11:57:05Z",
                "nodes": ["node-a", "node-a"], "outcome": "Preempted",
                "preemption": {"by": "prod/release", "why": "it is more important"}}],
        }));
        let wait = Wait {
            job: stoke_sched::JobId::new("default/resnet50"),
            queue: Some("vision".to_owned()),
            ahead: 1,
            constraint: stoke_sched::Constraint::RoomKept {
                for_job: stoke_sched::JobId::new("default/big"),
            },
            helps: vec![stoke_sched::Remedy::FewerWorkers { workers: 1 }],
            start: None,
        };
        let text = super::job(&fixtures::view(job), Some(&wait), fixtures::now());
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @"
        resnet50 waits in the queue, for 2m now.
        WaitingForTurn: there is room, but it is kept for default/big, which goes first
        1 job is before it in queue vision

        What happened
             10m ago submitted: torch, 2 workers with 4 GPUs each, 8 processes in all
           9m59s ago attempt 1 placed on node-a
           2m55s ago attempt 1 gave its room to another job, which counts as no failure, after 7m: prod/release got it; it is more important

        What would help
          - it would start now with 1 worker
          - it starts by itself when its turn has come; who is before it: stoke queue, stoke get
          - a job that is known to end in time may go before: set maxDuration
        ");
    }

    #[test]
    fn a_job_whose_machine_is_taken_away() {
        let mut job = fixtures::running();
        job.spec.spot_interruptions = Some(1);
        let status = job.status.as_mut().expect("a status");
        status.spot_interruptions = 1;
        let attempt = status.attempts.last_mut().expect("an attempt");
        attempt.leaving = Some(Box::new(stoke_api::trainjob::Leaving {
            node: "node-a".to_owned(),
            by: "AWS".to_owned(),
            why: "its spot machine is reclaimed (aws-node-termination-handler/spot-itn)".to_owned(),
            asked_at: attempt.running_at.clone(),
            until: attempt.running_at.clone(),
        }));
        let told = told(job);
        assert!(
            told.contains("node node-a goes away, says AWS: its spot machine is reclaimed"),
            "{told}"
        );
        assert!(
            told.contains("it uses others only (spotInterruptions)"),
            "{told}"
        );
    }

    #[test]
    fn a_job_that_limits_its_retries_by_cause() {
        let mut job = fixtures::running();
        job.spec.retry_limits = Some(stoke_api::trainjob::ByCause {
            memory: Some(2),
            program: Some(0),
            ..Default::default()
        });
        assert!(!told(job.clone()).contains("retryLimits"), "nothing failed");
        let status = job.status.as_mut().expect("a status");
        (status.failures_by_cause).count(stoke_api::trainjob::FailureCause::Memory);
        let told = told(job);
        let expected = "retries: 1 of 3 used; memory 1 of 2; program 0 of 0 (retryLimits)";
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn every_waiting_reason_has_advice() {
        for reason in [
            "InsufficientCapacity",
            "NoMatchingNodes",
            "WaitingForQuota",
            "WaitingForTurn",
            "WaitingForPreemption",
            "WaitingForNodes",
            "QueueNotFound",
            "QueueUnusable",
            "WaitingForDataset",
            "BackingOff",
            "Misconfigured",
            "ApplyFailed",
        ] {
            let text = told(fixtures::job(
                json!({"phase": "Queued", "reason": reason, "message": "m"}),
            ));
            assert!(text.contains("What would help"), "{reason}: {text}");
        }
    }
}
