//! How many objects a namespace may hold, on one machine.

use serde_json::json;

use crate::support::{Engine, eventually, have, said};

#[test]
fn a_gang_over_its_quota_is_given_back_whole_and_runs_when_there_is_room() {
    if !have("kubectl") {
        eprintln!("skipped: no kubectl");
        return;
    }
    let engine = Engine::start();
    let kubectl = |arguments: &[&str]| {
        let output = engine.kubectl(arguments).output().expect("kubectl runs");
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    kubectl(&[
        "create",
        "quota",
        "team",
        "--hard=pods=1,count/trainjobs.stokehold.dev=2",
    ]);
    let gang = json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "gang"},
        "spec": {"command": ["sleep", "300"], "workers": 2, "retries": 0, "cpus": "50m"},
    });
    let file = engine.write("gang.json", &gang.to_string());
    engine.stoke(&["run", "--detach", &file]);
    let told = eventually("the quota in the job's status", || {
        let status = engine.job("gang")["status"].take();
        (status["reason"] == "WaitingForQuota").then_some(status)
    });
    let message = told["message"].as_str().unwrap_or_default();
    let refused =
        "is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1";
    assert!(message.contains(refused), "{message}");
    // The worker that was let in does not hold room for nothing.
    eventually("the gang to be given back", || {
        let pods = kubectl(&["get", "pods", "-o", "name"]);
        let used = kubectl(&["get", "quota", "team", "-o", "jsonpath={.status.used.pods}"]);
        (pods.trim().is_empty() && used == "0").then_some(())
    });
    let raised = r#"{"spec": {"hard": {"pods": "2"}}}"#;
    kubectl(&["patch", "quota", "team", "--type=merge", "-p", raised]);
    let status = engine.wait_for_phase("gang", "Running")["status"].take();
    assert_eq!(status["failures"], 0, "a refusal is no failure: {status:#}");
    // One more job is let in, and a third is not.
    engine.stoke(&["run", "--detach", "--name", "second", "--", "true"]);
    let third = engine.try_stoke(&["run", "--detach", "--name", "third", "--", "true"]);
    assert!(!third.status.success());
    let third = said(&third);
    assert!(
        third.contains("exceeded quota: team, requested: count/trainjobs.stokehold.dev=1"),
        "{third}"
    );
}
