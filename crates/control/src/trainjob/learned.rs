//! What a job learns from runs like it, and from its own failures.

use serde_json::{Value, json};
use stoke_api::names::MEMORY_TERMS_ANNOTATION;
use stoke_api::trainjob::{Attempt, Outcome, Phase};
use stoke_api::{Bytes, TrainJobStatus};

use super::fixtures::{Stage, job, node};

const CUDA: &str = "Traceback (most recent call last):\n  File \"train.py\", line 90, in <module>\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 38.28 GiB memory in use. Of the allocated memory 36.90 GiB is allocated by PyTorch, and 301.00 MiB is reserved by PyTorch but unallocated.\n";

fn mib(n: u64) -> u64 {
    n << 20
}

fn stage(spec: Value) -> Stage {
    Stage::new([job(spec)], [node("n", 2)])
}

fn status(stage: &Stage) -> TrainJobStatus {
    stage.jobs["j"].status.clone().unwrap_or_default()
}

fn latest(stage: &Stage) -> Attempt {
    status(stage).attempts.pop().expect("an attempt")
}

/// Starts the next attempt, and lets its workers run.
fn run(stage: &mut Stage) -> String {
    stage.turn("j");
    stage.pass(20);
    stage.turn("j");
    let number = status(stage).attempt;
    let workers = latest(stage).nodes.len();
    for rank in 0..workers {
        stage.run_pod(&format!("j-{number}-{rank}"));
    }
    stage.turn("j");
    assert_eq!(
        status(stage).phase,
        Phase::Running,
        "{}",
        status(stage).message
    );
    format!("j-{number}-0")
}

fn digest(peak: u64, median: u64) -> Value {
    json!({"samples": 60, "seconds": 60, "peakUnreclaimableBytes": mib(peak), "medianBytes": mib(median), "peakBytes": mib(peak)})
}

/// A whole run of a job that says nothing about memory. What it was given, in MiB.
fn whole_run(stage: &mut Stage, uid: &str, peak: u64, median: u64) -> (u64, u64) {
    let mut next = job(json!({"command": ["python", "train.py"]}));
    next.metadata.uid = Some(format!("{uid}-0000"));
    stage.pods.clear();
    stage.jobs.insert("j".to_owned(), next);
    let pod = run(stage);
    let sizing = latest(stage).memory.expect("a size");
    stage.pass(60);
    stage.measure(&pod, digest(peak, median));
    stage.end_pod(&pod, 0, "Completed");
    stage.turn("j");
    assert_eq!(status(stage).phase, Phase::Complete);
    (sizing.request.0 >> 20, sizing.limit.0 >> 20)
}

#[test]
fn ten_runs_of_one_job_are_given_what_they_need_from_the_second_on() {
    let mut stage = stage(json!({"command": ["x"]}));
    let first = whole_run(&mut stage, "run0", 900, 500);
    assert_eq!(
        first,
        (16 * 1024, 16 * 1024),
        "a quarter of the node, for nothing is known"
    );
    for i in 1..10 {
        // No two runs are quite alike.
        let (peak, median) = (900 - i * 3, 500 + i);
        let (request, limit) = whole_run(&mut stage, &format!("run{i}"), peak, median);
        assert!(
            (425..=575).contains(&request),
            "run {i} was promised {request}"
        );
        assert!(
            (900..=1215).contains(&limit),
            "run {i} was limited to {limit}"
        );
    }
    let profile = stage.profiles.values().next().expect("a profile").clone();
    assert_eq!(stage.profiles.len(), 1);
    assert_eq!((profile.spec.runs, profile.spec.history.len()), (10, 10));
    assert!(
        profile
            .spec
            .peak
            .is_some_and(|peak| peak >= Bytes::mib(900))
    );
    assert_eq!(
        profile.spec.usage.map(|usage| usage.samples),
        Some(600),
        "each run once"
    );
}

