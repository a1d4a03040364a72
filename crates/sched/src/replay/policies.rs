//! The policies: ours, and those it is held against, written from their published descriptions.

use super::chance::Chance;
use super::ranking::{Judge, Rank};
use super::trace::Trace;
use crate::value::{Ask, Mix, Room, Seat, WHOLE, Worth};

/// Ours: where the room left over is worth most to the work that has come so far.
#[derive(Default)]
pub(super) struct Stokehold {
    mix: Mix,
    worth: Vec<Worth>,
}

impl Judge for Stokehold {
    fn arrives(&mut self, ask: &Ask, rooms: &[Room]) -> bool {
        self.mix.observe(ask);
        let is_stale = self.mix.is_due() && self.mix.survey(rooms.iter());
        if is_stale || self.worth.is_empty() {
            self.worth.clear();
            self.worth
                .extend(rooms.iter().map(|room| self.mix.worth(room)));
        }
        is_stale
    }

    fn judge(&self, place: usize, room: &Room, ask: &Ask) -> Option<(Rank, Seat)> {
        let offer = self.mix.offer(room, &self.worth[place], ask)?;
        let rank = Rank {
            score: offer.score,
            tie: -(room.idle_milli() as i64),
        };
        Some((rank, offer.seat))
    }

    fn changed(&mut self, place: usize, room: &Room) {
        self.worth[place] = self.mix.worth(room);
    }
}

/// The least left over, of CPU and of GPUs alike, each as a part of what the largest node has.
pub(super) struct BestFit {
    cpu: f64,
    gpu_milli: f64,
}

impl BestFit {
    pub fn new(trace: &Trace) -> Self {
        let most =
            |of: fn(&Room) -> u64| trace.nodes.iter().map(of).max().unwrap_or(0).max(1) as f64;
        Self {
            cpu: most(|room| room.cpu),
            gpu_milli: most(Room::idle_milli),
        }
    }
}

impl Judge for BestFit {
    fn judge(&self, _: usize, room: &Room, ask: &Ask) -> Option<(Rank, Seat)> {
        let seat = room.seats(ask).next()?;
        let cpu = room.cpu.saturating_sub(ask.cpu) as f64 / self.cpu;
        let gpus = room.idle_milli().saturating_sub(ask.gpu_milli()) as f64 / self.gpu_milli;
        let score = (100.0 * (1.0 - f64::midpoint(cpu, gpus))) as i64;
        Some((Rank { score, tie: 0 }, seat))
    }
}

/// GPUs in use first, then idle GPUs of nodes in use, and idle nodes last.
pub(super) struct Packing {
    /// All GPU milli of each node.
    gpu_milli: Vec<u64>,
}

impl Packing {
    /// `rooms`: all nodes, idle.
    pub fn new(rooms: &[Room]) -> Self {
        Self {
            gpu_milli: rooms.iter().map(Room::idle_milli).collect(),
        }
    }
}

impl Judge for Packing {
    fn judge(&self, place: usize, room: &Room, ask: &Ask) -> Option<(Rank, Seat)> {
        let seat = room.seats(ask).next()?;
        let score = match seat {
            Seat::Shared(_) => 2,
            Seat::Fresh if room.idle_milli() < self.gpu_milli[place] => 1,
            Seat::Fresh => 0,
        };
        // The fewest idle GPUs left to break into.
        let tie = -i64::from(room.whole);
        Some((Rank { score, tie }, seat))
    }
}

/// Anywhere.
pub(super) struct Random {
    chance: Chance,
    arrivals: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self {
            chance: Chance::new(seed),
            arrivals: 0,
        }
    }
}

impl Judge for Random {
    fn arrives(&mut self, _: &Ask, _: &[Room]) -> bool {
        self.arrivals += 1;
        true
    }

    fn judge(&self, place: usize, room: &Room, ask: &Ask) -> Option<(Rank, Seat)> {
        let seats = room.seats(ask).count() as u64;
        let drawn = self.chance.at(self.arrivals << 32 | place as u64);
        let seat = room.seats(ask).nth((drawn % seats.max(1)) as usize)?;
        let score = (drawn >> 1) as i64;
        Some((Rank { score, tie: 0 }, seat))
    }
}

/// Fragmentation gradient descent (Weng and others, USENIX ATC 23): the least more idle GPU that typical pods could not use.
pub(super) struct Fgd {
    typical: Vec<Typical>,
}

struct Typical {
    share: f64,
    ask: Ask,
}

/// Pods that the typical ones stand for.
const TYPICAL: f64 = 0.95;

impl Fgd {
    /// The commonest kinds of pods of the whole trace.
    pub fn new(trace: &Trace) -> Self {
        let mut counts = std::collections::BTreeMap::<Ask, u32>::new();
        for pod in &trace.pods {
            let ask = trace.kinds[*pod as usize];
            *counts.entry(Ask { memory: 0, ..ask }).or_default() += 1;
        }
        let mut counts: Vec<(Ask, u32)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let enough = TYPICAL * trace.pods.len() as f64;
        let mut total = 0.0;
        let mut typical = Vec::new();
        for (ask, count) in counts {
            if total >= enough {
                break;
            }
            total += f64::from(count);
            typical.push(Typical {
                share: f64::from(count),
                ask,
            });
        }
        for typical in &mut typical {
            typical.share /= total;
        }
        Self { typical }
    }

    /// The idle GPU milli that a pod of the typical mix cannot use, on average.
    fn fragments(&self, room: &Room) -> f64 {
        let all = room.idle_milli();
        let of = |ask: &Ask| {
            if ask.gpus == 0 || !room.fits(ask) {
                return all;
            }
            let useless = room.parts().iter().take_while(|part| **part < ask.milli);
            useless.map(|part| u64::from(*part)).sum()
        };
        let typical = self.typical.iter();
        typical
            .map(|typical| typical.share * of(&typical.ask) as f64)
            .sum()
    }
}

impl Judge for Fgd {
    fn judge(&self, _: usize, room: &Room, ask: &Ask) -> Option<(Rank, Seat)> {
        let mut best: Option<(Rank, Seat)> = None;
        let mut before = None;
        for seat in room.seats(ask) {
            let before = *before.get_or_insert_with(|| self.fragments(room));
            let mut after = room.clone();
            after.take(ask, seat);
            let fewer = (before - self.fragments(&after)) / f64::from(WHOLE);
            // Cut off to whole numbers, as published: many nodes are then equal, and it is better for it.
            let score = (100.0 / (1.0 + (-fewer).exp())) as i64;
            let rank = Rank { score, tie: 0 };
            if best.is_none_or(|(greatest, _)| rank > greatest) {
                best = Some((rank, seat));
            }
        }
        best
    }
}
