//! A gang held against a cluster: which nodes will do, and what stands in the way on the others.
//!
//! Most of it is decided by a node's shape, once for all nodes of it. Only where a gang asks for labels that nearly every node has another
//! value of are nodes looked at one by one.

use std::collections::{BTreeMap, BTreeSet};

use super::lens::{Lens, Waiver, Waivers};
use super::need::{Need, Way};
use crate::explain::Obstacle;
use crate::gang::{Described, Gang, HOSTNAME, Topology};
use crate::gpu::{GpuModel, is_of_type};
use crate::snapshot::{Chunk, Node, Position, Room, Shape, Snapshot, Step, Taint, positions};

/// The level of the topology within one domain of which all workers must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level<'a> {
    /// Anywhere, and domains do not matter.
    Anywhere,
    /// Anywhere, in as few domains as can be.
    Preferred,
    /// The index of a level; as many as there are levels: one node.
    Required(usize),
    Unknown(&'a str),
}

/// Nodes of one chunk that are alike and have room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spot {
    pub chunk: u32,
    /// Its number among the rooms of the snapshot.
    pub room: u32,
    /// Workers that each has room for; at least one.
    pub each: u32,
    pub members: u64,
    /// Bytes that have to be copied to each before the gang can read its data, where some node has it.
    pub lacks: u64,
}

impl Spot {
    pub fn workers(&self) -> u64 {
        u64::from(self.each) * u64::from(self.members.count_ones())
    }
}

pub(crate) fn workers(spots: &[Spot]) -> u64 {
    spots.iter().map(Spot::workers).sum()
}

pub(crate) struct Survey<'a> {
    pub snapshot: &'a Snapshot,
    pub gang: &'a Gang,
    pub lens: Lens,
    pub level: Level<'a>,
    /// By shape: the number of the way in which workers have their GPUs there, or what is in the way.
    verdicts: Vec<Result<usize, Obstacle>>,
    needs: Vec<Need>,
    /// By room: the way, and how many workers fit. None where that has to be asked of each node.
    each: Vec<Option<(usize, Option<u32>)>>,
    /// By chunk, the nodes that will do, where shapes do not tell.
    selected: Option<Vec<u64>>,
    reached: Option<Vec<u64>>,
}

impl<'a> Survey<'a> {
    pub fn of(snapshot: &'a Snapshot, gang: &'a Gang, lens: Lens) -> Self {
        let singular = snapshot.shapes().singular();
        let is_particular = gang.is_particular(singular);
        let mut judge = Judge {
            gang,
            lens,
            is_particular,
            models: Vec::new(),
        };
        let shapes = snapshot.shapes().all().iter();
        let found: Vec<Result<Way, Obstacle>> = shapes.map(|shape| judge.way(shape)).collect();
        let ways: BTreeSet<&Way> = found.iter().flatten().collect();
        let ways: Vec<&Way> = ways.into_iter().collect();
        let number = |way: &Way| ways.binary_search(&way).unwrap_or_default();
        let verdict = |found: &Result<Way, Obstacle>| found.as_ref().map(number).map_err(|o| *o);
        let verdicts: Vec<Result<usize, Obstacle>> = found.iter().map(verdict).collect();
        let needs: Vec<Need> = ways.iter().map(|way| way.need(gang)).collect();
        let rooms = snapshot.rooms().all().iter();
        let each = rooms.map(|alike| {
            let way = *verdicts.get(alike.low.shape as usize)?.as_ref().ok()?;
            let low = needs[way].times(&alike.low, lens.idle);
            let high = needs[way].times(&alike.high, lens.idle);
            Some((way, (low == high).then_some(low)))
        });
        let each = each.collect();
        let by_node = |waiver: Waiver, will_do: &dyn Fn(Described<'_>) -> bool| {
            (is_particular && lens.holds(waiver)).then(|| {
                let chunks = snapshot.chunks().iter();
                chunks.map(|chunk| members(chunk, will_do)).collect()
            })
        };
        Self {
            snapshot,
            gang,
            lens,
            level: level(snapshot, gang, lens),
            each,
            verdicts,
            needs,
            selected: by_node(Waiver::Selector, &|node| gang.selects(node)),
            reached: by_node(Waiver::Volumes, &|node| gang.reaches_volumes(node)),
        }
    }

    /// The ways in which workers may have their GPUs; all of a plan have them in one way.
    pub fn needs(&self) -> impl Iterator<Item = (usize, &Need)> {
        self.needs.iter().enumerate()
    }

    /// Where workers fit that have their GPUs in this way, in the order of the topology.
    pub fn spots(&self, way: usize) -> Vec<Spot> {
        let mut spots = Vec::new();
        for (at, chunk) in self.snapshot.chunks().iter().enumerate() {
            if self.has_no_domain(chunk) {
                continue;
            }
            let will_do = self.will_do(at);
            for kind in &chunk.kinds {
                let members = kind.members & will_do;
                let spot = |each, members| Spot {
                    chunk: at as u32,
                    room: kind.room,
                    each,
                    members,
                    lacks: 0,
                };
                match self.each[kind.room as usize] {
                    Some((by, Some(each))) if by == way && each > 0 && members != 0 => {
                        spots.push(spot(each, members));
                    }
                    Some((by, None)) if by == way => {
                        let each = self.one_by_one(way, chunk, members);
                        spots.extend(each.into_iter().map(|(each, members)| spot(each, members)));
                    }
                    _ => {}
                }
            }
        }
        spots
    }

