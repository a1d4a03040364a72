//! Is the attempt over, and how did it end?

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use stoke_api::Reason;
use stoke_api::trainjob::{Attempt, Exit, Outcome, Phase, Preemption};
use stoke_memory::{Blame, Diagnosis, End, Evidence, NOT_STARTED, diagnose};

use super::evidence::evidence;
use super::{Turn, after, telling};
use crate::cluster::Then;
use crate::config::Home;
use crate::trainjob::workers::{Hold, Stage, Worker};

/// How an attempt ended.
pub struct Ending {
    pub outcome: Outcome,
    pub exit: Option<Exit>,
    pub reason: Reason,
    pub message: String,
    pub at: Timestamp,
    /// Where the job ends with it.
    pub last_phase: Option<Phase>,
    /// Nodes on which workers did not start.
    pub avoid: Vec<String>,
    /// Who gets its room, where that ended it.
    pub preemption: Option<Preemption>,
    /// What a worker died of, where that ended it.
    pub diagnosis: Option<Diagnosis>,
}

/// When one worker is out of memory the others soon lose their connection to it, and are seen to fail first as often as not. Ends
/// this close together are one end, and the one that explains the others is its cause.
pub const SAME_END: SignedDuration = SignedDuration::from_secs(10);

/// How long a scheduler may refuse a worker. What placement did not know of is seldom gone in a moment, and the rest of the gang
/// holds its GPUs meanwhile.
const UNSCHEDULABLE_MAX: Duration = Duration::from_secs(30);
/// How long a node may say that it cannot start a worker: a Secret that it lacks may be on its way.
const UNSTARTABLE_MAX: Duration = Duration::from_secs(120);

/// How long after it was placed an attempt is kept though its data cannot be copied at the moment: what was copied is kept, and a store that
/// does not answer seldom does so for long. Not without end, for it may be that node alone.
const STAGED_IN_VAIN_MAX: Duration = Duration::from_secs(3600);

/// How long after the first failure a cluster's agents are waited for. They learn of it when we do, and what they have measured may be
/// what explains it. More than they need, for times of ends are in whole seconds and of the node's clock.
const DIGEST_MAX: SignedDuration = SignedDuration::from_secs(5);

/// When the end of an attempt is told though what its worker used is not known, where that is still to come.
pub fn told_by(turn: &Turn<'_>, attempt: &Attempt) -> Option<Timestamp> {
    if turn.config.home == Home::Machine {
        return None;
    }
    let ranks = turn.ranks(attempt);
    let failed = || {
        ranks
            .iter()
            .flatten()
            .filter(|worker| worker.stage() == Stage::Failed)
    };
    let first = failed().filter_map(Worker::finished_at).min()?;
    let unmeasured = failed().any(|worker| worker.finished_at().is_some() && !worker.is_measured());
    // A clock far from ours is not gone by.
    let recent = turn.now.duration_since(first).abs() < DIGEST_MAX;
    let at = first.saturating_add(DIGEST_MAX).ok()?;
    (unmeasured && recent).then_some(at)
}

pub fn of(turn: &Turn<'_>, attempt: &Attempt) -> Option<Ending> {
    let ranks = turn.ranks(attempt);
    succeeded(turn, attempt, &ranks)
        .or_else(|| failed(turn, attempt, &ranks))
        .or_else(|| suspended(turn))
        .or_else(|| taken_away(turn, attempt, &ranks))
        .or_else(|| overdue(turn, attempt))
        .or_else(|| late(turn, attempt, &ranks))
        .or_else(|| changed(turn, attempt, &ranks))
        .or_else(|| refused(turn, attempt))
        .or_else(|| turn.moves(attempt))
        .or_else(|| hung(turn, attempt, &ranks))
        .or_else(|| turn.saved_in_time(attempt))
}

