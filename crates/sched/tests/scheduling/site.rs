//! A caller of the scheduler that does at once what it decides, and keeps the books that the scheduler is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use stoke_api::queue::GpuCount;
use stoke_api::trainjob::Priority;
use stoke_api::{Bytes, QueueSpec, Span};
use stoke_sched::{
    Change, Dataset, Decision, Gang, Job, JobId, Node, Plan, Policy, Resources, Running, Scheduler,
};

use crate::sized::{self, resources};

pub const A100: &str = "NVIDIA-A100-SXM4-80GB";
pub const T4: &str = "Tesla-T4";

pub fn at(minutes: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
}

pub fn id(name: &str) -> JobId {
    JobId::new(name)
}

pub fn node(name: &str, product: &str, gpus: u32) -> Node {
    sized::node(name, product, resources(64, 512, gpus))
}

pub fn gang(workers: u32, gpus: u32) -> Gang {
    sized::gang(workers, resources(1, 4, gpus))
}

pub fn job(name: &str, gang: Gang, minutes: i64) -> Job {
    Job {
        id: id(name),
        gang: Arc::new(gang),
        queue: None,
        priority: Priority::Standard,
        submitted_at: at(minutes),
        waits_since: at(minutes),
        limit: None,
        datasets: Arc::default(),
    }
}

/// The same, reading these.
pub fn reading(datasets: &[&str], job: Job) -> Job {
    Job {
        datasets: datasets.iter().map(ToString::to_string).collect(),
        ..job
    }
}

/// A queue: guaranteed and ceiling as `a100=4 any=2`.
pub fn queue(parent: Option<&str>, guaranteed: &str, ceiling: &str) -> QueueSpec {
    let amounts = |text: &str| -> BTreeMap<String, GpuCount> {
        let parts = text.split_whitespace().map(|part| {
            let (name, count) = part.split_once('=').expect("type=count");
            (name.to_owned(), GpuCount(count.parse().expect("a count")))
        });
        parts.collect()
    };
    QueueSpec {
        parent: parent.map(str::to_owned),
        weight: 1,
        guaranteed: amounts(guaranteed),
        ceiling: amounts(ceiling),
        borrow: true,
    }
}

#[derive(Debug, Clone, Default)]
pub struct Site {
    pub scheduler: Scheduler,
    pub nodes: BTreeMap<String, Node>,
    pub running: BTreeMap<JobId, Running>,
    pub waiting: BTreeMap<JobId, Job>,
    pub queues: BTreeMap<String, QueueSpec>,
    pub datasets: BTreeMap<String, Dataset>,
    pub policy: Policy,
}

impl Site {
    pub fn new(policy: Policy, nodes: impl IntoIterator<Item = Node>) -> Self {
        let mut site = Self {
            scheduler: Scheduler::new(policy),
            policy,
            ..Self::default()
        };
        for node in nodes {
            site.put_node(node);
        }
        site
    }

