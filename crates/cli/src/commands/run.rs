//! `stoke run`: submit a job, follow it, and end as it ends.

mod caller;
mod command;
mod progress;
mod submit;
mod wait;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;
use stoke_api::trainjob::{Framework, Priority};
use stoke_api::{Bytes, CpuMilli, GpuRequest, Span};

use crate::args::DataFormat;
use crate::failure::{Exit, Failure};
use crate::manifest::Source;
use crate::render::object;
use crate::session::Session;
use crate::terminal;
use caller::Caller;
use submit::Submission;

const EXAMPLES: &str = "\
Examples:
  stoke run -- python train.py --epochs 3
  stoke run --gpus 1 --memory 16Gi --retries 2 -- python train.py
  stoke run --framework torch --workers 2 --gpus 4 -- python train.py
  stoke run job.yaml
  stoke run --detach job.yaml
  stoke run --dry-run --gpus 1 -- python train.py > job.yaml
  stoke --context prod-eu run --image acme/vision:1.4 --gpus 8 -- python train.py";

/// Run a job, follow it, and end with its result
///
/// A job is a file, or a command after `--`. It is submitted, waited for and followed: its workers' lines go to stdout,
/// what happens to it goes to stderr, and the exit code is its own. Ctrl-C leaves it running and says how to come back.
///
/// On one machine the command runs with your own tools: your PATH, your virtual environment, your directory (for a file:
/// the file's directory), unless the job says otherwise. On a cluster it runs in its image, and nothing of your shell is
/// passed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = usage("stoke"))]
pub struct Args {
    /// Files with jobs and what they need, YAML or JSON; - is stdin
    #[arg(
        value_name = "FILE",
        required_unless_present = "command",
        conflicts_with = "command"
    )]
    files: Vec<PathBuf>,
    /// The command every worker runs
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,

    /// Submit it and return; its name goes to stdout
    #[arg(short, long)]
    detach: bool,
    /// Delete a job of the same name first, its checkpoints included
    #[arg(long)]
    replace: bool,
    /// Check it and print it, but do not submit it
    #[arg(long)]
    dry_run: bool,
    /// How --dry-run prints
    #[arg(short, long, value_enum, default_value_t = DataFormat::Yaml, requires = "dry_run")]
    output: DataFormat,
    /// With the time at which each line was printed
    #[arg(long)]
    timestamps: bool,
    /// Pass nothing of your shell: no PATH, no virtual environment, no directory
    #[arg(long)]
    bare: bool,

    #[command(flatten)]
    job: JobArgs,
}

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "The job (with a command)")]
pub struct JobArgs {
    /// Its name [default: from the command, with a random end]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The image it runs in; needed on a cluster, not used on one machine
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// A secret to pull the image with
    #[arg(long, value_name = "NAME")]
    image_pull_secret: Vec<String>,
    /// The service account its pods have
    #[arg(long, value_name = "NAME")]
    service_account: Option<String>,
    /// How workers find each other: torch, mpi, tensorflow, jax or plain
    #[arg(long, value_parser = word::<Framework>, value_name = "NAME")]
    framework: Option<Framework>,
    /// Workers, all or none of which run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: Option<u32>,
    /// GPUs of each worker: 8, a part of one (0.5), or a MIG profile (1g.10gb)
    #[arg(long, value_name = "N")]
    gpus: Option<GpuRequest>,
    /// GPU models it may run on, with commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    gpu_types: Vec<String>,
    /// CPUs of each worker: 4 or 500m
    #[arg(long, value_name = "N")]
    cpus: Option<CpuMilli>,
    /// Memory a worker is stopped at: 16Gi
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Processes each worker starts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: Option<u32>,
    /// How often a failed attempt is tried again [default: 0; in a file: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    retries: Option<u32>,
    /// The queue to wait in
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// production, standard or experiment
    #[arg(long, value_parser = word::<Priority>, value_name = "NAME")]
    priority: Option<Priority>,
    /// An environment variable: NAME=VALUE, or NAME to pass yours
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Where it writes checkpoints; they outlive attempts
    #[arg(long, value_name = "PATH")]
    checkpoint: Option<String>,
    /// A dataset and where it is seen
    #[arg(long, value_name = "NAME:PATH")]
    dataset: Vec<String>,
    /// How long it may run, all attempts together: 90m, 48h
    #[arg(long, value_name = "TIME")]
    max_duration: Option<Span>,
    /// How long the finished job is kept
    #[arg(long, value_name = "TIME")]
    ttl: Option<Span>,
    /// Where the command starts [default: here]
    #[arg(long, short = 'w', value_name = "DIR")]
    working_dir: Option<PathBuf>,
}