#[test]
fn a_profile_of_another_version_is_left_alone_and_said_to_be() {
    let mut stage = stage(json!({"command": ["x"]}));
    whole_run(&mut stage, "run0", 900, 500);
    for profile in stage.profiles.values_mut() {
        profile.spec.version = 7;
    }
    let before = stage.profiles.clone();
    let (request, _) = whole_run(&mut stage, "run1", 900, 500);
    assert_eq!(request, 16 * 1024);
    let why = latest(&stage).memory.expect("a size").why;
    assert!(
        why.contains("a form that this version does not read"),
        "{why}"
    );
    assert_eq!(stage.profiles, before);
}

#[test]
fn what_the_node_says_late_is_waited_for_and_learned_once() {
    let mut stage = stage(json!({"command": ["python", "train.py"], "workers": 2, "ttl": "0s"}));
    let pod = run(&mut stage);
    stage.pass(60);
    stage.measure(&pod, digest(400, 300));
    for rank in 0..2 {
        stage.end_pod(&format!("j-1-{rank}"), 0, "Completed");
    }
    stage.turn("j");
    assert!(stage.profiles.is_empty(), "one of two has told");
    assert!(
        stage.jobs.contains_key("j"),
        "it is not cleared away before it was learned from"
    );
    stage.measure("j-1-1", digest(700, 200));
    let plan = stage.plan("j").expect("the job");
    let said: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
    assert!(
        said[0].starts_with("learn train-py-") && said[1] == "delete the job",
        "{said:?}"
    );
    // The controller dies between the two.
    stage.act("j", &plan.actions[0]);
    stage.turn("j");
    let profile = stage.profiles.into_values().next().expect("a profile");
    let run = &profile.spec.history[0];
    assert_eq!(profile.spec.runs, 1);
    assert!(
        run.peak >= Bytes::mib(700) && run.median >= Bytes::mib(300),
        "{run:?}"
    );
    assert!(!stage.jobs.contains_key("j"));
}

#[test]
fn a_gpu_that_was_too_small_gets_smaller_parts_of_the_same_batch() {
    let mut stage =
        stage(json!({"command": ["python", "train.py"], "gpus": 1, "framework": "torch"}));
    for parts in [1_u32, 2] {
        let pod = run(&mut stage);
        let worker = &stage.pods[&pod].spec.as_ref().expect("a spec").containers[0];
        let variable = |name: &str| {
            let variables = worker.env.iter().flatten();
            let mut found = variables.filter(|it| it.name == name);
            found.next().and_then(|it| it.value.clone())
        };
        let scale = (parts > 1).then(|| (1.0 / f64::from(parts)).to_string());
        assert_eq!(variable("STOKE_MICRO_BATCH_SCALE"), scale);
        let accumulation = (parts > 1).then(|| parts.to_string());
        assert_eq!(variable("STOKE_GRAD_ACCUM_SCALE"), accumulation);
        if parts == 1 {
            stage.logs.insert(pod.clone(), CUDA.to_owned());
            stage.end_pod(&pod, 1, "Error");
            stage.turn("j");
        }
    }
    let attempts = status(&stage).attempts;
    let found = attempts[0].diagnosis.clone().expect("a diagnosis");
    assert_eq!(found.cause, "GpuOutOfMemory");
    assert!(
        found
            .quotes
            .iter()
            .any(|it| it.contains("CUDA out of memory")),
        "{found:?}"
    );
    assert!(
        attempts[1].changes[0].contains("micro-batch of 1/2"),
        "{:?}",
        attempts[1].changes
    );
    assert!(!attempts[1].changed_for.is_empty());
    assert!(
        status(&stage).changes.is_empty(),
        "they are the attempt's now"
    );
}

