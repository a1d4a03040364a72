//! Operators outside of the cluster, under their own account: tests kill them, take things from them, and read what they asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::release::{self, NAMESPACE};
use crate::support::{Testbed, eventually_or, text};

/// Two seconds, so that what is about leaders is over in minutes.
pub const SHORT_LEASE: [&str; 6] = [
    "--lease-duration",
    "2s",
    "--renew-deadline",
    "1500ms",
    "--retry-period",
    "300ms",
];

/// What is left of them goes with this.
pub struct Operators<'a> {
    testbed: &'a Testbed,
    arguments: &'a [&'a str],
    kubeconfig: PathBuf,
    folder: tempfile::TempDir,
    running: BTreeMap<usize, Child>,
    started: usize,
}

impl<'a> Operators<'a> {
    pub fn new(testbed: &'a Testbed, arguments: &'a [&'a str]) -> Self {
        let account = release::account(testbed, "stokehold-operator", None);
        Self::with_account(testbed, arguments, &account)
    }

    /// With a kubeconfig of the test's own.
    pub fn with_account(testbed: &'a Testbed, arguments: &'a [&'a str], account: &Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, account.to_string()).expect("a kubeconfig");
        Self {
            testbed,
            arguments,
            kubeconfig,
            folder,
            running: BTreeMap::new(),
            started: 0,
        }
    }

    /// Gives its number.
    pub fn start(&mut self) -> usize {
        let number = self.started;
        self.started += 1;
        let log = File::create(self.log(number)).expect("a log");
        let operator = Command::new(env!("CARGO_BIN_EXE_stoke"))
            .args(["operator", "--listen", "127.0.0.1:0"])
            .args(["--lease-namespace", NAMESPACE, "--kubeconfig"])
            .arg(&self.kubeconfig)
            .args(self.arguments)
            .env("POD_NAME", format!("operator-{number}"))
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env_remove("STOKE_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.running.insert(number, operator.expect("an operator"));
        number
    }

    /// Waits until one that runs leads.
    pub fn leader(&self) -> usize {
        let leads = || {
            let lease = self
                .testbed
                .get(&["lease", "stokehold-operator", "-n", NAMESPACE]);
            let holder = text(&lease, "/spec/holderIdentity");
            let number = holder.strip_prefix("operator-")?.split('_').next()?;
            let number = number.parse().ok()?;
            self.running.contains_key(&number).then_some(number)
        };
        eventually_or("one of the operators to lead", leads, || self.told())
    }

    /// Waits until this one leads, and works.
    pub fn leads(&self, number: usize) {
        eventually_or(
            "the operator to lead",
            || (self.ready(number).ok()?.trim() == "leads").then_some(()),
            || self.told(),
        );
    }

    /// What it says at /readyz: it is ready, or why it is not. Nothing is what one says that does not listen yet.
    pub fn ready(&self, number: usize) -> Result<String, String> {
        let log = self.told_by(number);
        let listens = log.split_once("listen=").map(|(_, rest)| rest);
        let address = listens.and_then(|rest| rest.split_whitespace().next());
        let Some(address) = address else {
            return Err(String::new());
        };
        let answer = ask(address, "/readyz").unwrap_or_default();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        if head.contains(" 200 ") {
            Ok(body.to_owned())
        } else {
            Err(body.to_owned())
        }
    }

    /// Waits until it says at /readyz that it is not ready because of this.
    pub fn complains(&self, number: usize, of: &[&str]) -> String {
        eventually_or(
            &format!("/readyz to say {of:?}"),
            || {
                let told = self.ready(number).err()?;
                of.iter().all(|part| told.contains(part)).then_some(told)
            },
            || format!("{:?}\n{}", self.ready(number), self.told()),
        )
    }

    /// With no chance to say good-bye.
    pub fn kill(&mut self, number: usize) {
        let mut operator = self.running.remove(&number).expect("it runs");
        let ended = operator.try_wait().expect("its state");
        assert_eq!(ended, None, "it has ended by itself: {}", self.told());
        operator.kill().expect("it is killed");
        operator.wait().expect("it is dead");
    }

    pub fn signal(&self, number: usize, signal: Signal) {
        let pid = Pid::from_child(&self.running[&number]);
        kill_process(pid, signal).expect("it gets the signal");
    }

    pub fn told(&self) -> String {
        let told = self.running.keys().map(|number| {
            let log = self.told_by(*number);
            format!("operator-{number}:\n{log}")
        });
        told.collect::<Vec<_>>().join("\n")
    }

    pub fn told_by(&self, number: usize) -> String {
        std::fs::read_to_string(self.log(number)).unwrap_or_default()
    }

    fn log(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("{number}.log"))
    }
}

impl Drop for Operators<'_> {
    fn drop(&mut self) {
        for operator in self.running.values_mut() {
            let _ = operator.kill();
            let _ = operator.wait();
        }
    }
}

fn ask(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// What the API server has logged since.
pub struct Audit {
    log: PathBuf,
    from: u64,
}

impl Audit {
    pub fn from_now(testbed: &Testbed) -> Self {
        let log = testbed.audit();
        let from = std::fs::metadata(&log).map_or(0, |file| file.len());
        Self { log, from }
    }

    pub fn entries(&self) -> Vec<Value> {
        let mut log = File::open(&self.log).expect("the audit log");
        log.seek(SeekFrom::Start(self.from)).expect("its end");
        let lines = BufReader::new(log).lines().map_while(Result::ok);
        // The last line may be half written.
        lines
            .filter_map(|line| serde_json::from_str(&line).ok())
            .collect()
    }

    /// An operator says who it is with every request.
    pub fn of_operator(&self, number: usize) -> Vec<Value> {
        let name = format!("(operator-{number}_");
        let mut entries = self.entries();
        entries.retain(|entry| text(entry, "/userAgent").contains(&name));
        entries
    }
}
