//! On real kubelets: a training that is interrupted in every way ends as one that never was.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::draining::drain;
use crate::interrupted::{Journal, TRAIN};
use crate::random::Random;
use crate::release::{self, succeed};
use crate::support::{self, Testbed, eventually, eventually_or};
use crate::training::{Volume, has_torch};
use crate::workers::{self, Jobs, host_programs};

/// Seconds between two checkpoints.
const EVERY: f64 = 2.0;
const STEPS: &str = "2000";

/// From outside and from inside, of one worker and of all. Each takes the attempt with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As the kernel does when memory is short.
    Killed,
    /// By somebody, without grace.
    Deleted,
    Drained,
    /// It takes more memory than it may have.
    OverLimit,
    /// And nobody is there to see it.
    KilledWithOperator,
}

struct Training<'a> {
    testbed: &'a Testbed,
    jobs: &'a Jobs<'a>,
    name: &'static str,
    journal: Journal,
    folder: tempfile::TempDir,
    _volume: Volume<'a>,
}

impl<'a> Training<'a> {
    fn submit(
        testbed: &'a Testbed,
        jobs: &'a Jobs<'a>,
        name: &'static str,
        spread: bool,
        pace: &str,
    ) -> Self {
        let volume = Volume::new(jobs, testbed, &format!("{name}-checkpoint"));
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("train.py"), TRAIN).expect("a script");
        let journal = Journal::new(folder.path());
        journal.pace(pace);
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/stokehold/src");
        let package = package.canonicalize().expect("the package");
        let mut template = host_programs(&[(&package, "/package"), (folder.path(), "/training")]);
        template["spec"]["containers"][0]["volumeMounts"][3]["readOnly"] = json!(false);
        jobs.create(name, &json!({
            "framework": "torch", "workers": 2, "retries": 20, "cpus": "200m",
            // More than one node has for both.
            "gpus": if spread { 3 } else { 0 }, "processesPerWorker": 1,
            "memory": {"request": "200Mi", "limit": "400Mi"},
            "command": ["/usr/bin/python3", "/training/train.py", "/training", STEPS],
            "env": [{"name": "PYTHONPATH", "value": "/package"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
            "checkpoint": {"path": "/ckpt", "size": "1Gi", "every": "2s", "keep": 3},
            "template": template,
        }));
        Self {
            testbed,
            jobs,
            name,
            journal,
            folder,
            _volume: volume,
        }
    }

    fn weights(&self) -> String {
        self.jobs.wait(self.name, "Complete");
        self.journal.weights()
    }

    /// A worker's process, as the machine knows it.
    fn pid(&self, attempt: u32, rank: u32) -> Option<u32> {
        let inside = format!("\t{}", self.journal.pid(attempt, rank));
        let own = [
            format!("STOKE_JOB={}", self.name),
            format!("STOKE_ATTEMPT={attempt}"),
            format!("STOKE_RANK={rank}"),
        ];
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|pid: &u32| {
            let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let (environment, status) = (read("environ"), read("status"));
            let variables: Vec<&[u8]> = environment.split(|byte| *byte == 0).collect();
            let is_own = own.iter().all(|it| variables.contains(&it.as_bytes()));
            let status = String::from_utf8_lossy(&status);
            let mut ids = status.lines().filter(|line| line.starts_with("NSpid:"));
            is_own && ids.any(|line| line.ends_with(&inside))
        })
    }

    fn kill(&self, attempt: u32, rank: u32) {
        let pid = self.pid(attempt, rank).expect("a process");
        succeed(Command::new("kill").args(["-9", &pid.to_string()]));
    }

