//! A training that is interrupted again and again, in every way, ends as one that never was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Engine, Random, alive, eventually, have, is_root, python_with, said};

const INTERRUPTIONS: u32 = 25;
/// Seconds between two checkpoints.
const EVERY: f64 = 2.0;
/// Steps of the whole training, more than are done between interruptions.
const STEPS: u32 = 2_500;

/// Tells a journal of every step, and does not finish before it is let: `pace` has the seconds between two steps.
const TRAIN: &str = r#"
import hashlib, os, sys, time
import torch
import torch.distributed as dist
import stokehold
import stokehold.torch

folder, steps = sys.argv[1], int(sys.argv[2])
rank, attempt = stokehold.rank(), stokehold.attempt()

def tell(*words):
    with open(f"{folder}/journal", "a") as journal:
        print(attempt, rank, *words, f"{time.monotonic():.6f}", file=journal)

def read(name):
    try:
        return open(f"{folder}/{name}").read().strip()
    except FileNotFoundError:
        return ""

tell("pid", os.getpid())
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
with torch.no_grad():
    for weight in model.parameters():
        weight.fill_(0.05)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
checkpoints = stokehold.Checkpoints()
step, _ = stokehold.torch.load(checkpoints, model=model, optimizer=optimizer)
tell("from", step)
while step < steps:
    if read("hog") == f"{attempt} {rank}":
        kept = []
        while True:
            kept.append(bytearray(b"x" * (16 << 20)))
    loss = model(torch.randn(4, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    stokehold.step(step)
    tell("step", step)
    if stokehold.torch.wanted(checkpoints):
        begun = time.monotonic()
        stokehold.torch.save(checkpoints, step, model=model, optimizer=optimizer)
        tell("saved", step, f"{time.monotonic() - begun:.6f}")
    time.sleep(float(read("pace") or 0))
weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
tell("weights", hashlib.sha256(weights).hexdigest())
dist.barrier()
"#;

/// A line of the journal.
#[derive(Debug, Clone)]
struct Line {
    attempt: u32,
    rank: u32,
    word: String,
    value: String,
    more: f64,
    at: f64,
}

struct Training<'a> {
    engine: &'a Engine,
    name: &'static str,
    folder: PathBuf,
}

impl<'a> Training<'a> {
    fn submit(engine: &'a Engine, name: &'static str, python: &str, pace: &str) -> Self {
        let folder = engine.folder().join(name);
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("pace"), pace).expect("a pace");
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
            folder,
        }
    }

    fn journal(&self) -> Vec<Line> {
        let text = fs::read_to_string(self.folder.join("journal")).unwrap_or_default();
        let line = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let more = words.get(4..words.len() - 1)?.first();
            Some(Line {
                attempt: words.first()?.parse().ok()?,
                rank: words.get(1)?.parse().ok()?,
                word: (*words.get(2)?).to_owned(),
                value: (*words.get(3)?).to_owned(),
                more: more.map_or(0.0, |more| more.parse().unwrap_or(0.0)),
                at: words.last()?.parse().ok()?,
            })
        };
        text.lines().filter_map(line).collect()
    }

    /// The newest attempt that has done a step, and how many steps it did.
    fn position(&self) -> (u32, usize) {
        let journal = self.journal();
        let steps = journal
            .iter()
            .filter(|it| it.word == "step" && it.rank == 0);
        let attempt = steps.clone().map(|it| it.attempt).max().unwrap_or(0);
        (attempt, steps.filter(|it| it.attempt == attempt).count())
    }

    fn pid(&self, attempt: u32, rank: u32) -> u32 {
        let journal = self.journal();
        let mut own = journal
            .iter()
            .filter(|it| it.word == "pid" && it.attempt == attempt);
        let line = own.find(|it| it.rank == rank).expect("it began");
        line.value.parse().expect("a number")
    }

    fn weights(&self) -> String {
        self.engine.wait_for_phase(self.name, "Complete");
        let journal = self.journal();
        let told: BTreeSet<String> = journal
            .iter()
            .filter(|it| it.word == "weights")
            .map(|it| it.value.clone())
            .collect();
        assert_eq!(told.len(), 1, "all ranks have the same: {told:?}");
        told.into_iter().next().expect("one")
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
        Way::Worker => kill(training.pid(attempt, rank)),
        Way::Engine => {
            engine.kill();
            engine.up();
        }
        Way::Drain => drain(engine),
        Way::Limit => {
            fs::write(training.folder.join("hog"), format!("{attempt} {rank}")).expect("told");
        }
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
        let (attempt, _) = eventually("a step", || Some(parts.position()).filter(|it| it.0 > 0));
        std::thread::sleep(Duration::from_millis(random.below(4_000)));
        let (attempt, done) = Some(parts.position())
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
            let (now, count) = parts.position();
            let goes_on = if way == Way::Engine {
                count > done
            } else {
                now > attempt
            };
            (now > attempt || goes_on).then_some(())
        });
        ways.push(way);
    }
    fs::write(parts.folder.join("pace"), "0").expect("a pace");
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
    check_losses(&parts.journal());
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

/// What each attempt did again that the one before had done.
fn check_losses(journal: &[Line]) {
    let mut attempts: BTreeMap<u32, Vec<&Line>> = BTreeMap::new();
    for line in journal.iter().filter(|it| it.rank == 0) {
        attempts.entry(line.attempt).or_default().push(line);
    }
    let all: Vec<Vec<&Line>> = attempts.into_values().collect();
    let of = |lines: &[&Line], word: &str| -> Vec<(u64, f64, f64)> {
        let own = lines.iter().filter(|it| it.word == word);
        own.map(|it| (it.value.parse().expect("a step"), it.at, it.more))
            .collect()
    };
    let longest_save = journal
        .iter()
        .filter(|it| it.word == "saved")
        .map(|it| it.more)
        .fold(0.0, f64::max);
    let (mut worst, mut steps_lost, mut began) = (0.0_f64, 0, Vec::new());
    for pair in all.windows(2) {
        let (steps, from) = (of(&pair[0], "step"), of(&pair[1], "from"));
        let (Some(&(last, ended, _)), Some(&(resumed, ..))) = (steps.last(), from.first()) else {
            continue;
        };
        assert!(resumed <= last, "it goes on from {resumed} after {last}");
        let longest_step = steps
            .windows(2)
            .map(|pair| pair[1].1 - pair[0].1)
            .fold(0.0, f64::max);
        // From the step that was saved on; where none was, from its start.
        let saved = steps
            .iter()
            .find(|(step, ..)| *step == resumed)
            .map(|it| it.1);
        let since = saved.unwrap_or(of(&pair[0], "from").first().expect("it began").1);
        let lost = (ended - since).max(0.0);
        // A pause between steps that came out long is in `longest_step`; nothing else is given.
        assert!(
            lost <= EVERY + longest_save + longest_step,
            "attempt {}: {lost:.3} s lost, a checkpoint took {longest_save:.3} s and a step {longest_step:.3} s at most",
            pair[0][0].attempt
        );
        worst = worst.max(lost);
        steps_lost += last - resumed;
        began.push(resumed);
    }
    assert!(
        began.is_sorted(),
        "nothing that was saved is lost: {began:?}"
    );
    println!(
        "at most {worst:.2} s lost at a time, {steps_lost} steps in all; the longest checkpoint took {longest_save:.3} s"
    );
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
