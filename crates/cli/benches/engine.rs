//! `make bench`: figures of the single-machine engine, one JSON line each, measured on the real binary over TLS.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{
    DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use stoke_api::TrainJob;

fn main() -> Result<()> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(bench())
}

async fn bench() -> Result<()> {
    let engine = Engine::start()?;
    let client = engine.client().await?;
    engine.idle_memory().await?;
    submit_to_running(&client, engine.folder.path()).await?;
    creates_per_second(&client).await?;
    watch_fan_out(&client).await?;
    engine.get_among_many(&client).await?;
    list_pods(&client).await?;
    engine.starts_again()
}

fn figure(name: &str, unit: &str, value: f64, more: Value) {
    let mut line = json!({"figure": name, "unit": unit, "value": (value * 100.0).round() / 100.0});
    if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
        line.extend(more.clone());
    }
    println!("{line}");
}

/// Nearest rank.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted[rank.min(sorted.len()) - 1]
}

fn spread(name: &str, mut samples: Vec<f64>) {
    samples.sort_by(f64::total_cmp);
    let (p50, p99) = (quantile(&samples, 0.5), quantile(&samples, 0.99));
    figure(
        name,
        "ms",
        p50,
        json!({"p99": (p99 * 100.0).round() / 100.0, "samples": samples.len()}),
    );
}

struct Engine {
    folder: tempfile::TempDir,
}

impl Engine {
    fn start() -> Result<Self> {
        let engine = Self {
            folder: tempfile::tempdir()?,
        };
        let started = engine.up()?;
        figure(
            "engine first start to ready",
            "ms",
            millis(started),
            json!({"aim": "under 500"}),
        );
        Ok(engine)
    }

    fn stoke(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoke"));
        command
            .args(arguments)
            .env("STOKE_DATA_DIR", self.data_dir())
            .stdin(Stdio::null());
        let output = command.output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("stoke {}: {said}", arguments.join(" "));
        }
        Ok(())
    }

    fn up(&self) -> Result<Duration> {
        let begun = Instant::now();
        self.stoke(&["up", "--detach", "--listen", "127.0.0.1:0"])?;
        Ok(begun.elapsed())
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.data_dir().join("kubeconfig"))?;
        Ok(Client::try_from(
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?,
        )?)
    }

    fn pid(&self) -> Result<u64> {
        let engine: Value =
            serde_json::from_slice(&std::fs::read(self.data_dir().join("engine.json"))?)?;
        engine["pid"].as_u64().context("engine.json has no pid")
    }

    async fn idle_memory(&self) -> Result<()> {
        // Idle is what it is after its controllers and its node have settled.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?))?;
        let rss = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .context("no VmRSS")?;
        let kib: f64 = rss.trim().trim_end_matches(" kB").parse()?;
        figure(
            "idle RSS of stoke up",
            "MiB",
            kib / 1024.0,
            json!({"aim": "under 60"}),
        );
        Ok(())
    }

    /// `stoke get`, from the start of the process to its end, where nobody has tidied up for long.
    async fn get_among_many(&self, client: &Client) -> Result<()> {
        const FINISHED: usize = 1_000;
        const RUNNING: usize = 50;
        let jobs: Api<TrainJob> = Api::default_namespaced(client.clone());
        let job = |name: String, spec: Value| json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec});
        let finish = |n: usize| {
            let jobs = jobs.clone();
            // Nothing of it ever runs: it is put on record as it would be at its end.
            let made = job(
                format!("finished-{n:04}"),
                json!({"command": ["true"], "suspend": true}),
            );
            async move {
                let made: TrainJob = serde_json::from_value(made)?;
                let name = made.name().to_owned();
                jobs.create(&PostParams::default(), &made).await?;
                let status = json!({"status": {
                    "phase": "Complete", "reason": "Succeeded", "message": "its worker ended well", "ready": "0/1",
                    "attempt": 1, "failures": 0, "ranSeconds": 60,
                    "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z",
                    "attempts": [{"number": 1, "nodes": ["n"], "outcome": "Succeeded",
                        "runningAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z"}],
                }});
                let patch = Patch::Merge(status);
                jobs.patch_status(&name, &PatchParams::default(), &patch)
                    .await?;
                anyhow::Ok(())
            }
        };
        let mut finished = futures::stream::iter((0..FINISHED).map(finish)).buffer_unordered(16);
        while let Some(result) = finished.next().await {
            result?;
        }
        for n in 0..RUNNING {
            let spec =
                json!({"command": ["sleep", "600"], "cpus": "0.01", "memory": {"limit": "16Mi"}});
            let made = serde_json::from_value(job(format!("running-{n:02}"), spec))?;
            jobs.create(&PostParams::default(), &made).await?;
        }
        let is_running = |job: &TrainJob| {
            let status = job.status.as_ref();
            status.is_some_and(|status| status.phase == stoke_api::trainjob::Phase::Running)
        };
        let begun = Instant::now();
        loop {
            let all = jobs.list(&ListParams::default()).await?.items;
            if all.iter().filter(|job| is_running(job)).count() == RUNNING {
                break;
            }
            anyhow::ensure!(begun.elapsed() < Duration::from_secs(120), "not all run");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let mut samples = Vec::new();
        for _ in 0..20 {
            let begun = Instant::now();
            self.stoke(&["get"])?;
            samples.push(millis(begun.elapsed()));
        }
        samples.sort_by(f64::total_cmp);
        figure(
            "stoke get, 1,000 finished and 50 running jobs (p50)",
            "ms",
            quantile(&samples, 0.5),
            json!({"aim": "under 100", "p99": (quantile(&samples, 0.99) * 100.0).round() / 100.0}),
        );
        jobs.delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        Ok(())
    }

    /// With a store of thousands of objects, as after weeks of use.
    fn starts_again(&self) -> Result<()> {
        self.stoke(&["down"])?;
        let started = self.up()?;
        figure(
            "engine start to ready, 10,000 pods stored",
            "ms",
            millis(started),
            json!({"aim": "under 500"}),
        );
        self.stoke(&["down"])
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.stoke(&["down"]);
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// From just before the request to the moment the job's own process looks at the clock.
async fn submit_to_running(client: &Client, folder: &Path) -> Result<()> {
    let jobs: Api<TrainJob> = Api::default_namespaced(client.clone());
    let mut samples = Vec::new();
    for round in 0..30 {
        let name = format!("latency-{round}");
        let mark = folder.join(&name);
        let script = format!("date +%s%N > {0}.part && mv {0}.part {0}", mark.display());
        let job: TrainJob = serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": {"command": ["sh", "-c", script], "memory": {"limit": "64Mi"}},
        }))?;
        let submitted = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as f64;
        jobs.create(&PostParams::default(), &job).await?;
        let begun = Instant::now();
        let ran: f64 = loop {
            if let Ok(text) = std::fs::read_to_string(&mark) {
                break text.trim().parse()?;
            }
            if begun.elapsed() > Duration::from_secs(30) {
                bail!("{name} did not run");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        samples.push((ran - submitted) / 1e6);
        jobs.delete(&name, &DeleteParams::default()).await?;
    }
    spread("submit to process running (p50)", samples);
    Ok(())
}

