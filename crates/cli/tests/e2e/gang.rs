//! Gangs: created whole, restarted whole, deleted whole.

use serde_json::Value;

use crate::support::{Engine, eventually, said};

fn pods(engine: &Engine) -> Vec<Value> {
    let list: Value =
        serde_json::from_str(&engine.stoke(&["get", "pods", "-o", "json"])).expect("JSON");
    list["items"].as_array().expect("items").clone()
}

#[test]
fn one_failing_worker_restarts_all_and_the_second_attempt_finishes() {
    let engine = Engine::start();
    let script = engine.write(
        "once.py",
        r#"
import os, sys, time
if os.environ["STOKE_ATTEMPT"] == "1" and os.environ["STOKE_RANK"] == "1":
    sys.exit(3)
if os.environ["STOKE_ATTEMPT"] == "1":
    time.sleep(300)
print("rank", os.environ["STOKE_RANK"], "done", flush=True)
"#,
    );
    let arguments = [
        "run",
        "--name",
        "gang",
        "--workers",
        "2",
        "--retries",
        "3",
        "--memory",
        "64Mi",
        "--",
        "python3",
        &script,
    ];
    let output = engine.try_stoke(&arguments);
    assert!(output.status.success(), "{}", said(&output));
    let job = engine.job("gang");
    let attempts = job["status"]["attempts"].as_array().expect("attempts");
    assert_eq!(attempts.len(), 2, "{job:#}");
    assert_eq!(attempts[0]["outcome"], "Failed");
    assert_eq!(attempts[0]["exit"]["rank"], 1);
    assert_eq!(attempts[0]["exit"]["exitCode"], 3);
    assert_eq!(attempts[1]["outcome"], "Succeeded");
    assert_eq!(job["status"]["failures"], 1);
    let left: Vec<_> = pods(&engine)
        .into_iter()
        .filter(|pod| pod["metadata"]["labels"]["stokehold.dev/attempt"] == "1")
        .collect();
    assert!(
        left.iter().all(|pod| pod["status"]["phase"] != "Running"),
        "{left:#?}"
    );
}

#[test]
fn a_job_that_keeps_failing_ends_with_its_own_exit_code() {
    let engine = Engine::start();
    let output = engine.try_stoke(&[
        "run",
        "--name",
        "bad",
        "--retries",
        "1",
        "--",
        "sh",
        "-c",
        "echo sad >&2; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    let job = engine.job("bad");
    assert_eq!(job["status"]["phase"], "Failed");
    assert_eq!(job["status"]["attempt"], 2, "{job:#}");
    let told = engine.stoke(&["explain", "bad"]);
    assert!(told.contains('7'), "{told}");
}

#[test]
fn suspend_stops_and_resume_goes_on() {
    let engine = Engine::start();
    engine.stoke(&[
        "run", "--detach", "--name", "pausing", "--", "sleep", "1000",
    ]);
    engine.wait_for_phase("pausing", "Running");
    engine.stoke(&["suspend", "pausing"]);
    engine.wait_for_phase("pausing", "Suspended");
    eventually("its pods to go", || {
        pods(&engine)
            .iter()
            .all(|pod| pod["status"]["phase"] != "Running")
            .then_some(())
    });
    engine.stoke(&["resume", "pausing"]);
    let job = engine.wait_for_phase("pausing", "Running");
    assert_eq!(job["status"]["failures"], 0, "a suspension is no failure");
    engine.stoke(&["delete", "pausing", "--wait"]);
    eventually("nothing to be left", || {
        pods(&engine).is_empty().then_some(())
    });
}

#[test]
fn a_gang_that_does_not_fit_waits_with_a_reason_and_runs_when_it_does() {
    let engine = Engine::start_with(&["--gpus", "2"]);
    engine.stoke(&[
        "run", "--detach", "--name", "holder", "--gpus", "2", "--memory", "64Mi", "--", "sleep",
        "1000",
    ]);
    engine.wait_for_phase("holder", "Running");
    engine.stoke(&[
        "run",
        "--detach",
        "--name",
        "waiter",
        "--gpus",
        "1",
        "--memory",
        "64Mi",
        "--",
        "sh",
        "-c",
        "echo got $CUDA_VISIBLE_DEVICES",
    ]);
    let job = engine.wait_for_phase("waiter", "Queued");
    let job = if job["status"]["reason"].is_null() {
        engine.job("waiter")
    } else {
        job
    };
    assert_eq!(job["status"]["reason"], "InsufficientCapacity", "{job:#}");
    assert!(engine.stoke(&["explain", "waiter"]).contains("GPU"));
    assert!(
        engine
            .stoke(&["get", "nodes", "-o", "json"])
            .contains("simulated")
    );
    engine.stoke(&["delete", "holder"]);
    engine.wait_for_phase("waiter", "Complete");
    assert!(
        engine.stoke(&["logs", "waiter"]).starts_with("got "),
        "{}",
        engine.stoke(&["logs", "waiter"])
    );
}

#[test]
fn max_duration_ends_a_job() {
    let engine = Engine::start();
    let arguments = [
        "run",
        "--name",
        "slow",
        "--max-duration",
        "1s",
        "--",
        "sleep",
        "1000",
    ];
    let output = engine.try_stoke(&arguments);
    assert!(!output.status.success(), "{}", said(&output));
    assert_eq!(engine.job("slow")["status"]["reason"], "DeadlineExceeded");
}
