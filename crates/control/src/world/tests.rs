//! What the world says after changes, told as a watch would tell them.

mod data;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ObjectMeta;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoke_sched::{Gang, Resources};

use super::holding::holds;
use super::ledger::Share;
use super::*;
use crate::mirror::Mirrored;
use crate::trainjob::fixtures::config;

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
        "spec": {"command": ["a"], "priority": priority, "framework": "torch"},
        "status": status,
    })
}

fn pod(version: u32, phase: &str) -> Value {
    json!({
        "metadata": {"name": "r-1-0", "namespace": "ns", "uid": "p", "resourceVersion": version.to_string(),
            "labels": {"stokehold.dev/job": "r", "stokehold.dev/attempt": "1"}},
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
    let mut world = World::new(config());
    tell::<Node>(&mut world, node(1, "2026-01-01T00:00:00Z", "8Gi"));
    let queued = || json!({"phase": "Queued"});
    for (name, version, priority, created) in [
        ("b", 1, "standard", "2026-01-01T00:00:02Z"),
        ("a", 2, "standard", "2026-01-01T00:00:03Z"),
        ("c", 3, "production", "2026-01-01T00:00:04Z"),
    ] {
        tell::<TrainJob>(&mut world, job(name, version, priority, created, queued()));
    }
    let running = json!({"phase": "Running", "attempt": 1, "attempts": [{"number": 1, "nodes": ["n"], "runningAt": "2026-01-01T00:00:01Z",
        "memory": {"request": "6Gi", "limit": "6Gi", "why": ""}}]});
    let running = job("r", 4, "standard", "2026-01-01T00:00:00Z", running);
    tell::<TrainJob>(&mut world, running);
    tell::<Pod>(&mut world, pod(5, "Running"));
    world
}

fn asks(workers: u32, gib: u64) -> Option<Arc<Ask>> {
    let ask = Resources {
        memory: stoke_api::Bytes::gib(gib),
        pods: 1,
        ..Resources::default()
    };
    let gang = Gang {
        workers,
        ask,
        ..Gang::default()
    };
    Some(Arc::new(Ask {
        gang: Arc::new(gang),
        size: crate::trainjob::pod::Size::default(),
        shares_network: true,
        until: None,
    }))
}

/// Everyone who was not looked at asks for so much, `c`, `b` and `a`.
fn ask(world: &mut World, gib: [u64; 3]) {
    while let Some(key) = world.next_unseen() {
        let wanted = ["c", "b", "a"].iter().position(|name| *name == key.name);
        let job = world.jobs.get(&key).expect("it").clone();
        let ask = wanted.and_then(|i| asks(1, gib[i]));
        world.ask(&job, ask).expect("as it was");
    }
}

/// Who was given room, as they are woken for it.
fn given(world: &mut World) -> Vec<String> {
    let mut woken = world.serve(now()).jobs;
    woken.retain(|key| matches!(world.room_of(key), Room::Given { .. }));
    woken.into_iter().map(|key| key.name).collect()
}

fn now() -> Timestamp {
    "2026-01-01T00:00:05Z".parse().expect("a time")
}

#[test]
fn nobody_is_given_room_before_all_who_want_some_were_looked_at() {
    let mut world = world();
    let first = world.next_unseen().expect("someone");
    assert_eq!(first, key("a"));
    let job = world.jobs.get(&first).expect("it").clone();
    world.ask(&job, asks(1, 2)).expect("as it was");
    assert_eq!(given(&mut world), [""; 0]);
    ask(&mut world, [2, 2, 2]);
    assert_eq!(given(&mut world), ["c"], "there is room for one");
}

#[test]
fn what_was_given_is_set_aside_until_it_is_on_record() {
    let mut world = world();
    ask(&mut world, [2, 2, 2]);
    assert_eq!(given(&mut world), ["c"]);
    assert_eq!(given(&mut world), [""; 0]);
    let free = |world: &World| world.snapshot().node("n").expect("it").free().memory;
    assert_eq!(free(&world), stoke_api::Bytes(0));
    // The job changes before the attempt is on record: what was set aside is free, until it is looked at again.
    let mut edited = job("c", 9, "production", "2026-01-01T00:00:04Z", json!({}));
    edited["metadata"]["generation"] = json!(2);
    assert!(tell::<TrainJob>(&mut world, edited).room);
    assert_eq!(free(&world), stoke_api::Bytes::gib(2));
    ask(&mut world, [4, 2, 2]);
    assert_eq!(given(&mut world), ["b"], "it asks for too much now");
    let wakes = tell::<Pod>(&mut world, pod(10, "Succeeded"));
    assert!(wakes.room);
    assert_eq!(
        names(&wakes.jobs),
        ["r"],
        "the others are not woken one by one"
    );
    assert_eq!(given(&mut world), ["c", "a"]);
    let attempt = json!({"phase": "Starting", "attempt": 1, "attempts": [{"number": 1, "nodes": ["n"],
        "memory": {"request": "4Gi", "limit": "4Gi", "why": ""}}]});
    let mut recorded = job("c", 11, "production", "2026-01-01T00:00:04Z", attempt);
    recorded["metadata"]["generation"] = json!(2);
    tell::<TrainJob>(&mut world, recorded);
    assert_eq!(free(&world), stoke_api::Bytes(0), "it is counted once");
    assert!(!world.wants_room(&key("c")));
}

#[test]
fn ports_are_leased_with_the_room() {
    let mut world = World::new(Config {
        ports: 1..=2,
        ..config()
    });
    tell::<Node>(&mut world, node(1, "2026-01-01T00:00:00Z", "8Gi"));
    for (name, version) in [("c", 1), ("b", 2), ("a", 3)] {
        let job = job(name, version, "standard", "2026-01-01T00:00:00Z", json!({}));
        tell::<TrainJob>(&mut world, job);
    }
    ask(&mut world, [1, 1, 1]);
    assert_eq!(given(&mut world), ["a", "b"]);
    let port = |world: &World, name: &str| match world.room_of(&key(name)) {
        Room::Given { grant, .. } => grant.port,
        _ => None,
    };
    let (a, b) = (port(&world, "a"), port(&world, "b"));
    assert!(a.is_some() && b.is_some() && a != b, "{a:?} {b:?}");
    assert!(matches!(world.room_of(&key("c")), Room::NoPorts { .. }));
    // Its lease is free when it wants no room any more.
    let job = world.jobs.get(&key("a")).expect("it").clone();
    world.ask(&job, None).expect("as it was");
    ask(&mut world, [1, 1, 1]);
    assert_eq!(given(&mut world), ["c"]);
}

#[test]
fn a_node_that_goes_takes_back_what_was_given_there() {
    let mut world = world();
    ask(&mut world, [2, 2, 2]);
    assert_eq!(given(&mut world), ["c"]);
    let gone: Node = serde_json::from_value(node(9, "2026-01-01T00:00:00Z", "8Gi")).expect("it");
    let wakes = world.watched(Event::Delete(gone)).pop().expect("wakes");
    assert!(wakes.room && wakes.jobs.contains(&key("c")));
    assert_eq!(world.room_of(&key("c")), Room::Unasked);
    assert_eq!(world.next_unseen(), Some(key("c")));
}

#[test]
fn a_heartbeat_wakes_nobody() {
    let mut world = world();
    let wakes = tell::<Node>(&mut world, node(9, "2026-01-01T00:00:10Z", "8Gi"));
    assert_eq!(wakes, Wakes::default());
    ask(&mut world, [9, 9, 9]);
    assert_eq!(given(&mut world), [""; 0]);
    let mut wakes = tell::<Node>(&mut world, node(10, "2026-01-01T00:00:20Z", "19Gi"));
    assert_eq!(names(&wakes.jobs), ["r"], "who has a worker there");
    wakes.jobs_later.sort();
    assert_eq!(names(&wakes.jobs_later), ["a", "b", "c"]);
    assert!(wakes.room);
    assert_eq!(
        world.room_of(&key("c")),
        Room::Unasked,
        "it may ask for another share of what there is"
    );
    assert_eq!(given(&mut world), ["c"], "and has room meanwhile");
    assert!(matches!(
        world.room_of(&key("c")),
        Room::Given { stale: true, .. }
    ));
}

#[test]
fn an_outage_that_ends_with_new_nodes_wakes_who_is_on_silent_ones() {
    let mut world = world();
    let mut silent = node(7, "2026-01-01T00:01:00Z", "8Gi");
    silent["status"]["conditions"][0]["status"] = json!("Unknown");
    tell::<Node>(&mut world, silent);
    let on_it = world.jobs.get(&key("r")).expect("the job").clone();
    assert!(world.notices_for(&on_it).is_empty(), "all are silent");
    let mut added = node(1, "2026-01-01T00:01:00Z", "8Gi");
    added["metadata"]["name"] = json!("new");
    let wakes = tell::<Node>(&mut world, added);
    assert_eq!(names(&wakes.jobs), ["r"]);
    assert!(
        world.notices_for(&on_it).contains_key("n"),
        "it is the node"
    );
}

fn queue(name: &str, version: u32, parent: Option<&str>, waiting: u32) -> Value {
    json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue",
        "metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()},
        "spec": {"parent": parent}, "status": {"waiting": waiting},
    })
}

