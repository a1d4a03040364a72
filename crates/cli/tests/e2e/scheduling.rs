//! Who runs, where, and why not yet: parts of GPUs, queues that lend and take back, preemption, backfill, and the commands that tell of it.

use serde_json::{Value, json};

use crate::support::{Engine, eventually, said};

/// A job that does as it is told, with little beside it.
fn submit(engine: &Engine, name: &str, gpus: &str, flags: &[&str], script: &str) {
    let mut arguments = vec!["run", "--detach", "--name", name, "--gpus", gpus];
    arguments.extend(["--cpus", "50m", "--memory", "64Mi"]);
    arguments.extend(flags);
    arguments.extend(["--", "sh", "-c", script]);
    engine.stoke(&arguments);
}

/// One that runs until it is told to stop, and then stops at once.
const STAYS: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn wait_for_reason(engine: &Engine, name: &str, reason: &str) -> Value {
    eventually(&format!("{name} to wait: {reason}"), || {
        let job = engine.job(name);
        let waits = job["status"]["phase"] == "Queued" && job["status"]["reason"] == reason;
        waits.then_some(job)
    })
}

fn devices(engine: &Engine, pod: &str) -> Value {
    let pod = engine.stoke(&["get", "pod", pod, "-o", "json"]);
    let pod: Value = serde_json::from_str(&pod).expect("JSON");
    pod["metadata"]["annotations"]["stokehold.dev/gpu-devices"].clone()
}

fn queue(engine: &Engine, name: &str, spec: &Value) {
    let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec});
    let file = engine.write(&format!("{name}.json"), &object.to_string());
    engine.stoke(&["run", "--detach", &file]);
}

#[test]
fn two_halves_share_a_gpu_and_a_third_waits() {
    let engine = Engine::start_with(&["--gpus", "1"]);
    for name in ["one", "two"] {
        let script = format!("echo sees $CUDA_VISIBLE_DEVICES has $STOKE_GPU_SHARE; {STAYS}");
        submit(&engine, name, "0.5", &[], &script);
        engine.wait_for_phase(name, "Running");
        assert_eq!(devices(&engine, &format!("{name}-1-0")), "0");
        eventually("it to say what it sees", || {
            let told = engine.stoke(&["logs", name]);
            told.contains("sees 0 has 0.5").then_some(())
        });
    }
    submit(&engine, "three", "0.5", &[], STAYS);
    let three = wait_for_reason(&engine, "three", "InsufficientCapacity");
    let message = three["status"]["message"].as_str().expect("a message");
    assert!(message.contains("0.5 of a GPU"), "{message}");
    let told = engine.stoke(&["explain", "three"]);
    assert!(told.contains("0.5 of a GPU"), "{told}");
    // Not with parts, whatever else is there.
    submit(&engine, "whole", "1", &[], STAYS);
    wait_for_reason(&engine, "whole", "InsufficientCapacity");

    // Who has which part is known to the next engine.
    engine.kill();
    engine.up();
    wait_for_reason(&engine, "three", "InsufficientCapacity");
    assert_eq!(engine.job("one")["status"]["phase"], "Running");
    engine.stoke(&["delete", "one"]);
    engine.wait_for_phase("three", "Running");
    assert_eq!(engine.job("two")["status"]["attempt"], 1);
    assert_eq!(devices(&engine, "three-1-0"), "0");
    assert_eq!(engine.job("whole")["status"]["phase"], "Queued");
}

#[test]
fn a_part_of_a_gpu_is_refused_where_the_device_has_not_that_much() {
    let engine = Engine::start_with(&["--gpus", "2"]);
    submit(&engine, "holder", "0.8", &[], STAYS);
    engine.wait_for_phase("holder", "Running");
    // Bound by someone who did not look.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "rude", "annotations": {"stokehold.dev/gpu-devices": "0"}},
        "spec": {
            "nodeName": engine.stoke(&["get", "nodes", "-o", "name"]).trim().rsplit('/').next(),
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": "host", "command": ["true"], "resources": {"limits": {"stokehold.dev/gpu-milli": 300}}}],
        },
    });
    let file = engine.write("rude.json", &pod.to_string());
    engine.stoke(&["run", "--detach", &file]);
    let refused = eventually("the pod to be turned away", || {
        let pod = engine.stoke(&["get", "pod", "rude", "-o", "json"]);
        let pod: Value = serde_json::from_str(&pod).expect("JSON");
        (pod["status"]["phase"] == "Failed").then_some(pod)
    });
    let message = refused["status"]["message"].as_str().expect("a message");
    assert!(
        message.contains("200 of 1000 thousandths free, 300 are asked for"),
        "{message}"
    );
}

