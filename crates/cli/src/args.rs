//! The command line as it is typed. Each command turns its part into what it means, in one step, in its own file.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::commands::{
    completions, crds, delete, describe, doctor, down, explain, get, kubeconfig, logs, mpi, run,
    shim, suspend, top, up,
};

const ABOUT: &str = "Train on one machine with one binary; move the same YAML to Kubernetes later.";

const EXAMPLES: &str = "\
Examples:
  stoke up --detach                       start an engine in the background
  stoke run -- python train.py            run a command, follow it, end with its exit code
  stoke run job.yaml                      the same for a job in a file
  stoke get                               what runs, what waits, and why
  stoke logs -f resnet50 --rank 1         one worker's lines, as they come
  stoke explain resnet50                  why it is where it is, and what would help
  stoke down                              stop the engine and what it runs

Exit codes:
  0   done; for run: the job is complete
  1   the job failed without a code of its own, or something unforeseen
  2   the command line is wrong
  3   no engine answers (start one: stoke up --detach)
  4   no such job or object
  5   refused: invalid, in conflict, too large
  130 interrupted; a job that was followed goes on
  stoke run ends with the exit code of the worker that failed the job.

stdout is data, stderr is talk. NO_COLOR and STOKE_LOG (error, warn, info, debug) are honoured.";

#[derive(Debug, Parser)]
#[command(
    name = "stoke",
    version,
    about = ABOUT,
    after_help = EXAMPLES,
    max_term_width = 110,
    arg_required_else_help = true
)]
pub struct Args {
    #[command(flatten)]
    pub world: WorldArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Which engine, and where in it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Which engine")]
pub struct WorldArgs {
    /// Where the engine keeps everything [default: ~/.local/share/stokehold, as root /var/lib/stokehold]
    #[arg(
        long,
        global = true,
        env = "STOKE_DATA_DIR",
        hide_env_values = true,
        value_name = "DIR"
    )]
    pub data_dir: Option<PathBuf>,
    /// Namespace of jobs and pods
    #[arg(
        short,
        long,
        global = true,
        default_value = "default",
        hide_default_value = true,
        value_name = "NAME"
    )]
    pub namespace: String,
    /// Say more about what is being done
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Up(up::Args),
    Down(down::Args),
    Run(Box<run::Args>),
    Get(get::Args),
    Describe(describe::Args),
    Logs(logs::Args),
    Top(top::Args),
    Explain(explain::Args),
    Suspend(suspend::Args),
    /// Let suspended jobs go on
    ///
    /// They go on from their last checkpoint, in a new attempt that counts as no failure.
    #[command(after_help = "Example:\n  stoke resume resnet50")]
    Resume(suspend::Args),
    Delete(delete::Args),
    Doctor(doctor::Args),
    Kubeconfig(kubeconfig::Args),
    Crds(crds::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Shim(shim::Args),
    #[command(hide = true)]
    ShimContainer(shim::ContainerArgs),
    #[command(hide = true)]
    Mpi(mpi::Args),
}

/// How objects are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// More columns
    Wide,
    Json,
    Yaml,
    /// kind/name, one a line
    Name,
}

/// How a value is printed that is no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DataFormat {
    Json,
    Yaml,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn help_teaches() {
        let mut command = Args::command().term_width(100);
        insta::assert_snapshot!(command.render_help());
        for name in [
            "up", "down", "run", "get", "logs", "top", "explain", "delete", "doctor",
        ] {
            let sub = command.find_subcommand_mut(name).unwrap();
            let help = sub.clone().term_width(100).render_long_help();
            insta::assert_snapshot!(format!("help_{name}"), help);
        }
    }
}
