//! No single change is enough: what has to be done together, and nothing that need not be.

use stoke_api::{Bytes, CpuMilli, GpuRequest};

use super::super::{Help, Obstacle};
use super::{called, gpus_instead};
use crate::gang::Gang;
use crate::place::{Lens, Survey, Waiver};
use crate::resources::Resources;
use crate::snapshot::{Room, Seated, Snapshot};

/// All that can be thought away, in the order in which it is put back if it need not be.
const ALL: [Waiver; 9] = [
    Waiver::Volumes,
    Waiver::Selector,
    Waiver::Taints,
    Waiver::Trouble,
    Waiver::Ready,
    Waiver::Cordon,
    Waiver::Spot,
    Waiver::GpuTypes,
    Waiver::Topology,
];

pub(super) fn find(snapshot: &Snapshot, gang: &Gang) -> Help {
    let mut helps = Vec::new();
    let anywhere = Survey::of(snapshot, gang, without(&ALL));
    if anywhere.fitting() > 0 {
        helps.extend(waivers(snapshot, gang));
    } else if let Some((help, smaller)) = smaller(&anywhere) {
        // Whatever is thought away: no node is so large, or none has what it asks for.
        helps.push(help);
        helps.extend(waivers(snapshot, &smaller));
    } else {
        helps.push(Help::OtherNodes);
    }
    match <[Help; 1]>::try_from(helps) {
        Ok([one]) => one,
        Err(several) => Help::All(several),
    }
}

fn without(waivers: &[Waiver]) -> Lens {
    waivers
        .iter()
        .fold(Lens::IDLE, |lens, waiver| lens.without(*waiver))
}

/// The fewest conditions to do away with, and how many workers there is room for then, if not for all.
fn waivers(snapshot: &Snapshot, gang: &Gang) -> Vec<Help> {
    let fitting = |waived: &[Waiver]| Survey::of(snapshot, gang, without(waived)).fitting();
    let target = gang.least().min(fitting(&ALL));
    let mut waived = ALL.to_vec();
    for waiver in ALL {
        let fewer: Vec<Waiver> = waived.iter().copied().filter(|w| *w != waiver).collect();
        if fitting(&fewer) >= target {
            waived = fewer;
        }
    }
    let survey = Survey::of(snapshot, gang, without(&waived));
    let helps = waived.into_iter().map(|waiver| called(waiver, &survey));
    let mut helps: Vec<Help> = helps.collect();
    if target < gang.least() {
        helps.push(Help::FewerWorkers { fitting: target });
    }
    helps
}

/// A smaller ask, of which a node that is there has room for one worker.
fn smaller(anywhere: &Survey<'_>) -> Option<(Help, Gang)> {
    let Survey { snapshot, gang, .. } = *anywhere;
    let fits = |gang: &Gang| Survey::of(snapshot, gang, without(&ALL)).fitting() > 0;
    let instead = gpus_instead(snapshot, gang).into_iter();
    let mut instead = instead.map(|gpus| (gang.with_gpus(gpus.clone()), gpus));
    if let Some((gang, gpus)) = instead.find(|(gang, _)| fits(gang)) {
        return Some((Help::OtherGpus { gpus: vec![gpus] }, gang));
    }
    if let Some(found) = lacking(anywhere).filter(|(_, gang)| fits(gang)) {
        return Some(found);
    }
    let here = Survey::of(snapshot, gang, Lens::IDLE);
    let rooms = rooms(snapshot).filter(|room| room.have.pods >= gang.ask.pods);
    // One that it may run on before one that it may not.
    let key = |room: &Room| {
        let may = here.verdict(room).is_ok();
        let have = &room.have;
        (may, have.gpus.min(gang.ask.gpus), have.memory, have.cpu)
    };
    let largest = rooms.reduce(
        |best, room| {
            if key(&room) > key(&best) { room } else { best }
        },
    );
    let largest = largest.map(|room| room.have).unwrap_or_default();
    let gpus = match &gang.gpus {
        GpuRequest::Whole(_) if largest.gpus > 0 => {
            GpuRequest::Whole(largest.gpus.min(gang.ask.gpus))
        }
        _ => GpuRequest::None,
    };
    let mut smaller = gang.with_gpus(gpus);
    smaller.ask = least(&gang.ask, &largest);
    fits(&smaller).then_some((Help::AskLess { largest }, smaller))
}

/// What a node that would do otherwise has too little of.
fn lacking(anywhere: &Survey<'_>) -> Option<(Help, Gang)> {
    let mut rooms = rooms(anywhere.snapshot);
    let (room, need) = rooms.find_map(|room| {
        let need = anywhere.verdict(&room).ok()?;
        let short = need.shortage(&room, true) == Some(Obstacle::LacksDevice);
        short.then_some((room, need))
    })?;
    let lacking = need.ask.others.iter();
    let lacking = lacking.filter(|(other, ask)| room.have.of(other) < **ask);
    let lacking: Vec<_> = lacking.map(|(other, _)| other.clone()).collect();
    let names: Vec<String> = lacking.iter().map(ToString::to_string).collect();
    let mut gang = anywhere.gang.clone();
    gang.ask.others.retain(|other, _| !lacking.contains(other));
    let what = names.join(" and ");
    Some((Help::Provide { what }, gang))
}

/// What each node has, in the order of the topology.
fn rooms(snapshot: &Snapshot) -> impl Iterator<Item = Room> {
    let chunks = snapshot.chunks().iter();
    chunks.flat_map(|chunk| chunk.nodes.iter().map(Seated::room))
}

/// The smaller of each.
fn least(ask: &Resources, have: &Resources) -> Resources {
    let others = ask.others.iter();
    let others = others.map(|(other, ask)| (other.clone(), (*ask).min(have.of(other))));
    Resources {
        cpu: CpuMilli(ask.cpu.0.min(have.cpu.0)),
        memory: Bytes(ask.memory.0.min(have.memory.0)),
        storage: Bytes(ask.storage.0.min(have.storage.0)),
        gpus: ask.gpus.min(have.gpus),
        pods: ask.pods,
        others: others.filter(|(_, amount)| *amount > 0).collect(),
    }
}
