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

#[test]
fn who_can_never_run_is_told_what_to_change() {
    let taint = || Taint {
        key: "team".to_owned(),
        value: "vision".to_owned(),
        effect: Effect::NoSchedule,
    };
    let tainted = Node {
        taints: vec![taint()],
        ..node("a", 8)
    };
    insta::assert_snapshot!(says(&cluster([tainted.clone()]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is tainted; add to template.spec.tolerations what the nodes are tainted with");
    let locked = Node {
        schedulable: false,
        ..tainted.clone()
    };
    insta::assert_snapshot!(says(&cluster([locked.clone()]), &gang(1, 1)), @"NoMatchingNodes: no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 is cordoned; add to template.spec.tolerations what the nodes are tainted with, and uncordon a node: kubectl uncordon NODE");
    insta::assert_snapshot!(says(&cluster([locked.clone()]), &gang(9, 1)), @"NoMatchingNodes: no room for 9 workers with 1 GPU, 4 CPUs and 32 GiB of memory each; 1 node: 1 is cordoned; add to template.spec.tolerations what the nodes are tainted with, and uncordon a node: kubectl uncordon NODE, and even idle there is room for only 8: ask for fewer or smaller workers");
    insta::assert_snapshot!(says(&cluster([locked, node("b", 2)]), &gang(9, 1)), @"InsufficientCapacity: room for 2 of 9 workers with 1 GPU, 4 CPUs and 32 GiB of memory each; 2 nodes: 1 is cordoned; even idle there is room for only 2: ask for fewer or smaller workers, or add 4 nodes like b");
    let selecting = Gang {
        selector: BTreeMap::from([("pool".to_owned(), "big".to_owned())]),
        ..gang(1, 16)
    };
    insta::assert_snapshot!(says(&cluster([node("b", 2)]), &selecting), @"NoMatchingNodes: no room for a worker with 16 GPUs, 4 CPUs and 32 GiB of memory; 1 node: 1 is not selected; ask for less: the largest that matches has 2 GPUs, 32 CPUs and 256 GiB of memory, and label a node as template.spec.nodeSelector and affinity ask, or change them");
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
