//! Clusters and gangs drawn at random: small, and odd in every way there is.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoke_api::trainjob::Spot;
use stoke_api::{Bytes, CpuMilli, GpuMilli, GpuRequest};
use stoke_sched::{
    Effect, Gang, GpuModel, HOSTNAME, Node, Operator, Other, Parts, Requirement, Resources,
    Snapshot, Subject, Taint, Term, Toleration, Topology,
};

use crate::fixtures::racked;

pub const PROFILES: [(&str, u32); 3] = [("1g.10gb", 125), ("2g.20gb", 250), ("3g.40gb", 500)];

fn slice(profile: &str) -> Other {
    Other::Named(format!("nvidia.com/mig-{profile}").into())
}

fn hca() -> Other {
    Other::Named("rdma/hca".into())
}

fn amounts(scale: u64) -> impl Strategy<Value = Resources> {
    (
        0..=8 * scale,
        0..=16 * scale,
        0..=2 * scale as u32,
        0..=4 * scale as u32,
        prop::option::weighted(0.2, 0..=2 * scale),
    )
        .prop_map(|(cpu, memory, gpus, pods, others)| Resources {
            cpu: CpuMilli(cpu * 500),
            memory: Bytes::gib(memory),
            gpus,
            pods,
            others: others.map(|count| (hca(), count)).into_iter().collect(),
            ..Resources::default()
        })
}

/// How the GPUs of a node are given out.
#[derive(Debug, Clone)]
enum Gpus {
    Plain,
    Chosen(Vec<u16>),
    Mixed(Vec<(usize, u64, u64)>),
    Sliced(usize),
    Turns { replicas: u32, renamed: bool },
}

fn any_gpus() -> impl Strategy<Value = Gpus> {
    let in_use = prop_oneof![3 => Just(0_u16), 1 => Just(1000), 3 => 1_u16..1000];
    let slices = prop::collection::vec((0_usize..3, 0_u64..4, 0_u64..4), 0..3);
    prop_oneof![
        4 => Just(Gpus::Plain),
        3 => prop::collection::vec(in_use, 0..5).prop_map(Gpus::Chosen),
        2 => slices.prop_map(Gpus::Mixed),
        1 => (0_usize..3).prop_map(Gpus::Sliced),
        2 => (0_u32..9, any::<bool>()).prop_map(|(replicas, renamed)| Gpus::Turns { replicas, renamed }),
    ]
}

fn give(mut node: Node, gpus: Gpus) -> Node {
    let mut parts = Parts::Whole;
    match gpus {
        Gpus::Plain => {}
        Gpus::Chosen(in_use) => {
            node.allocatable.gpus = in_use.len() as u32;
            node.used.gpus = in_use.iter().filter(|used| **used == 1000).count() as u32;
            node.devices = Some(in_use);
        }
        Gpus::Mixed(slices) => {
            for (profile, have, used) in slices {
                let name = slice(PROFILES[profile].0);
                node.allocatable.others.insert(name.clone(), have);
                node.used.others.insert(name, used);
            }
        }
        Gpus::Sliced(profile) => {
            parts = Parts::Mig {
                profile: PROFILES[profile].0.to_owned(),
            };
        }
        Gpus::Turns { replicas, renamed } => {
            parts = Parts::Turns { replicas };
            if renamed {
                let shared = Other::Named("nvidia.com/gpu.shared".into());
                let have = u64::from(std::mem::take(&mut node.allocatable.gpus));
                let used = u64::from(std::mem::take(&mut node.used.gpus));
                node.allocatable.others.insert(shared.clone(), have);
                node.used.others.insert(shared, used);
            }
        }
    }
    if let Some(gpu) = &mut node.gpu {
        gpu.parts = parts;
    }
    node
}

/// People's and Kubernetes' own.
fn any_taints() -> impl Strategy<Value = Vec<Taint>> {
    let keys = vec![
        "t",
        "u",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/disk-pressure",
        "node.kubernetes.io/memory-pressure",
    ];
    let taint = |key: &str| Taint {
        key: key.to_owned(),
        value: String::new(),
        effect: Effect::NoExecute,
    };
    let some = prop::sample::subsequence(keys, 1..=2);
    let some = some.prop_map(move |keys| keys.into_iter().map(taint).collect());
    prop_oneof![3 => Just(Vec::new()), 1 => some]
}

