//! What a node can lend to a container beyond what it was promised, without taking it from another.

/// A node's memory at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// What could be used without anything being swapped or killed, as the kernel estimates it.
    pub available: u64,
    /// What must stay free: below it, the kubelet evicts.
    pub reserve: u64,
    /// What pods may be promised of it together.
    pub allocatable: u64,
    /// Everyone on it but the one who wants more.
    pub neighbours: Vec<Neighbour>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// What it was promised: its requests.
    pub promised: u64,
    /// What it was lent on top and may still use: a limit that was raised.
    pub lent: u64,
    /// What it uses.
    pub used: u64,
}

/// What there is for one container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// It may use this much more than it uses now.
    pub free: u64,
    /// It may be promised this much more than it is.
    pub unpromised: u64,
}

impl Node {
    /// What nobody else uses, was promised or was lent. `own_promise` is what the one who wants more was promised.
    pub fn room(&self, own_promise: u64) -> Room {
        let mut spoken_for = self.reserve;
        let mut promised = own_promise;
        for neighbour in &self.neighbours {
            let may_use = neighbour.promised.saturating_add(neighbour.lent);
            let still = may_use.saturating_sub(neighbour.used);
            spoken_for = spoken_for.saturating_add(still);
            promised = promised.saturating_add(neighbour.promised);
        }
        Room {
            free: self.available.saturating_sub(spoken_for),
            unpromised: self.allocatable.saturating_sub(promised),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn neighbour(promised: u64, lent: u64, used: u64) -> Neighbour {
        Neighbour {
            promised: promised * GIB,
            lent: lent * GIB,
            used: used * GIB,
        }
    }

    #[test]
    fn what_was_promised_is_not_lent() {
        let room = |neighbours: Vec<Neighbour>| {
            let node = Node {
                available: 20 * GIB,
                reserve: GIB,
                allocatable: 30 * GIB,
                neighbours,
            };
            let room = node.room(2 * GIB);
            (room.free / GIB, room.unpromised / GIB)
        };
        assert_eq!(room(vec![]), (19, 28));
        assert_eq!(
            room(vec![neighbour(10, 0, 10)]),
            (19, 18),
            "it uses what it has"
        );
        assert_eq!(
            room(vec![neighbour(10, 0, 4)]),
            (13, 18),
            "it may still want the rest"
        );
        assert_eq!(
            room(vec![neighbour(10, 0, 25)]),
            (19, 18),
            "more than its own"
        );
        assert_eq!(
            room(vec![neighbour(2, 6, 4)]),
            (15, 26),
            "lent, and not used yet"
        );
        assert_eq!(room(vec![neighbour(25, 0, 1)]), (0, 3));
        assert_eq!(room(vec![neighbour(u64::MAX / GIB, 9, 0); 3]), (0, 0));
    }

    proptest! {
        #[test]
        fn a_neighbour_can_always_take_what_is_its_own(
            available in 0_u64..1 << 40, reserve in 0_u64..1 << 30,
            neighbours in prop::collection::vec((0_u64..1 << 38, 0_u64..1 << 38, 0_u64..1 << 39), 0..20),
        ) {
            let neighbours: Vec<Neighbour> = neighbours.into_iter().map(|(promised, lent, used)| Neighbour { promised, lent, used }).collect();
            let rest: u64 = neighbours.iter().map(|it| (it.promised + it.lent).saturating_sub(it.used)).sum();
            let node = Node { available, reserve, allocatable: u64::MAX, neighbours };
            let free = node.room(0).free;
            if free > 0 {
                prop_assert!(free + rest + reserve <= available);
            }
        }
    }
}
