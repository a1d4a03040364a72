//! What would help: every answer is one that the solver gave to a changed question, so that who does as told gets what was said.

mod pool;
mod together;

use std::collections::{BTreeMap, BTreeSet};

use stoke_api::{GpuMilli, GpuRequest};

use super::{Help, Obstacle, required_level};
use crate::gang::{Gang, Topology};
use crate::gpu::{MIG_PREFIX, Parts, milli_of_replica};
use crate::place::{Lens, Survey, Waiver};
use crate::snapshot::{Snapshot, Taint};

/// Kinds of GPU that are tried. Nobody reads a longer list.
const TRIED_MAX: usize = 8;

/// Taints that are named. The rest is counted.
const TAINTS_TOLD_MAX: usize = 3;

/// Conditions of the cluster or of the job's author that are done without one at a time, and where each is met.
const WAIVERS: [(Waiver, Obstacle); 7] = [
    (Waiver::Ready, Obstacle::NotReady),
    (Waiver::Cordon, Obstacle::Cordoned),
    (Waiver::Trouble, Obstacle::InTrouble),
    (Waiver::Spot, Obstacle::WrongSpot),
    (Waiver::Selector, Obstacle::NotSelected),
    (Waiver::Volumes, Obstacle::FarFromVolume),
    (Waiver::Taints, Obstacle::Tainted),
];

/// What it is called to do without a condition. `survey` does without it.
fn called(waiver: Waiver, survey: &Survey<'_>) -> Help {
    match waiver {
        Waiver::Ready => Help::WaitForReady,
        Waiver::Cordon => Help::Uncordon,
        Waiver::Spot => Help::OtherSpot,
        Waiver::Selector => Help::OtherSelector,
        Waiver::Volumes => Help::NearVolume,
        Waiver::Trouble => {
            let taints = survey.waived_taints(waiver).into_iter();
            let troubles = taints.filter_map(Taint::trouble).collect();
            Help::Mend { troubles }
        }
        Waiver::Taints => {
            let taints = survey.waived_taints(waiver);
            let more = taints.len().saturating_sub(TAINTS_TOLD_MAX);
            let taints = taints.into_iter().take(TAINTS_TOLD_MAX);
            let taints = taints.cloned().collect();
            Help::Tolerate { taints, more }
        }
        Waiver::GpuTypes => Help::OtherGpuTypes {
            products: BTreeSet::new(),
        },
        Waiver::Topology => Help::WiderTopology { level: None },
    }
}

pub(super) fn find(survey: &Survey<'_>, obstacles: &BTreeMap<Obstacle, u32>) -> Vec<Help> {
    let Survey { snapshot, gang, .. } = *survey;
    if snapshot.is_empty() {
        return vec![Help::AddNode];
    }
    let idle = Survey::of(snapshot, gang, Lens::IDLE);
    let waits = idle.is_enough();
    let base = if waits { survey } else { &idle };
    let asking = Asking {
        snapshot,
        gang,
        lens: base.lens,
        obstacles,
    };
    let mut found = Vec::new();
    found.extend(waits.then_some(Help::Wait));
    found.extend(fewer_workers(base));
    found.extend(asking.other_types());
    found.extend(asking.other_gpus());
    found.extend(asking.wider_topology());
    found.extend(asking.without(waits));
    found.extend(pool::more_nodes(base, &idle));
    if found.is_empty() {
        found.push(together::find(snapshot, gang));
    }
    found
}

fn fewer_workers(base: &Survey<'_>) -> Option<Help> {
    let fitting = base.fitting();
    (fitting > 0).then_some(Help::FewerWorkers { fitting })
}

struct Asking<'a> {
    snapshot: &'a Snapshot,
    gang: &'a Gang,
    lens: Lens,
    obstacles: &'a BTreeMap<Obstacle, u32>,
}

