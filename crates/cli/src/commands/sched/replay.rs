//! `stoke sched replay`: a published trace, placed pod by pod under one of several policies.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use stoke_sched::replay::{DecisionTime, File, Policy, Replay, Report, Trace, TraceError, floor};

use crate::failure::{Exit, Failure};
use crate::render::table::Grid;
use crate::terminal::{self, DIM, paint};

const EXAMPLES: &str = "\
Examples:
  stoke sched replay --nodes nodes.csv --pods pods_default.csv --order order/default_42.txt
  stoke sched replay --nodes nodes.csv --pods pods_default.csv --order order/default_42.txt --policy fgd -o json

nodes.csv: sn,cpu_milli,memory_mib,gpu,model
pods.csv:  name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec]; gpu_milli is of one GPU, and below 1000 a part of it;
           gpu_spec names the models that will do, separated by |
order.txt: rows of pods.csv from 0, in the order of arrival; a row may arrive more than once
Each pod is placed once or has failed; none ends. Shown is what is not allocated of all GPUs when that
much has been asked for, in percent.";

/// Larger files are no traces.
const SIZE_MAX: u64 = 256 << 20;

/// Place the pods of a trace one after the other, and tell how full the cluster gets
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The nodes of the cluster, as CSV
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// The pods, as CSV
    #[arg(long, value_name = "FILE")]
    pods: PathBuf,
    /// The order in which the pods arrive, as row numbers from 0
    #[arg(long, value_name = "FILE")]
    order: PathBuf,
    /// Who places them: stokehold, fgd, bestfit, packing or random
    #[arg(long, value_name = "NAME", default_value_t = Policy::Stokehold)]
    policy: Policy,
    /// Of what a policy leaves to chance; ours leaves nothing to it
    #[arg(long, value_name = "N", default_value_t = 42)]
    seed: u64,
    /// Print figures for programs
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Json,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let trace = read(args)?;
    let mut report = replayed(&trace, args.policy, args.seed);
    let mut out = terminal::stdout();
    match args.output {
        Some(Output::Json) => writeln!(out, "{}", serde_json::to_string(&report)?)?,
        None => {
            report.floor = Some(floor(&trace));
            write!(out, "{}", text_of(&report, trace.arrivals()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(args: &Args) -> anyhow::Result<Trace> {
    let nodes = text(&args.nodes)?;
    let pods = text(&args.pods)?;
    let order = text(&args.order)?;
    let trace = Trace::parse(&nodes, &pods, &order);
    trace.map_err(|error| bad_line(args, &error).into())
}

fn text(path: &Path) -> Result<String, Failure> {
    let name = path.display();
    let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
    if size > SIZE_MAX {
        let what = format!("{name} is larger than {} MiB", SIZE_MAX >> 20);
        return Err(Failure::new(Exit::Refused, what).hint("is it the right file?"));
    }
    fs::read_to_string(path).map_err(|error| {
        let exit = match error.kind() {
            ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Refused,
        };
        Failure::new(exit, format!("cannot read {name}"))
            .hint("the format of each file: stoke sched replay --help")
            .source(error)
    })
}

fn bad_line(args: &Args, error: &TraceError) -> Failure {
    let path = match error.file {
        File::Nodes => &args.nodes,
        File::Pods => &args.pods,
        File::Order => &args.order,
    };
    let what = format!("{}, line {}: {}", path.display(), error.line, error.what);
    Failure::new(Exit::Refused, what).hint("the format of each file: stoke sched replay --help")
}

fn replayed(trace: &Trace, policy: Policy, seed: u64) -> Report {
    let bar = progress(trace.arrivals() as u64);
    let mut replay = Replay::new(trace, policy, seed);
    let mut took = Vec::with_capacity(trace.arrivals());
    loop {
        let begun = Instant::now();
        if replay.next().is_none() {
            break;
        }
        took.push(begun.elapsed());
        if took.len() % 256 == 0 {
            bar.set_position(took.len() as u64);
        }
    }
    bar.finish_and_clear();
    Report {
        decision_us: DecisionTime::of(took),
        ..replay.report()
    }
}

fn progress(arrivals: u64) -> ProgressBar {
    if !terminal::stderr_is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} pods, {eta} left");
    ProgressBar::new(arrivals).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// For people: a row for each load that is looked at.
fn text_of(report: &Report, arrivals: usize) -> String {
    let mut grid = Grid::with_head(&["ARRIVED", "ALLOCATED", "UNALLOCATED", "FLOOR"]);
    let percent = |value: Option<f64>| match value {
        Some(value) => format!("{value:.2}%"),
        None => "-".to_owned(),
    };
    let floor = report.floor.clone().unwrap_or_default();
    for (mark, unallocated) in &report.unallocated {
        grid.push(vec![
            format!("{mark}%"),
            percent(unallocated.map(|value| 100.0 - value)),
            percent(*unallocated),
            percent(floor.get(mark).copied().flatten()),
        ]);
    }
    let Report {
        policy,
        failed_pods,
        ..
    } = report;
    let mut text = format!(
        "{}\n{policy}: {failed_pods} of {arrivals} pods failed",
        grid.text()
    );
    if let Some(DecisionTime { p50, p99 }) = report.decision_us {
        let _ = write!(
            text,
            "; a decision took {p50:.1} us (p50), {p99:.1} us (p99)"
        );
    }
    let legend = "ARRIVED: GPUs asked for, of all there are. FLOOR: the least that any policy could leave unallocated.";
    let _ = writeln!(text, "\n{}", paint(DIM, legend));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_sched::replay::MARKS;

    fn report(floor: bool) -> Report {
        let marks = |value| {
            MARKS
                .map(|mark| (mark, (mark < 110).then_some(value)))
                .into()
        };
        Report {
            policy: Policy::Fgd,
            unallocated: marks(4.75),
            floor: floor.then(|| marks(3.0)),
            failed_pods: 12,
            decision_us: Some(DecisionTime {
                p50: 41.23,
                p99: 120.0,
            }),
        }
    }

    #[test]
    fn programs_get_the_figures_and_no_more() {
        let text = serde_json::to_string(&report(false)).expect("JSON");
        insta::assert_snapshot!(text, @r#"{"policy":"fgd","unallocated":{"50":4.75,"80":4.75,"95":4.75,"100":4.75,"110":null,"130":null},"failed_pods":12,"decision_us":{"p50":41.23,"p99":120.0}}"#);
    }

    #[test]
    fn people_get_a_table() {
        let text = text_of(&report(true), 8000);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text), @"
        ARRIVED   ALLOCATED   UNALLOCATED   FLOOR
        50%       95.25%      4.75%         3.00%
        80%       95.25%      4.75%         3.00%
        95%       95.25%      4.75%         3.00%
        100%      95.25%      4.75%         3.00%
        110%      -           -             -
        130%      -           -             -

        fgd: 12 of 8000 pods failed; a decision took 41.2 us (p50), 120.0 us (p99)
        ARRIVED: GPUs asked for, of all there are. FLOOR: the least that any policy could leave unallocated.
        ");
    }
}
