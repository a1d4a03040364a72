//! `stoke sched`: questions to the scheduler that change nothing.

mod replay;
mod simulate;

use std::process::ExitCode;

use crate::args::WorldArgs;
use crate::commands::wait_for;

const EXAMPLES: &str = "\
Examples:
  stoke sched simulate job.yaml           what would happen if it were submitted now
  stoke sched replay --nodes nodes.csv --pods pods.csv --order order.txt
                                          how full a cluster gets under a published trace";

/// Ask the scheduler what it would do, without doing it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Debug, clap::Subcommand)]
enum Question {
    Simulate(simulate::Args),
    Replay(replay::Args),
}

pub fn run(args: Args, world: &WorldArgs) -> anyhow::Result<ExitCode> {
    match args.question {
        // Files in, figures out: it needs no engine and no cluster.
        Question::Replay(args) => replay::run(&args),
        Question::Simulate(args) => wait_for(world, |session| simulate::run(args, session)),
    }
}
