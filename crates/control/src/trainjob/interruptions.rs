//! Nodes that go away under a job: it saves its work while there is time, goes on elsewhere, and nothing of it counts as a failure.

use serde_json::{Value, json};
use stoke_api::TrainJobStatus;
use stoke_api::trainjob::{Attempt, Outcome, Phase};

use super::fixtures::{Stage, job, node, said};

const SPOT: &str = "aws-node-termination-handler/spot-itn";

fn saving(more: Value) -> Value {
    let mut spec = json!({"command": ["train"], "workers": 2, "gpus": 1, "checkpoint": {"path": "/ckpt", "size": "1Gi"}});
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    spec
}

fn status(stage: &Stage) -> TrainJobStatus {
    stage.jobs["j"].status.clone().unwrap_or_default()
}

fn latest(stage: &Stage) -> Attempt {
    status(stage).attempts.pop().expect("an attempt")
}

/// Starts the next attempt, and lets its workers run for a while.
fn run(stage: &mut Stage) {
    stage.turn("j");
    let attempt = latest(stage);
    for rank in 0..attempt.nodes.len() {
        stage.run_pod(&format!("j-{}-{rank}", attempt.number));
    }
    stage.turn("j");
    assert_eq!(status(stage).phase, Phase::Running);
    stage.pass(100);
}

/// Two nodes of two GPUs, and a job on one of them.
fn stage(spec: Value) -> (Stage, String) {
    let mut stage = Stage::new([job(spec)], [node("n1", 2), node("n2", 2)]);
    run(&mut stage);
    let nodes = latest(&stage).nodes;
    assert_eq!(nodes[0], nodes[1], "near each other");
    (stage, nodes[0].clone())
}

fn taint(stage: &mut Stage, node: &str, key: &str) {
    let node = stage.nodes.get_mut(node).expect("the node");
    let taint = serde_json::from_value(json!({"key": key, "effect": "NoSchedule"}));
    let taints = node.spec.get_or_insert_default();
    taints.taints = Some(vec![taint.expect("a taint")]);
}

/// The node controller has heard nothing of it for long.
fn silence(stage: &mut Stage, node: &str) {
    let node = stage.nodes.get_mut(node).expect("the node");
    let status = node.status.as_mut().expect("a status");
    status.conditions.as_mut().expect("conditions")[0].status = "Unknown".to_owned();
}

fn make_spot(stage: &mut Stage) {
    for node in stage.nodes.values_mut() {
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert("karpenter.sh/capacity-type".into(), "spot".into());
    }
}