#[test]
fn memory_that_ran_out_is_more_the_next_time_and_never_above_the_most() {
    let spec = json!({"command": ["python", "train.py"], "memory": {"limit": "1Gi", "max": "3Gi"}, "retries": 9});
    let mut stage = stage(spec);
    let mut limits = Vec::new();
    for _ in 0..6 {
        let pod = run(&mut stage);
        let attempt = latest(&stage);
        let limit = attempt.memory.expect("a size").limit;
        let terms = stage.pods[&pod].metadata.annotations.as_ref();
        let terms = terms
            .and_then(|all| all.get(MEMORY_TERMS_ANNOTATION))
            .cloned();
        let terms: Value = serde_json::from_str(&terms.expect("terms")).expect("JSON");
        let most = (limit < Bytes::gib(3)).then(|| json!("3Gi"));
        assert_eq!(terms.get("max").cloned(), most);
        limits.push(limit);
        let killed = json!({"samples": 9, "seconds": 9, "peakUnreclaimableBytes": limit.0, "limitBytes": limit.0, "oomKilled": true, "oomKills": 1});
        stage.measure(&pod, killed);
        stage.end_pod(&pod, 137, "OOMKilled");
        stage.turn("j");
        if status(&stage).phase == Phase::Failed {
            break;
        }
    }
    let status = status(&stage);
    assert_eq!(status.phase, Phase::Failed, "{}", status.message);
    assert_eq!(status.reason, "OutOfMemory");
    assert!(
        status.failures < 9,
        "it is not tried in vain: {}",
        status.failures
    );
    assert!(
        limits.windows(2).all(|pair| pair[0] < pair[1]),
        "{limits:?}"
    );
    assert_eq!(limits.last(), Some(&Bytes::gib(3)));
    insta::assert_snapshot!(status.message, @"rank 0 was killed at its memory limit of 3.0 GiB (OOMKilled, exit code 137); it had 3.0 GiB and memory.max allows no more; it writes no checkpoint to begin anew from");
}

#[test]
fn an_author_who_allows_less_than_a_job_was_given_is_heeded() {
    let spec = json!({"command": ["python", "train.py"], "memory": {"limit": "1Gi", "max": "8Gi"}, "retries": 9});
    let mut stage = stage(spec);
    let pod = run(&mut stage);
    let killed = json!({"samples": 9, "seconds": 9, "peakUnreclaimableBytes": 1 << 30, "limitBytes": 1 << 30, "oomKilled": true, "oomKills": 1});
    stage.measure(&pod, killed);
    stage.end_pod(&pod, 137, "OOMKilled");
    stage.turn("j");
    assert!(status(&stage).tuning.memory > Some(Bytes::mib(1536)));
    let job = stage.jobs.get_mut("j").expect("the job");
    let memory = job.spec.memory.as_mut().expect("its memory");
    memory.max = Some(Bytes::mib(1536));
    stage.pass(60);
    run(&mut stage);
    let given = latest(&stage).memory.expect("a size").limit;
    assert_eq!(given, Bytes::mib(1536));
}

#[test]
fn a_program_that_cannot_run_is_not_tried_for_ever() {
    let mut stage = stage(json!({"command": ["python", "train.py"], "retries": 50}));
    for _ in 0..4 {
        let pod = run(&mut stage);
        let error = "Traceback (most recent call last):\n  File \"train.py\", line 1\nModuleNotFoundError: No module named 'torchh'\n";
        stage.logs.insert(pod.clone(), error.to_owned());
        stage.end_pod(&pod, 1, "Error");
        stage.turn("j");
        if status(&stage).phase == Phase::Failed {
            break;
        }
    }
    let status = status(&stage);
    assert_eq!(status.phase, Phase::Failed, "{}", status.message);
    assert!(status.message.contains("torchh"), "{}", status.message);
}

/// Whom a job's next plan asks for a checkpoint.
fn asked(stage: &Stage, name: &str) -> Vec<String> {
    let plan = stage.plan(name).expect("the job");
    let said = plan.actions.iter().map(ToString::to_string);
    said.filter(|action| !action.starts_with("tell ")).collect()
}

#[test]
fn a_worker_at_the_end_of_its_memory_goes_on_from_the_checkpoint_it_was_asked_for() {
    let spec = json!({"command": ["python", "train.py"], "workers": 2, "checkpoint": {"path": "/ckpt"}, "retries": 0});
    let mut stage = stage(spec);
    let pod = run(&mut stage);
    stage.risk(&pod);
    assert_eq!(
        asked(&stage, "j"),
        [
            "ask pod j-1-0 for a checkpoint",
            "ask pod j-1-1 for a checkpoint"
        ],
        "one alone cannot save"
    );
    stage.turn("j");
    stage.pass(5);
    stage.turn("j");
    assert_eq!(status(&stage).phase, Phase::Running, "nothing is saved yet");
    stage.save(&pod);
    stage.turn("j");
    assert_eq!(
        status(&stage).phase,
        Phase::Running,
        "the other may not have finished"
    );
    stage.pass(2);
    stage.turn("j");
    let first = &status(&stage).attempts[0];
    assert_eq!(first.outcome, Some(Outcome::Restarted));
    assert_eq!(status(&stage).failures, 0);
    insta::assert_snapshot!(status(&stage).message, @"it goes on from the checkpoint that it has just written, with its memory given back: it leaks 10 MiB a step");
    stage.pass(60);
    stage.bury();
    run(&mut stage);
    assert_eq!(status(&stage).attempt, 2);
}

