//! What the world says after changes, told as a watch would tell them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ObjectMeta;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoke_sched::{Gang, Resources};

use super::*;

fn tell<K: Kind>(world: &mut World, object: Value) -> Wakes {
    let object: K = serde_json::from_value(object).expect("an object");
    let mut wakes = world.watched(Event::Apply(object));
    wakes.pop().unwrap_or_default()
}

fn job(name: &str, version: u32, priority: &str, created: &str, status: Value) -> Value {
    json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version.to_string(), "generation": 1,
            "creationTimestamp": created},
        "spec": {"command": ["a"], "priority": priority},
        "status": status,
    })
}

fn pod(version: u32, phase: &str) -> Value {
    json!({
        "metadata": {"name": "r-1-0", "namespace": "ns", "uid": "p", "resourceVersion": version.to_string(), "labels": {"stokehold.dev/job": "r"}},
        "spec": {"nodeName": "n", "containers": [{"name": "worker", "resources": {"requests": {"memory": "6Gi"}}}]},
        "status": {"phase": phase},
    })
}

fn node(version: u32, heartbeat: &str, memory: &str) -> Value {
    json!({
        "metadata": {"name": "n", "resourceVersion": version.to_string()},
        "status": {"allocatable": {"memory": memory, "pods": "9"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]},
    })
}

fn names(keys: &[Key]) -> Vec<&str> {
    keys.iter().map(|key| key.name.as_str()).collect()
}

fn key(name: &str) -> Key {
    Key::new("ns", name)
}

/// One node with 8 GiB, of which the job `r` has six; `c`, `b` and `a` wait, in this order.
fn world() -> World {
    let mut world = World::default();
    tell::<Node>(&mut world, node(1, "2026-01-01T00:00:00Z", "8Gi"));
    let queued = || json!({"phase": "Queued"});
    for (name, version, priority, created) in [
        ("b", 1, "standard", "2026-01-02T00:00:00Z"),
        ("a", 2, "standard", "2026-01-03T00:00:00Z"),
        ("c", 3, "production", "2026-01-04T00:00:00Z"),
    ] {
        tell::<TrainJob>(&mut world, job(name, version, priority, created, queued()));
    }
    let running = json!({"phase": "Running", "attempt": 1, "attempts": [{"number": 1, "nodes": ["n"], "runningAt": "2026-01-01T00:00:01Z"}]});
    let running = job("r", 4, "standard", "2026-01-01T00:00:00Z", running);
    tell::<TrainJob>(&mut world, running);
    tell::<Pod>(&mut world, pod(5, "Running"));
    world
}

fn lacks(workers: u32, gib: u64, missing: u32) -> Option<Shortage> {
    let ask = Resources {
        memory: stoke_api::Bytes::gib(gib),
        pods: 1,
        ..Resources::default()
    };
    let gang = Arc::new(Gang {
        workers,
        ask,
        ..Gang::default()
    });
    Some(Shortage::Workers { gang, missing })
}

/// Everyone who may get room, in order, none of whom takes any.
fn contenders(world: &mut World, ahead_of: Option<&str>) -> Vec<String> {
    let mut found = Vec::new();
    let ahead_of = ahead_of.map(key);
    while let Some(next) = world.next_in_line(ahead_of.as_ref()) {
        if let Next::Serve(key) = next {
            world.turn_away(&key, None);
            found.push(key.name);
        }
    }
    found
}

#[test]
fn those_who_wait_are_served_in_their_order() {
    assert_eq!(contenders(&mut world(), None), ["c", "b", "a"]);
    assert_eq!(contenders(&mut world(), Some("a")), ["c", "b"]);
    assert_eq!(
        contenders(&mut world(), Some("r")),
        ["c"],
        "the older goes before all but the more important"
    );
}

