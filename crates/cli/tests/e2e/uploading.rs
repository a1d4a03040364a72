//! Copies of checkpoints in a real S3 server, on bad days: a training never waits for them, and goes on from them when its volume is gone.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::copied::{TRAIN, complete, set, unique, who_shows};
use crate::s3::{ACCESS, Server};
use crate::support::{Engine, eventually, have, is_root, said};
use crate::wire::Wire;

struct Training<'a> {
    engine: &'a Engine,
    name: &'static str,
    folder: PathBuf,
}

impl<'a> Training<'a> {
    fn submit(engine: &'a Engine, name: &'static str, size: usize, checkpoint: Value) -> Self {
        let folder = engine.folder().join(name);
        fs::create_dir(&folder).expect("a folder");
        let training = Self {
            engine,
            name,
            folder,
        };
        training.set("size", &size.to_string());
        training.set("want", "1");
        let script = engine.write(&format!("{name}.sh"), TRAIN);
        let spec = json!({"command": ["sh", script, training.folder], "memory": {"limit": "512Mi"}, "checkpoint": checkpoint});
        let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec});
        let file = engine.write(&format!("{name}.json"), &object.to_string());
        engine.stoke(&["run", "--detach", &file]);
        training
    }

    fn set(&self, name: &str, text: &str) {
        set(&self.folder, name, text);
    }

    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || {
            let job = self.engine.job(self.name);
            holds(&job["status"]).then_some(job)
        })
    }

    fn until_copied(&self, step: u64) -> Value {
        self.until(&format!("a copy of step {step}"), |status| {
            status["saved"]["uploaded"]["step"] == step
                && status["saved"].get("uploadProblem").is_none()
        })
    }

    fn until_problem(&self, text: &str) -> Value {
        self.until(&format!("the problem {text}"), |status| {
            status["saved"]["uploadProblem"]
                .as_str()
                .is_some_and(|problem| problem.contains(text))
        })
    }

    fn until_saved(&self, step: u64) {
        self.until(&format!("step {step}"), |status| {
            status["saved"]["step"] == step
        });
    }

    /// The program itself says so, and nobody between.
    fn until_at(&self, step: u64) {
        eventually(&format!("the program at step {step}"), || {
            let at = fs::read_to_string(self.folder.join("at")).unwrap_or_default();
            (at.trim() == step.to_string()).then_some(())
        });
    }

    /// Where its copies lie, and the first part of its uid.
    fn copies(&self, server: &Server) -> (PathBuf, String) {
        let job = self.engine.job(self.name);
        let uid = job["metadata"]["uid"].as_str().expect("a uid");
        let short = uid.split('-').next().expect("a part").to_owned();
        let place = server.path(&format!("runs/default/{}-{short}", self.name));
        (place, short)
    }

    fn patch(&self, patch: &Value) {
        let patched = self
            .engine
            .kubectl(&["patch", "trainjob", self.name, "--type=merge"])
            .args(["-p", &patch.to_string()])
            .output()
            .expect("kubectl runs");
        assert!(patched.status.success(), "{}", said(&patched));
    }

    fn logs(&self) -> String {
        self.engine.stoke(&["logs", self.name])
    }

    /// Of an attempt that is on record and has no pod yet there are none, which `stoke logs` takes for an error.
    fn logs_so_far(&self) -> String {
        let output = self.engine.try_stoke(&["logs", self.name]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn put_secret(engine: &Engine, key: &str) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
        "stringData": {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": key}});
    let file = engine.write("secret.json", &secret.to_string());
    let applied = engine
        .kubectl(&["apply", "-f", &file])
        .output()
        .expect("kubectl runs");
    assert!(applied.status.success(), "{}", said(&applied));
    fs::remove_file(file).expect("removed");
}

#[test]
fn copies_get_there_in_the_end_and_a_training_goes_on_from_them_when_its_volume_is_gone() {
    if !have("kubectl") {
        eprintln!("skipped: no kubectl");
        return;
    }
    let engine = Engine::start();
    let (wrong, right) = (unique("wrong"), unique("right"));
    let Some(mut server) = Server::start(&engine.folder().join("objects"), &right) else {
        return;
    };
    put_secret(&engine, &wrong);
    let upload =
        json!({"uri": "s3://bucket/runs", "secret": "keys", "endpoint": server.endpoint()});
    let checkpoint = json!({"path": "/ckpt", "size": "1Gi", "keep": 2, "upload": upload});
    let training = Training::submit(&engine, "copied", 100_000, checkpoint);

    // Wrong keys: it is told, and the training goes on.
    let job = training.until_problem("SignatureDoesNotMatch");
    training.set("want", "2");
    training.until_saved(2);
    assert_eq!(job["status"]["phase"], "Running");
    let described = engine.stoke(&["describe", "trainjob", "copied"]);
    assert!(described.contains("UploadFailing"), "{described}");
    for key in [&wrong, &right] {
        assert_eq!(who_shows(key, server.pid()), [""; 0]);
    }

    put_secret(&engine, &right);
    let job = training.until_copied(2);
    let uid = job["metadata"]["uid"].as_str().expect("a uid");
    let short = uid.split('-').next().expect("a part").to_owned();
    let place = server.path(&format!("runs/default/copied-{short}"));
    assert_eq!(complete(&place), [format!("s2.a1.{short}.step-2")]);

    // A server that is gone and comes back.
    server.kill();
    training.set("want", "4");
    training.until_saved(4);
    training.until_problem("onnect");
    server.revive();
    training.until_copied(4);
    let two = [
        format!("s2.a1.{short}.step-2"),
        format!("s4.a1.{short}.step-4"),
    ];
    assert_eq!(complete(&place), two, "those between are passed over");

    // One that somebody began and never finished.
    let torn = place.join(format!("s99.a1.{short}.step-99"));
    fs::create_dir(&torn).expect("a directory");
    fs::write(torn.join("state"), "99").expect("a file");
    fs::write(torn.join("complete"), r#"{"step": 99}"#).expect("a file");

    // The volume is gone, and the server does not answer: nobody begins anew.
    training.patch(&json!({"spec": {"suspend": true}}));
    engine.wait_for_phase("copied", "Suspended");
    let claim = engine.kubectl(&["get", "pv", "-o", "json"]).output();
    let volumes: Value =
        serde_json::from_slice(&claim.expect("kubectl runs").stdout).expect("JSON");
    let volumes = volumes["items"].as_array().expect("volumes").iter();
    let mut paths = volumes.filter_map(|it| {
        let spec = &it["spec"];
        spec["hostPath"]["path"]
            .as_str()
            .or(spec["local"]["path"].as_str())
    });
    let volume = PathBuf::from(paths.next().expect("the volume"));
    for entry in fs::read_dir(&volume).expect("the volume").flatten() {
        fs::remove_dir_all(entry.path()).expect("removed");
    }
    server.kill();
    training.patch(&json!({"spec": {"suspend": false}}));
    eventually("it to say that it waits", || {
        let logs = training.logs_so_far();
        let waits = logs.contains("waits: there is no checkpoint");
        assert!(!waits || !logs.contains("from 0"), "{logs}");
        waits.then_some(())
    });
    server.revive();
    eventually("it to go on", || {
        training.logs_so_far().contains("from 4").then_some(())
    });

    // What is written last gets there, though the program is over.
    training.set("want", "5");
    training.set("finish", "");
    engine.wait_for_phase("copied", "Complete");
    let two = [
        format!("s4.a1.{short}.step-4"),
        format!("s5.a2.{short}.step-5"),
    ];
    assert_eq!(complete(&place), two);
    assert!(torn.join("state").exists(), "what is not known is left");

    let events = engine
        .kubectl(&["get", "events", "-A", "-o", "json"])
        .output();
    let pods = engine
        .kubectl(&["get", "pods", "-A", "-o", "json"])
        .output();
    let told = [
        training.logs(),
        engine.job("copied").to_string(),
        engine.stoke(&["describe", "trainjob", "copied"]),
        fs::read_to_string(engine.data_dir().join("engine.log")).expect("a log"),
        said(&events.expect("kubectl runs")),
        said(&pods.expect("kubectl runs")),
    ];
    for text in told {
        assert!(!text.contains(&wrong) && !text.contains(&right), "{text}");
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn a_server_that_dies_in_the_middle_of_one_object_is_sent_the_rest_when_it_is_back() {
    if !have("kubectl") {
        eprintln!("skipped: no kubectl");
        return;
    }
    let engine = Engine::start();
    let key = unique("key");
    let Some(mut server) = Server::start(&engine.folder().join("objects"), &key) else {
        return;
    };
    put_secret(&engine, &key);
    let wire = Wire::to(&server.endpoint());
    wire.limit(24 * MIB);
    let upload = json!({"uri": "s3://bucket/runs", "secret": "keys", "endpoint": wire.endpoint()});
    let checkpoint = json!({"path": "/ckpt", "size": "1Gi", "upload": upload});
    let size = 96 * MIB;
    let training = Training::submit(&engine, "torn", size as usize, checkpoint);
    // Six parts are on their way at once, so the first of them are there.
    eventually("some of it", || (wire.up() > 56 * MIB).then_some(()));
    server.kill();
    let (place, short) = training.copies(&server);
    assert_eq!(complete(&place), [""; 0], "nobody could go back to it");
    training.set("size", "1000");
    training.set("want", "2");
    training.until_at(2);
    wire.limit(0);
    server.revive();
    training.until_copied(2);
    assert!(wire.up() < 2 * size, "{} of {size}", wire.up());
    let copies = [
        format!("s1.a1.{short}.step-1"),
        format!("s2.a1.{short}.step-2"),
    ];
    assert_eq!(complete(&place), copies);
    let weights = place.join(&copies[0]).join("rank-0/weights");
    assert_eq!(fs::metadata(weights).expect("an object").len(), size);
    training.set("finish", "");
    engine.wait_for_phase("torn", "Complete");
}

#[test]
fn a_slow_store_slows_no_training_and_is_caught_up_with() {
    if !have("kubectl") {
        eprintln!("skipped: no kubectl");
        return;
    }
    let engine = Engine::start();
    let key = unique("key");
    let Some(server) = Server::start(&engine.folder().join("objects"), &key) else {
        return;
    };
    put_secret(&engine, &key);
    let wire = Wire::to(&server.endpoint());
    let upload = json!({"uri": "s3://bucket/runs", "secret": "keys", "endpoint": wire.endpoint()});
    let checkpoint = json!({"path": "/ckpt", "size": "1Gi", "keep": 2, "upload": upload});
    let training = Training::submit(&engine, "slow", 1000, checkpoint);
    training.until_copied(1);
    // A copy takes more than a minute now.
    wire.limit(128 << 10);
    training.set("size", &(10 * MIB).to_string());
    training.set("want", "2");
    training.until_at(2);
    let before = wire.up();
    eventually("a copy on its way", || {
        (wire.up() > before + (256 << 10)).then_some(())
    });
    training.set("size", "1000");
    training.set("want", "40");
    training.until_at(40);
    let (place, short) = training.copies(&server);
    let first = format!("s1.a1.{short}.step-1");
    assert_eq!(
        complete(&place),
        std::slice::from_ref(&first),
        "nothing half is one"
    );
    wire.limit(0);
    training.until_copied(40);
    let last = format!("s40.a1.{short}.step-40");
    eventually("the last copy, and the first to go", || {
        let now = complete(&place);
        (now.contains(&last) && !now.contains(&first)).then_some(())
    });
    training.set("finish", "");
    engine.wait_for_phase("slow", "Complete");
}

#[test]
fn a_full_bucket_and_one_that_is_a_file_are_told_and_training_goes_on() {
    if !is_root() || !have("kubectl") {
        eprintln!("skipped: needs root and kubectl");
        return;
    }
    let engine = Engine::start();
    let small = engine.folder().join("small");
    fs::create_dir(&small).expect("a directory");
    let mount = |options: &str| {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(&small)
            .output()
            .expect("mount runs");
        mounted.status.success()
    };
    if !mount("size=8m") {
        eprintln!("skipped: nothing may be mounted here");
        return;
    }
    let _mounted = Mounted(small.clone());
    let key = unique("key");
    let Some(server) = Server::start(&small, &key) else {
        return;
    };
    put_secret(&engine, &key);
    let upload =
        json!({"uri": "s3://bucket/runs", "secret": "keys", "endpoint": server.endpoint()});
    let checkpoint = json!({"path": "/ckpt", "size": "1Gi", "upload": upload});
    let training = Training::submit(&engine, "full", 3 << 20, checkpoint);
    for step in [1, 2] {
        training.set("want", &step.to_string());
        training.until_copied(step);
    }
    training.set("want", "3");
    let job = training.until_problem("s3://bucket/runs");
    println!("{}", job["status"]["saved"]["uploadProblem"]);
    training.set("want", "4");
    training.until_saved(4);
    assert!(mount("remount,size=64m"), "there is room now");
    training.until_copied(4);
    training.set("finish", "");
    engine.wait_for_phase("full", "Complete");

    let file = engine.write("file", "no place for files");
    let upload = json!({"uri": format!("file://{file}")});
    let checkpoint = json!({"path": "/ckpt", "size": "1Gi", "upload": upload});
    let training = Training::submit(&engine, "misled", 1, checkpoint);
    training.until_problem("it is a file and not a place for files");
    training.set("want", "2");
    training.until_saved(2);
    engine.stoke(&["delete", "trainjob", "misled"]);
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
