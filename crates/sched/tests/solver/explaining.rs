//! What would help, told to a person.

use std::collections::BTreeMap;

use stoke_api::trainjob::Spot;
use stoke_sched::{Effect, Explanation, Gang, GpuModel, Help, Node, Snapshot, Taint, place};

use crate::fixtures::{busy, cluster, gang, node, resources, says};

fn helps(snapshot: &Snapshot, gang: &Gang) -> Vec<Help> {
    match place(snapshot, gang) {
        Err(Explanation::NoRoom(why)) => why.help,
        other => panic!("{other:?}"),
    }
}

fn of_type(product: &str, node: Node) -> Node {
    Node {
        gpu: Some(GpuModel {
            product: product.to_owned(),
            ..GpuModel::default()
        }),
        ..node
    }
}

#[test]
fn a_job_that_waits_is_told_what_would_start_it_at_once() {
    let snapshot = cluster([
        of_type(
            "NVIDIA-H100-80GB-HBM3",
            busy(node("a", 8), resources(16, 128, 6)),
        ),
        of_type("Tesla-T4", node("b", 8)),
        Node {
            spot: true,
            ..of_type("NVIDIA-H100-80GB-HBM3", node("c", 8))
        },
    ]);
    let asks = Gang {
        gpu_types: vec!["h100".to_owned()],
        spot: Spot::Never,
        ..gang(4, 1)
    };
    insta::assert_snapshot!(says(&snapshot, &asks), @"InsufficientCapacity: room for 2 of 4 workers with 1 GPU, 4 CPUs and 32 GiB of memory each; 3 nodes: 1 is of the wrong kind (spot), 1 has other GPUs; it starts when enough of the work that runs has ended, or at once if you ask for 2 workers, or change gpuTypes: there is Tesla-T4");
    insta::assert_debug_snapshot!(helps(&snapshot, &asks), @r#"
    [
        Wait,
        FewerWorkers {
            fitting: 2,
        },
        OtherGpuTypes {
            products: {
                "Tesla-T4",
            },
        },
        OtherSpot,
        MoreNodes {
            count: 1,
            like: "a",
        },
    ]
    "#);
}

fn tainted(name: &str, taints: &[(&str, &str)]) -> Node {
    let taints = taints.iter().map(|(key, value)| Taint {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
        effect: Effect::NoSchedule,
    });
    Node {
        taints: taints.collect(),
        ..node(name, 8)
    }
}

#[test]
fn who_can_never_run_is_told_what_to_change() {
    let tainted = tainted("a", &[("team", "vision")]);
    insta::assert_snapshot!(says(&cluster([tainted.clone()]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is tainted; tolerate team=vision:NoSchedule in template.spec.tolerations");
    let locked = Node {
        schedulable: false,
        ..tainted.clone()
    };
    insta::assert_snapshot!(says(&cluster([locked.clone()]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is cordoned; tolerate team=vision:NoSchedule in template.spec.tolerations, and uncordon a node: kubectl uncordon NODE");
    insta::assert_snapshot!(says(&cluster([locked.clone()]), &gang(9, 1)), @"NoMatchingNodes: no room for 9 workers with 1 GPU, 4 CPUs and 32 GiB of memory each; 1 node: 1 is cordoned; tolerate team=vision:NoSchedule in template.spec.tolerations, and uncordon a node: kubectl uncordon NODE, and even idle there is room for only 8: ask for fewer or smaller workers");
    insta::assert_snapshot!(says(&cluster([locked, node("b", 2)]), &gang(9, 1)), @"InsufficientCapacity: room for 2 of 9 workers with 1 GPU, 4 CPUs and 32 GiB of memory each; 2 nodes: 1 is cordoned; even idle there is room for only 2: ask for fewer or smaller workers, or add 4 nodes like b");
    let selecting = Gang {
        selector: BTreeMap::from([("pool".to_owned(), "big".to_owned())]),
        ..gang(1, 16)
    };
    insta::assert_snapshot!(says(&cluster([node("b", 2)]), &selecting), @"NoMatchingNodes: no room for a worker with 16 GPUs, 4 CPUs and 32 GiB of memory; 1 node: 1 is not selected; ask for less: the largest that matches has 2 GPUs, 32 CPUs and 256 GiB of memory, and label a node as template.spec.nodeSelector and affinity ask, or change them");
}

#[test]
fn taints_in_the_way_are_named() {
    // No place for a worker with GPUs: what it is tainted with is of no interest.
    let control_plane = Node {
        allocatable: resources(8, 32, 0),
        gpu: None,
        ..tainted("c", &[("node-role.kubernetes.io/control-plane", "")])
    };
    let two = [
        tainted("a", &[("team", "vision"), ("owner", "me")]),
        tainted("b", &[("team", "vision")]),
        control_plane,
    ];
    insta::assert_snapshot!(says(&cluster(two), &gang(2, 8)), @"NoMatchingNodes: no room for 2 workers with 8 GPUs, 4 CPUs and 32 GiB of memory each; 3 nodes: 3 are tainted; tolerate owner=me:NoSchedule, team=vision:NoSchedule in template.spec.tolerations");
    let many = ["a", "b", "c", "d", "e"].map(|name| tainted(name, &[("team", name)]));
    insta::assert_snapshot!(says(&cluster(many), &gang(5, 8)), @"NoMatchingNodes: no room for 5 workers with 8 GPUs, 4 CPUs and 32 GiB of memory each; 5 nodes: 5 are tainted; tolerate team=a:NoSchedule, team=b:NoSchedule, team=c:NoSchedule and 2 more in template.spec.tolerations");
}

#[test]
fn a_node_in_trouble_is_to_be_mended() {
    let own = |name: &str, taint: &str| {
        let key = format!("node.kubernetes.io/{taint}");
        tainted(name, &[(&key, "")])
    };
    let pressed = || own("a", "disk-pressure");
    insta::assert_snapshot!(says(&cluster([pressed()]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is in trouble; mend a node: free its disk (node.kubernetes.io/disk-pressure)");
    let full = busy(node("b", 8), resources(32, 256, 8));
    insta::assert_snapshot!(says(&cluster([pressed(), full]), &gang(1, 1)), @"InsufficientCapacity: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 2 nodes: 1 is in trouble, 1 lacks free GPUs; it starts when enough of the work that runs has ended, or at once if you mend a node: free its disk (node.kubernetes.io/disk-pressure)");
    let ailing = ["memory-pressure", "pid-pressure", "network-unavailable"];
    let ailing = ailing.map(|taint| own(taint, taint));
    insta::assert_snapshot!(says(&cluster(ailing), &gang(3, 8)), @"NoMatchingNodes: no room for 3 workers with 8 GPUs, 4 CPUs and 32 GiB of memory each; 3 nodes: 3 are in trouble; mend a node: free its memory (node.kubernetes.io/memory-pressure), end some of its processes (node.kubernetes.io/pid-pressure), set up its network (node.kubernetes.io/network-unavailable)");
    let both = Node {
        taints: [pressed().taints, tainted("a", &[("team", "vision")]).taints].concat(),
        ..pressed()
    };
    insta::assert_snapshot!(says(&cluster([both]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is in trouble; tolerate team=vision:NoSchedule in template.spec.tolerations, and mend a node: free its disk (node.kubernetes.io/disk-pressure)");
    // What says that a node is cordoned or not ready goes with that.
    let cordoned = Node {
        schedulable: false,
        ..own("a", "unschedulable")
    };
    insta::assert_snapshot!(says(&cluster([cordoned]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is cordoned; uncordon a node: kubectl uncordon NODE");
    let lost = own("a", "unreachable");
    insta::assert_snapshot!(says(&cluster([lost]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is not ready; it starts when a node is ready");
}

#[test]
fn a_larger_pool_is_counted_in_nodes() {
    let snapshot = cluster([busy(node("a", 8), resources(4, 4, 2)), node("b", 4)]);
    let larger = helps(&snapshot, &gang(9, 4));
    assert_eq!(
        larger,
        [
            Help::FewerWorkers { fitting: 3 },
            Help::MoreNodes {
                count: 3,
                like: "a".to_owned()
            }
        ]
    );
}
