//! A worker that runs out of memory is given more while it runs, or is asked to save its work in time.

use serde_json::{Value, json};
use stoke_api::digest::PodDigest;

use crate::growing;
use crate::support::{Engine, is_root, said};

fn pod(engine: &Engine, name: &str) -> Value {
    serde_json::from_str(&engine.stoke(&["get", "pod", name, "-o", "json"])).expect("JSON")
}

fn grows_in_one_attempt(engine: &Engine, pause: &str) {
    let name = format!("grows-{}", pause.replace('.', ""));
    let script = engine.write("grows.py", &growing::grows("2", pause));
    let memory = json!({"limit": "160Mi", "max": "1Gi"});
    let job = engine.run(
        &name,
        &json!({"command": ["python3", script], "memory": memory, "retries": 0}),
    );
    assert_eq!(job["status"]["phase"], "Complete");
    assert_eq!(job["status"]["attempt"], 1);
    let pod = pod(engine, &format!("{name}-1-0"));
    let text = pod["metadata"]["annotations"]["stokehold.dev/memory-digest"].as_str();
    let digest = PodDigest::parse(text.expect("a digest")).expect("JSON");
    let worker = &digest.containers["worker"];
    println!("{worker:?}");
    assert!(worker.raises >= 1 && !worker.oom_killed);
    assert!(worker.peak_unreclaimable_bytes >= 450 << 20, "{worker:?}");
    assert!(worker.limit_bytes > Some(450 << 20) && worker.limit_bytes <= Some(1 << 30));
    assert_eq!(worker.input_bytes, Some(12345));
    let phases: Vec<&str> = worker.phases.keys().map(String::as_str).collect();
    assert!(
        phases.contains(&"load") && phases.contains(&"train"),
        "{phases:?}"
    );
    let condition = job["status"]["conditions"]
        .as_array()
        .and_then(|conditions| {
            conditions
                .iter()
                .find(|condition| condition["type"] == "MemoryAtRisk")
                .cloned()
        });
    let condition = condition.expect("it was told");
    assert!(
        condition["message"].to_string().contains("raised to"),
        "{condition:#}"
    );
}

#[test]
fn a_worker_that_grows_beyond_its_limit_is_given_more_and_ends_well() {
    let engine = Engine::start();
    for pause in ["0.05", "0.002"] {
        grows_in_one_attempt(&engine, pause);
    }
}

#[test]
fn the_same_where_no_cgroup_can_be_written() {
    if !is_root() {
        println!("skipped: already an ordinary user, so the other test is this one");
        return;
    }
    let engine = Engine::start_as(65_534, &[]);
    grows_in_one_attempt(&engine, "0.02");
}

#[test]
fn a_leak_is_asked_for_a_checkpoint_before_the_end_and_goes_on_from_it() {
    let engine = Engine::start();
    let script = engine.write("leaks.py", &growing::leaks("0.6"));
    let spec = json!({
        "command": ["python3", script], "memory": {"max": "256Mi"},
        "checkpoint": {"path": "/ckpt", "size": "1Gi"}, "retries": 5,
    });
    let job = engine.run("leaks", &spec);
    assert_eq!(job["status"]["phase"], "Complete");
    let attempts = job["status"]["attempts"]
        .as_array()
        .expect("attempts")
        .clone();
    assert!(
        (2..=6).contains(&attempts.len()),
        "{} attempts",
        attempts.len()
    );
    let logs = engine.stoke(&["logs", "leaks"]);
    println!("{logs}");
    growing::check_steps(&logs, attempts.len());
}

fn trainjob(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// Through a shell, which is not who is meant; and beside a program that has no handler, which lives on.
#[test]
fn a_program_that_heeds_a_signal_is_sent_one_and_no_other_is() {
    let engine = Engine::start();
    let script = engine.write("heeds.py", &growing::leaks_and_heeds_a_signal("0.6"));
    let deaf = "python3 -c 'import time; time.sleep(600)' & deaf=$!";
    let line = format!("{deaf}; python3 {script} || exit 3; kill -0 $deaf && echo deaf lives");
    let spec = json!({
        "command": ["sh", "-c", line], "memory": {"max": "256Mi"},
        "checkpoint": {"path": "/ckpt", "size": "1Gi", "signal": "SIGUSR1"}, "retries": 5,
    });
    let file = engine.write("heeds.json", &trainjob("heeds", &spec));
    let output = said(&engine.try_stoke(&["run", &file]));
    println!("{output}");
    assert!(output.contains(": by signal"));
    let job = engine.job("heeds");
    assert_eq!(job["status"]["phase"], "Complete", "{job:#}");
    let attempts = job["status"]["attempts"].as_array().expect("attempts");
    let count = attempts.len();
    assert!((2..=6).contains(&count), "{count} attempts");
    let logs = engine.stoke(&["logs", "heeds"]);
    growing::check_steps(&logs, count);
    assert!(logs.contains("deaf lives"));

    let odd = json!({"command": ["true"], "checkpoint": {"path": "/ckpt", "signal": "SIGKILL"}});
    let file = engine.write("odd.json", &trainjob("odd", &odd));
    let refused = said(&engine.try_stoke(&["run", &file]));
    println!("{refused}");
    assert!(refused.contains("SIGUSR1") && refused.contains("signal"));
}
