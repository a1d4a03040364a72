//! What the measurement stands on: a control plane of its own, and the operator as it is shipped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::coordination::v1::Lease;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use crate::load::LEVELS;

const NAMESPACE: &str = "stokehold-system";
pub const ACCOUNT: &str = "system:serviceaccount:stokehold-system:stokehold-operator";
/// What tests/kube/up.sh ends with where there can be no testbed.
const CANNOT_BE_HAD: i32 = 3;

/// A control plane; it goes with this.
pub struct Rig {
    state: tempfile::TempDir,
}

impl Rig {
    /// None where it cannot be had on this machine; why is said.
    pub fn up() -> Result<Option<Self>> {
        let rig = Self {
            state: tempfile::tempdir()?,
        };
        let status = rig
            .script("up.sh")
            .arg("--control-plane")
            .status()
            .context("tests/kube/up.sh")?;
        match status.code() {
            Some(0) => Ok(Some(rig)),
            Some(CANNOT_BE_HAD) => Ok(None),
            _ => bail!("tests/kube/up.sh: {status}"),
        }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn dir(&self) -> PathBuf {
        self.state.path().join("kube")
    }

    fn script(&self, name: &str) -> Command {
        let mut command = Command::new(repository().join("tests/kube").join(name));
        command
            .env("STOKE_KUBE_DIR", self.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    pub async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.file("kubeconfig"))?;
        let config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// The chart without what would run in the cluster, and a kubeconfig of the operator's own account.
    pub fn install(&self) -> Result<()> {
        let mut build = self.script("build.sh");
        let built = build
            .args(["helm", "kubectl"])
            .stdout(Stdio::piped())
            .output()?;
        let bin = String::from_utf8(built.stdout)?;
        let bin = Path::new(bin.trim());
        let mut helm = Command::new(bin.join("helm"));
        helm.args(["install", "stokehold"])
            .arg(repository().join("charts/stokehold"))
            .args(["--namespace", NAMESPACE, "--create-namespace"])
            .args(["--set", "operator.replicas=0,agent.enabled=false"]);
        self.run(&mut helm)?;
        let kubectl = |arguments: &[&str]| {
            let built = bin.join("kubectl");
            let program = if built.exists() {
                built
            } else {
                "kubectl".into()
            };
            let mut command = Command::new(program);
            command.args(arguments);
            self.run(&mut command)
        };
        let token = kubectl(&[
            "create",
            "token",
            "stokehold-operator",
            "--namespace",
            NAMESPACE,
            "--duration=6h",
        ])?;
        let view = kubectl(&["config", "view", "--raw", "--minify", "-o", "json"])?;
        let mut config: Value = serde_json::from_str(&view)?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        std::fs::write(self.file("operator.kubeconfig"), config.to_string())?;
        Ok(())
    }

    fn run(&self, command: &mut Command) -> Result<String> {
        let output = command
            .env("KUBECONFIG", self.file("kubeconfig"))
            .stdin(Stdio::null())
            .output()
            .with_context(|| command.get_program().display().to_string())?;
        if !output.status.success() {
            bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let down = self.script("down.sh").status();
        if !down.is_ok_and(|status| status.success()) {
            eprintln!("the testbed was not taken down: {}", self.dir().display());
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// One operator, outside of the cluster and under its own account.
pub struct Operator {
    process: Child,
}

impl Operator {
    pub fn start(rig: &Rig) -> Result<Self> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(rig.file("logs/operator.log"))?;
        let process = Command::new(env!("CARGO_BIN_EXE_stoke"))
            .args(["operator", "--listen", "127.0.0.1:0", "--lease-namespace"])
            .arg(NAMESPACE)
            .arg("--kubeconfig")
            .arg(rig.file("operator.kubeconfig"))
            .args(LEVELS.map(|(label, _)| format!("--topology-label={label}")))
            .env("POD_NAME", format!("bench-{}", std::process::id()))
            // As in the chart.
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Self { process })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it does.
    pub async fn leads(&self, client: &Client) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            let lease = leases.get_opt("stokehold-operator").await?;
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            if holder.is_some_and(|holder| holder.starts_with("bench-")) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the operator does not lead; its log is in the testbed's directory")
    }

    /// In MiB; `VmRSS` now, `VmHWM` at most so far.
    pub fn memory(&self, which: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(which));
        let amount = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: f64 = amount.context("no such line")?.parse()?;
        Ok(kib / 1024.0)
    }

    /// In good order, so that the lease is free at once.
    pub async fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if self.process.try_wait()?.is_some() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the operator does not stop")
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
