//! How much room nodes have, each amount once: most nodes of a cluster are as empty as many others.

use std::collections::HashMap;
use std::sync::Arc;

use stoke_api::{Bytes, CpuMilli};

use super::{DEVICE, Node};
use crate::resources::Resources;

/// What placement looks at in a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Room {
    pub shape: u32,
    pub free: Resources,
    pub have: Resources,
    /// Thousandths free of each GPU that is in use in part, ascending. GPUs that are wholly free are counted in `free`.
    pub shared: Vec<u16>,
}

/// Machines of one kind differ in a few bytes of memory, and what runs on all of them does in a few more. Nodes that differ by less than these
/// are alike; who needs to know has to look at the node.
const CPU_STEP: u64 = 500;
const BYTES_STEP: u64 = 1 << 30;

impl Room {
    pub fn of(node: &Node, shape: u32) -> Self {
        let parts = node.devices.iter().flatten();
        let parts = parts.filter(|in_use| (1..DEVICE).contains(*in_use));
        let mut shared: Vec<u16> = parts.map(|in_use| DEVICE - in_use).collect();
        shared.sort_unstable();
        let mut have = node.allocatable.clone();
        if let Some(devices) = &node.devices {
            have.gpus = have.gpus.min(devices.len() as u32);
        }
        Self {
            shape,
            free: node.free(),
            have,
            shared,
        }
    }

    /// With these amounts changed, both of what is free and of what there is.
    fn map(mut self, cpu: impl Fn(u64) -> u64, bytes: impl Fn(u64) -> u64) -> Self {
        for amounts in [&mut self.free, &mut self.have] {
            amounts.cpu = CpuMilli(cpu(amounts.cpu.0));
            amounts.memory = Bytes(bytes(amounts.memory.0));
            amounts.storage = Bytes(bytes(amounts.storage.0));
        }
        self
    }

    fn low(self) -> Self {
        self.map(
            |cpu| cpu / CPU_STEP * CPU_STEP,
            |bytes| bytes / BYTES_STEP * BYTES_STEP,
        )
    }

    fn high(self) -> Self {
        self.map(
            |cpu| cpu.saturating_add(CPU_STEP - 1),
            |bytes| bytes.saturating_add(BYTES_STEP - 1),
        )
    }
}

/// Rooms that are alike.
#[derive(Debug, Clone)]
pub(crate) struct Alike {
    /// Each has at least this.
    pub low: Arc<Room>,
    /// None has more.
    pub high: Arc<Room>,
}

/// The rooms there are, by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rooms {
    rooms: Vec<Alike>,
    /// Nodes that have each. A number that nobody has is given out again.
    members: Vec<u32>,
    vacant: Vec<u32>,
    numbers: HashMap<Arc<Room>, u32>,
}

impl Rooms {
    /// By number; some may be nobody's.
    pub(crate) fn all(&self) -> &[Alike] {
        &self.rooms
    }

    /// With how many nodes have each.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (&Room, u32)> {
        let counted = self.rooms.iter().zip(&self.members);
        counted
            .filter(|(_, members)| **members > 0)
            .map(|(alike, members)| (&*alike.low, *members))
    }

    /// Counts a node in, and says which room it has.
    pub(super) fn join(&mut self, room: Room) -> u32 {
        let low = room.low();
        let number = match self.numbers.get(&low) {
            Some(number) => *number,
            None => self.add(low),
        };
        self.members[number as usize] += 1;
        number
    }

    pub(super) fn leave(&mut self, number: u32) {
        let members = &mut self.members[number as usize];
        *members -= 1;
        if *members == 0 {
            self.numbers.remove(&self.rooms[number as usize].low);
            self.vacant.push(number);
        }
    }

    fn add(&mut self, low: Room) -> u32 {
        let alike = Alike {
            high: Arc::new(low.clone().high()),
            low: Arc::new(low),
        };
        let low = alike.low.clone();
        let number = if let Some(number) = self.vacant.pop() {
            self.rooms[number as usize] = alike;
            number
        } else {
            self.rooms.push(alike);
            self.members.push(0);
            self.rooms.len() as u32 - 1
        };
        self.numbers.insert(low, number);
        number
    }
}
