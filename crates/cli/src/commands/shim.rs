//! `stoke shim` and `stoke shim-container`: what the node starts for each pod. Not for people.
//!
//! Invariant: both are entered before this process has a second thread, because they change its namespaces.

use std::path::PathBuf;
use std::process::ExitCode;

/// Own one pod: its processes, its logs, its exit status
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave whoever started it
    #[arg(long)]
    detach: bool,
    /// The pod's directory
    directory: PathBuf,
}

/// Become one container's process inside its namespaces
#[derive(Debug, clap::Args)]
pub struct ContainerArgs {}

pub fn run(args: &Args) -> ExitCode {
    stoke_node::shim::main(&args.directory, args.detach)
}

pub fn run_container(_: &ContainerArgs) -> ExitCode {
    stoke_node::shim::container_main()
}
