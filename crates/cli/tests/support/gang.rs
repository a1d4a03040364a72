//! A gang's pods as plain processes, for tests that run `stoke mpi` without an engine.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// No test waits longer for a process.
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Gang {
    hosts: String,
    ports: Vec<u16>,
}

impl Gang {
    pub fn of(workers: usize) -> Self {
        // Held until all are known, so that no two are the same.
        let held: Vec<TcpListener> = (0..workers)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
            .collect();
        let port = |l: &TcpListener| l.local_addr().expect("a bound port").port();
        let ports: Vec<u16> = held.iter().map(port).collect();
        let host = |(rank, port)| format!("pod-{rank}=127.0.0.1:{port}");
        let hosts: Vec<String> = ports.iter().enumerate().map(host).collect();
        Self {
            hosts: hosts.join(","),
            ports,
        }
    }

    /// `stoke mpi ...` in the pod of this rank.
    pub fn pod(&self, rank: usize, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoke"));
        command
            .arg("mpi")
            .args(args)
            .env("STOKE_MPI_TOKEN", "a secret that the gang shares")
            .env("STOKE_MPI_HOSTS", &self.hosts)
            .env(
                "STOKE_MPI_LISTEN",
                format!("127.0.0.1:{}", self.ports[rank]),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Workers in every pod but the first, where the launcher runs. All that ended: the launcher, then the workers.
    pub fn run(&self, launch: &mut Command) -> Vec<Output> {
        let workers: Vec<Child> = (1..self.ports.len())
            .map(|rank| self.pod(rank, &["worker"]).spawn().expect("a worker"))
            .collect();
        let launcher = launch.spawn().expect("a launcher");
        std::iter::once(launcher)
            .chain(workers)
            .map(end_of)
            .collect()
    }
}

/// What it wrote and how it ended. One that does not end is killed, and the test fails on what it wrote.
pub fn end_of(mut child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            let _ = child.kill();
            let output = child.wait_with_output().expect("output");
            panic!("still running after {PATIENCE:?}: {output:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("output")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    Gang::of(1).ports[0]
}

/// A Python that has all of these modules.
pub fn python_with(modules: &str) -> Option<&'static str> {
    ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        Command::new(python)
            .args(["-c", &format!("import {modules}")])
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

pub fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Says why a test did nothing.
pub fn skip(what: &str) {
    eprintln!("skipped: {what} is not installed");
}
