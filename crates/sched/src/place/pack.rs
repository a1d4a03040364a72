//! The fewest and tightest domains that hold a gang, and in them the fewest nodes.
//!
//! Workers are equal, so a domain is as good as the number of them that it holds. The innermost domain that holds all is the nearest they can be; of
//! several the one that holds fewest more is the tightest. Where none does, the largest are taken whole, which makes them few, and the
//! tightest takes the rest. A node is a domain too, and of nodes the one that loses least is taken. Among domains of one level that hold all, the
//! one to which less has to be copied goes before the tighter ([`super::copying`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::copying::{Copying, Delay};
use super::need::Need;
use super::proportion::bearable;
use super::score::Loss;
use super::survey::{Level, Spot, Survey, workers};
use crate::snapshot::{Position, Room, positions};

/// Workers for one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pick {
    pub position: Position,
    pub workers: u32,
}

/// Which nodes are used while there is a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Care {
    /// Nodes without GPUs.
    NoGpus,
    /// No more of each node than leaves all but so many of its free GPUs their share.
    Strand(u32),
}

/// From the most careful to the least.
const CARES: [Care; 6] = [
    Care::NoGpus,
    Care::Strand(0),
    Care::Strand(1),
    Care::Strand(2),
    Care::Strand(4),
    Care::Strand(8),
];

/// The nodes of a gang in the order of the topology, and what each worker takes of them.
pub(super) fn pack<'a>(survey: &'a Survey<'_>, copying: &Copying) -> Option<(Vec<Pick>, &'a Need)> {
    let gang = survey.gang;
    let avoided = avoided(survey);
    let avoids: &[bool] = if avoided.is_empty() {
        &[false]
    } else {
        &[true, false]
    };
    for avoid in avoids {
        for (way, need) in survey.needs() {
            let mut spots = copying.split(survey.spots(way));
            if *avoid {
                remove(&mut spots, &avoided);
            }
            let packer = Packer {
                survey,
                need,
                copies: !copying.is_none(),
            };
            let all = packer.fitting(&spots);
            if all < gang.least() {
                continue;
            }
            let careful = CARES.into_iter().find_map(|care| {
                let spots = packer.careful(&spots, care)?;
                let fits = packer.fitting(&spots) >= all;
                fits.then(|| packer.pack(&spots, all))
            });
            let mut picks = careful.unwrap_or_else(|| packer.pack(&spots, all));
            picks.sort_unstable();
            return Some((picks, need));
        }
    }
    None
}

fn avoided(survey: &Survey<'_>) -> BTreeMap<u32, u64> {
    let mut avoided = BTreeMap::new();
    for name in &survey.gang.avoid {
        if let Some(position) = survey.snapshot.find(name) {
            *avoided.entry(position.chunk).or_insert(0) |= 1 << position.place;
        }
    }
    avoided
}

fn remove(spots: &mut Vec<Spot>, gone: &BTreeMap<u32, u64>) {
    spots.retain_mut(|spot| {
        spot.members &= !gone.get(&spot.chunk).copied().unwrap_or(0);
        spot.members != 0
    });
}

struct Packer<'a, 'g> {
    survey: &'a Survey<'g>,
    need: &'a Need,
    /// Do nodes differ in what has to be copied to them?
    copies: bool,
}

impl Packer<'_, '_> {
    fn fitting(&self, spots: &[Spot]) -> u32 {
        let wanted = self.survey.gang.workers;
        self.survey.most(spots).min(u64::from(wanted)) as u32
    }

    /// The spots with this much care. None where that changes nothing.
    fn careful(&self, spots: &[Spot], care: Care) -> Option<Vec<Spot>> {
        if care == Care::NoGpus && self.survey.gang.wants_gpus() {
            return None;
        }
        let shapes = self.survey.snapshot.shapes().all();
        let mut each = self.once(|room, each| match care {
            Care::NoGpus if shapes[room.shape as usize].has_any_gpu() => 0,
            Care::NoGpus => each,
            Care::Strand(gpus) => bearable(self.need, room, each, gpus),
        });
        let careful: Vec<Spot> = spots
            .iter()
            .map(|spot| Spot {
                each: each(spot, spot.each),
                ..*spot
            })
            .collect();
        let changes = careful.iter().zip(spots).any(|(a, b)| a.each != b.each);
        changes.then(|| careful.into_iter().filter(|spot| spot.each > 0).collect())
    }

    /// Packs so many workers, for which there is room.
    fn pack(&self, spots: &[Spot], missing: u32) -> Vec<Pick> {
        let level = match self.survey.level {
            Level::Preferred => 0,
            Level::Required(level) => level,
            Level::Anywhere | Level::Unknown(_) => self.depth(),
        };
        self.near(spots, level, missing)
    }

    fn depth(&self) -> usize {
        self.survey.snapshot.levels().len()
    }

    /// As near to each other as can be, where `level` is the outermost that matters.
    fn near(&self, spots: &[Spot], level: usize, missing: u32) -> Vec<Pick> {
        if let Some(pick) = self.one_node(spots, missing) {
            return vec![pick];
        }
        let mut inside_out = (level..self.depth()).rev();
        let domain = inside_out.find_map(|level| {
            let domains = self.survey.domains(spots, level);
            let roomy = domains.map(|domain| (workers(domain), domain));
            let roomy = roomy.filter(|(room, _)| *room >= u64::from(missing));
            let best = roomy.min_by_key(|(room, domain)| self.rank(*room, domain, missing));
            best.map(|(_, domain)| (domain, level + 1))
        });
        let (domain, level) = domain.unwrap_or((spots, level));
        if level >= self.depth() {
            self.few_nodes(domain, missing)
        } else {
            self.few_domains(domain, level, missing)
        }
    }

