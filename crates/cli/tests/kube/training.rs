//! Training on real kubelets: workers find each other by name across nodes, and what the kernel kills is told as such.

use std::path::Path;

use serde_json::{Value, json};

use crate::release::{self, succeed};
use crate::support::Testbed;
use crate::workers::{Jobs, host_programs};

fn examples() -> std::path::PathBuf {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    examples.canonicalize().expect("the examples")
}

/// The example's own job, and what a cluster needs beside: an image, a place for its files, and here GPUs too many for one node.
fn ddp_example() -> Value {
    let text = std::fs::read_to_string(examples().join("charlm-ddp/job.yaml")).expect("the job");
    let mut job: Value = serde_saphyr::from_str(&text).expect("YAML");
    let mut spec = job["spec"].take();
    spec["gpus"] = json!(3);
    spec["processesPerWorker"] = json!(1);
    spec["workingDir"] = json!("/examples/charlm-ddp");
    let examples = examples();
    let package = examples.join("../python/stokehold");
    let package = package.canonicalize().expect("the package");
    spec["template"] = host_programs(&[(&examples, "/examples"), (&package, "/python/stokehold")]);
    spec
}

/// Says so where there is none.
pub fn has_torch() -> bool {
    let imports = std::process::Command::new("/usr/bin/python3")
        .args(["-c", "import torch"])
        .output();
    let has_torch = imports.is_ok_and(|output| output.status.success());
    if !has_torch {
        eprintln!("skipped: no torch for /usr/bin/python3 (scripts/setup.sh torch)");
    }
    has_torch
}

/// A directory of the machine as the volume that a claim will find: the testbed has no storage of its own.
pub struct Volume<'a> {
    testbed: &'a Testbed,
    name: String,
    folder: tempfile::TempDir,
}

impl<'a> Volume<'a> {
    pub fn new(jobs: &Jobs<'_>, testbed: &'a Testbed, claim: &str) -> Self {
        let volume = Self {
            testbed,
            name: format!("{}-{claim}", jobs.namespace()),
            folder: tempfile::tempdir().expect("a folder"),
        };
        jobs.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": volume.name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": jobs.namespace(), "name": claim},
                "hostPath": {"path": volume.folder.path(), "type": "Directory"},
            },
        }));
        volume
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Volume<'_> {
    fn drop(&mut self) {
        let mut delete =
            self.testbed
                .kubectl(&["delete", "persistentvolume", &self.name, "--wait=false"]);
        let _ = delete.output();
    }
}

#[test]
fn two_workers_on_two_nodes_find_each_other_by_name_and_train() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    if !has_torch() {
        return;
    }
    let jobs = Jobs::new(&testbed, "training");
    let volume = Volume::new(&jobs, &testbed, "charlm-ddp-checkpoint");
    jobs.create("charlm-ddp", &ddp_example());
    jobs.wait("charlm-ddp", "Complete");

    let status = jobs.get("charlm-ddp")["status"].take();
    assert_eq!(status["attempt"], 1, "{status:#}");
    assert_eq!(status["attempts"][0]["outcome"], "Succeeded", "{status:#}");
    let mut nodes: Vec<_> = status["attempts"][0]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .collect();
    nodes.sort_by_key(|node| node.as_str());
    assert_eq!(nodes, testbed.nodes().iter().collect::<Vec<_>>());

    let log = succeed(&mut testbed.kubectl(&["logs", "charlm-ddp-1-0", "-n", jobs.namespace()]));
    assert!(log.contains("2 process(es)"), "{log}");
    assert!(log.contains("final loss"), "{log}");
    let saved = volume.path().join("step-00000200/complete");
    assert!(saved.exists(), "no checkpoint in {}", saved.display());
}

#[test]
fn a_job_over_its_limit_is_told_as_the_kernel_ended_it() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "over-limit");
    // Touched, so that it is memory and not a promise of it.
    let eat = "import time\nhoard = bytearray(b'x') * (256 << 20)\ntime.sleep(600)";
    jobs.create(
        "hungry",
        &json!({"command": ["python3", "-c", eat], "retries": 0, "memory": {"request": "32Mi", "limit": "96Mi"}}),
    );
    let status = jobs.wait_until("hungry", "to have failed", |status| {
        status["phase"] == "Failed"
    });

    let attempt = &status["attempts"][0];
    assert_eq!(attempt["number"], 1, "{status:#}");
    assert_eq!(attempt["outcome"], "Failed", "{status:#}");
    let exit = &attempt["exit"];
    assert_eq!(exit["reason"], "OOMKilled", "{status:#}");
    assert_eq!(exit["exitCode"], 137, "{status:#}");
    assert_eq!(exit["rank"], 0, "{status:#}");
    let message = exit["message"].as_str().expect("a message");
    assert!(message.contains("96 MiB"), "{message}");
    assert!(message.contains("memory.limit"), "{message}");

    // It is the container's own end that is told, not a guess.
    let pod = testbed.get(&["pod", "hungry-1-0", "-n", jobs.namespace()]);
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&ended["reason"], &ended["exitCode"]),
        (&exit["reason"], &exit["exitCode"]),
        "{pod:#}"
    );
}
