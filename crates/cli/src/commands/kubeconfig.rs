//! `stoke kubeconfig`: where kubectl finds the engine.

use std::io::Write;
use std::process::ExitCode;

use crate::data_dir::DataDir;
use crate::terminal;
use crate::world;

const EXAMPLES: &str = "\
Examples:
  export KUBECONFIG=\"$(stoke kubeconfig)\"
  kubectl get trainjobs,pods";

/// Print the path of the engine's kubeconfig
///
/// With it, kubectl and every other Kubernetes tool talks to the engine.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

pub fn run(_: Args, data_dir: &DataDir) -> anyhow::Result<ExitCode> {
    let path = data_dir.kubeconfig();
    if !path.exists() {
        return Err(world::no_engine(data_dir, "").into());
    }
    writeln!(terminal::stdout(), "{}", path.display())?;
    Ok(ExitCode::SUCCESS)
}
