//! On real kubelets: a job that does nothing is found by the nodes' agents, and believed when its log has nothing either.

use serde_json::json;

use crate::release;
use crate::workers::Jobs;

#[test]
fn a_job_that_hangs_is_tried_again_and_fails_with_what_was_seen() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "hanging");
    let spec = |script: &str, workers: u32| {
        json!({
            "command": ["sh", "-c", script], "workers": workers, "hungAfter": "15s", "retries": 1, "cpus": "50m",
        })
    };
    // Both sleep; one of them says something now and then.
    jobs.create("talks", &spec("while true; do echo here; sleep 5; done", 1));
    jobs.create("hangs", &spec("echo begun; exec sleep 900", 2));
    let status = jobs.wait_until("hangs", "to end", |status| {
        matches!(status["phase"].as_str(), Some("Complete" | "Failed"))
    });
    assert_eq!(status["phase"], "Failed", "{status:#}");
    assert_eq!(status["reason"], "RetriesExhausted", "{status:#}");
    assert_eq!(status["failuresByCause"], json!({"hung": 2}), "{status:#}");
    let attempts = status["attempts"].as_array().expect("attempts");
    assert_eq!(attempts.len(), 2, "{status:#}");
    for attempt in attempts {
        assert_eq!(attempt["outcome"], "Failed", "{status:#}");
        assert_eq!(attempt["exit"]["reason"], "Hung", "{status:#}");
        let said = attempt["exit"]["message"].as_str().unwrap_or_default();
        let seen = "it did nothing for 15s: less than a fiftieth of a CPU, no step told, and its log has nothing of that time";
        assert!(said.contains(seen), "{said}");
    }
    let status = jobs.get("talks")["status"].take();
    assert_eq!(status["phase"], "Running", "{status:#}");
    assert_eq!(status["attempt"], 1, "{status:#}");
}
