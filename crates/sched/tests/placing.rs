//! What placement promises, on examples and on clusters drawn at random.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stoke_api::trainjob::Spot;
use stoke_api::{Bytes, CpuMilli, GpuMilli, GpuRequest, Reason};
use stoke_sched::{
    Effect, Explanation, Gang, GpuModel, Help, Node, Obstacle, Operator, Other, Protocol,
    Requirement, Resources, Snapshot, Subject, Taint, Term, Toleration, candidates, fitting, place,
};

fn resources(cpu: u64, gib: u64, gpus: u32) -> Resources {
    Resources {
        cpu: CpuMilli(cpu * 1000),
        memory: Bytes::gib(gib),
        gpus,
        pods: 110,
        ..Resources::default()
    }
}

fn node(name: &str, gpus: u32) -> Node {
    Node {
        name: name.to_owned(),
        allocatable: resources(32, 256, gpus),
        ready: true,
        schedulable: true,
        gpu: (gpus > 0).then(|| GpuModel {
            product: "NVIDIA-A100-SXM4-80GB".to_owned(),
            ..GpuModel::default()
        }),
        ..Node::default()
    }
}

fn gang(workers: u32, gpus: u32) -> Gang {
    Gang {
        workers,
        ask: Resources {
            pods: 1,
            ..resources(4, 32, gpus)
        },
        gpus: GpuRequest::Whole(gpus),
        ..Gang::default()
    }
}

fn busy(mut node: Node, used: Resources) -> Node {
    node.used = used;
    node
}

fn cluster(nodes: impl IntoIterator<Item = Node>) -> Snapshot {
    nodes.into_iter().collect()
}

fn says(snapshot: &Snapshot, gang: &Gang) -> String {
    match place(snapshot, gang) {
        Ok(plan) => plan.nodes.join(" "),
        Err(explanation) => format!("{}: {explanation}", explanation.reason()),
    }
}

#[test]
fn a_gang_is_placed_whole_by_the_order_of_names() {
    let snapshot = cluster([node("b", 8), node("a", 8), node("c", 0)]);
    assert_eq!(says(&snapshot, &gang(3, 4)), "a a b");
    assert_eq!(says(&snapshot, &gang(1, 0)), "a");
}

