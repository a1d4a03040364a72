//! A training that is interrupted again and again, in every way, ends as one that never was.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::interrupted::{Journal, TRAIN};
use crate::random::Random;
use crate::support::{Engine, alive, eventually, have, is_root, python_with, said};

const INTERRUPTIONS: u32 = 25;
/// Seconds between two checkpoints.
const EVERY: f64 = 2.0;
/// Steps of the whole training, more than are done between interruptions.
const STEPS: u32 = 2_500;

struct Training<'a> {
    engine: &'a Engine,
    name: &'static str,
    journal: Journal,
}

impl<'a> Training<'a> {
    fn submit(engine: &'a Engine, name: &'static str, python: &str, pace: &str) -> Self {
        let folder = engine.folder().join(name);
        fs::create_dir(&folder).expect("a folder");
        let journal = Journal::new(&folder);
        journal.pace(pace);
        let script = engine.write(&format!("{name}.py"), TRAIN);
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/stokehold/src");
        let package = package.canonicalize().expect("the package");
        let spec = json!({
            "framework": "torch", "workers": 2, "cpus": "200m", "retries": 100,
            "memory": {"request": "200Mi", "limit": "400Mi"},
            "command": [python, script, folder, STEPS.to_string()],
            "env": [{"name": "PYTHONPATH", "value": package}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
            "checkpoint": {"path": "/ckpt", "size": "1Gi", "every": "2s", "keep": 3},
        });
        let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec});
        let file = engine.write(&format!("{name}.json"), &object.to_string());
        engine.stoke(&["run", "--detach", &file]);
        Self {
            engine,
            name,
            journal,
        }
    }

    fn weights(&self) -> String {
        self.engine.wait_for_phase(self.name, "Complete");
        self.journal.weights()
    }
}

/// What a node drain does: nothing new comes here, and who is here is evicted.
fn drain(engine: &Engine) {
    let node = engine.stoke(&["get", "nodes", "-o", "name"]);
    let node = node.trim().rsplit('/').next().expect("a name").to_owned();
    let drained = engine
        .kubectl(&[
            "drain",
            &node,
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            "--timeout=60s",
        ])
        .output()
        .expect("kubectl runs");
    assert!(drained.status.success(), "{}", said(&drained));
    let back = engine
        .kubectl(&["uncordon", &node])
        .output()
        .expect("kubectl runs");
    assert!(back.status.success(), "{}", said(&back));
}

fn kill(pid: u32) {
    // It may have ended by itself meanwhile, if another of its gang did.
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Worker,
    Engine,
    Drain,
    Limit,
}

fn interrupt(training: &Training<'_>, way: Way, attempt: u32, rank: u32) {
    let engine = training.engine;
    match way {
        Way::Worker => kill(training.journal.pid(attempt, rank)),
        Way::Engine => {
            engine.kill();
            engine.up();
        }
        Way::Drain => drain(engine),
        Way::Limit => training.journal.hog(attempt, rank),
    }
}

