//! Nodes and what runs on them: kubelets that come and go, machines that are reclaimed, processes that go on where nobody reaches them, and
//! the directories that they write checkpoints to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use serde_json::json;
use stoke_api::TrainJob;
use stoke_api::names::{
    ATTEMPT_LABEL, CHECKPOINT_REQUEST_ANNOTATION, JOB_LABEL, LAST_CHECKPOINT_ANNOTATION, RANK_LABEL,
};

use super::super::fixtures::node;
use super::super::simulation::Dice;
use super::store::Store;
use crate::cluster;

/// How long a node may be silent until it is held to be lost, and until it is deleted.
const LOST_AFTER: Duration = Duration::from_secs(50);
const DELETED_AFTER: Duration = Duration::from_secs(200);
/// Steps of a whole training, and between checkpoints.
const STEPS: u64 = 24;
const SAVED_EVERY: u64 = 5;

/// Words with which a machine is said to go, and how long it then has.
const NOTICES: [(&str, u64); 4] = [
    ("aws-node-termination-handler/spot-itn", 120),
    ("cloud.google.com/impending-node-termination", 30),
    ("karpenter.sh/disrupted", 90),
    ("DeletionCandidateOfClusterAutoscaler", 0),
];

#[derive(Default)]
struct Machine {
    is_off: bool,
    /// Since when its kubelet reaches nobody.
    silent_since: Option<Timestamp>,
    /// When it is taken away, if it is.
    goes_at: Option<Timestamp>,
}

/// A worker's process.
pub struct Process {
    pub pod: String,
    pub job: String,
    pub attempt: u32,
    pub rank: u32,
    pub node: String,
    pub begins_at: Timestamp,
    pub has_begun: bool,
    /// Its node was held to be lost: nobody could wait for its end.
    pub was_lost: bool,
    /// Told to end, and when it will have.
    ends_at: Option<Timestamp>,
    exit: Option<i32>,
    step: u64,
}

impl Process {
    fn lives(&self) -> bool {
        self.has_begun && self.exit.is_none()
    }
}

/// Where a job's checkpoints are. Whoever begins takes the fence, unless a later attempt has it; who does not have it writes nothing.
#[derive(Default)]
pub struct Checkpoints {
    fence: u32,
    /// Attempt and step of each, in the order in which they were written.
    pub written: Vec<(u32, u64)>,
}

impl Checkpoints {
    fn newest(&self) -> u64 {
        self.written.last().map_or(0, |(_, step)| *step)
    }

    /// What it goes on from; none where it comes too late.
    fn enter(&mut self, attempt: u32) -> Option<u64> {
        if attempt < self.fence {
            return None;
        }
        self.fence = attempt;
        Some(self.newest())
    }

    fn write(&mut self, attempt: u32, step: u64) -> bool {
        let may = attempt == self.fence;
        if may && step > self.newest() {
            self.written.push((attempt, step));
        }
        may
    }
}

#[derive(Default)]
pub struct Machines {
    machines: BTreeMap<String, Machine>,
    /// By the pod's uid.
    pub processes: BTreeMap<String, Process>,
    /// By the job's name.
    pub checkpoints: BTreeMap<String, Checkpoints>,
    /// Pods whose node was held to be lost before it began them: it may still do so when it comes back.
    lost: BTreeSet<String>,
}

impl Machines {
    pub fn new(store: &mut Store, names: &[&str]) -> Self {
        let mut all = Self::default();
        for name in names {
            store.put_node(node(name, 2));
            all.machines.insert((*name).to_owned(), Machine::default());
        }
        all
    }

    fn is_reached(&self, node: &str) -> bool {
        let machine = self.machines.get(node);
        machine.is_some_and(|it| !it.is_off && it.silent_since.is_none())
    }

    pub fn reaches(&self, process: &Process) -> bool {
        self.is_reached(&process.node)
    }

    /// Something befalls a machine.
    pub fn strike(&mut self, store: &mut Store, dice: &mut Dice) {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let Some(name) = dice.pick(&names) else {
            return;
        };
        let now = store.now;
        let Some(machine) = self.machines.get_mut(&name) else {
            return;
        };
        let is_quiet = machine.silent_since.is_none() && machine.goes_at.is_none();
        match dice.roll(4) {
            0 if is_quiet => machine.silent_since = Some(now),
            1 if is_quiet => self.switch_off(&name, now),
            2 if is_quiet => {
                let (key, seconds) = NOTICES[dice.roll(NOTICES.len() as u64) as usize];
                if seconds > 0 {
                    machine.goes_at = Some(now + Duration::from_secs(seconds));
                }
                let taint = json!([{"key": key, "effect": "NoSchedule"}]);
                change(store, &name, |node| {
                    let spec = node.spec.get_or_insert_default();
                    spec.taints = serde_json::from_value(taint.clone()).ok();
                });
            }
            3 => {
                let cordon = dice.roll(2) == 0;
                change(store, &name, |node| {
                    node.spec.get_or_insert_default().unschedulable = Some(cordon);
                });
            }
            _ => {}
        }
    }

