//! The next attempt: how large its workers are, where they run, and by what port they meet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::trainjob::{Attempt, Network, Sizing};
use stoke_api::{CpuMilli, Reason};
use stoke_memory::{Share, share_of, size};
use stoke_sched::{Gang, candidates, place};

use super::Turn;
use crate::trainjob::pod::Blueprint;
use crate::trainjob::rendezvous::{lease, port_count};
use crate::trainjob::template::Misconfigured;

/// Why there is no next attempt yet.
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

pub fn next_attempt(turn: &Turn<'_>) -> Result<Attempt, Waiting> {
    let job = turn.job;
    turn.datasets_are_there().map_err(|message| Waiting {
        reason: Reason::WaitingForDataset,
        message,
    })?;
    let blueprint = Blueprint::new(job, &turn.observed.datasets, turn.config)?;
    let unsized_gang = blueprint.gang(&Sizing::default(), CpuMilli(0))?;
    let share = smallest_share(turn, &unsized_gang);
    let memory = size(
        job.spec.memory.as_ref(),
        job.spec.priority,
        share.as_ref().map(|(share, _)| share),
    );
    let cpus = cpus(turn, share.as_ref());
    let gang = blueprint.gang(&memory, cpus)?;
    let plan = place(&turn.observed.cluster, &gang).map_err(|why| Waiting {
        reason: why.reason(),
        message: why.to_string(),
    })?;
    let number = turn.status.attempt.saturating_add(1);
    Ok(Attempt {
        number,
        placed_at: Some(Time(turn.now)),
        generation: job.metadata.generation,
        port: port(turn, &blueprint, number)?,
        nodes: plan.nodes,
        cpus: Some(cpus),
        memory: Some(memory),
        ..Attempt::default()
    })
}

/// The part that a worker has in a node, of all nodes it may run on the least: then it fits any of them. With the node's CPUs.
fn smallest_share(turn: &Turn<'_>, gang: &Gang) -> Option<(Share, CpuMilli)> {
    let nodes = candidates(&turn.observed.cluster, gang);
    let workers = gang
        .workers
        .div_ceil(u32::try_from(nodes.len()).ok().filter(|n| *n > 0)?);
    let shares = nodes.iter().map(|node| {
        let share = Share {
            memory: node.allocatable.memory,
            node_gpus: node.allocatable.gpus,
            gpus: turn.job.spec.gpus.whole(),
            workers,
        };
        (share, node.allocatable.cpu)
    });
    shares.min_by_key(|(share, cpu)| (share_of(share.memory.0, share), share_of(cpu.0, share)))
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
    })
}
