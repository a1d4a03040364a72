//! What is told of a job's next run is what the controller gives it.

use serde_json::{Value, json};
use stoke_api::trainjob::Phase;

use super::fixtures::{Stage, job, node};
use crate::forecast::{Listed, NextRun};

/// As a command would ask, which lists no jobs and no pods.
fn foretold(stage: &Stage) -> NextRun {
    let listed = Listed {
        nodes: stage.nodes.values().cloned().collect(),
        datasets: stage.datasets.clone(),
        profiles: stage.profiles.values().cloned().collect(),
        claims: stage.claims.clone(),
        volumes: stage.volumes.clone(),
        ..Listed::default()
    };
    let told = listed.next_run(stage.jobs["j"].clone(), &stage.config, stage.now);
    told.expect("it can be sized")
}

fn phase(stage: &Stage) -> Phase {
    stage.jobs["j"]
        .status
        .as_ref()
        .map(|status| status.phase)
        .unwrap_or_default()
}

/// Starts the next attempt and lets it run; what it was given is what was told of it.
fn run_as_told(stage: &mut Stage) -> NextRun {
    let told = foretold(stage);
    stage.turn("j");
    stage.pass(60);
    stage.turn("j");
    let status = stage.jobs["j"].status.clone().unwrap_or_default();
    let attempt = status.attempts.last().expect("an attempt").clone();
    let given = NextRun {
        memory: attempt.memory.expect("a size"),
        memory_max: attempt.memory_max,
    };
    assert_eq!(given, told);
    stage.run_pod(&format!("j-{}-0", attempt.number));
    stage.turn("j");
    assert_eq!(phase(stage), Phase::Running);
    given
}

fn end(stage: &mut Stage, exit_code: i32, reason: &str, digest: Value) {
    let attempt = stage.jobs["j"]
        .status
        .as_ref()
        .map_or(0, |status| status.attempt);
    let pod = format!("j-{attempt}-0");
    stage.pass(60);
    stage.measure(&pod, digest);
    stage.end_pod(&pod, exit_code, reason);
    stage.turn("j");
}

fn used(mib: u64) -> Value {
    json!({"samples": 60, "seconds": 60, "peakUnreclaimableBytes": mib << 20, "medianBytes": mib << 19, "peakBytes": mib << 20})
}

/// The job once more, under the same name; its dataset holds so many GiB.
fn submit(stage: &mut Stage, uid: usize, gib: u64) {
    let spec = json!({"command": ["python", "train.py"], "datasets": [{"name": "d", "path": "/data"}], "retries": 5});
    let mut next = job(spec);
    next.metadata.uid = Some(format!("run{uid}-0000"));
    stage.pods.clear();
    stage.jobs.insert("j".to_owned(), next);
    let dataset = json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": "d", "namespace": "default"},
        "spec": {"hostPath": "/d"}, "status": {"size": format!("{gib}Gi")},
    });
    stage.datasets = vec![serde_json::from_value(dataset).expect("a dataset")];
}

#[test]
fn a_first_run_a_learned_one_and_one_with_another_input_are_told_as_they_are_given() {
    let mut stage = Stage::new([], [node("n", 0)]);
    submit(&mut stage, 0, 1);
    let first = run_as_told(&mut stage);
    assert!(first.memory.why.contains("a quarter"), "{first:?}");
    end(&mut stage, 0, "Completed", used(500));
    assert_eq!(phase(&stage), Phase::Complete);
    for i in 1..=16 {
        let gib = 1 + i % 4;
        submit(&mut stage, i as usize, gib);
        run_as_told(&mut stage);
        end(&mut stage, 0, "Completed", used(500 * gib));
    }
    submit(&mut stage, 98, 1);
    let small = run_as_told(&mut stage);
    submit(&mut stage, 99, 4);
    let large = run_as_told(&mut stage);
    assert!(
        small.memory.limit < large.memory.limit,
        "{small:?} {large:?}"
    );
}

#[test]
fn what_attempts_have_taught_is_told_until_the_job_is_over() {
    let mut stage = Stage::new([], [node("n", 0)]);
    submit(&mut stage, 0, 1);
    run_as_told(&mut stage);
    end(&mut stage, 0, "Completed", used(500));
    submit(&mut stage, 1, 1);
    let learned = run_as_told(&mut stage).memory.limit;
    let killed = json!({"samples": 9, "seconds": 9, "peakUnreclaimableBytes": learned.0, "limitBytes": learned.0, "oomKilled": true, "oomKills": 1});
    end(&mut stage, 137, "OOMKilled", killed);
    assert_eq!(phase(&stage), Phase::Queued);
    let tuned = run_as_told(&mut stage);
    assert!(tuned.memory.limit > learned, "{tuned:?}");
    assert_eq!(foretold(&stage).memory.limit, tuned.memory.limit);
    end(&mut stage, 0, "Completed", used(700));
    assert_eq!(phase(&stage), Phase::Complete);
    // The next job of its kind begins with what was learned, and without what this one was given.
    let told = foretold(&stage);
    submit(&mut stage, 2, 1);
    assert_eq!(run_as_told(&mut stage), told);
}
