//! CPU and memory of GPU nodes are kept for their GPUs.

use stoke_sched::Gang;

use crate::fixtures::{busy, cluster, node, resources, says};
use crate::sized;

/// A node has 8 GPUs, 32 CPUs and 256 GiB: a GPU's share is 4 CPUs and 32 GiB.
fn asking(workers: u32, gpus: u32, cpus: u64, gib: u64) -> Gang {
    sized::gang(workers, resources(cpus, gib, gpus))
}

#[test]
fn jobs_without_gpus_keep_off_gpu_nodes_while_they_can() {
    let snapshot = cluster([node("a", 8), node("b", 8), node("c", 0)]);
    assert_eq!(says(&snapshot, &asking(1, 0, 4, 8)), "c");
    assert_eq!(
        says(&snapshot, &asking(8, 0, 4, 32)),
        "c c c c c c c c",
        "all of it, before a GPU node is touched"
    );
    // Nowhere else: but not a GPU more than need be.
    let full = cluster([
        node("a", 8),
        busy(node("b", 8), resources(16, 128, 8)),
        busy(node("c", 0), resources(32, 32, 0)),
    ]);
    assert_eq!(
        says(&full, &asking(2, 0, 4, 8)),
        "b b",
        "its GPUs are in use, so nobody misses its CPUs"
    );
    assert_eq!(
        says(&full, &asking(5, 0, 4, 8)),
        "a b b b b",
        "the fifth has no room there"
    );
}

#[test]
fn memory_for_many_gpus_is_not_given_to_one() {
    // Half of the memory for one GPU. On an empty node three GPUs would have none.
    let hungry = asking(1, 1, 4, 128);
    let snapshot = cluster([
        node("a", 8),
        busy(node("b", 8), resources(28, 64, 7)),
        busy(node("c", 8), resources(8, 64, 2)),
    ]);
    assert_eq!(
        says(&snapshot, &hungry),
        "b",
        "one GPU is left, and more memory than it needs"
    );
    // Where a choice is left, the one that strands fewest: c has six GPUs for 192 GiB.
    let snapshot = cluster([node("a", 8), busy(node("c", 8), resources(16, 16, 4))]);
    assert_eq!(says(&snapshot, &hungry), "c");
}

#[test]
fn a_gang_spreads_rather_than_strand_gpus() {
    // Two of them on one of these, and its third GPU has no memory.
    let hungry = asking(2, 1, 4, 120);
    let snapshot = cluster([
        busy(node("a", 8), resources(12, 16, 5)),
        busy(node("b", 8), resources(12, 16, 5)),
        node("c", 8),
    ]);
    assert_eq!(says(&snapshot, &hungry), "a b");
    let alone = cluster([node("c", 8)]);
    assert_eq!(
        says(&alone, &hungry),
        "c c",
        "no room is refused to a job for the sake of jobs that may never come"
    );
}

#[test]
fn who_asks_for_its_share_fills_the_gap_that_fits() {
    let snapshot = cluster([
        node("a", 8),
        busy(node("b", 8), resources(20, 160, 5)),
        busy(node("c", 8), resources(24, 192, 6)),
    ]);
    assert_eq!(says(&snapshot, &asking(1, 2, 8, 64)), "c");
    assert_eq!(says(&snapshot, &asking(1, 3, 12, 96)), "b");
    assert_eq!(says(&snapshot, &asking(1, 4, 16, 128)), "a");
}
