//! The next attempt: how large its workers are, where they run, and by what port they meet.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::trainjob::{Attempt, Network};
use stoke_api::{Bytes, CpuMilli, Reason};
use stoke_memory::{Share, share_of, size};
use stoke_sched::{Explanation, Gang, Node, candidates, place};

use super::{Turn, after};
use crate::config::Home;
use crate::trainjob::pod::{Blueprint, Size};
use crate::trainjob::rendezvous::{lease, port_count};
use crate::trainjob::template::Misconfigured;
use crate::world::Shortage;

const MIB: u64 = 1 << 20;

/// Why there is no next attempt yet.
pub struct Waiting {
    pub reason: Reason,
    pub message: String,
    pub shortage: Option<Shortage>,
}

impl From<Misconfigured> for Waiting {
    fn from(wrong: Misconfigured) -> Self {
        Self {
            reason: Reason::Misconfigured,
            message: wrong.to_string(),
            shortage: None,
        }
    }
}

pub fn next_attempt(turn: &Turn<'_>) -> Result<Attempt, Waiting> {
    let job = turn.job;
    turn.datasets_are_there().map_err(|message| Waiting {
        reason: Reason::WaitingForDataset,
        message,
        shortage: None,
    })?;
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
        ),
        cpus: cpus(turn, share.as_ref()),
        storage: storage(turn, &nodes),
    };
    let gang = surrounded(turn, blueprint.gang(&size)?);
    let plan = place(&turn.observed.cluster, &gang).map_err(|why| Waiting {
        reason: why.reason(),
        message: why.to_string(),
        shortage: shortage(&why, &gang),
    })?;
    let number = turn.status.attempt.saturating_add(1);
    Ok(Attempt {
        number,
        placed_at: Some(Time(turn.now)),
        generation: job.metadata.generation,
        port: port(turn, &blueprint, number)?,
        nodes: plan.nodes,
        cpus: Some(size.cpus),
        memory: Some(size.memory),
        storage: size.storage,
        ..Attempt::default()
    })
}

/// The gang with what is known beyond its own spec: where its volumes are, and which nodes failed it of late.
fn surrounded(turn: &Turn<'_>, gang: Gang) -> Gang {
    let claims = turn.observed.claims.values();
    let reach = claims.map(|(_, claim)| claim.reach.clone());
    let recent = turn.status.attempts.iter().filter(|attempt| {
        let finished = attempt.finished_at.as_ref();
        finished.is_some_and(|at| after(at.0, turn.config.avoid_for) > turn.now)
    });
    Gang {
        volumes: reach.filter(|terms| !terms.is_empty()).collect(),
        avoid: recent
            .flat_map(|attempt| attempt.avoid.iter().cloned())
            .collect::<BTreeSet<_>>(),
        ..gang
    }
}

/// A worker's part in a node.
fn share(turn: &Turn<'_>, node: &Node, nodes: usize) -> Option<Share> {
    let nodes = u32::try_from(nodes).ok().filter(|n| *n > 0)?;
    Some(Share {
        memory: node.allocatable.memory,
        node_gpus: node.allocatable.gpus,
        gpus: turn.job.spec.gpus.whole(),
        workers: turn.job.spec.workers.div_ceil(nodes),
    })
}

/// What would make it worth while to ask again.
fn shortage(why: &Explanation, gang: &Gang) -> Option<Shortage> {
    match why {
        Explanation::Unsupported { .. } => None,
        Explanation::NoRoom(no_room) => Some(Shortage::Workers {
            gang: Arc::new(gang.clone()),
            missing: no_room.workers.saturating_sub(no_room.fitting).max(1),
        }),
    }
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

/// The first port of its lease, where its workers share a network with others.
fn port(turn: &Turn<'_>, blueprint: &Blueprint<'_>, attempt: u32) -> Result<Option<u16>, Waiting> {
    let count = port_count(turn.job.spec.framework, turn.job.spec.workers);
    if blueprint.network() == Network::Pod || count == 0 {
        return Ok(None);
    }
    let uid = turn.job.metadata.uid.as_deref().unwrap_or_default();
    let ports = &turn.config.ports;
    let found = lease(ports, &turn.observed.leased, count, uid, attempt);
    found.map(Some).ok_or_else(|| Waiting {
        reason: Reason::InsufficientCapacity,
        message: format!(
            "no {count} neighbouring ports are free between {} and {}; it starts when other jobs have ended",
            ports.start(),
            ports.end()
        ),
        shortage: Some(Shortage::Ports),
    })
}