#[test]
fn twenty_five_interruptions_lose_no_more_than_an_interval_each_and_change_nothing() {
    let Some(python) = python_with("torch") else {
        println!("skipped: PyTorch is not there");
        return;
    };
    if !is_root() || !have("kubectl") {
        println!("skipped: needs root and kubectl");
        return;
    }
    let mut random = Random::new("interruptions");
    let engine = Engine::start();
    let mounts_before = mounts(engine.folder());
    let whole = Training::submit(&engine, "whole", &python, "0");
    let expected = whole.weights();

    let begun = Instant::now();
    let parts = Training::submit(&engine, "parts", &python, "0.04");
    let mut ways: Vec<Way> = Vec::new();
    let (mut ports, mut uids) = (BTreeSet::new(), pod_uids(&engine));
    for _ in 0..INTERRUPTIONS {
        let way = match random.below(8) {
            0..3 => Way::Worker,
            3..5 => Way::Engine,
            5..7 => Way::Drain,
            _ => Way::Limit,
        };
        let (attempt, _) = eventually("a step", || {
            Some(parts.journal.position()).filter(|it| it.0 > 0)
        });
        eventually("a checkpoint", || {
            (!parts.journal.gets_nowhere()).then_some(())
        });
        std::thread::sleep(Duration::from_millis(random.below(4_000)));
        let (attempt, done) = Some(parts.journal.position())
            .filter(|it| it.0 > 0)
            .unwrap_or((attempt, 0));
        let port = engine.job("parts")["status"]["attempts"]
            .as_array()
            .and_then(|it| it.last()?["port"].as_u64());
        ports.extend(port);
        uids.extend(pod_uids(&engine));
        println!(
            "{:6.1} s: {way:?} of attempt {attempt} after {done} steps",
            begun.elapsed().as_secs_f64()
        );
        interrupt(&parts, way, attempt, random.below(2) as u32);
        eventually("it to go on", || {
            let (now, count) = parts.journal.position();
            let goes_on = if way == Way::Engine {
                count > done
            } else {
                now > attempt
            };
            (now > attempt || goes_on).then_some(())
        });
        ways.push(way);
    }
    parts.journal.pace("0");
    assert_eq!(parts.weights(), expected, "as if nothing had happened");
    let job = engine.job("parts");
    let count = |way| ways.iter().filter(|it| **it == way).count();
    println!(
        "{INTERRUPTIONS} interruptions in {:.1} s: {} workers killed, {} engines killed, {} drains, {} limits hit; {} attempts, {} failures",
        begun.elapsed().as_secs_f64(),
        count(Way::Worker),
        count(Way::Engine),
        count(Way::Drain),
        count(Way::Limit),
        job["status"]["attempt"],
        job["status"]["failures"],
    );
    parts.journal.check_losses(EVERY);
    let failures = job["status"]["failures"].as_u64().expect("a number") as usize;
    assert_eq!(
        failures,
        count(Way::Worker) + count(Way::Limit),
        "what comes from outside is no failure"
    );
    let saved = &job["status"]["saved"];
    assert!(
        saved["step"].as_u64() > Some(0) && saved["bytes"].as_u64() > Some(0),
        "{:#}",
        job["status"]
    );

    uids.extend(pod_uids(&engine));
    nothing_is_left(&engine, &uids, &ports, mounts_before);
}

fn mounts(folder: &Path) -> usize {
    let folder = folder.to_str().expect("UTF-8");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    table.lines().filter(|line| line.contains(folder)).count()
}

/// Processes that have the folder in their arguments or environment, but the engine and what asks here.
fn processes(engine: &Engine) -> Vec<String> {
    let folder = engine.folder().to_str().expect("UTF-8").to_owned();
    let own = [engine.pid(), std::process::id()];
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let text = [read("cmdline"), read("environ")].concat();
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        if text.contains(&folder) && !own.contains(&pid) && alive(pid) {
            found.push(format!("{pid} {text}"));
        }
    }
    found
}

fn cgroups(uids: &BTreeSet<String>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let name = entry.file_name().to_string_lossy().into_owned();
                if uids.iter().any(|uid| name.contains(uid)) {
                    found.push(entry.path());
                }
                left.push(entry.path());
            }
        }
    }
    found
}

fn pod_uids(engine: &Engine) -> BTreeSet<String> {
    let pods = engine.stoke(&["get", "pods", "-o", "json"]);
    let pods: Value = serde_json::from_str(&pods).expect("JSON");
    let pods = pods["items"].as_array().expect("items").iter();
    pods.map(|pod| pod["metadata"]["uid"].as_str().expect("a uid").to_owned())
        .collect()
}

/// Of all pods and ports that there ever were.
fn nothing_is_left(
    engine: &Engine,
    uids: &BTreeSet<String>,
    ports: &BTreeSet<u64>,
    mounts_before: usize,
) {
    for name in ["parts", "whole"] {
        engine.stoke(&["delete", name, "--wait"]);
    }
    let data = engine.data_dir();
    let entries = |path: &Path| fs::read_dir(path).map_or(0, Iterator::count);
    eventually("pods and volumes to be gone", || {
        (entries(&data.join("pods")) == 0 && entries(&data.join("volumes/default")) == 0)
            .then_some(())
    });
    eventually("processes to be gone", || {
        processes(engine).is_empty().then_some(())
    });
    let left = cgroups(uids);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(mounts(engine.folder()), mounts_before);
    let listening = fs::read_to_string("/proc/net/tcp").expect("sockets");
    for port in ports {
        let end = format!(":{port:04X}");
        let is_open = listening.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(3) == Some(&"0A") && fields[1].ends_with(&end)
        });
        assert!(!is_open, "somebody listens on port {port}");
    }
}
