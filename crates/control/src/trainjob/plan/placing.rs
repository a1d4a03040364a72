//! The next attempt: how large its workers are, and what it is made of when there is room for it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::trainjob::{Attempt, Network};
use stoke_api::{Bytes, CpuMilli, Reason, TrainJob};
use stoke_memory::{Share, share_of, size};
use stoke_sched::{Gang, Node, Plan, candidates};

use super::{Turn, after};
use crate::config::Home;
use crate::trainjob::pod::{Blueprint, Gpus, Size};
use crate::trainjob::template::Misconfigured;
use crate::world::{Ask, Grant, Room};

const MIB: u64 = 1 << 20;

/// Why nothing is asked for yet.
pub struct Waiting {
    pub reason: Reason,
    pub message: String,
}

impl From<Misconfigured> for Waiting {
    fn from(wrong: Misconfigured) -> Self {
        Self {
            reason: Reason::Misconfigured,
            message: wrong.to_string(),
        }
    }
}

/// What the next attempt asks for: what it asked for before, where nothing has changed that decides it.
pub fn ask(turn: &Turn<'_>) -> Result<Arc<Ask>, Waiting> {
    turn.datasets_are_there().map_err(|message| Waiting {
        reason: Reason::WaitingForDataset,
        message,
    })?;
    let known = match &turn.observed.room {
        Room::Unasked => None,
        Room::Awaited { ask, .. } | Room::NoPorts { ask } => Some((ask, false)),
        Room::Given { grant, stale } => Some((&grant.ask, *stale)),
    };
    let holds = |ask: &Ask| ask.until.is_none_or(|until| until > turn.now);
    if let Some((ask, _)) = known.filter(|(ask, stale)| holds(ask) && !stale) {
        return Ok(ask.clone());
    }
    let anew = made_anew(turn)?;
    // The same in all but the time is the same: what was given for it is good.
    Ok(match known {
        Some((ask, _)) if **ask == anew => ask.clone(),
        _ => Arc::new(anew),
    })
}

fn made_anew(turn: &Turn<'_>) -> Result<Ask, Waiting> {
    let job = turn.job;
    let blueprint = Blueprint::new(job, &turn.observed.datasets, turn.config)?;
    turn.claims_can_be_shared()?;
    let unsized_gang = surrounded(turn, blueprint.gang(&Size::default())?);
    let nodes = candidates(&turn.observed.cluster, &unsized_gang);
    let share = smallest_share(turn, &nodes);
    let size = Size {
        memory: size(
            job.spec.memory.as_ref(),
            job.spec.priority,
            share.as_ref().map(|(share, _)| share),
            None,
        ),
        cpus: cpus(turn, share.as_ref()),
        storage: storage(turn, &nodes),
        gpu_resource: None,
    };
    Ok(Ask {
        gang: Arc::new(surrounded(turn, blueprint.gang(&size)?)),
        size,
        shares_network: blueprint.network() == Network::Host,
        until: avoided(turn).map(|(_, until)| until).min(),
    })
}

/// The attempt that is made of the room it was given.
pub fn attempt(turn: &Turn<'_>, grant: &Grant) -> Attempt {
    let size = grant.ask.size.clone();
    Attempt {
        number: turn.status.attempt.saturating_add(1),
        placed_at: Some(Time(turn.now)),
        generation: turn.job.metadata.generation,
        port: grant.port,
        cpus: Some(size.cpus),
        memory: Some(size.memory),
        storage: size.storage,
        ..placed(turn.job, &grant.plan)
    }
}

/// Where a plan puts workers, as an attempt of the job has it.
pub fn placed(job: &TrainJob, plan: &Plan) -> Attempt {
    let gpus = Gpus::of(plan, &job.spec.gpus);
    Attempt {
        nodes: plan.nodes.clone(),
        devices: gpus.devices,
        gpu_resource: gpus.resource,
        ..Attempt::default()
    }
}

/// Nodes that failed it of late, and until when they are kept off.
fn avoided<'a>(turn: &'a Turn<'_>) -> impl Iterator<Item = (&'a String, Timestamp)> {
    let ended = turn.status.attempts.iter().filter_map(|attempt| {
        let finished = attempt.finished_at.as_ref()?;
        let until = after(finished.0, turn.config.avoid_for);
        (until > turn.now).then_some((attempt, until))
    });
    ended.flat_map(|(attempt, until)| attempt.avoid.iter().map(move |node| (node, until)))
}

/// The gang with what is known beyond its own spec: where its volumes are, and which nodes failed it of late.
fn surrounded(turn: &Turn<'_>, gang: Gang) -> Gang {
    let claims = turn.observed.claims.values();
    let reach = claims.map(|(_, claim)| claim.reach.clone());
    Gang {
        volumes: reach.filter(|terms| !terms.is_empty()).collect(),
        avoid: avoided(turn).map(|(node, _)| node.clone()).collect(),
        ..gang
    }
}

/// A worker's part in a node.
fn share(turn: &Turn<'_>, node: &Node, nodes: usize) -> Option<Share> {
    let nodes = u32::try_from(nodes).ok().filter(|n| *n > 0)?;
    Some(Share {
        memory: node.allocatable.memory,
        largest: node.allocatable.memory,
        node_gpus: node.allocatable.gpus,
        gpus: turn.job.spec.gpus.whole(),
        workers: turn.job.spec.workers_max().div_ceil(nodes),
    })
}

/// The part that a worker has in a node, of all nodes it may run on the least: then it fits any of them. With the node's CPUs.
fn smallest_share(turn: &Turn<'_>, nodes: &[&Node]) -> Option<(Share, CpuMilli)> {
    let shares = nodes.iter().filter_map(|node| {
        let share = share(turn, node, nodes.len())?;
        Some((share, node.allocatable.cpu))
    });
    shares.min_by_key(|(share, cpu)| (share_of(share.memory.0, share), share_of(cpu.0, share)))
}

/// The local disk that a worker may fill: its share, so that one that fills more is stopped before its node is full and all others on it
/// are evicted. None where a node does not say what it has.
fn storage(turn: &Turn<'_>, nodes: &[&Node]) -> Option<Bytes> {
    if turn.config.home == Home::Machine {
        return None;
    }
    let shares = nodes.iter().map(|node| {
        let share = share(turn, node, nodes.len())?;
        Some(share_of(node.allocatable.storage.0, &share))
    });
    let least = shares.min()??;
    Some(Bytes(least / MIB * MIB)).filter(|bytes| bytes.0 > 0)
}

/// Said; else its GPUs' share of the node; else one, or less where the gang has to share fewer.
fn cpus(turn: &Turn<'_>, share: Option<&(Share, CpuMilli)>) -> CpuMilli {
    let one = CpuMilli(1000);
    match (turn.job.spec.cpus, share) {
        (Some(said), _) => said,
        (None, None) => one,
        (None, Some((share, node))) => {
            // A hundredth of a CPU is as fine as anyone asks.
            let part = CpuMilli((share_of(node.0, share) / 10 * 10).max(10));
            if share.gpus > 0 { part } else { part.min(one) }
        }
    }
}
