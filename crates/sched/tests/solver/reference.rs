//! The same question, answered without any of the solver's own code: every worker is tried on every node and GPU.

use std::collections::BTreeSet;

use stoke_api::trainjob::Spot;
use stoke_api::{GpuMilli, GpuRequest};
use stoke_sched::{
    Gang, HOSTNAME, Node, Operator, Other, Parts, Plan, Resources, Snapshot, Subject, Term,
    Topology,
};

use crate::any::PROFILES;

/// How a worker has its GPUs: as counted, as a part of a device, or as one of these.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Counted,
    Device(u16),
    Slice(Option<String>),
    Turn(Option<String>),
}

/// The most workers of the gang, up to all of them, that can be placed together.
pub fn fitting(snapshot: &Snapshot, gang: &Gang) -> u32 {
    let nodes: Vec<&Node> = snapshot.nodes().collect();
    let ways: BTreeSet<Way> = nodes.iter().filter_map(|node| way(node, gang)).collect();
    let mut best = 0;
    for way_tried in &ways {
        let mut domains: BTreeSet<Vec<String>> = BTreeSet::new();
        domains.extend(nodes.iter().filter_map(|node| domain(snapshot, node, gang)));
        for one in domains {
            let mut here: Vec<Node> = nodes
                .iter()
                .filter(|node| way(node, gang).as_ref() == Some(way_tried))
                .filter(|node| domain(snapshot, node, gang).as_ref() == Some(&one))
                .map(|node| (*node).clone())
                .collect();
            best = best.max(most(&mut here, 0, gang.workers, gang, way_tried));
        }
    }
    best
}

/// Workers from this node on: all there are ways to put one more, tried.
fn most(nodes: &mut [Node], from: usize, workers: u32, gang: &Gang, way: &Way) -> u32 {
    if workers == 0 || from == nodes.len() {
        return 0;
    }
    let mut best = most(nodes, from + 1, workers, gang, way);
    let before = nodes[from].clone();
    if fits(&before, gang, way) {
        let devices = match way {
            Way::Device(milli) => {
                let in_use = before.devices.iter().flatten().enumerate();
                let room = in_use.filter(|(_, used)| **used + milli <= 1000);
                room.map(|(index, _)| vec![index]).collect()
            }
            _ => vec![
                idle(&before)
                    .take(gang.ask.gpus as usize)
                    .collect::<Vec<_>>(),
            ],
        };
        for chosen in devices {
            add(&mut nodes[from], gang, way, &chosen);
            best = best.max(1 + most(nodes, from, workers - 1, gang, way));
            nodes[from] = before.clone();
            if best >= workers {
                break;
            }
        }
    }
    best
}

fn idle(node: &Node) -> impl Iterator<Item = usize> {
    let in_use = node.devices.iter().flatten().enumerate();
    in_use
        .filter(|(_, used)| **used == 0)
        .map(|(index, _)| index)
}

fn add(node: &mut Node, gang: &Gang, way: &Way, devices: &[usize]) {
    node.used.add(&asks(gang, way));
    let milli = if let Way::Device(milli) = way {
        *milli
    } else {
        1000
    };
    for index in devices {
        node.devices.as_mut().expect("devices")[*index] += milli;
    }
}

fn asks(gang: &Gang, way: &Way) -> Resources {
    let mut ask = gang.ask.clone();
    match way {
        Way::Slice(Some(name)) | Way::Turn(Some(name)) => {
            *ask.others
                .entry(Other::Named(name.as_str().into()))
                .or_insert(0) += 1;
        }
        Way::Slice(None) | Way::Turn(None) => ask.gpus += 1,
        Way::Counted | Way::Device(_) => {}
    }
    ask
}

fn fits(node: &Node, gang: &Gang, way: &Way) -> bool {
    let ask = asks(gang, way);
    let (have, used) = (&node.allocatable, &node.used);
    let of = |resources: &Resources, other: &Other| resources.others.get(other).copied();
    let others = ask.others.iter().all(|(other, ask)| {
        let free = of(have, other)
            .unwrap_or(0)
            .saturating_sub(of(used, other).unwrap_or(0));
        free >= *ask
    });
    let device = match way {
        Way::Device(milli) => {
            let mut in_use = node.devices.iter().flatten();
            in_use.any(|used| used + milli <= 1000)
        }
        _ => node.devices.is_none() || idle(node).count() >= ask.gpus as usize,
    };
    have.cpu.0.saturating_sub(used.cpu.0) >= ask.cpu.0
        && have.memory.0.saturating_sub(used.memory.0) >= ask.memory.0
        && have.gpus.saturating_sub(used.gpus) >= ask.gpus
        && have.pods.saturating_sub(used.pods) >= ask.pods
        && others
        && device
}

/// The domain that this node would be in, of the level that is required.
fn domain(snapshot: &Snapshot, node: &Node, gang: &Gang) -> Option<Vec<String>> {
    match &gang.topology {
        Some(Topology::Required { level }) if level == HOSTNAME => Some(vec![node.name.clone()]),
        Some(Topology::Required { level }) => {
            node.labels.get(level)?;
            let levels = snapshot.levels();
            let innermost = levels.iter().position(|known| known == level)?;
            let path = levels[..=innermost].iter();
            // Who lacks a label further out is near to nobody.
            let step = |level: &String| match node.labels.get(level) {
                Some(domain) => format!("in {domain}"),
                None => format!("alone {}", node.name),
            };
            Some(path.map(step).collect())
        }
        Some(Topology::Preferred) | None => Some(Vec::new()),
    }
}

