//! What is known of a worker that has failed, or may hang: of its pod, of what its node measured, and of its log.

use std::time::Duration;

use jiff::Timestamp;
use stoke_api::Bytes;
use stoke_api::digest::ContainerDigest;
use stoke_api::trainjob::Attempt;
use stoke_memory::{Evidence, LeakRate, Usage, events_may_tell};

use super::Turn;
use super::ending::SAME_END;
use crate::config::Home;
use crate::trainjob::tail::{EVENTS_MAX, WORKERS_MAX, Wanted};
use crate::trainjob::workers::{Stage, Worker};

/// Growth of less than one in so many parts of what was used is no leak that kills.
const GROWN_PART: u64 = 3;

/// The logs that may say what ended the attempt, as far as nobody has tried to read them; and once they are read, the Events, where it is
/// still open who ended a worker.
pub fn logs(turn: &Turn<'_>, attempt: &Attempt) -> Vec<Wanted> {
    let ranks = turn.ranks(attempt);
    let failed = ranks.iter().flatten();
    let mut failed: Vec<(Timestamp, &Worker<'_>)> = failed
        .filter(|worker| worker.stage() == Stage::Failed)
        .filter_map(|worker| Some((worker.finished_at()?, worker)))
        .collect();
    failed.sort_by_key(|(ended, worker)| (*ended, worker.rank));
    let first = failed.first().map(|(ended, _)| *ended);
    let at_once = failed
        .into_iter()
        .filter(|(ended, _)| first.is_some_and(|first| ended.duration_since(first) <= SAME_END));
    let first: Vec<(Timestamp, &Worker<'_>)> = at_once.take(WORKERS_MAX).collect();
    let tails = &turn.observed.tails;
    let unread = first
        .iter()
        .filter(|(_, worker)| !tails.has(attempt.number, worker.rank));
    let logs: Vec<Wanted> = unread
        .filter_map(|(_, worker)| {
            Some(Wanted::Log {
                rank: worker.rank,
                pod: worker.name().to_owned(),
                container: worker.failed_container()?.name,
            })
        })
        .collect();
    if !logs.is_empty() {
        return logs;
    }
    let open = first.iter().take(EVENTS_MAX).filter(|(_, worker)| {
        !tails.has_events(attempt.number, worker.rank)
            && events_may_tell(&evidence(turn, attempt, worker))
    });
    let events = open.filter_map(|(ended, worker)| {
        Some(Wanted::Events {
            rank: worker.rank,
            pod_uid: worker.pod.metadata.uid.as_deref()?.to_owned(),
            node: worker.pod.node()?.to_owned(),
            ended: *ended,
        })
    });
    events.collect()
}

/// How often the logs are asked for of workers that do nothing but write to them, in parts of `hungAfter`.
const SILENCE_PART: u64 = 4;
const SILENCE_EVERY_MIN: Duration = Duration::from_secs(10);
const SILENCE_EVERY_MAX: Duration = Duration::from_secs(600);

/// On a cluster, the logs that show whether a gang of which every worker is said to do nothing does so: a few at a time, and none once
/// one has something in it.
pub fn silences(turn: &mut Turn<'_>, attempt: &Attempt) -> Vec<Wanted> {
    let Some(after) = turn.job.spec.hung_after else {
        return Vec::new();
    };
    if turn.config.home == Home::Machine || attempt.running_at.is_none() {
        return Vec::new();
    }
    let ranks = turn.ranks(attempt);
    let running: Vec<&Worker<'_>> = (ranks.iter().flatten())
        .filter(|worker| !worker.is_finished())
        .collect();
    if running.is_empty() || running.iter().any(|worker| worker.idle().is_none()) {
        return Vec::new();
    }
    let tails = &turn.observed.tails;
    let (asked, unasked): (Vec<&Worker<'_>>, Vec<&Worker<'_>>) =
        (running.into_iter()).partition(|worker| tails.has_silence(attempt.number, worker.rank));
    if asked
        .iter()
        .any(|worker| !tails.is_silent(attempt.number, worker.rank))
    {
        let every = Duration::from_secs(after.seconds / SILENCE_PART);
        let every = every.clamp(SILENCE_EVERY_MIN, SILENCE_EVERY_MAX);
        turn.wake_at(super::after(turn.now, every));
        return Vec::new();
    }
    let wanted = unasked.iter().take(WORKERS_MAX).filter_map(|worker| {
        Some(Wanted::Silence {
            rank: worker.rank,
            pod: worker.name().to_owned(),
            container: worker.pod.spec.containers.first()?.to_string(),
            seconds: after.seconds,
        })
    });
    wanted.collect()
}

/// All that is known of a worker that has failed.
pub fn evidence(turn: &Turn<'_>, attempt: &Attempt, worker: &Worker<'_>) -> Evidence {
    let limit = attempt.memory.as_ref().map(|sizing| sizing.limit);
    let digest = worker.digest();
    let usage = |peak: Option<u64>, size: Option<Bytes>| {
        let peak = Bytes(peak?);
        Some(Usage { peak, size: size? })
    };
    Evidence {
        // It may have been raised since.
        limit: digest
            .and_then(|digest| digest.limit_bytes)
            .map(Bytes)
            .or(limit),
        log: turn
            .observed
            .tails
            .get(attempt.number, worker.rank)
            .cloned(),
        events: turn
            .observed
            .tails
            .events(attempt.number, worker.rank)
            .to_vec(),
        shm: usage(digest.map(|it| it.shm_peak_bytes), attempt.shm.or(limit)),
        storage: usage(digest.and_then(|it| it.storage_peak_bytes), attempt.storage),
        checkpoint_path: turn.job.spec.checkpoint.as_ref().map(|it| it.path.clone()),
        leak: digest.and_then(leak),
        ..worker.evidence(None)
    }
}

/// Did it grow all the time, by a good part of what it may have?
fn leak(digest: &ContainerDigest) -> Option<LeakRate> {
    let slope = digest.slope?;
    let rate = u64::try_from(slope.bytes_per_hour).ok()?;
    let grown = u128::from(rate) * u128::from(digest.seconds) / 3600;
    (grown >= u128::from(digest.needed_bytes() / GROWN_PART)).then(|| LeakRate {
        gpu: false,
        bytes_per_hour: rate,
        bytes_per_step: slope.bytes_per_step.and_then(|it| u64::try_from(it).ok()),
    })
}