#[test]
fn who_was_turned_away_is_not_asked_again_until_there_may_be_enough_room() {
    let mut world = world();
    world.turn_away(&key("c"), lacks(1, 9, 1));
    world.turn_away(&key("b"), lacks(1, 4, 1));
    world.turn_away(&key("a"), lacks(4, 2, 3));
    assert_eq!(contenders(&mut world, None), [""; 0]);
    let wakes = tell::<Pod>(&mut world, pod(6, "Succeeded"));
    assert!(wakes.room);
    assert_eq!(
        names(&wakes.jobs),
        ["r"],
        "the others are not woken one by one"
    );
    assert_eq!(
        contenders(&mut world, None),
        ["b", "a"],
        "a worker of nine GiB fits nowhere"
    );
    let wakes = tell::<Pod>(&mut world, pod(7, "Succeeded"));
    assert!(!wakes.room, "it was free already");
}

#[test]
fn a_large_gang_is_not_asked_for_every_small_end() {
    let mut world = world();
    for name in ["a", "b", "c"] {
        world.turn_away(&key(name), lacks(8, 1, 7));
    }
    assert!(!tell::<Pod>(&mut world, pod(6, "Failed")).room);
    assert_eq!(contenders(&mut world, None), [""; 0]);
}

#[test]
fn what_another_took_meanwhile_is_seen_without_planning() {
    let mut world = world();
    world.turn_away(&key("c"), lacks(1, 4, 1));
    world.turn_away(&key("b"), lacks(1, 4, 1));
    world.turn_away(&key("a"), lacks(1, 4, 1));
    tell::<Pod>(&mut world, pod(6, "Failed"));
    for name in ["c", "b"] {
        assert_eq!(world.next_in_line(None), Some(Next::Serve(key(name))));
        let job = world.jobs.get(&key(name)).expect("it").clone();
        let attempt = Attempt {
            number: 1,
            nodes: vec!["n".to_owned()],
            memory: Some(stoke_api::trainjob::Sizing {
                request: stoke_api::Bytes::gib(4),
                ..stoke_api::trainjob::Sizing::default()
            }),
            ..Attempt::default()
        };
        assert!(world.set_aside(&job, &attempt).is_some());
    }
    assert_eq!(world.next_in_line(None), Some(Next::TurnedAway));
    assert_eq!(world.next_in_line(None), None);
    // Its own is free to itself and to nobody else.
    let free = |for_whom: &str| {
        let snapshot = world.snapshot_for(&key(for_whom));
        snapshot.node("n").expect("the node").free().memory
    };
    assert_eq!(free("a"), stoke_api::Bytes(0));
    assert_eq!(free("c"), stoke_api::Bytes::gib(4));
    // The job changes before the attempt is on record: what was set aside is free.
    let changed = job("c", 9, "production", "2026-01-04T00:00:00Z", json!({}));
    assert!(tell::<TrainJob>(&mut world, changed).room);
    assert_eq!(contenders(&mut world, None), ["c", "a"]);
}

#[test]
fn a_heartbeat_wakes_nobody() {
    let mut world = world();
    let wakes = tell::<Node>(&mut world, node(9, "2026-01-01T00:00:10Z", "8Gi"));
    assert_eq!(wakes, Wakes::default());
    for name in ["a", "b", "c"] {
        world.turn_away(&key(name), lacks(1, 4, 1));
    }
    let mut wakes = tell::<Node>(&mut world, node(10, "2026-01-01T00:00:20Z", "9Gi"));
    assert_eq!(names(&wakes.jobs), ["r"], "who has a worker there");
    wakes.jobs_later.sort();
    assert_eq!(names(&wakes.jobs_later), ["a", "b", "c"]);
    assert!(wakes.room);
    assert_eq!(contenders(&mut world, None), ["c", "b", "a"]);
}