    /// Nodes by how many workers fit on them; those on which one does.
    fn one_by_one(&self, way: usize, chunk: &Chunk, members: u64) -> BTreeMap<u32, u64> {
        let mut by_each = BTreeMap::new();
        for place in positions(members) {
            let room = chunk.nodes[place as usize].room();
            let each = self.needs[way].times(&room, self.lens.idle);
            if each > 0 {
                *by_each.entry(each).or_insert(0) |= 1 << place;
            }
        }
        by_each
    }

    /// About what the nodes of a spot have; each has at least this.
    pub fn room(&self, spot: &Spot) -> &'a Room {
        &self.snapshot.rooms().all()[spot.room as usize].low
    }

    fn chunk(&self, spot: &Spot) -> &'a Chunk {
        &self.snapshot.chunks()[spot.chunk as usize]
    }

    /// The first node of a spot.
    pub fn first_of(&self, spot: &Spot) -> &'a Node {
        self.snapshot.at(Position {
            chunk: spot.chunk,
            place: spot.members.trailing_zeros(),
        })
    }

    /// Would another node, labelled like these, be in a domain of this level of its own?
    pub fn is_alone(&self, spot: &Spot, level: usize) -> bool {
        let path = self.chunk(spot).path.iter().take(level + 1);
        path.into_iter().any(|step| matches!(step, Step::Alone(_)))
    }

    /// The domains of a level that these spots lie in, in order.
    pub fn domains<'s>(&self, spots: &'s [Spot], level: usize) -> impl Iterator<Item = &'s [Spot]> {
        spots.chunk_by(move |a, b| {
            a.chunk == b.chunk
                || self.chunk(a).path.get(..=level) == self.chunk(b).path.get(..=level)
        })
    }

    /// How many workers there is room for, up to all of them.
    pub fn fitting(&self) -> u32 {
        let most = self.needs().map(|(way, _)| {
            let spots = self.spots(way);
            self.most(&spots)
        });
        let most = most.max().unwrap_or(0);
        most.min(u64::from(self.gang.workers)) as u32
    }

    /// Is there room for as many as it must have?
    pub fn is_enough(&self) -> bool {
        self.fitting() >= self.gang.least()
    }

    /// The most workers that these spots hold together, where topology is minded.
    pub fn most(&self, spots: &[Spot]) -> u64 {
        let depth = self.snapshot.levels().len();
        match self.level {
            Level::Anywhere | Level::Preferred => workers(spots),
            Level::Required(level) if level == depth => {
                let each = spots.iter().map(|spot| u64::from(spot.each));
                each.max().unwrap_or(0)
            }
            Level::Required(level) => self.domains(spots, level).map(workers).max().unwrap_or(0),
            Level::Unknown(_) => 0,
        }
    }

    /// Nodes with room for a worker.
    pub fn roomy(&self) -> impl Iterator<Item = Position> {
        let spots = self.needs().flat_map(|(way, _)| self.spots(way));
        spots.flat_map(|spot| {
            positions(spot.members).map(move |place| Position {
                chunk: spot.chunk,
                place,
            })
        })
    }

    /// The taints that are thought away by this, of nodes with room for a worker.
    pub fn waived_taints(&self, waiver: Waiver) -> BTreeSet<&'a Taint> {
        let spots = self.needs().flat_map(|(way, _)| self.spots(way));
        let shapes: BTreeSet<u32> = spots.map(|spot| self.room(&spot).shape).collect();
        let all = self.snapshot.shapes().all();
        let taints = shapes.into_iter().flat_map(|shape| {
            let taints = &all[shape as usize].taints;
            self.gang.minded(taints)
        });
        taints.filter(|taint| Waiver::of(taint) == waiver).collect()
    }

    /// Nodes that have no room for even one worker, by the first thing in the way.
    pub fn obstacles(&self) -> BTreeMap<Obstacle, u32> {
        let mut found = BTreeMap::new();
        let mut count = |obstacle: Option<Obstacle>, members: u64| {
            if let Some(obstacle) = obstacle.filter(|_| members != 0) {
                *found.entry(obstacle).or_insert(0) += members.count_ones();
            }
        };
        let rooms = self.snapshot.rooms().all();
        for (at, chunk) in self.snapshot.chunks().iter().enumerate() {
            let no_domain = self.has_no_domain(chunk).then_some(Obstacle::NoDomain);
            let selected = self.selected.as_ref().map_or(u64::MAX, |by| by[at]);
            let reached = self.reached.as_ref().map_or(u64::MAX, |by| by[at]);
            for kind in &chunk.kinds {
                let alike = &rooms[kind.room as usize];
                let verdict = self.verdicts[alike.low.shape as usize];
                // The one that is looked for first.
                let first = verdict.err().into_iter().chain(no_domain).min();
                let before = |own: Obstacle| first.map_or(own, |first| first.min(own));
                let rest = kind.members & selected;
                count(
                    Some(before(Obstacle::NotSelected)),
                    kind.members & !selected,
                );
                count(Some(before(Obstacle::FarFromVolume)), rest & !reached);
                let rest = rest & reached;
                let (None, Ok(way)) = (first, verdict) else {
                    count(first, rest);
                    continue;
                };
                let short = |room: &Room| self.needs[way].shortage(room, self.lens.idle);
                let (low, high) = (short(&alike.low), short(&alike.high));
                if low == high {
                    count(low, rest);
                } else {
                    for place in positions(rest) {
                        count(short(&chunk.nodes[place as usize].room()), 1);
                    }
                }
            }
        }
        found
    }

    /// What keeps workers off nodes like this, however empty; or what one takes of them.
    pub fn verdict(&self, room: &Room) -> Result<&Need, Obstacle> {
        self.verdicts[room.shape as usize].map(|way| &self.needs[way])
    }

    fn will_do(&self, chunk: usize) -> u64 {
        let of = |by: &Option<Vec<u64>>| by.as_ref().map_or(u64::MAX, |by| by[chunk]);
        of(&self.selected) & of(&self.reached)
    }

    /// All workers must be in one domain, and nobody knows which one this is.
    fn has_no_domain(&self, chunk: &Chunk) -> bool {
        match self.level {
            Level::Required(level) => matches!(chunk.path.get(level), Some(Step::Alone(_))),
            _ => false,
        }
    }
}

