//! `make bench-kube`: how the operator keeps up with a thousand nodes, next to what the same control plane does for a client that merely
//! creates the same pods. One JSON line a figure.
//!
//! The control plane is real and its own, started for this and taken down after; nodes and the life of pods on them are kwok's. Everything
//! is on this machine and shares its cores, so only figures of one run can be compared.

#[path = "scale/audit_log.rs"]
mod audit_log;
#[path = "scale/load.rs"]
mod load;
#[path = "scale/pod_count.rs"]
mod pod_count;
#[path = "scale/processes.rs"]
mod processes;
#[path = "scale/rig.rs"]
mod rig;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::Client;
use serde_json::{Value, json};

use audit_log::AuditLog;
use pod_count::PodCount;
use rig::{Operator, Rig};

fn main() -> Result<()> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let Some(rig) = Rig::up()? else {
        return Ok(());
    };
    runtime.block_on(bench(&rig))
}

async fn bench(rig: &Rig) -> Result<()> {
    let client = rig.client().await?;
    rig.install()?;
    load::add_nodes(&client).await?;
    warm_up(&client).await?;
    let (ours, pods) = with_operator(rig, &client).await?;
    load::clear(&client, "trained").await?;
    let bare = bare_client(rig, &client, pods).await?;
    figure(
        "pods bound per second, of what a bare client reaches",
        "%",
        100.0 * ours / bare,
        json!({"aim": "at least 70"}),
    );
    Ok(())
}

/// What is slow only the first time is not what is measured.
async fn warm_up(client: &Client) -> Result<()> {
    const PODS: usize = 500;
    load::make_namespaces(client, "warm-up").await?;
    let bound = PodCount::bound(client).await?;
    load::create_pods(client, load::plain_pods("warm-up", PODS)).await?;
    bound.reach(PODS).await?;
    load::clear(client, "warm-up").await
}

/// Pods bound per second, and the pods as they were made.
async fn with_operator(rig: &Rig, client: &Client) -> Result<(f64, Vec<Value>)> {
    load::make_namespaces(client, "trained").await?;
    let mut audit = AuditLog::open(rig)?;
    let operator = Operator::start(rig)?;
    operator.leads(client).await?;
    let bound = PodCount::bound(client).await?;
    let running = PodCount::running(client).await?;
    let spent = processes::cpu_seconds(rig, Some(operator.pid()))?;
    let begun = Instant::now();
    load::create_jobs(client, "trained").await?;
    figure(
        "2,000 TrainJobs submitted",
        "s",
        begun.elapsed().as_secs_f64(),
        json!({}),
    );
    let took = bound.reach(load::PODS).await?.duration_since(begun);
    let rate = told("operator", took, load::PODS);
    // What lies between this and the next is the operator's own lag; what lies before it is kwok's and the scheduler's.
    let ran = running.reach(load::PODS).await?.duration_since(begun);
    figure("all pods run", "s", ran.as_secs_f64(), json!({}));
    load::reach_phase(client, "Running").await?;
    let said = begun.elapsed();
    figure(
        "all jobs say Running",
        "s",
        said.as_secs_f64(),
        json!({"after the last pod ran": round(said.saturating_sub(ran).as_secs_f64())}),
    );
    told_cpu(
        "operator",
        &spent,
        &processes::cpu_seconds(rig, Some(operator.pid()))?,
    );
    figure(
        "operator RSS with all of it in memory",
        "MiB",
        operator.memory("VmRSS")?,
        json!({"aim": "under 100"}),
    );
    let pods = load::pods_as_made(client).await?;
    load::end_pods(client, &pods).await?;
    load::reach_phase(client, "Complete").await?;
    let ended = processes::cpu_seconds(rig, Some(operator.pid()))?;
    figure(
        "operator CPU, from submission to completion",
        "s",
        ended["operator"] - spent["operator"],
        json!({"per job in ms": round(1e3 * (ended["operator"] - spent["operator"]) / load::JOBS as f64)}),
    );
    figure(
        "operator peak RSS",
        "MiB",
        operator.memory("VmHWM")?,
        json!({"aim": "under 100"}),
    );
    audit.read_on()?;
    told_writes(&audit);
    if audit.denied() > 0 {
        bail!("{} requests of the operator were denied", audit.denied());
    }
    operator.stop().await?;
    fresh_start(rig, client).await?;
    Ok((rate, pods))
}

/// A leader that takes over reads all there is at once.
async fn fresh_start(rig: &Rig, client: &Client) -> Result<()> {
    let operator = Operator::start(rig)?;
    operator.leads(client).await?;
    // The lists are read right after; what they need at most is seen by the peak.
    tokio::time::sleep(Duration::from_secs(15)).await;
    figure(
        "operator peak RSS when it starts with 10,000 pods there",
        "MiB",
        operator.memory("VmHWM")?,
        json!({"aim": "under 100"}),
    );
    operator.stop().await
}

async fn bare_client(rig: &Rig, client: &Client, pods: Vec<Value>) -> Result<f64> {
    load::make_namespaces(client, "bare").await?;
    let bound = PodCount::bound(client).await?;
    let running = PodCount::running(client).await?;
    let spent = processes::cpu_seconds(rig, None)?;
    let begun = Instant::now();
    let count = pods.len();
    load::create_pods(client, load::moved(pods, "trained", "bare")).await?;
    let took = bound.reach(count).await?.duration_since(begun);
    let rate = told("bare client", took, count);
    // Counted there as well, so that both have the same load beside them.
    running.reach(count).await?;
    told_cpu("bare client", &spent, &processes::cpu_seconds(rig, None)?);
    Ok(rate)
}

fn told(who: &str, took: Duration, pods: usize) -> f64 {
    let rate = pods as f64 / took.as_secs_f64();
    figure(
        &format!("{who}: until all pods are bound"),
        "s",
        took.as_secs_f64(),
        json!({"pods": pods}),
    );
    figure(
        &format!("{who}: pods bound per second"),
        "1/s",
        rate,
        json!({}),
    );
    rate
}

fn told_cpu(who: &str, before: &processes::CpuSeconds, after: &processes::CpuSeconds) {
    let spent = after
        .iter()
        .map(|(name, seconds)| (name.clone(), seconds - before.get(name).unwrap_or(&0.0)));
    let by_process: serde_json::Map<String, Value> = spent
        .clone()
        .map(|(name, seconds)| (name, json!(round(seconds))))
        .collect();
    figure(
        &format!("{who}: CPU of all processes meanwhile"),
        "s",
        spent.map(|(_, seconds)| seconds).sum(),
        json!({"of": by_process}),
    );
}

fn told_writes(audit: &AuditLog) {
    let writes = audit.writes();
    let of_pods: usize = writes
        .iter()
        .filter(|(what, _)| what.contains(" pods"))
        .map(|(_, count)| count)
        .sum();
    // That it leads is no work of a job's.
    let of_jobs: usize = writes
        .iter()
        .filter(|(what, _)| !what.contains(" pods") && !what.contains(" leases"))
        .map(|(_, count)| count)
        .sum();
    figure(
        "API writes a pod",
        "",
        of_pods as f64 / load::PODS as f64,
        json!({"aim": "under 2"}),
    );
    figure(
        "API writes a job, beside its pods",
        "",
        of_jobs as f64 / load::JOBS as f64,
        json!({"aim": "under 6", "of": writes}),
    );
}

fn figure(name: &str, unit: &str, value: f64, more: Value) {
    let mut line = json!({"figure": name, "unit": unit, "value": round(value)});
    if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
        line.extend(more.clone());
    }
    println!("{line}");
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
