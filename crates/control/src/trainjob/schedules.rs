//! Controllers, scheduler, nodes and store together, in virtual time and with a seed: watches that lag, writes that are lost, late or done
//! without a word, leaders that die before or after any of them, machines that fall silent, go with notice or without, and come back with
//! what ran on them.
//!
//! `STOKE_TEST_SEED=17` repeats one, `STOKE_SIMULATION_SEEDS=0..5000` is for a long night.

mod leader;
mod machines;
mod store;

use std::collections::BTreeSet;
use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::json;
use stoke_api::TrainJob;
use stoke_api::trainjob::Outcome;

use self::leader::{End, Leader};
use self::machines::Machines;
use self::store::Store;
use super::fixtures::{at, config, job};
use super::simulation::Dice;
use crate::cluster;
use crate::config::Config;
use crate::mirror::Key;

const SCHEDULES: u64 = 520;
/// Looks at everything while things go wrong, and at most until all is well after that.
const TICKS: u64 = 60;
const SETTLED_WITHIN: u64 = 500;

const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];

struct Schedule {
    store: Store,
    machines: Machines,
    leader: Leader,
    dice: Dice,
    config: Config,
}

fn jobs(dice: &mut Dice) -> Vec<TrainJob> {
    let made = (0..3).map(|i| {
        let workers = 1 + dice.roll(3);
        let mut spec = json!({
            "framework": dice.pick(&["torch", "plain", "jax"]),
            "command": ["python", "train.py"],
            "workers": workers,
            "gpus": dice.pick(&[0, 1, 2]),
            "retries": 2 + dice.roll(6),
            "memory": {"limit": "8Gi"},
            "priority": dice.pick(&["standard", "experiment"]),
            "checkpoint": {"path": "/ckpt", "size": "1Gi"},
        });
        if dice.roll(3) == 0 {
            spec["elastic"] = json!({"min": 1, "max": workers + 1});
        }
        if dice.roll(4) == 0 {
            spec["checkpoint"] = json!(null);
            spec["elastic"] = json!(null);
        }
        if dice.roll(2) == 0 {
            spec["ttl"] = json!("2m");
        }
        let mut job = job(spec);
        job.metadata.name = Some(format!("j{i}"));
        job.metadata.uid = Some(format!("uid{i}-0"));
        job.metadata.creation_timestamp = Some(at(-60 + i).into());
        job
    });
    made.collect()
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut store = Store::default();
        store.now = at(0);
        let machines = Machines::new(&mut store, &NODES);
        for job in jobs(&mut dice) {
            store.put_job(job);
        }
        let config = config();
        Self {
            leader: Leader::start(&store, &[], &config),
            store,
            machines,
            dice,
            config,
        }
    }

    fn tick(&mut self, is_calm: bool) {
        let seconds = if is_calm { 10 } else { 1 + self.dice.roll(12) };
        self.store.now += Duration::from_secs(seconds);
        if !is_calm {
            if self.dice.roll(6) == 0 {
                self.machines.strike(&mut self.store, &mut self.dice);
            }
            if self.dice.roll(25) == 0 {
                self.suspend();
            }
        }
        self.store.tick();
        let (store, dice) = (&mut self.store, &mut self.dice);
        self.machines.tick(store, dice, is_calm);
        self.check();
        let most = match self.dice.roll(4) {
            0 if !is_calm => self.dice.roll(6) as usize,
            _ => usize::MAX,
        };
        self.leader.watch(&self.store, most);
        let (store, dice) = (&mut self.store, &mut self.dice);
        if self.leader.work(store, dice, is_calm) == End::Died {
            self.leader = Leader::start(&self.store, &[], &self.config);
        }
        self.check();
    }

    fn suspend(&mut self) {
        let names: Vec<String> = self.store.jobs.keys().cloned().collect();
        let name = self.dice.pick(&names);
        if let Some(mut job) = name.and_then(|name| self.store.jobs.get(&name).cloned()) {
            job.spec.suspend = !job.spec.suspend;
            job.metadata.generation = job.metadata.generation.map(|it| it + 1);
            self.store.put_job(job);
        }
    }

    /// No rank runs twice, no checkpoint is lost, or written by one who has been followed by another.
    fn check(&self) {
        let alive = self.machines.processes.iter();
        let alive = alive.filter(|(uid, process)| {
            let is_stray = self.store.strays.contains(*uid);
            process.has_begun && self.machines.reaches(process) && !process.was_lost && !is_stray
        });
        let mut seen: std::collections::BTreeMap<&str, u32> = std::collections::BTreeMap::new();
        let mut ranks = BTreeSet::new();
        for (_, process) in alive {
            let attempt = *seen.entry(&process.job).or_insert(process.attempt);
            assert_eq!(
                attempt, process.attempt,
                "{} runs in two attempts",
                process.job
            );
            let is_new = ranks.insert((&process.job, process.attempt, process.rank));
            assert!(is_new, "rank {} of {} twice", process.rank, process.job);
        }
        for (job, place) in &self.machines.checkpoints {
            for pair in place.written.windows(2) {
                let [(one, step), (other, later)] = pair else {
                    continue;
                };
                assert!(one <= other, "{job}: {one} wrote after {other}");
                assert!(step < later, "{job}: step {later} after {step}");
            }
        }
    }

    /// All is well from now on: every job ends, with what it said, and nothing of it is left.
    fn settle(&mut self) {
        self.machines.mend(&mut self.store);
        let jobs: Vec<TrainJob> = self.store.jobs.values().cloned().collect();
        for mut job in jobs {
            job.spec.suspend = false;
            self.store.put_job(job);
        }
        for _ in 0..SETTLED_WITHIN {
            self.tick(true);
            let jobs = self.store.jobs.values();
            let kept = |job: &TrainJob| job.is_finished() && job.spec.ttl.is_none();
            if jobs.clone().all(kept) && self.machines.processes.is_empty() {
                break;
            }
        }
        for _ in 0..12 {
            self.tick(true);
        }
        self.check_end();
    }

    fn check_end(&self) {
        let store = &self.store;
        for job in store.jobs.values() {
            let status = job.status.clone().unwrap_or_default();
            assert!(
                job.is_finished(),
                "{} is still {:?}: {}",
                job.name(),
                status.phase,
                status.message
            );
            assert!(job.spec.ttl.is_none(), "{} outlives its ttl", job.name());
        }
        assert!(self.machines.processes.is_empty(), "something runs on");
        let owners: BTreeSet<String> = store.jobs.values().filter_map(TrainJob::uid).collect();
        for pod in store.pods.values() {
            let owner = pod.owner_references()[0].uid.clone();
            assert!(cluster::is_finished(pod), "{} is there", pod.name_any());
            assert!(owners.contains(&owner), "{} has no job", pod.name_any());
        }
        for ((kind, name), owner) in &store.children {
            assert!(owners.contains(owner), "{kind} {name} has no job");
        }
        // What was kept of jobs that are gone, once each.
        let records = store.profiles.values().flat_map(|it| &it.spec.jobs);
        let told: Vec<&str> = records.map(|record| record.name.as_str()).collect();
        let gone = (0..3).map(|i| format!("j{i}"));
        for name in gone.filter(|name| !store.jobs.contains_key(name)) {
            let times = told.iter().filter(|known| ***known == *name).count();
            assert_eq!(times, 1, "{name} is in the history {times} times");
        }
        let world = &self.leader.world;
        let ports = world.ports_of_others(&Key::new("", ""));
        assert!(ports.is_empty(), "ports are held: {ports:?}");
        for node in world.snapshot().nodes() {
            let used = &node.used;
            assert_eq!((used.pods, used.gpus), (0, 0), "{} is in use", node.name);
        }
    }
}