#[test]
fn workers_that_come_up_are_gathered_until_the_last_has() {
    let mut world = World::default();
    let status = json!({"phase": "Starting", "attempt": 1, "attempts": [{"number": 1, "nodes": ["n", "n"]}]});
    let starting = job("g", 1, "standard", "2026-01-01T00:00:00Z", status);
    tell::<TrainJob>(&mut world, starting);
    let mut version = 10;
    let mut urgent = |rank: u32, phase: &str, more: Value| {
        version += 1;
        let name = format!("g-1-{rank}");
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version.to_string(), "labels": {"stokehold.dev/job": "g"}},
            "spec": {"nodeName": "n", "containers": [{"name": "worker"}]},
            "status": {"phase": phase},
        });
        pod["metadata"]
            .as_object_mut()
            .expect("metadata")
            .extend(more.as_object().cloned().unwrap_or_default());
        let wakes = tell::<Pod>(&mut world, pod);
        assert_eq!(wakes.jobs.len() + wakes.jobs_soon.len(), 1);
        !wakes.jobs.is_empty()
    };
    assert!(!urgent(0, "Pending", json!({})));
    assert!(!urgent(0, "Running", json!({})));
    assert!(!urgent(1, "Pending", json!({})));
    assert!(urgent(1, "Running", json!({})), "all are there");
    assert!(!urgent(1, "Running", json!({})), "that is known");
    assert!(urgent(
        0,
        "Running",
        json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})
    ));
    assert!(urgent(0, "Failed", json!({})));
    assert_eq!(world.workers_of(&key("g")).count(), 2);
}

/// What may happen to a small cluster.
#[derive(Debug, Clone)]
enum Happening {
    Node {
        name: u8,
        gib: u8,
        ready: bool,
    },
    NodeGone {
        name: u8,
    },
    Pod {
        job: u8,
        attempt: u32,
        rank: u32,
        node: u8,
        gib: u8,
        phase: u8,
    },
    PodGone {
        job: u8,
        attempt: u32,
        rank: u32,
    },
    Job {
        name: u8,
        attempt: u32,
        nodes: Vec<u8>,
        gib: u8,
        stage: u8,
        port: Option<u16>,
    },
    JobGone {
        name: u8,
    },
    SetAside {
        name: u8,
        attempt: u32,
        nodes: Vec<u8>,
        gib: u8,
    },
    TurnAway {
        name: u8,
        lacks: bool,
    },
    Relist,
}

fn any_happening() -> impl Strategy<Value = Happening> {
    let nodes = || prop::collection::vec(0_u8..3, 0..4);
    prop_oneof![
        (0_u8..3, 0_u8..9, any::<bool>()).prop_map(|(name, gib, ready)| Happening::Node {
            name,
            gib,
            ready
        }),
        (0_u8..3).prop_map(|name| Happening::NodeGone { name }),
        (0_u8..3, 1_u32..3, 0_u32..3, 0_u8..4, 0_u8..4, 0_u8..4).prop_map(
            |(job, attempt, rank, node, gib, phase)| Happening::Pod {
                job,
                attempt,
                rank,
                node,
                gib,
                phase
            }
        ),
        (0_u8..3, 1_u32..3, 0_u32..3).prop_map(|(job, attempt, rank)| Happening::PodGone {
            job,
            attempt,
            rank
        }),
        (
            0_u8..3,
            1_u32..3,
            nodes(),
            0_u8..4,
            0_u8..4,
            prop::option::of(1_u16..9)
        )
            .prop_map(|(name, attempt, nodes, gib, stage, port)| Happening::Job {
                name,
                attempt,
                nodes,
                gib,
                stage,
                port
            }),
        (0_u8..3).prop_map(|name| Happening::JobGone { name }),
        (0_u8..3, 1_u32..3, nodes(), 0_u8..4).prop_map(|(name, attempt, nodes, gib)| {
            Happening::SetAside {
                name,
                attempt,
                nodes,
                gib,
            }
        }),
        (0_u8..3, any::<bool>()).prop_map(|(name, lacks)| Happening::TurnAway { name, lacks }),
        Just(Happening::Relist),
    ]
}

/// The world, and beside it what was set aside by hand.
#[derive(Default)]
struct Drill {
    world: World,
    version: u64,
    set_aside: BTreeMap<Key, Attempt>,
}