async fn creates_per_second(client: &Client) -> Result<()> {
    const WRITERS: usize = 16;
    const EACH: usize = 300;
    let begun = Instant::now();
    let writers = (0..WRITERS).map(|writer| {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        async move {
            for n in 0..EACH {
                let map = json!({"metadata": {"name": format!("map-{writer}-{n}")}, "data": {"n": n.to_string()}});
                maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
            }
            anyhow::Ok(())
        }
    });
    futures::future::try_join_all(writers).await?;
    let rate = (WRITERS * EACH) as f64 / begun.elapsed().as_secs_f64();
    figure(
        "API creates, each durable, 16 writers",
        "1/s",
        rate,
        json!({}),
    );
    Ok(())
}

async fn watch_fan_out(client: &Client) -> Result<()> {
    const WATCHERS: usize = 8;
    const EVENTS: usize = 200;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let from = maps
        .list(&ListParams::default().limit(1))
        .await?
        .metadata
        .resource_version
        .unwrap_or_default();
    let sent: std::sync::Arc<Vec<std::sync::OnceLock<Instant>>> =
        std::sync::Arc::new((0..EVENTS).map(|_| std::sync::OnceLock::new()).collect());
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|_| {
            let (maps, from, sent) = (maps.clone(), from.clone(), sent.clone());
            tokio::spawn(async move {
                let parameters = WatchParams::default().labels("bench=fan-out");
                let mut events = maps.watch(&parameters, &from).await?.boxed();
                let mut samples = Vec::new();
                while samples.len() < EVENTS {
                    let Some(event) = events.next().await else {
                        bail!("the watch ended")
                    };
                    let WatchEvent::Added(map) = event? else {
                        continue;
                    };
                    let n: usize = map
                        .metadata
                        .name
                        .unwrap_or_default()
                        .trim_start_matches("fan-")
                        .parse()?;
                    let begun = sent[n].get().context("an event before its request")?;
                    samples.push(millis(begun.elapsed()));
                }
                Ok(samples)
            })
        })
        .collect();
    for n in 0..EVENTS {
        let map = json!({"metadata": {"name": format!("fan-{n}"), "labels": {"bench": "fan-out"}}});
        let _ = sent[n].set(Instant::now());
        maps.create(&PostParams::default(), &serde_json::from_value(map)?)
            .await?;
    }
    let mut samples = Vec::new();
    for watcher in watchers {
        samples.extend(watcher.await??);
    }
    spread("watch fan-out, request to 8 watchers (p50)", samples);
    Ok(())
}

async fn list_pods(client: &Client) -> Result<()> {
    const PODS: usize = 10_000;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let create = |n: usize| {
        let pods = pods.clone();
        async move {
            // Another scheduler's pods: stored, and left alone.
            let pod = json!({
                "metadata": {"name": format!("pod-{n:05}"), "labels": {"shard": (n % 10).to_string()}},
                "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "host", "command": ["true"]}]},
            });
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?)
                .await?;
            anyhow::Ok(())
        }
    };
    let mut created = futures::stream::iter((0..PODS).map(create)).buffer_unordered(32);
    while let Some(result) = created.next().await {
        result?;
    }
    let mut bytes = 0;
    let mut samples = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let request = http::Request::get("/api/v1/namespaces/default/pods").body(Vec::new())?;
        bytes = client.request_text(request).await?.len();
        samples.push(millis(begun.elapsed()));
    }
    samples.sort_by(f64::total_cmp);
    figure(
        "list of 10,000 pods",
        "ms",
        quantile(&samples, 0.5),
        json!({"MiB": bytes >> 20}),
    );
    let mut samples = Vec::new();
    for _ in 0..5 {
        let begun = Instant::now();
        let found = pods
            .list(&ListParams::default().labels("shard=3"))
            .await?
            .items
            .len();
        anyhow::ensure!(found == PODS / 10, "{found} pods in a shard");
        samples.push(millis(begun.elapsed()));
    }
    samples.sort_by(f64::total_cmp);
    figure(
        "list of 1,000 of 10,000 pods by label",
        "ms",
        quantile(&samples, 0.5),
        json!({}),
    );
    Ok(())
}
