//! A job's life, turn by turn: what is planned for every state a job can be in.

use kube::core::response::Status;
use serde_json::json;
use stoke_api::trainjob::{Outcome, Phase};

use super::fixtures::{Stage, at, dataset, job, node};
use super::refusal::Refusal;

fn stage(spec: serde_json::Value) -> Stage {
    Stage::new([job(spec)], [node("n1", 0)])
}

fn gang() -> Stage {
    stage(json!({"command": ["train"], "workers": 2, "memory": {"limit": "1Gi"}}))
}

fn running() -> Stage {
    let mut stage = gang();
    stage.turn("j");
    stage.run_pod("j-1-0");
    stage.run_pod("j-1-1");
    stage.turn("j");
    stage
}

fn status(stage: &Stage) -> stoke_api::TrainJobStatus {
    stage.jobs["j"].status.clone().expect("a status")
}

fn condition(stage: &Stage, kind: &str) -> String {
    let status = status(stage);
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind);
    found.map_or_else(
        || "absent".to_owned(),
        |c| format!("{} {}", c.status, c.reason),
    )
}

#[test]
fn a_gang_starts_whole_runs_and_completes() {
    let mut stage = gang();
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 0/2 failures 0: attempt 1 on n1
      create pod j-1-0 on n1
      create pod j-1-1 on n1
      again in 600s
    ");
    stage.run_pod("j-1-0");
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 1/2 failures 0: attempt 1 on n1
      again in 600s
    ");
    stage.pass(2);
    stage.run_pod("j-1-1");
    insta::assert_snapshot!(stage.turn("j"), @"
    Running (WorkersRunning) 2/2 failures 0: all 2 workers run
      again in 7200s
    ");
    assert_eq!(condition(&stage, "Running"), "True WorkersRunning");
    assert_eq!(condition(&stage, "Admitted"), "True Placed");
    assert_eq!(condition(&stage, "Queued"), "False Placed");
    stage.pass(60);
    stage.end_pod("j-1-1", 0, "Completed");
    insta::assert_snapshot!(stage.turn("j"), @"
    Running (WorkersRunning) 1/2 failures 0: all 2 workers run
      again in 7140s
    ");
    stage.end_pod("j-1-0", 0, "Completed");
    insta::assert_snapshot!(stage.turn("j"), @"Complete (Succeeded) 0/2 failures 0: its 2 workers ended well");
    assert_eq!(condition(&stage, "Complete"), "True Succeeded");
    assert_eq!(condition(&stage, "Running"), "False Succeeded");
    assert_eq!(status(&stage).ran_seconds, 60);
    assert_eq!(stage.pods.len(), 2, "their logs can still be read");
}

#[test]
fn a_worker_that_has_ended_well_is_not_needed_any_more() {
    let mut stage = running();
    stage.end_pod("j-1-1", 0, "Completed");
    stage.turn("j");
    assert_eq!(status(&stage).attempts[0].succeeded, [1]);
    // Removed with its node, or by whoever tidies up.
    stage.pods.remove("j-1-1");
    insta::assert_snapshot!(stage.turn("j"), @"
    Running (WorkersRunning) 1/2 failures 0: all 2 workers run
      again in 7200s
    ");
    // What another does is still its own end.
    let mut failing = gang();
    failing.jobs.clone_from(&stage.jobs);
    failing.pods.clone_from(&stage.pods);
    failing.end_pod("j-1-0", 3, "Error");
    let said = failing.turn("j");
    assert!(
        said.contains("failures 1") && said.contains("rank 0 ended with exit code 3"),
        "{said}"
    );
    stage.end_pod("j-1-0", 0, "Completed");
    insta::assert_snapshot!(stage.turn("j"), @"Complete (Succeeded) 0/2 failures 0: its 2 workers ended well");

    // Nor is it made again before all have started, and the others are still waited for.
    let mut stage = gang();
    stage.turn("j");
    stage.end_pod("j-1-1", 0, "Completed");
    stage.turn("j");
    stage.pods.remove("j-1-1");
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 0/2 failures 0: attempt 1 on n1
      again in 600s
    ");
    stage.run_pod("j-1-0");
    assert!(stage.turn("j").starts_with("Running (WorkersRunning) 1/2"));
}

#[test]
fn one_failure_stops_the_rest_and_the_gang_is_tried_again() {
    let mut stage = running();
    stage.pass(5);
    stage.end_pod("j-1-1", 3, "Error");
    insta::assert_snapshot!(stage.turn("j"), @r"
    Restarting (WorkerFailed) 0/2 failures 1: rank 1 ended with exit code 3
      delete pod j-1-0
      tell WorkerFailed: rank 1 ended with exit code 3
    ");
    let attempt = status(&stage).attempts[0].clone();
    assert_eq!(attempt.outcome, Some(Outcome::Failed));
    assert_eq!(
        attempt.exit.map(|exit| (exit.rank, exit.exit_code)),
        Some((1, Some(3)))
    );
    stage.pods.remove("j-1-0");
    insta::assert_snapshot!(stage.turn("j"), @r"
    Queued (BackingOff) 0/2 failures 1: attempt 2 starts at 2027-01-15T08:00:06Z, 1 of 3 retries used; the last: rank 1 ended with exit code 3
      again in 1s
    ");
    stage.pass(1);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 0/2 failures 1: attempt 2 on n1
      create pod j-2-0 on n1
      create pod j-2-1 on n1
      again in 600s
    ");
}

#[test]
fn a_job_that_keeps_failing_fails_with_its_retries() {
    let mut stage = stage(json!({"command": ["train"], "retries": 1}));
    for attempt in 1..=2 {
        stage.turn("j");
        stage.end_pod(&format!("j-{attempt}-0"), 7, "Error");
        stage.turn("j");
        stage.pass(30);
    }
    insta::assert_snapshot!(stage.turn("j"), @"Failed (RetriesExhausted) 0/1 failures 2: 2 attempts failed; the last: rank 0 ended with exit code 7");
    assert_eq!(condition(&stage, "Failed"), "True RetriesExhausted");
    assert_eq!(status(&stage).attempt, 2);
}

#[test]
fn without_retries_the_cause_is_the_reason() {
    let mut stage =
        stage(json!({"command": ["train"], "retries": 0, "memory": {"limit": "128Mi"}}));
    stage.turn("j");
    stage.run_pod("j-1-0");
    stage.end_pod("j-1-0", 137, "OOMKilled");
    insta::assert_snapshot!(stage.turn("j"), @r"
    Failed (OutOfMemory) 0/1 failures 1: rank 0 was killed at its memory limit of 128 MiB (OOMKilled, exit code 137); raise memory.limit, or use less: a smaller batch, fewer loader workers
      tell OutOfMemory: rank 0 was killed at its memory limit of 128 MiB (OOMKilled, exit code 137); raise memory.limit, or use less: a smaller batch, fewer loader workers
    ");
}

#[test]
fn the_end_that_explains_the_others_is_the_cause() {
    let mut stage = running();
    stage.end_pod("j-1-0", 1, "Error");
    stage.pass(2);
    stage.end_pod("j-1-1", 137, "OOMKilled");
    stage.turn("j");
    let exit = status(&stage).attempts[0].exit.clone().expect("an exit");
    assert_eq!((exit.rank, exit.reason.as_str()), (1, "OOMKilled"));
}

#[test]
fn what_is_done_from_outside_does_not_count() {
    // Deleted.
    let mut stage = running();
    stage.delete_pod("j-1-0", None);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Restarting (WorkerLost) 0/2 failures 0: rank 0 was deleted from outside
      delete pod j-1-1
      tell WorkerLost: rank 0 was deleted from outside
      again in 90s
    ");
    // Gone without a word.
    let mut stage = running();
    stage.pods.remove("j-1-1");
    assert!(
        stage
            .turn("j")
            .starts_with("Restarting (WorkerLost) 0/2 failures 0")
    );
    // Ended because it was deleted.
    let mut stage = running();
    stage.delete_pod("j-1-0", None);
    stage.end_pod("j-1-0", 143, "Error");
    assert!(
        stage
            .turn("j")
            .starts_with("Restarting (WorkerLost) 0/2 failures 0")
    );
    // Evicted.
    let mut stage = running();
    stage.set_pod("j-1-0", json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}));
    assert!(
        stage
            .turn("j")
            .starts_with("Restarting (Evicted) 0/2 failures 0")
    );
    // Lost with its node: nobody is waited for there.
    let mut stage = running();
    stage.nodes.clear();
    let said = stage.turn("j");
    assert!(
        said.starts_with("Queued (BackingOff) 0/2 failures 0"),
        "{said}"
    );
    stage.nodes.insert("n2".to_owned(), node("n2", 0));
    stage.pass(2);
    assert!(stage.turn("j").contains("create pod j-2-0 on n2"));
}

#[test]
fn a_stopping_worker_is_waited_for_but_not_for_ever() {
    let mut stage = running();
    stage.delete_pod("j-1-0", None);
    stage.turn("j");
    stage.pass(89);
    assert!(stage.turn("j").starts_with("Restarting"));
    stage.pass(1);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 0/2 failures 0: attempt 2 on n1
      create pod j-2-0 on n1
      create pod j-2-1 on n1
      again in 600s
    ");
}

#[test]
fn suspend_stops_and_resume_goes_on_and_neither_counts() {
    let mut stage = running();
    stage.pass(10);
    stage.jobs.get_mut("j").expect("the job").spec.suspend = true;
    insta::assert_snapshot!(stage.turn("j"), @r"
    Suspended (Suspended) 0/2 failures 0: suspended; 2 workers must still stop
      delete pod j-1-0
      delete pod j-1-1
    ");
    assert_eq!(condition(&stage, "Suspended"), "True Suspended");
    stage.jobs.get_mut("j").expect("the job").spec.suspend = false;
    assert!(stage.turn("j").starts_with("Queued (StoppingWorkers)"));
    stage.pods.clear();
    assert!(
        stage
            .turn("j")
            .starts_with("Starting (StartingWorkers) 0/2 failures 0: attempt 2")
    );
    assert_eq!(condition(&stage, "Suspended"), "False Resumed");
    assert_eq!(status(&stage).attempts[0].outcome, Some(Outcome::Suspended));
    assert_eq!(status(&stage).ran_seconds, 10);
}

#[test]
fn a_job_may_be_suspended_from_the_beginning() {
    let mut stage = stage(json!({"command": ["train"], "suspend": true}));
    assert!(stage.turn("j").starts_with("Suspended (Suspended) 0/1"));
    assert!(stage.pods.is_empty());
}

#[test]
fn a_gang_that_does_not_start_in_time_is_placed_anew() {
    let mut stage = gang();
    stage.turn("j");
    stage.run_pod("j-1-0");
    stage.set_pod("j-1-1", json!({"phase": "Pending", "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": "CreateContainerError", "message": "no such directory"}}}]}));
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 1/2 failures 0: attempt 1 on n1; rank 1 waits: CreateContainerError: no such directory
      again in 120s
    ");
    stage.pass(120);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Restarting (StartFailed) 0/2 failures 0: rank 1 did not start in time on n1: CreateContainerError: no such directory; check that what it mounts exists where it runs
      delete pod j-1-0
      delete pod j-1-1
      tell StartFailed: rank 1 did not start in time on n1: CreateContainerError: no such directory; check that what it mounts exists where it runs
    ");
}

#[test]
fn a_job_that_never_starts_is_given_up() {
    let mut stage = stage(json!({"command": ["train"], "retries": 0}));
    let late = |stage: &mut Stage, attempts: std::ops::RangeInclusive<u32>| {
        for attempt in attempts {
            assert_eq!(status(stage).attempt, attempt);
            stage.pass(600);
            stage.turn("j");
            stage.pods.clear();
            stage.pass(600);
            stage.turn("j");
        }
    };
    stage.turn("j");
    late(&mut stage, 1..=4);
    // Who changes the job may have mended it.
    let job = stage.jobs.get_mut("j").expect("the job");
    job.metadata.generation = Some(2);
    stage.pods.clear();
    stage.turn("j");
    stage.pass(600);
    stage.turn("j");
    let first = status(&stage).attempt;
    assert_eq!(status(&stage).phase, Phase::Starting);
    late(&mut stage, first..=first + 4);
    insta::assert_snapshot!(stage.turn("j"), @"Failed (StartFailed) 0/1 failures 0: 5 attempts in a row did not start; the last: rank 0 did not start in time on n1");
    assert_eq!(condition(&stage, "Failed"), "True StartFailed");
}

#[test]
fn max_duration_is_of_all_attempts_together() {
    let mut stage = stage(json!({"command": ["train"], "maxDuration": "1m"}));
    stage.turn("j");
    stage.run_pod("j-1-0");
    assert!(stage.turn("j").contains("again in 60s"));
    stage.pass(40);
    stage.end_pod("j-1-0", 1, "Error");
    stage.turn("j");
    stage.pass(10);
    stage.turn("j");
    stage.run_pod("j-2-0");
    assert!(stage.turn("j").contains("again in 20s"));
    stage.pass(20);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Failed (DeadlineExceeded) 0/1 failures 2: it ran for its maxDuration of 1m
      delete pod j-2-0
      tell DeadlineExceeded: it ran for its maxDuration of 1m
    ");
}

#[test]
fn a_finished_job_goes_when_its_time_is_up() {
    let mut stage = stage(json!({"command": ["train"], "ttl": "1h"}));
    stage.turn("j");
    stage.end_pod("j-1-0", 0, "Completed");
    assert!(stage.turn("j").contains("again in 3600s"));
    stage.pass(3600);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Complete (Succeeded) 0/1 failures 0: its worker ended well
      learn train-c7c22f862acddc31: 0 runs
      delete the job
    ");
    assert!(stage.jobs.is_empty());
}

#[test]
fn an_mpi_job_is_done_when_its_launcher_is() {
    let mut stage = stage(json!({"framework": "mpi", "command": ["train"], "workers": 2}));
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 0/2 failures 0: attempt 1 on n1
      ensure secret j-mpi-uid
      create pod j-1-0 on n1
      create pod j-1-1 on n1
      again in 600s
    ");
    stage.run_pod("j-1-0");
    stage.run_pod("j-1-1");
    stage.turn("j");
    stage.end_pod("j-1-0", 0, "Completed");
    insta::assert_snapshot!(stage.turn("j"), @r"
    Complete (Succeeded) 0/2 failures 0: its 2 workers ended well
      delete pod j-1-1
    ");
}

#[test]
fn a_worker_that_has_ended_is_not_kept_by_its_sidecars() {
    let template =
        json!({"spec": {"containers": [{"name": "worker"}, {"name": "log", "image": "shipper"}]}});
    let mut stage = stage(json!({"command": ["train"], "retries": 0, "template": template}));
    stage.turn("j");
    let container = |name: &str, state: serde_json::Value| json!({"name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state});
    let ended = container(
        "worker",
        json!({"terminated": {"exitCode": 4, "reason": "Error"}}),
    );
    let running = container("log", json!({"running": {}}));
    stage.set_pod(
        "j-1-0",
        json!({"phase": "Running", "containerStatuses": [running, ended]}),
    );
    insta::assert_snapshot!(stage.turn("j"), @r"
    Failed (WorkerFailed) 0/1 failures 1: rank 0 ended with exit code 4
      delete pod j-1-0
      tell WorkerFailed: rank 0 ended with exit code 4
    ");
}

#[test]
fn data_is_waited_for_as_long_as_it_takes_and_the_job_says_how_far_it_is() {
    let mut stage =
        stage(json!({"command": ["train"], "datasets": [{"name": "words", "path": "/data"}]}));
    stage
        .datasets
        .push(dataset("words", json!({"uri": "s3://bucket/words"})));
    assert!(stage.turn("j").starts_with("Starting"));
    let far = "copying words: 3.1 of 12.0 GiB, 240.0 MiB/s, 38 s left";
    stage.set_pod("j-1-0", json!({"phase": "Pending", "containerStatuses": [{"name": "worker", "ready": false, "image": "", "imageID": "",
        "restartCount": 0, "state": {"waiting": {"reason": "StagingDataset", "message": far}}}]}));
    insta::assert_snapshot!(stage.turn("j"), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1; rank 0 waits: copying words: 3.1 of 12.0 GiB, 240.0 MiB/s, 38 s left");
    stage.now = at(7200);
    insta::assert_snapshot!(stage.turn("j"), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1; rank 0 waits: copying words: 3.1 of 12.0 GiB, 240.0 MiB/s, 38 s left");
}

#[test]
fn data_that_could_not_be_copied_at_once_is_tried_for_again_for_a_while() {
    let mut stage =
        stage(json!({"command": ["train"], "datasets": [{"name": "words", "path": "/data"}]}));
    stage
        .datasets
        .push(dataset("words", json!({"uri": "s3://bucket/words"})));
    stage.turn("j");
    let waiting = |reason: &str, message: &str| {
        json!({"phase": "Pending", "containerStatuses": [{"name": "worker", "ready": false, "image": "", "imageID": "",
        "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]})
    };
    stage.now = at(1800);
    stage.set_pod("j-1-0", waiting("StagingFailed", "the store is busy"));
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1; rank 0 waits: StagingFailed: the store is busy
      again in 1800s
    ");
    stage.now = at(7200);
    stage.set_pod("j-1-0", waiting("StagingDataset", "copying words"));
    assert!(stage.turn("j").starts_with("Starting"));
    stage.set_pod("j-1-0", waiting("StagingFailed", "no such bucket"));
    let told = stage.turn("j");
    assert!(told.starts_with("Restarting (StartFailed)"), "{told}");
}

#[test]
fn an_export_is_not_mounted_on_one_machine() {
    let mut stage =
        stage(json!({"command": ["train"], "datasets": [{"name": "words", "path": "/data"}]}));
    let export = json!({"nfs": {"server": "nas", "path": "/words"}});
    stage.datasets.push(dataset("words", export));
    insta::assert_snapshot!(stage.turn("j"), @r"
    Queued (Misconfigured) 0/1 failures 0: spec.datasets[0]: Dataset words is an NFS export, and nothing is mounted on this machine for a job; mount nas:/words yourself and set uri: file:///WHERE
      tell Misconfigured: spec.datasets[0]: Dataset words is an NFS export, and nothing is mounted on this machine for a job; mount nas:/words yourself and set uri: file:///WHERE
    ");
}

#[test]
fn a_job_waits_with_its_reason_and_starts_when_that_is_gone() {
    let mut stage = stage(
        json!({"command": ["train"], "gpus": 1, "datasets": [{"name": "words", "path": "/data"}]}),
    );
    insta::assert_snapshot!(stage.turn("j"), @r"
    Queued (WaitingForDataset) 0/1 failures 0: there is no Dataset words in namespace default; it starts when there is
      tell WaitingForDataset: there is no Dataset words in namespace default; it starts when there is
    ");
    assert_eq!(condition(&stage, "Queued"), "True WaitingForDataset");
    stage
        .datasets
        .push(dataset("words", json!({"uri": "file:///srv/words"})));
    insta::assert_snapshot!(stage.turn("j"), @r"
    Queued (NoMatchingNodes) 0/1 failures 0: no room for a worker with 1 GPU and 1 CPU; 1 node: 1 has too few GPUs; ask for less: the largest that matches has 8 CPUs and 64 GiB of memory
      tell NoMatchingNodes: no room for a worker with 1 GPU and 1 CPU; 1 node: 1 has too few GPUs; ask for less: the largest that matches has 8 CPUs and 64 GiB of memory
      again in 60s
    ");
    stage.nodes.insert("n2".to_owned(), node("n2", 2));
    assert!(stage.turn("j").starts_with("Starting"));
    let attempt = status(&stage).attempts[0].clone();
    assert_eq!(attempt.nodes, ["n2"]);
    assert_eq!(
        attempt.cpus.map(|cpus| cpus.to_string()).as_deref(),
        Some("3600m"),
        "its GPU's share"
    );
    let memory = attempt.memory.expect("a size");
    insta::assert_snapshot!(memory.why, @"29 GiB, 1 of 2 GPUs' share of the node's 64 GiB, less a tenth for the rest");
}

#[test]
fn what_cannot_be_run_says_which_field_to_change() {
    let reason = |spec| {
        stage(spec)
            .turn("j")
            .lines()
            .next()
            .expect("a line")
            .to_owned()
    };
    insta::assert_snapshot!(reason(json!({"command": ["train"], "template": {"spec": {"volums": [1]}}})), @"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.volums: unknown field");
    insta::assert_snapshot!(reason(json!({"framework": "mpi", "command": ["/usr/bin/mpirun", "-np", "2", "train"]})), @"Queued (Misconfigured) 0/1 failures 0: spec.command: leave out mpirun and its options: the job runs mpirun itself, over all its workers");
    insta::assert_snapshot!(reason(json!({"framework": "jax", "command": ["train"], "processesPerWorker": 2})), @"Queued (Misconfigured) 0/1 failures 0: spec.processesPerWorker: only torch and mpi start several processes a worker, not Jax; use more workers");
    insta::assert_snapshot!(reason(json!({"template": {"spec": {"nodeSelector": {}}}})), @"Queued (Misconfigured) 0/1 failures 0: spec.command: on one machine there is no image to run: say what to run");
    insta::assert_snapshot!(reason(json!({"command": ["a"], "env": [{"name": "A", "valueFrom": {"fieldRef": 3}}]})), @"Queued (Misconfigured) 0/1 failures 0: spec.env[0].valueFrom.fieldRef: invalid type: integer `3`, expected ObjectFieldSelector");
    insta::assert_snapshot!(reason(json!({"command": ["a"], "template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}}}}}})), @r#"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.affinity.nodeAffinity: "Is" is not an operator"#);
}

/// As kube-apiserver says that there is no quota left.
fn exceeded_quota() -> Refusal {
    let said = r#"pods "j-1-1" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1"#;
    let status = Status::failure(said, "Forbidden").with_code(403);
    Refusal::new("create pod j-1-1", &status).of_attempt(1)
}

#[test]
fn a_gang_that_cannot_be_had_whole_is_given_up_whole_and_tried_again() {
    let mut stage = gang();
    let plan = stage.plan("j").expect("a plan");
    stage.carry_out("j", &plan, 2);
    assert_eq!(stage.pods.len(), 1, "the second was refused");
    stage.refused = Some(exceeded_quota());
    let plan = stage.plan("j").expect("a plan");
    insta::assert_snapshot!(super::fixtures::said(&plan), @r#"
        Restarting (WaitingForQuota) 0/2 failures 0: could not create pod j-1-1: pods "j-1-1" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1; it is tried again by itself: wait until others have ended, ask for less, or have the namespace's ResourceQuota raised
          delete pod j-1-0
          tell WaitingForQuota: could not create pod j-1-1: pods "j-1-1" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1; it is tried again by itself: wait until others have ended, ask for less, or have the namespace's ResourceQuota raised
        "#);
    stage.carry_out("j", &plan, usize::MAX);
    stage.refused = None;
    stage.pass(30);
    stage.pods.clear();
    insta::assert_snapshot!(stage.turn("j").lines().next().expect("a line"), @"Starting (StartingWorkers) 0/2 failures 0: attempt 2 on n1");
    assert_eq!(condition(&stage, "Admitted"), "True Placed");

    // The same again, and this time it waits longer, with its reason.
    stage.refused = Some(exceeded_quota().of_attempt(2));
    stage.turn("j");
    stage.refused = None;
    stage.pods.clear();
    stage.pass(1);
    insta::assert_snapshot!(stage.turn("j"), @r#"
        Queued (WaitingForQuota) 0/2 failures 0: attempt 3 starts at 2027-01-15T08:00:43Z, 0 of 3 retries used; the last: could not create pod j-1-1: pods "j-1-1" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1; it is tried again by itself: wait until others have ended, ask for less, or have the namespace's ResourceQuota raised
          again in 12s
        "#);
    assert_eq!(condition(&stage, "Queued"), "True WaitingForQuota");
    assert_eq!(status(&stage).failures, 0, "it is not the job's fault");
    // Who changes the job does not wait.
    let job = stage.jobs.get_mut("j").expect("the job");
    job.metadata.generation = Some(2);
    assert!(stage.turn("j").starts_with("Starting (StartingWorkers)"));
}

#[test]
fn what_was_refused_for_an_earlier_attempt_does_not_end_this_one() {
    let mut stage = running();
    stage.refused = Some(exceeded_quota().of_attempt(7));
    assert!(stage.turn("j").starts_with("Running (WaitingForQuota) 2/2"));
    stage.refused = None;
    assert!(stage.turn("j").starts_with("Running (WorkersRunning) 2/2"));
}

#[test]
fn an_image_that_is_not_there_is_told_in_the_kubelets_words() {
    let mut stage = gang();
    stage.turn("j");
    stage.run_pod("j-1-0");
    stage.set_pod("j-1-1", json!({"phase": "Pending", "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"acme/vison:1\": not found"}}}]}));
    insta::assert_snapshot!(stage.turn("j"), @r#"
        Starting (StartingWorkers) 1/2 failures 0: attempt 1 on n1; rank 1 waits: its image cannot be pulled: Back-off pulling image "acme/vison:1": not found
          again in 600s
        "#);
    stage.pass(600);
    insta::assert_snapshot!(stage.turn("j"), @r#"
        Restarting (StartFailed) 0/2 failures 1: rank 1 did not start in time on n1: ImagePullBackOff: Back-off pulling image "acme/vison:1": not found; check the image's name and, for a private registry, template.spec.imagePullSecrets
          delete pod j-1-0
          delete pod j-1-1
          tell StartFailed: rank 1 did not start in time on n1: ImagePullBackOff: Back-off pulling image "acme/vison:1": not found; check the image's name and, for a private registry, template.spec.imagePullSecrets
        "#);
}

#[test]
fn a_gang_is_of_one_spec() {
    let mut stage = gang();
    let plan = stage.plan("j").expect("a plan");
    stage.carry_out("j", &plan, 2);
    let job = stage.jobs.get_mut("j").expect("the job");
    job.spec.command = vec!["other".to_owned()];
    job.metadata.generation = Some(2);
    assert!(
        stage
            .turn("j")
            .starts_with("Restarting (WorkerLost) 0/2 failures 0: the job was changed")
    );
    // Once all are there, a change waits for the next attempt.
    let mut stage = running();
    let job = stage.jobs.get_mut("j").expect("the job");
    job.spec.workers = 3;
    job.metadata.generation = Some(2);
    assert!(stage.turn("j").starts_with("Running (WorkersRunning) 2/2"));
    stage.end_pod("j-1-0", 1, "Error");
    stage.turn("j");
    stage.pods.clear();
    stage.pass(1);
    assert!(stage.turn("j").contains("create pod j-2-2 on n1"));
}

#[test]
fn pods_of_an_earlier_job_of_the_same_name_are_not_ours() {
    let mut stage = running();
    let job = stage.jobs.get_mut("j").expect("the job");
    job.metadata.uid = Some("another".to_owned());
    job.status = None;
    insta::assert_snapshot!(stage.turn("j"), @"Queued (StoppingWorkers) 0/2 failures 0: pod j-1-0 of an earlier job of this name must go first");
    stage.pods.clear();
    assert!(stage.turn("j").starts_with("Starting"));
}

#[test]
fn jobs_of_others_and_jobs_that_go_are_left_alone() {
    let mut stage = stage(json!({"command": ["train"], "managedBy": "example.com/else"}));
    let plan = stage.plan("j").expect("a plan");
    assert!(plan.actions.is_empty() && plan.status == stoke_api::TrainJobStatus::default());
    let job = stage.jobs.get_mut("j").expect("the job");
    job.spec.managed_by = None;
    job.metadata.deletion_timestamp = Some(at(0).into());
    assert!(stage.plan("j").expect("a plan").actions.is_empty());
}

#[test]
fn a_job_that_a_finalizer_keeps_trains_no_more() {
    let going = |finalizer: &str| {
        let mut stage = gang();
        let plan = stage.plan("j").expect("a plan");
        stage.carry_out("j", &plan, 2);
        stage.run_pod("j-1-0");
        let job = stage.jobs.get_mut("j").expect("the job");
        job.metadata.deletion_timestamp = Some(at(0).into());
        job.metadata.finalizers = Some(vec![finalizer.to_owned()]);
        stage
    };
    // Its worker is stopped, and the one that was to come is not made.
    insta::assert_snapshot!(going("example.com/billing").turn("j"), @r"
    Starting (StartingWorkers) 0/2 failures 0: attempt 1 on n1
      delete pod j-1-0
    ");
    let left = going("orphan").plan("j").expect("a plan");
    assert!(
        left.actions.is_empty(),
        "whoever asks for orphans gets them"
    );
}

#[test]
fn old_pods_are_cleared_away_but_for_the_last_failed_attempt() {
    let mut stage = stage(json!({"command": ["train"], "retries": 5}));
    for attempt in 1..=3 {
        stage.turn("j");
        stage.end_pod(&format!("j-{attempt}-0"), 1, "Error");
        stage.turn("j");
        stage.pass(60);
    }
    stage.turn("j");
    assert_eq!(
        stage.pods.keys().map(String::as_str).collect::<Vec<_>>(),
        ["j-3-0", "j-4-0"]
    );
}

#[test]
fn waits_grow_with_failures_in_a_row_and_begin_anew_after_a_long_run() {
    let mut stage = stage(json!({"command": ["train"], "retries": 9}));
    let mut waits = Vec::new();
    for attempt in 1..=5 {
        stage.turn("j");
        let pod = format!("j-{attempt}-0");
        stage.run_pod(&pod);
        stage.turn("j");
        stage.pass(if attempt == 4 { 3600 } else { 1 });
        stage.end_pod(&pod, 1, "Error");
        stage.turn("j");
        let next = status(&stage).next_attempt_at.expect("a time").0;
        waits.push(next.duration_since(stage.now).as_secs());
        stage.now = next;
    }
    let expected = [1..=1, 10..=15, 20..=30, 1..=1, 1..=1];
    assert!(
        waits
            .iter()
            .zip(&expected)
            .all(|(wait, all)| all.contains(wait)),
        "{waits:?}"
    );
    assert_eq!(status(&stage).phase, Phase::Queued);
}

#[test]
fn jobs_that_are_refused_together_are_not_tried_again_together() {
    let next = |uid: &str| {
        let mut stage = gang();
        stage.jobs.get_mut("j").expect("the job").metadata.uid = Some(uid.to_owned());
        for attempt in 1..=2 {
            stage.turn("j");
            stage.refused = Some(exceeded_quota().of_attempt(attempt));
            stage.turn("j");
            stage.refused = None;
            stage.pods.clear();
            stage.pass(1);
        }
        status(&stage).next_attempt_at.expect("a time").0
    };
    assert_eq!(next("one"), next("one"), "it is planned the same each time");
    let times: std::collections::BTreeSet<_> = ["one", "two", "three", "four"]
        .map(next)
        .into_iter()
        .collect();
    assert_eq!(times.len(), 4);
}