#[test]
fn why_not_is_one_sentence_with_numbers_and_help() {
    let full = || busy(node("a", 8), resources(30, 30, 8));
    let two = cluster([full(), node("b", 0)]);
    insta::assert_snapshot!(says(&two, &gang(2, 1)), @"InsufficientCapacity: no room for 2 workers with 1 GPU, 4 CPUs and 32 GiB of memory each; 2 nodes: 1 has too few GPUs, 1 lacks free GPUs; it starts when enough of the work that runs has ended");
    insta::assert_snapshot!(says(&cluster([]), &gang(1, 0)), @"NoMatchingNodes: no room for a worker with 4 CPUs and 32 GiB of memory; 0 nodes; it starts when a node has joined");
    insta::assert_snapshot!(says(&cluster([node("a", 8)]), &gang(3, 4)), @"InsufficientCapacity: room for 2 of 3 workers with 4 GPUs, 4 CPUs and 32 GiB of memory each; 1 node; even idle there is room for only 2: ask for fewer or smaller workers, or add nodes");
    insta::assert_snapshot!(says(&cluster([node("a", 8)]), &gang(1, 16)), @"NoMatchingNodes: no room for a worker with 16 GPUs, 4 CPUs and 32 GiB of memory; 1 node: 1 has too few GPUs; ask for less: the largest that matches has 8 GPUs, 32 CPUs and 256 GiB of memory");
    let h100 = Gang {
        gpu_types: vec!["h100".to_owned()],
        ..gang(1, 1)
    };
    insta::assert_snapshot!(says(&cluster([node("a", 8)]), &h100), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 has other GPUs; change gpuTypes: there is NVIDIA-A100-SXM4-80GB");
}

#[test]
fn parts_of_a_gpu_are_refused_and_not_rounded() {
    let snapshot = cluster([node("a", 8)]);
    for gpus in [
        GpuRequest::Fraction(GpuMilli(500)),
        GpuRequest::Mig("1g.10gb".to_owned()),
    ] {
        let explanation = place(&snapshot, &Gang { gpus, ..gang(1, 0) }).expect_err("refused");
        assert_eq!(explanation.reason(), Reason::Misconfigured);
        assert!(explanation.to_string().contains("whole"), "{explanation}");
    }
}

#[test]
fn a_node_must_be_ready_uncordoned_selected_tolerated_and_of_the_right_kind() {
    let zone = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let taint = Taint {
        key: "team".to_owned(),
        value: "vision".to_owned(),
        effect: Effect::NoSchedule,
    };
    let plain = || node("a", 0);
    let zoned = Node {
        labels: zone.clone(),
        ..plain()
    };
    let selecting = Gang {
        selector: zone,
        ..gang(1, 0)
    };
    let term = |operator| Gang {
        terms: vec![Term(vec![Requirement {
            subject: Subject::Label("zone".to_owned()),
            operator,
        }])],
        ..gang(1, 0)
    };
    let named = |name: &str| Gang {
        terms: vec![Term(vec![Requirement {
            subject: Subject::NodeName,
            operator: Operator::In(vec![name.to_owned()]),
        }])],
        ..gang(1, 0)
    };
    let tainted = Node {
        taints: vec![taint],
        ..plain()
    };
    let tolerating = |value: &str| Gang {
        tolerations: vec![Toleration {
            key: Some("team".to_owned()),
            value: Some(value.to_owned()),
            effect: None,
        }],
        ..gang(1, 0)
    };
    let spot = |spot| Gang { spot, ..gang(1, 0) };
    let spot_node = Node {
        spot: true,
        ..plain()
    };
    let cases = [
        (
            Node {
                ready: false,
                ..plain()
            },
            gang(1, 0),
            Some(Obstacle::NotReady),
        ),
        (
            Node {
                schedulable: false,
                ..plain()
            },
            gang(1, 0),
            Some(Obstacle::Cordoned),
        ),
        (plain(), selecting.clone(), Some(Obstacle::NotSelected)),
        (zoned.clone(), selecting, None),
        (
            zoned.clone(),
            term(Operator::In(vec!["a".to_owned()])),
            None,
        ),
        (
            zoned.clone(),
            term(Operator::NotIn(vec!["a".to_owned()])),
            Some(Obstacle::NotSelected),
        ),
        (plain(), term(Operator::DoesNotExist), None),
        (zoned, term(Operator::Gt(3)), Some(Obstacle::NotSelected)),
        (plain(), named("a"), None),
        (plain(), named("b"), Some(Obstacle::NotSelected)),
        (tainted.clone(), gang(1, 0), Some(Obstacle::Tainted)),
        (
            tainted.clone(),
            tolerating("speech"),
            Some(Obstacle::Tainted),
        ),
        (tainted, tolerating("vision"), None),
        (plain(), spot(Spot::Only), Some(Obstacle::WrongSpot)),
        (
            spot_node.clone(),
            spot(Spot::Never),
            Some(Obstacle::WrongSpot),
        ),
        (spot_node, spot(Spot::Allowed), None),
    ];
    for (i, (node, gang, expected)) in cases.into_iter().enumerate() {
        let found = match place(&cluster([node]), &gang) {
            Ok(_) => None,
            Err(Explanation::NoRoom(no_room)) => no_room.obstacles.keys().next().copied(),
            Err(other) => panic!("case {i}: {other}"),
        };
        assert_eq!(found, expected, "case {i}");
    }
}

#[test]
fn candidates_do_not_depend_on_what_runs() {
    let snapshot = cluster([
        busy(node("b", 8), resources(32, 256, 8)),
        node("a", 0),
        node("c", 4),
    ]);
    let names: Vec<&str> = candidates(&snapshot, &gang(1, 2))
        .iter()
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!(names, ["b", "c"]);
}

fn with_others(mut resources: Resources, others: &[(Other, u64)]) -> Resources {
    resources.others.extend(others.iter().cloned());
    resources
}

#[test]
fn devices_huge_pages_disk_and_ports_are_counted() {
    let hca = || Other::Named("rdma/hca".into());
    let port = Other::Port {
        protocol: Protocol::Tcp,
        port: 8080,
    };
    let with_hca = |name: &str, count: u64| Node {
        allocatable: with_others(resources(32, 256, 0), &[(hca(), count)]),
        ..node(name, 0)
    };
    let asking = |workers: u32, others: &[(Other, u64)]| Gang {
        ask: with_others(gang(1, 0).ask, others),
        ..gang(workers, 0)
    };
    let two = cluster([with_hca("a", 2), node("b", 0), with_hca("c", 1)]);
    assert_eq!(says(&two, &asking(3, &[(hca(), 1)])), "a a c");
    assert_eq!(
        says(&two, &asking(2, &[(port.clone(), 1)])),
        "a b",
        "one a node"
    );
    insta::assert_snapshot!(says(&two, &asking(1, &[(hca(), 3)])), @"NoMatchingNodes: no room for a worker with 4 CPUs and 32 GiB of memory; 3 nodes: 3 lack a device or huge pages it asks for; no node has that much rdma/hca: ask for less of it in the template, or add nodes that have it");
    let held = cluster([busy(
        with_hca("a", 2),
        with_others(Resources::default(), &[(hca(), 2), (port, 1)]),
    )]);
    insta::assert_snapshot!(says(&held, &asking(1, &[(hca(), 1)])), @"InsufficientCapacity: no room for a worker with 4 CPUs and 32 GiB of memory; 1 node: 1 lacks a free device, huge page or port it asks for; it starts when enough of the work that runs has ended");
    let thirsty = Gang {
        ask: Resources {
            storage: Bytes::gib(1),
            ..gang(1, 0).ask
        },
        ..gang(1, 0)
    };
    insta::assert_snapshot!(says(&cluster([node("a", 0)]), &thirsty), @"NoMatchingNodes: no room for a worker with 4 CPUs and 32 GiB of memory; 1 node: 1 has too little local disk; ask for less: the largest that matches has 32 CPUs and 256 GiB of memory");
}

#[test]
fn a_node_that_failed_it_is_used_again_only_where_no_other_fits() {
    let snapshot = cluster([node("a", 0), node("b", 0)]);
    let avoiding = |workers, names: &[&str]| Gang {
        avoid: names.iter().map(|name| (*name).to_owned()).collect(),
        ..gang(workers, 0)
    };
    assert_eq!(says(&snapshot, &avoiding(1, &["a"])), "b");
    assert_eq!(says(&snapshot, &avoiding(1, &["a", "b"])), "a");
    let many = says(&snapshot, &avoiding(16, &["a"]));
    assert_eq!(many.matches('a').count(), 8, "it does not fit on b alone");
}

#[test]
fn workers_go_where_their_volumes_are() {
    let zoned = |name: &str, zone: &str| Node {
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]),
        ..node(name, 0)
    };
    let snapshot = cluster([zoned("a", "x"), zoned("b", "y")]);
    let in_zone = |zone: &str| {
        vec![Term(vec![Requirement {
            subject: Subject::Label("zone".to_owned()),
            operator: Operator::In(vec![zone.to_owned()]),
        }])]
    };
    let bound = |volumes| Gang {
        volumes,
        ..gang(1, 0)
    };
    assert_eq!(says(&snapshot, &bound(vec![in_zone("y")])), "b");
    insta::assert_snapshot!(says(&snapshot, &bound(vec![in_zone("x"), in_zone("y")])), @"NoMatchingNodes: no room for a worker with 4 CPUs and 32 GiB of memory; 2 nodes: 2 cannot reach one of its volumes; add a node where its volume is: kubectl get pv tells the zone or node in its node affinity");
}