#[test]
fn a_queue_borrows_and_gives_back() {
    let engine = Engine::start_with(&["--gpus", "4"]);
    for name in ["lender", "borrower"] {
        queue(&engine, name, &json!({"guaranteed": {"any": 2}}));
    }
    let borrowing = ["b1", "b2", "b3", "b4"];
    for name in borrowing {
        submit(&engine, name, "1", &["--queue", "borrower"], STAYS);
    }
    for name in borrowing {
        engine.wait_for_phase(name, "Running");
    }
    let shown = engine.stoke(&["queue"]);
    assert!(shown.contains("4 (2 borrowed)"), "{shown}");

    for name in ["l1", "l2"] {
        submit(&engine, name, "1", &["--queue", "lender"], STAYS);
    }
    for name in ["l1", "l2"] {
        engine.wait_for_phase(name, "Running");
    }
    let jobs = borrowing.map(|name| engine.job(name));
    let preempted: Vec<&Value> = jobs
        .iter()
        .filter(|job| job["status"]["attempts"][0]["outcome"] == "Preempted")
        .collect();
    assert_eq!(preempted.len(), 2, "{jobs:#?}");
    for job in &preempted {
        assert_eq!(job["status"]["failures"], 0, "{job:#}");
        let preemption = &job["status"]["attempts"][0]["preemption"];
        let by = preemption["by"].as_str().expect("who took it");
        assert!(by.starts_with("default/l"), "{job:#}");
        assert!(
            preemption["why"]
                .as_str()
                .is_some_and(|why| why.contains("lender")),
            "{job:#}"
        );
    }
    let name = preempted[0]["metadata"]["name"].as_str().expect("a name");
    wait_for_reason(&engine, name, "InsufficientCapacity");
    let told = engine.stoke(&["explain", name]);
    assert!(told.contains("gave its room to another job"), "{told}");
    let status = eventually("the queue to tell of it", || {
        let queue = engine.stoke(&["get", "queue", "borrower", "-o", "json"]);
        let queue: Value = serde_json::from_str(&queue).expect("JSON");
        (queue["status"]["waiting"] == 2).then(|| queue["status"].clone())
    });
    assert_eq!(status["use"], "2/2", "{status:#}");
    assert_eq!(status["running"], 2, "{status:#}");

    engine.stoke(&["delete", "l1", "l2"]);
    for name in borrowing {
        engine.wait_for_phase(name, "Running");
    }
}

#[test]
fn a_production_job_preempts_an_experiment_which_saves_its_work_first() {
    let engine = Engine::start_with(&["--gpus", "1"]);
    let script = "\
        test -e $STOKE_CHECKPOINT_DIR/step && echo resumed at $(cat $STOKE_CHECKPOINT_DIR/step)
        trap 'sleep 1; echo 42 > $STOKE_CHECKPOINT_DIR/step; echo saved; exit 0' TERM
        while :; do sleep 0.1; done";
    let flags = ["--priority", "experiment", "--checkpoint", "/ckpt"];
    submit(&engine, "idea", "1", &flags, script);
    engine.wait_for_phase("idea", "Running");

    submit(
        &engine,
        "release",
        "1",
        &["--priority", "production"],
        "echo shipped; sleep 2",
    );
    engine.wait_for_phase("release", "Complete");
    let idea = engine.wait_for_phase("idea", "Running");
    let attempts = idea["status"]["attempts"].as_array().expect("attempts");
    assert_eq!(attempts[0]["outcome"], "Preempted", "{idea:#}");
    assert_eq!(
        attempts[0]["preemption"]["by"], "default/release",
        "{idea:#}"
    );
    assert_eq!(idea["status"]["failures"], 0, "{idea:#}");
    eventually("it to go on where it was", || {
        let told = engine.stoke(&["logs", "idea"]);
        told.contains("resumed at 42").then_some(())
    });
    let told = engine.stoke(&["explain", "idea"]);
    assert!(told.contains("default/release got it"), "{told}");
}

#[test]
fn a_small_job_runs_early_only_if_it_delays_nobody() {
    let engine = Engine::start_with(&["--gpus", "2"]);
    submit(&engine, "holder", "1", &["--max-duration", "1h"], STAYS);
    engine.wait_for_phase("holder", "Running");
    submit(&engine, "head", "2", &[], STAYS);
    wait_for_reason(&engine, "head", "InsufficientCapacity");
    let told = engine.stoke(&["explain", "head"]);
    assert!(told.contains("it should start within"), "{told}");

    // Nobody knows when it would end; the room it wants is the head's in an hour. Of jobs of the same second, the first by name is first.
    submit(&engine, "later", "1", &[], STAYS);
    let later = wait_for_reason(&engine, "later", "WaitingForTurn");
    let message = later["status"]["message"].as_str().expect("a message");
    assert!(message.contains("default/head"), "{message}");
    submit(
        &engine,
        "brief",
        "1",
        &["--max-duration", "5m"],
        "echo done",
    );
    engine.wait_for_phase("brief", "Complete");
    assert_eq!(engine.job("later")["status"]["phase"], "Queued");

    engine.stoke(&["delete", "holder"]);
    engine.wait_for_phase("head", "Running");
    assert_eq!(engine.job("later")["status"]["phase"], "Queued");
    engine.stoke(&["delete", "head"]);
    engine.wait_for_phase("later", "Running");
}

