//! Data is a reason to choose one place that fits before another, and never a reason to wait.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stoke_api::Bytes;
use stoke_sched::{
    Appraiser, Data, Dataset, Gang, Node, Plan, Snapshot, Topology, find, find_near,
};

use crate::any::{any_cluster, any_gang};
use crate::fixtures::{LEVELS, busy, cluster, gang, labels, node, racked, resources};
use crate::reference;

const TIB: u64 = 1 << 10;

fn dataset(gib: u64, warm: &[&str]) -> Dataset {
    Dataset {
        size: Some(Bytes(gib << 30)),
        warm: warm.iter().map(ToString::to_string).collect(),
    }
}

fn goes(snapshot: &Snapshot, gang: &Gang, datasets: &[Dataset]) -> String {
    let data: Data<'_> = datasets.iter().collect();
    match find_near(snapshot, gang, &data) {
        Some(plan) => plan.nodes.join(" "),
        None => "nowhere".to_owned(),
    }
}

fn idle() -> Snapshot {
    cluster([node("a", 8), node("b", 8), node("c", 8)])
}

#[test]
fn of_equal_nodes_the_warmest_is_taken() {
    let cases: [(&[Dataset], &str); 6] = [
        (&[], "a"),
        (&[dataset(1, &[])], "a"),
        (&[dataset(1, &["b"])], "b"),
        (&[dataset(1, &["b"]), dataset(100, &["c"])], "c"),
        (&[dataset(1, &["b", "c"]), dataset(100, &["c", "a"])], "c"),
        (&[dataset(1, &["gone"])], "a"),
    ];
    for (datasets, expected) in cases {
        assert_eq!(
            goes(&idle(), &gang(1, 1), datasets),
            expected,
            "{datasets:?}"
        );
    }
    let unknown = Dataset {
        size: None,
        ..dataset(0, &["b"])
    };
    assert_eq!(goes(&idle(), &gang(1, 8), &[unknown]), "b");
}

#[test]
fn warm_nodes_without_room_keep_nobody_waiting() {
    let mut full = idle();
    full.put(busy(node("b", 8), resources(4, 4, 8)));
    assert_eq!(goes(&full, &gang(1, 1), &[dataset(TIB, &["b"])]), "a");
    assert_eq!(goes(&full, &gang(2, 8), &[dataset(TIB, &["b"])]), "a c");
    assert_eq!(goes(&full, &gang(3, 8), &[dataset(TIB, &["b"])]), "nowhere");
}

#[test]
fn fewer_nodes_go_before_warm_ones_and_warm_ones_before_others() {
    let halves = cluster([
        node("a", 8),
        busy(node("b", 8), resources(4, 4, 4)),
        busy(node("c", 8), resources(4, 4, 4)),
        busy(node("d", 8), resources(4, 4, 4)),
    ]);
    let warm = [dataset(TIB, &["c", "d"])];
    assert_eq!(goes(&halves, &gang(2, 4), &warm), "a a");
    assert_eq!(goes(&halves, &gang(1, 4), &warm), "c");
    assert_eq!(goes(&halves, &gang(3, 4), &warm), "a a c");
}

#[test]
fn what_is_copied_in_a_moment_is_no_reason_to_break_an_idle_node_open() {
    let mut nodes = cluster([busy(node("gap", 8), resources(28, 28, 7)), node("idle", 8)]);
    let mut appraiser = Appraiser::default();
    for _ in 0..64 {
        appraiser.observe(&mut nodes, &gang(1, 8));
        appraiser.observe(&mut nodes, &gang(1, 1));
    }
    for (gib, expected) in [(1, "gap"), (10, "gap"), (20 * TIB, "idle")] {
        let warm = [dataset(gib, &["idle"])];
        assert_eq!(goes(&nodes, &gang(1, 1), &warm), expected, "{gib} GiB");
    }
}

#[test]
fn gpus_are_kept_and_bad_nodes_avoided_whatever_is_warm_there() {
    let mixed = cluster([node("cpu", 0), node("gpu", 8)]);
    assert_eq!(goes(&mixed, &gang(1, 0), &[dataset(TIB, &["gpu"])]), "cpu");
    let avoids = Gang {
        avoid: BTreeSet::from(["b".to_owned()]),
        ..gang(1, 1)
    };
    assert_eq!(goes(&idle(), &avoids, &[dataset(TIB, &["b"])]), "a");
}

