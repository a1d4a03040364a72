//! An engine in the background: started as a process of its own, waited for until it is ready.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use super::Args;
use crate::data_dir::{DataDir, EngineRecord};
use crate::engine::log::append;
use crate::failure::{Exit, Failure};

/// Of the end of a log, as much as helps.
const TAIL_BYTES: u64 = 4 << 10;
const READY: &str = "ready\n";

/// Starts it and returns when it serves.
pub fn start(data_dir: &DataDir, args: &Args) -> anyhow::Result<EngineRecord> {
    let path = data_dir.log();
    let log = append(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let begun = log.metadata().map(|file| file.len()).unwrap_or_default();
    let exe = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(exe);
    command
        .args([
            "up",
            "--behind",
            "--gpus",
            &args.gpus.to_string(),
            "--data-dir",
        ])
        .arg(data_dir.path())
        .args(
            args.data_cache
                .map(|size| format!("--data-cache={}", size.0)),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    if let Some(address) = args.listen {
        command.args(["--listen", &address.to_string()]);
    }
    let mut child = command.spawn().context("cannot start the engine")?;
    // Its one word on stdout is that it serves; the end of the pipe without it is its death.
    let mut word = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut word)
            .context("cannot hear the engine")?;
    }
    if word != READY {
        let status = child.wait().context("cannot wait for the engine")?;
        return Err(died(&path, begun, status).into());
    }
    data_dir
        .record()
        .context("the engine is ready but has not said where")
}

fn died(log: &Path, begun: u64, status: std::process::ExitStatus) -> Failure {
    let tail = tail(log, begun).unwrap_or_default();
    // The child tells its error as this program does: that line is the answer, and the rest is the evidence.
    let told = tail.lines().find_map(|line| line.strip_prefix("error: "));
    let what = told.map_or_else(
        || format!("the engine did not start ({status})"),
        str::to_owned,
    );
    let body: Vec<&str> = tail
        .lines()
        .filter(|line| !line.starts_with("error: "))
        .collect();
    Failure::new(Exit::Failed, what)
        .body(body.join("\n"))
        .hint(format!(
            "its log: {}; in the foreground: stoke up",
            log.display()
        ))
}

fn tail(log: &Path, begun: u64) -> io::Result<String> {
    let mut file = std::fs::File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(
        begun.max(length.saturating_sub(TAIL_BYTES)),
    ))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// In the background process: its own session, so that closing the terminal or Ctrl-C in it does not reach the engine.
pub fn leave_terminal() -> anyhow::Result<()> {
    rustix::process::setsid().context("cannot leave the terminal")?;
    Ok(())
}

pub fn say_ready() {
    let mut stdout = io::stdout().lock();
    // Who started us may be gone already; then nobody needs to know.
    let _ = stdout.write_all(READY.as_bytes());
    let _ = stdout.flush();
}
