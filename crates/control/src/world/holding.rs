//! What pods and attempts hold, as the ledger and the scheduler are told of it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use stoke_api::names::GPU_MILLI_RESOURCE;
use stoke_api::trainjob::{Attempt, Outcome, Phase};
use stoke_api::{Span, TrainJob};
use stoke_sched::{Change, Gang, Job, Plan, Running};

use super::ledger::{Promise, Share};
use super::rooms::id_of;
use crate::mirror::Key;
use crate::seen;
use crate::trainjob::pod;
use crate::trainjob::rendezvous::port_count;

/// What a pod has of its node.
pub fn holds(pod: &seen::Pod) -> Option<Share> {
    let node = pod.node().filter(|_| !pod.is_finished())?;
    Some(Share {
        node: node.to_owned(),
        amount: pod.spec.requests.clone(),
        devices: pod.metadata.devices.clone(),
    })
}

/// The attempt that is on record and not over.
pub fn live_attempt(job: &TrainJob) -> Option<&Attempt> {
    let attempt = job.status.as_ref()?.current_attempt()?;
    attempt.outcome.is_none().then_some(attempt)
}

/// What a job was given whose pods may not be there yet. Until all of a gang run, the room of one that has ended is kept too, for should
/// its pod vanish it is created again.
pub fn promise_of(job: &TrainJob) -> Option<Promise> {
    // One that is being deleted makes no more pods.
    let stays = job.metadata.deletion_timestamp.is_none();
    let attempt = live_attempt(job).filter(|attempt| attempt.running_at.is_none() && stays)?;
    let devices = attempt.devices.iter();
    Some(Promise {
        attempt: attempt.number,
        nodes: attempt.nodes.clone(),
        each: pod::promised(job, attempt),
        devices: devices.map(|text| indices(text)).collect(),
    })
}

/// Kept until the job's next attempt or its end: what stops may still hold it.
pub fn lease_of(job: &TrainJob) -> Option<RangeInclusive<u16>> {
    let status = job
        .status
        .as_ref()
        .filter(|status| !status.phase.is_final())?;
    let attempt = status.current_attempt()?;
    Some(lease(job, attempt.port?, attempt.nodes.len()))
}

/// The ports of so many workers, from the first.
pub fn lease(job: &TrainJob, first: u16, workers: usize) -> RangeInclusive<u16> {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    let count = port_count(job.spec.framework, workers).max(1);
    first..=first.saturating_add(count - 1)
}

/// A job as the scheduler knows it. Its place in line is its age: whoever is begun anew, for whatever reason, has it still.
pub fn scheduled(key: &Key, job: &TrainJob, gang: Arc<Gang>) -> Job {
    let created = job.metadata.creation_timestamp.as_ref();
    let ran = job.status.as_ref().map_or(0, |status| status.ran_seconds);
    let limit = job.spec.max_duration.map(|max| Span {
        seconds: max.seconds.saturating_sub(ran),
    });
    let submitted_at = created.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Job {
        id: id_of(key),
        gang,
        queue: job.queue().map(str::to_owned),
        priority: job.spec.priority,
        submitted_at,
        waits_since: waits_since(job).map_or(submitted_at, |since| since.max(submitted_at)),
        limit,
        datasets: job
            .spec
            .datasets
            .iter()
            .map(|mount| Key::new(&key.namespace, &mount.name).to_string())
            .collect(),
    }
}

/// Since when it has waited without a break, where that is not since it was made.
fn waits_since(job: &TrainJob) -> Option<Timestamp> {
    let status = job.status.as_ref()?;
    let ended = status
        .attempts
        .last()
        .and_then(|it| it.finished_at.as_ref());
    let waiting = status.phase_since.as_ref();
    let waiting = waiting.filter(|_| matches!(status.phase, Phase::Queued | Phase::Suspended));
    waiting.or(ended).map(|time| time.0)
}

/// Does it stop workers, so that what it has is what they have? Of one that has an attempt, those of the attempt before.
pub fn is_leaving(job: &TrainJob) -> bool {
    live_attempt(job).is_none() || before(job).is_some_and(is_resized)
}

