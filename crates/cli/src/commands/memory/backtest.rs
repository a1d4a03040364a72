//! `stoke memory backtest`: the runs of past workflows, sized by several policies.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stoke_memory::{FAILURE_COST_GIB_H, Report, Workflow, backtest};

use crate::failure::{Exit, Failure};
use crate::terminal::{self, BOLD, DIM, GREEN, paint};

const EXAMPLES: &str = "\
Examples:
  stoke memory backtest eager.csv rnaseq.csv
  stoke memory backtest runs.csv -o json

Each file is CSV with a head: task,start_s,duration_s,peak_bytes,input_bytes,requested_bytes
One row a run, in the order in which they began; input_bytes and requested_bytes may be 0 where they are not known. Tasks
with at least 34 runs are replayed; the first 30 % of a task's runs only teach. A run that gets less than its peak fails and
is tried again with more: a failed attempt wastes all it had, one that ends wastes what it did not use.

user       what was requested; twice as much after a failure
vpa        the 90th percentile of earlier peaks and 15 %, as the Vertical Pod Autoscaler
krr        the largest earlier peak and 15 %, as KRR
maxseen    the largest earlier peak; twice as much after a failure
stokehold  what runs with a like input used, and the margin that costs least";

const HINT: &str = "the format of the file: stoke memory backtest --help";
/// Larger files are no histories.
const SIZE_MAX: u64 = 256 << 20;

/// Replay past runs under several ways to size memory, and tell what each wastes and how often it fails
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Past runs, as CSV
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// What stokehold takes a failed attempt to cost, in GiB times hours: more makes it more careful
    #[arg(long, value_name = "GIBH", default_value_t = FAILURE_COST_GIB_H, value_parser = cost)]
    failure_cost: f64,
    /// Print figures for programs
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Json,
}

fn cost(text: &str) -> Result<f64, String> {
    let cost = text
        .parse()
        .ok()
        .filter(|cost: &f64| (0.0..=1e9).contains(cost));
    cost.ok_or_else(|| "it must be a number from 0 to 1e9".to_owned())
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let workflows = args
        .files
        .iter()
        .map(|path| read(path))
        .collect::<Result<Vec<Workflow>, Failure>>()?;
    let report = backtest(&workflows, args.failure_cost);
    let mut out = terminal::stdout();
    match args.output {
        Some(Output::Json) => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        None => write!(out, "{}", text_of(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Workflow, Failure> {
    let name = path.display();
    let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
    if size > SIZE_MAX {
        let what = format!("{name} is larger than {} MiB", SIZE_MAX >> 20);
        return Err(Failure::new(Exit::Refused, what).hint("is it the right file?"));
    }
    let text = fs::read_to_string(path).map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Refused,
        };
        Failure::new(exit, format!("cannot read {name}"))
            .hint(HINT)
            .source(error)
    })?;
    Workflow::parse(&text).map_err(|error| {
        let what = format!("{name}, line {}: {}", error.line, error.what);
        Failure::new(Exit::Refused, what).hint(HINT)
    })
}

/// For people: a row a policy, the best of each column marked.
fn text_of(report: &Report) -> String {
    let scores = &report.policies;
    let tasks = scores.first().map_or(0, |score| score.tasks);
    if tasks == 0 {
        return "no task has enough runs to be replayed: it takes 34\n".to_owned();
    }
    let least = scores
        .iter()
        .map(|score| score.waste_gib_h)
        .fold(f64::INFINITY, f64::min);
    let head = format!(
        "{:10}{:>14}{:>18}{:>14}",
        "POLICY", "WASTE (GiBh)", "FAILED ATTEMPTS", "TASKS HIT"
    );
    let mut text = format!("{}\n", paint(BOLD, head));
    for score in scores {
        let row = format!(
            "{:10}{:>14.1}{:>18}{:>14}",
            score.policy.to_string(),
            score.waste_gib_h,
            score.failed_attempts,
            format!("{} of {tasks}", score.tasks_failed)
        );
        let _ = if score.waste_gib_h.total_cmp(&least).is_eq() {
            writeln!(text, "{}", paint(GREEN, format!("{row}  least waste")))
        } else {
            writeln!(text, "{row}")
        };
    }
    let legend = "WASTE: memory that was held and not used, times how long. TASKS HIT: tasks of which an attempt failed.";
    let _ = writeln!(text, "\n{}", paint(DIM, legend));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_memory::Policy;
    use stoke_memory::Score;

    fn report(tasks: u64) -> Report {
        let score = |policy, waste_gib_h, failed_attempts| Score {
            policy,
            waste_gib_h,
            failed_attempts,
            tasks_failed: u64::from(failed_attempts > 0),
            tasks,
        };
        Report {
            policies: vec![
                score(Policy::User, 3648.907, 0),
                score(Policy::Vpa, 921.18, 72),
                score(Policy::Stokehold, 308.2, 2),
            ],
        }
    }

    #[test]
    fn people_get_a_table_with_the_best_marked() {
        let text = text_of(&report(43));
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @"
        POLICY      WASTE (GiBh)   FAILED ATTEMPTS     TASKS HIT
        user              3648.9                 0       0 of 43
        vpa                921.2                72       1 of 43
        stokehold          308.2                 2       1 of 43  least waste

        WASTE: memory that was held and not used, times how long. TASKS HIT: tasks of which an attempt failed.
        ");
        insta::assert_snapshot!(text_of(&report(0)), @"no task has enough runs to be replayed: it takes 34");
    }
}
