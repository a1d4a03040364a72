//! What one worker takes of a node, and how often a node has it.

use std::sync::Arc;

use stoke_api::GpuRequest;
use stoke_api::names::GPU_RESOURCE;

use crate::explain::Obstacle;
use crate::gang::Gang;
use crate::gpu::{MIG_PREFIX, Parts, SHARED_RESOURCE, milli_of_replica, milli_of_slice};
use crate::resources::Resources;
use crate::snapshot::{DEVICE, Room, Shape};

/// How a worker has its GPUs, on nodes of one shape.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Whole ones, or none.
    Whole,
    /// A part of one that we choose.
    Device,
    /// A MIG slice, by the name it is counted under.
    Slice(Arc<str>),
    /// A turn in time, likewise. Who shares so is not kept apart, so a slice is the better.
    Turn(Arc<str>),
}

/// What one worker takes of a node. All workers of a plan take the same.
#[derive(Debug, Clone)]
pub(crate) struct Need {
    pub ask: Resources,
    /// Thousandths of one GPU that we choose.
    pub part: Option<u16>,
    /// What stands for its GPUs in `ask`, where it is not `nvidia.com/gpu` as its author would think.
    pub resource: Option<Arc<str>>,
}

/// Names of slices are round: a quarter of 141 GB is called 35.
const SLICE_PERCENT: u32 = 98;

impl Way {
    pub(super) fn of(gang: &Gang, shape: &Shape) -> Result<Self, Obstacle> {
        let none = || {
            if !shape.has_any_gpu() {
                Obstacle::TooFewGpus
            } else if shape.parts.is_empty() && shape.counts_whole() {
                Obstacle::WholeGpusOnly
            } else {
                Obstacle::PartsTooSmall
            }
        };
        match &gang.gpus {
            GpuRequest::Fraction(_) if shape.has_devices && shape.has_gpus => Ok(Self::Device),
            GpuRequest::Fraction(milli) => smallest_part(shape, milli.0).ok_or_else(none),
            GpuRequest::Mig(profile) => {
                let resource = format!("{MIG_PREFIX}{profile}");
                if shape.parts.iter().any(|part| **part == *resource) {
                    Ok(Self::Slice(resource.into()))
                } else if shape.has_gpus && shape.slices() == Some(profile) {
                    Ok(Self::Slice(GPU_RESOURCE.into()))
                } else if shape.has_any_gpu() {
                    Err(Obstacle::OtherSlices)
                } else {
                    Err(Obstacle::TooFewGpus)
                }
            }
            GpuRequest::None | GpuRequest::Whole(_) => {
                let parted = if shape.has_gpus {
                    !shape.counts_whole()
                } else {
                    !shape.parts.is_empty()
                };
                if gang.ask.gpus > 0 && parted {
                    Err(Obstacle::PartedGpus)
                } else {
                    Ok(Self::Whole)
                }
            }
        }
    }

    pub(super) fn need(&self, gang: &Gang) -> Need {
        let ask = gang.ask.clone();
        match self {
            Self::Whole => Need {
                ask,
                part: None,
                resource: None,
            },
            Self::Device => Need {
                ask,
                part: gang.device_milli(),
                resource: None,
            },
            Self::Slice(name) | Self::Turn(name) => Need {
                ask: ask.with(name, 1),
                part: None,
                resource: Some(name.clone()),
            },
        }
    }
}

/// The smallest part of a GPU that these nodes give out and that is as much as was asked for.
fn smallest_part(shape: &Shape, milli: u32) -> Option<Way> {
    let gpu = shape.gpu.as_ref();
    let is_enough =
        |slice: u32| u64::from(slice) * 100 >= u64::from(milli) * u64::from(SLICE_PERCENT);
    let named = shape.parts.iter().filter_map(|name| {
        let slice = milli_of_slice(name.strip_prefix(MIG_PREFIX)?, gpu)?;
        is_enough(slice).then_some((slice, name))
    });
    if let Some((_, name)) = named.min() {
        return Some(Way::Slice(name.clone()));
    }
    match gpu.map(|gpu| &gpu.parts)? {
        Parts::Mig { profile } => {
            let slice = milli_of_slice(profile, gpu)?;
            let fits = shape.has_gpus && is_enough(slice);
            fits.then(|| Way::Slice(GPU_RESOURCE.into()))
        }
        Parts::Turns { replicas } => {
            milli_of_replica(*replicas).filter(|turn| *turn >= milli)?;
            let mut parts = shape.parts.iter();
            let renamed = parts.find(|name| ***name == *SHARED_RESOURCE);
            let counted = shape.has_gpus.then(|| GPU_RESOURCE.into());
            renamed.cloned().or(counted).map(Way::Turn)
        }
        Parts::Whole => None,
    }
}

impl Shape {
    pub(super) fn has_any_gpu(&self) -> bool {
        self.has_gpus || !self.parts.is_empty()
    }

    fn counts_whole(&self) -> bool {
        self.gpu
            .as_ref()
            .is_none_or(|gpu| gpu.parts == Parts::Whole)
    }

    fn slices(&self) -> Option<&String> {
        match &self.gpu.as_ref()?.parts {
            Parts::Mig { profile } => Some(profile),
            _ => None,
        }
    }
}

impl Need {
    /// How many workers a node has room for; were nothing else on it, if `idle`.
    pub(crate) fn times(&self, room: &Room, idle: bool) -> u32 {
        let free = if idle { &room.have } else { &room.free };
        let times = free.times(&self.ask);
        match self.part {
            Some(milli) if times > 0 => times.min(parts(room, free.gpus, milli, idle)),
            _ => times,
        }
    }

    /// The first thing of which a node has too little for even one worker.
    pub(crate) fn shortage(&self, room: &Room, idle: bool) -> Option<Obstacle> {
        let shortage = short_of(&room.have, &self.ask, Obstacle::TOO_SMALL);
        if idle {
            return shortage;
        }
        let in_use = || {
            let taken = self
                .part
                .is_some_and(|milli| parts(room, room.free.gpus, milli, false) == 0);
            let taken = taken.then_some(Obstacle::GpusInUse);
            taken.or_else(|| short_of(&room.free, &self.ask, Obstacle::IN_USE))
        };
        shortage.or_else(in_use)
    }
}

/// How many parts of this size a node has on its GPUs.
fn parts(room: &Room, whole: u32, milli: u16, idle: bool) -> u32 {
    let on_shared = room.shared.iter().map(|free| u32::from(free / milli));
    let on_shared = if idle { 0 } else { on_shared.sum() };
    whole
        .saturating_mul(u32::from(DEVICE / milli))
        .saturating_add(on_shared)
}

/// The first resource of which there is too little; `names` in the order GPUs, memory, CPUs, disk, pods, others.
fn short_of(have: &Resources, ask: &Resources, names: [Obstacle; 6]) -> Option<Obstacle> {
    let short = [
        ask.gpus > have.gpus,
        ask.memory > have.memory,
        ask.cpu > have.cpu,
        ask.storage > have.storage,
        ask.pods > have.pods,
        have.lacks(ask).is_some(),
    ];
    short.iter().position(|short| *short).map(|i| names[i])
}