/// How attempts ended.
fn run(seed: u64) -> Vec<Outcome> {
    println!("STOKE_TEST_SEED={seed}");
    let mut schedule = Schedule::new(seed);
    for _ in 0..TICKS {
        schedule.tick(false);
    }
    schedule.settle();
    schedule.store.ledger.outcomes.into_values().collect()
}

fn seeds() -> std::ops::Range<u64> {
    let one = std::env::var("STOKE_TEST_SEED").ok();
    let many = std::env::var("STOKE_SIMULATION_SEEDS").ok();
    let number = |text: &str| text.parse::<u64>().expect("a seed");
    match (one, many) {
        (Some(seed), _) => number(&seed)..number(&seed) + 1,
        (None, Some(said)) => {
            let (from, to) = said.split_once("..").expect("from..to");
            number(from)..number(to)
        }
        (None, None) => 0..SCHEDULES,
    }
}

#[test]
fn whatever_goes_wrong_and_when_nothing_is_lost_doubled_or_left_behind() {
    let seeds = seeds();
    let is_whole = seeds.end - seeds.start >= SCHEDULES;
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let part = |n: u64| seeds.clone().filter(move |seed| seed % threads == n);
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|n| {
                let part = part(n);
                scope.spawn(move || part.flat_map(run).collect::<Vec<_>>())
            })
            .collect();
        let ended = parts.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.flat_map(|part| part.expect("a part")).collect()
    });
    let all = [
        Outcome::Succeeded,
        Outcome::Failed,
        Outcome::Interrupted,
        Outcome::Suspended,
        Outcome::Resized,
    ];
    let missing = all.iter().find(|outcome| !outcomes.contains(outcome));
    assert!(!is_whole || missing.is_none(), "never seen: {missing:?}");
}