    /// In as few domains of this level as can be; none of them holds all.
    fn few_domains(&self, spots: &[Spot], level: usize, mut missing: u32) -> Vec<Pick> {
        let domains = self.survey.domains(spots, level);
        let mut domains: Vec<(u64, &[Spot])> =
            domains.map(|domain| (workers(domain), domain)).collect();
        // The sort is stable: of equal ones the first in the order of the topology is taken first.
        domains
            .sort_by_cached_key(|(room, domain)| (Reverse(*room), self.delay(domain, *room).bytes));
        let mut picks = Vec::new();
        let mut rest = domains.as_slice();
        while let [(room, largest), others @ ..] = rest
            && *room < u64::from(missing)
        {
            picks.extend(largest.iter().flat_map(all_of));
            missing -= *room as u32;
            rest = others;
        }
        let best = rest
            .iter()
            .filter(|(room, _)| *room >= u64::from(missing))
            .min_by_key(|(room, domain)| self.rank(*room, domain, missing));
        if let Some((_, domain)) = best {
            picks.extend(self.near(domain, level + 1, missing));
        }
        picks
    }

    /// Of domains with enough room the least is taken: where whole GPUs less wait for data, else the tightest, else where less is copied.
    fn rank(&self, room: u64, domain: &[Spot], missing: u32) -> (i64, u64, u64) {
        let delay = self.delay(domain, u64::from(missing));
        (delay.whole_gpus(), room, delay.bytes)
    }

    fn delay(&self, domain: &[Spot], workers: u64) -> Delay {
        if self.copies {
            Delay::within(self.need, domain, workers)
        } else {
            Delay::default()
        }
    }

    /// On as few nodes as can be; none of them holds all.
    fn few_nodes(&self, spots: &[Spot], mut missing: u32) -> Vec<Pick> {
        let mut loss = self.losses();
        let mut ranked: Vec<(Reverse<u32>, Loss, Spot)> = spots
            .iter()
            .map(|spot| (Reverse(spot.each), loss(spot, spot.each), *spot))
            .collect();
        ranked.sort_by_key(|(each, loss, spot)| (*each, *loss, spot.chunk));
        let mut picks = Vec::new();
        let mut taken: BTreeMap<u32, u64> = BTreeMap::new();
        'fill: for equals in ranked.chunk_by(|a, b| (a.0, a.1, a.2.chunk) == (b.0, b.1, b.2.chunk))
        {
            let (Reverse(each), _, spot) = equals[0];
            let members = equals
                .iter()
                .fold(0, |all, (_, _, spot)| all | spot.members);
            for place in positions(members) {
                // It holds all that are missing, and so may others: which of them does is chosen below.
                if each >= missing {
                    break 'fill;
                }
                let position = Position {
                    chunk: spot.chunk,
                    place,
                };
                picks.push(Pick {
                    position,
                    workers: each,
                });
                *taken.entry(spot.chunk).or_insert(0) |= 1 << place;
                missing -= each;
            }
        }
        let mut rest = spots.to_vec();
        remove(&mut rest, &taken);
        picks.extend(self.one_node(&rest, missing));
        picks
    }

    /// The node that loses least by taking all of them; of equal ones the first in the order of the topology.
    fn one_node(&self, spots: &[Spot], missing: u32) -> Option<Pick> {
        let mut loss = self.losses();
        let roomy = spots.iter().filter(|spot| spot.each >= missing);
        let best = roomy.min_by_key(|spot| {
            let first = spot.members.trailing_zeros();
            (loss(spot, missing), spot.chunk, first)
        })?;
        Some(Pick {
            position: Position {
                chunk: best.chunk,
                place: best.members.trailing_zeros(),
            },
            workers: missing,
        })
    }

    fn losses(&self) -> impl FnMut(&Spot, u32) -> Loss {
        let Survey { snapshot, gang, .. } = *self.survey;
        let shapes = snapshot.shapes().all();
        let appraisal = snapshot.worth();
        let mut loss = self.once(move |room, workers| {
            let shape = &shapes[room.shape as usize];
            let lost = appraisal.map(|worth| worth.lost(gang, self.need, shape, room, workers));
            Loss::of(self.need, room, workers, lost.unwrap_or(0))
        });
        move |spot, workers| {
            let loss = loss(spot, workers);
            if self.copies {
                loss.and(Delay::of(self.need, workers, spot.lacks))
            } else {
                loss
            }
        }
    }

    /// Asks of a room only once what is the same for all nodes that have it.
    fn once<T: Copy>(&self, ask: impl Fn(&Room, u32) -> T) -> impl FnMut(&Spot, u32) -> T {
        let mut known: Vec<Option<(u32, T)>> = vec![None; self.survey.snapshot.rooms().all().len()];
        move |spot, workers| match known[spot.room as usize] {
            Some((of, answer)) if of == workers => answer,
            _ => {
                let answer = ask(self.survey.room(spot), workers);
                known[spot.room as usize] = Some((workers, answer));
                answer
            }
        }
    }
}

fn all_of(spot: &Spot) -> impl Iterator<Item = Pick> {
    let Spot { chunk, each, .. } = *spot;
    positions(spot.members).map(move |place| Pick {
        position: Position { chunk, place },
        workers: each,
    })
}
