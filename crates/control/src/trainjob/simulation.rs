//! Everything at once, for a long time, with a seed: pods fail and vanish, nodes come and go, people suspend and change jobs, and the
//! controller dies between any two writes, or hands over with some of them still under way.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use stoke_api::trainjob::{Outcome, Phase, Priority};
use stoke_api::{Queue, TrainJob};

use super::fixtures::{Stage, is_same, job, node};
use super::plan::Action;
use super::workers::Worker;
use crate::cluster;

const CUDA: &str = "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 GiB already allocated; 9.28 MiB free)\n";
const SHM: &str = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.\n";

/// Small, seeded, and the same everywhere.
pub(super) struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let index = self.roll(from.len().max(1) as u64) as usize;
        from.get(index).cloned()
    }
}

/// Two queues, of which one has a right to most of the GPUs.
fn queues() -> Vec<Queue> {
    let queue = |name: &str, guaranteed: u32| {
        serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue",
            "metadata": {"name": name, "uid": name}, "spec": {"guaranteed": {"any": guaranteed}},
        }))
        .expect("a queue")
    };
    vec![queue("a", 4), queue("b", 1)]
}

/// What was ever on record, to hold against what is.
#[derive(Default)]
pub(super) struct Ledger {
    pub outcomes: BTreeMap<(String, u32), Outcome>,
    latest: BTreeMap<String, u32>,
}

impl Ledger {
    fn check(&mut self, stage: &Stage) {
        for job in stage.jobs.values() {
            self.check_attempts(job);
            check_gang(stage, job);
        }
        check_room(stage);
        check_profiles(stage);
    }

    /// Attempts follow each other one by one, an end that is on record stays, and every failure is counted once.
    pub fn check_attempts(&mut self, job: &TrainJob) {
        let Some(status) = &job.status else { return };
        let latest = self.latest.entry(job.name().to_owned()).or_default();
        assert!(
            status.attempt == *latest || status.attempt == *latest + 1,
            "attempt {} after {latest}",
            status.attempt
        );
        *latest = status.attempt;
        for attempt in &status.attempts {
            let blamed = attempt.exit.as_ref().map(|exit| exit.rank as usize);
            assert!(
                !blamed.is_some_and(|rank| attempt.has_succeeded(rank)),
                "ended by one that had ended well"
            );
            if let Some(outcome) = attempt.outcome {
                let key = (job.name().to_owned(), attempt.number);
                let known = *self.outcomes.entry(key).or_insert(outcome);
                assert_eq!(known, outcome, "an end was changed");
            } else {
                assert_eq!(attempt.number, status.attempt, "an old attempt has no end");
            }
        }
        // A change is on record before the attempt that has it.
        if let Some(attempt) = status.current_attempt().filter(|it| it.outcome.is_none()) {
            assert_eq!(
                attempt.tuning, status.tuning,
                "an attempt without what was decided"
            );
        }
        let failed = self
            .outcomes
            .iter()
            .filter(|((name, _), outcome)| name == job.name() && **outcome == Outcome::Failed);
        assert_eq!(
            failed.count() as u32,
            status.failures,
            "failures are counted once each"
        );
    }
}

/// No rank runs twice: whatever of a job has not ended is of one attempt, but for what is lost with its node.
fn check_gang(stage: &Stage, job: &TrainJob) {
    let pods = stage.seen();
    let workers = pods.iter().filter_map(|pod| Worker::of(job, pod));
    let alive: Vec<Worker<'_>> = workers
        .filter(|worker| !worker.is_finished())
        .filter(|worker| {
            let node = worker.pod.node();
            node.is_some_and(|node| stage.nodes.contains_key(node))
        })
        .collect();
    let attempts: Vec<u32> = alive.iter().map(|worker| worker.attempt).collect();
    assert!(
        attempts.windows(2).all(|pair| pair[0] == pair[1]),
        "two attempts at once: {attempts:?}"
    );
    if job.is_finished() {
        return;
    }
    // One that is resized is on record before the last workers of the one before it have stopped.
    let status = job.status.clone().unwrap_or_default();
    let resized = status.attempts.iter().rev().nth(1);
    let resized = resized.filter(|before| before.outcome == Some(Outcome::Resized));
    let stopping = resized.map(|before| before.number);
    assert!(
        attempts
            .iter()
            .all(|attempt| *attempt == status.attempt || Some(*attempt) == stopping),
        "pods before their record"
    );
}

