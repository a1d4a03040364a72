//! `stoke memory`: what a job uses of memory and what it gets, and how other ways to size would have done.

mod backtest;
mod show;

use std::process::ExitCode;

use crate::args::WorldArgs;
use crate::commands::wait_for;

const EXAMPLES: &str = "\
Examples:
  stoke memory resnet50                   what it has, what it uses, what the next run gets, and why
  stoke memory backtest runs.csv          how much memory other ways to size would have wasted";

/// Show what a job uses of memory and what it gets, or replay how it could have been sized
#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub struct Args {
    #[command(flatten)]
    show: Option<show::Args>,
    #[command(subcommand)]
    question: Option<Question>,
}

#[derive(Debug, clap::Subcommand)]
enum Question {
    Backtest(backtest::Args),
}

pub fn run(args: Args, world: &WorldArgs) -> anyhow::Result<ExitCode> {
    match (args.question, args.show) {
        // Files in, figures out: it needs no engine and no cluster.
        (Some(Question::Backtest(args)), _) => backtest::run(&args),
        (None, Some(args)) => wait_for(world, |session| show::run(args, session)),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}