fn level<'a>(snapshot: &Snapshot, gang: &'a Gang, lens: Lens) -> Level<'a> {
    let level = match &gang.topology {
        None => return Level::Anywhere,
        Some(Topology::Required { level }) if lens.holds(Waiver::Topology) => level,
        Some(_) => return Level::Preferred,
    };
    let levels = snapshot.levels();
    let known = levels.iter().position(|known| known == level);
    let innermost = (level == HOSTNAME).then_some(levels.len());
    match known.or(innermost) {
        Some(index) => Level::Required(index),
        None => Level::Unknown(level),
    }
}

fn members(chunk: &Chunk, will_do: &dyn Fn(Described<'_>) -> bool) -> u64 {
    let nodes = chunk.nodes.iter().enumerate();
    nodes.fold(0, |members, (place, seated)| {
        let node = Described {
            name: &seated.node.name,
            labels: &seated.node.labels,
        };
        members | u64::from(will_do(node)) << place
    })
}

/// Holds shapes against one gang. A cluster has few models of GPU, and names of those are slow to compare: each is judged once.
struct Judge<'a> {
    gang: &'a Gang,
    lens: Lens,
    /// What it asks of labels is judged elsewhere.
    is_particular: bool,
    models: Vec<(&'a GpuModel, bool)>,
}

/// Models remembered. A cluster with more is judged right, and slower.
const MODELS_MAX: usize = 16;

impl<'a> Judge<'a> {
    fn way(&mut self, shape: &'a Shape) -> Result<Way, Obstacle> {
        let gang = self.gang;
        let holds = |waiver| self.lens.holds(waiver);
        let described = Described {
            name: "",
            labels: &shape.labels,
        };
        let is_general = !self.is_particular;
        let wants_type = gang.wants_gpus() && shape.has_any_gpu() && !gang.gpu_types.is_empty();
        let minded: Waivers = gang.minded(&shape.taints).map(Waiver::of).collect();
        if holds(Waiver::Ready) && (!shape.ready || minded.has(Waiver::Ready)) {
            Err(Obstacle::NotReady)
        } else if holds(Waiver::Cordon) && (!shape.schedulable || minded.has(Waiver::Cordon)) {
            Err(Obstacle::Cordoned)
        } else if is_general && holds(Waiver::Selector) && !gang.selects(described) {
            Err(Obstacle::NotSelected)
        } else if is_general && holds(Waiver::Volumes) && !gang.reaches_volumes(described) {
            Err(Obstacle::FarFromVolume)
        } else if holds(Waiver::Trouble) && minded.has(Waiver::Trouble) {
            Err(Obstacle::InTrouble)
        } else if holds(Waiver::Taints) && minded.has(Waiver::Taints) {
            Err(Obstacle::Tainted)
        } else if holds(Waiver::Spot) && !gang.accepts_spot(shape.spot) {
            Err(Obstacle::WrongSpot)
        } else if holds(Waiver::GpuTypes)
            && wants_type
            && !shape.gpu.as_ref().is_some_and(|gpu| self.is_of_type(gpu))
        {
            Err(Obstacle::WrongGpuType)
        } else {
            Way::of(gang, shape)
        }
    }

    fn is_of_type(&mut self, gpu: &'a GpuModel) -> bool {
        if let Some((_, judged)) = self.models.iter().find(|(model, _)| *model == gpu) {
            return *judged;
        }
        let mut asked = self.gang.gpu_types.iter();
        let judged = asked.any(|asked| is_of_type(asked, gpu));
        if self.models.len() < MODELS_MAX {
            self.models.push((gpu, judged));
        }
        judged
    }
}
