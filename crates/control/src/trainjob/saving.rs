//! What is known of a job's checkpoints, and what follows from it.

use serde_json::{Value, json};
use stoke_api::TrainJobStatus;
use stoke_api::condition::{self, ConditionType};
use stoke_api::names::SAVED_ANNOTATION;
use stoke_api::trainjob::Outcome;

use super::fixtures::{Stage, job, node};

fn status(stage: &Stage) -> TrainJobStatus {
    stage.jobs["j"].status.clone().unwrap_or_default()
}

/// Until its workers run.
fn run(stage: &mut Stage) -> String {
    stage.turn("j");
    stage.pass(400);
    stage.turn("j");
    let number = status(stage).attempt;
    let pod = format!("j-{number}-0");
    stage.run_pod(&pod);
    stage.turn("j");
    pod
}

fn at_risk(stage: &Stage) -> String {
    let status = status(stage);
    let found = condition::get(&status.conditions, ConditionType::WorkAtRisk);
    found.map_or_else(String::new, |it| {
        format!("{} {}: {}", it.status, it.reason, it.message)
    })
}

fn see(stage: &mut Stage, pod: &str, saved: &Value) {
    stage.save(pod);
    let pod = stage.pods.get_mut(pod).expect("the pod");
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SAVED_ANNOTATION.to_owned(), saved.to_string());
}

#[test]
fn hours_of_work_in_no_checkpoint_are_worth_a_warning() {
    let spec = json!({"command": ["train"], "gpus": 2});
    let mut stage = Stage::new([job(spec)], [node("n", 2)]);
    run(&mut stage);
    stage.pass(7_199);
    stage.turn("j");
    assert_eq!(at_risk(&stage), "");
    stage.pass(1);
    let turn = stage.turn("j");
    assert!(turn.contains("tell WorkAtRisk"), "{turn}");
    insta::assert_snapshot!(at_risk(&stage), @"True NoCheckpoints: more than 2h of its work (4 GPU-hours) would be lost if it were interrupted: it keeps no checkpoints; set checkpoint.path, and write them there");
    let before = status(&stage);
    stage.pass(10_000);
    stage.turn("j");
    assert_eq!(status(&stage), before, "said once");
    stage.end_pod("j-1-0", 0, "Completed");
    stage.turn("j");
    assert_eq!(at_risk(&stage), "False NotRunning: its workers do not run");
}

#[test]
fn one_that_means_to_write_them_seldom_has_longer_and_one_that_wrote_is_out_of_danger() {
    let spec = json!({"command": ["train"], "checkpoint": {"path": "/ckpt", "every": "1h"}});
    let mut stage = Stage::new([job(spec)], [node("n", 2)]);
    let pod = run(&mut stage);
    stage.pass(3 * 3600 - 1);
    stage.turn("j");
    assert_eq!(at_risk(&stage), "");
    stage.pass(1);
    stage.turn("j");
    insta::assert_snapshot!(at_risk(&stage), @"True CheckpointOverdue: more than 3h of its work (3 worker-hours) would be lost if it were interrupted: no checkpoint was seen in /ckpt for as long; does its program write them there?");
    stage.save(&pod);
    stage.turn("j");
    assert_eq!(
        at_risk(&stage),
        "False CheckpointWritten: it has written a checkpoint since"
    );
}

#[test]
fn the_newest_checkpoint_is_told_and_kept_over_attempts() {
    let spec = json!({"command": ["train"], "checkpoint": {"path": "/ckpt"}, "retries": 9});
    let mut stage = Stage::new([job(spec)], [node("n", 2)]);
    let pod = run(&mut stage);
    stage.pass(30);
    let now = stage.now.to_string();
    see(
        &mut stage,
        &pod,
        &json!({"name": "step-5", "step": 5, "at": now, "bytes": 10, "millis": 1500}),
    );
    stage.turn("j");
    let saved = status(&stage).saved.expect("a checkpoint");
    assert_eq!(
        (saved.name.as_str(), saved.step, saved.bytes, saved.seconds),
        ("step-5", Some(5), 10, Some(1.5))
    );
    assert_eq!(saved.at.as_ref().map(|at| at.0), Some(stage.now));
    stage.end_pod(&pod, 1, "Error");
    stage.turn("j");
    // What the next begins with is the same, seen anew.
    let next = run(&mut stage);
    assert_ne!(next, pod);
    see(
        &mut stage,
        &next,
        &json!({"name": "step-5", "step": 5, "at": "2027-01-15T09:59:00Z", "bytes": 10}),
    );
    stage.turn("j");
    assert_eq!(status(&stage).saved, Some(saved));
    see(
        &mut stage,
        &next,
        &json!({"name": "step-6", "step": 6, "at": "2027-01-15T09:59:00Z", "bytes": 11}),
    );
    stage.turn("j");
    assert_eq!(status(&stage).saved.and_then(|saved| saved.step), Some(6));
}