fn any_node(name: usize) -> impl Strategy<Value = Node> {
    let flags = (
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.9),
        any_taints(),
        prop::bool::weighted(0.2),
        any::<bool>(),
    );
    let place = (
        prop::option::weighted(0.85, 0_u8..2),
        prop::option::weighted(0.85, 0_u8..2),
    );
    (amounts(4), amounts(3), any_gpus(), flags, place).prop_map(
        move |(allocatable, used, gpus, (ready, schedulable, taints, spot, big), place)| {
            let named = |key: &str, value: String| (key.to_owned(), value);
            let size = if big { "big" } else { "small" };
            let mut labels = BTreeMap::from([
                named("size", size.to_owned()),
                named(HOSTNAME, format!("n{name}")),
            ]);
            labels.extend(place.0.map(|block| named("block", format!("b{block}"))));
            labels.extend(place.1.map(|rack| named("rack", format!("r{rack}"))));
            let node = Node {
                name: format!("n{name}"),
                allocatable,
                used,
                ready,
                schedulable,
                labels: labels.into(),
                taints,
                gpu: Some(GpuModel {
                    product: if big {
                        "NVIDIA-H100-80GB"
                    } else {
                        "NVIDIA-A100-80GB"
                    }
                    .to_owned(),
                    memory: Some(Bytes::gib(80)),
                    ..GpuModel::default()
                }),
                spot,
                devices: None,
            };
            give(node, gpus)
        },
    )
}

/// With the levels `block` and `rack`.
pub fn any_cluster() -> impl Strategy<Value = Snapshot> {
    (0_usize..6)
        .prop_flat_map(|count| (0..count).map(any_node).collect::<Vec<_>>())
        .prop_map(racked)
}

fn any_request() -> impl Strategy<Value = Option<GpuRequest>> {
    prop_oneof![
        3 => Just(None),
        2 => (1_u32..1000).prop_map(|milli| Some(GpuRequest::Fraction(GpuMilli(milli)))),
        1 => (0_usize..3).prop_map(|profile| Some(GpuRequest::Mig(PROFILES[profile].0.to_owned()))),
    ]
}

fn any_topology() -> impl Strategy<Value = Option<Topology>> {
    let level = prop::sample::select(vec!["block", "rack", HOSTNAME]);
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(Topology::Preferred)),
        2 => level.prop_map(|level| Some(Topology::Required { level: level.to_owned() })),
    ]
}

fn any_terms() -> impl Strategy<Value = Vec<Term>> {
    let requirement = |subject, values: Vec<String>| Requirement {
        subject,
        operator: Operator::In(values),
    };
    let names = prop::collection::vec((0_usize..6).prop_map(|n| format!("n{n}")), 1..5);
    let one = (names, 0_u8..3).prop_map(move |(names, what)| {
        Term(vec![match what {
            0 => requirement(Subject::NodeName, names),
            1 => requirement(Subject::Label(HOSTNAME.to_owned()), names),
            _ => requirement(Subject::Label("size".to_owned()), vec!["small".to_owned()]),
        }])
    });
    prop::collection::vec(one, 1..3)
}

pub fn any_gang() -> impl Strategy<Value = Gang> {
    let flags = (
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    );
    let spot = prop::sample::select(vec![Spot::Allowed, Spot::Allowed, Spot::Never, Spot::Only]);
    let avoid = prop::collection::btree_set((0_usize..6).prop_map(|n| format!("n{n}")), 0..3);
    (
        (1_u32..6, prop::option::weighted(0.3, 1_u32..6)),
        amounts(1),
        any_request(),
        flags,
        (any_topology(), spot, avoid),
        (
            prop::option::weighted(0.15, any_terms()),
            prop::option::weighted(0.15, any_terms()),
        ),
    )
        .prop_map(
            |(
                (workers, min_workers),
                ask,
                request,
                (typed, selecting, tolerant),
                (topology, spot, avoid),
                (terms, volume),
            )| {
                let selector = [("size".to_owned(), "big".to_owned())];
                let gang = Gang {
                    workers,
                    min_workers,
                    gpus: GpuRequest::Whole(ask.gpus),
                    ask: Resources { pods: 1, ..ask },
                    gpu_types: typed.then(|| "h100".to_owned()).into_iter().collect(),
                    selector: selector.into_iter().filter(|_| selecting).collect(),
                    terms: terms.unwrap_or_default(),
                    volumes: volume.into_iter().collect(),
                    tolerations: tolerant.then(Toleration::default).into_iter().collect(),
                    spot,
                    topology,
                    avoid: avoid.into_iter().collect::<BTreeSet<_>>(),
                };
                match request {
                    Some(gpus) => gang.with_gpus(gpus),
                    None => gang,
                }
            },
        )
}