/// A word of the API, spelled as YAML spells it.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|error| {
        // serde's text is about JSON variants; the part with the choices is what helps.
        let text = error.to_string();
        text.split_once("expected ")
            .map_or(text.clone(), |(_, choices)| format!("expected {choices}"))
    })
}

/// The two ways to call it, under the name we go by.
pub fn usage(program: &str) -> String {
    format!(
        "{program} run [OPTIONS] FILE...\n       {program} run [OPTIONS] -- COMMAND [ARGUMENT...]"
    )
}

/// What is to be run.
enum Work {
    Files(Vec<Source>),
    Command(Value),
}

impl Args {
    /// From what was typed to what is meant.
    fn meaning(&self, caller: &Caller) -> anyhow::Result<Work> {
        if !self.command.is_empty() {
            return Ok(Work::Command(command::job(
                &self.job,
                &self.command,
                caller,
            )?));
        }
        if let Some(flag) = self.job.first_set() {
            let what = format!("{flag} is for a command; a file says it itself");
            let hint = "write it into the file, or: stoke run [OPTIONS] -- COMMAND";
            return Err(Failure::new(Exit::Usage, what).hint(hint).into());
        }
        let stdin = self
            .files
            .iter()
            .filter(|file| file.as_os_str() == "-")
            .count();
        if stdin > 1 {
            return Err(Failure::new(Exit::Usage, "stdin can be read only once").into());
        }
        let sources = self.files.iter().map(|file| {
            if file.as_os_str() == "-" {
                Source::Stdin
            } else {
                Source::File(file.clone())
            }
        });
        Ok(Work::Files(sources.collect()))
    }
}

impl JobArgs {
    /// A flag that was set, to name it.
    fn first_set(&self) -> Option<&'static str> {
        let set = [
            ("--name", self.name.is_some()),
            ("--image", self.image.is_some()),
            ("--image-pull-secret", !self.image_pull_secret.is_empty()),
            ("--service-account", self.service_account.is_some()),
            ("--framework", self.framework.is_some()),
            ("--workers", self.workers.is_some()),
            ("--gpus", self.gpus.is_some()),
            ("--gpu-types", !self.gpu_types.is_empty()),
            ("--cpus", self.cpus.is_some()),
            ("--memory", self.memory.is_some()),
            ("--processes", self.processes.is_some()),
            ("--retries", self.retries.is_some()),
            ("--queue", self.queue.is_some()),
            ("--priority", self.priority.is_some()),
            ("--env", !self.env.is_empty()),
            ("--checkpoint", self.checkpoint.is_some()),
            ("--dataset", !self.dataset.is_empty()),
            ("--max-duration", self.max_duration.is_some()),
            ("--ttl", self.ttl.is_some()),
            ("--working-dir", self.working_dir.is_some()),
        ];
        set.into_iter()
            .find(|(_, is_set)| *is_set)
            .map(|(flag, _)| flag)
    }
}

pub async fn run(args: Args, session: Session) -> anyhow::Result<ExitCode> {
    let caller = if args.bare {
        Caller::nobody()
    } else if session.is_cluster() {
        Caller::this_process()?.seen_from_afar()
    } else {
        Caller::this_process()?
    };
    let submission = Submission::prepare(args.meaning(&caller)?, &caller)?;
    if session.is_cluster() {
        submission.require_images(&session.place())?;
    }
    if args.dry_run {
        submission.check()?;
        let text = match args.output {
            DataFormat::Yaml => object::documents(&submission.objects())?,
            DataFormat::Json => object::json(&object::list(submission.objects()))?,
        };
        terminal::stdout().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = session.client().await?;
    let jobs = submission.submit(&client, &session, args.replace).await?;
    if args.detach {
        let mut out = terminal::stdout();
        for job in &jobs {
            writeln!(out, "{}", job.name())?;
        }
        if let [job, ..] = jobs.as_slice() {
            terminal::talk(format_args!(
                "{}",
                terminal::hint(&format!("follow it: stoke logs -f {}", job.name()))
            ));
        }
        return Ok(ExitCode::SUCCESS);
    }
    wait::until_over(session, jobs, args.timestamps).await
}