fn is_resized(attempt: &Attempt) -> bool {
    attempt.outcome == Some(Outcome::Resized)
}

/// The attempt before the current one.
fn before(job: &TrainJob) -> Option<&Attempt> {
    job.status.as_ref()?.attempts.iter().rev().nth(1)
}

/// The attempt whose room a job has, and what it is about to do with it. One that is over has its room until its workers have stopped.
/// `is_alive`: has this attempt any that have not?
pub fn held(job: &TrainJob, is_alive: impl Fn(u32) -> bool) -> Option<(&Attempt, Change)> {
    let current = job.status.as_ref()?.current_attempt()?;
    let shrinking = before(job).filter(|before| {
        is_resized(before) && before.nodes.len() > current.nodes.len() && is_alive(before.number)
    });
    match (current.outcome, shrinking) {
        (None, Some(before)) => {
            let to = u32::try_from(current.nodes.len()).unwrap_or(u32::MAX);
            Some((before, Change::Shrinks { to }))
        }
        (None, None) => Some((current, Change::None)),
        (Some(_), _) if is_alive(current.number) => Some((current, Change::Yields)),
        _ => None,
    }
}

/// What the scheduler is told of a job that has the room of this attempt.
pub fn running(
    key: &Key,
    job: &TrainJob,
    attempt: &Attempt,
    gang: Arc<Gang>,
    saved_at: Option<Timestamp>,
    change: Change,
) -> Running {
    let scheduled = scheduled(key, job, gang);
    let placed = attempt.placed_at.as_ref();
    let since = attempt.running_at.as_ref().or(placed);
    let since = since.map_or(scheduled.submitted_at, |time| time.0);
    let last = job.status.as_ref().and_then(|s| s.last_checkpoint.as_ref());
    // One from before this attempt is where it began.
    let saved_at = saved_at.max(last.map(|time| time.0));
    Running {
        ends_by: scheduled.limit.and_then(|limit| after(since, limit)),
        plan: plan_of(attempt),
        since,
        saved_at: saved_at.filter(|saved| *saved >= since),
        change,
        job: scheduled,
    }
}

/// The gang of an attempt. Without checkpoints a gang would begin from nothing with every worker that it gets, so it gets none.
pub fn settled(gang: Arc<Gang>, job: &TrainJob, attempt: &Attempt) -> Arc<Gang> {
    let workers = u32::try_from(attempt.nodes.len()).unwrap_or(u32::MAX);
    if job.spec.checkpoint.is_some() || gang.workers == workers {
        return gang;
    }
    Arc::new(Gang {
        workers,
        ..gang.as_ref().clone()
    })
}

fn after(time: Timestamp, span: Span) -> Option<Timestamp> {
    let seconds = i64::try_from(span.seconds).ok()?;
    time.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// The plan that an attempt was made from.
pub fn plan_of(attempt: &Attempt) -> Plan {
    let mut devices: Vec<Vec<u32>> = attempt
        .devices
        .iter()
        .map(|text| indices(text).into_vec())
        .collect();
    devices.resize(attempt.nodes.len(), Vec::new());
    let resource = attempt.gpu_resource.as_ref();
    // A part of a device that we chose ourselves is told by the device.
    let resource = resource.filter(|resource| resource.name != GPU_MILLI_RESOURCE);
    Plan {
        nodes: attempt.nodes.clone(),
        devices,
        resource: resource.map(|resource| (resource.name.clone(), resource.count.into())),
    }
}

fn indices(text: &str) -> Box<[u32]> {
    seen::indices(text).unwrap_or_default()
}

/// Its first so many workers.
pub fn first(mut plan: Plan, workers: usize) -> Plan {
    plan.nodes.truncate(workers);
    plan.devices.truncate(workers);
    plan
}

/// Its workers, and more after them.
pub fn joined(mut plan: Plan, more: Plan) -> Plan {
    plan.nodes.extend(more.nodes);
    plan.devices.extend(more.devices);
    plan
}
