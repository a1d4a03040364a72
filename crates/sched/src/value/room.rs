//! What a node has left, as far as its worth goes. GPUs of a node are alike, so that which is which does not matter.

use super::ask::{Ask, Model, WHOLE};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Room {
    /// Thousandths of a core.
    pub cpu: u64,
    pub memory: u64,
    pub model: Model,
    /// GPUs of which nothing is used.
    pub whole: u32,
    /// What is left of each shared GPU that is not full.
    /// Invariant: ascending, each above 0 and below [`WHOLE`].
    parts: Vec<u16>,
}

/// Where on its node the work lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seat {
    /// On no GPU, or on GPUs nobody else uses yet.
    Fresh,
    /// On a shared GPU with so much left.
    Shared(u16),
}

impl Room {
    /// `free`: what is left of each GPU, in thousandths.
    pub fn new(cpu: u64, memory: u64, model: Model, free: impl IntoIterator<Item = u16>) -> Self {
        let mut room = Self {
            cpu,
            memory,
            model,
            whole: 0,
            parts: Vec::new(),
        };
        for free in free {
            if free >= WHOLE {
                room.whole += 1;
            } else if free > 0 {
                room.parts.push(free);
            }
        }
        room.parts.sort_unstable();
        room
    }

    pub fn parts(&self) -> &[u16] {
        &self.parts
    }

    pub fn idle_milli(&self) -> u64 {
        let parts: u64 = self.parts.iter().map(|part| u64::from(*part)).sum();
        u64::from(self.whole) * u64::from(WHOLE) + parts
    }

    /// True where the work has room here, GPUs of the right model included.
    pub fn fits(&self, ask: &Ask) -> bool {
        if ask.cpu > self.cpu || ask.memory > self.memory {
            return false;
        }
        if ask.gpus == 0 {
            return true;
        }
        if !ask.models.has(self.model) {
            return false;
        }
        if ask.is_fraction() {
            self.whole > 0 || self.parts.last().is_some_and(|most| *most >= ask.milli)
        } else {
            self.whole >= ask.gpus
        }
    }

    /// The seats that differ, the tightest first. None where the work does not fit.
    pub fn seats(&self, ask: &Ask) -> impl Iterator<Item = Seat> {
        let fits = self.fits(ask);
        let shared: &[u16] = if fits && ask.is_fraction() {
            &self.parts[self.parts.partition_point(|part| *part < ask.milli)..]
        } else {
            &[]
        };
        let shared = shared
            .chunk_by(PartialEq::eq)
            .map(|same| Seat::Shared(same[0]));
        let fresh = fits && self.whole >= ask.gpus;
        shared.chain(fresh.then_some(Seat::Fresh))
    }

    /// Takes what was asked for. The seat must be one of [`Room::seats`].
    pub fn take(&mut self, ask: &Ask, seat: Seat) {
        debug_assert!(self.seats(ask).any(|known| known == seat));
        self.cpu = self.cpu.saturating_sub(ask.cpu);
        self.memory = self.memory.saturating_sub(ask.memory);
        let left = match seat {
            Seat::Fresh => {
                self.whole = self.whole.saturating_sub(ask.gpus);
                if !ask.is_fraction() {
                    return;
                }
                WHOLE - ask.milli
            }
            Seat::Shared(free) => {
                if let Ok(at) = self.parts.binary_search(&free) {
                    self.parts.remove(at);
                }
                free.saturating_sub(ask.milli)
            }
        };
        if left > 0 {
            let at = self.parts.partition_point(|part| *part < left);
            self.parts.insert(at, left);
        }
    }
}