impl Drill {
    fn happen(&mut self, happening: Happening) {
        self.version += 1;
        let version = self.version.to_string();
        let node_name = |node: u8| format!("n{node}");
        let job_name = |job: u8| format!("j{job}");
        match happening {
            Happening::Node { name, gib, ready } => {
                tell::<Node>(
                    &mut self.world,
                    json!({
                        "metadata": {"name": node_name(name), "resourceVersion": version},
                        "status": {"allocatable": {"memory": format!("{gib}Gi"), "pods": "9"},
                            "addresses": [{"type": "InternalIP", "address": format!("10.0.0.{gib}")}],
                            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
                    }),
                );
            }
            Happening::NodeGone { name } => self.gone::<Node>("", &node_name(name)),
            Happening::Pod {
                job,
                attempt,
                rank,
                node,
                gib,
                phase,
            } => {
                let name = stoke_api::names::pod_name(&job_name(job), attempt, rank);
                let mut spec = json!({"containers": [{"name": "w", "resources": {"requests": {"memory": format!("{gib}Gi")}}}]});
                if node < 3 {
                    spec["nodeName"] = json!(node_name(node));
                }
                let phase = ["Pending", "Running", "Succeeded", "Failed"][usize::from(phase)];
                tell::<Pod>(
                    &mut self.world,
                    json!({
                        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version,
                            "labels": {"stokehold.dev/job": job_name(job)}},
                        "spec": spec,
                        "status": {"phase": phase},
                    }),
                );
            }
            Happening::PodGone { job, attempt, rank } => {
                self.gone::<Pod>(
                    "ns",
                    &stoke_api::names::pod_name(&job_name(job), attempt, rank),
                );
            }
            Happening::Job {
                name,
                attempt,
                nodes,
                gib,
                stage,
                port,
            } => {
                let nodes: Vec<String> = nodes.into_iter().map(node_name).collect();
                let mut attempt = json!({"number": attempt, "nodes": nodes, "port": port,
                    "memory": {"request": format!("{gib}Gi"), "limit": format!("{gib}Gi"), "why": ""}});
                let phase = match stage {
                    0 => "Queued",
                    1 => "Starting",
                    2 => {
                        attempt["runningAt"] = json!("2026-01-01T00:00:00Z");
                        "Running"
                    }
                    _ => {
                        attempt["outcome"] = json!("Failed");
                        "Failed"
                    }
                };
                let status = match stage {
                    0 => json!({"phase": phase}),
                    _ => {
                        json!({"phase": phase, "attempt": attempt["number"], "attempts": [attempt]})
                    }
                };
                let job = job_name(name);
                self.set_aside.remove(&key(&job));
                let mut told =
                    super::tests::job(&job, 0, "standard", "2026-01-01T00:00:00Z", status);
                told["metadata"]["resourceVersion"] = json!(version);
                tell::<TrainJob>(&mut self.world, told);
            }
            Happening::JobGone { name } => {
                self.set_aside.remove(&key(&job_name(name)));
                self.gone::<TrainJob>("ns", &job_name(name));
            }
            Happening::SetAside {
                name,
                attempt,
                nodes,
                gib,
            } => {
                let key = key(&job_name(name));
                let Some(job) = self.world.jobs.get(&key).cloned() else {
                    return;
                };
                if !self.world.wants_room(&key) {
                    return;
                }
                let attempt = Attempt {
                    number: attempt,
                    nodes: nodes.into_iter().map(node_name).collect(),
                    memory: Some(stoke_api::trainjob::Sizing {
                        request: stoke_api::Bytes::gib(gib.into()),
                        ..stoke_api::trainjob::Sizing::default()
                    }),
                    ..Attempt::default()
                };
                assert!(self.world.set_aside(&job, &attempt).is_some());
                self.set_aside.insert(key, attempt);
            }
            Happening::TurnAway { name, lacks: room } => {
                let key = key(&job_name(name));
                if self.world.wants_room(&key) {
                    self.set_aside.remove(&key);
                }
                self.world
                    .turn_away(&key, room.then(|| lacks(2, 2, 2)).flatten());
            }
            Happening::Relist => {
                // A list that holds only the first half of what was there.
                let jobs: Vec<TrainJob> = self
                    .world
                    .jobs
                    .iter()
                    .map(|(_, job)| job.as_ref().clone())
                    .collect();
                let kept = jobs.len() / 2;
                for gone in &jobs[kept..] {
                    self.set_aside.remove(&Key::of(&gone.metadata));
                }
                self.world.watched(Event::<TrainJob>::Init);
                for job in jobs.into_iter().take(kept) {
                    self.world.watched(Event::InitApply(job));
                }
                self.world.watched(Event::<TrainJob>::InitDone);
            }
        }
    }

