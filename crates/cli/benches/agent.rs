//! `make bench`: what the agent costs a node with 50 containers of jobs, one JSON line a figure.
//!
//! The agent is the real binary. Where cgroups can be made, it reads real ones with a process in each; elsewhere copies of their files.
//! The API server it talks to is a list of pods and a watch on which nothing happens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde_json::{Value, json};

const CONTAINERS: usize = 50;
const MEASURED: Duration = Duration::from_secs(20);
/// For the first look, the caches and the allocator to settle.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
const ROOT: &str = "/sys/fs/cgroup/memory";
const GROUP: &str = "stoke-bench-agent";

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(bench())
}

async fn bench() -> Result<()> {
    // With every worker's limit where it stays, and with every one of them looked at ten times a second.
    for (what, max) in [("steady", None), ("alert", Some("1Gi"))] {
        let folder = tempfile::tempdir()?;
        let node = Node::new(folder.path())?;
        let (used, rss) = measured(&node, folder.path(), max).await?;
        let kind = if node.is_real { "kernel" } else { "recorded" };
        let share = used.as_secs_f64() / MEASURED.as_secs_f64() * 100.0;
        let more = |aim: &str| json!({"containers": CONTAINERS, "cgroups": kind, "workers": what, "aim": aim});
        figure(
            "agent sampling, of one core",
            "%",
            share,
            &more("under 0.5"),
        );
        figure(
            "agent resident memory",
            "MiB",
            rss as f64 / 1024.0,
            &more("under 30"),
        );
    }
    Ok(())
}

fn figure(name: &str, unit: &str, value: f64, more: &Value) {
    let mut line =
        json!({"figure": name, "unit": unit, "value": (value * 1000.0).round() / 1000.0});
    if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
        line.extend(more.clone());
    }
    println!("{line}");
}

/// The agent's CPU time over the measured span, and its memory at the end, in KiB.
async fn measured(
    node: &Node,
    folder: &Path,
    max: Option<&'static str>,
) -> Result<(Duration, u64)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let server = format!("http://{}", listener.local_addr()?);
    let pods = pods(max);
    let router = Router::new().route(
        "/api/v1/pods",
        get(move |Query(query): Query<Vec<(String, String)>>| {
            let pods = pods.clone();
            async move { answer(&query, pods).await }
        }),
    );
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = folder.join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": server}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    });
    fs::write(&config, text.to_string())?;
    let agent = Command::new(env!("CARGO_BIN_EXE_stoke"))
        .args(["agent", "--node", "bench", "--listen", "127.0.0.1:0"])
        .arg("--cgroup-root")
        .arg(&node.mount)
        .arg("--kubeconfig")
        .arg(&config)
        .env("STOKE_LOG", "error")
        .stdin(Stdio::null())
        .spawn()
        .context("the agent")?;
    let agent = Agent(agent);
    tokio::time::sleep(SETTLED_AFTER).await;
    let before = agent.cpu()?;
    tokio::time::sleep(MEASURED).await;
    Ok((agent.cpu()?.saturating_sub(before), agent.rss()?))
}

async fn answer(query: &[(String, String)], pods: Value) -> Response {
    if query.iter().any(|(key, _)| key == "watch") {
        std::future::pending::<()>().await;
    }
    ([("content-type", "application/json")], pods.to_string()).into_response()
}

fn pods(max: Option<&str>) -> Value {
    let pod = |n: usize| {
        let terms = json!({"limit": "64Mi", "max": max}).to_string();
        json!({
            "metadata": {"name": format!("job-{n}-1-0"), "namespace": "ml", "uid": format!("u{n}"), "resourceVersion": "1",
                "labels": {"stokehold.dev/job": format!("job-{n}"), "stokehold.dev/attempt": "1", "stokehold.dev/rank": "0"},
                "annotations": {"stokehold.dev/memory-terms": terms}},
            "spec": {"nodeName": "bench", "containers": [{"name": "worker",
                "resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "64Mi"}}}]},
            "status": {"qosClass": "Burstable", "phase": "Running", "containerStatuses": [{"name": "worker",
                "containerID": format!("containerd://c{n}"), "state": {"running": {}}, "ready": true, "restartCount": 0,
                "image": "", "imageID": ""}]},
        })
    };
    let items: Vec<Value> = (0..CONTAINERS).map(pod).collect();
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})
}

struct Agent(Child);

impl Agent {
    fn proc(&self, file: &str) -> Result<String> {
        Ok(fs::read_to_string(format!("/proc/{}/{file}", self.0.id()))?)
    }

    /// User and system time, of which the kernel counts a hundred ticks a second.
    fn cpu(&self) -> Result<Duration> {
        let stat = self.proc("stat")?;
        let after = stat.rsplit(')').next().unwrap_or_default();
        let ticks = |field: usize| -> Result<u64> {
            let text = after.split_whitespace().nth(field).context("stat")?;
            Ok(text.parse()?)
        };
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
    }

    fn rss(&self) -> Result<u64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let text = line.and_then(|line| line.split_whitespace().next());
        Ok(text.context("VmRSS")?.parse()?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node's cgroups, and a process in each.
struct Node {
    mount: PathBuf,
    is_real: bool,
    made: Vec<PathBuf>,
    processes: Vec<Child>,
}

impl Node {
    fn new(folder: &Path) -> Result<Self> {
        let real = Path::new(ROOT).join(GROUP);
        if fs::create_dir(&real).is_ok() {
            return Self::real(real);
        }
        let recorded =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../node/tests/fixtures/cgroup/v2");
        let mount = folder.join("cgroup");
        fs::create_dir_all(&mount)?;
        fs::write(mount.join("cgroup.controllers"), "memory")?;
        for n in 0..CONTAINERS {
            let group = mount.join(format!("kubepods/burstable/podu{n}/c{n}"));
            fs::create_dir_all(&group)?;
            for entry in fs::read_dir(&recorded)? {
                let entry = entry?;
                fs::copy(entry.path(), group.join(entry.file_name()))?;
            }
        }
        Ok(Self {
            mount,
            is_real: false,
            made: Vec::new(),
            processes: Vec::new(),
        })
    }

    fn real(root: PathBuf) -> Result<Self> {
        let mut node = Self {
            mount: PathBuf::from("/sys/fs/cgroup"),
            is_real: true,
            made: vec![root.clone()],
            processes: Vec::new(),
        };
        for below in ["kubepods", "kubepods/burstable"] {
            node.make(root.join(below))?;
        }
        for n in 0..CONTAINERS {
            node.make(root.join(format!("kubepods/burstable/podu{n}")))?;
            let group = root.join(format!("kubepods/burstable/podu{n}/c{n}"));
            node.make(group.clone())?;
            fs::write(group.join("memory.limit_in_bytes"), (64 << 20).to_string())?;
            // Into the group before it touches its memory: some 20 MiB of a shell's.
            let script = format!(
                "echo $$ > {}/cgroup.procs; x=$(head -c 20000000 /dev/zero | tr '\\0' x); sleep 1000",
                group.display()
            );
            let child = Command::new("bash")
                .args(["-c", &script])
                .stdin(Stdio::null())
                .spawn()?;
            node.processes.push(child);
        }
        Ok(node)
    }

    fn make(&mut self, path: PathBuf) -> Result<()> {
        fs::create_dir(&path)?;
        self.made.push(path);
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for group in &self.made {
            let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for pid in text.lines().filter_map(|line| line.parse().ok()) {
                if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
        }
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
        for group in self.made.iter().rev() {
            for _ in 0..100 {
                if fs::remove_dir(group).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
