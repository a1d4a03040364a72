//! What placement knows of a cluster.
//!
//! Nodes stand in the order of the topology, domain by domain, and by name within the innermost; they are kept in chunks that lie in one domain
//! each. What never changes by what runs (labels, taints, models) is judged once for all nodes that share it, their shape; how many workers fit,
//! once for all that have as much room. A chunk knows which of its nodes those are.
//!
//! Cost: a copy is a pointer a chunk, a changed node its chunk and, once after a copy, a pointer a room. Invariant: no answer depends on the order in which nodes were told, so none
//! depends on how they came to lie in chunks.

mod chunk;
mod domain;
mod rooms;
mod shapes;
mod taint;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::gang::{Gang, HOSTNAME};
use crate::gpu::GpuModel;
use crate::place::{Appraisal, Plan};
use crate::resources::Resources;

use self::chunk::NODES_MAX;
pub(crate) use self::chunk::{Chunk, Seated, positions};
pub(crate) use self::domain::Step;
use self::domain::{Path, path};
pub(crate) use self::rooms::{Room, Rooms};
pub(crate) use self::shapes::{Shape, Shapes};
pub use self::taint::{Effect, Taint, Trouble};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub name: String,
    /// What pods may use of it, all together.
    pub allocatable: Resources,
    /// What pods that have not ended asked for, and what is promised to those that are not created yet.
    pub used: Resources,
    pub labels: Arc<BTreeMap<String, String>>,
    pub taints: Vec<Taint>,
    /// Its agent says that it works.
    pub ready: bool,
    /// Nobody has cordoned it.
    pub schedulable: bool,
    /// Its GPUs; a node has one model.
    pub gpu: Option<GpuModel>,
    /// It can be taken away at any time.
    pub spot: bool,
    /// Thousandths in use of each of its GPUs, where it is us who choose among them. None where the device plugin does. Whole GPUs that are in
    /// use are counted here and in `used`, parts only here.
    pub devices: Option<Vec<u16>>,
}

/// A GPU that is all in use.
pub(crate) const DEVICE: u16 = 1000;

impl Node {
    pub fn free(&self) -> Resources {
        let mut free = self.allocatable.minus(&self.used);
        if let Some(devices) = &self.devices {
            let idle = devices.iter().filter(|in_use| **in_use == 0).count();
            free.gpus = free.gpus.min(idle as u32);
        }
        free
    }

    /// An amount of nothing is not worth a word, and words must not tell nodes apart that are alike.
    fn tidy(mut self) -> Self {
        self.used.others.retain(|_, amount| *amount > 0);
        self
    }
}

/// The nodes at one instant.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Labels that tell a node's domain, outermost first. Each node is a domain of its own within the innermost.
    levels: Arc<[String]>,
    names: Arc<BTreeMap<Arc<str>, Path>>,
    /// Invariant: in the order of paths, then names; each has nodes of one path.
    chunks: Vec<Arc<Chunk>>,
    shapes: Arc<Shapes>,
    rooms: Arc<Rooms>,
    /// What room is worth, where someone has said so. No part of what the cluster is.
    worth: Option<Arc<Appraisal>>,
}

/// Where a node is: its chunk, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub chunk: u32,
    pub place: u32,
}