#[test]
fn what_a_job_had_when_it_ran_out_is_not_what_is_expected_of_it() {
    let spec = json!({"command": ["python", "train.py"], "checkpoint": {"path": "/ckpt"}, "memory": {"limit": "1Gi", "max": "1Gi"}, "retries": 3});
    let mut stage = stage(spec);
    let used = |mib: u64| json!({"samples": 9, "seconds": 30, "peakUnreclaimableBytes": mib << 20, "limitBytes": 1 << 30});
    let pod = run(&mut stage);
    stage.risk(&pod);
    stage.turn("j");
    stage.pass(5);
    stage.save(&pod);
    stage.measure(&pod, used(800));
    stage.turn("j");
    stage.pass(60);
    stage.bury();
    let pod = run(&mut stage);
    assert_eq!(latest(&stage).memory_expected, None);
    // Too late once, after it was in time before: it goes on, and in time.
    let killed = json!({"samples": 9, "seconds": 30, "peakUnreclaimableBytes": 1 << 30, "limitBytes": 1 << 30, "oomKilled": true, "oomKills": 1});
    stage.pass(30);
    stage.measure(&pod, killed.clone());
    stage.end_pod(&pod, 137, "OOMKilled");
    stage.turn("j");
    let after = status(&stage);
    assert_eq!(after.phase, Phase::Queued, "{}", after.message);
    assert!(after.tuning.restart_every.is_some(), "{:?}", after.tuning);
    // Not for ever.
    stage.pass(60);
    let pod = run(&mut stage);
    stage.pass(30);
    stage.measure(&pod, killed);
    stage.end_pod(&pod, 137, "OOMKilled");
    stage.turn("j");
    assert_eq!(status(&stage).phase, Phase::Failed);
}

/// Its kubelet is slow to say that it runs, and the kernel is quicker.
#[test]
fn who_saved_and_was_killed_before_it_was_seen_to_run_goes_on() {
    let spec = json!({"command": ["python", "train.py"], "checkpoint": {"path": "/ckpt"}, "memory": {"max": "256Mi"}, "retries": 3});
    for has_saved in [true, false] {
        let mut stage = stage(spec.clone());
        stage.turn("j");
        stage.pass(20);
        stage.turn("j");
        let pod = "j-1-0";
        let started = stage.now;
        stage.pass(9);
        if has_saved {
            stage.save(pod);
        }
        stage.pass(1);
        stage.set_pod(pod, json!({
            "phase": "Failed",
            "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": started.to_string(),
                    "finishedAt": stage.now.to_string()}}}],
        }));
        stage.turn("j");
        let after = status(&stage);
        let attempt = &after.attempts[0];
        assert_eq!(attempt.running_at.as_ref().map(|at| at.0), Some(started));
        assert_eq!(after.ran_seconds, 10);
        let expected = if has_saved {
            Phase::Queued
        } else {
            Phase::Failed
        };
        assert_eq!(after.phase, expected, "{}", after.message);
    }
}

