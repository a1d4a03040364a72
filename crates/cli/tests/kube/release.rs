//! The chart, installed on the testbed as a platform team installs it.
//!
//! There is one Stokehold in a cluster, so tests share one release: many may use it at once, and one that changes it has it for itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::{Value, json};

use crate::support::{self, Testbed};

pub const NAME: &str = "stokehold";
pub const NAMESPACE: &str = "stokehold-system";

/// As long as this is held, the release stays as it is.
pub type Shared = RwLockReadGuard<'static, Installed>;

/// What this process has installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installed {
    Unknown,
    Whole,
    WithoutOperator,
}

static INSTALLED: RwLock<Installed> = RwLock::new(Installed::Unknown);

/// The release, for a test that needs it as it is; it stays for as long as this is held. None where there is no helm.
pub fn shared(testbed: &Testbed) -> Option<Shared> {
    loop {
        let installed = INSTALLED.read().unwrap_or_else(PoisonError::into_inner);
        if *installed == Installed::Whole {
            return Some(installed);
        }
        drop(installed);
        drop(exclusive(testbed)?);
    }
}

/// The release, with nodes to run pods on.
pub fn on_nodes() -> Option<(Testbed, Shared)> {
    let testbed = support::testbed_with_nodes()?;
    let release = shared(&testbed)?;
    Some((testbed, release))
}

/// The release, for a test that changes it. Leave it as it was, or [`Exclusive::forget`] it.
pub fn exclusive(testbed: &Testbed) -> Option<Exclusive> {
    have(testbed, Installed::Whole, &[])
}

/// The definitions, accounts and rights, and nothing that runs: for a test that starts operators of its own. As [`exclusive`].
pub fn without_operator(testbed: &Testbed) -> Option<Exclusive> {
    let nothing_runs = [
        "operator.replicas=0",
        "agent.enabled=false",
        "data.enabled=false",
    ];
    have(testbed, Installed::WithoutOperator, &nothing_runs)
}

fn have(testbed: &Testbed, wanted: Installed, settings: &[&str]) -> Option<Exclusive> {
    support::helm()?;
    let mut installed = INSTALLED.write().unwrap_or_else(PoisonError::into_inner);
    if *installed != wanted {
        // Where this fails, nobody knows what is there.
        *installed = Installed::Unknown;
        install(testbed, &chart(), settings);
        *installed = wanted;
    }
    Some(Exclusive { installed })
}

pub struct Exclusive {
    installed: RwLockWriteGuard<'static, Installed>,
}

impl Exclusive {
    /// The next test installs it anew.
    pub fn forget(&mut self) {
        *self.installed = Installed::Unknown;
    }
}

/// Installs or upgrades, and waits until everything runs. Without nodes there is nothing to run on: then it is the definitions,
/// accounts, rights and PriorityClasses, for an operator outside of the cluster.
pub fn install(testbed: &Testbed, chart: &Path, settings: &[&str]) {
    let values = here().join("values/testbed.yaml");
    let mut command = helm(testbed);
    command
        .args(["upgrade", "--install", NAME])
        .arg(chart)
        .args([
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--wait",
            "--timeout",
            "5m",
        ])
        .arg("--values")
        .arg(values);
    // A kubelet of the testbed keeps its files below the testbed's own directory, each in another place.
    let pods_dir = format!("data.podsDir={}", testbed.dir().display());
    command.args(["--set", &pods_dir]);
    if !testbed.has_nodes() {
        command.args(["--set", "operator.replicas=0"]);
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    succeed(&mut command);
}

/// A kubeconfig with a token of one of our service accounts, bound to an object (`Pod/name`) where one is named.
pub fn account(testbed: &Testbed, account: &str, bound_to: Option<&str>) -> Value {
    let mut command = testbed.kubectl(&[
        "create",
        "token",
        account,
        "--namespace",
        NAMESPACE,
        "--duration=1h",
    ]);
    if let Some((kind, name)) = bound_to.and_then(|object| object.split_once('/')) {
        command.args(["--bound-object-kind", kind, "--bound-object-name", name]);
    }
    let token = succeed(&mut command);
    let view =
        succeed(&mut testbed.kubectl(&["config", "view", "--raw", "--minify", "-o", "json"]));
    let mut config: Value = serde_json::from_str(&view).expect("a kubeconfig");
    config["users"][0]["user"] = json!({"token": token.trim()});
    config
}

pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/stokehold")
}

pub fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kube")
}

pub fn helm(testbed: &Testbed) -> Command {
    let mut command = Command::new(support::helm().expect("helm was looked for"));
    command
        .env("KUBECONFIG", testbed.kubeconfig())
        .stdin(Stdio::null());
    command
}

/// What it printed.
pub fn succeed(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
