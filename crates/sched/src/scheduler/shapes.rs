//! Jobs that ask for the same are asked for once: thousands of waiting jobs have few shapes.
//!
//! Of each shape it is known how many workers found no room when it was last tried. Room that comes free is held against that, and the shape
//! is tried again only when it may be enough.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::gang::Gang;
use crate::place::{find, fitting};
use crate::queues::{Mask, Models, milli_each};
use crate::resources::Resources;
use crate::snapshot::Snapshot;

pub type ShapeId = usize;

#[derive(Debug, Clone, Default)]
pub struct Shapes {
    list: Vec<Shape>,
    /// Where shapes are that may be equal.
    found: HashMap<Sketch, Vec<ShapeId>>,
    vacant: Vec<ShapeId>,
}

#[derive(Debug, Clone)]
pub struct Shape {
    pub gang: Arc<Gang>,
    /// Thousandths of a GPU, of each worker.
    pub milli: u64,
    /// The models that it may use.
    pub models: Mask,
    users: u32,
    /// The gang with the fewest workers and on some of the models only, as far as that was asked.
    variants: BTreeMap<Mask, Variant>,
    /// Is there room for it on idle nodes? Absent: not known.
    possible: Option<bool>,
}

#[derive(Debug, Clone)]
struct Variant {
    gang: Arc<Gang>,
    /// Workers that there was no room for, less those whose room may have come free since.
    lacks: u32,
}

/// What shapes are told apart by, at first sight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sketch {
    workers: u32,
    gpus: u32,
    cpu: u64,
    memory: u64,
}

impl Sketch {
    fn of(gang: &Gang) -> Self {
        Self {
            workers: gang.workers,
            gpus: gang.ask.gpus,
            cpu: gang.ask.cpu.0,
            memory: gang.ask.memory.0,
        }
    }
}

impl Shapes {
    pub fn enter(&mut self, gang: &Arc<Gang>, models: &Models) -> ShapeId {
        let alike = self.found.entry(Sketch::of(gang)).or_default();
        let known = alike.iter().copied().find(|id| {
            let known = &self.list[*id].gang;
            Arc::ptr_eq(known, gang) || known == gang
        });
        if let Some(id) = known {
            self.list[id].users += 1;
            return id;
        }
        let shape = Shape {
            gang: gang.clone(),
            milli: milli_each(gang),
            models: models_of(gang, models),
            users: 1,
            variants: BTreeMap::new(),
            possible: None,
        };
        let id = if let Some(id) = self.vacant.pop() {
            self.list[id] = shape;
            id
        } else {
            self.list.push(shape);
            self.list.len() - 1
        };
        alike.push(id);
        id
    }

    pub fn leave(&mut self, id: ShapeId) {
        let shape = &mut self.list[id];
        shape.users = shape.users.saturating_sub(1);
        if shape.users > 0 {
            return;
        }
        shape.variants.clear();
        let sketch = Sketch::of(&shape.gang);
        if let Some(alike) = self.found.get_mut(&sketch) {
            alike.retain(|known| *known != id);
            if alike.is_empty() {
                self.found.remove(&sketch);
            }
        }
        self.vacant.push(id);
    }

    pub fn get(&self, id: ShapeId) -> &Shape {
        &self.list[id]
    }

    /// The gang with the fewest workers that it can do with, on these models only.
    pub fn gang(&self, id: ShapeId, mask: Mask, models: &Models) -> Arc<Gang> {
        let shape = &self.list[id];
        match shape.variants.get(&mask) {
            Some(variant) => variant.gang.clone(),
            None => shape.on(mask, models),
        }
    }

    /// Is it known that there is no room?
    pub fn is_turned_away(&self, id: ShapeId, mask: Mask) -> bool {
        let variant = self.list[id].variants.get(&mask);
        variant.is_some_and(|variant| variant.lacks > 0)
    }

    /// Remembers that there was no room, of the room that anyone may have.
    pub fn turn_away(&mut self, id: ShapeId, mask: Mask, models: &Models, snapshot: &Snapshot) {
        let shape = &mut self.list[id];
        let gang = shape.variant(mask, models).gang.clone();
        let wanted = workers_min(&gang);
        let lacks = wanted.saturating_sub(fitting(snapshot, &gang)).max(1);
        shape.variant(mask, models).lacks = lacks;
    }

    /// There is more room on a node; `before` is absent where nobody could have used it.
    pub fn gain(&mut self, before: Option<&Resources>, after: &Resources) {
        for shape in &mut self.list {
            let ask = &shape.gang.ask;
            // Parts of a GPU are not in what a worker asks for.
            let is_part = shape.milli % 1000 != 0;
            let gained = if is_part {
                u32::MAX
            } else {
                let before = before.map_or(0, |before| before.times(ask));
                after.times(ask).saturating_sub(before)
            };
            if gained > 0 {
                for variant in shape.variants.values_mut() {
                    variant.lacks = variant.lacks.saturating_sub(gained);
                }
            }
        }
    }

    /// Could there be room, were nothing running?
    pub fn is_possible(&mut self, id: ShapeId, snapshot: &Snapshot) -> bool {
        let shape = &mut self.list[id];
        *shape
            .possible
            .get_or_insert_with(|| find(&snapshot.idle(), &shape.gang).is_some())
    }

    /// The nodes are not what they were.
    pub fn start_over(&mut self, models: &Models) {
        for shape in &mut self.list {
            shape.possible = None;
            shape.models = models_of(&shape.gang, models);
            shape.variants.clear();
        }
    }
}

impl Shape {
    fn variant(&mut self, mask: Mask, models: &Models) -> &mut Variant {
        let gang = match self.variants.get(&mask) {
            Some(known) => known.gang.clone(),
            None => self.on(mask, models),
        };
        let anew = || Variant { gang, lacks: 0 };
        self.variants.entry(mask).or_insert_with(anew)
    }

    /// The gang with the fewest workers that it can do with, on these models only.
    fn on(&self, mask: Mask, models: &Models) -> Arc<Gang> {
        let products = models.products(mask);
        let is_any = mask == self.models || self.milli == 0 || products.is_empty();
        let workers = workers_min(&self.gang);
        if is_any && workers == self.gang.workers {
            return self.gang.clone();
        }
        let mut gang = self.gang.as_ref().clone();
        if !is_any {
            gang.gpu_types = products;
        }
        gang.workers = workers;
        gang.min_workers = None;
        Arc::new(gang)
    }

    /// Of the fewest workers that it can do with.
    pub fn milli_min(&self) -> u64 {
        u64::from(workers_min(&self.gang)).saturating_mul(self.milli)
    }
}

/// The models that a gang may use; without GPUs they do not matter.
fn models_of(gang: &Gang, models: &Models) -> Mask {
    if milli_each(gang) == 0 {
        Mask::ALL
    } else {
        models.of_gang(gang)
    }
}

/// The workers that it cannot do without.
pub fn workers_min(gang: &Gang) -> u32 {
    gang.min_workers.unwrap_or(gang.workers).min(gang.workers)
}
