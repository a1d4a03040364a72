//! `cargo bench -p stoke-sched --bench plan`: what planning costs, one JSON line a figure, on one core.

#[path = "../tests/support/sized.rs"]
mod sized;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use stoke_api::Bytes;
use stoke_sched::{Appraiser, Gang, Node, Resources, Snapshot, Topology, place};

use sized::resources;

const LEVELS: [&str; 3] = ["zone", "block", "rack"];
const PODS: u32 = 10_000;

fn main() {
    backlog(5_000);
    impossible(5_000);
    for nodes in [500, 5_000, 50_000] {
        growth(nodes);
    }
}

/// Every pod of the backlog is planned and has its room set aside; a gang that finds none is told why.
fn backlog(nodes: u32) {
    let mut snapshot = cluster(nodes);
    let gangs = gangs(PODS, 8);
    let started = Instant::now();
    let (mut placed, mut waiting) = (0_usize, 0_u32);
    for gang in &gangs {
        match place(&snapshot, gang) {
            Ok(plan) => {
                snapshot.take(&plan, gang);
                placed += plan.nodes.len();
            }
            Err(why) => {
                black_box(why.to_string());
                waiting += gang.workers;
            }
        }
    }
    let more = format!(
        r#""nodes": {nodes}, "pods": {PODS}, "gangs": {}, "placed": {placed}, "waiting": {waiting}, "aim": "under 2000""#,
        gangs.len()
    );
    figure("backlog planned and applied", "ms", millis(started), &more);
}

/// The whole answer, with what would help, to a job that cannot run.
fn impossible(nodes: u32) {
    let mut busy = cluster(nodes);
    fill(&mut busy, PODS);
    let larger = gang(nodes + 1, 8, Some(Topology::Preferred));
    let other = Gang {
        gpu_types: vec!["mi300x".to_owned()],
        ..gang(8, 8, None)
    };
    let near = gang(nodes, 8, required("rack"));
    let nowhere = Gang {
        selector: BTreeMap::from([("pool".to_owned(), "none".to_owned())]),
        ..gang(1, 16, None)
    };
    let cases = [
        ("larger than the cluster", larger),
        ("another GPU type", other),
        ("in one rack", near),
        ("nowhere at all", nowhere),
    ];
    for (what, gang) in cases {
        let times = sample(200, || {
            let why = place(&busy, &gang).expect_err("impossible");
            black_box(why.to_string());
        });
        let more = format!(
            r#""nodes": {nodes}, "case": "{what}", {}, "aim": "under 5""#,
            spread(&times, 1e3)
        );
        figure(
            "impossible verdict",
            "ms",
            quantile(&times, 0.5) * 1e3,
            &more,
        );
    }
}