    fn gone<K: Kind + Default>(&mut self, namespace: &str, name: &str) {
        let mirror = K::mirror(&mut self.world);
        let found = mirror.get(&Key::new(namespace, name));
        let Some(uid) = found.map(|known| known.uid().map(str::to_owned)) else {
            return;
        };
        let mut object = K::default();
        *object.meta_mut() = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            uid,
            resource_version: Some(self.version.to_string()),
            ..ObjectMeta::default()
        };
        self.world.watched(Event::Delete(object));
    }

    /// Everything that is kept up change by change, made anew from the mirrors alone.
    fn check(&mut self) {
        let world = &self.world;
        let pods: BTreeMap<Key, Share> = world
            .pods
            .iter()
            .filter_map(|(key, pod)| Some((key.clone(), holds(pod)?)))
            .collect();
        let on_record = world
            .jobs
            .iter()
            .filter_map(|(key, job)| Some((key.clone(), promise_of(job)?)));
        let aside = self.set_aside.iter().map(|(key, attempt)| {
            let job = world.jobs.get(key).expect("the job");
            (key.clone(), promise(job, attempt))
        });
        let mut taken: Vec<(String, Resources)> = pods
            .values()
            .map(|share| (share.node.clone(), share.amount.clone()))
            .collect();
        for (job, promise) in on_record.chain(aside) {
            for (rank, node) in (0..).zip(&promise.nodes) {
                let pod = stoke_api::names::pod_name(&job.name, promise.attempt, rank);
                if !pods.contains_key(&Key::new(&job.namespace, &pod)) {
                    taken.push((node.clone(), promise.each.clone()));
                }
            }
        }
        let nodes = world.nodes.iter().map(|(_, node)| node.as_ref());
        let taken = taken
            .iter()
            .map(|(node, amount)| (node.as_str(), amount.clone()));
        assert_eq!(
            world.ledger.snapshot().as_ref(),
            &cluster::snapshot(nodes, taken)
        );

        let addresses: BTreeMap<String, String> = world
            .nodes
            .iter()
            .filter_map(|(key, node)| Some((key.name.clone(), cluster::address(node)?.to_owned())))
            .collect();
        assert_eq!(*world.addresses, addresses);
        let leased: BTreeMap<Key, RangeInclusive<u16>> = world
            .jobs
            .iter()
            .filter_map(|(key, job)| Some((key.clone(), lease_of(job)?)))
            .collect();
        assert_eq!(world.leased, leased);
        let unbound: BTreeSet<Key> = world
            .pods
            .iter()
            .filter(|(_, pod)| pod.is_unbound())
            .map(|(key, _)| key.clone())
            .collect();
        assert_eq!(world.unbound, unbound);
        for name in ["j0", "j1", "j2"] {
            let job = key(name);
            let indexed: Vec<Key> = world.workers_of(&job).map(|pod| pod.key()).collect();
            let found = world
                .pods
                .iter()
                .filter(|(_, pod)| pod.metadata.job.as_deref() == Some(name));
            let found: Vec<Key> = found.map(|(key, _)| key.clone()).collect();
            assert_eq!(indexed, found);
        }
        let waits = |job: &TrainJob| {
            let status = job.status.as_ref();
            status.is_none_or(|status| status.phase == stoke_api::trainjob::Phase::Queued)
        };
        let waiting = world.jobs.iter().filter(|(_, job)| waits(job));
        let waiting: BTreeSet<&Key> = waiting.map(|(key, _)| key).collect();
        assert_eq!(world.line.waiting().collect::<BTreeSet<_>>(), waiting);
    }
}

proptest! {
    #[test]
    fn what_is_kept_up_is_what_would_be_made_anew(
        happenings in prop::collection::vec(any_happening(), 0..60),
    ) {
        let mut drill = Drill::default();
        for happening in happenings {
            drill.happen(happening);
            drill.check();
        }
    }
}