fn at(name: &str, block: &str, rack: &str) -> Node {
    Node {
        labels: labels(&[("block", block), ("rack", rack)]),
        ..node(name, 8)
    }
}

#[test]
fn near_to_each_other_goes_before_near_to_the_data() {
    let racks = racked([
        at("n1", "x", "r1"),
        at("n2", "x", "r1"),
        at("n3", "x", "r2"),
        at("n4", "x", "r2"),
        at("n5", "x", "r3"),
        at("n6", "x", "r3"),
        at("n7", "x", "r3"),
    ]);
    let near = |workers| Gang {
        topology: Some(Topology::Preferred),
        ..gang(workers, 8)
    };
    let cases: [(u32, Dataset, &str); 7] = [
        (2, dataset(TIB, &[]), "n1 n2"),
        (2, dataset(TIB, &["n3", "n4"]), "n3 n4"),
        // One warm node in a rack is better than none, and two in two racks are two racks.
        (2, dataset(TIB, &["n3", "n5"]), "n3 n4"),
        (2, dataset(TIB, &["n6", "n7"]), "n6 n7"),
        // Not worth a larger rack, but worth another as large.
        (2, dataset(1, &["n6", "n7"]), "n1 n2"),
        (2, dataset(1, &["n3", "n4"]), "n3 n4"),
        // Only one rack holds three.
        (3, dataset(TIB, &["n1", "n2", "n3"]), "n5 n6 n7"),
    ];
    for (workers, dataset, expected) in cases {
        let said = format!("{workers} workers, {dataset:?}");
        assert_eq!(goes(&racks, &near(workers), &[dataset]), expected, "{said}");
    }
}

fn any_data() -> impl Strategy<Value = Vec<Dataset>> {
    let nodes = prop::collection::btree_set((0_usize..8).prop_map(|n| format!("n{n}")), 0..6);
    let size = prop::sample::select(vec![None, Some(1_u64), Some(10 << 30), Some(1 << 41)]);
    let one = (size, nodes).prop_map(|(size, warm)| Dataset {
        size: size.map(Bytes),
        warm,
    });
    prop::collection::vec(one, 1..4)
}

/// How many blocks and racks the workers are in; a node that lacks a label is in one of its own.
fn spread(snapshot: &Snapshot, plan: &Plan) -> [usize; 2] {
    [1, 2].map(|depth| {
        let nodes = plan.nodes.iter().filter_map(|name| snapshot.node(name));
        let domain = |node: &Node| {
            let steps = LEVELS[..depth].iter();
            let path: Option<Vec<String>> = steps
                .map(|level| node.labels.get(*level).cloned())
                .collect();
            path.ok_or_else(|| node.name.clone())
        };
        nodes.map(domain).collect::<BTreeSet<_>>().len()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_is_placed_without_data_is_placed_with_it(snapshot in any_cluster(), gang in any_gang(), datasets in any_data()) {
        let data: Data<'_> = datasets.iter().collect();
        let without = find(&snapshot, &gang);
        let with = find_near(&snapshot, &gang, &data);
        prop_assert_eq!(&with, &find_near(&snapshot, &gang, &data), "the same question has the same answer");
        let workers = |plan: &Option<Plan>| plan.as_ref().map(|plan| plan.nodes.len());
        prop_assert_eq!(workers(&with), workers(&without));
        let (Some(with), Some(without)) = (with, without) else { return Ok(()) };
        prop_assert_eq!(reference::check(&snapshot, &gang, &with), Ok(()));
        let avoided = |plan: &Plan| plan.nodes.iter().any(|node| gang.avoid.contains(node));
        prop_assert_eq!(avoided(&with), avoided(&without));
        prop_assert_eq!(&with.resource, &without.resource);
        if gang.topology == Some(Topology::Preferred) {
            let together = |plan: &Plan| spread(&snapshot, plan).map(|domains| domains == 1);
            prop_assert_eq!(together(&with), together(&without), "{:?} instead of {:?}", with, without);
        }
    }

    #[test]
    fn data_that_is_nowhere_or_everywhere_changes_nothing(snapshot in any_cluster(), gang in any_gang(), gib in 0_u64..4096) {
        let everywhere: Vec<&str> = snapshot.nodes().map(|node| node.name.as_str()).collect();
        for warm in [&everywhere[..], &[]] {
            let datasets = [dataset(gib, warm)];
            let data: Data<'_> = datasets.iter().collect();
            prop_assert_eq!(find_near(&snapshot, &gang, &data), find(&snapshot, &gang));
        }
    }
}
