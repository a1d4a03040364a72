//! What room is worth to the work that is asked for: the seam between nodes and [`crate::value`].

use std::iter::repeat_n;
use std::sync::Arc;

use super::need::Need;
use crate::gang::Gang;
use crate::gpu::{GpuModel, Parts, is_of_type};
use crate::snapshot::{Room, Shape, Snapshot};
use crate::value::{self, Ask, Mix, Model, Models, Seat, WHOLE};

/// Learns what work is asked for, and tells snapshots what their room is worth to it.
///
/// It guides the choice among places that fit, and never forbids one. A snapshot that was told nothing is packed tightly.
#[derive(Debug, Clone, Default)]
pub struct Appraiser {
    mix: Mix,
    /// Products, in the order in which they were met.
    models: Vec<GpuModel>,
}

/// What a snapshot was told.
#[derive(Debug)]
pub(crate) struct Appraisal(Appraiser);

/// A larger gang is no more typical of what comes than this.
const WORKERS_NOTED_MAX: u32 = 64;
const MIB: u64 = 1 << 20;

impl Appraiser {
    /// Takes note of a gang that was submitted: once for each, whether or not there is room for it. The snapshot is told what follows.
    pub fn observe(&mut self, snapshot: &mut Snapshot, gang: &Gang) {
        self.meet(snapshot);
        let Some(ask) = self.ask(gang, 1) else {
            return;
        };
        for _ in 0..gang.workers.min(WORKERS_NOTED_MAX) {
            self.mix.observe(&ask);
        }
        if self.mix.is_due() {
            let shapes = snapshot.shapes().all();
            let rooms = snapshot.rooms().counted();
            let rooms: Vec<(value::Room, usize)> = rooms
                .map(|(room, count)| {
                    (
                        self.room(&shapes[room.shape as usize], room),
                        count as usize,
                    )
                })
                .collect();
            let each = rooms.iter();
            self.mix
                .survey(each.flat_map(|(room, count)| repeat_n(room, *count)));
            snapshot.appraise(Arc::new(Appraisal(self.clone())));
        }
    }

    fn meet(&mut self, snapshot: &Snapshot) {
        let shapes = snapshot.shapes().all().iter();
        for gpu in shapes.filter_map(|shape| shape.gpu.as_ref()) {
            if self.models.len() < Model::MAX && !self.models.contains(gpu) {
                self.models.push(gpu.clone());
            }
        }
    }

    /// Models beyond the last that has a number share that.
    fn model(&self, shape: &Shape) -> Model {
        let gpu = shape.gpu.as_ref();
        let known = self.models.iter().position(|known| Some(known) == gpu);
        let number = known.unwrap_or(self.models.len()).min(Model::MAX - 1);
        Model::new(number).unwrap_or_default()
    }

    /// None where parts of GPUs are counted under names of their own: they are no room for anything else.
    fn ask(&self, gang: &Gang, workers: u32) -> Option<Ask> {
        let (gpus, milli) = match gang.device_milli() {
            Some(milli) if milli < WHOLE => (1, milli),
            Some(_) => (1, WHOLE),
            None if gang.wants_part() => return None,
            None => (gang.ask.gpus.checked_mul(workers)?, WHOLE),
        };
        let models = if gang.gpu_types.is_empty() {
            Models::ANY
        } else {
            let known = self.models.iter().enumerate();
            let asked = known.filter(|(_, gpu)| gang.gpu_types.iter().any(|t| is_of_type(t, gpu)));
            let asked = asked.filter_map(|(number, _)| Model::new(number));
            asked.fold(Models::NONE, Models::with)
        };
        let times = if gang.device_milli().is_some() {
            1
        } else {
            u64::from(workers)
        };
        Some(Ask {
            cpu: gang.ask.cpu.0.saturating_mul(times),
            memory: (gang.ask.memory.0 / MIB).saturating_mul(times),
            gpus,
            milli,
            models,
        })
    }

    fn room(&self, shape: &Shape, room: &Room) -> value::Room {
        let is_whole = shape
            .gpu
            .as_ref()
            .is_none_or(|gpu| gpu.parts == Parts::Whole);
        let whole = if is_whole { room.free.gpus as usize } else { 0 };
        let free = room.shared.iter().copied().chain(repeat_n(WHOLE, whole));
        let free_memory = room.free.memory.0 / MIB;
        value::Room::new(room.free.cpu.0, free_memory, self.model(shape), free)
    }
}

impl Appraisal {
    /// What a node loses by taking so many workers, in hundredths of a GPU.
    pub(super) fn lost(
        &self,
        gang: &Gang,
        need: &Need,
        shape: &Shape,
        room: &Room,
        workers: u32,
    ) -> i64 {
        if need.resource.is_some() {
            return 0;
        }
        let Some(ask) = self.0.ask(gang, workers) else {
            return 0;
        };
        let mut room = self.0.room(shape, room);
        // Rooms are rounded down, and it is known that there is enough.
        room.cpu = room.cpu.max(ask.cpu);
        room.memory = room.memory.max(ask.memory);
        let times = if need.part.is_some() { workers } else { 1 };
        let mut lost = 0_i64;
        for _ in 0..times {
            let worth = self.0.mix.worth(&room);
            let Some(offer) = self.0.mix.offer(&room, &worth, &ask) else {
                break;
            };
            room.take(&ask, offer.seat);
            lost = lost.saturating_sub(offer.score);
        }
        lost
    }

    /// The GPUs that a part is best taken of: those with so much free.
    pub(super) fn best_part(&self, gang: &Gang, shape: &Shape, room: &Room) -> Option<u16> {
        let ask = self.0.ask(gang, 1)?;
        let room = self.0.room(shape, room);
        let worth = self.0.mix.worth(&room);
        let offer = self.0.mix.offer(&room, &worth, &ask)?;
        Some(match offer.seat {
            Seat::Fresh => WHOLE,
            Seat::Shared(free) => free,
        })
    }
}
