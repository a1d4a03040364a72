//! `stoke heed`: what the workers of a job with checkpoints are started through. Not for people.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use stoke_api::contract::{CHECKPOINT_REQUEST, REQUEST_DIR, STATUS_DIR};
use stoke_api::trainjob::CheckpointSignal;
use stoke_node::heed::{self, Place, Watch};

/// Run a command, and watch over its checkpoints
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The signal that the command writes a checkpoint on
    #[arg(value_parser = signal)]
    signal: Option<CheckpointSignal>,
    /// Where checkpoints are kept; no other attempt writes there meanwhile
    #[arg(long, value_name = "DIR", requires_all = ["job", "attempt", "rank"])]
    checkpoints: Option<PathBuf>,
    /// The uid of the job
    #[arg(long, value_name = "UID")]
    job: Option<String>,
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// How many checkpoints stay
    #[arg(long, value_name = "N")]
    keep: Option<u32>,
    /// Be the one that watches this process and those below it
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

impl Args {
    fn place(&self) -> Option<Place> {
        Some(Place {
            directory: self.checkpoints.clone()?,
            job: self.job.clone()?,
            attempt: self.attempt?,
            rank: self.rank?,
            keep: self.keep,
        })
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let place = args.place();
    if let Some(program) = args.watch {
        let watch = Watch {
            signal: args.signal,
            place: place.as_ref(),
            request: &Path::new(REQUEST_DIR).join(CHECKPOINT_REQUEST),
            status: Path::new(STATUS_DIR),
        };
        return Ok(heed::watch(&watch, program));
    }
    // By whatever way this was started, if its own file cannot be found.
    let own = std::env::current_exe().unwrap_or_else(|_| "stoke".into());
    let mut watcher = Command::new(own);
    // The command takes this process over.
    let program = std::process::id().to_string();
    watcher.args(["heed", "--watch", &program]);
    watcher.args(args.signal.map(CheckpointSignal::name));
    if let Some(place) = &place {
        watcher.arg("--checkpoints").arg(&place.directory);
        watcher.args(["--job", &place.job]);
        watcher.args(["--attempt", &place.attempt.to_string()]);
        watcher.args(["--rank", &place.rank.to_string()]);
        watcher.args(place.keep.map(|keep| format!("--keep={keep}")));
    }
    Ok(heed::start(&mut watcher, &args.command, place.as_ref()))
}
