//! A training that keeps a journal of what it does, for whoever interrupts it: what was lost can be read there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Tells a journal of every step, and does not finish before it is let: `pace` has the seconds between two steps.
pub const TRAIN: &str = r#"
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

impl Line {
    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let more = words.get(4..words.len() - 1)?.first();
        Some(Self {
            attempt: words.first()?.parse().ok()?,
            rank: words.get(1)?.parse().ok()?,
            word: (*words.get(2)?).to_owned(),
            value: (*words.get(3)?).to_owned(),
            more: more.map_or(0.0, |more| more.parse().unwrap_or(0.0)),
            at: words.last()?.parse().ok()?,
        })
    }
}

/// What the processes of a training told in their folder.
pub struct Journal {
    folder: PathBuf,
}

impl Journal {
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
        }
    }

    fn lines(&self) -> Vec<Line> {
        let text = fs::read_to_string(self.folder.join("journal")).unwrap_or_default();
        text.lines().filter_map(Line::read).collect()
    }

    /// The newest attempt that has done a step, and how many steps it did.
    pub fn position(&self) -> (u32, usize) {
        let lines = self.lines();
        let steps = lines.iter().filter(|it| it.word == "step" && it.rank == 0);
        let attempt = steps.clone().map(|it| it.attempt).max().unwrap_or(0);
        (attempt, steps.filter(|it| it.attempt == attempt).count())
    }

    /// Three attempts in a row have saved nothing, the newest among them. The wait for the next doubles with each such attempt, and that is not
    /// what is tried here.
    pub fn gets_nowhere(&self) -> bool {
        let (newest, _) = self.position();
        let lines = self.lines();
        let saved = lines.iter().filter(|it| it.word == "saved");
        newest > 2 && saved.map(|it| it.attempt).max() < Some(newest - 2)
    }

    /// The process of a rank, as it knows itself.
    pub fn pid(&self, attempt: u32, rank: u32) -> u32 {
        let lines = self.lines();
        let mut own = lines
            .iter()
            .filter(|it| it.word == "pid" && it.attempt == attempt);
        let line = own.find(|it| it.rank == rank).expect("it began");
        line.value.parse().expect("a number")
    }

    /// Asks a worker to take more memory than it may have.
    pub fn hog(&self, attempt: u32, rank: u32) {
        fs::write(self.folder.join("hog"), format!("{attempt} {rank}")).expect("told");
    }

    /// Seconds between two steps.
    pub fn pace(&self, seconds: &str) {
        fs::write(self.folder.join("pace"), seconds).expect("a pace");
    }

    /// What all ranks ended with.
    pub fn weights(&self) -> String {
        let lines = self.lines();
        let weights = lines.iter().filter(|it| it.word == "weights");
        let told: BTreeSet<&str> = weights.map(|it| it.value.as_str()).collect();
        assert_eq!(told.len(), 1, "all ranks have the same: {told:?}");
        told.into_iter().collect()
    }

    pub fn check_losses(&self, every: f64) {
        check_losses(&self.lines(), every);
    }
}

/// What each attempt did again that the one before had done.
fn check_losses(journal: &[Line], every: f64) {
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
            lost <= every + longest_save + longest_step,
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