fn succeeded(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    let done = |(rank, worker): (usize, &Option<Worker<'_>>)| match worker {
        Some(worker) => worker.stage() == Stage::Succeeded,
        None => attempt.has_succeeded(rank),
    };
    let mut ranked = ranks.iter().enumerate();
    let led = ranked.any(|(rank, worker)| turn.is_leader(rank) && done((rank, worker)));
    if !led && (ranks.is_empty() || !ranks.iter().enumerate().all(done)) {
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
        avoid: Vec::new(),
        preemption: None,
        diagnosis: None,
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
    let (worker, diagnosis) = failed()
        .filter(|worker| ended(worker).duration_since(first) <= SAME_END)
        .map(|worker| (worker, diagnose(&evidence(turn, attempt, worker))))
        .min_by_key(|(worker, diagnosis)| (explains(diagnosis), ended(worker), worker.rank))?;
    let at = not_after(turn, Some(ended(worker)));
    if explains(&diagnosis) > UNEXPLAINED_MAX
        && let Some((rank, diagnosis)) = lost_beside(turn, attempt, ranks, first)
    {
        return Some(diagnosed(diagnosis, rank, None, at));
    }
    if explains(&diagnosis) > UNEXPLAINED_MAX
        && let Some(ending) = turn.fell_with_its_node(attempt)
    {
        return Some(Ending { at, ..ending });
    }
    // A node that turned one away would do it again.
    let turned_away = (diagnosis.reason, diagnosis.blame) == (Reason::StartFailed, Blame::Outside);
    let node = attempt.nodes.get(worker.rank as usize);
    let ending = diagnosed(diagnosis, worker.rank, worker.exit_code(), at);
    Some(Ending {
        avoid: node.filter(|_| turned_away).cloned().into_iter().collect(),
        ..ending
    })
}

/// Ends that [`explains`] gives more than this do not say why others ended.
const UNEXPLAINED_MAX: u8 = 2;

/// How well an end explains the ends of others; less is better.
fn explains(diagnosis: &Diagnosis) -> u8 {
    match (diagnosis.reason, diagnosis.blame) {
        (Reason::OutOfMemory | Reason::OutOfStorage, _) => 0,
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
        avoid: Vec::new(),
        preemption: None,
        diagnosis: None,
    })
}

/// Deleted by someone else, or gone with its node. Our own deletions come only after the end is on record.
fn taken_away(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    let lost = lost(attempt, ranks, |worker, node| match worker {
        Some(worker) if worker.is_finished() => None,
        Some(worker) if worker.is_stopping() => Some(End::Deleted),
        // Before all ran, a pod that is not there may simply not have been created yet.
        None if attempt.running_at.is_some() => Some(End::Deleted),
        _ if is_gone(turn, node) || is_lost(turn, attempt, node) => Some(End::NodeGone),
        _ => None,
    });
    lost.map(|(rank, diagnosis)| diagnosed(diagnosis, rank, None, turn.now))
}

/// A worker that was taken away about when another failed, at `first`: the others lost their connection to it.
fn lost_beside(
    turn: &Turn<'_>,
    attempt: &Attempt,
    ranks: &[Option<Worker<'_>>],
    first: Timestamp,
) -> Option<(u32, Diagnosis)> {
    lost(attempt, ranks, |worker, node| match worker {
        Some(worker) if worker.is_finished() => None,
        Some(worker) if worker.is_stopping() => {
            let asked = worker.stop_asked()?;
            (asked.duration_since(first) <= SAME_END).then_some(End::Deleted)
        }
        None if attempt.running_at.is_some() => Some(End::Deleted),
        _ => {
            let node = turn.observed.cluster.node(node);
            (!node.is_some_and(|node| node.ready)).then_some(End::NodeGone)
        }
    })
}

/// The first worker that `how` says was lost, and what is to be said of it.
fn lost<'a>(
    attempt: &Attempt,
    ranks: &[Option<Worker<'a>>],
    how: impl Fn(Option<Worker<'a>>, &str) -> Option<End>,
) -> Option<(u32, Diagnosis)> {
    let ranked = (0_u32..).zip(ranks).zip(&attempt.nodes);
    // Nothing is lost with a pod whose worker had ended well.
    let ranked = ranked
        .filter(|((rank, worker), _)| worker.is_some() || !attempt.has_succeeded(*rank as usize));
    let mut lost = ranked.filter_map(|((rank, worker), node)| {
        let end = how(*worker, node)?;
        let evidence = match worker {
            Some(worker) => worker.evidence(Some(end)),
            None => Evidence {
                rank,
                end,
                ..Evidence::default()
            },
        };
        let node = node.clone();
        Some((rank, diagnose(&Evidence { node, ..evidence })))
    });
    lost.next()
}

/// One that has yet to come is not gone.
fn is_gone(turn: &Turn<'_>, node: &str) -> bool {
    !node.is_empty() && turn.observed.cluster.node(node).is_none()
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
        avoid: Vec::new(),
        preemption: None,
        diagnosis: None,
    })
}

/// When a worker that is held back is waited for no longer, though the gang's time is not over.
pub fn given_up_at(worker: &Worker<'_>, attempt: &Attempt) -> Option<Timestamp> {
    let placed = attempt.placed_at.as_ref()?.0;
    let (hold, since) = worker.hold()?;
    let patience = match hold {
        Hold::Unschedulable => UNSCHEDULABLE_MAX,
        Hold::Unstartable => UNSTARTABLE_MAX,
    };
    // Another's clock may be behind ours: nothing held it back before it was placed.
    Some(after(
        since.map_or(placed, |since| since.max(placed)),
        patience,
    ))
}