/// A run is in one profile, once.
fn check_profiles(stage: &Stage) {
    for profile in stage.profiles.values() {
        let keys: BTreeSet<&str> = profile.spec.history.iter().map(|run| &*run.key).collect();
        assert_eq!(
            keys.len(),
            profile.spec.history.len(),
            "a run was learned twice"
        );
        assert_eq!(
            profile.spec.runs as usize,
            keys.len(),
            "a run was counted twice"
        );
    }
}

/// No node holds more than it has.
fn check_room(stage: &Stage) {
    for (name, node) in &stage.nodes {
        let pods = stage
            .pods
            .values()
            .filter(|pod| !cluster::is_finished(pod) && cluster::node_of(pod) == Some(name));
        let used = pods
            .filter_map(|pod| pod.spec.as_ref())
            .map(cluster::requests);
        let used = used.fold(stoke_sched::Resources::default(), |all, next| {
            all.plus(&next)
        });
        let have = cluster::node(node).allocatable;
        assert!(
            used.cpu <= have.cpu && used.memory <= have.memory && used.gpus <= have.gpus,
            "{name} holds {used} of {have}"
        );
    }
}

fn jobs(dice: &mut Dice) -> Vec<TrainJob> {
    let frameworks = ["torch", "mpi", "tensorflow", "jax", "plain"];
    (0..3)
        .map(|i| {
            let workers = 1 + dice.roll(3);
            let mut spec = json!({
                "framework": dice.pick(&frameworks),
                "command": ["python", "train.py"],
                "workers": workers,
                "gpus": dice.pick(&[0, 1, 1, 2, 2]),
                "retries": dice.roll(4),
                "memory": {"limit": format!("{}Gi", 8 + dice.roll(24))},
                "priority": dice.pick(&["production", "standard", "experiment"]),
                "queue": dice.pick(&[None, Some("a"), Some("a"), Some("b"), Some("none")]),
            });
            if dice.roll(2) == 0 {
                spec["checkpoint"] = json!({"path": "/ckpt", "size": "1Gi"});
            }
            if dice.roll(2) == 0 {
                spec["elastic"] = json!({"min": 1, "max": workers + dice.roll(2)});
                spec["checkpoint"] = json!({"path": "/ckpt", "size": "1Gi"});
            }
            let mut job = job(spec);
            job.metadata.name = Some(format!("j{i}"));
            job.metadata.uid = Some(format!("uid-{i}"));
            job
        })
        .collect()
}