#[test]
fn a_queue_is_told_of_its_jobs_and_of_those_below_it() {
    let mut world = world();
    let wakes = tell::<Queue>(&mut world, queue("all", 1, None, 0));
    assert_eq!((wakes.queues, wakes.room), (vec!["all".to_owned()], true));
    tell::<Queue>(&mut world, queue("team", 2, Some("all"), 0));
    let wakes = tell::<Queue>(&mut world, queue("team", 3, Some("all"), 1));
    assert_eq!(wakes, Wakes::default(), "our own words");
    let mut queued = job("c", 20, "production", "2026-01-01T00:00:04Z", json!({}));
    queued["spec"]["queue"] = json!("team");
    let wakes = tell::<TrainJob>(&mut world, queued);
    assert_eq!(wakes.queues_soon, ["all", "team"]);
    // A circle ends.
    tell::<Queue>(&mut world, queue("all", 21, Some("team"), 0));
    let found = world.with_those_above(["team"].into_iter());
    assert_eq!(found, ["all", "team"]);
}

/// `r` has its room and writes checkpoints; `v` is more important and takes it.
fn contested() -> World {
    let mut world = world();
    for name in ["a", "b", "c"] {
        let gone: TrainJob =
            serde_json::from_value(job(name, 30, "standard", "2026-01-01T00:00:00Z", json!({})))
                .expect("it");
        world.watched(Event::Delete(gone));
    }
    let held = json!({"phase": "Running", "attempt": 1, "attempts": [{"number": 1, "nodes": ["n"], "runningAt": "2026-01-01T00:00:01Z",
        "memory": {"request": "6Gi", "limit": "6Gi", "why": ""}}]});
    tell::<TrainJob>(
        &mut world,
        job("r", 31, "experiment", "2026-01-01T00:00:00Z", held),
    );
    tell::<TrainJob>(
        &mut world,
        job("v", 32, "production", "2026-01-01T00:00:04Z", json!({})),
    );
    let claimant = world.next_unseen().expect("it");
    let claims = world.jobs.get(&claimant).expect("it").clone();
    world.ask(&claims, asks(1, 6)).expect("as it was");
    let wakes = world.serve(now());
    assert_eq!(
        (names(&wakes.jobs), names(&wakes.jobs_soon)),
        (vec!["r"], vec!["v"])
    );
    world
}

