//! What the room on a node is worth, so that work goes where least is lost.
//!
//! A crumb of a GPU that nothing fits into is worth nothing, however large; so are eight idle GPUs beside no free core. The worth of a room is the
//! GPU work it can still be expected to take, out of the mix of work that has been asked for lately. Work is put where that worth drops least.
//!
//! Three things make it up. `sizes` and `parts`: what a piece of a GPU is worth, from the prices at which the mix cuts GPUs up. `grid`: what GPUs are
//! worth beside the CPU and memory that are left with them. `scarcity`: what is short in the cluster as a whole, which no node can see alone.
//!
//! Nothing is known beforehand: until enough has been asked for, every room is worth the same, and the caller's rule for ties decides.
//!
//! Invariant: worth guides a choice among places that fit and never forbids one.

mod ask;
mod grid;
mod history;
mod parts;
mod room;
mod scarcity;
pub(crate) mod simplex;
pub(crate) mod sizes;
mod tables;

pub use ask::{Ask, Model, Models, WHOLE};
pub use room::{Room, Seat};

use history::{History, Share};
use scarcity::{Left, Scarcity};
use tables::{Extent, Tables};

/// The mix of work, learned as it comes, and what room is worth to it.
///
/// Scores are comparable for one ask and between two surveys; nothing else is promised about them.
#[derive(Debug, Clone, Default)]
pub struct Mix {
    history: History,
    /// The mix that the tables are made of, and how many asks had come then.
    mix: Vec<Share>,
    built_at: u64,
    checked_at: u64,
    extent: Extent,
    tables: Tables,
    scarcity: Scarcity,
    surveyed_at: u64,
}

/// What a room is worth as it is. Good until the room changes or the next survey.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worth {
    /// Of its GPUs alone, in GPUs.
    gpus: f64,
    /// Of all of it.
    room: f64,
}

/// The best place for an ask within one room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// In hundredths of a GPU, and below 0 where worth is lost; the greatest is best. Finer differences are noise, and left to the caller's rule for
    /// ties: first the node with the least idle GPU, so that work stays together.
    pub score: i64,
    pub seat: Seat,
}

/// How scores are rounded: to a hundredth of a GPU.
const SCORES_PER_GPU: f64 = 100.0;
/// Asks after which what is scarce is looked at again.
const SURVEY_EVERY: u64 = 200;
/// Asks that make a first mix. It is made anew whenever they have doubled, up to the last of these; from then on when it has drifted.
const FIRST_MIX: u64 = 50;
const LAST_DOUBLING: u64 = 12_800;
const DRIFT_CHECKED_EVERY: u64 = 1024;
/// The part of the mix that must be another than it was.
const DRIFT_MAX: f64 = 0.1;

impl Mix {
    /// Notes what a worker asks for: once for each that is submitted, whether or not there is room for it.
    pub fn observe(&mut self, ask: &Ask) {
        self.history.observe(ask);
    }

    /// True where scores would gain from a [`Mix::survey`].
    pub fn is_due(&self) -> bool {
        let count = self.history.count();
        count > 0
            && (self.surveyed_at == 0
                || count >= self.surveyed_at + SURVEY_EVERY
                || self.has_doubled())
    }

    /// Looks at all rooms, to say what is scarce; and makes the tables anew where the mix has changed or a room is larger than any before.
    ///
    /// Costs about 100 nanoseconds a room, and some milliseconds where the tables are made. Where it says true, every score and [`Worth`] from before is
    /// stale; otherwise nothing that matters has changed.
    pub fn survey<'a>(&mut self, rooms: impl Iterator<Item = &'a Room> + Clone) -> bool {
        let mut extent = self.extent;
        for room in rooms.clone() {
            extent.include(room);
        }
        let changed = self.has_doubled() || self.has_drifted();
        if changed {
            self.mix = self.history.shares();
            self.built_at = self.history.count();
        }
        let is_new = changed || extent != self.extent;
        if is_new {
            self.extent = extent;
            self.tables = Tables::of(&self.mix, extent);
        }
        let mut left = Left::default();
        for room in rooms {
            let worth = self
                .tables
                .node(room.cpu, room.memory, self.tables.gpus(room));
            left.add(room, worth);
        }
        self.surveyed_at = self.history.count();
        let scarcity = Scarcity::of(&self.mix, &self.tables, &left, extent.gpus);
        if !is_new && scarcity.is_about(&self.scarcity) {
            return false;
        }
        self.scarcity = scarcity;
        true
    }

    fn has_doubled(&self) -> bool {
        let next = (2 * self.built_at).max(FIRST_MIX);
        next <= LAST_DOUBLING && self.history.count() >= next
    }

    fn has_drifted(&mut self) -> bool {
        let count = self.history.count();
        if self.built_at == 0 || count < self.checked_at.max(self.built_at) + DRIFT_CHECKED_EVERY {
            return false;
        }
        self.checked_at = count;
        self.history.drift(&self.mix) > DRIFT_MAX
    }

    pub fn worth(&self, room: &Room) -> Worth {
        let gpus = self.tables.gpus(room);
        Worth {
            gpus,
            room: self.of(room.cpu, room.memory, gpus, room.whole),
        }
    }

    fn of(&self, cpu: u64, memory: u64, gpus: f64, whole: u32) -> f64 {
        self.tables.node(cpu, memory, gpus) + self.scarcity.slots(whole)
    }

    /// The seat that costs least, or nothing where the ask does not fit. `worth` must be that of the room.
    pub fn offer(&self, room: &Room, worth: &Worth, ask: &Ask) -> Option<Offer> {
        let cpu = room.cpu.saturating_sub(ask.cpu);
        let memory = room.memory.saturating_sub(ask.memory);
        let toll = self.scarcity.toll(room.model) * self.tables.worth(ask);
        let mut best: Option<Offer> = None;
        for seat in room.seats(ask) {
            let (gpus, whole) = match seat {
                Seat::Fresh if ask.is_fraction() => {
                    (self.tables.part(WHOLE - ask.milli) - 1.0, room.whole - 1)
                }
                Seat::Fresh => (-f64::from(ask.gpus), room.whole - ask.gpus),
                Seat::Shared(free) => {
                    let lost = self.tables.part(free) - self.tables.part(free - ask.milli);
                    (-lost, room.whole)
                }
            };
            let after = self.of(cpu, memory, (worth.gpus + gpus).max(0.0), whole);
            let score = ((after - worth.room - toll) * SCORES_PER_GPU).round() as i64;
            if best.is_none_or(|best| score > best.score) {
                best = Some(Offer { score, seat });
            }
        }
        best
    }
}

#[cfg(test)]
mod tests;
