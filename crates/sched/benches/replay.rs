//! The public traces against each policy: `cargo bench -p stoke-sched --bench replay [-- FILTER..]`, one JSON line a trace and policy, as means over the orders.
//!
//! Reads `$STOKE_DATA_DIR/openb`, or `../shared/data/openb` beside the checkout: `nodes.csv`, `pods_<trace>.csv`, `order/<trace>_<seed>.txt`.
//! Filters are names of traces and policies; without any all are run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use stoke_sched::replay::{DecisionTime, MARKS, Policy, Replay, Trace, floor};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let Some(folder) = data().filter(|folder| folder.is_dir()) else {
        eprintln!("no traces: set STOKE_DATA_DIR to the folder that has openb/");
        return Ok(());
    };
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_policy = |name: &String| name.parse::<Policy>().is_ok();
    let (policies, traces): (Vec<String>, Vec<String>) = filters.into_iter().partition(is_policy);
    for (name, orders) in orders(&folder)? {
        if !traces.is_empty() && !traces.contains(&name) {
            continue;
        }
        let traces = orders
            .iter()
            .map(|order| read(&folder, &name, order))
            .collect::<Result<Vec<Trace>, Failure>>()?;
        let floors = mean(traces.iter().map(floor));
        for policy in Policy::ALL {
            if policies.is_empty() || policies.iter().any(|wanted| wanted == policy.name()) {
                run(&name, policy, &traces, &floors);
            }
        }
    }
    Ok(())
}

fn data() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let data = std::env::var_os("STOKE_DATA_DIR").map_or(beside, PathBuf::from);
    Some(data.join("openb"))
}

/// The names of the traces, each with its orders.
fn orders(folder: &Path) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let mut orders = BTreeMap::<String, Vec<String>>::new();
    for entry in std::fs::read_dir(folder.join("order"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some((trace, _)) = name.rsplit_once('_') {
            orders.entry(trace.to_owned()).or_default().push(name);
        }
    }
    for orders in orders.values_mut() {
        orders.sort();
    }
    Ok(orders)
}

fn read(folder: &Path, name: &str, order: &str) -> Result<Trace, Failure> {
    let text = |path: PathBuf| std::fs::read_to_string(folder.join(path));
    Ok(Trace::parse(
        &text("nodes.csv".into())?,
        &text(format!("pods_{name}.csv").into())?,
        &text(Path::new("order").join(order))?,
    )?)
}

fn run(name: &str, policy: Policy, traces: &[Trace], floors: &BTreeMap<u32, f64>) {
    let mut took = Vec::new();
    let mut reports = Vec::new();
    for trace in traces {
        let mut replay = Replay::new(trace, policy, 1);
        loop {
            let start = Instant::now();
            if replay.next().is_none() {
                break;
            }
            took.push(start.elapsed());
        }
        reports.push(replay.report());
    }
    let failed: u64 = reports.iter().map(|report| report.failed_pods).sum();
    let unallocated = mean(reports.into_iter().map(|report| report.unallocated));
    let line = json!({
        "bench": "replay",
        "trace": name,
        "orders": traces.len(),
        "policy": policy,
        "unallocated": unallocated,
        "floor": floors,
        "failed_pods": failed as f64 / traces.len() as f64,
        "decision_us": DecisionTime::of(took),
    });
    println!("{line}");
}

/// By mark, to a thousandth.
fn mean(figures: impl Iterator<Item = BTreeMap<u32, Option<f64>>>) -> BTreeMap<u32, f64> {
    let figures: Vec<BTreeMap<u32, Option<f64>>> = figures.collect();
    let mean = |mark: u32| {
        let of_mark = figures
            .iter()
            .filter_map(|figures| figures.get(&mark).copied().flatten());
        let (sum, count) = of_mark.fold((0.0, 0_u32), |(sum, count), figure| {
            (sum + figure, count + 1)
        });
        (1000.0 * sum / f64::from(count.max(1))).round() / 1000.0
    };
    MARKS.into_iter().map(|mark| (mark, mean(mark))).collect()
}