impl Asking<'_> {
    fn would_do(&self, gang: &Gang) -> bool {
        Survey::of(self.snapshot, gang, self.lens).is_enough()
    }

    fn met(&self, obstacle: Obstacle) -> bool {
        self.obstacles.contains_key(&obstacle)
    }

    fn other_types(&self) -> Option<Help> {
        if !self.met(Obstacle::WrongGpuType) {
            return None;
        }
        let shapes = self.snapshot.shapes().all().iter();
        let products: BTreeSet<&String> = shapes
            .filter_map(|shape| shape.gpu.as_ref())
            .map(|gpu| &gpu.product)
            .filter(|product| !self.gang.gpu_types.contains(product))
            .collect();
        let with = |product: &String| {
            let mut gang = self.gang.clone();
            gang.gpu_types.push(product.clone());
            gang
        };
        let products: BTreeSet<String> = products
            .into_iter()
            .take(TRIED_MAX)
            .filter(|product| self.would_do(&with(product)))
            .cloned()
            .collect();
        let any = Gang {
            gpu_types: Vec::new(),
            ..self.gang.clone()
        };
        let helps = !products.is_empty() || self.would_do(&any);
        helps.then_some(Help::OtherGpuTypes { products })
    }

    fn other_gpus(&self) -> Option<Help> {
        let misses = [
            Obstacle::PartedGpus,
            Obstacle::WholeGpusOnly,
            Obstacle::PartsTooSmall,
            Obstacle::OtherSlices,
        ];
        if !misses.into_iter().any(|miss| self.met(miss)) {
            return None;
        }
        let there = gpus_instead(self.snapshot, self.gang).into_iter();
        let gpus: Vec<GpuRequest> = there
            .filter(|gpus| self.would_do(&self.gang.with_gpus(gpus.clone())))
            .collect();
        (!gpus.is_empty()).then_some(Help::OtherGpus { gpus })
    }

    /// The next wider level that has room, or none at all.
    fn wider_topology(&self) -> Option<Help> {
        let level = required_level(self.gang)?;
        let levels = self.snapshot.levels();
        let known = levels.iter().position(|known| known == level);
        let wider = levels[..known.unwrap_or(levels.len())].iter().rev();
        let mut wider = wider.map(|level| Some(level.clone())).chain([None]);
        let with = |level: &Option<String>| Gang {
            topology: Some(match level {
                Some(level) => Topology::Required {
                    level: level.clone(),
                },
                None => Topology::Preferred,
            }),
            ..self.gang.clone()
        };
        let level = wider.find(|level| self.would_do(&with(level)))?;
        Some(Help::WiderTopology { level })
    }

    /// A job that has only to wait is not told to undo what its author asks of nodes.
    fn without(&self, waits: bool) -> impl Iterator<Item = Help> {
        let tried = WAIVERS.into_iter().filter(move |(waiver, obstacle)| {
            let is_asked = matches!(waiver, Waiver::Selector | Waiver::Volumes | Waiver::Taints);
            self.met(*obstacle) && !(waits && is_asked)
        });
        tried.filter_map(|(waiver, _)| {
            let lens = self.lens.without(waiver);
            let survey = Survey::of(self.snapshot, self.gang, lens);
            survey.is_enough().then(|| called(waiver, &survey))
        })
    }
}

/// What nodes give out that could be asked for in place of what is: slices, turns, whole GPUs.
fn gpus_instead(snapshot: &Snapshot, gang: &Gang) -> Vec<GpuRequest> {
    let mut slices = BTreeSet::new();
    let mut turns = BTreeSet::new();
    let mut has_whole = false;
    for shape in snapshot.shapes().all() {
        let named = shape.parts.iter();
        slices.extend(named.filter_map(|part| part.strip_prefix(MIG_PREFIX)));
        match shape.gpu.as_ref().map(|gpu| &gpu.parts) {
            Some(Parts::Mig { profile }) => {
                slices.insert(profile);
            }
            Some(Parts::Turns { replicas }) => turns.extend(milli_of_replica(*replicas)),
            Some(Parts::Whole) | None => has_whole |= shape.has_gpus,
        }
    }
    let slices = slices.into_iter();
    let slices = slices.map(|profile| GpuRequest::Mig(profile.to_owned()));
    let turns = turns.into_iter().filter(|turn| (1..1000).contains(turn));
    let turns = turns.map(|turn| GpuRequest::Fraction(GpuMilli(turn)));
    let whole = (has_whole && gang.wants_part()).then_some(GpuRequest::Whole(1));
    let all = slices.chain(turns).chain(whole);
    let others = all.filter(|gpus| *gpus != gang.gpus);
    others.take(TRIED_MAX).collect()
}
