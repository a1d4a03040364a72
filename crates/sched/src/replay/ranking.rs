//! Which node is best, without judging every node for every pod.

use crate::value::{Ask, Room, Seat};

/// How good a node is for a pod. The greatest wins; among equals the node that comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub score: i64,
    /// Decides where scores are equal.
    pub tie: i64,
}

/// A policy, as far as it ranks nodes one by one.
pub(super) trait Judge {
    /// Told of each pod before it is placed. True where what was judged before no longer holds.
    fn arrives(&mut self, _ask: &Ask, _rooms: &[Room]) -> bool {
        false
    }

    /// The best seat on a node and how good it is, if the pod fits there. Nodes are told apart by their place in the list of rooms.
    fn judge(&self, place: usize, room: &Room, ask: &Ask) -> Option<(Rank, Seat)>;

    /// Told that what is left of a node has changed.
    fn changed(&mut self, _place: usize, _room: &Room) {}
}

/// Kinds of pods whose judgements are kept.
const KINDS_MAX: usize = 512;

/// What was judged of all nodes, for each kind of pod. A node that has changed is judged again when a pod of that kind comes next.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    kinds: Vec<Judged>,
    /// Kinds of which anything is known.
    kept: Vec<usize>,
    /// Lists to be used again.
    spare: Vec<Vec<Option<(Rank, Seat)>>>,
    /// Nodes that changed, in order.
    changes: Vec<usize>,
}

#[derive(Debug, Default)]
struct Judged {
    /// How many of the changes it knows of.
    changes: usize,
    /// Of every node; empty where nothing is known.
    nodes: Vec<Option<(Rank, Seat)>>,
}

impl Ranking {
    pub fn new(kinds: usize) -> Self {
        let mut ranking = Self::default();
        ranking.kinds.resize_with(kinds, Judged::default);
        ranking
    }

    pub fn forget(&mut self) {
        for kind in self.kept.drain(..) {
            let mut nodes = std::mem::take(&mut self.kinds[kind].nodes);
            nodes.clear();
            self.spare.push(nodes);
        }
        self.changes.clear();
    }

    pub fn changed(&mut self, place: usize) {
        self.changes.push(place);
    }

    /// The best node for a pod of that kind, and the seat on it.
    pub fn best(
        &mut self,
        kind: usize,
        ask: &Ask,
        rooms: &[Room],
        judge: &dyn Judge,
    ) -> Option<(usize, Seat)> {
        if self.kinds[kind].nodes.is_empty() {
            if self.kept.len() >= KINDS_MAX {
                self.forget();
            }
            self.kept.push(kind);
            self.kinds[kind].nodes = self.spare.pop().unwrap_or_default();
        }
        let judged = &mut self.kinds[kind];
        let missed = self.changes.len().saturating_sub(judged.changes);
        if judged.nodes.is_empty() || missed > rooms.len() {
            let all = rooms.iter().enumerate();
            let all = all.map(|(place, room)| judge.judge(place, room, ask));
            judged.nodes.clear();
            judged.nodes.extend(all);
        } else {
            for place in &self.changes[judged.changes..] {
                judged.nodes[*place] = judge.judge(*place, &rooms[*place], ask);
            }
        }
        judged.changes = self.changes.len();

        let mut best: Option<(Rank, usize, Seat)> = None;
        for (place, node) in judged.nodes.iter().enumerate() {
            if let Some((rank, seat)) = node
                && best.is_none_or(|(greatest, _, _)| *rank > greatest)
            {
                best = Some((*rank, place, *seat));
            }
        }
        best.map(|(_, place, seat)| (place, seat))
    }
}
