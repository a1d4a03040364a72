//! `stoke heed`: what the workers of a job with checkpoints are started through. Not for people.

mod attend;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::SIGTERM;
use stoke_api::contract::{CHECKPOINT_REQUEST, REQUEST_DIR, STATUS_DIR};
use stoke_api::trainjob::CheckpointSignal;
use stoke_node::heed::{self, Place, Upload, Watch};

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
    #[command(flatten)]
    copies: Copies,
    /// Be the one that watches this process and those below it
    #[arg(long, value_name = "PID")]
    watch: Option<u32>,
    /// Be the one that sends copies
    #[arg(long, conflicts_with = "watch")]
    carry: bool,
    #[arg(last = true)]
    command: Vec<String>,
}

/// Where copies of checkpoints go.
#[derive(Debug, clap::Args)]
struct Copies {
    #[arg(long = "upload", value_name = "URI", requires = "place")]
    uri: Option<String>,
    /// The job's own place below it
    #[arg(long = "upload-place", value_name = "PATH")]
    place: Option<String>,
    /// Other jobs may have copies in that place
    #[arg(long = "upload-shared")]
    is_shared: bool,
    /// The server of an S3-compatible store
    #[arg(long = "upload-endpoint", value_name = "URL")]
    endpoint: Option<String>,
    /// A directory with the keys, each in a file of its name
    #[arg(long = "upload-keys", value_name = "DIR")]
    keys: Option<PathBuf>,
    /// Seconds between being told to end and the end
    #[arg(long = "grace", value_name = "SECONDS", default_value_t = 30)]
    grace: u64,
}

impl Copies {
    fn upload(&self) -> Option<Upload> {
        Some(Upload {
            uri: self.uri.clone()?,
            place: self.place.clone()?,
            endpoint: self.endpoint.clone(),
            keys: self.keys.clone(),
            is_shared: self.is_shared,
        })
    }
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
            upload: self.copies.upload(),
        })
    }

    /// This program again, in another part and in the same place.
    fn again(&self, part: &[&str], place: Option<&Place>) -> Command {
        // By whatever way this was started, if its own file cannot be found.
        let own = std::env::current_exe().unwrap_or_else(|_| "stoke".into());
        let mut command = Command::new(own);
        command.arg("heed").args(part);
        command.args(self.signal.map(CheckpointSignal::name));
        let Some(place) = place else {
            return command;
        };
        command.arg("--checkpoints").arg(&place.directory);
        command.args(["--job", &place.job]);
        command.args(["--attempt", &place.attempt.to_string()]);
        command.args(["--rank", &place.rank.to_string()]);
        command.args(place.keep.map(|keep| format!("--keep={keep}")));
        if let Some(upload) = &place.upload {
            command.args(["--upload", &upload.uri, "--upload-place", &upload.place]);
            command.args(upload.is_shared.then_some("--upload-shared"));
            let endpoint = upload.endpoint.iter();
            command.args(endpoint.map(|endpoint| format!("--upload-endpoint={endpoint}")));
            if let Some(keys) = &upload.keys {
                command.arg("--upload-keys").arg(keys);
            }
        }
        command
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
    if let (true, Some(place)) = (args.carry, &place)
        && let Some(upload) = &place.upload
    {
        return Ok(heed::carry(place, upload, Path::new(STATUS_DIR)));
    }
    // As a container's first process it would be deaf to it, and may wait for long before there is a program to pass it on to.
    let ends_at_once = Arc::new(AtomicBool::new(true));
    let told = SIGTERM;
    signal_hook::flag::register_conditional_shutdown(told, 128 + told, ends_at_once.clone())?;
    // The command takes this process over, or is started by it.
    let program = std::process::id().to_string();
    let mut watcher = args.again(&["--watch", &program], place.as_ref());
    let carries = place
        .as_ref()
        .filter(|place| place.rank == 0 && place.upload.is_some());
    if let Some(place) = carries {
        let mut carrier = args.again(&["--carry"], Some(place));
        return Ok(
            match heed::prepare(&mut watcher, &args.command, Some(place)) {
                Ok((mut command, watching)) => {
                    let attended = attend::Attended {
                        program: &mut command,
                        words: &args.command,
                        carrier: &mut carrier,
                        watching,
                        grace: Duration::from_secs(args.copies.grace),
                    };
                    attend::attend(attended, &ends_at_once)
                }
                Err(code) => code,
            },
        );
    }
    Ok(heed::start(&mut watcher, &args.command, place.as_ref()))
}