impl Snapshot {
    /// All nodes, in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.names.keys().filter_map(|name| self.node(name))
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.find(name).map(|found| self.at(found))
    }

    /// Labels that tell a node's domain, outermost first.
    pub fn levels(&self) -> &[String] {
        &self.levels
    }

    /// Says which labels tell a node's domain, outermost first. The domain of a level is told by that label and by those of the levels around it.
    pub fn set_levels(&mut self, levels: impl IntoIterator<Item = String>) {
        let mut distinct: Vec<String> = Vec::new();
        for level in levels {
            if level != HOSTNAME && !distinct.contains(&level) {
                distinct.push(level);
            }
        }
        if *self.levels != *distinct {
            let nodes: Vec<Arc<Node>> = self.in_order().cloned().collect();
            *self = Self {
                worth: self.worth.take(),
                ..Self::built(distinct.into(), nodes)
            };
        }
    }

    /// Adds a node, in place of the one of its name.
    pub fn put(&mut self, node: Node) {
        let node = Arc::new(node.tidy());
        let path = path(&self.levels, &node);
        let shape = Arc::make_mut(&mut self.shapes).join(&node);
        match self.find(&node.name) {
            Some(found) if self.chunks[found.chunk as usize].path == path => {
                let chunk = Arc::make_mut(&mut self.chunks[found.chunk as usize]);
                let rooms = Arc::make_mut(&mut self.rooms);
                let before = chunk.replace(found.place as usize, Seated { node, shape }, rooms);
                Arc::make_mut(&mut self.shapes).leave(before);
            }
            Some(_) => {
                self.remove(&node.name);
                self.insert(Seated { node, shape }, path);
            }
            None => self.insert(Seated { node, shape }, path),
        }
        self.settle_shapes();
    }

    pub fn remove(&mut self, name: &str) {
        let Some(found) = self.find(name) else {
            return;
        };
        let at = found.chunk as usize;
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        let rooms = Arc::make_mut(&mut self.rooms);
        let gone = chunk.remove(found.place as usize, rooms);
        if chunk.nodes.is_empty() {
            self.chunks.remove(at);
        } else {
            self.merge(at);
        }
        Arc::make_mut(&mut self.shapes).leave(gone.shape);
        Arc::make_mut(&mut self.names).remove(name);
    }

    /// Says what is used of a node, if it is there.
    pub fn set_used(&mut self, name: &str, mut used: Resources) {
        used.others.retain(|_, amount| *amount > 0);
        if let Some(found) = self.find(name)
            && self.at(found).used != used
        {
            self.change(found, |node| node.used = used);
        }
    }

    /// Says what is in use of each GPU of a node, if it is there.
    pub fn set_devices(&mut self, name: &str, devices: Option<Vec<u16>>) {
        let Some(node) = self.node(name).filter(|node| node.devices != devices) else {
            return;
        };
        // Whether we choose devices is part of a node's shape.
        self.put(Node {
            devices,
            ..node.clone()
        });
    }

    /// Gives a gang the room that was planned for it. Nodes that are no more are passed over.
    pub fn take(&mut self, plan: &Plan, gang: &Gang) {
        let each = plan.each(gang);
        self.on_nodes_of(plan, |node, devices| {
            node.used.add(&each);
            for (in_use, more) in devices_of(node, devices, gang) {
                *in_use = in_use.saturating_add(more);
            }
        });
    }

    /// Takes back what [`Snapshot::take`] gave.
    pub fn give_back(&mut self, plan: &Plan, gang: &Gang) {
        let each = plan.each(gang);
        self.on_nodes_of(plan, |node, devices| {
            node.used.sub(&each);
            for (in_use, less) in devices_of(node, devices, gang) {
                *in_use = in_use.saturating_sub(less);
            }
        });
    }

    /// Changes each node of a plan, once for each of its workers; neighbours in rank are looked up together.
    fn on_nodes_of(&mut self, plan: &Plan, mut change: impl FnMut(&mut Node, &[u32])) {
        let mut from = 0;
        for same in plan.nodes.chunk_by(|a, b| a == b) {
            let ranks = from..from + same.len();
            from = ranks.end;
            if let Some(found) = self.find(&same[0]) {
                self.change(found, |node| {
                    for rank in ranks {
                        change(node, plan.devices.get(rank).map_or(&[], Vec::as_slice));
                    }
                });
            }
        }
    }

    /// The same cluster with nothing running on it.
    pub fn idle(&self) -> Self {
        let mut idle = self.clone();
        let rooms = Arc::make_mut(&mut idle.rooms);
        for chunk in &mut idle.chunks {
            let busy = |node: &Node| {
                node.used != Resources::default()
                    || node.devices.iter().flatten().any(|in_use| *in_use > 0)
            };
            if chunk.nodes.iter().any(|seated| busy(&seated.node)) {
                Arc::make_mut(chunk).change_all(rooms, |node| {
                    node.used = Resources::default();
                    for in_use in node.devices.iter_mut().flatten() {
                        *in_use = 0;
                    }
                });
            }
        }
        idle
    }

    pub(crate) fn chunks(&self) -> &[Arc<Chunk>] {
        &self.chunks
    }

    pub(crate) fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    pub(crate) fn worth(&self) -> Option<&Appraisal> {
        self.worth.as_deref()
    }

    pub(crate) fn appraise(&mut self, worth: Arc<Appraisal>) {
        self.worth = Some(worth);
    }

    pub(crate) fn at(&self, position: Position) -> &Node {
        &self.chunks[position.chunk as usize].nodes[position.place as usize].node
    }

    pub(crate) fn shape(&self, position: Position) -> u32 {
        self.chunks[position.chunk as usize].nodes[position.place as usize].shape
    }

    pub(crate) fn find(&self, name: &str) -> Option<Position> {
        let path = self.names.get(name)?;
        let chunk = self.chunk_for(path, name).checked_sub(1)?;
        let place = self.chunks[chunk].find(name).ok()?;
        Some(Position {
            chunk: chunk as u32,
            place: place as u32,
        })
    }

    /// The first chunk that begins behind this place in the order.
    fn chunk_for(&self, path: &Path, name: &str) -> usize {
        self.chunks
            .partition_point(|chunk| (&chunk.path, chunk.first()) <= (path, name))
    }

    fn change(&mut self, position: Position, change: impl FnOnce(&mut Node)) {
        let chunk = Arc::make_mut(&mut self.chunks[position.chunk as usize]);
        let rooms = Arc::make_mut(&mut self.rooms);
        chunk.change(position.place as usize, rooms, change);
    }

    fn insert(&mut self, seated: Seated, path: Path) {
        let name: Arc<str> = seated.node.name.as_str().into();
        let next = self.chunk_for(&path, &name);
        let rooms = Arc::make_mut(&mut self.rooms);
        let fits = |at: usize| self.chunks.get(at).is_some_and(|chunk| chunk.path == path);
        let at = next.checked_sub(1).filter(|at| fits(*at));
        if let Some(at) = at.or_else(|| fits(next).then_some(next)) {
            let chunk = Arc::make_mut(&mut self.chunks[at]);
            if let Some(second) = chunk.insert(seated, rooms) {
                self.chunks.insert(at + 1, Arc::new(second));
            }
        } else {
            let chunk = Chunk::of(path.clone(), vec![seated], rooms);
            self.chunks.insert(next, Arc::new(chunk));
        }
        Arc::make_mut(&mut self.names).insert(name, path);
    }

    /// Nodes come and go: what is left of two neighbours becomes one.
    fn merge(&mut self, at: usize) {
        let Some([chunk, next]) = self.chunks.get_mut(at..at + 2) else {
            return;
        };
        if chunk.path == next.path && chunk.nodes.len() + next.nodes.len() <= NODES_MAX / 2 {
            let rooms = Arc::make_mut(&mut self.rooms);
            let nodes = chunk.nodes.iter().chain(&next.nodes).cloned().collect();
            Arc::make_mut(chunk).depart(rooms);
            Arc::make_mut(next).depart(rooms);
            *chunk = Arc::new(Chunk::of(chunk.path.clone(), nodes, rooms));
            self.chunks.remove(at + 1);
        }
    }

    /// Where nearly every node has a shape of its own, because of a label that nearly every node has another value of, that label is
    /// no longer part of shapes.
    fn settle_shapes(&mut self) {
        while self.shapes.is_crowded(self.names.len()) {
            let Some(shapes) = self.shapes.coarser() else {
                Arc::make_mut(&mut self.shapes).accept_crowd();
                return;
            };
            let nodes: Vec<Arc<Node>> = self.in_order().cloned().collect();
            *self = Self {
                worth: self.worth.take(),
                ..Self::seated(self.levels.clone(), nodes, shapes)
            };
        }
    }

    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Arc<Node>> {
        let chunks = self.chunks.iter();
        chunks.flat_map(|chunk| chunk.nodes.iter().map(|seated| &seated.node))
    }

    fn built(levels: Arc<[String]>, nodes: Vec<Arc<Node>>) -> Self {
        let shapes = Shapes::new(&levels);
        let mut snapshot = Self::seated(levels, nodes, shapes);
        snapshot.settle_shapes();
        snapshot
    }

    fn seated(levels: Arc<[String]>, nodes: Vec<Arc<Node>>, mut shapes: Shapes) -> Self {
        let mut nodes: Vec<(Path, Arc<Node>)> = nodes
            .into_iter()
            .map(|node| (path(&levels, &node), node))
            .collect();
        nodes.sort_by(|a, b| (&a.0, &a.1.name).cmp(&(&b.0, &b.1.name)));
        let names = nodes
            .iter()
            .map(|(path, node)| (node.name.as_str().into(), path.clone()));
        let names = names.collect();
        let mut chunks = Vec::new();
        let mut rooms = Rooms::default();
        for domain in nodes.chunk_by(|a, b| a.0 == b.0) {
            for part in domain.chunks(NODES_MAX) {
                let seated = part.iter().map(|(_, node)| Seated {
                    shape: shapes.join(node),
                    node: node.clone(),
                });
                let chunk = Chunk::of(domain[0].0.clone(), seated.collect(), &mut rooms);
                chunks.push(Arc::new(chunk));
            }
        }
        Self {
            levels,
            names: Arc::new(names),
            chunks,
            shapes: Arc::new(shapes),
            rooms: Arc::new(rooms),
            worth: None,
        }
    }
}

/// The devices of a node that a worker has, each with how much of it.
pub(crate) fn devices_of<'a>(
    node: &'a mut Node,
    devices: &'a [u32],
    gang: &Gang,
) -> impl Iterator<Item = (&'a mut u16, u16)> {
    let milli = gang.device_milli().unwrap_or(DEVICE);
    let in_use = node.devices.as_mut().map_or(&mut [][..], Vec::as_mut_slice);
    let each = (0_u32..).zip(in_use);
    let own = each.filter(|(index, _)| devices.contains(index));
    own.map(move |(_, in_use)| (in_use, milli))
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.levels == other.levels
            && self.names.len() == other.names.len()
            && self.in_order().eq(other.in_order())
    }
}

impl Eq for Snapshot {}

impl FromIterator<Node> for Snapshot {
    fn from_iter<I: IntoIterator<Item = Node>>(nodes: I) -> Self {
        let nodes: BTreeMap<String, Arc<Node>> = nodes
            .into_iter()
            .map(|node| (node.name.clone(), Arc::new(node.tidy())))
            .collect();
        Self::built(Arc::default(), nodes.into_values().collect())
    }
}
