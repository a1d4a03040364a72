//! Is the attempt over, and how did it end?

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use stoke_api::Reason;
use stoke_api::trainjob::{Attempt, Exit, Outcome, Phase};
use stoke_memory::{Blame, Diagnosis, End, Evidence, diagnose};

use super::{Turn, after, telling};
use crate::trainjob::workers::{Stage, Worker};

/// How an attempt ended.
pub struct Ending {
    pub outcome: Outcome,
    pub exit: Option<Exit>,
    pub reason: Reason,
    pub message: String,
    pub at: Timestamp,
    /// Where the job ends with it.
    pub last_phase: Option<Phase>,
}

/// When one worker is out of memory the others soon lose their connection to it, and are seen to fail first as often as not. Ends
/// this close together are one end, and the one that explains the others is its cause.
const SAME_END: SignedDuration = SignedDuration::from_secs(10);

pub fn of(turn: &Turn<'_>, attempt: &Attempt) -> Option<Ending> {
    let ranks = turn.ranks(attempt);
    succeeded(turn, &ranks)
        .or_else(|| failed(turn, attempt, &ranks))
        .or_else(|| suspended(turn))
        .or_else(|| taken_away(turn, attempt, &ranks))
        .or_else(|| overdue(turn, attempt))
        .or_else(|| late(turn, attempt, &ranks))
        .or_else(|| changed(turn, attempt, &ranks))
}

fn succeeded(turn: &Turn<'_>, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    let done = |worker: &Option<Worker<'_>>| {
        worker.is_some_and(|worker| worker.stage() == Stage::Succeeded)
    };
    let led = ranks
        .iter()
        .enumerate()
        .any(|(rank, worker)| turn.is_leader(rank) && done(worker));
    if !led && (ranks.is_empty() || !ranks.iter().all(done)) {
        return None;
    }
    let at = ranks.iter().flatten().filter_map(Worker::finished_at).max();
    Some(Ending {
        outcome: Outcome::Succeeded,
        exit: None,
        reason: Reason::Succeeded,
        message: telling::succeeded(ranks.len()),
        at: not_after(turn, at),
        last_phase: Some(Phase::Complete),
    })
}

/// A worker has failed: the one that began it is to blame.
fn failed(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    let failed = || {
        ranks
            .iter()
            .flatten()
            .filter(|worker| worker.stage() == Stage::Failed)
    };
    let ended = |worker: &Worker<'_>| worker.finished_at().unwrap_or(turn.now);
    let first = failed().map(ended).min()?;
    let limit = attempt.memory.as_ref().map(|sizing| sizing.limit);
    let (worker, diagnosis) = failed()
        .filter(|worker| ended(worker).duration_since(first) <= SAME_END)
        .map(|worker| (worker, diagnose(&worker.evidence(None, limit))))
        .min_by_key(|(worker, diagnosis)| (explains(diagnosis), ended(worker), worker.rank))?;
    Some(diagnosed(
        diagnosis,
        worker.rank,
        worker.exit_code(),
        not_after(turn, Some(ended(worker))),
    ))
}

/// How well an end explains the ends of others; less is better.
fn explains(diagnosis: &Diagnosis) -> u8 {
    match (diagnosis.reason, diagnosis.blame) {
        (Reason::OutOfMemory, _) => 0,
        (_, Blame::Outside) => 1,
        (Reason::StartFailed, _) => 2,
        _ => 3,
    }
}

fn suspended(turn: &Turn<'_>) -> Option<Ending> {
    turn.job.spec.suspend.then(|| Ending {
        outcome: Outcome::Suspended,
        exit: None,
        reason: Reason::Suspended,
        message: String::new(),
        at: turn.now,
        last_phase: None,
    })
}