#[test]
fn a_gang_saves_its_work_before_its_node_goes_and_moves() {
    let (mut stage, node) = stage(saving(json!({})));
    taint(&mut stage, &node, SPOT);
    let asked = stage.turn("j").replace(&node, "NODE");
    insta::assert_snapshot!(asked, @r"
    Running (NodeLeaving) 2/2 failures 0: node NODE goes away, says AWS: its spot machine is reclaimed (aws-node-termination-handler/spot-itn); it was asked for a checkpoint and then moves, by 2027-01-15T08:03:10Z at the latest
      ask pod j-1-0 for a checkpoint
      ask pod j-1-1 for a checkpoint
      again in 90s
    ");
    let leaving = latest(&stage).leaving.expect("it is on record");
    assert_eq!(
        leaving.asked_at.expect("it").0,
        stage.now,
        "by our own clock"
    );

    stage.pass(20);
    insta::assert_snapshot!(stage.turn("j").replace(&node, "NODE"), @r"
    Running (NodeLeaving) 2/2 failures 0: node NODE goes away, says AWS: its spot machine is reclaimed (aws-node-termination-handler/spot-itn); it was asked for a checkpoint and then moves, by 2027-01-15T08:03:10Z at the latest
      again in 70s
    ");
    stage.save("j-1-0");
    stage.save("j-1-1");
    stage.pass(2);
    insta::assert_snapshot!(stage.turn("j").replace(&node, "NODE"), @r"
    Restarting (NodeLeaving) 0/2 failures 0: node NODE goes away, says AWS: its spot machine is reclaimed (aws-node-termination-handler/spot-itn); it goes on elsewhere from the checkpoint that it has just written
      delete pod j-1-0
      delete pod j-1-1
      tell NodeLeaving: node NODE goes away, says AWS: its spot machine is reclaimed (aws-node-termination-handler/spot-itn); it goes on elsewhere from the checkpoint that it has just written
    ");
    let attempt = latest(&stage);
    assert_eq!(attempt.outcome, Some(Outcome::Interrupted));
    assert_eq!(status(&stage).failures, 0);

    stage.pass(60);
    stage.bury();
    run(&mut stage);
    let attempt = latest(&stage);
    assert_eq!(attempt.number, 2);
    assert!(attempt.nodes.iter().all(|it| *it != node), "elsewhere");
    assert_eq!(attempt.leaving, None);
}

#[test]
fn who_does_not_save_in_time_moves_all_the_same() {
    for (spec, waits) in [
        (saving(json!({})), 90),
        (saving(json!({"checkpoint": null})), 0),
    ] {
        let (mut stage, node) = stage(spec);
        taint(&mut stage, &node, SPOT);
        if waits > 0 {
            stage.turn("j");
            assert_eq!(latest(&stage).outcome, None);
            stage.pass(waits - 1);
            stage.turn("j");
            assert_eq!(latest(&stage).outcome, None);
            stage.pass(1);
        }
        stage.turn("j");
        let attempt = latest(&stage);
        assert_eq!(attempt.outcome, Some(Outcome::Interrupted));
        let exit = attempt.exit.expect("why");
        assert_eq!(
            (exit.reason.as_str(), exit.exit_code),
            ("NodeLeaving", None)
        );
        let why = "says AWS: its spot machine is reclaimed (aws-node-termination-handler/spot-itn)";
        assert!(exit.message.contains(why), "{}", exit.message);
        assert_eq!(status(&stage).failures, 0);
        assert_eq!(
            status(&stage).next_attempt_at,
            None,
            "it has done nothing wrong"
        );
    }
}

#[test]
fn what_is_saved_is_known_whatever_the_clocks_of_nodes_say() {
    for ahead in [-3600, -5, 5, 3600] {
        let (mut stage, node) = stage(saving(json!({})));
        let save = |stage: &mut Stage, ahead: i64| {
            stage.save_by("j-1-0", ahead);
            stage.save_by("j-1-1", ahead);
        };
        save(&mut stage, ahead);
        stage.turn("j");
        stage.pass(1);
        taint(&mut stage, &node, SPOT);
        stage.turn("j");
        stage.pass(1);
        stage.turn("j");
        let outcome = latest(&stage).outcome;
        assert_eq!(outcome, None, "{ahead}: it has saved nothing since");
        stage.pass(20);
        save(&mut stage, ahead);
        stage.pass(2);
        stage.turn("j");
        let outcome = latest(&stage).outcome;
        assert_eq!(outcome, Some(Outcome::Interrupted), "{ahead}: it has");
        let message = status(&stage).message;
        assert!(message.contains("it has just written"), "{message}");

        stage.pass(60);
        stage.bury();
        run(&mut stage);
        stage.save("j-2-0");
        stage.turn("j");
        let known = status(&stage).last_checkpoint.map(|time| time.0);
        assert_eq!(known, Some(stage.now), "{ahead}: of the attempt that is on");
    }
}

#[test]
fn nothing_that_is_said_later_gives_a_gang_more_time() {
    let two = json!({"gpus": 2});
    let mut stage = Stage::new([job(saving(two))], [node("n1", 2), node("n2", 2)]);
    run(&mut stage);
    let nodes = latest(&stage).nodes;
    assert_ne!(nodes[0], nodes[1]);
    let until = |stage: &Stage| latest(stage).leaving.and_then(|it| it.until);
    let autoscaler = "ToBeDeletedByClusterAutoscaler";
    // 90 s, then 60 s of another node when 20 s are left, then 15 s of that node when 16 s are left.
    taint(&mut stage, &nodes[1], SPOT);
    stage.turn("j");
    let first = until(&stage).expect("a time");
    let asked = latest(&stage).leaving.expect("it").asked_at;
    stage.pass(70);
    taint(&mut stage, &nodes[0], autoscaler);
    let said = stage.turn("j");
    assert_eq!(until(&stage), Some(first.clone()), "{said}");
    assert!(!said.contains("ask pod"), "it was asked: {said}");
    stage.pass(4);
    taint(
        &mut stage,
        &nodes[0],
        "cloud.google.com/impending-node-termination",
    );
    stage.turn("j");
    let sooner = until(&stage).expect("a time");
    assert_eq!(first.0.duration_since(sooner.0).as_secs(), 1);
    assert_eq!(latest(&stage).leaving.expect("it").asked_at, asked);
    stage.pass(15);
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, Some(Outcome::Interrupted));
}

#[test]
fn who_was_put_on_a_node_that_goes_waits_before_it_tries_again() {
    let nodes = [node("n1", 2), node("n2", 2)];
    let mut stage = Stage::new([job(saving(json!({})))], nodes);
    let mut waits = Vec::new();
    for _ in 0..2 {
        stage.turn("j");
        let attempt = latest(&stage);
        let node = attempt.nodes[0].clone();
        taint(&mut stage, &node, SPOT);
        stage.turn("j");
        assert_eq!(latest(&stage).outcome, Some(Outcome::Interrupted));
        assert_eq!(latest(&stage).avoid, std::slice::from_ref(&node));
        let next = status(&stage).next_attempt_at.expect("a wait");
        waits.push(next.0.duration_since(stage.now));
        stage.nodes.get_mut(&node).expect("it").spec = None;
        stage.pass(300);
        stage.bury();
    }
    assert!(waits[0] > jiff::SignedDuration::ZERO, "{waits:?}");
    assert!(waits[1] > waits[0], "{waits:?}");
}

#[test]
fn who_is_moved_again_and_again_without_saving_waits_in_between() {
    let nodes = [node("n1", 2), node("n2", 2)];
    let mut stage = Stage::new([job(saving(json!({})))], nodes);
    for waits in [false, true] {
        run(&mut stage);
        let node = latest(&stage).nodes[0].clone();
        taint(&mut stage, &node, SPOT);
        stage.turn("j");
        stage.pass(100);
        stage.turn("j");
        assert_eq!(latest(&stage).outcome, Some(Outcome::Interrupted));
        assert_eq!(status(&stage).next_attempt_at.is_some(), waits);
        stage.nodes.get_mut(&node).expect("it").spec = None;
        stage.pass(300);
        stage.bury();
    }
}

#[test]
fn a_worker_that_its_own_node_ends_is_judged_by_its_end() {
    for (reason, is_notice) in [
        ("EvictionByEvictionAPI", true),
        ("TerminationByKubelet", false),
    ] {
        let (mut stage, _) = stage(saving(json!({})));
        let status = stage
            .pods
            .get_mut("j-1-0")
            .expect("the pod")
            .status
            .as_mut();
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason});
        let condition = serde_json::from_value(condition).expect("a condition");
        let conditions = &mut status.expect("a status").conditions;
        conditions.get_or_insert_default().push(condition);
        stage.turn("j");
        assert_eq!(latest(&stage).leaving.is_some(), is_notice, "{reason}");
    }
}

