//! Which nodes will do, and what is said where none does.

use std::collections::BTreeMap;

use stoke_api::Bytes;
use stoke_api::trainjob::Spot;
use stoke_sched::{
    Appraiser, Effect, Explanation, Gang, GpuModel, Node, Obstacle, Operator, Other, Protocol,
    Requirement, Resources, Subject, Taint, Term, Toleration, candidates, place,
};

use crate::fixtures::{busy, cluster, gang, node, resources, says};

#[test]
fn a_gang_is_placed_whole_and_equals_are_taken_by_name() {
    let snapshot = cluster([node("b", 8), node("a", 8), node("c", 0)]);
    assert_eq!(says(&snapshot, &gang(3, 4)), "a a b");
    assert_eq!(
        says(&snapshot, &gang(1, 0)),
        "c",
        "GPU nodes are kept for who needs them"
    );
}

/// The largest node is taken, and what is missing is as much as it held: no other node holds that by itself.
#[test]
fn a_gang_is_whole_where_what_is_left_fits_no_node_that_is_left() {
    let snapshot = cluster([node("a", 2), node("b", 1), node("c", 1)]);
    assert_eq!(says(&snapshot, &gang(4, 1)), "a a b c");
    let snapshot = cluster([node("a", 1), node("b", 2), node("c", 3), node("d", 1)]);
    assert_eq!(says(&snapshot, &gang(6, 1)), "a b b c c c");
}

#[test]
fn why_not_is_one_sentence_with_numbers_and_help() {
    let full = || busy(node("a", 8), resources(30, 30, 8));
    let two = cluster([full(), node("b", 0)]);
    insta::assert_snapshot!(says(&two, &gang(2, 1)), @"InsufficientCapacity: no room for 2 workers with 1 GPU, 4 CPUs and 32 GiB of memory each; 2 nodes: 1 has too few GPUs, 1 lacks free GPUs; it starts when enough of the work that runs has ended");
    insta::assert_snapshot!(says(&cluster([]), &gang(1, 0)), @"NoMatchingNodes: no room for a worker with 4 CPUs and 32 GiB of memory; 0 nodes; it starts when a node has joined");
    insta::assert_snapshot!(says(&cluster([node("a", 8)]), &gang(3, 4)), @"InsufficientCapacity: room for 2 of 3 workers with 4 GPUs, 4 CPUs and 32 GiB of memory each; 1 node; even idle there is room for only 2: ask for fewer or smaller workers, or add a node like a");
    insta::assert_snapshot!(says(&cluster([node("a", 8)]), &gang(1, 16)), @"NoMatchingNodes: no room for a worker with 16 GPUs, 4 CPUs and 32 GiB of memory; 1 node: 1 has too few GPUs; ask for less: the largest that matches has 8 GPUs, 32 CPUs and 256 GiB of memory");
    let h100 = Gang {
        gpu_types: vec!["h100".to_owned()],
        ..gang(1, 1)
    };
    insta::assert_snapshot!(says(&cluster([node("a", 8)]), &h100), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 has other GPUs; change gpuTypes: there is NVIDIA-A100-SXM4-80GB");
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
        labels: zone.clone().into(),
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
        labels: BTreeMap::from([("zone".to_owned(), zone.to_owned())]).into(),
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
fn who_will_take_any_gpu_leaves_the_scarce_ones_to_others() {
    let of = |product: &str, name: &str| Node {
        gpu: Some(GpuModel {
            product: product.to_owned(),
            ..GpuModel::default()
        }),
        ..node(name, 8)
    };
    let mut snapshot = cluster([of("NVIDIA-H100-80GB-HBM3", "a"), of("Tesla-T4", "b")]);
    assert_eq!(says(&snapshot, &gang(1, 1)), "a", "nobody knows better");
    let choosy = Gang {
        gpu_types: vec!["h100".to_owned()],
        ..gang(1, 1)
    };
    let mut appraiser = Appraiser::default();
    for _ in 0..40 {
        appraiser.observe(&mut snapshot, &choosy);
        appraiser.observe(&mut snapshot, &gang(1, 1));
    }
    assert_eq!(says(&snapshot, &gang(1, 1)), "b");
    assert_eq!(says(&snapshot, &choosy), "a");
    assert_eq!(says(&snapshot, &gang(16, 1)).split(' ').count(), 16);
}
