//! Clusters large enough for the index to be split, merged and rebuilt; told change by change, and all at once.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stoke_sched::{
    Gang, HOSTNAME, Node, Operator, Requirement, Resources, Snapshot, Subject, Term, Topology,
    fitting, place,
};

use crate::fixtures::{gang, labels, node, racked, resources};

/// Something that happens to a cluster.
#[derive(Debug, Clone)]
enum Change {
    Put { node: u16, rack: u8, gpus: u32 },
    Cordon(u16),
    Remove(u16),
    Use { node: u16, gpus: u32 },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let node = 0_u16..240;
    let put = (node.clone(), 0_u8..5, 0_u32..9);
    let one = prop_oneof![
        6 => put.prop_map(|(node, rack, gpus)| Change::Put { node, rack, gpus }),
        1 => node.clone().prop_map(Change::Cordon),
        3 => node.clone().prop_map(Change::Remove),
        3 => (node, 0_u32..9).prop_map(|(node, gpus)| Change::Use { node, gpus }),
    ];
    prop::collection::vec(one, 0..600)
}

fn name(number: u16) -> String {
    format!("n{number:03}")
}

/// Nearly every node has another serial number, and all have a little more memory than another.
fn made(number: u16, rack: u8, gpus: u32) -> Node {
    let own = name(number);
    let block = (rack / 2).to_string();
    let serial = format!("s{}", number / 2);
    let racks = rack.to_string();
    let mut node = Node {
        labels: labels(&[
            (HOSTNAME, &own),
            ("block", &block),
            ("rack", &racks),
            ("serial", &serial),
            (
                "parity",
                if number.is_multiple_of(2) {
                    "even"
                } else {
                    "odd"
                },
            ),
        ]),
        ..node(&own, gpus)
    };
    node.allocatable.memory.0 += u64::from(number) * 4096;
    node
}

fn apply(snapshot: &mut Snapshot, told: &mut BTreeMap<String, Node>, change: &Change) {
    match change {
        Change::Put { node, rack, gpus } => {
            let node = made(*node, *rack, *gpus);
            told.insert(node.name.clone(), node.clone());
            snapshot.put(node);
        }
        Change::Cordon(number) => {
            if let Some(node) = told.get_mut(&name(*number)) {
                node.schedulable = false;
                snapshot.put(node.clone());
            }
        }
        Change::Remove(number) => {
            told.remove(&name(*number));
            snapshot.remove(&name(*number));
        }
        Change::Use { node, gpus } => {
            let used = Resources {
                pods: 1,
                ..resources(u64::from(*gpus), 8, *gpus)
            };
            if let Some(node) = told.get_mut(&name(*node)) {
                node.used = used.clone();
            }
            snapshot.set_used(&name(*node), used);
        }
    }
}

fn gangs() -> Vec<Gang> {
    let required = |level: &str| {
        Some(Topology::Required {
            level: level.to_owned(),
        })
    };
    let near = |workers, gpus, topology| Gang {
        topology,
        ..gang(workers, gpus)
    };
    let labelled = |key: &str, values: &[&str]| Gang {
        terms: vec![Term(vec![Requirement {
            subject: Subject::Label(key.to_owned()),
            operator: Operator::In(values.iter().map(|value| (*value).to_owned()).collect()),
        }])],
        ..gang(3, 1)
    };
    let tight = Gang {
        // As much memory as some nodes have and some have not.
        ask: Resources {
            pods: 1,
            memory: stoke_api::Bytes(stoke_api::Bytes::gib(256).0 + 100 * 4096),
            ..Resources::default()
        },
        ..gang(7, 0)
    };
    vec![
        gang(1, 1),
        gang(40, 3),
        near(30, 4, Some(Topology::Preferred)),
        near(200, 2, Some(Topology::Preferred)),
        near(12, 4, required("rack")),
        near(25, 4, required("block")),
        near(2, 3, required(HOSTNAME)),
        labelled("serial", &["s3", "s40", "s77"]),
        labelled("parity", &["odd"]),
        tight,
    ]
}

/// Workers that fit, counted node by node.
fn counted(snapshot: &Snapshot, gang: &Gang) -> u32 {
    let will_do = |node: &&Node| {
        node.schedulable
            && gang.terms.iter().flat_map(|term| &term.0).all(|asked| {
                let Subject::Label(key) = &asked.subject else {
                    return false;
                };
                let Operator::In(values) = &asked.operator else {
                    return false;
                };
                node.labels
                    .get(key)
                    .is_some_and(|value| values.contains(value))
            })
    };
    let domain = |node: &Node| match &gang.topology {
        Some(Topology::Required { level }) => node.labels.get(level).cloned(),
        _ => None,
    };
    let mut by_domain: BTreeMap<Option<String>, u32> = BTreeMap::new();
    for node in snapshot.nodes().filter(will_do) {
        *by_domain.entry(domain(node)).or_default() += node.free().times(&gang.ask);
    }
    let most = by_domain.into_values().max().unwrap_or(0);
    most.min(gang.workers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn change_by_change_is_all_at_once(changes in changes()) {
        let mut snapshot = racked([]);
        let mut told = BTreeMap::new();
        for change in &changes {
            apply(&mut snapshot, &mut told, change);
        }
        let at_once = racked(told.into_values());
        prop_assert_eq!(&snapshot, &at_once);
        for gang in gangs() {
            let answer = place(&snapshot, &gang);
            prop_assert_eq!(&answer, &place(&at_once, &gang));
            prop_assert_eq!(fitting(&snapshot, &gang), counted(&snapshot, &gang));
            prop_assert_eq!(answer.is_ok(), counted(&snapshot, &gang) == gang.workers);
            if let Ok(plan) = answer {
                let before = snapshot.clone();
                snapshot.take(&plan, &gang);
                for node in snapshot.nodes() {
                    let spared = before.node(&node.name).map(|node| node.used.clone());
                    let fits = node.used.gpus <= node.allocatable.gpus && node.used.memory <= node.allocatable.memory;
                    prop_assert!(fits || spared.as_ref() == Some(&node.used), "{} is given too much", node.name);
                }
                snapshot.give_back(&plan, &gang);
                prop_assert_eq!(&snapshot, &before);
            }
        }
    }
}
