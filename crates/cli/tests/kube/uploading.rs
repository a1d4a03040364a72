//! On real kubelets: copies of checkpoints in a real S3 server, and a training that goes on from them when its volume is gone.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::copied::{TRAIN, complete, set, unique, who_shows};
use crate::release::{self, succeed};
use crate::s3::{ACCESS, Server};
use crate::support::eventually_or;
use crate::training::Volume;
use crate::workers::{Jobs, host_programs};

const JOB: &str = "copied";

/// The folder's parts: what the training is told.
fn training(folder: &Path, upload: &Value) -> Value {
    fs::write(folder.join("train.sh"), TRAIN).expect("a script");
    set(folder, "size", "100000");
    set(folder, "want", "1");
    let mut template = host_programs(&[(folder, "/training")]);
    template["spec"]["containers"][0]["volumeMounts"][2]["readOnly"] = json!(false);
    json!({
        "command": ["sh", "/training/train.sh", "/training"],
        "memory": {"request": "64Mi", "limit": "256Mi"},
        "checkpoint": {"path": "/ckpt", "size": "1Gi", "keep": 2, "upload": upload},
        "template": template,
    })
}

fn copied(jobs: &Jobs<'_>, step: u64) -> Value {
    jobs.wait_until(JOB, &format!("to have a copy of step {step}"), |status| {
        let saved = &status["saved"];
        saved["uploaded"]["step"] == step && saved.get("uploadProblem").is_none()
    })
}

#[test]
fn a_training_whose_volume_is_gone_goes_on_from_its_copies_and_nobody_sees_the_keys() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "uploading");
    let (objects, folder) = (tempfile::tempdir(), tempfile::tempdir());
    let (objects, folder) = (objects.expect("a folder"), folder.expect("a folder"));
    let (wrong, right) = (unique("wrong"), unique("right"));
    let Some(mut server) = Server::start_on(&testbed.host(), objects.path(), &right) else {
        return;
    };
    let volume = Volume::new(&jobs, &testbed, &format!("{JOB}-checkpoint"));
    let secret = |key: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
            "stringData": {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": key}})
    };
    jobs.apply(&secret(&wrong));
    let upload =
        json!({"uri": "s3://bucket/runs", "secret": "keys", "endpoint": server.endpoint()});
    jobs.create(JOB, &training(folder.path(), &upload));

    // Wrong keys: it is told, and the training goes on.
    jobs.wait_until(JOB, "to say that its keys are wrong", |status| {
        let problem = status["saved"]["uploadProblem"].as_str();
        problem.is_some_and(|problem| problem.contains("SignatureDoesNotMatch"))
    });
    set(folder.path(), "want", "2");
    jobs.wait_until(JOB, "to have saved", |status| status["saved"]["step"] == 2);
    for key in [&wrong, &right] {
        assert_eq!(who_shows(key, server.pid()), [""; 0]);
    }

    // The kubelet shows changed keys within a minute and a half; a new worker has them at once.
    succeed(&mut testbed.kubectl(&["delete", "secret", "keys", "-n", jobs.namespace()]));
    jobs.apply(&secret(&right));
    let first = format!("{JOB}-1-0");
    succeed(&mut testbed.kubectl(&["delete", "pod", &first, "-n", jobs.namespace()]));
    copied(&jobs, 2);
    let job = jobs.get(JOB);
    let uid = job["metadata"]["uid"].as_str().expect("a uid");
    let short = uid.split('-').next().expect("a part");
    let place = server.path(&format!("runs/{}/{JOB}-{short}", jobs.namespace()));
    assert_eq!(complete(&place).len(), 1, "{:?}", complete(&place));

    // The volume is gone, and the server does not answer: nobody begins anew.
    jobs.patch(JOB, &json!({"spec": {"suspend": true}}));
    jobs.wait(JOB, "Suspended");
    for entry in fs::read_dir(volume.path()).expect("the volume").flatten() {
        fs::remove_dir_all(entry.path()).expect("removed");
    }
    server.kill();
    jobs.patch(JOB, &json!({"spec": {"suspend": false}}));
    let pod = format!("{JOB}-3-0");
    let log = || {
        let mut logs = testbed.kubectl(&["logs", &pod, "-n", jobs.namespace()]);
        let output = logs.output().expect("kubectl");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let waits = || {
        let log = log();
        assert!(!log.contains("from 0"), "{log}");
        log.contains("waits: there is no checkpoint").then_some(())
    };
    eventually_or("it to say that it waits", waits, log);
    server.revive();
    let goes_on = || log().contains("from 2").then_some(());
    eventually_or("it to go on", goes_on, log);

    // What is written last gets there, though the program is over.
    set(folder.path(), "want", "3");
    set(folder.path(), "finish", "");
    jobs.wait(JOB, "Complete");
    let last = format!("s3.a3.{short}.step-3");
    assert!(complete(&place).contains(&last), "{:?}", complete(&place));

    let mut told = vec![log()];
    for kind in ["trainjobs", "events", "pods"] {
        told.push(testbed.get(&[kind, "-n", jobs.namespace()]).to_string());
    }
    for text in told {
        assert!(!text.contains(&wrong) && !text.contains(&right), "{text}");
    }
}