#[test]
fn a_node_that_may_go_has_its_gangs_save_and_run_on() {
    let (mut stage, node) = stage(saving(json!({})));
    let known = stage.nodes.get_mut(&node).expect("the node");
    known.spec.get_or_insert_default().unschedulable = Some(true);
    let asked = stage.turn("j");
    assert!(asked.contains("ask pod j-1-1 for a checkpoint"), "{asked}");
    stage.save("j-1-0");
    stage.save("j-1-1");
    stage.pass(1000);
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, None);
    assert_eq!(status(&stage).reason, "WorkersRunning");
    // Uncordoned and cordoned again, soon after a checkpoint.
    stage.save("j-1-0");
    for cordoned in [false, true] {
        let known = stage.nodes.get_mut(&node).expect("the node");
        known.spec.get_or_insert_default().unschedulable = Some(cordoned);
        stage.turn("j");
        assert_eq!(latest(&stage).leaving, None, "it need not save again");
    }
}

#[test]
fn a_notice_that_is_taken_back_is_forgotten() {
    let (mut stage, node) = stage(saving(json!({})));
    taint(&mut stage, &node, "ToBeDeletedByClusterAutoscaler");
    stage.turn("j");
    assert_eq!(status(&stage).reason, "NodeLeaving");
    stage.nodes.get_mut(&node).expect("it").spec = None;
    stage.turn("j");
    assert_eq!(latest(&stage).leaving, None);
    assert_eq!(status(&stage).reason, "WorkersRunning");
    stage.pass(1000);
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, None);
}