fn holds(node: &Node, term: &Term) -> bool {
    term.0.iter().all(|requirement| {
        let value = match &requirement.subject {
            Subject::Label(key) => node.labels.get(key),
            Subject::NodeName => Some(&node.name),
        };
        match &requirement.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            other => panic!("not drawn: {other:?}"),
        }
    })
}

/// How a worker has its GPUs on this node. None where it may not run there at all.
fn way(node: &Node, gang: &Gang) -> Option<Way> {
    let will_do = node.ready
        && node.schedulable
        && (node.taints.is_empty() || !gang.tolerations.is_empty())
        && match gang.spot {
            Spot::Allowed => true,
            Spot::Never => !node.spot,
            Spot::Only => node.spot,
        }
        && gang
            .selector
            .iter()
            .all(|(key, value)| node.labels.get(key) == Some(value))
        && (gang.terms.is_empty() || gang.terms.iter().any(|term| holds(node, term)))
        && gang
            .volumes
            .iter()
            .all(|terms| terms.iter().any(|term| holds(node, term)));
    let gpu = node.gpu.as_ref()?;
    let of_type = gang.gpu_types.is_empty() || gpu.product.contains("H100");
    let has = |name: &str| {
        let other = Other::Named(name.into());
        node.allocatable.others.get(&other).is_some_and(|n| *n > 0)
    };
    let mig = |profile: &str| format!("nvidia.com/mig-{profile}");
    let counts = node.allocatable.gpus > 0;
    if !will_do {
        return None;
    }
    match &gang.gpus {
        GpuRequest::None | GpuRequest::Whole(_) if gang.ask.gpus == 0 => Some(Way::Counted),
        _ if !of_type => None,
        GpuRequest::None | GpuRequest::Whole(_) => {
            (gpu.parts == Parts::Whole && counts).then_some(Way::Counted)
        }
        GpuRequest::Mig(profile) => {
            let single = Parts::Mig {
                profile: profile.clone(),
            };
            if has(&mig(profile)) {
                Some(Way::Slice(Some(mig(profile))))
            } else {
                (gpu.parts == single && counts).then_some(Way::Slice(None))
            }
        }
        GpuRequest::Fraction(GpuMilli(milli)) => {
            if node.devices.is_some() {
                return counts.then_some(Way::Device(*milli as u16));
            }
            // Names of slices are round: two hundredths less will do.
            let enough = |slice: u32| f64::from(slice) >= f64::from(*milli) * 0.98 - 1e-9;
            let mut slices = PROFILES.iter();
            let named = slices.find(|(name, slice)| has(&mig(name)) && enough(*slice));
            if let Some((name, _)) = named {
                return Some(Way::Slice(Some(mig(name))));
            }
            match &gpu.parts {
                Parts::Whole => None,
                Parts::Mig { profile } => {
                    let found = PROFILES.iter().find(|(name, _)| name == profile);
                    let will_do = counts && found.is_some_and(|(_, slice)| enough(*slice));
                    will_do.then_some(Way::Slice(None))
                }
                Parts::Turns { replicas } => {
                    let will_do = *replicas > 0 && milli * replicas <= 1000;
                    let shared = "nvidia.com/gpu.shared";
                    if will_do && has(shared) {
                        Some(Way::Turn(Some(shared.to_owned())))
                    } else {
                        (will_do && counts).then_some(Way::Turn(None))
                    }
                }
            }
        }
    }
}

/// Does every worker have its room, on its node and its GPUs, all in one domain?
pub fn check(snapshot: &Snapshot, gang: &Gang, plan: &Plan) -> Result<(), String> {
    let count = plan.nodes.len() as u32;
    if count > gang.workers || count < gang.least() {
        return Err(format!("{count} of {} workers", gang.workers));
    }
    let mut nodes: Vec<Node> = snapshot.nodes().cloned().collect();
    let mut domains = BTreeSet::new();
    let mut ways = BTreeSet::new();
    for (name, devices) in plan.nodes.iter().zip(&plan.devices) {
        let node = nodes.iter_mut().find(|node| node.name == *name);
        let node = node.ok_or("a node there is not")?;
        let way = way(node, gang).ok_or_else(|| format!("{name} will not do"))?;
        domains.insert(domain(snapshot, node, gang).ok_or("no domain")?);
        if !fits(node, gang, &way) {
            return Err(format!("{name} has no room"));
        }
        let milli = if let Way::Device(milli) = &way {
            *milli
        } else {
            1000
        };
        let in_use = node.devices.clone().unwrap_or_default();
        let wanted = match (&way, &node.devices) {
            (_, None) => 0,
            (Way::Device(_), _) => 1,
            _ => gang.ask.gpus as usize,
        };
        let devices: BTreeSet<usize> = devices.iter().map(|index| *index as usize).collect();
        let has_room = |index: &usize| in_use.get(*index).is_some_and(|u| u + milli <= 1000);
        if devices.len() != wanted || !devices.iter().all(has_room) {
            return Err(format!("GPUs {devices:?} of {in_use:?}"));
        }
        let devices: Vec<usize> = devices.into_iter().collect();
        add(node, gang, &way, &devices);
        let named = match &way {
            Way::Slice(Some(name)) | Way::Turn(Some(name)) => Some((name.clone(), 1)),
            Way::Slice(None) | Way::Turn(None) => Some(("nvidia.com/gpu".to_owned(), 1)),
            Way::Counted | Way::Device(_) => None,
        };
        if named != plan.resource {
            return Err(format!("{:?} is not {named:?}", plan.resource));
        }
        ways.insert(way);
    }
    if domains.len() > 1 || ways.len() > 1 {
        return Err(format!("in {domains:?} by {ways:?}"));
    }
    Ok(())
}
