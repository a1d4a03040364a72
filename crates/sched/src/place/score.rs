//! Which of the nodes that have the room loses least by giving it.

use super::copying::Delay;
use super::need::Need;
use super::proportion::stranded;
use crate::gpu::units;
use crate::snapshot::{DEVICE, Room};

/// What is lost where a node takes some workers. The least wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Loss {
    /// What the work that is asked for lately could have done with it, in hundredths of a GPU; the same for all while nobody knows. And what
    /// is lost while data is copied there.
    worth: i64,
    /// GPUs without CPU or memory: nobody can use them until the workers end.
    stranded: i64,
    /// GPUs that could be had whole, and are shared from now on.
    opened: u32,
    /// What is left of the GPU that is shared: the smaller, the fewer will miss it.
    crumb: u16,
    /// GPUs left free on the node. A gap that is filled spares an emptier node for larger workers.
    gpus: u64,
    /// Bytes to copy, where they are too few to count above.
    copied: u64,
    /// Of what is left of the rest likewise.
    cpu: u64,
    memory: u64,
}

impl Loss {
    pub(super) fn of(need: &Need, room: &Room, workers: u32, worth: i64) -> Self {
        let times = u64::from(workers);
        let left = |free: u64, each: u64| free.saturating_sub(each.saturating_mul(times));
        let (opened, crumb) = need
            .part
            .map_or((0, 0), |milli| shared(room, milli, workers));
        let taken = u64::from(opened).saturating_add(units(&need.ask).saturating_mul(times));
        Self {
            worth,
            stranded: stranded(need, room, workers),
            opened,
            crumb,
            gpus: units(&room.free).saturating_sub(taken),
            copied: 0,
            cpu: left(room.free.cpu.0, need.ask.cpu.0),
            memory: left(room.free.memory.0, need.ask.memory.0),
        }
    }

    /// With what copying to the node costs.
    pub(super) fn and(self, delay: Delay) -> Self {
        Self {
            worth: self.worth.saturating_add(delay.worth),
            copied: delay.bytes,
            ..self
        }
    }
}

/// The GPUs that parts of this size open, and what is left of the last one used, where the fullest that has room is used first.
fn shared(room: &Room, milli: u16, workers: u32) -> (u32, u16) {
    let mut missing = workers;
    let mut crumb = 0;
    for free in room.shared.iter().filter(|free| **free >= milli) {
        let here = missing.min(u32::from(free / milli));
        if here > 0 {
            crumb = free - milli * here as u16;
        }
        missing -= here;
    }
    let each = u32::from(DEVICE / milli).max(1);
    let opened = missing.div_ceil(each);
    if opened > 0 {
        let last = missing - (opened - 1) * each;
        crumb = DEVICE - milli * last as u16;
    }
    (opened, crumb)
}