/// Deleted by someone else, or gone with its node. Our own deletions come only after the end is on record.
fn taken_away(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    let ranked = (0_u32..).zip(ranks).zip(&attempt.nodes);
    let lost = ranked.filter_map(|((rank, worker), node)| {
        let end = match worker {
            Some(worker) if worker.is_finished() => return None,
            Some(worker) if worker.is_stopping() => End::Deleted,
            // Before all ran, a pod that is not there may simply not have been created yet.
            None if attempt.running_at.is_some() => End::Deleted,
            _ if turn.observed.cluster.node(node).is_none() => End::NodeGone,
            _ => return None,
        };
        let evidence = match worker {
            Some(worker) => worker.evidence(Some(end), None),
            None => Evidence {
                rank,
                end,
                ..Evidence::default()
            },
        };
        let node = node.clone();
        Some((rank, diagnose(&Evidence { node, ..evidence })))
    });
    let (rank, diagnosis) = lost.min_by_key(|(rank, _)| *rank)?;
    Some(diagnosed(diagnosis, rank, None, turn.now))
}

fn overdue(turn: &Turn<'_>, attempt: &Attempt) -> Option<Ending> {
    let max = turn.job.spec.max_duration?;
    let over = attempt.running_at.is_some() && turn.ran_seconds(attempt) >= max.seconds;
    over.then(|| Ending {
        outcome: Outcome::Failed,
        exit: None,
        reason: Reason::DeadlineExceeded,
        message: telling::overdue(max),
        at: turn.now,
        last_phase: Some(Phase::Failed),
    })
}

/// Not all workers ran in time: something holds one back that placement does not know of.
fn late(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    if attempt.running_at.is_some() {
        return None;
    }
    let placed = attempt.placed_at.as_ref()?;
    let deadline: Duration = turn.config.start_deadline;
    let waiting =
        |worker: &Option<Worker<'_>>| worker.is_none_or(|worker| worker.stage() == Stage::Waiting);
    let rank = ranks.iter().position(waiting)?;
    if after(placed.0, deadline) > turn.now {
        return None;
    }
    let end = End::NeverStarted;
    let evidence =
        ranks[rank].map_or_else(Evidence::default, |worker| worker.evidence(Some(end), None));
    let evidence = Evidence {
        rank: rank as u32,
        node: attempt.nodes[rank].clone(),
        end,
        ..evidence
    };
    Some(diagnosed(diagnose(&evidence), rank as u32, None, turn.now))
}

/// The spec was changed while the gang was being created: a gang is of one spec, so it begins anew.
fn changed(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    let complete = !ranks.is_empty() && ranks.iter().all(Option::is_some);
    let same = attempt.generation == turn.job.metadata.generation && !ranks.is_empty();
    (!complete && !same).then(|| Ending {
        outcome: Outcome::Interrupted,
        exit: None,
        reason: Reason::WorkerLost,
        message: "the job was changed while its workers were being created".to_owned(),
        at: turn.now,
        last_phase: None,
    })
}

fn diagnosed(diagnosis: Diagnosis, rank: u32, exit_code: Option<i32>, at: Timestamp) -> Ending {
    let message = diagnosis.advice();
    Ending {
        outcome: match diagnosis.blame {
            Blame::Job => Outcome::Failed,
            Blame::Outside => Outcome::Interrupted,
        },
        exit: Some(Exit {
            rank,
            exit_code,
            reason: diagnosis.word,
            message: message.clone(),
        }),
        reason: diagnosis.reason,
        message,
        at,
        last_phase: None,
    }
}

impl Ending {
    /// What the rest of the gang is made of is not there any more.
    pub fn unmakeable(message: String, at: Timestamp) -> Self {
        Self {
            outcome: Outcome::Interrupted,
            exit: None,
            reason: Reason::Misconfigured,
            message,
            at,
            last_phase: None,
        }
    }
}

/// A node's clock may be ahead of ours.
fn not_after(turn: &Turn<'_>, at: Option<Timestamp>) -> Timestamp {
    at.unwrap_or(turn.now).min(turn.now)
}
