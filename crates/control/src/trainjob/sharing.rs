//! Jobs that want the same room: who gives way to whom, who goes on with fewer workers, and for whom nodes are waited for.

use serde_json::{Value, json};
use stoke_api::trainjob::{Attempt, Outcome, Phase, TrainJobStatus};
use stoke_api::{Queue, TrainJob};

use super::fixtures::{Stage, job, node};
use crate::cluster;

fn named(name: &str, spec: Value) -> TrainJob {
    let mut job = job(spec);
    job.metadata.name = Some(name.to_owned());
    job.metadata.uid = Some(format!("uid-{name}"));
    job.metadata.creation_timestamp = Some(super::fixtures::at(-60).into());
    job
}

fn queue(name: &str, guaranteed: u32) -> Queue {
    serde_json::from_value(json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue",
        "metadata": {"name": name, "uid": name}, "spec": {"guaranteed": {"any": guaranteed}},
    }))
    .expect("a queue")
}

fn status(stage: &Stage, job: &str) -> TrainJobStatus {
    stage.jobs[job].status.clone().unwrap_or_default()
}

fn attempt(stage: &Stage, job: &str) -> Attempt {
    let status = status(stage, job);
    status.current_attempt().expect("an attempt").clone()
}

fn run(stage: &mut Stage, job: &str) {
    let pods: Vec<String> = stage.pods.keys().cloned().collect();
    for pod in pods
        .iter()
        .filter(|pod| pod.starts_with(&format!("{job}-")))
    {
        stage.run_pod(pod);
    }
    stage.turn(job);
    assert_eq!(status(stage, job).phase, Phase::Running);
    stage.pass(1);
}

