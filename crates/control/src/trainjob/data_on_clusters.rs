//! Jobs on a cluster whose data lies in an object store: the driver on their nodes copies it and tells them how far it is.

use serde_json::{Value, json};
use stoke_api::dataset::Staging;
use stoke_api::names::{
    DATA_DRIVER, STAGED_REASON, STAGING_ANNOTATION, STAGING_FAILED_REASON, STAGING_MANAGER,
    STAGING_REASON,
};

use super::fixtures::{Stage, at, dataset, job, node};
use crate::config::Config;

const FAR: &str = "copying words: 3.1 of 12.0 GiB, 240.0 MiB/s, 38 s left";

fn stage() -> Stage {
    let spec =
        json!({"command": ["a"], "image": "a", "datasets": [{"name": "words", "path": "/data"}]});
    let mut stage = Stage::new([job(spec)], [node("n1", 0)]);
    stage.config = Config {
        data_driver: true,
        ..Config::cluster()
    };
    let bucket = json!({"uri": "s3://bucket/words", "secret": "keys"});
    stage.datasets.push(dataset("words", bucket));
    assert!(stage.turn("j").contains("create pod j-1-0 on n1"));
    stage
}

/// As a kubelet leaves a pod whose volumes are not there yet.
fn waits(stage: &mut Stage, reason: &str) {
    let state = json!({"waiting": {"reason": reason}});
    stage.set_pod("j-1-0", json!({"phase": "Pending", "containerStatuses": [{"name": "worker", "ready": false, "image": "", "imageID": "",
        "restartCount": 0, "state": state}]}));
}

/// What the driver says now.
fn tell(stage: &mut Stage, reason: &str, message: &str) {
    let time = stage.now.to_string();
    let pod = stage.pods.get_mut("j-1-0").expect("a pod");
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(
        STAGING_ANNOTATION.to_owned(),
        Staging::text(reason, message),
    );
    let write = json!([{"manager": STAGING_MANAGER, "operation": "Update", "time": time}]);
    pod.metadata.managed_fields = Some(serde_json::from_value(write).expect("a write"));
}

fn first_line(said: &str) -> String {
    said.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_kubelet_is_told_whose_keys_to_hand_over() {
    let stage = stage();
    let pod = serde_json::to_value(&stage.pods["j-1-0"]).expect("JSON");
    let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
    let csi: Vec<&Value> = volumes.iter().filter_map(|it| it.get("csi")).collect();
    let expected = json!({"driver": DATA_DRIVER, "readOnly": true, "volumeAttributes": {"dataset": "words"},
        "nodePublishSecretRef": {"name": "keys"}});
    assert_eq!(csi, [&expected]);
}

#[test]
fn a_job_says_how_far_its_data_is_and_what_is_wrong_with_it() {
    let mut stage = stage();
    waits(&mut stage, "ContainerCreating");
    insta::assert_snapshot!(first_line(&stage.turn("j")), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1; rank 0 waits for its volumes, dataset words among them, which needs Secret keys in this namespace");
    for usual in ["ContainerCreating", "PodInitializing"] {
        waits(&mut stage, usual);
        tell(&mut stage, STAGING_REASON, FAR);
        insta::allow_duplicates! {
            insta::assert_snapshot!(first_line(&stage.turn("j")), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1; rank 0 waits: copying words: 3.1 of 12.0 GiB, 240.0 MiB/s, 38 s left");
        }
    }
    tell(&mut stage, STAGING_FAILED_REASON, "dataset words: 403");
    insta::assert_snapshot!(first_line(&stage.turn("j")), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1; rank 0 waits: StagingFailed: dataset words: 403");
    tell(&mut stage, STAGED_REASON, "");
    insta::assert_snapshot!(first_line(&stage.turn("j")), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1");
    // What the kubelet knows is newer.
    tell(&mut stage, STAGING_REASON, FAR);
    waits(&mut stage, "ErrImagePull");
    assert!(first_line(&stage.turn("j")).contains("its image cannot be pulled"));
    stage.run_pod("j-1-0");
    assert!(stage.turn("j").starts_with("Running"));
}

#[test]
fn a_gang_whose_data_gets_on_has_the_time_it_takes_and_the_usual_time_after_that() {
    let mut stage = stage();
    waits(&mut stage, "ContainerCreating");
    for minutes in (10..180).step_by(10) {
        stage.now = at(minutes * 60);
        tell(&mut stage, STAGING_REASON, FAR);
        let told = stage.turn("j");
        assert!(
            told.starts_with("Starting") && told.contains("again in 900s"),
            "{told}"
        );
    }
    tell(&mut stage, STAGED_REASON, "");
    stage.pass(600);
    assert!(
        stage.turn("j").starts_with("Starting"),
        "its image is pulled"
    );
    stage.pass(301);
    let told = stage.turn("j");
    assert!(told.starts_with("Restarting (StartFailed)"), "{told}");
}

#[test]
fn a_driver_that_says_nothing_more_is_not_waited_for_without_end() {
    let mut stage = stage();
    waits(&mut stage, "ContainerCreating");
    stage.now = at(600);
    tell(&mut stage, STAGING_REASON, FAR);
    stage.pass(899);
    assert!(stage.turn("j").starts_with("Starting"));
    stage.pass(2);
    let told = stage.turn("j");
    assert!(told.starts_with("Restarting (StartFailed)"), "{told}");
}