    pub fn put_node(&mut self, node: Node) {
        self.nodes.insert(node.name.clone(), node.clone());
        self.scheduler.put_node(Node {
            used: self.used(&node.name),
            ..node
        });
    }

    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
        self.scheduler.remove_node(name);
    }

    pub fn set_queues(&mut self, queues: impl IntoIterator<Item = (&'static str, QueueSpec)>) {
        let queues = queues.into_iter();
        self.queues = queues.map(|(name, spec)| (name.to_owned(), spec)).collect();
        self.scheduler.set_queues(self.queues.clone());
    }

    pub fn put_dataset(&mut self, name: &str, gib: u64, warm: &[&str]) {
        let dataset = Dataset {
            size: Some(Bytes(gib << 30)),
            warm: warm.iter().map(ToString::to_string).collect(),
        };
        self.datasets.insert(name.to_owned(), dataset.clone());
        self.scheduler.put_dataset(name, dataset);
    }

    pub fn submit(&mut self, job: Job) {
        self.waiting.insert(job.id.clone(), job.clone());
        self.scheduler.submit(job);
    }

    /// What running jobs use of a node.
    pub fn used(&self, node: &str) -> Resources {
        let mut used = Resources::default();
        for running in self.running.values() {
            let each = running.plan.each(&running.job.gang);
            for _ in running.plan.nodes.iter().filter(|name| *name == node) {
                used.add(&each);
            }
        }
        used
    }

    fn count(&mut self, plan: &Plan) {
        let nodes: BTreeSet<&String> = plan.nodes.iter().collect();
        for node in nodes {
            let used = self.used(node);
            self.scheduler.set_used(node, used);
        }
    }

    pub fn run(&mut self, running: Running) {
        self.waiting.remove(&running.job.id);
        let before = self.running.insert(running.job.id.clone(), running.clone());
        self.scheduler.run(running.clone());
        if let Some(before) = before {
            self.count(&before.plan);
        }
        self.count(&running.plan);
    }

    pub fn end(&mut self, id: &JobId) -> Option<Running> {
        let ended = self.running.remove(id)?;
        self.scheduler.end(id);
        self.count(&ended.plan);
        Some(ended)
    }

    /// One that was asked to leave has left, and waits again with its place.
    pub fn leave(&mut self, id: &JobId, now: Timestamp) {
        if let Some(ended) = self.end(id) {
            self.submit(Job {
                waits_since: now,
                ..ended.job
            });
        }
    }

    /// A cycle, and everything done that was decided but for the leaving, which takes its grace.
    pub fn cycle(&mut self, now: Timestamp) -> Vec<Decision> {
        let decisions = self.scheduler.cycle(now);
        for decision in &decisions {
            match decision {
                Decision::Start { job, plan } => {
                    let job = self.waiting.remove(job).expect("it waited");
                    self.run(Running::new(job, plan.clone(), now));
                }
                Decision::Preempt { victims, .. } => {
                    for victim in victims {
                        self.change(victim, Change::Yields);
                    }
                }
                Decision::Shrink { job, to, .. } => {
                    self.change(job, Change::Shrinks { to: *to });
                }
                Decision::Grow { job, plan } => {
                    self.change(job, Change::Grows { plan: plan.clone() });
                }
            }
        }
        decisions
    }

    pub fn change(&mut self, id: &JobId, change: Change) {
        let mut running = self.running.get(id).expect("it runs").clone();
        running.change = change;
        self.run(running);
    }

    /// Everyone who was asked to change does.
    pub fn obey(&mut self, now: Timestamp) {
        let asked: Vec<Running> = self.running.values().cloned().collect();
        for mut running in asked {
            match std::mem::take(&mut running.change) {
                Change::None => {}
                Change::Yields => self.leave(&running.job.id, now),
                Change::Shrinks { to } => {
                    running.plan.nodes.truncate(to as usize);
                    running.plan.devices.truncate(to as usize);
                    self.run(running);
                }
                Change::Grows { plan } => {
                    running.plan.nodes.extend(plan.nodes);
                    running.plan.devices.extend(plan.devices);
                    self.run(running);
                }
            }
        }
    }

    /// A scheduler that was told only what is.
    pub fn afresh(&self) -> Scheduler {
        let mut fresh = Scheduler::new(self.policy);
        fresh.set_queues(self.queues.clone());
        for running in self.running.values().rev() {
            fresh.run(running.clone());
        }
        for node in self.nodes.values().rev() {
            fresh.put_node(Node {
                used: self.used(&node.name),
                ..node.clone()
            });
        }
        for job in self.waiting.values().rev() {
            fresh.submit(job.clone());
        }
        for (name, dataset) in &self.datasets {
            fresh.put_dataset(name, dataset.clone());
        }
        fresh.remember(&self.scheduler.history());
        fresh
    }
}

/// What was decided, for people.
pub fn told(decisions: &[Decision]) -> String {
    let lines = decisions.iter().map(|decision| match decision {
        Decision::Start { job, plan } => format!("start {job} on {}", plan.nodes.join(" ")),
        Decision::Preempt {
            victims,
            for_job,
            why,
        } => {
            let victims: Vec<&str> = victims.iter().map(JobId::as_str).collect();
            format!("preempt {} for {for_job}: {why}", victims.join(" "))
        }
        Decision::Shrink {
            job,
            to,
            for_job,
            why,
        } => format!("shrink {job} to {to} for {for_job}: {why}"),
        Decision::Grow { job, plan } => format!("grow {job} onto {}", plan.nodes.join(" ")),
    });
    lines.collect::<Vec<_>>().join("\n")
}

pub fn minutes(minutes: u64) -> Option<Span> {
    Some(Span::minutes(minutes))
}
