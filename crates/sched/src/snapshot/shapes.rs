//! What is the same of many nodes: everything that decides whether a worker may run there at all.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::{Node, Taint};
use crate::gang::HOSTNAME;
use crate::gpu::{GpuModel, gives_parts};
use crate::resources::Other;

/// The facts of a node that do not change by what runs, and that many nodes share. How large it is is not among them: machines of one kind
/// differ in a few bytes of memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    pub ready: bool,
    pub schedulable: bool,
    pub spot: bool,
    /// It counts some GPUs as `nvidia.com/gpu`.
    pub has_gpus: bool,
    /// It is us who choose among its GPUs.
    pub has_devices: bool,
    pub gpu: Option<GpuModel>,
    pub taints: Vec<Taint>,
    /// Parts of GPUs that it counts under their own names.
    pub parts: Vec<Arc<str>>,
    /// All but those that are singular.
    pub labels: BTreeMap<String, String>,
}

/// The shapes there are, by number.
#[derive(Debug, Clone)]
pub(crate) struct Shapes {
    shapes: Vec<Shape>,
    /// Nodes of each. A number that nobody has is given out again.
    members: Vec<u32>,
    vacant: Vec<u32>,
    by_hash: HashMap<u64, Vec<u32>>,
    /// Labels of which nearly every node has another value.
    singular: BTreeSet<String>,
    /// It is not labels that tell so many nodes apart.
    is_diverse: bool,
}

impl Default for Shapes {
    fn default() -> Self {
        Self::new(&[])
    }
}

/// Below this it is not worth while to think about it.
const SHAPES_MIN: usize = 64;
const NODES_PER_SHAPE: usize = 8;

impl Shapes {
    pub(super) fn new(levels: &[String]) -> Self {
        let singular = levels.iter().cloned().chain([HOSTNAME.to_owned()]);
        Self::without(singular.collect())
    }

    fn without(singular: BTreeSet<String>) -> Self {
        Self {
            shapes: Vec::new(),
            members: Vec::new(),
            vacant: Vec::new(),
            by_hash: HashMap::new(),
            singular,
            is_diverse: false,
        }
    }

    /// By number; some may be nobody's.
    pub(crate) fn all(&self) -> &[Shape] {
        &self.shapes
    }

    pub(crate) fn singular(&self) -> &BTreeSet<String> {
        &self.singular
    }

    /// Counts a node in, and says which shape it has.
    pub(super) fn join(&mut self, node: &Node) -> u32 {
        let hash = self.hash(node);
        let same_hash = self.by_hash.get(&hash).into_iter().flatten();
        let mut same_hash = same_hash.copied();
        let known = same_hash.find(|shape| self.is_of(node, &self.shapes[*shape as usize]));
        let number = known.unwrap_or_else(|| self.add(hash, node));
        self.members[number as usize] += 1;
        number
    }

    pub(super) fn leave(&mut self, number: u32) {
        let members = &mut self.members[number as usize];
        *members -= 1;
        if *members == 0 {
            self.vacant.push(number);
            self.shapes[number as usize] = Shape::default();
            self.by_hash.retain(|_, numbers| {
                numbers.retain(|other| *other != number);
                !numbers.is_empty()
            });
        }
    }

    fn add(&mut self, hash: u64, node: &Node) -> u32 {
        let shape = Shape {
            ready: node.ready,
            schedulable: node.schedulable,
            spot: node.spot,
            has_gpus: node.allocatable.gpus > 0,
            has_devices: node.devices.is_some(),
            gpu: node.gpu.clone(),
            taints: node.taints.clone(),
            parts: parts(node).cloned().collect(),
            labels: self
                .labels(node)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        };
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.shapes.push(Shape::default());
            self.members.push(0);
            self.shapes.len() as u32 - 1
        });
        self.shapes[number as usize] = shape;
        self.by_hash.entry(hash).or_default().push(number);
        number
    }

    fn labels<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (&'a String, &'a String)> {
        let labels = node.labels.iter();
        labels.filter(|(key, _)| !self.singular.contains(*key))
    }

    fn is_of(&self, node: &Node, shape: &Shape) -> bool {
        shape.ready == node.ready
            && shape.schedulable == node.schedulable
            && shape.spot == node.spot
            && shape.has_gpus == (node.allocatable.gpus > 0)
            && shape.has_devices == node.devices.is_some()
            && shape.gpu == node.gpu
            && shape.taints == node.taints
            && parts(node).eq(&shape.parts)
            && self.labels(node).eq(&shape.labels)
    }

    fn hash(&self, node: &Node) -> u64 {
        let mut hasher = DefaultHasher::new();
        (node.ready, node.schedulable, node.spot).hash(&mut hasher);
        (&node.gpu, &node.taints).hash(&mut hasher);
        for label in self.labels(node) {
            label.hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(super) fn is_crowded(&self, nodes: usize) -> bool {
        let shapes = self.shapes.len() - self.vacant.len();
        !self.is_diverse && shapes > SHAPES_MIN + nodes / NODES_PER_SHAPE
    }

    pub(super) fn accept_crowd(&mut self) {
        self.is_diverse = true;
    }

    /// Without the label that has the most values; nobody is counted in. None where labels are not what tells nodes apart.
    pub(super) fn coarser(&self) -> Option<Self> {
        let mut values: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
        for (key, value) in self.shapes.iter().flat_map(|shape| &shape.labels) {
            values.entry(key).or_default().insert(value);
        }
        let (most, values) = values.into_iter().max_by_key(|(_, values)| values.len())?;
        if values.len() < 2 {
            return None;
        }
        let mut singular = self.singular.clone();
        singular.insert(most.clone());
        Some(Self::without(singular))
    }
}

fn parts(node: &Node) -> impl Iterator<Item = &Arc<str>> {
    let there = node
        .allocatable
        .others
        .iter()
        .filter(|(other, count)| **count > 0 && gives_parts(other));
    there.filter_map(|(other, _)| match other {
        Other::Named(name) => Some(name),
        Other::Port { .. } => None,
    })
}
