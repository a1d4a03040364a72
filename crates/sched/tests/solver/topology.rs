//! Near to each other: fewest domains, tightest domains, ranks in their order.

use stoke_sched::{Explanation, Gang, HOSTNAME, Node, Snapshot, Topology, fitting, place};

use crate::fixtures::{busy, gang, labels, node, racked, resources, says};

fn at(name: &str, block: &str, rack: &str) -> Node {
    Node {
        labels: labels(&[("block", block), ("rack", rack)]),
        ..node(name, 8)
    }
}

fn near(workers: u32, gpus: u32) -> Gang {
    Gang {
        topology: Some(Topology::Preferred),
        ..gang(workers, gpus)
    }
}

fn within(level: &str, workers: u32, gpus: u32) -> Gang {
    Gang {
        topology: Some(Topology::Required {
            level: level.to_owned(),
        }),
        ..gang(workers, gpus)
    }
}

/// Two blocks; `x` has racks of 2, 2 and 4 nodes, `y` one of 3. Names are no help.
fn blocks() -> Snapshot {
    racked([
        at("n1", "x", "r1"),
        at("n7", "x", "r1"),
        at("n2", "x", "r2"),
        at("n8", "x", "r2"),
        at("n3", "x", "r3"),
        at("n5", "x", "r3"),
        at("n6", "x", "r3"),
        at("n9", "x", "r3"),
        at("n0", "y", "r1"),
        at("n4", "y", "r1"),
        at("na", "y", "r1"),
    ])
}

#[test]
fn the_innermost_domain_that_holds_all_is_taken_and_the_tightest_of_those() {
    let cases = [
        (near(1, 8), "n1"),
        (near(8, 1), "n1 n1 n1 n1 n1 n1 n1 n1"),
        // A rack of two, not two of a larger one.
        (near(2, 8), "n1 n7"),
        (near(3, 8), "n0 n4 na"),
        (near(4, 8), "n3 n5 n6 n9"),
        // No rack holds five; block x does: its largest rack, and the first of the others.
        (near(5, 8), "n1 n3 n5 n6 n9"),
        (near(6, 8), "n1 n7 n3 n5 n6 n9"),
        // No block holds nine.
        (near(9, 8), "n1 n7 n2 n8 n3 n5 n6 n9 n0"),
    ];
    for (gang, expected) in cases {
        assert_eq!(says(&blocks(), &gang), expected, "{} workers", gang.workers);
    }
}

#[test]
fn who_does_not_ask_for_nearness_gets_few_nodes_in_the_order_of_the_network() {
    assert_eq!(
        says(&blocks(), &gang(3, 8)),
        "n1 n7 n2",
        "equal nodes are taken, and ranked, along the network"
    );
    let crumbs = racked([
        busy(at("a", "x", "r1"), resources(4, 4, 6)),
        busy(at("b", "x", "r2"), resources(4, 4, 4)),
        at("c", "x", "r3"),
    ]);
    assert_eq!(says(&crumbs, &gang(2, 1)), "a a", "the gap that fits");
    assert_eq!(says(&crumbs, &gang(4, 1)), "b b b b");
    assert_eq!(says(&crumbs, &gang(10, 1)), "a a c c c c c c c c");
}

#[test]
fn required_means_one_domain_or_none() {
    let blocks = blocks();
    assert_eq!(says(&blocks, &within("rack", 4, 8)), "n3 n5 n6 n9");
    assert_eq!(says(&blocks, &within("block", 5, 8)), "n1 n3 n5 n6 n9");
    assert_eq!(says(&blocks, &within("block", 2, 8)), "n1 n7");
    assert_eq!(
        says(&blocks, &within(HOSTNAME, 2, 4)),
        "n1 n1",
        "all on one node"
    );
    assert_eq!(fitting(&blocks, &within("rack", 7, 8)), 4);
    assert_eq!(fitting(&blocks, &within(HOSTNAME, 7, 3)), 2);
    insta::assert_snapshot!(says(&blocks, &within("rack", 5, 8)), @"InsufficientCapacity: room for 4 of 5 workers with 8 GPUs, 4 CPUs and 32 GiB of memory each, all in one rack; 11 nodes; even idle there is room for only 4: ask for fewer or smaller workers, or require one block only, or add a node like n3");
    insta::assert_snapshot!(says(&blocks, &within(HOSTNAME, 3, 4)), @"InsufficientCapacity: room for 2 of 3 workers with 4 GPUs, 4 CPUs and 32 GiB of memory each, all on one node; 11 nodes; even idle there is room for only 2: ask for fewer or smaller workers, or require one rack only");
    insta::assert_snapshot!(says(&blocks, &within("row", 1, 8)), @"Misconfigured: its topology requires one domain of row, which is no level of this cluster; there is block, rack");
    insta::assert_snapshot!(says(&racked([]), &within("rack", 1, 8)), @"NoMatchingNodes: no room for a worker with 8 GPUs, 4 CPUs and 32 GiB of memory, all in one rack; 0 nodes; it starts when a node has joined");
}