#[test]
fn what_a_job_was_asked_to_give_up_is_its_own_again_when_nobody_wants_it() {
    let mut world = contested();
    let demand = world.demand_on(&key("r")).expect("a demand");
    assert!(matches!(&demand, Demand::Yield { by, .. } if *by == key("v")));
    assert!(world.serve(now()).jobs.is_empty(), "it is asked once");
    let gone: TrainJob = serde_json::from_value(job(
        "v",
        40,
        "production",
        "2026-01-01T00:00:04Z",
        json!({}),
    ))
    .expect("it");
    world.watched(Event::Delete(gone));
    assert_eq!(world.demand_on(&key("r")), None);
    assert!(world.serve(now()).jobs.is_empty());
}

#[test]
fn one_who_gives_way_has_its_room_until_its_workers_have_stopped() {
    let mut world = contested();
    let ended = json!({"phase": "Restarting", "attempt": 1, "attempts": [{"number": 1, "nodes": ["n"], "runningAt": "2026-01-01T00:00:01Z",
        "memory": {"request": "6Gi", "limit": "6Gi", "why": ""}, "outcome": "Preempted"}]});
    tell::<TrainJob>(
        &mut world,
        job("r", 41, "experiment", "2026-01-01T00:00:00Z", ended),
    );
    let leaver = world.next_unseen().expect("it wants room again");
    let job = world.jobs.get(&leaver).expect("it").clone();
    world.ask(&job, None).expect("its workers must stop first");
    assert!(world.serve(now()).jobs.is_empty());
    let wait = match world.room_of(&key("v")) {
        Room::Awaited { wait, .. } => wait.expect("why"),
        other => panic!("{other:?}"),
    };
    insta::assert_snapshot!(wait.constraint, @"ns/r makes room for it");
    tell::<Pod>(&mut world, pod(42, "Failed"));
    assert_eq!(given(&mut world), ["v"]);
}