#[test]
fn a_queue_that_cannot_be_used_says_why_and_others_go_on() {
    let engine = Engine::start_with(&["--gpus", "1"]);
    queue(&engine, "ring-a", &json!({"parent": "ring-b"}));
    queue(&engine, "ring-b", &json!({"parent": "ring-a"}));
    queue(&engine, "orphan", &json!({"parent": "nowhere"}));
    queue(&engine, "good", &json!({"guaranteed": {"any": 1}}));
    submit(&engine, "lost", "0", &["--queue", "orphan"], STAYS);
    submit(&engine, "round", "0", &["--queue", "ring-a"], STAYS);
    submit(&engine, "where", "0", &["--queue", "unheard-of"], STAYS);
    submit(&engine, "fine", "1", &["--queue", "good"], "echo done");
    engine.wait_for_phase("fine", "Complete");
    for (name, reason) in [
        ("lost", "QueueUnusable"),
        ("round", "QueueUnusable"),
        ("where", "QueueNotFound"),
    ] {
        wait_for_reason(&engine, name, reason);
    }
    for (name, reason) in [("ring-a", "ParentCycle"), ("orphan", "ParentNotFound")] {
        eventually("the queue to say what is wrong with it", || {
            let queue = engine.stoke(&["get", "queue", name, "-o", "json"]);
            let queue: Value = serde_json::from_str(&queue).expect("JSON");
            let conditions = queue["status"]["conditions"].as_array()?.clone();
            let usable = conditions.into_iter().find(|it| it["type"] == "Usable")?;
            (usable["status"] == "False" && usable["reason"] == reason).then_some(())
        });
    }
    let shown = engine.stoke(&["queue"]);
    assert!(
        shown.contains("orphan: its parent nowhere does not exist"),
        "{shown}"
    );
    // It is mended, and its job goes on by itself.
    queue(&engine, "nowhere", &json!({}));
    engine.wait_for_phase("lost", "Running");

    let refused = engine.write("bad.json", r#"{"apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "bad"}, "spec": {"guaranteed": {"any": -1}}}"#);
    let output = engine.try_stoke(&["run", "--detach", &refused]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
}

#[test]
fn what_would_happen_is_told_and_does_not_happen() {
    let engine = Engine::start_with(&["--gpus", "2"]);
    submit(&engine, "holder", "1", &["--priority", "experiment"], STAYS);
    engine.wait_for_phase("holder", "Running");
    let job = |name: &str, spec: Value| {
        let mut whole = json!({"command": ["true"], "cpus": "50m", "memory": {"limit": "64Mi"}});
        let fields = spec.as_object().expect("a map").clone();
        whole.as_object_mut().expect("a map").extend(fields);
        let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": whole});
        engine.write(&format!("{name}.json"), &object.to_string())
    };
    let files = [
        job("starts", json!({"gpus": 1})),
        job("waits", json!({"gpus": 2})),
        job("never", json!({"gpus": 3})),
    ];
    let mut arguments = vec!["sched", "simulate", "-o", "json"];
    arguments.extend(files.iter().map(String::as_str));
    let verdicts: Value = serde_json::from_str(&engine.stoke(&arguments)).expect("JSON");
    let of = |name: &str| {
        let verdicts = verdicts.as_array().expect("a list").iter();
        let mut found = verdicts.filter(|verdict| verdict["job"] == format!("default/{name}"));
        found.next().cloned().expect("a verdict")
    };
    assert_eq!(
        of("starts")["start"]["devices"],
        json!([[1]]),
        "{verdicts:#}"
    );
    assert!(of("waits")["wait"].is_object(), "{verdicts:#}");
    assert!(of("never")["wait"].is_object(), "{verdicts:#}");

    let urgent = job("urgent", json!({"gpus": 2, "priority": "production"}));
    let told = engine.stoke(&["sched", "simulate", &urgent]);
    assert!(told.contains("default/urgent would start on"), "{told}");
    assert!(told.contains("default/holder was preempted"), "{told}");

    let jobs = engine.stoke(&["get", "jobs", "-o", "name"]);
    assert_eq!(jobs.lines().count(), 1, "nothing was submitted: {jobs}");
    assert_eq!(engine.job("holder")["status"]["phase"], "Running");
    let taken = job("holder", json!({}));
    let output = engine.try_stoke(&["sched", "simulate", &taken]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
}
