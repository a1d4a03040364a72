//! What holds for every cluster and every gang.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stoke_sched::{
    Appraiser, Explanation, Gang, Help, NoRoom, Node, Obstacle, Plan, Snapshot, fitting, place,
};

use crate::any::{any_cluster, any_gang};
use crate::fixtures::LEVELS;
use crate::grant::grant;
use crate::reference;

fn told_backwards(snapshot: &Snapshot) -> Snapshot {
    let mut nodes: Vec<Node> = snapshot.nodes().cloned().collect();
    nodes.reverse();
    let mut told = Snapshot::default();
    told.set_levels(LEVELS.map(str::to_owned));
    for node in nodes {
        told.put(node);
    }
    told
}

/// What is said is what is so.
fn truthful(snapshot: &Snapshot, gang: &Gang, why: &NoRoom) -> Result<(), TestCaseError> {
    prop_assert!(why.fitting < gang.least());
    prop_assert_eq!(why.nodes as usize, snapshot.len());
    let one = Gang {
        workers: 1,
        min_workers: None,
        ..gang.clone()
    };
    let no_room = snapshot.nodes().filter(|node| {
        let mut alone = Snapshot::from_iter([(*node).clone()]);
        alone.set_levels(LEVELS.map(str::to_owned));
        reference::fitting(&alone, &one) == 0
    });
    prop_assert_eq!(
        why.obstacles.values().sum::<u32>() as usize,
        no_room.count(),
        "each node without room is counted once"
    );
    prop_assert!(!why.help.is_empty());
    let waits = why.help.contains(&Help::Wait);
    let base = if waits {
        snapshot.clone()
    } else {
        snapshot.idle()
    };
    prop_assert_eq!(waits, place(&snapshot.idle(), gang).is_ok());
    for help in &why.help {
        let each: Vec<Help> = match help {
            Help::AddNode => {
                prop_assert!(snapshot.is_empty());
                continue;
            }
            // Nothing to be granted; that nothing else helps is what the others are held to.
            Help::OtherNodes => continue,
            Help::OtherGpuTypes { products } if !products.is_empty() => {
                let one = |product: &String| Help::OtherGpuTypes {
                    products: BTreeSet::from([product.clone()]),
                };
                products.iter().map(one).collect()
            }
            Help::OtherGpus { gpus } => {
                let one = |gpus: &_| Help::OtherGpus {
                    gpus: vec![Clone::clone(gpus)],
                };
                gpus.iter().map(one).collect()
            }
            one => vec![one.clone()],
        };
        for help in each {
            let (snapshot, gang) = grant(&base, gang, &help);
            let after = place(&snapshot, &gang);
            prop_assert!(after.is_ok(), "{help:?} does not help: {after:?}");
        }
    }
    Ok(())
}

fn near(snapshot: &Snapshot, plan: &Plan) -> Vec<(Option<String>, Option<String>, String)> {
    let label = |node: &Node, key: &str| node.labels.get(key).cloned();
    let nodes = plan.nodes.iter().filter_map(|name| snapshot.node(name));
    nodes
        .map(|node| (label(node, "block"), label(node, "rack"), node.name.clone()))
        .collect()
}

