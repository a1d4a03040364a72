//! On real kubelets: a worker that runs out of memory is given more while it runs, or is asked to save its work in time.

use serde_json::{Value, json};
use stoke_api::digest::PodDigest;

use crate::growing;
use crate::release::{self, succeed};
use crate::support::Testbed;
use crate::training::Volume;
use crate::workers::Jobs;

/// A kubelet with little CPU takes seconds to say that a container runs, and seconds more to put into force what was decided. So these are
/// slower than on one machine.
const LOADS: &str = "15";
const GROWS_EVERY: &str = "0.1";
const LEAKS_EVERY: &str = "1.5";

pub fn python(script: &str) -> Value {
    json!(["/usr/bin/python3", "-c", script])
}

fn digest(testbed: &Testbed, jobs: &Jobs<'_>, pod: &str) -> Option<PodDigest> {
    let pod = testbed.get(&["pod", pod, "-n", jobs.namespace()]);
    let text = pod["metadata"]["annotations"]["stokehold.dev/memory-digest"].as_str()?;
    PodDigest::parse(text)
}

#[test]
fn a_worker_that_grows_beyond_its_limit_is_resized_in_place() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "memory-grows");
    let memory = json!({"request": "100Mi", "limit": "160Mi", "max": "1Gi"});
    let spec = json!({"command": python(&growing::grows(LOADS, GROWS_EVERY)), "memory": memory, "retries": 0});
    jobs.create("grows", &spec);
    let status = jobs.wait_until("grows", "to end", |status| {
        matches!(status["phase"].as_str(), Some("Complete" | "Failed"))
    });
    assert_eq!(status["phase"], "Complete", "{status:#}");
    assert_eq!(status["attempt"], 1);
    let risk = status["conditions"].as_array().and_then(|conditions| {
        conditions
            .iter()
            .find(|condition| condition["type"] == "MemoryAtRisk")
    });
    let message = risk
        .map(|risk| risk["message"].to_string())
        .unwrap_or_default();
    assert!(message.contains("raised to"), "{status:#}");
    let told = crate::support::eventually("the digest", || digest(&testbed, &jobs, "grows-1-0"));
    let worker = &told.containers["worker"];
    assert!(worker.raises >= 1 && !worker.oom_killed, "{worker:?}");
    assert!(worker.limit_bytes > Some(440 << 20), "{worker:?}");
}

#[test]
fn a_leak_is_asked_for_a_checkpoint_before_the_end_and_goes_on_from_it() {
    let checkpoint = json!({"path": "/ckpt", "size": "1Gi"});
    leaks("memory-leaks", &growing::leaks(LEAKS_EVERY), &checkpoint);
}

#[test]
fn a_program_that_heeds_a_signal_is_sent_one() {
    let checkpoint = json!({"path": "/ckpt", "size": "1Gi", "signal": "SIGUSR1"});
    leaks(
        "memory-heeds",
        &growing::leaks_and_heeds_a_signal(LEAKS_EVERY),
        &checkpoint,
    );
}

fn leaks(namespace: &'static str, script: &str, checkpoint: &Value) {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, namespace);
    let _volume = Volume::new(&jobs, &testbed, "leaks-checkpoint");
    let spec = json!({
        "command": python(script), "memory": {"max": "256Mi"}, "retries": 6, "checkpoint": checkpoint,
    });
    jobs.create("leaks", &spec);
    let status = jobs.wait_until("leaks", "to end", |status| {
        matches!(status["phase"].as_str(), Some("Complete" | "Failed"))
    });
    assert_eq!(status["phase"], "Complete", "{status:#}");
    let attempts = status["attempts"].as_array().map_or(0, Vec::len);
    assert!((2..=6).contains(&attempts), "{status:#}");
    let last = format!("leaks-{attempts}-0");
    let logs = succeed(&mut testbed.kubectl(&["logs", &last, "-n", jobs.namespace()]));
    growing::check_steps(&logs, attempts);
}