    fn switch_off(&mut self, name: &str, now: Timestamp) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.is_off = true;
            machine.silent_since.get_or_insert(now);
            machine.goes_at = None;
        }
        self.processes.retain(|_, process| process.node != name);
    }

    /// Brings all of them back, as new.
    pub fn mend(&mut self, store: &mut Store) {
        for (name, machine) in &mut self.machines {
            *machine = Machine::default();
            store.put_node(node(name, 2));
        }
    }

    /// Time has passed for machines, whoever watches them, and their processes.
    pub fn tick(&mut self, store: &mut Store, dice: &mut Dice, is_calm: bool) {
        self.pass(store, dice, is_calm);
        self.notice_silence(store);
        self.begin(store, dice);
        self.train(store, dice, is_calm);
        self.end(store, dice);
    }

    fn pass(&mut self, store: &mut Store, dice: &mut Dice, is_calm: bool) {
        let now = store.now;
        for name in self.machines.keys().cloned().collect::<Vec<_>>() {
            let machine = &self.machines[&name];
            if machine.goes_at.is_some_and(|at| at <= now) {
                self.switch_off(&name, now);
            } else if machine.is_off && !store.nodes.contains_key(&name) {
                // Another has its name.
                if is_calm || dice.roll(5) == 0 {
                    self.machines.insert(name.clone(), Machine::default());
                    store.put_node(node(&name, 2));
                }
            } else if !machine.is_off && machine.silent_since.is_some() && dice.roll(12) == 0 {
                self.machines.insert(name.clone(), Machine::default());
                store.put_node(node(&name, 2));
            }
        }
    }

    /// As the node controller does, and whoever deletes nodes whose machine is no more.
    fn notice_silence(&mut self, store: &mut Store) {
        let now = store.now;
        for (name, machine) in &self.machines {
            let Some(since) = machine.silent_since else {
                continue;
            };
            if machine.is_off && now >= since + DELETED_AFTER {
                store.remove_node(name);
            } else if now >= since + LOST_AFTER && is_ready(store, name) {
                change(store, name, |node| {
                    let status = node.status.as_mut().and_then(|it| it.conditions.as_mut());
                    for condition in status.into_iter().flatten() {
                        condition.status = "Unknown".to_owned();
                    }
                });
                let on_it = self.processes.values_mut().filter(|it| it.node == *name);
                on_it.for_each(|process| process.was_lost = true);
            }
        }
    }

    fn begin(&mut self, store: &mut Store, dice: &mut Dice) {
        let now = store.now;
        let pods: Vec<Pod> = store.pods.values().cloned().collect();
        for pod in pods {
            let uid = pod.uid().unwrap_or_default();
            let node = cluster::node_of(&pod).unwrap_or_default().to_owned();
            if !self.is_reached(&node) || cluster::is_finished(&pod) {
                if !is_ready(store, &node) {
                    self.lost.insert(uid);
                }
                continue;
            }
            if pod.metadata.deletion_timestamp.is_some() && !self.processes.contains_key(&uid) {
                store.remove_pod(&pod.name_any());
                continue;
            }
            if self.processes.contains_key(&uid) {
                continue;
            }
            if is_pending(&pod) {
                let mut process = process(&pod, node, now + Duration::from_secs(dice.roll(12)));
                process.was_lost = self.lost.contains(&uid);
                self.processes.insert(uid, process);
            } else {
                // Its machine was off meanwhile.
                end_pod(store, &pod.name_any(), 137, "ContainerStatusUnknown");
            }
        }
        for (uid, process) in &mut self.processes {
            if process.has_begun || process.begins_at > now || process.exit.is_some() {
                continue;
            }
            process.has_begun = true;
            if process.rank == 0 && saves(store, &process.job) {
                let place = self.checkpoints.entry(process.job.clone()).or_default();
                match place.enter(process.attempt) {
                    Some(step) => process.step = step,
                    // It comes after another has begun.
                    None => process.exit = Some(1),
                }
            }
            let machine = &self.machines[&process.node];
            let is_known = store.pods.get(&process.pod);
            let is_known = is_known.is_some_and(|pod| pod.uid().as_ref() == Some(uid));
            if machine.silent_since.is_none() && is_known && process.exit.is_none() {
                let at = now.to_string();
                store.set_pod(&process.pod, json!({"phase": "Running",
                    "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "state": {"running": {"startedAt": at}}}]}));
            }
        }
    }

    /// A gang whose workers all run gets on, saves now and then and when it is asked to, and ends.
    fn train(&mut self, store: &mut Store, dice: &mut Dice, is_calm: bool) {
        let mut gangs: BTreeMap<(String, u32), Vec<String>> = BTreeMap::new();
        for (uid, process) in self.processes.iter().filter(|(_, it)| it.lives()) {
            let key = (process.job.clone(), process.attempt);
            gangs.entry(key).or_default().push(uid.clone());
        }
        for ((job, attempt), uids) in gangs {
            let Some(size) = size_of(store, &job, attempt) else {
                continue;
            };
            let leader = uids.iter().find(|uid| self.processes[*uid].rank == 0);
            let Some(leader) = leader.filter(|_| uids.len() == size).cloned() else {
                continue;
            };
            if !is_calm && dice.roll(14) == 0 {
                if let Some(process) = dice.pick(&uids).and_then(|it| self.processes.get_mut(&it)) {
                    process.exit = Some(if dice.roll(2) == 0 { 1 } else { 137 });
                }
                continue;
            }
            let process = self.processes.get_mut(&leader).expect("it");
            process.step += 1;
            let (step, pod) = (process.step, process.pod.clone());
            let is_reached = self.is_reached(&self.processes[&leader].node);
            let is_asked = is_reached && is_asked(store, &pod) && dice.roll(3) > 0;
            if saves(store, &job) && (step.is_multiple_of(SAVED_EVERY) || is_asked) {
                let place = self.checkpoints.entry(job.clone()).or_default();
                if !place.write(attempt, step) {
                    self.processes.get_mut(&leader).expect("it").exit = Some(1);
                    continue;
                }
                if is_reached {
                    let at = store.now.to_string();
                    store.annotate(&pod, LAST_CHECKPOINT_ANNOTATION, at);
                }
            }
            if step >= STEPS {
                for uid in &uids {
                    self.processes.get_mut(uid).expect("it").exit = Some(0);
                }
            }
        }
    }

    /// Kubelets stop what is deleted, and tell how what has ended did.
    fn end(&mut self, store: &mut Store, dice: &mut Dice) {
        let now = store.now;
        let mut gone = BTreeSet::new();
        for (uid, process) in &mut self.processes {
            let machine = self.machines.get(&process.node);
            if machine.is_none_or(|it| it.is_off || it.silent_since.is_some()) {
                continue;
            }
            let pod = store.pods.get(&process.pod);
            let Some(pod) = pod.filter(|pod| pod.uid().as_ref() == Some(uid)) else {
                gone.insert(uid.clone());
                continue;
            };
            let due = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
            if let Some(due) = due {
                let soon = now + Duration::from_secs(dice.roll(30));
                let at = *process.ends_at.get_or_insert(soon.min(due));
                if at <= now || process.exit.is_some() || due <= now {
                    store.remove_pod(&process.pod);
                    gone.insert(uid.clone());
                }
            } else if let Some(code) = process.exit {
                let reason = match code {
                    0 => "Completed",
                    137 => "OOMKilled",
                    _ => "Error",
                };
                end_pod(store, &process.pod, code, reason);
                gone.insert(uid.clone());
            }
        }
        self.processes.retain(|uid, _| !gone.contains(uid));
    }
}

fn change(store: &mut Store, name: &str, how: impl FnOnce(&mut Node)) {
    if let Some(mut node) = store.nodes.get(name).cloned() {
        how(&mut node);
        store.put_node(node);
    }
}

fn end_pod(store: &mut Store, pod: &str, code: i32, reason: &str) {
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    let at = store.now.to_string();
    store.set_pod(pod, json!({"phase": phase,
        "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}}]}));
}

fn is_ready(store: &Store, name: &str) -> bool {
    store.nodes.get(name).is_some_and(cluster::is_ready)
}

fn is_pending(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    phase == Some("Pending")
}

fn is_asked(store: &Store, pod: &str) -> bool {
    let pod = store.pods.get(pod);
    pod.is_some_and(|pod| {
        pod.annotations()
            .contains_key(CHECKPOINT_REQUEST_ANNOTATION)
    })
}

fn saves(store: &Store, job: &str) -> bool {
    let job = store.jobs.get(job);
    job.is_some_and(|job| job.spec.checkpoint.is_some())
}

/// Workers of an attempt, by what is on record of it.
fn size_of(store: &Store, job: &str, attempt: u32) -> Option<usize> {
    let status = store
        .jobs
        .get(job)
        .and_then(|job: &TrainJob| job.status.as_ref())?;
    let attempt = status.attempts.iter().find(|it| it.number == attempt)?;
    Some(attempt.nodes.len() - attempt.succeeded.len())
}

fn process(pod: &Pod, node: String, begins_at: Timestamp) -> Process {
    let label = |key: &str| pod.labels().get(key).cloned().unwrap_or_default();
    Process {
        pod: pod.name_any(),
        job: label(JOB_LABEL),
        attempt: label(ATTEMPT_LABEL).parse().expect("a number"),
        rank: label(RANK_LABEL).parse().expect("a number"),
        node,
        begins_at,
        has_begun: false,
        was_lost: false,
        ends_at: None,
        exit: None,
        step: 0,
    }
}
