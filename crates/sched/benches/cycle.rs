//! `cargo bench -p stoke-sched --bench cycle`: what a cycle costs, one JSON line a figure, on one core.

#[path = "../tests/support/sized.rs"]
mod sized;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use jiff::{SignedDuration, Timestamp};
use stoke_api::queue::GpuCount;
use stoke_api::trainjob::Priority;
use stoke_api::{QueueSpec, Span};
use stoke_sched::{Decision, Job, JobId, Node, Policy, Resources, Running, Scheduler};

use sized::resources;

const NODES: usize = 5_000;
const QUEUES: usize = 100;
const WAITING: usize = 10_000;

fn main() {
    let mut scheduler = Scheduler::new(Policy::default());
    scheduler.set_queues((0..QUEUES).map(|number| (format!("q{number:03}"), queue())));
    for number in 0..NODES {
        scheduler.put_node(node(number));
    }
    let now = Timestamp::UNIX_EPOCH;
    // Enough to fill the cluster, and as many again as shall wait.
    let mut books = Books::default();
    let mut number = 0;
    let mut running = 0;
    let mut filled = 0.0;
    loop {
        let before = number;
        for _ in 0..WAITING {
            scheduler.submit(job(number, now));
            number += 1;
        }
        let started = Instant::now();
        let decisions = scheduler.cycle(now);
        filled += millis(started);
        books.settle(&mut scheduler, &decisions, now);
        running += decisions.len();
        if decisions.len() < number - before {
            break;
        }
    }
    for _ in number - running..WAITING {
        scheduler.submit(job(number, now));
        number += 1;
    }
    let waiting = number - running;
    let size = format!(r#""nodes": {NODES}, "queues": {QUEUES}"#);
    figure(
        "all placed that fit",
        filled,
        &format!(r#"{size}, "started": {running}"#),
    );

    let later = now + SignedDuration::from_mins(1);
    let mut cold = scheduler.clone();
    cold.put_node(Node {
        ready: false,
        ..node(0)
    });
    let started = Instant::now();
    black_box(cold.cycle(later));
    let size = format!(r#"{size}, "running": {running}, "waiting": {waiting}"#);
    figure("full cycle, nothing remembered", millis(started), &size);

    let started = Instant::now();
    black_box(scheduler.cycle(later));
    figure("cycle with nothing to do", millis(started), &size);

    let (mut least, mut worst) = (f64::MAX, 0.0_f64);
    let mut sum = 0.0;
    let rounds = 50;
    for round in 0..rounds {
        books.end(&mut scheduler, round * 37);
        let now = later + SignedDuration::from_secs(round as i64);
        let started = Instant::now();
        let decisions = scheduler.cycle(now);
        let took = millis(started);
        worst = worst.max(took);
        least = least.min(took);
        sum += took;
        books.settle(&mut scheduler, &decisions, now);
    }
    let more = format!(r#"{size}, "least": {least:.3}, "worst": {worst:.3}"#);
    figure("cycle after one job ended", sum / rounds as f64, &more);

    let id = JobId::new(format!("ns/j{:06}", number - 1));
    let started = Instant::now();
    let wait = scheduler.explain(&id, later).map(|wait| wait.to_string());
    black_box(wait);
    figure("explanation of one job", millis(started), &size);
}

fn queue() -> QueueSpec {
    QueueSpec {
        weight: 1,
        guaranteed: [("any".to_owned(), GpuCount(300))].into(),
        borrow: true,
        ..QueueSpec::default()
    }
}

fn node(number: usize) -> Node {
    let product = if number.is_multiple_of(3) {
        "NVIDIA-H100-80GB-HBM3"
    } else {
        "NVIDIA-A100-SXM4-80GB"
    };
    let name = format!("node-{number:05}");
    sized::node(&name, product, resources(128, 1024, 8))
}

fn job(number: usize, now: Timestamp) -> Job {
    let workers = [1, 1, 1, 2, 4, 8, 1, 16][number % 8];
    let gpus = [1, 2, 8, 8, 8, 8, 4, 8][number % 8];
    let each = resources(u64::from(gpus) * 8, u64::from(gpus) * 64, gpus);
    Job {
        id: JobId::new(format!("ns/j{number:06}")),
        gang: Arc::new(sized::gang(workers, each)),
        queue: Some(format!("q{:03}", number % QUEUES)),
        priority: [
            Priority::Experiment,
            Priority::Standard,
            Priority::Standard,
            Priority::Production,
        ][number % 4],
        submitted_at: now + SignedDuration::from_secs(number as i64),
        waits_since: now + SignedDuration::from_secs(number as i64),
        limit: Some(Span::hours(1 + number as u64 % 48)),
        datasets: Arc::default(),
    }
}

/// A caller's books.
#[derive(Default)]
struct Books {
    used: std::collections::BTreeMap<String, Resources>,
    running: std::collections::BTreeMap<JobId, (Job, stoke_sched::Plan)>,
}

impl Books {
    fn settle(&mut self, scheduler: &mut Scheduler, decisions: &[Decision], now: Timestamp) {
        for decision in decisions {
            if let Decision::Start { job, plan } = decision {
                let number: usize = job.as_str()[4..].parse().expect("a number");
                let job = self::job(number, Timestamp::UNIX_EPOCH);
                scheduler.run(Running::new(job.clone(), plan.clone(), now));
                for name in &plan.nodes {
                    self.used
                        .entry(name.clone())
                        .or_default()
                        .add(&job.gang.ask);
                    scheduler.set_used(name, self.used[name].clone());
                }
                self.running.insert(job.id.clone(), (job, plan.clone()));
            }
        }
    }

    fn end(&mut self, scheduler: &mut Scheduler, which: usize) {
        let Some(id) = self.running.keys().nth(which).cloned() else {
            return;
        };
        let Some((job, plan)) = self.running.remove(&id) else {
            return;
        };
        scheduler.end(&id);
        for name in &plan.nodes {
            let left = self.used[name].minus(&job.gang.ask);
            self.used.insert(name.clone(), left.clone());
            scheduler.set_used(name, left);
        }
    }
}

fn millis(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1000.0
}

fn figure(name: &str, millis: f64, more: &str) {
    println!(r#"{{"figure": "{name}", "ms": {millis:.3}, {more}}}"#);
}
