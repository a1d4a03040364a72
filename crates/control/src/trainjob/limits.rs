//! Retries that are limited by cause.

use serde_json::json;

use super::fixtures::{Stage, job, node};

fn stage(spec: serde_json::Value) -> Stage {
    Stage::new([job(spec)], [node("n1", 0)])
}

fn status(stage: &Stage) -> stoke_api::TrainJobStatus {
    stage.jobs["j"].status.clone().expect("a status")
}

/// Attempts that end so one after the other, with `retryLimits`, and what is said at the end.
fn ended_with_limits(limits: &serde_json::Value, exits: &[(i32, &str)]) -> String {
    let spec = json!({"command": ["train"], "retries": 9, "retryLimits": limits, "memory": {"limit": "128Mi", "max": "64Gi"}});
    let mut stage = stage(spec);
    stage.turn("j");
    for (attempt, (code, reason)) in (1..).zip(exits) {
        let pod = format!("j-{attempt}-0");
        stage.run_pod(&pod);
        stage.turn("j");
        stage.end_pod(&pod, *code, reason);
        stage.turn("j");
        // What it was counted for is on the record: pods that are gone take nothing with them.
        stage.pods.remove(&pod);
        stage.pass(600);
        stage.turn("j");
    }
    let status = status(&stage);
    let phase = format!("{:?}", status.phase);
    let counted = serde_json::to_string(&status.failures_by_cause).expect("JSON");
    let (reason, message, attempts) = (status.reason, status.message, status.attempt);
    format!("{phase} ({reason}) after {attempts} attempts, {counted}: {message}")
}

#[test]
fn a_cause_at_its_limit_ends_the_job_and_another_does_not() {
    let (oom, crash) = ((137, "OOMKilled"), (7, "Error"));
    let said = |limits: serde_json::Value, exits: &[(i32, &str)]| ended_with_limits(&limits, exits);
    insta::assert_snapshot!(said(json!({"program": 0}), &[crash]), @r#"Failed (RetryLimitReached) after 1 attempts, {"program":1}: 1 attempt failed by the program's own error, and retryLimits.program allows none to be tried again; the last: rank 0 ended with exit code 7"#);
    insta::assert_snapshot!(said(json!({"memory": 1}), &[oom]), @r#"Starting (StartingWorkers) after 2 attempts, {"memory":1}: attempt 2 on n1"#);
    insta::assert_snapshot!(said(json!({"memory": 1}), &[oom, crash, oom]), @r#"Failed (RetryLimitReached) after 3 attempts, {"memory":2,"program":1}: 2 attempts failed for want of memory, and retryLimits.memory allows 1 retry; the last: rank 0 was killed at its memory limit of 512 MiB (OOMKilled, exit code 137); raise memory.limit, or use less: a smaller batch, fewer loader workers"#);
    insta::assert_snapshot!(said(json!({"memory": 1, "program": 1}), &[crash, oom, crash]), @r#"Failed (RetryLimitReached) after 3 attempts, {"memory":1,"program":2}: 2 attempts failed by the program's own error, and retryLimits.program allows 1 retry; the last: rank 0 ended with exit code 7"#);
    insta::assert_snapshot!(said(json!({"hung": 0}), &[crash, crash]), @r#"Starting (StartingWorkers) after 3 attempts, {"program":2}: attempt 3 on n1"#);
    // It forgets attempts, and not what they died of.
    insta::assert_snapshot!(said(json!({"program": 8}), &[crash; 9]), @r#"Failed (RetryLimitReached) after 9 attempts, {"program":9}: 9 attempts failed by the program's own error, and retryLimits.program allows 8 retries; the last: rank 0 ended with exit code 7"#);
}

#[test]
fn an_interruption_counts_against_no_limit() {
    let spec =
        json!({"command": ["train"], "retryLimits": {"memory": 0, "program": 0, "start": 0}});
    let mut stage = stage(spec);
    for attempt in 1..=3 {
        stage.turn("j");
        stage.run_pod(&format!("j-{attempt}-0"));
        stage.turn("j");
        stage.delete_pod(&format!("j-{attempt}-0"), None);
        stage.turn("j");
        stage.pass(900);
        stage.turn("j");
    }
    assert_eq!(status(&stage).attempt, 4);
    assert!(status(&stage).failures_by_cause.is_empty());
}
