//! What is wrong with a queue.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use stoke_api::{QueueSpec, Reason};

use super::amount::ANY;

/// Why a queue cannot be used. Jobs of it, and of the queues below it, wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum QueueFault {
    #[error("its parent {parent} does not exist; create it, or change spec.parent")]
    ParentNotFound { parent: String },
    #[error("it is above itself: {}; change the parent of one of them", .through.join(" in "))]
    ParentCycle { through: Vec<String> },
    #[error(
        "guaranteed are {guaranteed} GPUs ({gpus}) and the ceiling is {ceiling}; raise the ceiling or lower the guarantee"
    )]
    GuaranteeAboveCeiling {
        gpus: String,
        guaranteed: u64,
        ceiling: u64,
    },
    #[error(
        "the queues below it are guaranteed {children} GPUs ({gpus}) together, and itself {guaranteed}; raise its guarantee or lower theirs"
    )]
    GuaranteeAboveParent {
        gpus: String,
        guaranteed: u64,
        children: u64,
    },
    #[error("queue {queue} above it cannot be used: {fault}")]
    Above {
        queue: String,
        fault: Box<QueueFault>,
    },
}

impl QueueFault {
    pub fn reason(&self) -> Reason {
        match self {
            Self::ParentNotFound { .. } => Reason::ParentNotFound,
            Self::ParentCycle { .. } => Reason::ParentCycle,
            Self::GuaranteeAboveCeiling { .. } => Reason::GuaranteeAboveCeiling,
            Self::GuaranteeAboveParent { .. } => Reason::GuaranteeAboveParent,
            Self::Above { .. } => Reason::QueueUnusable,
        }
    }
}

type Specs = BTreeMap<String, QueueSpec>;

/// What is wrong with each queue that cannot be used.
pub fn find(specs: &Specs) -> BTreeMap<String, QueueFault> {
    let mut faults: BTreeMap<String, QueueFault> = specs
        .iter()
        .filter_map(|(name, spec)| Some((name.clone(), own_fault(specs, name, spec)?)))
        .collect();
    // Whoever stands below a fault has it too.
    for name in specs.keys() {
        if faults.contains_key(name) {
            continue;
        }
        let above = line_up(specs, name).into_iter().skip(1);
        let found = above
            .filter_map(|queue| {
                let fault = faults.get(queue)?;
                Some((queue.to_owned(), fault.clone()))
            })
            .find(|(_, fault)| !matches!(fault, QueueFault::Above { .. }));
        if let Some((queue, fault)) = found {
            let fault = Box::new(fault);
            faults.insert(name.clone(), QueueFault::Above { queue, fault });
        }
    }
    faults
}

fn own_fault(specs: &Specs, name: &str, spec: &QueueSpec) -> Option<QueueFault> {
    if let Some(parent) = &spec.parent
        && !specs.contains_key(parent)
    {
        let parent = parent.clone();
        return Some(QueueFault::ParentNotFound { parent });
    }
    let line = line_up(specs, name);
    let last = line.last().and_then(|last| specs.get(*last));
    if last.and_then(|last| last.parent.as_deref()) == Some(name) {
        let mut through: Vec<String> = line.iter().map(ToString::to_string).collect();
        through.push(name.to_owned());
        return Some(QueueFault::ParentCycle { through });
    }
    above_ceiling(spec).or_else(|| above_parent(specs, name, spec))
}

/// A queue and those above it, each once.
fn line_up<'a>(specs: &'a Specs, name: &'a str) -> Vec<&'a str> {
    let mut line = vec![name];
    let mut seen = BTreeSet::from([name]);
    let parent = |name: &str| specs.get(name).and_then(|spec| spec.parent.as_deref());
    let mut at = name;
    while let Some(next) = parent(at) {
        if !seen.insert(next) {
            break;
        }
        line.push(next);
        at = next;
    }
    line
}

fn above_ceiling(spec: &QueueSpec) -> Option<QueueFault> {
    let sum = spec
        .guaranteed
        .values()
        .map(|count| u64::from(count.0))
        .sum();
    let mut limits = spec.ceiling.iter().map(|(gpus, ceiling)| {
        let guaranteed = match spec.guaranteed.get(gpus) {
            _ if gpus == ANY => sum,
            Some(count) => u64::from(count.0),
            None => 0,
        };
        (gpus, guaranteed, u64::from(ceiling.0))
    });
    let (gpus, guaranteed, ceiling) =
        limits.find(|(_, guaranteed, ceiling)| guaranteed > ceiling)?;
    Some(QueueFault::GuaranteeAboveCeiling {
        gpus: gpus.clone(),
        guaranteed,
        ceiling,
    })
}

/// A queue that says a guarantee must be able to keep those of the queues below. What they say of a type may come out of its own of that
/// type and of its `any`; what they say of `any`, only of its `any`.
fn above_parent(specs: &Specs, name: &str, spec: &QueueSpec) -> Option<QueueFault> {
    if spec.guaranteed.is_empty() {
        return None;
    }
    let mut below: BTreeMap<&str, u64> = BTreeMap::new();
    let children = specs
        .iter()
        .filter(|(child, _)| nearest_guarantor(specs, child) == Some(name));
    for (gpus, count) in children.flat_map(|(_, said)| &said.guaranteed) {
        *below.entry(gpus).or_default() += u64::from(count.0);
    }
    let own = |gpus: &str| {
        let said = spec.guaranteed.get(gpus);
        said.map_or(0, |count| u64::from(count.0))
    };
    let mut from_any = 0_u64;
    for (gpus, children) in &below {
        let of_type = if *gpus == ANY { 0 } else { own(gpus) };
        from_any = from_any.saturating_add(children.saturating_sub(of_type));
        if from_any > own(ANY) {
            return Some(QueueFault::GuaranteeAboveParent {
                gpus: (*gpus).to_owned(),
                guaranteed: own(gpus),
                children: *children,
            });
        }
    }
    None
}

/// The nearest queue above that says a guarantee.
pub fn nearest_guarantor<'a>(specs: &'a Specs, name: &'a str) -> Option<&'a str> {
    let mut above = line_up(specs, name).into_iter().skip(1);
    above.find(|queue| {
        specs
            .get(*queue)
            .is_some_and(|spec| !spec.guaranteed.is_empty())
    })
}