#[test]
fn what_falls_with_its_node_has_not_failed() {
    let (mut stage, node) = stage(saving(json!({"retries": 0})));
    taint(&mut stage, &node, SPOT);
    stage.turn("j");
    stage.pass(5);
    stage.end_pod("j-1-1", 1, "Error");
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, Some(Outcome::Interrupted));
    assert_eq!(status(&stage).failures, 0);
    // Without a notice it is what it is.
    let (mut stage, _) = self::stage(saving(json!({"retries": 0})));
    stage.end_pod("j-1-1", 1, "Error");
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, Some(Outcome::Failed));
}

#[test]
fn a_silent_node_is_lost_and_its_gang_begins_anew_elsewhere() {
    let (mut stage, node) = stage(saving(json!({})));
    silence(&mut stage, &node);
    let said = stage.turn("j");
    assert!(said.contains("again in 10s"), "{said}");
    stage.pass(9);
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, None, "others may follow it");
    stage.pass(1);
    stage.turn("j");
    let attempt = latest(&stage);
    assert_eq!(attempt.outcome, Some(Outcome::Interrupted));
    assert_eq!(attempt.exit.expect("why").reason, "NodeLost");
    // Its workers cannot be told to end, and are not waited for.
    stage.pass(2);
    run(&mut stage);
    let attempt = latest(&stage);
    assert_eq!(attempt.number, 2);
    assert!(attempt.nodes.iter().all(|it| *it != node));
}

#[test]
fn where_most_nodes_fall_silent_at_once_nobody_is_moved() {
    let nodes = ["n1", "n2", "n3"].map(|name| super::fixtures::node(name, 2));
    let mut stage = Stage::new([job(saving(json!({})))], nodes);
    run(&mut stage);
    for name in ["n1", "n2", "n3"] {
        silence(&mut stage, name);
    }
    for _ in 0..2 {
        stage.turn("j");
        assert_eq!(latest(&stage).outcome, None, "it is not the nodes");
        stage.pass(10);
    }
    let own = latest(&stage).nodes[0].clone();
    for name in ["n1", "n2", "n3"] {
        if *name != *own {
            stage
                .nodes
                .insert(name.to_owned(), super::fixtures::node(name, 2));
        }
    }
    stage.turn("j");
    stage.pass(10);
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, Some(Outcome::Interrupted));
}

/// They are found silent one after the other, and it is not said of the first that it is lost.
#[test]
fn who_is_on_the_first_of_many_nodes_that_fall_silent_is_not_moved_either() {
    let nodes = ["n1", "n2", "n3"].map(|name| super::fixtures::node(name, 2));
    for saves in [true, false] {
        let spec = if saves {
            json!({})
        } else {
            json!({"checkpoint": null})
        };
        let mut stage = Stage::new([job(saving(spec))], nodes.clone());
        run(&mut stage);
        let first = latest(&stage).nodes[0].clone();
        silence(&mut stage, &first);
        stage.turn("j");
        assert_eq!(latest(&stage).outcome, None);
        stage.pass(4);
        for name in ["n1", "n2", "n3"] {
            silence(&mut stage, name);
        }
        stage.pass(6);
        stage.turn("j");
        assert_eq!(latest(&stage).outcome, None);
        assert_eq!(latest(&stage).leaving, None);
    }
}

