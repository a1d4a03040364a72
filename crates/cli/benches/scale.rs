//! `make bench-kube`: how the operator keeps up with hundreds of nodes and thousands of jobs, next to what the same control plane does for a
//! client that merely creates the same pods. One JSON line a figure.
//!
//! The control plane is real and its own, started anew for each load and taken down after; nodes and the life of pods on them are kwok's.
//! Everything is on this machine and shares its cores, so only figures of one run can be compared.

#[path = "scale/audit_log.rs"]
mod audit_log;
#[path = "scale/count.rs"]
mod count;
#[path = "scale/load.rs"]
mod load;
#[path = "scale/processes.rs"]
mod processes;
#[path = "scale/rig.rs"]
mod rig;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use kube::Client;
use serde_json::{Value, json};

use audit_log::AuditLog;
use count::Count;
use load::Load;
use processes::CpuSeconds;
use rig::{Operator, Rig};

fn main() -> Result<()> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    // `cargo bench --bench scale -- gang` runs only the loads with that in their names.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for load in [Load::mixed(), Load::singles(), Load::gang()] {
        if !wanted.is_empty() && !wanted.iter().any(|word| load.name.contains(word)) {
            continue;
        }
        let Some(rig) = Rig::up()? else {
            return Ok(());
        };
        let bench = async {
            let client = rig.client().await?;
            let bench = Bench { rig, client, load };
            bench.run().await
        };
        runtime.block_on(bench)?;
    }
    Ok(())
}

struct Bench {
    rig: Rig,
    client: Client,
    load: Load,
}

impl Bench {
    async fn run(&self) -> Result<()> {
        self.rig.install()?;
        load::add_nodes(&self.client, &self.load).await?;
        self.warm_up().await?;
        let (ours, pods) = self.with_operator().await?;
        load::clear(&self.client, "trained").await?;
        let bare = self.bare_client(pods).await?;
        self.figure(
            "pods bound per second, of what a bare client reaches",
            "%",
            100.0 * bare.as_secs_f64() / ours.as_secs_f64(),
            json!({"aim": "at least 70"}),
        );
        self.figure(
            "time until all pods are bound, times what a bare client takes",
            "",
            ours.as_secs_f64() / bare.as_secs_f64(),
            json!({"aim": "at most 1.6"}),
        );
        Ok(())
    }

    /// What is slow only the first time is not what is measured.
    async fn warm_up(&self) -> Result<()> {
        const PODS: usize = 500;
        load::make_namespaces(&self.client, "warm-up").await?;
        let bound = Count::bound(&self.client).await?;
        let pods = load::plain_pods(&self.load, "warm-up", PODS);
        load::create_pods(&self.client, pods).await?;
        bound.reach(PODS).await?;
        load::clear(&self.client, "warm-up").await
    }

    /// How long it took until all pods were bound, and the pods as they were made.
    async fn with_operator(&self) -> Result<(Duration, Vec<Value>)> {
        let Self { rig, client, load } = self;
        load::make_namespaces(client, "trained").await?;
        let mut audit = AuditLog::open(rig)?;
        let operator = Operator::start(rig)?;
        operator.leads(client).await?;
        let bound = Count::bound(client).await?;
        let running = Count::running(client).await?;
        let jobs_running = Count::jobs_running(client).await?;
        let cpu = || processes::cpu_seconds(rig, Some(operator.pid()));
        let spent = cpu()?;
        let begun = Instant::now();
        load::create_jobs(client, load, "trained").await?;
        let submitted = begun.elapsed().as_secs_f64();
        self.figure("all jobs submitted", "s", submitted, json!({}));
        let took = bound.reach(load.pods()).await?.duration_since(begun);
        let at_bound = cpu()?;
        self.told("operator", took);
        // What lies between this and the next is the operator's own lag; what lies before it is kwok's and the scheduler's.
        let ran = running.reach(load.pods()).await?.duration_since(begun);
        self.figure("all pods run", "s", ran.as_secs_f64(), json!({}));
        let said = jobs_running.reach(load.jobs()).await?.duration_since(begun);
        self.figure(
            "all jobs say Running",
            "s",
            said.as_secs_f64(),
            json!({"after the last pod ran": round(said.saturating_sub(ran).as_secs_f64())}),
        );
        let jobs_complete = Count::jobs_complete(client).await?;
        self.told_cpu("operator", &spent, &at_bound);
        self.told_admission(&spent, &at_bound);
        self.memory(&operator, "RSS with all of it in memory", "VmRSS")?;
        let pods = load::pods_as_made(client).await?;
        load::end_pods(client, &pods).await?;
        jobs_complete.reach(load.jobs()).await?;
        let ended = cpu()?["operator"] - spent["operator"];
        self.figure(
            "operator CPU, from submission to completion",
            "s",
            ended,
            json!({"per job in ms": round(1e3 * ended / load.jobs() as f64)}),
        );
        self.memory(&operator, "peak RSS", "VmHWM")?;
        audit.read_on()?;
        self.told_writes(&audit);
        if audit.denied() > 0 {
            bail!("{} requests of the operator were denied", audit.denied());
        }
        operator.stop().await?;
        self.fresh_start().await?;
        Ok((took, pods))
    }

