//! A gang on a cluster of which nobody does anything.

use serde_json::json;
use stoke_api::names::IDLE_ANNOTATION;
use stoke_api::trainjob::Outcome;

use super::fixtures::{Stage, job, node};
use crate::config::Config;

const IDLE: &str =
    "it did nothing for 30m: less than a fiftieth of a CPU, no step told after step 7";

fn running(hung_after: Option<&str>) -> Stage {
    let mut spec =
        json!({"image": "acme/train:1", "command": ["train"], "workers": 2, "network": "host"});
    if let Some(after) = hung_after {
        spec["hungAfter"] = after.into();
    }
    let mut stage = Stage::new([job(spec)], [node("n1", 0)]);
    stage.config = Config::cluster();
    stage.turn("j");
    stage.run_pod("j-1-0");
    stage.run_pod("j-1-1");
    stage.turn("j");
    stage
}

/// What its agent says of a worker, and what its log has of the time; none: it cannot be read.
fn set(stage: &mut Stage, pod: &str, is_idle: bool, log: Option<&str>) {
    let own = stage.pods.get_mut(pod).expect("the pod");
    let annotations = own.metadata.annotations.get_or_insert_default();
    if is_idle {
        annotations.insert(IDLE_ANNOTATION.to_owned(), IDLE.to_owned());
    } else {
        annotations.remove(IDLE_ANNOTATION);
    }
    match log {
        Some(log) => drop(stage.logs.insert(pod.to_owned(), log.to_owned())),
        None => drop(stage.logs.remove(pod)),
    }
}

#[test]
fn agents_and_logs_must_agree_before_a_gang_is_held_to_hang() {
    let silent = (true, Some(""));
    let table = [
        ("all are idle and silent", Some("30m"), silent, silent, true),
        ("one works", Some("30m"), silent, (false, Some("")), false),
        (
            "one still logs",
            Some("30m"),
            silent,
            (true, Some("step 8")),
            false,
        ),
        (
            "one cannot be asked",
            Some("30m"),
            (true, None),
            silent,
            false,
        ),
        ("nobody wants to know", None, silent, silent, false),
    ];
    for (name, after, first, second, hangs) in table {
        let mut stage = running(after);
        set(&mut stage, "j-1-0", first.0, first.1);
        set(&mut stage, "j-1-1", second.0, second.1);
        stage.turn("j");
        let attempt = stage.jobs["j"].status.clone().expect("a status").attempts[0].clone();
        assert_eq!(attempt.outcome, hangs.then_some(Outcome::Failed), "{name}");
    }
}

#[test]
fn what_was_seen_is_said_and_counts_and_who_only_logs_is_asked_again() {
    let mut stage = running(Some("30m"));
    set(&mut stage, "j-1-0", true, Some(""));
    set(&mut stage, "j-1-1", true, Some("epoch 3"));
    insta::assert_snapshot!(stage.turn("j"), @r"
    Running (WorkersRunning) 2/2 failures 0: all 2 workers run
      again in 450s
    ");
    stage.pass(450);
    set(&mut stage, "j-1-1", true, Some(""));
    insta::assert_snapshot!(stage.turn("j"), @r"
    Restarting (Hung) 0/2 failures 1: it hangs: of rank 0 its node says that it did nothing for 30m: less than a fiftieth of a CPU, no step told after step 7, and its log has nothing of that time; look at what it waits for (stoke logs), or allow it more with hungAfter
      delete pod j-1-0
      delete pod j-1-1
      tell Hung: it hangs: of rank 0 its node says that it did nothing for 30m: less than a fiftieth of a CPU, no step told after step 7, and its log has nothing of that time; look at what it waits for (stoke logs), or allow it more with hungAfter
    ");
    let status = stage.jobs["j"].status.clone().expect("a status");
    assert_eq!(status.failures_by_cause.hung, Some(1));
}