#[test]
fn racks_of_one_name_in_two_blocks_are_two_racks() {
    let snapshot = racked([at("a", "x", "r1"), at("b", "y", "r1")]);
    assert!(place(&snapshot, &within("rack", 2, 8)).is_err());
    assert_eq!(says(&snapshot, &near(2, 8)), "a b");
}

#[test]
fn nodes_without_a_label_are_alone_and_are_counted() {
    let unlabelled = |name: &str| node(name, 8);
    let half = racked([
        at("a", "x", "r1"),
        at("b", "x", "r1"),
        unlabelled("c"),
        unlabelled("d"),
        unlabelled("e"),
    ]);
    assert_eq!(says(&half, &within("rack", 2, 8)), "a b");
    assert_eq!(says(&half, &near(2, 8)), "a b");
    assert_eq!(
        says(&half, &near(5, 8)),
        "a b c d e",
        "they are as good as any where nearness is only preferred"
    );
    let Err(Explanation::NoRoom(why)) = place(&half, &within("rack", 3, 8)) else {
        panic!("no rack has three");
    };
    insta::assert_snapshot!(why, @"room for 2 of 3 workers with 8 GPUs, 4 CPUs and 32 GiB of memory each, all in one rack; 5 nodes: 3 lack the label of the required topology level; even idle there is room for only 2: ask for fewer or smaller workers, or set topology to preferred, or add a node like a");
    assert_eq!(
        says(&half, &within(HOSTNAME, 2, 4)),
        "a a",
        "every node is a node, labelled or not"
    );
}

#[test]
fn an_elastic_gang_starts_with_as_many_as_there_is_room_for() {
    let elastic = |workers, least, topology: Option<&str>| Gang {
        min_workers: Some(least),
        ..match topology {
            Some(level) => within(level, workers, 8),
            None => near(workers, 8),
        }
    };
    let blocks = blocks();
    assert_eq!(says(&blocks, &elastic(2, 1, None)), "n1 n7");
    assert_eq!(
        says(&blocks, &elastic(20, 3, None)),
        "n1 n7 n2 n8 n3 n5 n6 n9 n0 n4 na",
        "all there is"
    );
    assert_eq!(
        says(&blocks, &elastic(20, 3, Some("rack"))),
        "n3 n5 n6 n9",
        "the largest rack"
    );
    insta::assert_snapshot!(says(&blocks, &elastic(20, 5, Some("rack"))), @"InsufficientCapacity: room for 4 of 20 workers with 8 GPUs, 4 CPUs and 32 GiB of memory each, at least 5, all in one rack; 11 nodes; even idle there is room for only 4: ask for fewer or smaller workers, or require one block only, or add a node like n3");
}

#[test]
fn levels_may_change_and_nodes_may_move() {
    let mut snapshot = blocks();
    snapshot.put(at("n0", "x", "r1"));
    assert_eq!(says(&snapshot, &within("rack", 3, 8)), "n0 n1 n7");
    snapshot.set_levels(["block".to_owned(), HOSTNAME.to_owned()]);
    assert_eq!(snapshot.levels(), ["block"], "the host is always a level");
    assert_eq!(
        says(&snapshot, &within("block", 9, 8)).split(' ').count(),
        9
    );
    let mut named = blocks();
    named.set_levels([]);
    assert_eq!(named, blocks().nodes().cloned().collect());
}
