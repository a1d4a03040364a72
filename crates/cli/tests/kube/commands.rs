//! The commands of a day against a real API server: what they ask for is what it offers, and what they say is right.

use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::release::{self, said};
use crate::support::{self, Testbed};
use crate::workers::{Jobs, host_programs};

struct Cluster<'a> {
    testbed: &'a Testbed,
    namespace: &'a str,
}

impl Cluster<'_> {
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("KUBECONFIG", self.testbed.kubeconfig())
            .env("NO_COLOR", "1")
            .env_remove("STOKE_DATA_DIR")
            .env_remove("STOKE_LOG")
            .stdin(Stdio::null());
        command
    }

    fn try_stoke(&self, arguments: &[&str]) -> Output {
        // A flag, so that an engine that happens to run on this machine is not meant.
        let kubeconfig = self.testbed.kubeconfig();
        let kubeconfig = kubeconfig.to_str().expect("UTF-8");
        let mut all = vec!["--kubeconfig", kubeconfig, "-n", self.namespace];
        all.extend_from_slice(arguments);
        let stoke = env!("CARGO_BIN_EXE_stoke");
        self.command(stoke, &all).output().expect("stoke runs")
    }

    fn stoke(&self, arguments: &[&str]) -> String {
        let output = self.try_stoke(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        let talk = String::from_utf8_lossy(&output.stderr);
        let place = format!("namespace {}", self.namespace);
        let first = talk.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("cluster ") && first.ends_with(&place),
            "{arguments:?}: {talk}"
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

/// A job of the machine's own shell, as a file.
fn job(folder: &tempfile::TempDir, name: &str, workers: u32, line: &str) -> String {
    let job = json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name},
        "spec": {
            "image": "stokehold.dev/testbed/host:1", "workers": workers, "retries": 0, "cpus": "50m",
            "memory": {"request": "16Mi", "limit": "64Mi"},
            "command": ["/usr/bin/sh", "-c", line], "template": host_programs(&[]),
        },
    });
    let file = folder.path().join(format!("{name}.json"));
    std::fs::write(&file, job.to_string()).expect("a file");
    file.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_job_is_run_followed_and_looked_at_as_on_one_machine() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "commands-test");
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = Cluster {
        testbed: &testbed,
        namespace: jobs.namespace(),
    };

    let counted = job(
        &folder,
        "counted",
        2,
        "for i in $(seq 50); do echo line $i; sleep 0.02; done",
    );
    let lines = cluster.stoke(&["run", &counted]);
    for rank in 0..2 {
        let mark = format!("[{rank}] ");
        let of_rank: Vec<&str> = lines
            .lines()
            .filter_map(|line| line.strip_prefix(&mark))
            .collect();
        let expected: Vec<String> = (1..=50).map(|i| format!("line {i}")).collect();
        assert_eq!(of_rank, expected, "rank {rank}");
    }
    let failing = job(&folder, "failing", 1, "echo so far; exit 7");
    let failed = cluster.try_stoke(&["run", &failing]);
    assert_eq!(failed.status.code(), Some(7), "{}", said(&failed));
    assert_eq!(failed.stdout, b"so far\n");
    assert!(
        said(&failed).contains("--namespace commands-test explain failing"),
        "{}",
        said(&failed)
    );

    let table = cluster.stoke(&["get"]);
    assert!(
        table.contains("Complete") && table.contains("Failed"),
        "{table}"
    );
    let found: Value =
        serde_json::from_str(&cluster.stoke(&["get", "job", "counted", "-o", "json"]))
            .expect("JSON");
    assert_eq!(
        found["spec"]["workingDir"],
        Value::Null,
        "nothing of the shell goes along"
    );
    assert_eq!(
        cluster.stoke(&["logs", "counted", "--rank", "1", "--tail", "1"]),
        "line 50\n"
    );
    assert!(
        cluster
            .stoke(&["explain", "failing"])
            .contains("exit code 7"),
        "why"
    );
    assert!(
        cluster
            .stoke(&["describe", "counted"])
            .contains("counted-1-1")
    );
    assert!(
        cluster
            .stoke(&["describe", "pod/failing-1-0"])
            .contains("failing")
    );
    assert!(cluster.stoke(&["top", "--once"]).contains("counted"));
    assert!(cluster.stoke(&["get", "nodes,services"]).contains("real-0"));

    let waiting = job(&folder, "waiting", 1, "exec sleep 600");
    cluster.stoke(&["run", "--detach", &waiting]);
    jobs.wait("waiting", "Running");
    cluster.stoke(&["suspend", "waiting"]);
    jobs.wait("waiting", "Suspended");
    cluster.stoke(&["resume", "waiting"]);
    jobs.wait("waiting", "Running");
    cluster.stoke(&["delete", "waiting", "--wait"]);
    assert_eq!(
        cluster.try_stoke(&["explain", "waiting"]).status.code(),
        Some(4)
    );
    let doctor = cluster.stoke(&["doctor"]);
    assert!(
        doctor.contains("is at work") && doctor.contains("trainjobs"),
        "{doctor}"
    );

    symlink(
        env!("CARGO_BIN_EXE_stoke"),
        folder.path().join("kubectl-stoke"),
    )
    .expect("a link");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(
        [folder.path().to_owned()]
            .into_iter()
            .chain(std::env::split_paths(&path)),
    );
    let kubectl = support::program("kubectl").expect("kubectl");
    let kubectl = kubectl.to_str().expect("UTF-8");
    let mut plugin = cluster.command(
        kubectl,
        &["stoke", "-n", jobs.namespace(), "get", "-o", "name"],
    );
    let listed = plugin
        .env("PATH", path.expect("a path"))
        .output()
        .expect("kubectl runs");
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout),
        "trainjob.stokehold.dev/counted\ntrainjob.stokehold.dev/failing\n",
        "{}",
        said(&listed)
    );
}
