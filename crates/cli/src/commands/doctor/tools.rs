//! What training scripts use: Python, PyTorch, MPI.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Finding;

/// Asks for a version without importing it: importing torch takes seconds.
const ASK_PYTHON: &str = "\
import sys, importlib.metadata as m
def v(n):
    try: return m.version(n)
    except Exception: return ''
print(sys.executable, '.'.join(map(str, sys.version_info[:3])), v('torch'), sep='\\n')";

const PATIENCE: Duration = Duration::from_secs(10);

pub fn findings() -> Vec<Finding> {
    let mut findings = python();
    findings.push(mpirun());
    findings
}

fn python() -> Vec<Finding> {
    let answer = ["python3", "python"]
        .iter()
        .find_map(|program| ask(program, &["-c", ASK_PYTHON]));
    let Some(answer) = answer else {
        return vec![Finding::warn(
            "python",
            "not found in PATH",
            "most training scripts need it: apt install python3, or activate an environment before stoke run",
        )];
    };
    let mut lines = answer.lines();
    let (path, version) = (
        lines.next().unwrap_or_default(),
        lines.next().unwrap_or_default(),
    );
    let torch = lines.next().unwrap_or_default();
    vec![
        Finding::ok("python", format!("{version} at {path}")),
        if torch.is_empty() {
            Finding::warn(
                "torch",
                format!("{path} does not have it"),
                "framework: torch needs it: pip install torch, or apt install python3-torch",
            )
        } else {
            Finding::ok("torch", torch)
        },
    ]
}

fn mpirun() -> Finding {
    match ask("mpirun", &["--version"]) {
        Some(answer) => Finding::ok("mpirun", answer.lines().next().unwrap_or_default()),
        None => Finding::warn(
            "mpirun",
            "not found in PATH",
            "only framework: mpi needs it: apt install openmpi-bin",
        ),
    }
}

/// What a program prints, if it is there and ends in time.
fn ask(program: &str, arguments: &[&str]) -> Option<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let deadline = Instant::now() + PATIENCE;
    // Its few lines fit into the pipe, so it never waits for us to read.
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
    let output = child.wait_with_output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
