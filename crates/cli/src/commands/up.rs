//! `stoke up`: a whole ML cluster in one process, in the foreground or behind.

mod background;
mod listen;

use std::net::SocketAddr;
use std::process::ExitCode;

use stoke_api::Bytes;

use crate::data_dir::{DataDir, EngineRecord};
use crate::engine::{self, EngineOptions};
use crate::failure::{Exit, Failure};
use crate::terminal::{self, BOLD, paint};

const EXAMPLES: &str = "\
Examples:
  stoke up                                in the foreground; Ctrl-C stops it, jobs go on
  stoke up --detach                       in the background; its log is in the data directory
  stoke up --gpus 8                       with 8 simulated GPUs, to try a job's shape";

/// Start an engine: an API server, a node and the controllers, in one process
///
/// It needs nothing else installed. Jobs are processes of this machine; they outlive the engine, which may be stopped,
/// killed or upgraded under them and picks them up when it is started again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Run in the background
    #[arg(short, long)]
    detach: bool,
    /// Where the API is served: an address of this machine only [default: 127.0.0.1:6553, or a free port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Simulated GPUs to add, always shown as simulated
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u32).range(0..=1024))]
    gpus: u32,
    /// How much disk the copies of datasets may take, for example 500Gi [default: all but a twentieth of the disk]
    #[arg(long, value_name = "SIZE")]
    data_cache: Option<Bytes>,
    /// The background process itself
    #[arg(long, hide = true, conflicts_with = "detach")]
    behind: bool,
}

pub fn run(args: Args, data_dir: &DataDir) -> anyhow::Result<ExitCode> {
    if let Some(address) = args.listen {
        listen::refuse_others(address)?;
    }
    data_dir.prepare()?;
    if data_dir.living_holder()?.is_some() {
        return Err(second(data_dir).into());
    }
    if args.detach {
        let record = background::start(data_dir, &args)?;
        announce(data_dir, &record, true);
        return Ok(ExitCode::SUCCESS);
    }
    let Some(claim) = data_dir.claim()? else {
        return Err(second(data_dir).into());
    };
    let options = EngineOptions {
        data_dir: data_dir.clone(),
        listen: listen::wishes(args.listen, data_dir.record().as_ref()),
        simulated_gpus: args.gpus,
        data_cache: args.data_cache,
        log: args.behind.then(|| data_dir.log()),
    };
    if args.behind {
        background::leave_terminal()?;
        engine::run(options, claim, |_| background::say_ready())?;
    } else {
        engine::run(options, claim, |record| announce(data_dir, record, false))?;
        goodbye(data_dir);
    }
    Ok(ExitCode::SUCCESS)
}

fn second(data_dir: &DataDir) -> Failure {
    let pid = data_dir.holder().ok().flatten();
    let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let place = data_dir.path().display();
    Failure::new(
        Exit::Refused,
        format!("an engine runs on {place} already{pid}"),
    )
    .hint("use it: stoke get; stop it: stoke down; another one: stoke up --data-dir DIR")
}

/// Where it is, and what to type next.
fn announce(data_dir: &DataDir, record: &EngineRecord, is_behind: bool) {
    let kubeconfig = data_dir.kubeconfig();
    terminal::talk(format_args!(
        "{} at {} (pid {})",
        paint(BOLD, "the engine is ready"),
        record.url,
        record.pid
    ));
    terminal::talk(format_args!("  kubeconfig  {}", kubeconfig.display()));
    if is_behind {
        terminal::talk(format_args!("  log         {}", data_dir.log().display()));
    }
    terminal::talk(format_args!("  next        stoke run -- python train.py"));
    terminal::talk(format_args!(
        "              KUBECONFIG={} kubectl get trainjobs",
        kubeconfig.display()
    ));
    if is_behind {
        terminal::talk(format_args!("              stoke down"));
    }
}

fn goodbye(data_dir: &DataDir) {
    terminal::talk(format_args!("the engine has stopped"));
    if !engine::shims::alive(data_dir).is_empty() {
        terminal::talk(format_args!(
            "jobs go on without it; stoke up picks them up again, stoke down stops them"
        ));
    }
}