#[test]
fn a_machine_that_is_said_to_be_off_is_lost_at_once_whatever_is_silent() {
    let nodes = ["n1", "n2", "n3"].map(|name| super::fixtures::node(name, 2));
    let mut stage = Stage::new([job(saving(json!({})))], nodes);
    run(&mut stage);
    for name in ["n1", "n2", "n3"] {
        silence(&mut stage, name);
    }
    let own = latest(&stage).nodes[0].clone();
    taint(&mut stage, &own, "node.kubernetes.io/out-of-service");
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, Some(Outcome::Interrupted));
}

#[test]
fn after_so_many_interruptions_machines_that_can_be_taken_away_are_left_alone() {
    let spec = saving(json!({"spotInterruptions": 2}));
    let mut stage = Stage::new([job(spec)], [node("n1", 2), node("n2", 2)]);
    make_spot(&mut stage);
    for round in 1..=2 {
        run(&mut stage);
        assert!(latest(&stage).spot);
        let node = latest(&stage).nodes[0].clone();
        // Once with a notice, and once the machine is simply gone.
        if round == 1 {
            taint(&mut stage, &node, SPOT);
            stage.turn("j");
            stage.pass(90);
        } else {
            stage.nodes.remove(&node);
        }
        stage.turn("j");
        assert_eq!(latest(&stage).outcome, Some(Outcome::Interrupted));
        assert_eq!(status(&stage).spot_interruptions, round);
        let spot = super::fixtures::node(&node, 2);
        stage.pass(100);
        stage.bury();
        stage.nodes.insert(node, spot);
        make_spot(&mut stage);
    }
    insta::assert_snapshot!(status(&stage).message, @"attempt 3 starts at 2027-01-15T08:06:43Z, 0 of 3 retries used; the last: rank 0 was lost with its node n1; it lost machines that can be taken away 2 times, as often as spotInterruptions lets it, and now uses others only");
    stage.pass(100);
    let waits = stage.turn("j");
    assert!(waits.contains("of the wrong kind (spot)"), "{waits}");
    stage.nodes.insert("n3".to_owned(), node("n3", 2));
    run(&mut stage);
    assert_eq!(latest(&stage).nodes, ["n3", "n3"]);
    assert!(!latest(&stage).spot);
}

type Happens<'a> = &'a dyn Fn(&mut Stage);