/// Not all workers ran in time: something holds one back that placement does not know of.
fn late(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    if attempt.running_at.is_some() {
        return None;
    }
    let placed = attempt.placed_at.as_ref()?;
    if let Some(due) = turn.awaits_nodes(attempt) {
        return (due <= turn.now).then(|| without_nodes(turn, attempt, ranks));
    }
    let over = |at: Timestamp| at <= turn.now;
    // Data takes as long as it takes, and nothing would be faster anew.
    let is_staging = ranks.iter().flatten().any(Worker::is_staging);
    let stages_again = stages_until(attempt, ranks).is_some_and(|until| !over(until));
    if is_staging || stages_again || turn.follows_another(attempt, ranks) {
        return None;
    }
    let all = over(after(begun(placed.0, ranks), turn.config.start_deadline));
    let late = || {
        (0_u32..).zip(ranks).filter(|(rank, worker)| match worker {
            Some(worker) if all => worker.stage() == Stage::Waiting,
            Some(worker) => given_up_at(worker, attempt).is_some_and(over),
            None => all && !attempt.has_succeeded(*rank as usize),
        })
    };
    // One that says what holds it back, if there is one.
    let troubled = |worker: &Option<Worker<'_>>| worker.is_some_and(|w| w.trouble().is_some());
    let told = late().find(|(_, worker)| troubled(worker));
    let (rank, worker) = told.or_else(|| late().next())?;
    let node = |rank: u32| {
        attempt
            .nodes
            .get(rank as usize)
            .cloned()
            .unwrap_or_default()
    };
    let end = End::NeverStarted;
    let evidence = worker.map_or_else(Evidence::default, |worker| worker.evidence(Some(end)));
    let evidence = Evidence {
        rank,
        node: node(rank),
        end,
        ..evidence
    };
    let diagnosis = diagnose(&evidence);
    let kept = turn.keeps_volume(attempt.number);
    let avoid: BTreeSet<String> = match diagnosis.blame {
        // It would be the same anywhere.
        Blame::Job => BTreeSet::new(),
        Blame::Outside if kept.is_some() => BTreeSet::new(),
        Blame::Outside => late()
            .filter_map(|(rank, worker)| Some((node(rank), (*worker)?)))
            .filter(|(node, worker)| !worker.is_pulling() || was_late_before(turn, node))
            .map(|(node, _)| node)
            .collect(),
    };
    let mut ending = diagnosed(diagnosis, rank, None, turn.now);
    if let Some((node, claim)) = kept {
        let words = telling::volume_kept(node, claim);
        ending.message.push_str(&words);
        if let Some(exit) = &mut ending.exit {
            exit.message.push_str(&words);
        }
    }
    Some(Ending {
        avoid: avoid.into_iter().collect(),
        ..ending
    })
}

