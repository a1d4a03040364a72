//! The command line as it is typed. Each command turns its part into what it means, in one step, in its own file.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::commands::{
    agent, completions, crds, data, data_driver, delete, describe, doctor, down, estimate, explain,
    get, heed, history, kubeconfig, logs, memory, mpi, operator, queue, run, sched, shim, suspend,
    top, up,
};
use crate::program;
use crate::world::{Asked, Named};

const ABOUT: &str = "Train on one machine with one binary, and run the same YAML on Kubernetes.";

const EXAMPLES: &str = "\
Examples:
  stoke up --detach                       start an engine in the background
  stoke run -- python train.py            run a command, follow it, end with its exit code
  stoke run job.yaml                      the same for a job in a file
  stoke get                               what runs, what waits, and why
  stoke logs -f resnet50 --rank 1         one worker's lines, as they come
  stoke explain resnet50                  why it is where it is, and what would help
  stoke history                           how jobs ended, also those that are gone
  stoke queue                             who may use how many GPUs, and does
  stoke estimate --params 7B --gpu h100   will it fit, before it runs
  stoke down                              stop the engine and what it runs
  stoke --context prod-eu get             the same on a cluster; or: kubectl stoke get

Exit codes:
  0   done; for run: the job is complete
  1   the job failed without a code of its own, or something unforeseen
  2   the command line is wrong
  3   no engine or cluster answers, or it does not know you
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

/// Which world, and where in it.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Where")]
pub struct WorldArgs {
    /// A cluster, by its context in your kubeconfig [default: a running engine, else the current context]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The kubeconfig to take contexts from [default: the files of $KUBECONFIG, else ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The engine of this machine that keeps everything there [default: ~/.local/share/stokehold, as root /var/lib/stokehold]
    #[arg(
        long,
        global = true,
        env = "STOKE_DATA_DIR",
        hide_env_values = true,
        value_name = "DIR"
    )]
    pub data_dir: Option<PathBuf>,
    /// Namespace of jobs and pods [default: the context's, else default]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Do not say which engine or cluster is talked to
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more about what is being done
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// `data_dir` was typed, and is not from the environment.
    #[arg(skip)]
    is_data_dir_typed: bool,
    /// We are `kubectl stoke`.
    #[arg(skip)]
    pub is_plugin: bool,
}

impl Args {
    /// Reads the command line. `is_plugin`: kubectl called us.
    pub fn read(
        words: impl IntoIterator<Item = OsString>,
        is_plugin: bool,
    ) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        if is_plugin {
            command = as_plugin(command);
        }
        let mut matches = command.try_get_matches_from_mut(words)?;
        let typed = matches.value_source("data_dir") == Some(ValueSource::CommandLine);
        let mut args =
            Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        args.world.is_data_dir_typed = typed;
        args.world.is_plugin = is_plugin;
        Ok(args)
    }
}

impl WorldArgs {
    pub fn asked(&self) -> Asked {
        Asked {
            names_cluster: self.context.is_some() || self.kubeconfig.is_some(),
            data_dir: match &self.data_dir {
                Some(_) if self.is_data_dir_typed => Named::ByFlag,
                Some(_) => Named::ByVariable,
                None => Named::No,
            },
            is_plugin: self.is_plugin,
        }
    }

    /// The flags that say where, as they were typed, for commands that we suggest.
    pub fn typed(&self) -> Vec<(&'static str, &str)> {
        fn text(path: Option<&PathBuf>) -> Option<&str> {
            path.and_then(|path| path.to_str())
        }
        let data_dir = self.data_dir.as_ref().filter(|_| self.is_data_dir_typed);
        [
            ("--context", self.context.as_deref()),
            ("--kubeconfig", text(self.kubeconfig.as_ref())),
            ("--data-dir", text(data_dir)),
            ("--namespace", self.namespace.as_deref()),
        ]
        .into_iter()
        .filter_map(|(flag, value)| Some((flag, value?)))
        .collect()
    }
}

/// The same commands under kubectl's name, in usage lines and examples.
fn as_plugin(command: clap::Command) -> clap::Command {
    let name = program::name(true);
    let examples = |command: clap::Command| match command.get_after_help() {
        Some(help) => {
            let help = help.to_string().replace("  stoke ", &format!("  {name} "));
            command.after_help(help)
        }
        None => command,
    };
    let command = examples(command).bin_name(name).mut_subcommands(examples);
    command.mut_subcommand("run", |run| run.override_usage(run::usage(name)))
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
    History(history::Args),
    Queue(queue::Args),
    Data(data::Args),
    Sched(sched::Args),
    Estimate(Box<estimate::Args>),
    Memory(memory::Args),
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
    Operator(operator::Args),
    Agent(agent::Args),
    DataDriver(data_driver::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Shim(shim::Args),
    #[command(hide = true)]
    ShimContainer(shim::ContainerArgs),
    #[command(hide = true)]
    Mpi(mpi::Args),
    #[command(hide = true)]
    Heed(heed::Args),
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

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    fn read(line: &str, is_plugin: bool) -> WorldArgs {
        let words = line.split(' ').map(OsString::from);
        Args::read(words, is_plugin).expect("a good line").world
    }

    #[test]
    fn where_is_said_before_or_after_the_command() {
        for line in [
            "stoke --context prod -n vision --data-dir /d get",
            "stoke get jobs --context prod -n vision --data-dir /d",
        ] {
            let world = read(line, false);
            let typed = [
                ("--context", "prod"),
                ("--data-dir", "/d"),
                ("--namespace", "vision"),
            ];
            assert_eq!(world.typed(), typed, "{line}");
            assert!(world.asked().names_cluster, "{line}");
            assert_eq!(world.asked().data_dir, Named::ByFlag, "{line}");
        }
        assert!(
            read("stoke --kubeconfig f get", false)
                .asked()
                .names_cluster
        );
        assert!(read("kubectl-stoke get", true).asked().is_plugin);
    }

    #[test]
    fn memory_is_asked_of_a_job_or_of_files() {
        let parses = |line: &str| Args::read(line.split(' ').map(OsString::from), false).is_ok();
        assert!(parses("stoke memory resnet50"));
        assert!(parses("stoke memory resnet50 -n vision"));
        assert!(parses("stoke memory backtest a.csv b.csv -o json"));
        assert!(!parses("stoke memory"));
        assert!(!parses("stoke memory backtest"));
        assert!(!parses("stoke memory backtest a.csv --failure-cost -1"));
    }

    #[test]
    fn under_kubectl_help_speaks_of_kubectl() {
        let help = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            Args::read(words, true).expect_err("help").to_string()
        };
        let run = help("kubectl-stoke run --help");
        assert!(
            run.contains("Usage: kubectl stoke run [OPTIONS] FILE..."),
            "{run}"
        );
        assert!(run.contains("  kubectl stoke run -- python"), "{run}");
        assert!(help("kubectl-stoke --help").contains("  kubectl stoke get  "));
        let wrong = help("kubectl-stoke get --nonsense");
        assert!(wrong.contains("Usage: kubectl stoke get"), "{wrong}");
    }

    #[test]
    fn help_teaches() {
        let mut command = Args::command().term_width(100);
        insta::assert_snapshot!(command.render_help());
        for name in [
            "up", "down", "run", "get", "logs", "top", "explain", "history", "queue", "sched",
            "estimate", "memory", "delete", "doctor", "operator",
        ] {
            let sub = command.find_subcommand_mut(name).unwrap();
            let help = sub.clone().term_width(100).render_long_help();
            insta::assert_snapshot!(format!("help_{name}"), help);
        }
    }
}