#[test]
fn copies_that_do_not_get_through_are_told_once_for_each_reason() {
    let spec = json!({"command": ["train"], "retries": 9,
        "checkpoint": {"path": "/ckpt", "upload": {"uri": "s3://bucket/runs", "secret": "keys"}}});
    let mut stage = Stage::new([job(spec)], [node("n", 2)]);
    let pod = run(&mut stage);
    stage.pass(30);
    let failing = |stage: &Stage| {
        let status = status(stage);
        let found = condition::get(&status.conditions, ConditionType::UploadFailing);
        found.map_or_else(String::new, |it| {
            format!("{} {}: {}", it.status, it.reason, it.message)
        })
    };
    let seen = |uploaded: Value, problem: Value| {
        json!({"name": "step-5", "step": 5, "bytes": 10, "at": "2027-01-15T09:59:00Z",
        "uploaded": uploaded, "uploadProblem": problem})
    };
    see(&mut stage, &pod, &seen(Value::Null, Value::Null));
    stage.turn("j");
    assert_eq!(failing(&stage), "");
    see(
        &mut stage,
        &pod,
        &seen(Value::Null, json!("s3://bucket/runs: refused")),
    );
    let turn = stage.turn("j");
    assert!(turn.contains("tell UploadFailing"), "{turn}");
    assert_eq!(
        failing(&stage),
        "True UploadFailed: s3://bucket/runs: refused"
    );
    stage.pass(1_000);
    let turn = stage.turn("j");
    assert!(!turn.contains("tell UploadFailing"), "{turn}");
    let there = json!({"step": 5, "at": "2027-01-15T10:00:00Z"});
    see(&mut stage, &pod, &seen(there, Value::Null));
    stage.turn("j");
    assert_eq!(
        failing(&stage),
        "False UploadWorks: copies of its checkpoints get through again"
    );
    let saved = status(&stage).saved.expect("a checkpoint");
    assert_eq!(saved.uploaded.map(|it| it.step), Some(5));
    // The next attempt has sent none yet.
    stage.end_pod(&pod, 1, "Error");
    stage.turn("j");
    let next = run(&mut stage);
    see(&mut stage, &next, &seen(Value::Null, Value::Null));
    stage.turn("j");
    let saved = status(&stage).saved.expect("a checkpoint");
    assert_eq!(saved.uploaded.map(|it| it.step), Some(5));
}

/// Waits grow for those who get nowhere, and only for them.
#[test]
fn who_saved_something_has_got_on_and_is_not_held_up() {
    let waits = |saves: &dyn Fn(usize) -> bool, is_late: bool| -> Vec<i64> {
        let spec = json!({"command": ["train"], "checkpoint": {"path": "/ckpt"}, "retries": 9});
        let mut stage = Stage::new([job(spec)], [node("n", 2)]);
        let wait = |attempt: usize| {
            let pod = run(&mut stage);
            stage.pass(30);
            if saves(attempt) && !is_late {
                stage.save(&pod);
            }
            stage.end_pod(&pod, 1, "Error");
            stage.turn("j");
            if saves(attempt) && is_late {
                // Its last word is heard after its end.
                stage.save(&pod);
                stage.turn("j");
            }
            let status = status(&stage);
            let ended = status.attempts.last().expect("an attempt");
            assert_eq!(ended.outcome, Some(Outcome::Failed));
            assert_eq!(ended.saved_at.is_some(), saves(attempt));
            let next = status.next_attempt_at.expect("another attempt");
            next.0.duration_since(stage.now).as_secs()
        };
        (0..4).map(wait).collect()
    };
    let nowhere = waits(&|_| false, false);
    assert!(
        nowhere[0] == 1 && nowhere[1] >= 10 && nowhere[3] >= 40,
        "{nowhere:?}"
    );
    for is_late in [false, true] {
        assert_eq!(waits(&|_| true, is_late), [1, 1, 1, 1]);
    }
    let once = waits(&|attempt| attempt == 1, true);
    assert!(once[..3] == [1, 1, 1] && once[3] >= 10, "{once:?}");
}