/// From when on an attempt has its time to start: from its placing, or from the last that its nodes said of the data that they copy for it.
/// Theirs is another clock than ours, so it counts only where it is later.
pub fn begun(placed: Timestamp, ranks: &[Option<Worker<'_>>]) -> Timestamp {
    let workers = ranks.iter().flatten();
    let heard = workers.filter_map(Worker::last_heard_of_data).max();
    heard.map_or(placed, |heard| heard.max(placed))
}

/// Until when a worker is waited for whose node could not copy its data, and tries again.
pub fn stages_until(attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Timestamp> {
    let placed = attempt.placed_at.as_ref()?.0;
    let mut workers = ranks.iter().flatten();
    let stages_again = workers.any(Worker::stages_again);
    stages_again.then(|| after(placed, STAGED_IN_VAIN_MAX))
}

/// No autoscaler has brought nodes for all of the gang: what it has is given back.
fn without_nodes(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Ending {
    let unbound = ranks.iter().flatten().filter(|w| w.pod.node().is_none());
    let said = unbound.clone().find_map(Worker::waits_for);
    let message = telling::no_nodes_came(attempt, unbound.count(), said.as_deref());
    let exit = Exit {
        rank: 0,
        exit_code: None,
        reason: Reason::WaitingForNodes.to_string(),
        message: message.clone(),
    };
    Ending {
        exit: Some(exit),
        ..Ending::interrupted(Reason::WaitingForNodes, message, turn.now)
    }
}

/// Did the attempt before not start with a worker on this node? A node that still pulls an image has part of it: there it is quicker than
/// elsewhere, once.
fn was_late_before(turn: &Turn<'_>, node: &str) -> bool {
    let before = turn.status.attempts.iter().rev().nth(1);
    before.is_some_and(|before| {
        never_started(before) && before.nodes.iter().any(|known| known == node)
    })
}

/// Did this attempt end because its nodes did not start it in time?
pub fn never_started(attempt: &Attempt) -> bool {
    let exit = attempt.exit.as_ref();
    attempt.running_at.is_none() && exit.is_some_and(|exit| exit.reason == NOT_STARTED)
}

fn unfinished<'a, 'w>(ranks: &'a [Option<Worker<'w>>]) -> impl Iterator<Item = &'a Worker<'w>> {
    ranks.iter().flatten().filter(|it| !it.is_finished())
}

/// All that is left of the gang does nothing, and has not for as long as its author allows. On one machine its node sees all of that; on a
/// cluster the nodes' agents do not see the logs, which are asked for when all agree on the rest.
fn hung(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    turn.job.spec.hung_after?;
    attempt.running_at.as_ref()?;
    let mut running = unfinished(ranks);
    let first = running.next()?;
    let seen = first.idle()?;
    if !running.all(|worker| worker.idle().is_some()) {
        return None;
    }
    let is_told_all = turn.config.home == Home::Machine;
    let is_silent =
        |worker: &Worker<'_>| (turn.observed.tails).is_silent(attempt.number, worker.rank);
    if !is_told_all && !unfinished(ranks).all(is_silent) {
        return None;
    }
    let message = telling::hung(first.rank, seen, !is_told_all);
    Some(Ending {
        exit: Some(Exit {
            rank: first.rank,
            exit_code: None,
            reason: Reason::Hung.to_string(),
            message: message.clone(),
        }),
        ..Ending::begun_anew(Outcome::Failed, Reason::Hung, message, turn.now)
    })
}

/// It is off, or gives no sign of life for long. What is on it cannot be told to end, and may run on: what it writes is fenced off from the
/// next attempt.
fn is_lost(turn: &Turn<'_>, attempt: &Attempt, node: &str) -> bool {
    let leaving = attempt.leaving.as_ref();
    let until = leaving.and_then(|leaving| leaving.until.as_ref());
    let is_over = until.is_some_and(|until| until.0 <= turn.now);
    let notice = turn.observed.notices.get(node);
    notice.is_some_and(|notice| match notice.then {
        Then::Gone => true,
        Then::Silent => is_over,
        Then::MayGo | Then::Goes { .. } => false,
    })
}

/// The spec was changed while the gang was being created: a gang is of one spec, so it begins anew.
fn changed(turn: &Turn<'_>, attempt: &Attempt, ranks: &[Option<Worker<'_>>]) -> Option<Ending> {
    let mut ranked = ranks.iter().enumerate();
    let complete = !ranks.is_empty()
        && ranked.all(|(rank, worker)| worker.is_some() || attempt.has_succeeded(rank));
    let same = attempt.generation == turn.job.metadata.generation && !ranks.is_empty();
    (!complete && !same).then(|| {
        let message = "the job was changed while its workers were being created".to_owned();
        Ending::interrupted(Reason::WorkerLost, message, turn.now)
    })
}

/// The API server will not have all of the gang: what it has is given back, with the room, until it is tried again.
fn refused(turn: &Turn<'_>, attempt: &Attempt) -> Option<Ending> {
    let refusal = turn.observed.refused.as_ref()?;
    let stands_in_the_way = attempt.running_at.is_none() && refusal.attempt == Some(attempt.number);
    stands_in_the_way.then(|| Ending {
        outcome: Outcome::Interrupted,
        exit: Some(Exit {
            rank: 0,
            exit_code: None,
            reason: refusal.reason().to_string(),
            message: refusal.message.clone(),
        }),
        reason: refusal.reason(),
        message: refusal.message.clone(),
        at: turn.now,
        last_phase: None,
        avoid: Vec::new(),
        preemption: None,
        diagnosis: None,
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
            reason: diagnosis.word.clone(),
            message: message.clone(),
        }),
        reason: diagnosis.reason,
        message,
        at,
        last_phase: None,
        avoid: Vec::new(),
        preemption: None,
        diagnosis: Some(diagnosis),
    }
}

impl Ending {
    /// What the rest of the gang is made of is not there any more.
    pub fn unmakeable(message: String, at: Timestamp) -> Self {
        Self::interrupted(Reason::Misconfigured, message, at)
    }

    fn interrupted(reason: Reason, message: String, at: Timestamp) -> Self {
        Self::begun_anew(Outcome::Interrupted, reason, message, at)
    }

    /// The job goes on with another attempt.
    pub fn begun_anew(outcome: Outcome, reason: Reason, message: String, at: Timestamp) -> Self {
        Self {
            outcome,
            exit: None,
            reason,
            message,
            at,
            last_phase: None,
            avoid: Vec::new(),
            preemption: None,
            diagnosis: None,
        }
    }
}

/// A node's clock may be ahead of ours.
fn not_after(turn: &Turn<'_>, at: Option<Timestamp>) -> Timestamp {
    at.unwrap_or(turn.now).min(turn.now)
}
