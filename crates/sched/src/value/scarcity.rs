//! What is short in the cluster as a whole: room for work of several GPUs, and models of GPU that some work must have.
//!
//! Both are measured against what is still to come before the cluster is full, and both fade as that comes: what was kept for the few is the many's in the end.

use std::collections::BTreeMap;

use super::ask::{Model, Models};
use super::history::Share;
use super::room::Room;
use super::tables::Tables;

/// What the last room for one more worker as large as the largest node is worth beyond its GPUs, in GPUs.
const SLOT: f64 = 0.5;
/// Room is worth keeping from half as much demand on; the rest may be where it is of no use.
const SLOT_MARGIN: f64 = 2.0;
/// What a GPU's worth of other work loses on a model whose own work will fill it. More than places differ in otherwise.
const TOLL: f64 = 0.5;
/// A model is all spoken for from two thirds as much demand on: what comes varies, and not all of a node can be used.
const TOLL_MARGIN: f64 = 1.5;

/// A difference in price that makes none in scores.
const NEGLIGIBLE: f64 = 0.003;

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Scarcity {
    /// GPUs of one worker, and what it is worth to keep room for one more such.
    slots: Vec<(u32, f64)>,
    /// By model: what a GPU's worth of work must pay for lying there.
    tolls: Vec<f64>,
}

/// What is left of the cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Left {
    /// How many nodes have so many whole GPUs.
    whole: BTreeMap<u32, u32>,
    /// By model: the worth of all nodes.
    worth: Vec<f64>,
}

impl Left {
    pub fn add(&mut self, room: &Room, worth: f64) {
        *self.whole.entry(room.whole).or_default() += 1;
        let model = room.model.number();
        if self.worth.len() <= model {
            self.worth.resize(model + 1, 0.0);
        }
        self.worth[model] += worth;
    }

    fn slots(&self, gpus: u32) -> u32 {
        self.whole
            .iter()
            .map(|(whole, nodes)| whole / gpus * nodes)
            .sum()
    }

    /// The models there is anything left of, among these.
    fn open(&self, models: Models) -> impl Iterator<Item = usize> {
        let open = move |number: &usize| Model::new(*number).is_some_and(|model| models.has(model));
        (0..self.worth.len())
            .filter(|number| self.worth[*number] > 0.0)
            .filter(open)
    }
}

impl Scarcity {
    /// `gpus_max`: of one node.
    pub fn of(mix: &[Share], tables: &Tables, left: &Left, gpus_max: u32) -> Self {
        let worth = |share: &Share| share.share * tables.price(share.gpus, share.milli);
        let mean: f64 = mix.iter().map(worth).sum();
        if mean <= 0.0 {
            return Self::default();
        }
        // Asks until the cluster is full.
        let to_come = left.worth.iter().sum::<f64>() / mean;

        let mut large = BTreeMap::<u32, f64>::new();
        let mut choosy = BTreeMap::<(usize, Models), f64>::new();
        let all = left.open(Models::ANY).count();
        for share in mix.iter().filter(|share| share.gpus > 0) {
            if share.gpus > 1 {
                *large.entry(share.gpus).or_default() += share.share * to_come;
            }
            let open = left.open(share.models).count();
            if open < all {
                *choosy.entry((open, share.models)).or_default() += worth(share) * to_come;
            }
        }
        Self {
            slots: slots(&large, left, gpus_max),
            tolls: tolls(&choosy, left),
        }
    }

    /// True where no score would be another for it, but for rounding.
    pub fn is_about(&self, other: &Self) -> bool {
        let slots =
            |scarcity: &Self| -> Vec<u32> { scarcity.slots.iter().map(|slot| slot.0).collect() };
        let prices = |scarcity: &Self| -> Vec<f64> {
            let slots = scarcity.slots.iter().map(|slot| slot.1);
            slots.chain(scarcity.tolls.iter().copied()).collect()
        };
        let (ours, theirs) = (prices(self), prices(other));
        slots(self) == slots(other)
            && ours.len() == theirs.len()
            && ours
                .iter()
                .zip(&theirs)
                .all(|(ours, theirs)| (ours - theirs).abs() < NEGLIGIBLE)
    }

    /// What it is worth to have so many GPUs whole on one node, beyond what they are worth one by one.
    pub fn slots(&self, whole: u32) -> f64 {
        let of = |(gpus, worth): &(u32, f64)| worth * f64::from(whole / gpus);
        self.slots.iter().map(of).sum()
    }

    pub fn toll(&self, model: Model) -> f64 {
        self.tolls.get(model.number()).copied().unwrap_or(0.0)
    }
}

fn slots(wanted: &BTreeMap<u32, f64>, left: &Left, gpus_max: u32) -> Vec<(u32, f64)> {
    let price = |(gpus, wanted): (&u32, &f64)| {
        let pressure = (SLOT_MARGIN * wanted / f64::from(left.slots(*gpus).max(1))).min(1.0);
        let size = f64::from(*gpus) / f64::from(gpus_max.max(*gpus));
        (*gpus, SLOT * size * pressure * pressure)
    };
    wanted.iter().map(price).collect()
}

/// Work that any model will do for presses on none; the rest goes where it can, those with the least choice first.
fn tolls(wanted: &BTreeMap<(usize, Models), f64>, left: &Left) -> Vec<f64> {
    let mut load = vec![0.0; left.worth.len()];
    for ((_, models), amount) in wanted {
        let open: Vec<usize> = left.open(*models).collect();
        pour(*amount, &open, &left.worth, &mut load);
    }
    let toll = |(load, worth): (&f64, &f64)| {
        let pressure = (TOLL_MARGIN * load / worth.max(1.0)).min(1.0);
        TOLL * pressure * pressure
    };
    load.iter().zip(&left.worth).map(toll).collect()
}

/// Loads the least loaded of the models, for what they have, until they are loaded alike or all is poured.
fn pour(amount: f64, models: &[usize], worth: &[f64], load: &mut [f64]) {
    let level = |model: usize, load: &[f64]| load[model] / worth[model];
    let mut models = models.to_vec();
    models.sort_by(|a, b| level(*a, load).total_cmp(&level(*b, load)).then(a.cmp(b)));
    let (mut poured, mut room, mut count) = (amount, 0.0, 0);
    for model in &models {
        if count > 0 && poured / room <= level(*model, load) {
            break;
        }
        poured += load[*model];
        room += worth[*model];
        count += 1;
    }
    for model in &models[..count] {
        load[*model] = poured / room * worth[*model];
    }
}