#[test]
fn parts_of_gpus_are_not_given_out_as_whole_ones() {
    let mut sliced = node("a", 8);
    if let Some(gpu) = &mut sliced.gpu {
        gpu.parted = true;
    }
    insta::assert_snapshot!(says(&cluster([sliced.clone()]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 gives its GPUs out in parts; this version gives out whole GPUs: add nodes without MIG and time-slicing");
    assert_eq!(
        says(&cluster([sliced]), &gang(1, 0)),
        "a",
        "its CPUs are as good as any"
    );
}

fn any_resources(scale: u64) -> impl Strategy<Value = Resources> {
    (
        0..=8 * scale,
        0..=16 * scale,
        0..=2 * scale as u32,
        0..=4 * scale as u32,
    )
        .prop_map(|(cpu, memory, gpus, pods)| Resources {
            cpu: CpuMilli(cpu * 500),
            memory: Bytes::gib(memory),
            gpus,
            pods,
            ..Resources::default()
        })
}

fn any_node(name: usize) -> impl Strategy<Value = Node> {
    let flags = (
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.9),
        prop::bool::weighted(0.2),
        any::<bool>(),
    );
    (any_resources(4), any_resources(3), flags).prop_map(
        move |(allocatable, used, (ready, schedulable, tainted, big))| Node {
            name: format!("n{name}"),
            allocatable: allocatable.clone(),
            used,
            ready,
            schedulable,
            labels: BTreeMap::from([(
                "size".to_owned(),
                if big { "big" } else { "small" }.to_owned(),
            )]),
            taints: tainted
                .then(|| Taint {
                    key: "t".to_owned(),
                    value: String::new(),
                    effect: Effect::NoExecute,
                })
                .into_iter()
                .collect(),
            gpu: (allocatable.gpus > 0).then(|| GpuModel {
                product: if big { "NVIDIA-H100" } else { "Tesla-T4" }.to_owned(),
                ..GpuModel::default()
            }),
            spot: false,
        },
    )
}

fn any_cluster() -> impl Strategy<Value = Snapshot> {
    (0_usize..6)
        .prop_flat_map(|count| (0..count).map(any_node).collect::<Vec<_>>())
        .prop_map(Snapshot::from_iter)
}

fn any_gang() -> impl Strategy<Value = Gang> {
    (1_u32..6, any_resources(1), any::<bool>(), any::<bool>()).prop_map(
        |(workers, ask, typed, selecting)| Gang {
            workers,
            gpus: GpuRequest::Whole(ask.gpus),
            ask: Resources { pods: 1, ..ask },
            gpu_types: if typed {
                vec!["h100".to_owned()]
            } else {
                Vec::new()
            },
            selector: if selecting {
                BTreeMap::from([("size".to_owned(), "big".to_owned())])
            } else {
                BTreeMap::new()
            },
            ..Gang::default()
        },
    )
}

/// Can this node take one more worker? Written again, without the solver's own code.
fn takes(node: &Node, gang: &Gang) -> bool {
    let free = node.free();
    node.ready
        && node.schedulable
        && node.taints.is_empty()
        && gang
            .selector
            .iter()
            .all(|(key, value)| node.labels.get(key) == Some(value))
        && (gang.gpu_types.is_empty()
            || gang.ask.gpus == 0
            || node
                .gpu
                .as_ref()
                .is_some_and(|gpu| gpu.product.contains("H100")))
        && free.cpu >= gang.ask.cpu
        && free.memory >= gang.ask.memory
        && free.gpus >= gang.ask.gpus
        && free.pods >= gang.ask.pods
}

proptest! {
    #[test]
    fn nothing_is_overcommitted_and_no_gang_is_split(snapshot in any_cluster(), gang in any_gang()) {
        let answer = place(&snapshot, &gang);
        prop_assert_eq!(&answer, &place(&snapshot, &gang), "the same question has the same answer");
        let mut nodes: Vec<Node> = snapshot.nodes().cloned().collect();
        nodes.reverse();
        let mut told = Snapshot::default();
        nodes.iter().cloned().for_each(|node| told.put(node));
        prop_assert_eq!(&snapshot, &told, "in whatever order nodes are told");
        let fits = fitting(&snapshot, &gang);
        prop_assert_eq!(answer.is_ok(), fits == gang.workers);
        let mut left = nodes;
        match answer {
            Ok(plan) => {
                prop_assert_eq!(plan.nodes.len() as u32, gang.workers);
                for name in &plan.nodes {
                    let node = left.iter_mut().find(|node| node.name == *name).expect("a node there is");
                    prop_assert!(takes(node, &gang), "{} has no room", name);
                    node.used.add(&gang.ask);
                }
            }
            Err(Explanation::NoRoom(why)) => {
                // Greedy filling by an independent check must fail too: workers are equal, so it is exact.
                let mut placed = 0;
                for node in &mut left {
                    while takes(node, &gang) && placed < gang.workers {
                        node.used.add(&gang.ask);
                        placed += 1;
                    }
                }
                prop_assert!(placed < gang.workers, "there was room");
                prop_assert_eq!(placed, why.fitting);
                prop_assert_eq!(placed, fits);
                prop_assert_eq!(why.nodes as usize, snapshot.len());
                let without = snapshot.nodes().filter(|node| !takes(node, &gang)).count();
                prop_assert_eq!(why.obstacles.values().sum::<u32>() as usize, without, "each node is counted once");
                let idle = place(&snapshot.idle(), &gang);
                match why.help {
                    Help::Wait => prop_assert!(idle.is_ok(), "waiting must help"),
                    Help::FewerWorkers { fitting } => {
                        let fewer = Gang { workers: fitting, ..gang.clone() };
                        prop_assert!(place(&snapshot.idle(), &fewer).is_ok(), "fewer workers must help");
                    }
                    _ => prop_assert!(idle.is_err(), "what would start by itself must not ask for help"),
                }
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
