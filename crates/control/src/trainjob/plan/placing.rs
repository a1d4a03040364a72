//! The next attempt: how large its workers are, and what it is made of when there is room for it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::profile::PROFILE_VERSION;
use stoke_api::trainjob::{Attempt, Network, Outcome, Priority, Qos, Sizing, Tuning};
use stoke_api::{Bytes, CpuMilli, Reason, TrainJob};
use stoke_memory::estimate::{Gpu, fits, gpu};
use stoke_memory::{Advice, FailureCost, History, Share, lopsided, share_of, size};
use stoke_sched::{Fetch, Gang, Node, Plan, candidates};

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
    let nodes = nodes_for(turn, &blueprint)?;
    model_fits(turn, &nodes)?;
    let size = size_on(turn, &nodes);
    Ok(Ask {
        gang: Arc::new(surrounded(turn, blueprint.gang(&size)?)),
        size,
        shares_network: blueprint.network() == Network::Host,
        until: avoided(turn).map(|(_, until)| until).min(),
    })
}

/// The nodes that its workers may run on, whatever is used of them.
pub fn nodes<'a>(turn: &'a Turn<'_>) -> Result<Vec<&'a Node>, Misconfigured> {
    let blueprint = Blueprint::new(turn.job, &turn.observed.datasets, turn.config)?;
    nodes_for(turn, &blueprint)
}

fn nodes_for<'a>(
    turn: &'a Turn<'_>,
    blueprint: &Blueprint<'_>,
) -> Result<Vec<&'a Node>, Misconfigured> {
    let gang = surrounded(turn, blueprint.gang(&untold(turn))?);
    Ok(candidates(&turn.observed.cluster, &gang))
}

/// What each worker of the next attempt gets, whatever else that waits for.
pub fn next_size(turn: &Turn<'_>) -> Result<Size, Misconfigured> {
    Ok(size_on(turn, &nodes(turn)?))
}

/// Nothing is chosen but what earlier attempts have taught.
fn untold(turn: &Turn<'_>) -> Size {
    Size {
        tuning: turn.status.tuning.clone(),
        ..Size::default()
    }
}

/// What runs like it needed.
pub fn advice(turn: &Turn<'_>) -> Option<Advice> {
    let profile = turn.observed.profile.as_ref()?;
    if profile.spec.version != PROFILE_VERSION {
        return None;
    }
    let history = History::of(&profile.spec.history);
    history.advise(turn.observed.input, FailureCost::default())
}

/// What each worker gets: what its author said, what runs like it needed, and what attempts before this died for want of.
fn size_on(turn: &Turn<'_>, nodes: &[&Node]) -> Size {
    let share = smallest_share(turn, nodes);
    let share = share.as_ref();
    let spec = &turn.job.spec;
    let tuning = turn.status.tuning.clone();
    let advice = advice(turn);
    let part = share.map(|(share, _)| share);
    let mut memory = size(spec.memory.as_ref(), spec.priority, part, advice.as_ref());
    if turn
        .observed
        .profile
        .as_ref()
        .is_some_and(|it| it.spec.version != PROFILE_VERSION)
    {
        memory
            .why
            .push_str("; what runs like it used is kept in a form that this version does not read");
    }
    let said_max = spec.memory.as_ref().and_then(|memory| memory.max);
    give_more(&mut memory, &tuning, said_max, is_promised(turn.job));
    if let Some(warning) = part.and_then(|part| lopsided(&memory, part)) {
        memory.why = format!("{}; {warning}", memory.why);
    }
    let said = spec.memory.clone().unwrap_or_default();
    // A limit that its author set is not raised unless its author said how far.
    let most = part.map(|part| part.memory.max(part.largest));
    let memory_max = said.max.or(most.filter(|_| said.limit.is_none()));
    let learned = advice.as_ref().and_then(|advice| advice.storage);
    let shared = storage(turn, nodes);
    Size {
        cpus: cpus(turn, share),
        memory_max: memory_max.filter(|max| *max > memory.limit),
        memory_expected: advice
            .as_ref()
            .and(peak(turn))
            .filter(|_| !has_run_out(turn)),
        memory,
        storage: tuning
            .storage
            .or(shared.map(|shared| shared.max(learned.unwrap_or_default()))),
        storage_promised: tuning.storage.or(learned),
        shm: tuning.shm,
        gpu_resource: None,
        tuning,
    }
}