/// The same questions at sizes that are ten times each other.
fn growth(nodes: u32) {
    let told = Instant::now();
    let mut snapshot = cluster(nodes);
    let size = format!(r#""nodes": {nodes}"#);
    figure("cluster told", "ms", millis(told), &size);
    fill(&mut snapshot, nodes);
    let questions = [
        ("one worker", gang(1, 1, None)),
        (
            "gang of 64, preferred",
            gang(64, 4, Some(Topology::Preferred)),
        ),
        ("gang of 64 in one block", gang(64, 4, required("block"))),
        ("impossible verdict", gang(nodes + 1, 8, None)),
    ];
    for (what, gang) in questions {
        let times = sample(200, || {
            black_box(place(&snapshot, &gang).is_ok());
        });
        let more = format!("{size}, {}", spread(&times, 1e6));
        figure(what, "us", quantile(&times, 0.5) * 1e6, &more);
    }
    let mut appraised = snapshot.clone();
    let mut appraiser = Appraiser::default();
    let learned = Instant::now();
    let seen = gangs(2_000, 8);
    for gang in &seen {
        appraiser.observe(&mut appraised, gang);
    }
    let more = format!(r#"{size}, "gangs": {}"#, seen.len());
    figure(
        "2,000 pods noted, worth learned",
        "ms",
        millis(learned),
        &more,
    );
    let times = sample(200, || {
        black_box(place(&appraised, &gang(1, 1, None)).is_ok());
    });
    let more = format!("{size}, {}", spread(&times, 1e6));
    let name = "one worker, by worth";
    figure(name, "us", quantile(&times, 0.5) * 1e6, &more);
    let one = gang(1, 1, None);
    let plan = place(&snapshot, &one).unwrap_or_default();
    let times = sample(200, || {
        snapshot.take(&plan, &one);
        snapshot.give_back(&plan, &one);
    });
    figure(
        "take and give back",
        "us",
        quantile(&times, 0.5) * 1e6,
        &size,
    );
    let times = sample(200, || {
        let mut what_if = snapshot.clone();
        what_if.take(&plan, &one);
        black_box(&what_if);
    });
    figure(
        "what-if: copy and take",
        "us",
        quantile(&times, 0.5) * 1e6,
        &size,
    );
}

fn fill(snapshot: &mut Snapshot, pods: u32) {
    for gang in gangs(pods, 4) {
        if let Ok(plan) = place(snapshot, &gang) {
            snapshot.take(&plan, &gang);
        }
    }
}

fn cluster(count: u32) -> Snapshot {
    let nodes = (0..count).map(|index| {
        let labels = [
            ("zone", index / 1000),
            ("block", index / 160),
            ("rack", index / 16),
        ];
        let labels =
            labels.map(|(level, domain)| (level.to_owned(), format!("{level}-{domain:05}")));
        let common = (0..20).map(|i| {
            (
                format!("example.com/label-{i}"),
                "the same everywhere".to_owned(),
            )
        });
        let name = format!("node-{index:06}");
        let hostname = ("kubernetes.io/hostname".to_owned(), name.clone());
        let allocatable = Resources {
            // Machines of one kind differ a little.
            memory: Bytes(Bytes::gib(1024).0 - u64::from(index % 7) * 4096),
            ..resources(96, 1024, 8)
        };
        let product = if index % 10 < 7 {
            "NVIDIA-H100-80GB-HBM3"
        } else {
            "NVIDIA-A100-SXM4-80GB"
        };
        Node {
            labels: labels
                .into_iter()
                .chain(common)
                .chain([hostname])
                .collect::<BTreeMap<_, _>>()
                .into(),
            ..sized::node(&name, product, allocatable)
        }
    });
    let mut snapshot: Snapshot = nodes.collect();
    snapshot.set_levels(LEVELS.map(str::to_owned));
    snapshot
}

/// Gangs of 1 to 512 workers with up to `gpus_max` GPUs each, small ones the most, until there are so many pods.
fn gangs(pods: u32, gpus_max: u32) -> Vec<Gang> {
    let mut dice = Dice(7);
    let mut left = pods;
    let mut gangs = Vec::new();
    while left > 0 {
        let workers = (1 << dice.roll(10)).min(left);
        let gpus = (1 << dice.roll(4)).min(gpus_max);
        let topology = match dice.roll(4) {
            0 => None,
            1 => required("block"),
            _ => Some(Topology::Preferred),
        };
        left -= workers;
        gangs.push(gang(workers, gpus, topology));
    }
    gangs
}

fn required(level: &str) -> Option<Topology> {
    let level = level.to_owned();
    Some(Topology::Required { level })
}

fn gang(workers: u32, gpus: u32, topology: Option<Topology>) -> Gang {
    let each = resources(u64::from(gpus) * 8, u64::from(gpus) * 64, gpus);
    Gang {
        topology,
        ..sized::gang(workers, each)
    }
}

/// The same draws in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % sides
    }
}

/// Seconds, sorted.
fn sample(times: usize, mut work: impl FnMut()) -> Vec<f64> {
    let mut seconds: Vec<f64> = (0..times)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}

/// Nearest rank.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}

fn spread(sorted: &[f64], scale: f64) -> String {
    // The least is what it costs; the rest is told by how busy the machine is.
    let [min, p99] = [0.0, 0.99].map(|q| quantile(sorted, q) * scale);
    format!(
        r#""min": {min:.2}, "p99": {p99:.2}, "samples": {}"#,
        sorted.len()
    )
}

fn millis(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

fn figure(name: &str, unit: &str, value: f64, more: &str) {
    println!(r#"{{"figure": "{name}", "unit": "{unit}", "value": {value:.2}, {more}}}"#);
}