#[test]
fn workers_that_come_up_are_gathered_until_the_last_has() {
    let mut world = World::new(config());
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
        let at_once = wakes.jobs.len() + wakes.jobs_waiting.len();
        assert_eq!(at_once + wakes.jobs_soon.len(), 1);
        at_once > 0
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
    Looks {
        workers: u8,
        gib: u8,
    },
    Serves,
    Queue {
        name: u8,
        parent: Option<u8>,
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
        (0_u8..4, 0_u8..4).prop_map(|(workers, gib)| Happening::Looks { workers, gib }),
        Just(Happening::Serves),
        (0_u8..2, prop::option::of(0_u8..2))
            .prop_map(|(name, parent)| Happening::Queue { name, parent }),
        Just(Happening::Relist),
    ]
}

struct Drill {
    world: World,
    version: u64,
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
                            "labels": {"stokehold.dev/job": job_name(job), "stokehold.dev/attempt": attempt.to_string()}},
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
                let mut told =
                    super::tests::job(&job, 0, "standard", "2026-01-01T00:00:00Z", status);
                told["metadata"]["resourceVersion"] = json!(version);
                tell::<TrainJob>(&mut self.world, told);
            }
            Happening::JobGone { name } => {
                self.gone::<TrainJob>("ns", &job_name(name));
            }
            Happening::Looks { workers, gib } => {
                while let Some(key) = self.world.next_unseen() {
                    let job = self.world.jobs.get(&key).expect("it").clone();
                    let ask = asks(workers.into(), gib.into()).filter(|_| workers > 0);
                    self.world.ask(&job, ask).expect("as it was");
                }
            }
            Happening::Serves => drop(self.world.serve(now())),
            Happening::Queue { name, parent } => {
                let parent = parent.map(|parent| format!("q{parent}"));
                let mut told = queue(&format!("q{name}"), 0, parent.as_deref(), 0);
                told["metadata"]["resourceVersion"] = json!(version);
                tell::<Queue>(&mut self.world, told);
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
        let aside = world.jobs.iter().filter_map(|(key, _)| {
            let Room::Given { grant, .. } = world.room_of(key) else {
                return None;
            };
            Some((grant.plan.nodes.clone(), grant.plan.each(&grant.ask.gang)))
        });
        let mut taken: Vec<(String, Resources)> = pods
            .values()
            .map(|share| (share.node.clone(), share.amount.clone()))
            .collect();
        for (nodes, each) in aside {
            taken.extend(nodes.into_iter().map(|node| (node, each.clone())));
        }
        for (job, promise) in on_record {
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
        assert_eq!(world.snapshot(), cluster::snapshot(nodes, taken));

        let addresses: BTreeMap<String, String> = world
            .nodes
            .iter()
            .filter_map(|(key, node)| Some((key.name.clone(), cluster::address(node)?.to_owned())))
            .collect();
        assert_eq!(*world.addresses, addresses);
        let leased: BTreeMap<Key, RangeInclusive<u16>> = world
            .jobs
            .iter()
            .filter_map(|(key, job)| {
                let given = world.rooms.given(key).and_then(|grant| {
                    let workers = grant.plan.nodes.len();
                    Some(lease(job, grant.port?, workers))
                });
                Some((key.clone(), given.or_else(|| lease_of(job))?))
            })
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
        let wants = |job: &TrainJob| !job.is_finished() && live_attempt(job).is_none();
        let wanting = world.jobs.iter().filter(|(_, job)| wants(job));
        let wanting: BTreeSet<&Key> = wanting.map(|(key, _)| key).collect();
        assert_eq!(world.rooms.wanting().collect::<BTreeSet<_>>(), wanting);
        self.check_scheduler();
    }

    /// A scheduler that is told everything at once says of each queue what this one says.
    fn check_scheduler(&self) {
        let world = &self.world;
        let mut anew = World::new(config());
        for (_, queue) in world.queues.iter() {
            anew.watched(Event::Apply(queue.as_ref().clone()));
        }
        for (_, node) in world.nodes.iter() {
            anew.watched(Event::Apply(node.as_ref().clone()));
        }
        for (key, job) in world.jobs.iter() {
            anew.watched(Event::Apply(job.as_ref().clone()));
            if let Some(ask) = world.rooms.ask_of(key) {
                let _ = anew.ask(&anew.jobs.get(key).expect("it").clone(), Some(ask.clone()));
            }
        }
        let standings = |world: &World| {
            let standings = world.scheduler().standings();
            let counted = standings.into_iter();
            let counted = counted.map(|(name, it)| (name, it.waiting, it.fault));
            counted.collect::<Vec<_>>()
        };
        let in_memory = |world: &World| {
            let given = world.jobs.iter().filter(|(key, _)| {
                let room = world.room_of(key);
                matches!(room, Room::Given { .. })
            });
            u32::try_from(given.count()).expect("a few")
        };
        let mut expected = standings(&anew);
        expected[0].1 -= in_memory(world);
        assert_eq!(standings(world), expected);
        // Who has an attempt, or workers left of one.
        let alive = |job: &str, attempt: Option<u32>| {
            world.workers_of(&key(job)).any(|pod| {
                let node = pod
                    .node()
                    .and_then(|node| world.nodes.get(&Key::new("", node)));
                let is_ready = node.is_some_and(|node| cluster::is_ready(node));
                let is_of_it = attempt.is_none() || pod.metadata.attempt == attempt;
                !pod.is_finished() && is_ready && is_of_it
            })
        };
        for name in ["j0", "j1", "j2"] {
            let holds = world.rooms.holds(&key(name));
            match world.jobs.get(&key(name)) {
                None => assert!(!holds || alive(name, None), "{name} lingers"),
                Some(_) if world.rooms.has_asked(&key(name)) => assert!(!holds),
                Some(job) => {
                    let status = job.status.as_ref();
                    let attempt = status.and_then(|status| status.current_attempt());
                    let has = attempt.is_some_and(|attempt| {
                        attempt.outcome.is_none() || alive(name, Some(attempt.number))
                    });
                    assert_eq!(holds, has, "{name}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_kept_up_is_what_would_be_made_anew(
        happenings in prop::collection::vec(any_happening(), 0..60),
    ) {
        let mut drill = Drill { world: World::new(config()), version: 0 };
        for happening in happenings {
            drill.happen(happening);
            drill.check();
        }
    }
}