/// The most that a run like it is known to have needed.
fn peak(turn: &Turn<'_>) -> Option<Bytes> {
    let history = &turn.observed.profile.as_ref()?.spec.history;
    history.iter().map(|run| run.peak).max()
}

/// What a job had when it ran out is no measure of what it needs.
fn has_run_out(turn: &Turn<'_>) -> bool {
    turn.status.attempts.iter().any(|attempt| {
        attempt.outcome == Some(Outcome::Restarted)
            || attempt
                .exit
                .as_ref()
                .is_some_and(|exit| exit.reason == "OOMKilled")
    })
}

/// Is all of its memory promised?
fn is_promised(job: &TrainJob) -> bool {
    let memory = job.spec.memory.as_ref();
    memory.is_some_and(|memory| memory.qos == Qos::Guaranteed)
        || job.spec.priority == Priority::Production
}

/// What an attempt died at is not given again, whoever said it.
fn give_more(memory: &mut Sizing, tuning: &Tuning, max: Option<Bytes>, is_promised: bool) {
    // Its author may allow less than before.
    let more = tuning
        .memory
        .map(|limit| max.map_or(limit, |max| limit.min(max)));
    if let Some(limit) = more.filter(|limit| *limit > memory.limit) {
        memory.why = format!(
            "{} since it ran out of {}; before that {}",
            limit.human(),
            memory.limit.human(),
            memory.why
        );
        memory.limit = limit;
    }
    let request = tuning
        .memory_request
        .unwrap_or_default()
        .max(memory.request);
    memory.request = if is_promised {
        memory.limit
    } else {
        request.min(memory.limit)
    };
}

/// A job whose model no GPU that there is can hold is told so, and takes nobody's place.
fn model_fits(turn: &Turn<'_>, nodes: &[&Node]) -> Result<(), Waiting> {
    let spec = &turn.job.spec;
    let Some(model) = &spec.model else {
        return Ok(());
    };
    let there = nodes.iter().filter_map(|node| node.gpu.as_ref());
    let there = there.filter_map(|gpu| Some(Gpu::measured(&gpu.product, gpu.memory?)));
    let mut gpus: Vec<Gpu> = there.collect();
    // An autoscaler may bring others of the types that it names.
    if gpus.is_empty() || turn.config.autoscaling.is_some() {
        gpus.extend(spec.gpu_types.iter().flat_map(|name| gpu(name)));
    }
    fits(model, spec.workers_max(), &spec.gpus, &gpus).map_err(|wrong| Waiting {
        reason: Reason::ModelTooBig,
        message: format!("{wrong}; {}", wrong.help()),
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
        memory_max: size.memory_max,
        memory_expected: size.memory_expected,
        storage: size.storage,
        storage_promised: size.storage_promised,
        shm: size.shm,
        tuning: size.tuning,
        changes: turn.status.changes.clone(),
        changed_for: turn.status.changed_for.clone(),
        spot: turn.has_spot(&grant.plan.nodes),
        data: told(&grant.fetches),
        ..placed(turn.job, &grant.plan)
    }
}

/// What of its data is where it goes, in words.
fn told(fetches: &[Fetch]) -> Option<String> {
    let told: Vec<String> = fetches.iter().map(ToString::to_string).collect();
    (!told.is_empty()).then(|| told.join("; "))
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
        spot: turn.spot(),
        avoid: avoided(turn)
            .map(|(node, _)| node)
            .chain(&turn.status.tuning.avoid_nodes)
            .cloned()
            .collect(),
        ..gang
    }
}

/// A worker's part in a node.
pub fn share(turn: &Turn<'_>, node: &Node, nodes: usize) -> Option<Share> {
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
    let least =
        shares.min_by_key(|(share, cpu)| (share_of(share.memory.0, share), share_of(cpu.0, share)));
    let largest = nodes.iter().map(|node| node.allocatable.memory).max();
    least.map(|(share, cpu)| {
        let largest = largest.unwrap_or(share.memory);
        (Share { largest, ..share }, cpu)
    })
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