#[test]
fn only_a_machine_that_was_taken_away_counts_as_an_interruption_of_it() {
    let fenced = i32::from(stoke_api::contract::checkpoints::EXIT_FENCED);
    let evict = |stage: &mut Stage, reason: &str| {
        stage.end_pod("j-1-0", 137, "Error");
        let status = stage
            .pods
            .get_mut("j-1-0")
            .and_then(|it| it.status.as_mut());
        status.expect("a status").reason = Some(reason.to_owned());
    };
    let cases: [(&str, u32, Happens<'_>); 6] = [
        ("a person deletes it", 0, &|stage| {
            stage.delete_pod("j-1-0", None);
        }),
        ("another attempt writes", 0, &|stage| {
            stage.end_pod("j-1-0", fenced, "Error");
        }),
        ("its node is full", 0, &|stage| evict(stage, "Evicted")),
        ("others are more important", 0, &|stage| {
            evict(stage, "Preempting");
        }),
        ("its machine shuts down", 1, &|stage| {
            evict(stage, "Terminated");
        }),
        ("its machine is gone", 1, &|stage| stage.nodes.clear()),
    ];
    for (case, counted, happens) in cases {
        for has_run in [true, false] {
            let mut stage = Stage::new([job(saving(json!({"workers": 1})))], [node("n1", 2)]);
            make_spot(&mut stage);
            if has_run {
                run(&mut stage);
            } else {
                stage.turn("j");
            }
            happens(&mut stage);
            stage.turn("j");
            let outcome = latest(&stage).outcome;
            assert_eq!(outcome, Some(Outcome::Interrupted), "{case}");
            let told = status(&stage).spot_interruptions;
            assert_eq!(told, counted, "{case}, {has_run}");
        }
    }
}

/// A job that goes after others, and writes checkpoints.
fn experiment() -> Stage {
    let mut experiment = job(saving(json!({"priority": "experiment"})));
    experiment.metadata.creation_timestamp = Some(super::fixtures::at(-60).into());
    let mut stage = Stage::new([experiment], [node("n1", 2)]);
    run(&mut stage);
    stage.save("j-1-0");
    stage.turn("j");
    stage.pass(60);
    stage
}

/// A job that goes before the other wants all there is.
fn ask_for_its_room(stage: &mut Stage) {
    let spec = json!({"command": ["train"], "workers": 2, "gpus": 1, "priority": "production"});
    let mut production = job(spec);
    production.metadata.name = Some("p".to_owned());
    production.metadata.uid = Some("uid-p".to_owned());
    production.metadata.creation_timestamp = Some(super::fixtures::at(-60).into());
    stage.jobs.insert("p".to_owned(), production);
    let waits = stage.turn("p");
    assert!(
        waits.starts_with("Queued (WaitingForPreemption)"),
        "{waits}"
    );
}

#[test]
fn who_gives_way_saves_first_where_that_can_be_seen() {
    let mut stage = experiment();
    ask_for_its_room(&mut stage);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Running (Preempted) 2/2 failures 0: it was asked for a checkpoint and then gives room to default/p, by 2027-01-15T08:03:10Z at the latest: it is more important
      ask pod j-1-0 for a checkpoint
      ask pod j-1-1 for a checkpoint
      again in 30s
    ");
    stage.pass(10);
    let waiting = stage.plan("j").expect("a plan");
    assert!(waiting.actions.is_empty(), "{}", said(&waiting));
    // Another leader finds the same, and does not ask again.
    stage.turn("p");
    stage.turn("j");
    for pod in ["j-1-0", "j-1-1"] {
        stage.save(pod);
    }
    stage.pass(2);
    stage.turn("j");
    assert_eq!(latest(&stage).outcome, Some(Outcome::Preempted));

    // Nobody asks any more: it runs on.
    let mut stage = experiment();
    ask_for_its_room(&mut stage);
    stage.turn("j");
    assert!(latest(&stage).preemption.is_some());
    stage.jobs.remove("p");
    stage.turn("j");
    assert_eq!(latest(&stage).preemption, None);
    assert_eq!(status(&stage).reason, "WorkersRunning");
}

#[test]
fn a_gang_of_which_nobody_does_anything_has_failed() {
    let idle = |stage: &mut Stage, pod: &str| {
        let pod = stage.pods.get_mut(pod).expect("the pod");
        let annotations = pod.metadata.annotations.get_or_insert_default();
        let usage = json!({"memoryBytes": 1, "idle": "it did nothing for 30m: no CPU"});
        annotations.insert("stokehold.dev/usage".to_owned(), usage.to_string());
    };
    for (spec, hangs) in [
        (saving(json!({"hungAfter": "30m", "retries": 1})), true),
        (saving(json!({"retries": 1})), false),
    ] {
        let (mut stage, _) = stage(spec);
        let pod = &stage.pods["j-1-0"].metadata.annotations;
        let told = pod
            .as_ref()
            .and_then(|it| it.get("stokehold.dev/hung-after"));
        assert_eq!(told.map(String::as_str), hangs.then_some("1800"));
        idle(&mut stage, "j-1-0");
        stage.turn("j");
        assert_eq!(latest(&stage).outcome, None, "the other works");
        idle(&mut stage, "j-1-1");
        stage.turn("j");
        let ended = hangs.then_some(Outcome::Failed);
        assert_eq!(latest(&stage).outcome, ended);
        assert_eq!(status(&stage).failures, u32::from(hangs));
        if hangs {
            assert_eq!(status(&stage).reason, "Hung");
            let said = latest(&stage).exit.expect("why").message;
            insta::assert_snapshot!(said, @"it hangs: of rank 0 its node says that it did nothing for 30m: no CPU; look at what it waits for (stoke logs), or allow it more with hungAfter");
        }
    }
}