/// A job that leaks is killed once; its next attempt begins anew by its steps where it tells them, else by the clock.
#[test]
fn a_leak_begins_anew_by_its_steps_where_it_tells_them() {
    let spec = json!({"command": ["python", "train.py"], "checkpoint": {"path": "/ckpt"}, "memory": {"limit": "1Gi", "max": "1Gi"}, "retries": 3});
    for tells_steps in [true, false] {
        let mut stage = stage(spec.clone());
        let pod = run(&mut stage);
        stage.pass(3600);
        let mut killed = json!({"samples": 3600, "seconds": 3600, "peakUnreclaimableBytes": 1 << 30, "limitBytes": 1 << 30,
            "oomKilled": true, "oomKills": 1, "slope": {"bytesPerHour": 800 << 20}});
        if tells_steps {
            killed["steps"] = json!({"first": 0, "last": 80, "seconds": 3600});
            killed["slope"]["bytesPerStep"] = json!(10 << 20);
        }
        stage.save(&pod);
        stage.measure(&pod, killed);
        stage.end_pod(&pod, 137, "OOMKilled");
        stage.turn("j");
        stage.pass(60);
        let pod = run(&mut stage);
        let attempt = latest(&stage);
        let every = attempt.tuning.restart_every.expect("a schedule");
        let terms = stage.pods[&pod].metadata.annotations.as_ref();
        let terms = terms.and_then(|all| all.get(MEMORY_TERMS_ANNOTATION));
        let terms: Value = serde_json::from_str(terms.expect("terms")).expect("JSON");
        assert_eq!(
            terms.get("restartSteps").and_then(Value::as_u64),
            every.steps
        );
        stage.pass(every.seconds);
        if tells_steps {
            assert_eq!(every.steps, Some(59));
            assert_eq!(
                attempt.changes,
                ["a restart from its checkpoint every 59 steps, before its memory is full"]
            );
            assert!(asked(&stage, "j").is_empty(), "its nodes count its steps");
            stage.risk(&pod);
        }
        assert_eq!(asked(&stage, "j").len(), 1);
        stage.turn("j");
        stage.pass(5);
        stage.save(&pod);
        stage.turn("j");
        let ended = status(&stage);
        assert_eq!(ended.attempts[1].outcome, Some(Outcome::Restarted));
        if !tells_steps {
            assert_eq!(every.steps, None);
            insta::assert_snapshot!(ended.message, @"it goes on from the checkpoint that it has just written, with its memory given back, as every 44m38s, for it leaks");
        }
    }
}

#[test]
fn of_all_on_a_node_that_runs_out_the_one_that_loses_least_leaves() {
    let spec = |priority: &str| json!({"command": ["python", "train.py"], "checkpoint": {"path": "/ckpt"}, "priority": priority, "memory": {"limit": "1Gi"}});
    let named = |name: &str, priority: &str| {
        let mut named = job(spec(priority));
        named.metadata.name = Some(name.to_owned());
        named.metadata.uid = Some(format!("{name}-0000"));
        named
    };
    let jobs = [
        named("a", "production"),
        named("b", "standard"),
        named("c", "standard"),
    ];
    let mut stage = Stage::new(jobs, [node("n", 0), node("other", 0)]);
    let all = ["a", "b", "c"];
    for name in all {
        stage.turn(name);
        stage.run_pod(&format!("{name}-1-0"));
        stage.turn(name);
        stage.pass(10);
    }
    let home: Vec<String> = all
        .iter()
        .filter_map(|name| {
            stage.jobs[*name]
                .status
                .clone()?
                .attempts
                .pop()?
                .nodes
                .pop()
        })
        .collect();
    assert!(home.iter().all(|node| *node == home[0]), "{home:?}");
    stage.save("b-1-0");
    stage.pass(10);
    for name in all {
        stage.turn(name);
        stage.shortage(&format!("{name}-1-0"));
    }
    assert_eq!(
        asked(&stage, "b"),
        ["ask pod b-1-0 for a checkpoint"],
        "it has saved last"
    );
    assert!(asked(&stage, "a").is_empty() && asked(&stage, "c").is_empty());
    stage.turn("b");
    stage.pass(3);
    stage.save("b-1-0");
    stage.turn("b");
    let left = stage.jobs["b"]
        .status
        .clone()
        .expect("a status")
        .attempts
        .remove(0);
    assert_eq!(
        (left.outcome, left.avoid),
        (Some(Outcome::Restarted), vec![home[0].clone()])
    );
    // The next leaves only if that was not enough.
    assert!(asked(&stage, "c").is_empty());
    stage.pass(120);
    stage.bury();
    assert_eq!(asked(&stage, "c"), ["ask pod c-1-0 for a checkpoint"]);
    assert!(asked(&stage, "a").is_empty(), "production stays");
}

