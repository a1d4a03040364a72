//! A real engine for end-to-end tests: `stoke up` on a data directory of its own, killed and restarted at will, and taken
//! away with everything it started when the test ends.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a loaded machine; only a broken test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Engine {
    folder: TempDir,
    stoke: PathBuf,
    user: Option<u32>,
    flags: Vec<String>,
}

impl Engine {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// `flags` are those of `stoke up`.
    pub fn start_with(flags: &[&str]) -> Self {
        Self::new(flags, None)
    }

    /// As an ordinary user, who can write no cgroup.
    pub fn start_as(user: u32, flags: &[&str]) -> Self {
        Self::new(flags, Some(user))
    }

    fn new(flags: &[&str], user: Option<u32>) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("stoke-e2e-")
            .tempdir()
            .expect("a temporary folder");
        let mut stoke = PathBuf::from(env!("CARGO_BIN_EXE_stoke"));
        if let Some(user) = user {
            // The build tree may lie where another user cannot look.
            let copy = folder.path().join("stoke");
            std::fs::copy(&stoke, &copy).expect("the binary is copied");
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
                .expect("chmod");
            std::fs::create_dir(folder.path().join("data")).expect("a folder");
            std::os::unix::fs::chown(folder.path().join("data"), Some(user), Some(user))
                .expect("chown");
            stoke = copy;
        }
        let engine = Self {
            folder,
            stoke,
            user,
            flags: flags.iter().map(ToString::to_string).collect(),
        };
        engine.up();
        engine
    }

    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A folder for the test's own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn up(&self) {
        let mut command = self.command(&["up", "--detach", "--listen", "127.0.0.1:0"]);
        command.args(&self.flags);
        let output = command.output().expect("stoke runs");
        assert!(output.status.success(), "stoke up: {}", said(&output));
    }

    pub fn pid(&self) -> u32 {
        let text =
            std::fs::read_to_string(self.data_dir().join("engine.json")).expect("engine.json");
        let engine: Value = serde_json::from_str(&text).expect("JSON");
        engine["pid"].as_u64().expect("a pid") as u32
    }

    /// As the power cut would: no goodbye.
    pub fn kill(&self) {
        let pid = self.pid();
        assert!(
            Command::new("kill")
                .args(["-9", &pid.to_string()])
                .status()
                .expect("kill runs")
                .success()
        );
        eventually("the engine to be gone", || (!alive(pid)).then_some(()));
    }

    /// A `stoke` command that talks to this engine.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.stoke);
        command
            .args(arguments)
            .env("STOKE_DATA_DIR", self.data_dir())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command.env_remove("KUBECONFIG").env_remove("STOKE_LOG");
        if let Some(user) = self.user {
            command
                .uid(user)
                .gid(user)
                .env("HOME", self.data_dir())
                .current_dir(self.folder.path());
        }
        command
    }

    pub fn try_stoke(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("stoke runs")
    }

    /// Runs a command that must succeed, and gives what it printed as data.
    pub fn stoke(&self, arguments: &[&str]) -> String {
        let output = self.try_stoke(arguments);
        assert!(
            output.status.success(),
            "stoke {}: {}",
            arguments.join(" "),
            said(&output)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Runs a job of this spec to its end, and gives it as it is then.
    pub fn run(&self, name: &str, spec: &Value) -> Value {
        let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec});
        let file = self.write(&format!("{name}.json"), &object.to_string());
        let output = self.try_stoke(&["run", &file]);
        let job = self.job(name);
        println!("{name}: {}\n{:#}", said(&output), job["status"]);
        job
    }

    pub fn job(&self, name: &str) -> Value {
        let text = self.stoke(&["get", "trainjob", name, "-o", "json"]);
        serde_json::from_str(&text).expect("JSON")
    }

    pub fn wait_for_phase(&self, name: &str, phase: &str) -> Value {
        let mut last = Value::Null;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.try_stoke(&["get", "trainjob", name, "-o", "json"]);
            if let Ok(job) = serde_json::from_slice::<Value>(&output.stdout) {
                if job["status"]["phase"] == phase {
                    return job;
                }
                last = job;
            }
            assert!(
                Instant::now() < deadline,
                "{name} never became {phase}: {:#}",
                last["status"]
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Writes a file into the test's folder.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("UTF-8").to_owned()
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(arguments)
            .env("KUBECONFIG", self.data_dir().join("kubeconfig"));
        // Its discovery cache must not know another engine that had the same port.
        command.args([
            "--cache-dir",
            self.folder
                .path()
                .join("kube-cache")
                .to_str()
                .expect("UTF-8"),
        ]);
        command.stdin(Stdio::null());
        command
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let output = self.try_stoke(&["down"]);
        if std::thread::panicking() {
            let log =
                std::fs::read_to_string(self.data_dir().join("engine.log")).unwrap_or_default();
            let tail = log.lines().rev().take(40).collect::<Vec<_>>();
            let tail = tail.iter().rev().fold(String::new(), |mut text, line| {
                let _ = writeln!(text, "{line}");
                text
            });
            eprintln!("stoke down: {}\nengine.log:\n{tail}", said(&output));
        }
        // What a broken engine left behind: every process that was started from this folder.
        let _ = Command::new("pkill")
            .args(["-9", "-f", self.folder.path().to_str().expect("UTF-8")])
            .status();
    }
}

pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with('Z')
    })
}

/// Asks until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn said(output: &Output) -> String {
    format!(
        "{}\nstdout: {}\nstderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub fn have(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success())
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A Python that has a module, if this machine has one.
pub fn python_with(module: &str) -> Option<String> {
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find_map(|python| {
            let mut command = Command::new(python);
            command
                .args(["-c", &format!("import {module}")])
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
                .status()
                .is_ok_and(|status| status.success())
                .then(|| python.to_owned())
        })
}