    fn interrupt(&self, way: Way, attempt: u32, rank: u32) {
        let pod = format!("{}-{attempt}-{rank}", self.name);
        let namespace = self.jobs.namespace();
        match way {
            Way::Killed => self.kill(attempt, rank),
            Way::Deleted => {
                let delete = [
                    "delete",
                    "pod",
                    &pod,
                    "-n",
                    namespace,
                    "--force",
                    "--grace-period=0",
                ];
                succeed(&mut self.testbed.kubectl(&delete));
            }
            Way::Drained => {
                let node = self.testbed.get(&["pod", &pod, "-n", namespace]);
                let node = support::text(&node, "/spec/nodeName");
                drop(drain(self.testbed, node));
            }
            Way::OverLimit => self.journal.hog(attempt, rank),
            Way::KilledWithOperator => {
                succeed(&mut self.testbed.kubectl(&[
                    "delete",
                    "pod",
                    "-n",
                    release::NAMESPACE,
                    "-l",
                    "app.kubernetes.io/component=operator",
                    "--force",
                    "--grace-period=0",
                ]));
                self.kill(attempt, rank);
            }
        }
    }
}

#[test]
fn five_interruptions_lose_no_more_than_an_interval_each_and_change_nothing() {
    let Some(testbed) = support::testbed_with_nodes() else {
        return;
    };
    if !has_torch() {
        return;
    }
    // Other tests' workers must not be on the node that is drained, nor need the operator that is killed.
    let Some(_release) = release::exclusive(&testbed) else {
        return;
    };
    let mut random = Random::new("interruptions on nodes");
    let jobs = Jobs::new(&testbed, "interruptions");
    let expected = Training::submit(&testbed, &jobs, "whole", false, "0").weights();

    let parts = Training::submit(&testbed, &jobs, "parts", true, "0.05");
    let ways = [
        Way::Killed,
        Way::Deleted,
        Way::Drained,
        Way::OverLimit,
        Way::KilledWithOperator,
    ];
    for way in ways {
        let told = || format!("{:#}", jobs.get("parts")["status"]);
        let position = || Some(parts.journal.position()).filter(|it| it.1 > 0);
        eventually_or("a step", position, told);
        let gets_on = || (!parts.journal.gets_nowhere()).then_some(());
        eventually_or("a checkpoint", gets_on, told);
        std::thread::sleep(Duration::from_millis(random.below(4_000)));
        let (attempt, done) = parts.journal.position();
        let rank = random.below(2) as u32;
        println!("{way:?} of worker {rank} of attempt {attempt} after {done} steps");
        parts.interrupt(way, attempt, rank);
        let goes_on = || (parts.journal.position().0 > attempt).then_some(());
        eventually_or("it to go on", goes_on, told);
    }
    parts.journal.pace("0");
    assert_eq!(parts.weights(), expected, "as if nothing had happened");
    parts.journal.check_losses(EVERY);
    let status = jobs.get("parts")["status"].take();
    assert_eq!(status["attempt"], 6, "{status:#}");
    assert_eq!(
        status["failures"], 3,
        "what comes from outside is no failure: {status:#}"
    );

    let folder = parts.folder.path().to_owned();
    for name in ["whole", "parts"] {
        jobs.delete(name);
        eventually("the workers to be gone", || {
            workers::is_empty(&jobs.pods(name)).then_some(())
        });
    }
    eventually("the claims to be gone", || {
        let claims = testbed.get(&["pvc", "-n", jobs.namespace()]);
        claims["items"]
            .as_array()
            .is_some_and(Vec::is_empty)
            .then_some(())
    });
    nothing_is_left(&folder);
}

/// What nodes and workers have on the machine is here too.
fn nothing_is_left(folder: &Path) {
    let folder = folder.to_str().expect("UTF-8");
    eventually("the processes to be gone", || {
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let mut lines = entries.map(|entry| {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).into_owned()
        });
        (!lines.any(|line| line.contains("/training/train.py"))).then_some(())
    });
    eventually("the mounts to be gone", || {
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let mut tables = entries
            .map(|entry| fs::read_to_string(entry.path().join("mountinfo")).unwrap_or_default());
        (!tables.any(|table| table.contains(folder))).then_some(())
    });
}