    /// A leader that takes over reads all there is at once.
    async fn fresh_start(&self) -> Result<()> {
        let operator = Operator::start(&self.rig)?;
        operator.leads(&self.client).await?;
        // The lists are read right after; what they need at most is seen by the peak.
        tokio::time::sleep(Duration::from_secs(15)).await;
        self.memory(
            &operator,
            "peak RSS when it starts with all of it there",
            "VmHWM",
        )?;
        operator.stop().await
    }

    async fn bare_client(&self, pods: Vec<Value>) -> Result<Duration> {
        let Self { rig, client, .. } = self;
        load::make_namespaces(client, "bare").await?;
        let bound = Count::bound(client).await?;
        let running = Count::running(client).await?;
        let spent = processes::cpu_seconds(rig, None)?;
        let begun = Instant::now();
        let count = pods.len();
        load::create_pods(client, load::moved(pods, "trained", "bare")).await?;
        let took = bound.reach(count).await?.duration_since(begun);
        self.told("bare client", took);
        self.told_cpu("bare client", &spent, &processes::cpu_seconds(rig, None)?);
        // Counted there as well, so that both have the same load beside them.
        running.reach(count).await?;
        Ok(took)
    }

    fn told(&self, who: &str, took: Duration) {
        let pods = self.load.pods();
        self.figure(
            &format!("{who}: until all pods are bound"),
            "s",
            took.as_secs_f64(),
            json!({"pods": pods}),
        );
        self.figure(
            &format!("{who}: pods bound per second"),
            "1/s",
            pods as f64 / took.as_secs_f64(),
            json!({}),
        );
    }

    fn told_cpu(&self, who: &str, before: &CpuSeconds, after: &CpuSeconds) {
        let spent = spent_between(before, after);
        let by_process: serde_json::Map<String, Value> = spent
            .iter()
            .map(|(name, seconds)| (name.clone(), json!(round(*seconds))))
            .collect();
        self.figure(
            &format!("{who}: CPU of all processes until all pods are bound"),
            "s",
            spent.values().sum(),
            json!({"of": by_process}),
        );
    }

    /// What a job costs from its submission until its pods have their nodes, wherever that is spent; kwok's and this program's own work is
    /// none of it.
    fn told_admission(&self, before: &CpuSeconds, after: &CpuSeconds) {
        let spent = spent_between(before, after);
        let parts = ["operator", "kube-apiserver", "etcd"];
        let admitting: f64 = parts.iter().filter_map(|part| spent.get(*part)).sum();
        self.figure(
            "CPU of admitting a job: operator, API server and etcd",
            "ms",
            1e3 * admitting / self.load.jobs() as f64,
            json!({"aim": "at most 15 for a job of one pod"}),
        );
    }

    fn memory(&self, operator: &Operator, what: &str, which: &str) -> Result<()> {
        self.figure(
            &format!("operator {what}"),
            "MiB",
            operator.memory(which)?,
            json!({"aim": "under 100"}),
        );
        Ok(())
    }

    fn told_writes(&self, audit: &AuditLog) {
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
        self.figure(
            "API writes a pod",
            "",
            of_pods as f64 / self.load.pods() as f64,
            json!({"aim": "under 2"}),
        );
        self.figure(
            "API writes a job, beside its pods",
            "",
            of_jobs as f64 / self.load.jobs() as f64,
            json!({"aim": "under 6", "of": writes}),
        );
    }

    fn figure(&self, name: &str, unit: &str, value: f64, more: Value) {
        let load = self.load.name;
        let mut line = json!({"load": load, "figure": name, "unit": unit, "value": round(value)});
        if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
            line.extend(more.clone());
        }
        println!("{line}");
    }
}

fn spent_between(before: &CpuSeconds, after: &CpuSeconds) -> CpuSeconds {
    let spent = |(name, seconds): (&String, &f64)| {
        (name.clone(), seconds - before.get(name).unwrap_or(&0.0))
    };
    after.iter().map(spent).collect()
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
