//! Jobs whose workers run on the testbed's real nodes, with the machine's own programs in an otherwise empty image.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::release::succeed;
use crate::support::{Testbed, eventually_or};

/// A namespace of jobs; it goes with everything in it when the test ends.
pub struct Jobs<'a> {
    testbed: &'a Testbed,
    namespace: &'static str,
    folder: tempfile::TempDir,
}

impl<'a> Jobs<'a> {
    pub fn new(testbed: &'a Testbed, namespace: &'static str) -> Self {
        let jobs = Self {
            testbed,
            namespace,
            folder: tempfile::tempdir().expect("a folder"),
        };
        jobs.clear();
        succeed(&mut testbed.kubectl(&["create", "namespace", namespace]));
        jobs
    }

    /// Creates a job of this spec, which need not speak of images, sizes or the template.
    pub fn create(&self, name: &str, spec: &Value) {
        let mut whole = json!({
            "image": "stokehold.dev/testbed/host:1",
            "memory": {"request": "32Mi", "limit": "64Mi"},
            "cpus": "50m",
            "template": host_programs(&[]),
        });
        for (field, value) in spec.as_object().expect("an object") {
            whole[field] = value.clone();
        }
        self.apply(&json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": name, "namespace": self.namespace}, "spec": whole,
        }));
    }

    pub fn apply(&self, object: &Value) {
        let file = self.folder.path().join("object.json");
        std::fs::write(&file, object.to_string()).expect("a file");
        let path = file.to_str().expect("UTF-8");
        succeed(
            &mut self
                .testbed
                .kubectl(&["create", "-n", self.namespace, "-f", path]),
        );
    }

    pub fn namespace(&self) -> &str {
        self.namespace
    }

    /// A merge patch.
    pub fn patch(&self, name: &str, patch: &Value) {
        let mut command = self
            .testbed
            .kubectl(&["patch", "trainjob", name, "-n", self.namespace]);
        succeed(command.args(["--type=merge", "-p", &patch.to_string()]));
    }

    pub fn get(&self, name: &str) -> Value {
        self.testbed.get(&["trainjob", name, "-n", self.namespace])
    }

    pub fn wait(&self, name: &str, phase: &str) {
        self.wait_until(name, &format!("to be {phase}"), |status| {
            status["phase"] == phase
        });
    }

    /// The job's status, as soon as it is as wanted.
    pub fn wait_until(&self, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let ask = || {
            let status = self.get(name)["status"].take();
            wanted(&status).then_some(status)
        };
        eventually_or(&format!("{name} {what}"), ask, || self.told_of(name))
    }

    /// What the job and its pods say of themselves, for a test that failed.
    fn told_of(&self, name: &str) -> String {
        let mut told = format!("{name}: {:#}", self.get(name)["status"]);
        let pods = self.testbed.get(&["pods", "-n", self.namespace]);
        for pod in pods["items"].as_array().into_iter().flatten() {
            let _ = write!(told, "\n{}: {:#}", pod["metadata"]["name"], pod["status"]);
        }
        told
    }

    /// The workers of a job: which they are, where, since when, and how often they were restarted.
    pub fn pods(&self, job: &str) -> Value {
        let selector = format!("stokehold.dev/job={job}");
        let pods = self
            .testbed
            .get(&["pods", "-n", self.namespace, "-l", &selector]);
        let pods = pods["items"].as_array().expect("a list").iter();
        pods.map(|pod| {
            json!({
                "uid": pod["metadata"]["uid"], "node": pod["spec"]["nodeName"],
                "since": pod.pointer("/status/containerStatuses/0/state/running/startedAt"),
                "restarts": pod.pointer("/status/containerStatuses/0/restartCount"),
            })
        })
        .collect()
    }

    pub fn delete(&self, name: &str) {
        succeed(&mut self.testbed.kubectl(&[
            "delete",
            "trainjob",
            name,
            "-n",
            self.namespace,
            "--wait=false",
        ]));
    }

    fn clear(&self) {
        let mut delete =
            self.testbed
                .kubectl(&["delete", "namespace", self.namespace, "--ignore-not-found"]);
        let _ = delete.output();
    }
}

impl Drop for Jobs<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A template whose workers have the machine's programs, and these directories of it: `(path on the machine, path in the pod)`.
pub fn host_programs(more: &[(&Path, &str)]) -> Value {
    let programs = [
        (Path::new("/usr"), "/usr"),
        (Path::new("/etc/alternatives"), "/etc/alternatives"),
    ];
    let all = programs.iter().chain(more).enumerate();
    let (volumes, mounts): (Vec<_>, Vec<_>) = all
        .map(|(i, (host, path))| {
            let name = format!("host-{i}");
            (
                json!({"name": name, "hostPath": {"path": host}}),
                json!({"name": name, "mountPath": path, "readOnly": true}),
            )
        })
        .unzip();
    json!({"spec": {
        "nodeSelector": {"stokehold.dev/testbed": "real"},
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "worker", "imagePullPolicy": "Never", "volumeMounts": mounts}],
        "volumes": volumes,
    }})
}

/// A node that does not exist, of a pool of its own; kwok plays it.
pub fn kwok_node(name: &str, pool: &str) -> Value {
    let amounts = json!({"cpu": "32", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "stokehold.dev/testbed": pool, "nvidia.com/gpu.product": "simulated"},
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": amounts, "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}],
        },
    })
}

pub fn is_empty(pods: &Value) -> bool {
    pods.as_array().is_none_or(Vec::is_empty)
}
