//! Where the workers of a gang go.
//!
//! The gang is held against the shapes of nodes ([`survey`]), which leaves spots: kinds of nodes with room for some workers. [`pack`] chooses among
//! them: the fewest and tightest domains, in those the fewest nodes, and among nodes that hold as many the one that loses least ([`score`]). Where
//! its data lies has a say among domains of one level and among nodes ([`copying`]), and in nothing else.

mod appraisal;
mod copying;
mod lens;
mod need;
mod pack;
mod proportion;
mod score;
mod survey;

use std::cmp::Reverse;
use std::iter::repeat_n;

use crate::data::Data;
use crate::explain::{Explanation, NoRoom};
use crate::gang::Gang;
use crate::resources::Resources;
use crate::snapshot::{DEVICE, Node, Position, Room, Snapshot, devices_of};

pub(crate) use self::appraisal::Appraisal;
pub use self::appraisal::Appraiser;
use self::copying::Copying;
pub(crate) use self::lens::{Lens, Waiver};
use self::need::Need;
use self::pack::{Pick, pack};
pub(crate) use self::survey::{Level, Spot, Survey, workers};

/// Where a gang goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The node of each worker, by rank. Ranks follow the topology: neighbours share a node, or are in nodes of one domain, where they can.
    /// As many as the gang has workers; of an elastic one, as many as there is room for.
    pub nodes: Vec<String>,
    /// The GPUs of each worker, by rank; none where the device plugin picks.
    pub devices: Vec<Vec<u32>>,
    /// What a worker's pod has to ask for in place of `nvidia.com/gpu`, and how much of it: a MIG slice, or a turn in time.
    pub resource: Option<(String, u64)>,
}

impl Plan {
    /// What each worker counts for on its node.
    pub fn each(&self, gang: &Gang) -> Resources {
        let ask = gang.ask.clone();
        match &self.resource {
            Some((name, count)) => ask.with(name, *count),
            None => ask,
        }
    }
}

/// Finds room for the whole gang, or says why there is none.
///
/// No node or GPU is given more than it has free. The same snapshot and gang give the same plan.
pub fn place(snapshot: &Snapshot, gang: &Gang) -> Result<Plan, Explanation> {
    let survey = Survey::of(snapshot, gang, Lens::default());
    if let Level::Unknown(level) = survey.level {
        return Err(Explanation::NoSuchLevel {
            level: level.to_owned(),
            levels: snapshot.levels().to_vec(),
        });
    }
    planned(&survey, &Data::default())
        .ok_or_else(|| Explanation::NoRoom(Box::new(NoRoom::of(&survey))))
}

/// The same for who does not ask why.
pub fn find(snapshot: &Snapshot, gang: &Gang) -> Option<Plan> {
    find_near(snapshot, gang, &Data::default())
}

/// The same for a gang that reads this. There is room exactly where there is without it, and for as many workers.
pub fn find_near(snapshot: &Snapshot, gang: &Gang, data: &Data<'_>) -> Option<Plan> {
    planned(&Survey::of(snapshot, gang, Lens::default()), data)
}

fn planned(survey: &Survey<'_>, data: &Data<'_>) -> Option<Plan> {
    if survey.gang.workers == 0 {
        return Some(Plan::default());
    }
    let copying = Copying::of(survey.snapshot, data);
    let (picks, need) = pack(survey, &copying)?;
    Some(plan(survey, &picks, need))
}

/// How many workers of the gang there is room for, up to all of them. Cheaper than [`place`] where the answer is not all.
pub fn fitting(snapshot: &Snapshot, gang: &Gang) -> u32 {
    Survey::of(snapshot, gang, Lens::default()).fitting()
}

/// The nodes a worker may run on at all, busy or not and however much it asks for; by name. What it asks for where its author said
/// nothing is measured by these.
pub fn candidates<'a>(snapshot: &'a Snapshot, gang: &Gang) -> Vec<&'a Node> {
    let bare = Gang {
        ask: Resources {
            gpus: gang.ask.gpus,
            ..Resources::default()
        },
        topology: None,
        ..gang.clone()
    };
    let survey = Survey::of(snapshot, &bare, Lens::IDLE);
    let mut found: Vec<&Node> = survey
        .roomy()
        .map(|position| snapshot.at(position))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn plan(survey: &Survey<'_>, picks: &[Pick], need: &Need) -> Plan {
    let mut plan = Plan {
        resource: need
            .resource
            .as_ref()
            .map(|resource| (resource.to_string(), 1)),
        ..Plan::default()
    };
    for pick in picks {
        let node = survey.snapshot.at(pick.position);
        let workers = pick.workers as usize;
        plan.nodes.extend(repeat_n(&node.name, workers).cloned());
        if node.devices.is_none() {
            plan.devices.extend(repeat_n(Vec::new(), workers));
            continue;
        }
        let mut node = node.clone();
        for _ in 0..workers {
            let chosen = devices(survey, pick.position, &node);
            for (in_use, more) in devices_of(&mut node, &chosen, survey.gang) {
                *in_use = in_use.saturating_add(more);
            }
            plan.devices.push(chosen);
        }
    }
    plan
}

/// The GPUs of one more worker on this node, where it is us who choose.
fn devices(survey: &Survey<'_>, position: Position, node: &Node) -> Vec<u32> {
    let Survey { snapshot, gang, .. } = *survey;
    let in_use = (0..).zip(node.devices.iter().flatten().copied());
    let Some(milli) = gang.device_milli() else {
        let idle = in_use.filter(|(_, used)| *used == 0);
        return idle
            .take(gang.ask.gpus as usize)
            .map(|(index, _)| index)
            .collect();
    };
    let shape = snapshot.shape(position);
    let appraised = snapshot.worth().and_then(|worth| {
        let room = Room::of(node, shape);
        worth.best_part(gang, &snapshot.shapes().all()[shape as usize], &room)
    });
    // Unless something else is worth more: one that is shared already before one that could be had whole, the fullest that has room.
    let room = in_use.filter(|(_, used)| *used <= DEVICE.saturating_sub(milli));
    let chosen = room.max_by_key(|(index, used)| {
        let is_best = appraised == Some(DEVICE - used);
        (is_best, *used, Reverse(*index))
    });
    chosen.map(|(index, _)| index).into_iter().collect()
}