#[test]
fn an_experiment_gives_way_to_production_and_goes_on_when_it_can() {
    let spec = |priority: &str| json!({"command": ["train"], "workers": 2, "gpus": 1, "priority": priority});
    let mut experiment = spec("experiment");
    experiment["checkpoint"] = json!({"path": "/ckpt", "size": "1Gi"});
    let mut stage = Stage::new([named("e", experiment)], [node("n1", 2)]);
    stage.turn("e");
    run(&mut stage, "e");
    stage.pass(100);
    stage.save("e-1-0");
    stage.turn("e");
    let saved = status(&stage, "e").last_checkpoint.expect("a checkpoint");
    assert_eq!(saved.0, stage.now);
    stage.pass(3);

    stage
        .jobs
        .insert("p".to_owned(), named("p", spec("production")));
    insta::assert_snapshot!(stage.turn("p"), @r"
    Queued (WaitingForPreemption) 0/2 failures 0: default/e makes room for it
      tell WaitingForPreemption: default/e makes room for it
      again in 60s
    ");
    // What is asked of the other is on record before its workers are told, and its workers are told once.
    let asked = stage.plan("e").expect("a plan");
    stage.carry_out("e", &asked, 1);
    assert_eq!(attempt(&stage, "e").outcome, Some(Outcome::Preempted));
    assert!(
        stage
            .pods
            .values()
            .all(|pod| pod.metadata.deletion_timestamp.is_none())
    );
    insta::assert_snapshot!(super::fixtures::said(&asked), @r"
    Restarting (Preempted) 0/2 failures 0: it gives its room to default/p: it is more important; its workers stop by 2027-01-15T08:02:44Z, and it goes on from its last checkpoint when there is room again
      delete pod e-1-0
      delete pod e-1-1
      tell Preempted: it gives its room to default/p: it is more important; its workers stop by 2027-01-15T08:02:44Z, and it goes on from its last checkpoint when there is room again
    ");
    insta::assert_snapshot!(stage.turn("e"), @r"
    Restarting (Preempted) 0/2 failures 0: it gives its room to default/p: it is more important; its workers stop by 2027-01-15T08:02:44Z, and it goes on from its last checkpoint when there is room again
      delete pod e-1-0
      delete pod e-1-1
    ");
    let preemption = attempt(&stage, "e").preemption.expect("it");
    let (asked_at, until) = (
        preemption.asked_at.expect("it"),
        preemption.until.expect("it"),
    );
    assert_eq!(until.0.duration_since(asked_at.0).as_secs(), 60);
    assert!(stage.turn("p").starts_with("Queued (WaitingForPreemption)"));

    stage.pass(60);
    stage.bury();
    insta::assert_snapshot!(stage.turn("e"), @r"
    Queued (InsufficientCapacity) 0/2 failures 0: no room for 2 workers with 1 GPU, 3.6 CPUs and 29 GiB of memory each; 1 node: 1 lacks free GPUs; it starts when enough of the work that runs has ended
      again in 60s
    ");
    assert!(stage.turn("p").starts_with("Starting"));
    run(&mut stage, "p");
    assert_eq!(status(&stage, "e").failures, 0);
    for pod in ["p-1-0", "p-1-1"] {
        stage.end_pod(pod, 0, "Completed");
    }
    stage.turn("p");
    stage.turn("e");
    assert_eq!(
        (status(&stage, "e").attempt, status(&stage, "e").phase),
        (2, Phase::Starting)
    );
}

#[test]
fn a_worker_that_ends_well_after_it_was_asked_to_has_not_finished_the_job() {
    let mut stage = Stage::new(
        [named(
            "e",
            json!({"command": ["train"], "gpus": 2, "priority": "experiment"}),
        )],
        [node("n1", 2)],
    );
    stage.turn("e");
    run(&mut stage, "e");
    let production = json!({"command": ["train"], "gpus": 2, "priority": "production"});
    stage.jobs.insert("p".to_owned(), named("p", production));
    stage.turn("p");
    stage.turn("e");
    stage.end_pod("e-1-0", 0, "Completed");
    stage.turn("e");
    assert_eq!(status(&stage, "e").phase, Phase::Queued);
    stage.turn("p");
    assert_eq!(status(&stage, "p").phase, Phase::Starting);
}

#[test]
fn what_was_borrowed_is_given_back() {
    let spec = |queue: &str| json!({"command": ["train"], "gpus": 1, "queue": queue});
    let borrowers = ["b1", "b2"].map(|name| named(name, spec("b")));
    let mut stage = Stage::new(borrowers, [node("n1", 2)]);
    stage.queues = vec![queue("a", 1), queue("b", 1)];
    for name in ["b1", "b2"] {
        stage.turn(name);
        run(&mut stage, name);
        stage.pass(10);
    }
    stage.jobs.insert("a1".to_owned(), named("a1", spec("a")));
    assert!(
        stage
            .turn("a1")
            .starts_with("Queued (WaitingForPreemption)")
    );
    stage.turn("b1");
    stage.turn("b2");
    let outcomes = ["b1", "b2"].map(|name| attempt(&stage, name).outcome);
    assert_eq!(
        outcomes,
        [None, Some(Outcome::Preempted)],
        "the one that lost least"
    );
    insta::assert_snapshot!(attempt(&stage, "b2").preemption.expect("it").why, @"queue a takes back what it is guaranteed");
    stage.pass(30);
    stage.bury();
    stage.turn("a1");
    assert_eq!(status(&stage, "a1").phase, Phase::Starting);
    insta::assert_snapshot!(stage.turn("b2"), @r"
    Queued (InsufficientCapacity) 0/1 failures 0: no room for a worker with 1 GPU, 3.6 CPUs and 29 GiB of memory; 1 node: 1 lacks free GPUs; it starts when enough of the work that runs has ended
      again in 60s
    ");
}

#[test]
fn a_queue_that_is_not_there_or_cannot_be_used_is_told_on_its_jobs() {
    let spec = |queue: &str| json!({"command": ["train"], "queue": queue});
    let jobs = ["none", "loop"].map(|name| named(name, spec(name)));
    let mut stage = Stage::new(jobs, [node("n1", 2)]);
    let mut circle = queue("loop", 0);
    circle.spec.parent = Some("loop".to_owned());
    stage.queues = vec![circle];
    insta::assert_snapshot!(stage.turn("none"), @r"
    Queued (QueueNotFound) 0/1 failures 0: queue none does not exist; create it, or change spec.queue
      tell QueueNotFound: queue none does not exist; create it, or change spec.queue
      again in 60s
    ");
    insta::assert_snapshot!(stage.turn("loop"), @r"
    Queued (QueueUnusable) 0/1 failures 0: queue loop cannot be used: it is above itself: loop in loop; change the parent of one of them
      tell QueueUnusable: queue loop cannot be used: it is above itself: loop in loop; change the parent of one of them
      again in 60s
    ");
    stage.queues = vec![queue("none", 0)];
    assert!(stage.turn("none").starts_with("Starting"));
}

fn elastic(min: u32, max: u32) -> Value {
    json!({"command": ["train"], "workers": max, "elastic": {"min": min, "max": max}, "gpus": 1, "framework": "torch",
        "checkpoint": {"path": "/ckpt", "size": "1Gi"}})
}

#[test]
fn an_elastic_gang_starts_small_and_gives_up_what_others_have_a_right_to() {
    let mut stage = Stage::new([named("g", elastic(1, 4))], [node("n1", 2)]);
    stage.queues = vec![queue("a", 1)];
    stage.turn("g");
    run(&mut stage, "g");
    assert_eq!(attempt(&stage, "g").nodes.len(), 2);
    let size = |pod: &str| {
        let spec = stage.pods[pod].spec.as_ref().expect("a spec");
        let env = spec.containers[0].env.iter().flatten();
        let mut sizes = env.filter(|variable| variable.name == "WORLD_SIZE");
        sizes.next().and_then(|variable| variable.value.clone())
    };
    assert_eq!(size("g-1-1").as_deref(), Some("2"), "as many as there are");
    let right = json!({"command": ["train"], "gpus": 1, "queue": "a"});
    stage.jobs.insert("r".to_owned(), named("r", right));
    stage.turn("r");
    insta::assert_snapshot!(stage.turn("g"), @r"
    Restarting (Resized) 0/1 failures 0: it goes on with 1 worker instead of 2, for default/r: queue a takes back what it is guaranteed
      delete pod g-1-0
      delete pod g-1-1
      tell Resized: it goes on with 1 worker instead of 2, for default/r: queue a takes back what it is guaranteed
    ");
    let (ended, next) = {
        let status = status(&stage, "g");
        (status.attempts[0].clone(), status.attempts[1].clone())
    };
    assert_eq!(ended.outcome, Some(Outcome::Resized));
    assert_eq!((next.nodes.len(), next.outcome), (1, None));
    stage.pass(60);
    stage.bury();
    assert!(stage.turn("r").starts_with("Starting"));
    insta::assert_snapshot!(stage.turn("g"), @r"
    Starting (StartingWorkers) 0/1 failures 0: attempt 2 on n1
      ensure claim g-checkpoint
      create pod g-2-0 on n1
      again in 540s
    ");
    assert_eq!(status(&stage, "g").failures, 0);
}

/// `g` runs with 2 of the 3 workers it would have, and there is a new node.
fn with_room_to_grow() -> Stage {
    let mut stage = Stage::new([named("g", elastic(1, 3))], [node("n1", 2)]);
    stage.turn("g");
    run(&mut stage, "g");
    stage.nodes.insert("n2".to_owned(), node("n2", 2));
    stage.pass(3600);
    stage.save("g-1-0");
    stage
}

#[test]
fn an_elastic_gang_of_which_a_worker_has_ended_well_does_not_grow() {
    let mut stage = with_room_to_grow();
    stage.end_pod("g-1-1", 0, "Completed");
    let told = stage.turn("g");
    assert!(!told.contains("Resized"), "{told}");
    assert_eq!(attempt(&stage, "g").nodes, ["n1", "n1"]);
}

#[test]
fn an_elastic_gang_that_is_about_to_move_does_not_grow_first() {
    let mut stage = with_room_to_grow();
    let taint = json!({"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"});
    let spec = serde_json::from_value(json!({"taints": [taint]})).expect("a spec");
    stage.nodes.get_mut("n1").expect("it").spec = Some(spec);
    let told = stage.turn("g");
    assert!(told.starts_with("Running (NodeLeaving)"), "{told}");
    let plan = stage.plan("g").expect("a plan");
    assert_eq!(plan.status.attempts.len(), 1, "it moves, and grows then");
    stage.pass(5);
    for pod in ["g-1-0", "g-1-1"] {
        stage.save(pod);
    }
    stage.pass(2);
    stage.turn("g");
    assert_eq!(attempt(&stage, "g").outcome, Some(Outcome::Interrupted));
}

#[test]
fn an_elastic_gang_grows_where_there_is_room() {
    let mut stage = with_room_to_grow();
    insta::assert_snapshot!(stage.turn("g"), @r"
    Restarting (Resized) 0/3 failures 0: it goes on with 3 workers instead of 2: there is room for more
      delete pod g-1-0
      delete pod g-1-1
      tell Resized: it goes on with 3 workers instead of 2: there is room for more
    ");
    assert_eq!(attempt(&stage, "g").nodes, ["n1", "n1", "n2"]);
    // Nobody else is given its room while it stops, nor when it has.
    let free = |stage: &Stage| {
        let nodes = stage.world().snapshot();
        ["n1", "n2"].map(|name| nodes.node(name).expect("it").free().gpus)
    };
    assert_eq!(free(&stage), [0, 1]);
    stage.pass(60);
    stage.bury();
    assert_eq!(free(&stage), [0, 1]);
    insta::assert_snapshot!(stage.turn("g"), @r"
    Starting (StartingWorkers) 0/3 failures 0: attempt 2 on n1, n2
      ensure claim g-checkpoint
      create pod g-2-0 on n1
      create pod g-2-1 on n1
      create pod g-2-2 on n2
      again in 540s
    ");
}

#[test]
fn an_elastic_gang_that_answers_is_asked_for_a_checkpoint_before_it_grows() {
    let mut stage = with_room_to_grow();
    // The checkpoint that is known is not of this moment.
    stage.pass(600);
    insta::assert_snapshot!(stage.turn("g"), @r"
    Running (WorkersRunning) 2/2 failures 0: all 2 workers run; there is room for more, and a checkpoint to go on from was asked for, by 2027-01-15T09:10:31Z
      ask pod g-1-0 for a checkpoint
      ask pod g-1-1 for a checkpoint
      again in 30s
    ");
    let asked = attempt(&stage, "g").growing.expect("it was asked");
    // Nobody has answered yet.
    stage.pass(5);
    stage.turn("g");
    assert_eq!(attempt(&stage, "g").growing, Some(asked.clone()));
    assert_eq!(attempt(&stage, "g").outcome, None);
    // It did in time, and goes on from that, whatever the clocks of its machines show.
    let mut answered = stage.clone();
    for pod in ["g-1-0", "g-1-1"] {
        answered.save_by(pod, -7200);
    }
    answered.pass(2);
    answered.turn("g");
    assert_eq!(attempt(&answered, "g").nodes, ["n1", "n1", "n2"]);
    // It did not: it runs on, as long as it would have without.
    stage.pass(60);
    stage.turn("g");
    assert_eq!(attempt(&stage, "g").nodes.len(), 2);
    assert_eq!(
        attempt(&stage, "g").growing,
        Some(asked),
        "it is not asked again soon"
    );
    stage.pass(1800);
    stage.turn("g");
    assert_eq!(attempt(&stage, "g").nodes.len(), 3);
}

#[test]
fn an_elastic_gang_that_never_saved_is_not_asked_before_it_grows() {
    let mut stage = Stage::new([named("g", elastic(1, 3))], [node("n1", 2)]);
    stage.turn("g");
    run(&mut stage, "g");
    stage.nodes.insert("n2".to_owned(), node("n2", 2));
    stage.pass(600);
    let told = stage.turn("g");
    assert!(!told.contains("checkpoint"), "{told}");
    assert_eq!(attempt(&stage, "g").growing, None);
}

#[test]
fn an_autoscaler_brings_no_spot_machines_to_a_job_that_lost_too_many() {
    for (lost, stays_off) in [(1, false), (2, true)] {
        let spec = json!({"image": "train", "command": ["train"], "gpus": 8, "gpuTypes": ["l4"],
            "memory": {"limit": "8Gi"}, "spotInterruptions": 2});
        let mut stage = Stage::new([named("g", spec)], [node("n1", 1)]);
        stage.config = crate::config::Config {
            autoscaling: Some(std::time::Duration::from_secs(900)),
            ..crate::config::Config::cluster()
        };
        stage.jobs.get_mut("g").expect("it").status = Some(TrainJobStatus {
            spot_interruptions: lost,
            ..TrainJobStatus::default()
        });
        let told = stage.turn("g");
        assert!(told.contains("create pod g-1-0 on no node"), "{told}");
        let spec = stage.pods["g-1-0"].spec.clone().expect("a spec");
        let tolerations = spec.tolerations.into_iter().flatten();
        let spot = Some("cloud.google.com/gke-spot");
        let tolerates = tolerations.into_iter().any(|it| it.key.as_deref() == spot);
        assert_eq!(tolerates, !stays_off);
        let affinity = spec.affinity.and_then(|it| it.node_affinity);
        let required =
            affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution);
        let terms = required.expect("its GPUs").node_selector_terms;
        assert!(terms.len() > 1, "{terms:?}");
        for term in terms {
            let labels = term.match_expressions.into_iter().flatten();
            let unwanted = labels.filter(|label| label.operator == "NotIn");
            assert_eq!(unwanted.count(), if stays_off { 4 } else { 0 });
        }
    }
}

#[test]
fn pods_without_nodes_are_made_for_an_autoscaler_and_given_up_in_time() {
    let mut spec = json!({"image": "train", "command": ["train"], "workers": 2, "gpus": 8, "gpuTypes": ["a100-80g"]});
    spec["memory"] = json!({"limit": "8Gi"});
    let mut stage = Stage::new([named("g", spec)], [node("n1", 1)]);
    stage.config = crate::config::Config {
        autoscaling: Some(std::time::Duration::from_secs(900)),
        ..crate::config::Config::cluster()
    };
    insta::assert_snapshot!(stage.turn("g"), @r"
    Queued (WaitingForNodes) 0/2 failures 0: no node has room for it: its pods (2) wait for an autoscaler to bring some, until 2027-01-15T08:15:00Z
      ensure network policy g
      ensure service g
      create pod g-1-0 on no node
      create pod g-1-1 on no node
      again in 900s
    ");
    assert_eq!(attempt(&stage, "g").nodes, ["", ""]);
    let affinity = stage.pods["g-1-0"]
        .spec
        .as_ref()
        .expect("a spec")
        .affinity
        .clone();
    insta::assert_yaml_snapshot!(affinity, @r#"
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
              - key: nvidia.com/gpu.product
                operator: In
                values:
                  - NVIDIA-A100-SXM4-80GB
          - matchExpressions:
              - key: karpenter.k8s.aws/instance-gpu-name
                operator: In
                values:
                  - a100
              - key: karpenter.k8s.aws/instance-gpu-memory
                operator: In
                values:
                  - "81920"
          - matchExpressions:
              - key: cloud.google.com/gke-accelerator
                operator: In
                values:
                  - nvidia-a100-80gb
    "#);
    // Given up whole, and tried again later.
    stage.pass(900);
    insta::assert_snapshot!(stage.turn("g"), @r"
    Queued (BackingOff) 0/2 failures 0: attempt 2 starts at 2027-01-15T08:15:01Z, 0 of 3 retries used; the last: no autoscaler brought nodes in time for 2 of 2 workers
      delete pod g-1-0
      delete pod g-1-1
      again in 1s
    ");
    assert_eq!(attempt(&stage, "g").outcome, Some(Outcome::Interrupted));
    stage.pass(31);
    stage.bury();
    assert!(stage.turn("g").starts_with("Queued (WaitingForNodes)"));
    assert_eq!(attempt(&stage, "g").number, 2);
    // Nodes come, and kube-scheduler binds the pods.
    for (pod, name) in [("g-2-0", "new-a"), ("g-2-1", "new-b")] {
        stage.nodes.insert(name.to_owned(), node(name, 8));
        let spec = stage.pods.get_mut(pod).expect("it").spec.as_mut();
        spec.expect("a spec").node_name = Some(name.to_owned());
    }
    assert!(stage.turn("g").starts_with("Starting"));
    assert_eq!(attempt(&stage, "g").nodes, ["new-a", "new-b"]);
    run(&mut stage, "g");
    assert_eq!(cluster::node_of(&stage.pods["g-2-1"]), Some("new-b"));
}

#[test]
fn a_job_that_was_deleted_has_its_room_until_its_workers_have_stopped() {
    let spec = |gpus: u32| json!({"command": ["train"], "gpus": gpus});
    let mut stage = Stage::new([named("gone", spec(1))], [node("n1", 2)]);
    stage.jobs.get_mut("gone").expect("it").spec.max_duration = "1h".parse().ok();
    stage.turn("gone");
    run(&mut stage, "gone");
    stage.jobs.insert("head".to_owned(), named("head", spec(2)));
    assert!(
        stage
            .turn("head")
            .starts_with("Queued (InsufficientCapacity)")
    );
    stage.pass(1);
    let mut later = named("later", spec(1));
    later.metadata.creation_timestamp = Some(stage.now.into());
    stage.jobs.insert("later".to_owned(), later);
    assert!(stage.turn("later").starts_with("Queued (WaitingForTurn)"));

    let mut world = stage.world();
    super::admission::look_at_all(&mut world, &stage.config, stage.now);
    let gone = stage.jobs["gone"].clone();
    world.watched(kube::runtime::watcher::Event::Delete(gone));
    let woken = world.serve(stage.now).jobs;
    assert!(woken.is_empty(), "what is left is not for {woken:?}");
    stage.end_pod("gone-1-0", 143, "Error");
    let pod = stage.pods["gone-1-0"].clone();
    world.watched(kube::runtime::watcher::Event::Delete(pod));
    let woken: Vec<String> = world
        .serve(stage.now)
        .jobs
        .into_iter()
        .map(|key| key.name)
        .collect();
    assert_eq!(woken, ["head"]);
}
