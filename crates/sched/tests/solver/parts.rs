//! Parts of a GPU: chosen by us, or given out by the device plugin of a cluster.

use stoke_api::{Bytes, GpuMilli, GpuRequest};
use stoke_sched::{Gang, GpuModel, Node, Other, Parts, Snapshot, place};

use crate::fixtures::{cluster, gang, node, says};

fn machine(name: &str, in_use: &[u16]) -> Node {
    let mut machine = node(name, in_use.len() as u32);
    machine.used.gpus = in_use.iter().filter(|used| **used == 1000).count() as u32;
    machine.devices = Some(in_use.to_vec());
    machine
}

fn fraction(workers: u32, milli: u32) -> Gang {
    gang(workers, 0).with_gpus(GpuRequest::Fraction(GpuMilli(milli)))
}

fn slice(workers: u32, profile: &str) -> Gang {
    gang(workers, 0).with_gpus(GpuRequest::Mig(profile.to_owned()))
}

fn model(product: &str, parts: Parts) -> GpuModel {
    GpuModel {
        product: product.to_owned(),
        memory: Some(Bytes::gib(80)),
        parts,
        ..GpuModel::default()
    }
}

/// Some whole GPUs, and these slices beside them.
fn mixed(name: &str, whole: u32, slices: &[(&str, u64)]) -> Node {
    let mut node = node(name, whole);
    node.gpu = Some(model("NVIDIA-A100-SXM4-80GB", Parts::Whole));
    for (profile, count) in slices {
        let resource = format!("nvidia.com/mig-{profile}");
        let other = Other::Named(resource.into());
        node.allocatable.others.insert(other, *count);
    }
    node
}

fn sliced(name: &str, profile: &str, count: u32) -> Node {
    let parts = Parts::Mig {
        profile: profile.to_owned(),
    };
    Node {
        gpu: Some(model("NVIDIA-A100-SXM4-80GB", parts)),
        ..node(name, count)
    }
}

fn turns(name: &str, gpus: u32, replicas: u32) -> Node {
    Node {
        gpu: Some(model("Tesla-T4-SHARED", Parts::Turns { replicas })),
        ..node(name, gpus * replicas)
    }
}

/// The nodes of a plan with what each worker has there.
fn given(snapshot: &Snapshot, gang: &Gang) -> String {
    match place(snapshot, gang) {
        Err(explanation) => explanation.to_string(),
        Ok(plan) => {
            let ranks = plan.nodes.iter().zip(&plan.devices);
            let ranks: Vec<String> = ranks
                .map(|(node, devices)| format!("{node}{devices:?}"))
                .collect();
            let resource = plan
                .resource
                .map(|(name, count)| format!(" {count} {name}"));
            ranks.join(" ") + &resource.unwrap_or_default()
        }
    }
}

#[test]
fn a_fraction_shares_a_gpu_with_fractions_only() {
    let snapshot = cluster([machine("a", &[1000, 300, 0, 0])]);
    assert_eq!(given(&snapshot, &fraction(1, 500)), "a[1]");
    assert_eq!(given(&snapshot, &fraction(1, 800)), "a[2]");
    assert_eq!(
        given(&snapshot, &fraction(4, 350)),
        "a[1] a[1] a[2] a[2]",
        "one that is shared already before a fresh one"
    );
    assert_eq!(given(&snapshot, &gang(1, 2)), "a[2, 3]");
    assert!(place(&snapshot, &gang(1, 3)).is_err(), "one is shared");
    assert_eq!(
        given(&cluster([machine("a", &[700, 500])]), &fraction(1, 250)),
        "a[0]",
        "the fullest that has room"
    );
    assert_eq!(
        given(
            &cluster([machine("a", &[0]), machine("b", &[0, 400])]),
            &fraction(1, 600)
        ),
        "b[1]",
        "no GPU is opened while another will do"
    );
    assert_eq!(given(&snapshot, &gang(1, 0)), "a[]");
    insta::assert_snapshot!(given(&cluster([machine("a", &[600, 1000])]), &fraction(1, 500)), @"no room for a worker with 0.5 of a GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 lacks free GPUs; it starts when enough of the work that runs has ended");
}

#[test]
fn what_is_taken_is_given_back() {
    let before = cluster([
        machine("a", &[1000, 300, 0, 0]),
        mixed("b", 1, &[("1g.10gb", 7)]),
    ]);
    for gang in [
        fraction(3, 350),
        gang(2, 1),
        slice(3, "1g.10gb"),
        gang(3, 0),
    ] {
        let mut snapshot = before.clone();
        let plan = place(&snapshot, &gang).expect("room");
        snapshot.take(&plan, &gang);
        assert_ne!(snapshot, before);
        snapshot.give_back(&plan, &gang);
        assert_eq!(snapshot, before);
    }
}