fn happens(stage: &mut Stage, dice: &mut Dice) {
    let names: Vec<String> = stage.pods.keys().cloned().collect();
    let pod = dice.pick(&names);
    let phase = pod
        .as_ref()
        .and_then(|name| stage.pods[name].status.as_ref()?.phase.clone())
        .unwrap_or_default();
    match (dice.roll(27), pod) {
        (0..=6, Some(pod)) if phase == "Pending" => stage.run_pod(&pod),
        (7..=8, Some(pod)) if phase == "Running" => stage.end_pod(&pod, 0, "Completed"),
        (9, Some(pod)) if phase == "Running" => stage.end_pod(&pod, 1, "Error"),
        (10, Some(pod)) if phase == "Running" => stage.end_pod(&pod, 137, "OOMKilled"),
        (11, Some(pod)) if phase == "Running" => {
            stage.set_pod(&pod, json!({"phase": "Failed", "reason": "Evicted"}));
        }
        (12, Some(pod)) => stage.delete_pod(&pod, None),
        (13, Some(pod)) => drop(stage.pods.remove(&pod)),
        (14, _) => {
            let name = format!("n{}", dice.roll(3));
            if stage.nodes.remove(&name).is_none() {
                stage.nodes.insert(name.clone(), node(&name, 2));
            }
        }
        (15, _) => {
            let name = format!("j{}", dice.roll(3));
            if let Some(job) = stage.jobs.get_mut(&name) {
                job.spec.suspend = !job.spec.suspend;
                job.metadata.generation = job.metadata.generation.map(|generation| generation + 1);
            }
        }
        (16, _) => {
            let workers = 1 + dice.roll(3) as u32;
            let name = format!("j{}", dice.roll(3));
            if let Some(job) = stage.jobs.get_mut(&name) {
                job.spec.workers = workers;
                job.spec.elastic = None;
                job.metadata.generation = job.metadata.generation.map(|generation| generation + 1);
            }
        }
        (17..=18, Some(pod)) if phase == "Running" => stage.save(&pod),
        (19, Some(pod)) if phase == "Running" => {
            stage.risk(&pod);
            // It may answer at once.
            if dice.roll(2) == 0 {
                stage.pass(1);
                stage.save(&pod);
            }
        }
        (20, Some(pod)) if phase == "Running" => {
            let log = dice.pick(&[CUDA, SHM, "Traceback\nValueError: no\n"]);
            stage
                .logs
                .insert(pod.clone(), log.unwrap_or_default().to_owned());
            stage.end_pod(&pod, 1, "Error");
        }
        (21, Some(pod)) if matches!(phase.as_str(), "Succeeded" | "Failed") => {
            let mib = 100 + dice.roll(400);
            let killed = dice.roll(3) == 0;
            let digest = json!({"samples": 9, "seconds": 9, "peakUnreclaimableBytes": mib << 20, "medianBytes": mib << 19, "oomKilled": killed});
            stage.measure(&pod, digest);
        }
        _ => stage.pass(dice.roll(20)),
    }
    stage.bury();
}

/// A leader dies, and what it had sent is carried out only after the next has read everything: a status, or some of the pods that are
/// made or deleted at once. The next leader decides by what it read, and finds what has come since as an API server tells it.
fn hands_over(stage: &mut Stage, dice: &mut Dice, ledger: &mut Ledger, name: &str) {
    let Some(plan) = stage.plan(name) else { return };
    let before = stage.jobs[name].clone();
    let writes_status = before.status.as_ref() != Some(&plan.status);
    let done = dice.roll(5) as usize;
    stage.carry_out(name, &plan, done);
    ledger.check(stage);
    let read = stage.jobs.get(name).cloned();
    let next = stage.plan(name);

    if writes_status && done == 0 {
        let known = stage.jobs.get_mut(name);
        if let Some(known) = known.filter(|known| is_same(known, &before)) {
            known.status = Some(plan.status);
        }
    } else {
        let rest = plan.actions.iter().skip(done - usize::from(writes_status));
        let creates = |action: &Action| matches!(action, Action::CreatePod(_));
        let deletes = |action: &Action| matches!(action, Action::DeletePod { .. });
        let mut rest = rest
            .skip_while(|action| !creates(action) && !deletes(action))
            .peekable();
        let creating = rest.peek().is_some_and(|action| creates(action));
        let late =
            rest.take_while(|action| creates(action) == creating && (creating || deletes(action)));
        for action in late {
            if dice.roll(2) == 0 {
                stage.act(name, action);
            }
        }
    }
    ledger.check(stage);
    if let Some((read, next)) = read.zip(next) {
        stage.carry_out_read_before(&read, &next);
        ledger.check(stage);
    }
}

/// How attempts ended.
fn simulate(seed: u64) -> Vec<Outcome> {
    println!("seed {seed}");
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut stage = Stage::new(jobs(&mut dice), (0..3).map(|i| node(&format!("n{i}"), 2)));
    stage.queues = queues();
    let mut ledger = Ledger::default();
    for _ in 0..400 {
        happens(&mut stage, &mut dice);
        ledger.check(&stage);
        let name = format!("j{}", dice.roll(3));
        if dice.roll(4) == 0 {
            hands_over(&mut stage, &mut dice, &mut ledger, &name);
        } else if let Some(plan) = stage.plan(&name) {
            // Sometimes it dies on the way, sometimes before it begins.
            let writes = if dice.roll(3) == 0 {
                dice.roll(4) as usize
            } else {
                usize::MAX
            };
            stage.carry_out(&name, &plan, writes);
            ledger.check(&stage);
            if writes == usize::MAX {
                stage.turn(&name);
            }
        }
    }
    settle(&mut stage, &mut ledger);
    ledger.outcomes.into_values().collect()
}