#[test]
fn restarts_that_get_nowhere_end() {
    let mut stage =
        stage(json!({"command": ["python", "train.py"], "checkpoint": {"path": "/ckpt"}}));
    for _ in 0..40 {
        let pod = run(&mut stage);
        stage.risk(&pod);
        stage.pass(2);
        stage.save(&pod);
        stage.turn("j");
        if status(&stage).phase == Phase::Running {
            break;
        }
        stage.pass(60);
        stage.bury();
    }
    assert_eq!(
        status(&stage).phase,
        Phase::Running,
        "it is left to its limit"
    );
    assert!(status(&stage).attempt < 12);
}

#[test]
fn a_model_that_no_gpu_can_hold_is_told_so_before_it_starts() {
    let model = json!({"params": "70B", "optimizer": "adamw"});
    let spec = json!({"command": ["python", "train.py"], "gpus": 1, "gpuTypes": ["a100-80g"], "model": model});
    let mut large = stage(spec);
    for node in large.nodes.values_mut() {
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert("nvidia.com/gpu.memory".to_owned(), "81920".to_owned());
    }
    large.turn("j");
    let said = status(&large);
    assert_eq!(
        (said.phase, said.reason.as_str()),
        (Phase::Queued, "ModelTooBig")
    );
    assert!(said.message.contains("of each GPU"), "{}", said.message);
    assert!(said.attempts.is_empty() && large.pods.is_empty());
}

#[test]
fn how_a_job_went_is_kept_with_what_it_used() {
    let mut stage = stage(json!({"command": ["x"]}));
    for i in 0..3 {
        whole_run(&mut stage, &format!("run{i}"), 900, 500);
    }
    let profile = stage.profiles.values().next().expect("a profile").clone();
    assert_eq!(profile.spec.runs, 3, "a run and its record are one write");
    let told: Vec<(String, u64, Option<Bytes>)> = profile
        .spec
        .jobs
        .iter()
        .map(|record| (record.id.clone(), record.seconds, record.peak))
        .collect();
    let ran = |id: &str| (id.to_owned(), 60, Some(Bytes::mib(900)));
    assert_eq!(told, [ran("run0"), ran("run1"), ran("run2")]);
    assert!(
        profile
            .spec
            .jobs
            .iter()
            .all(|it| it.phase == Phase::Complete)
    );
    // Looking again, as after a crash, writes nothing.
    let version = profile.metadata.resource_version;
    stage.pass(1000);
    stage.turn("j");
    let again = stage.profiles.values().next().expect("a profile").clone();
    assert_eq!(again.metadata.resource_version, version);
}

#[test]
fn what_nobody_measured_is_kept_before_its_job_goes_and_costs_no_write_before_that() {
    let mut stage = stage(json!({"command": ["x"], "ttl": "1h", "retries": 0, "gpus": 1}));
    let pod = run(&mut stage);
    stage.pass(60);
    stage.end_pod(&pod, 1, "Error");
    stage.turn("j");
    assert_eq!(status(&stage).phase, Phase::Failed);
    stage.pass(3599);
    stage.turn("j");
    assert!(stage.profiles.is_empty());
    stage.pass(1);
    // The controller dies after the record was written: the next one does not write it again.
    let plan = stage.plan("j").expect("a plan");
    stage.carry_out("j", &plan, 1);
    let profile = stage.profiles.values().next().expect("a profile").clone();
    let [record] = profile.spec.jobs.as_slice() else {
        panic!("{:?}", profile.spec.jobs);
    };
    assert_eq!((record.name.as_str(), record.seconds), ("j", 60));
    assert_eq!((record.gpu_seconds, record.failures), (60, 1));
    assert_eq!((record.phase, record.cause.as_str()), (Phase::Failed, ""));
    let plan = stage.plan("j").expect("a plan");
    let actions: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
    assert_eq!(actions, ["delete the job"]);
    stage.carry_out("j", &plan, usize::MAX);
    assert!(stage.jobs.is_empty() && stage.pods.is_empty());
    // Nothing is made of what was not measured.
    assert_eq!((profile.spec.runs, profile.spec.history.len()), (0, 0));
}
