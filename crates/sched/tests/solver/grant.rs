//! Does as an explanation says.

use std::sync::Arc;

use stoke_api::trainjob::Spot;
use stoke_api::{Bytes, CpuMilli, GpuRequest};
use stoke_sched::{Gang, Help, Node, Resources, Snapshot, Taint, Toleration, Topology};

/// The cluster and the gang after the help was given.
pub fn grant(snapshot: &Snapshot, gang: &Gang, help: &Help) -> (Snapshot, Gang) {
    let mut gang = gang.clone();
    let change = |change: &dyn Fn(&mut Node)| {
        let mut changed = snapshot.clone();
        for node in snapshot.nodes() {
            let mut node = node.clone();
            change(&mut node);
            changed.put(node);
        }
        changed
    };
    match help {
        Help::Wait => return (snapshot.idle(), gang),
        Help::AddNode | Help::OtherNodes => panic!("of no node in particular"),
        Help::MoreNodes { count, like } => {
            let mut larger = snapshot.clone();
            let like = snapshot.node(like).expect("a node there is");
            for number in 0..*count {
                larger.put(fresh(like, number));
            }
            return (larger, gang);
        }
        Help::AskLess { largest } => {
            let gpus = match gang.gpus {
                GpuRequest::Whole(_) => GpuRequest::Whole(gang.ask.gpus.min(largest.gpus)),
                _ => GpuRequest::None,
            };
            let ask = least(&gang.ask, largest);
            gang = gang.with_gpus(gpus);
            gang.ask = ask;
        }
        Help::FewerWorkers { fitting } => {
            gang.workers = *fitting;
            gang.min_workers = None;
        }
        Help::OtherGpuTypes { products } if products.is_empty() => gang.gpu_types.clear(),
        Help::OtherGpuTypes { products } => gang.gpu_types.extend(products.iter().cloned()),
        Help::OtherGpus { gpus } => gang = gang.with_gpus(gpus[0].clone()),
        Help::WiderTopology { level } => {
            gang.topology = Some(match level {
                Some(level) => Topology::Required {
                    level: level.clone(),
                },
                None => Topology::Preferred,
            });
        }
        Help::Provide { what } => {
            let names: Vec<&str> = what.split(" and ").collect();
            gang.ask
                .others
                .retain(|other, _| !names.contains(&other.to_string().as_str()));
        }
        Help::NearVolume => gang.volumes.clear(),
        Help::WaitForReady => {
            let ready = change(&|node| {
                node.ready = true;
                lose(node, "node.kubernetes.io/not-ready");
            });
            return (ready, gang);
        }
        Help::Uncordon => {
            let open = change(&|node| {
                node.schedulable = true;
                lose(node, "node.kubernetes.io/unschedulable");
            });
            return (open, gang);
        }
        Help::Mend { troubles } => {
            let mended = change(&|node| {
                for trouble in troubles {
                    lose(node, trouble.key());
                }
            });
            return (mended, gang);
        }
        Help::OtherSelector => {
            gang.selector.clear();
            gang.terms.clear();
        }
        Help::Tolerate { taints, more } => {
            assert_eq!(*more, 0, "fewer are drawn than are told");
            gang.tolerations.extend(taints.iter().map(tolerating));
        }
        Help::OtherSpot => gang.spot = Spot::Allowed,
        Help::All(helps) => {
            let granted = (snapshot.clone(), gang);
            return helps.iter().fold(granted, |(snapshot, gang), help| {
                grant(&snapshot, &gang, help)
            });
        }
    }
    (snapshot.clone(), gang)
}

fn lose(node: &mut Node, taint: &str) {
    node.taints.retain(|has| has.key != taint);
}

fn tolerating(taint: &Taint) -> Toleration {
    Toleration {
        key: Some(taint.key.clone()),
        value: Some(taint.value.clone()),
        effect: Some(taint.effect),
    }
}

fn fresh(like: &Node, number: u32) -> Node {
    let name = format!("new{number}");
    let mut labels = (*like.labels).clone();
    for value in labels.values_mut().filter(|value| **value == like.name) {
        value.clone_from(&name);
    }
    Node {
        name,
        used: Resources::default(),
        labels: Arc::new(labels),
        devices: like.devices.as_ref().map(|devices| vec![0; devices.len()]),
        ..like.clone()
    }
}

fn least(ask: &Resources, have: &Resources) -> Resources {
    let others = ask.others.iter();
    let others = others.map(|(other, ask)| (other.clone(), (*ask).min(have.of(other))));
    Resources {
        cpu: CpuMilli(ask.cpu.0.min(have.cpu.0)),
        memory: Bytes(ask.memory.0.min(have.memory.0)),
        storage: Bytes(ask.storage.0.min(have.storage.0)),
        gpus: ask.gpus.min(have.gpus),
        pods: ask.pods,
        others: others.collect(),
    }
}