#[test]
fn on_a_cluster_a_fraction_is_the_smallest_slice_that_is_enough() {
    let slices = mixed("a", 4, &[("1g.10gb", 2), ("2g.20gb", 2), ("3g.40gb", 1)]);
    let cases = [
        (100, "a[] 1 nvidia.com/mig-1g.10gb"),
        (125, "a[] 1 nvidia.com/mig-1g.10gb"),
        (200, "a[] 1 nvidia.com/mig-2g.20gb"),
        (500, "a[] 1 nvidia.com/mig-3g.40gb"),
    ];
    for (milli, expected) in cases {
        let snapshot = cluster([slices.clone()]);
        assert_eq!(given(&snapshot, &fraction(1, milli)), expected, "{milli}");
    }
    assert_eq!(
        given(&cluster([slices.clone()]), &slice(2, "2g.20gb")),
        "a[] a[] 1 nvidia.com/mig-2g.20gb"
    );
    assert_eq!(
        given(&cluster([slices.clone()]), &gang(1, 4)),
        "a[]",
        "whole ones beside"
    );
    assert_eq!(
        given(&cluster([sliced("a", "1g.10gb", 7)]), &fraction(1, 120)),
        "a[] 1 nvidia.com/gpu",
        "where slices are counted as GPUs"
    );
    assert_eq!(
        given(&cluster([sliced("a", "1g.10gb", 7)]), &slice(1, "1g.10gb")),
        "a[] 1 nvidia.com/gpu"
    );
    insta::assert_snapshot!(given(&cluster([slices.clone()]), &fraction(1, 600)), @"no room for a worker with 0.6 of a GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 gives its GPUs out in smaller parts; set gpus to what there is: 1g.10gb, 2g.20gb, 3g.40gb, 1");
    insta::assert_snapshot!(given(&cluster([slices.clone()]), &fraction(3, 100)), @"room for 2 of 3 workers with 0.1 of a GPU, 4 CPUs and 32 GiB of memory each; 1 node; even idle there is room for only 2: ask for fewer or smaller workers, or add a node like a");
    insta::assert_snapshot!(given(&cluster([slices]), &slice(1, "7g.80gb")), @"no room for a worker with a 7g.80gb slice, 4 CPUs and 32 GiB of memory; 1 node: 1 has no such MIG slice; set gpus to what there is: 1g.10gb, 2g.20gb, 3g.40gb, 1");
}

#[test]
fn on_a_cluster_a_fraction_is_one_turn_where_that_is_enough() {
    let snapshot = cluster([turns("a", 2, 4)]);
    assert_eq!(given(&snapshot, &fraction(1, 250)), "a[] 1 nvidia.com/gpu");
    assert_eq!(fraction_room(&snapshot), 8);
    insta::assert_snapshot!(given(&snapshot, &fraction(1, 300)), @"no room for a worker with 0.3 of a GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 gives its GPUs out in smaller parts; set gpus to what there is: 0.25");
    insta::assert_snapshot!(given(&snapshot, &gang(1, 1)), @"no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 gives its GPUs out in parts; set gpus to what there is: 0.25");
    assert_eq!(
        says(&snapshot, &gang(1, 0)),
        "a",
        "its CPUs are as good as any"
    );
    let mut renamed = turns("a", 0, 4);
    let shared = Other::Named("nvidia.com/gpu.shared".into());
    renamed.allocatable.others.insert(shared, 8);
    assert_eq!(
        given(&cluster([renamed]), &fraction(1, 250)),
        "a[] 1 nvidia.com/gpu.shared"
    );
    assert!(
        place(&cluster([turns("a", 2, 0)]), &fraction(1, 100)).is_err(),
        "it is not said how many share one"
    );
}

fn fraction_room(snapshot: &Snapshot) -> u32 {
    stoke_sched::fitting(snapshot, &fraction(100, 250))
}

#[test]
fn all_workers_have_their_part_in_one_way() {
    let snapshot = cluster([mixed("a", 0, &[("1g.10gb", 2)]), turns("b", 1, 8)]);
    assert_eq!(
        given(&snapshot, &fraction(2, 100)),
        "a[] a[] 1 nvidia.com/mig-1g.10gb"
    );
    assert_eq!(
        given(&snapshot, &fraction(4, 100)),
        "b[] b[] b[] b[] 1 nvidia.com/gpu",
        "a pod asks for one resource by name"
    );
    assert!(place(&snapshot, &fraction(9, 100)).is_err());
}

#[test]
fn where_gpus_are_whole_a_part_is_refused_and_not_rounded() {
    insta::assert_snapshot!(given(&cluster([node("a", 8)]), &fraction(1, 500)), @"no room for a worker with 0.5 of a GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 gives out whole GPUs only; set gpus to what there is: 1");
    insta::assert_snapshot!(given(&cluster([node("a", 0)]), &fraction(1, 500)), @"no room for a worker with 0.5 of a GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 has too few GPUs; ask for less: the largest that matches has 32 CPUs and 256 GiB of memory");
    insta::assert_snapshot!(given(&cluster([sliced("a", "1g.10gb", 7)]), &gang(1, 1)), @"no room for a worker with 1 GPU, 4 CPUs and 32 GiB of memory; 1 node: 1 gives its GPUs out in parts; set gpus to what there is: 1g.10gb");
}