/// Does each come in one run?
fn in_runs<T: Ord + Clone>(items: impl Iterator<Item = T>) -> bool {
    let mut runs: Vec<T> = items.collect();
    runs.dedup();
    runs.len() == runs.iter().cloned().collect::<BTreeSet<T>>().len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_plan_is_whole_within_bounds_and_found_where_there_is_one(snapshot in any_cluster(), gang in any_gang()) {
        let answer = place(&snapshot, &gang);
        prop_assert_eq!(&answer, &place(&snapshot, &gang), "the same question has the same answer");
        let told = told_backwards(&snapshot);
        prop_assert_eq!(&snapshot, &told);
        prop_assert_eq!(&answer, &place(&told, &gang), "in whatever order nodes are told");
        let fits = reference::fitting(&snapshot, &gang);
        prop_assert_eq!(fitting(&snapshot, &gang), fits);
        prop_assert_eq!(answer.is_ok(), fits >= gang.least());
        match answer {
            Ok(plan) => {
                if let Err(problem) = reference::check(&snapshot, &gang, &plan) {
                    prop_assert!(false, "{problem}: {plan:?}");
                }
                let places = near(&snapshot, &plan);
                prop_assert!(in_runs(places.iter()), "ranks of one node are neighbours");
                let whole = places.iter().filter(|(block, rack, _)| block.is_some() && rack.is_some());
                let racks = whole.clone().map(|(block, rack, _)| (block, rack));
                prop_assert!(in_runs(racks), "ranks of one rack are neighbours: {places:?}");
                prop_assert!(in_runs(whole.map(|(block, _, _)| block)), "ranks of one block are neighbours");
            }
            Err(Explanation::NoRoom(why)) => {
                prop_assert_eq!(why.fitting, fits);
                truthful(&snapshot, &gang, &why)?;
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn avoided_nodes_are_used_only_where_there_is_no_room_without_them(snapshot in any_cluster(), gang in any_gang()) {
        let mut without = snapshot.clone();
        gang.avoid.iter().for_each(|name| without.remove(name));
        if let Ok(plan) = place(&snapshot, &gang) {
            let uses = plan.nodes.iter().any(|name| gang.avoid.contains(name));
            prop_assert_eq!(uses, place(&without, &gang).is_err());
        }
    }

    #[test]
    fn what_is_taken_is_gone_and_comes_back(snapshot in any_cluster(), gangs in prop::collection::vec(any_gang(), 1..6)) {
        let mut now = snapshot.clone();
        let mut held = Vec::new();
        for gang in &gangs {
            match place(&now, gang) {
                Ok(plan) => {
                    let before = now.clone();
                    now.take(&plan, gang);
                    prop_assert_eq!(reference::check(&before, gang, &plan), Ok(()));
                    held.push((plan, gang));
                }
                Err(Explanation::NoRoom(why)) => truthful(&now, gang, &why)?,
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        // Told from scratch it is the same cluster: no index has drifted.
        let told = told_backwards(&now);
        prop_assert_eq!(&told, &now);
        for gang in &gangs {
            prop_assert_eq!(place(&told, gang), place(&now, gang));
        }
        for (plan, gang) in held.into_iter().rev() {
            now.give_back(&plan, gang);
        }
        prop_assert_eq!(now, snapshot);
    }

    #[test]
    fn nodes_that_vanish_take_nothing_with_them(snapshot in any_cluster(), gang in any_gang(), gone in 0_usize..6) {
        let Ok(plan) = place(&snapshot, &gang) else { return Ok(()) };
        let mut later = snapshot.clone();
        later.remove(&format!("n{gone}"));
        let before = later.clone();
        later.take(&plan, &gang);
        later.give_back(&plan, &gang);
        prop_assert_eq!(later, before);
    }

    #[test]
    fn an_idle_cluster_is_one_without_pods(snapshot in any_cluster(), gang in any_gang()) {
        let idle = snapshot.idle();
        let emptied: Vec<Node> = snapshot.nodes().map(|node| Node {
            used: stoke_sched::Resources::default(),
            devices: node.devices.as_ref().map(|devices| vec![0; devices.len()]),
            ..node.clone()
        }).collect();
        let mut told: Snapshot = emptied.into_iter().collect();
        told.set_levels(LEVELS.map(str::to_owned));
        prop_assert_eq!(&told, &idle);
        prop_assert_eq!(place(&told, &gang), place(&idle, &gang));
        if let Err(Explanation::NoRoom(why)) = place(&idle, &gang) {
            prop_assert!(!why.obstacles.keys().any(|obstacle| *obstacle >= Obstacle::GpusInUse));
        }
    }
}

proptest! {
    // Values are tables, and those are slow to make without optimisation.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn worth_guides_and_never_forbids(mut snapshot in any_cluster(), seen in prop::collection::vec(any_gang(), 30..40), gang in any_gang()) {
        let unguided = place(&snapshot, &gang);
        let mut appraiser = Appraiser::default();
        for gang in &seen {
            appraiser.observe(&mut snapshot, gang);
        }
        let answer = place(&snapshot, &gang);
        prop_assert_eq!(&answer, &place(&snapshot, &gang));
        match answer {
            Ok(plan) => prop_assert_eq!(reference::check(&snapshot, &gang, &plan), Ok(())),
            Err(why) => prop_assert_eq!(Err(why), unguided, "the same is impossible, and for the same reason"),
        }
    }
}
