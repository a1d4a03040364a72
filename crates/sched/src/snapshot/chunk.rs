//! A few neighbouring nodes of one domain, and which of them are alike.

use std::sync::Arc;

use super::Node;
use super::domain::Path;
use super::rooms::{Room, Rooms};

/// So that a set of places is one word.
pub(super) const NODES_MAX: usize = u64::BITS as usize;

#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub path: Path,
    /// By name.
    pub nodes: Vec<Seated>,
    /// In no order that matters.
    pub kinds: Vec<Kind>,
}

#[derive(Debug, Clone)]
pub(crate) struct Seated {
    pub node: Arc<Node>,
    pub shape: u32,
}

/// Nodes that have the same room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub room: u32,
    /// A bit for each place.
    pub members: u64,
}

impl Seated {
    pub fn room(&self) -> Room {
        Room::of(&self.node, self.shape)
    }
}

impl Chunk {
    pub(super) fn of(path: Path, nodes: Vec<Seated>, rooms: &mut Rooms) -> Self {
        let mut chunk = Self {
            path,
            nodes,
            kinds: Vec::new(),
        };
        chunk.arrive(rooms);
        chunk
    }

    pub(super) fn first(&self) -> &str {
        self.nodes
            .first()
            .map_or("", |seated| seated.node.name.as_str())
    }

    pub(super) fn find(&self, name: &str) -> Result<usize, usize> {
        self.nodes
            .binary_search_by(|seated| seated.node.name.as_str().cmp(name))
    }

    /// Adds a node that is not there. Gives back the second half of what is too much for one chunk.
    pub(super) fn insert(&mut self, seated: Seated, rooms: &mut Rooms) -> Option<Self> {
        self.depart(rooms);
        let (Ok(place) | Err(place)) = self.find(&seated.node.name);
        self.nodes.insert(place, seated);
        let second = (self.nodes.len() > NODES_MAX).then(|| {
            let second = self.nodes.split_off(NODES_MAX / 2);
            Self::of(self.path.clone(), second, rooms)
        });
        self.arrive(rooms);
        second
    }

    pub(super) fn remove(&mut self, place: usize, rooms: &mut Rooms) -> Seated {
        self.depart(rooms);
        let gone = self.nodes.remove(place);
        self.arrive(rooms);
        gone
    }

    /// Puts a node of the same name in place of this one, and says which shape that had.
    pub(super) fn replace(&mut self, place: usize, seated: Seated, rooms: &mut Rooms) -> u32 {
        let before = std::mem::replace(&mut self.nodes[place], seated);
        self.reconsider(place, rooms);
        before.shape
    }

    pub(super) fn change(
        &mut self,
        place: usize,
        rooms: &mut Rooms,
        change: impl FnOnce(&mut Node),
    ) {
        change(Arc::make_mut(&mut self.nodes[place].node));
        self.reconsider(place, rooms);
    }

    pub(super) fn change_all(&mut self, rooms: &mut Rooms, mut change: impl FnMut(&mut Node)) {
        self.depart(rooms);
        for seated in &mut self.nodes {
            change(Arc::make_mut(&mut seated.node));
        }
        self.arrive(rooms);
    }

    fn arrive(&mut self, rooms: &mut Rooms) {
        for place in 0..self.nodes.len() {
            self.join(place, rooms);
        }
    }

    pub(super) fn depart(&mut self, rooms: &mut Rooms) {
        for kind in self.kinds.drain(..) {
            for _ in positions(kind.members) {
                rooms.leave(kind.room);
            }
        }
    }

    fn reconsider(&mut self, place: usize, rooms: &mut Rooms) {
        let bit = 1 << place;
        let kind = self.kinds.iter_mut().find(|kind| kind.members & bit != 0);
        let before = kind.map(|kind| {
            kind.members &= !bit;
            kind.room
        });
        self.kinds.retain(|kind| kind.members != 0);
        self.join(place, rooms);
        // Only now, so that a room that did not change keeps its number.
        if let Some(room) = before {
            rooms.leave(room);
        }
    }

    fn join(&mut self, place: usize, rooms: &mut Rooms) {
        let room = rooms.join(self.nodes[place].room());
        match self.kinds.iter_mut().find(|kind| kind.room == room) {
            Some(kind) => kind.members |= 1 << place,
            None => self.kinds.push(Kind {
                room,
                members: 1 << place,
            }),
        }
    }
}

/// The places in a set, ascending.
pub(crate) fn positions(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let place = (set != 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(place)
    })
}
