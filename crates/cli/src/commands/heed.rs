//! `stoke heed`: what the worker of a job with `checkpoint.signal` is started through. Not for people.

use std::path::Path;
use std::process::ExitCode;

use stoke_api::contract::{CHECKPOINT_REQUEST, REQUEST_DIR};
use stoke_api::trainjob::CheckpointSignal;
use stoke_node::heed;

/// Run a command, and signal it when a checkpoint is wanted
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The signal that the command has a handler for
    #[arg(value_parser = signal)]
    signal: CheckpointSignal,
    /// Be the one that signals this process and those below it
    #[arg(long, value_name = "PID")]
    watch: Option<u32>,
    #[arg(last = true)]
    command: Vec<String>,
}

fn signal(name: &str) -> Result<CheckpointSignal, String> {
    let all = CheckpointSignal::ALL;
    let found = all.into_iter().find(|signal| signal.name() == name);
    found.ok_or_else(|| "not a signal that asks for checkpoints".to_owned())
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let signal = args.signal;
    if let Some(program) = args.watch {
        let request = Path::new(REQUEST_DIR).join(CHECKPOINT_REQUEST);
        return Ok(heed::watch(signal, &request, program));
    }
    // By whatever way this was started, if its own file cannot be found.
    let own = std::env::current_exe().unwrap_or_else(|_| "stoke".into());
    let mut watcher = std::process::Command::new(own);
    // The command takes this process over.
    let program = std::process::id().to_string();
    watcher.args(["heed", signal.name(), "--watch", &program]);
    Ok(heed::start(&mut watcher, &args.command))
}