/// From now on all goes well: every job comes to its end, and its gangs are whole.
fn settle(stage: &mut Stage, ledger: &mut Ledger) {
    for i in 0..3 {
        let name = format!("n{i}");
        stage.nodes.insert(name.clone(), node(&name, 2));
    }
    for job in stage.jobs.values_mut() {
        job.spec.suspend = false;
        // What is more than its queue's guarantee, a production job would wait for without end.
        job.spec.priority = Priority::Standard;
        job.spec.queue = job.spec.queue.take().filter(|queue| queue != "none");
    }
    for _ in 0..60 {
        for name in stage.jobs.keys().cloned().collect::<Vec<_>>() {
            stage.turn(&name);
            ledger.check(stage);
            let job = &stage.jobs[&name];
            let status = job.status.clone().unwrap_or_default();
            if !matches!(status.phase, Phase::Starting | Phase::Running) {
                continue;
            }
            let attempt = status.current_attempt().expect("an attempt");
            let pods = stage.seen();
            let there = pods
                .iter()
                .filter_map(|pod| Worker::of(job, pod))
                .filter(|worker| worker.attempt == attempt.number)
                .map(|worker| worker.rank);
            let ranks: BTreeSet<u32> = there.chain(attempt.succeeded.iter().copied()).collect();
            let expected: BTreeSet<u32> = (0..attempt.nodes.len() as u32).collect();
            assert_eq!(ranks, expected, "the gang is not whole");
        }
        let pods: Vec<(String, bool)> = stage
            .pods
            .iter()
            .filter(|(_, pod)| {
                !cluster::is_finished(pod) && pod.metadata.deletion_timestamp.is_none()
            })
            .map(|(name, pod)| {
                (
                    name.clone(),
                    pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"),
                )
            })
            .collect();
        for (pod, runs) in pods {
            if runs {
                stage.end_pod(&pod, 0, "Completed");
            } else {
                stage.run_pod(&pod);
            }
        }
        stage.pass(40);
        stage.bury();
    }
    for job in stage.jobs.values() {
        assert!(
            job.is_finished(),
            "{} is still {:?}",
            job.name(),
            job.status.as_ref().map(|s| (s.phase, s.message.clone()))
        );
    }
    let alive = stage.pods.values().filter(|pod| !cluster::is_finished(pod));
    assert_eq!(alive.count(), 0, "something runs on after the end");
}

/// Enough to see everything happen.
const SEEDS: u64 = 12;

/// `STOKE_SIMULATION_SEEDS=0..5000` for a long night, `STOKE_SIMULATION_SEEDS=28` for one that failed.
fn seeds() -> std::ops::Range<u64> {
    let said = std::env::var("STOKE_SIMULATION_SEEDS").unwrap_or_else(|_| format!("0..{SEEDS}"));
    let (from, to) = said.split_once("..").unwrap_or((&said, ""));
    let from = from.parse().expect("a seed");
    let to = if to.is_empty() {
        from + 1
    } else {
        to.parse().expect("a seed")
    };
    from..to
}

#[test]
fn nothing_is_lost_or_doubled_whatever_happens() {
    let seeds = seeds();
    let many = seeds.end - seeds.start >= SEEDS;
    let outcomes: Vec<Outcome> = seeds.flat_map(simulate).collect();
    let all = [
        Outcome::Succeeded,
        Outcome::Failed,
        Outcome::Interrupted,
        Outcome::Suspended,
        Outcome::Preempted,
        Outcome::Resized,
        Outcome::Restarted,
    ];
    let missing = all.iter().find(|outcome| !outcomes.contains(outcome));
    assert!(!many || missing.is_none(), "never seen: {missing:?}");
}
