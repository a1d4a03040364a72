//! What other memory would have cost: the runs of a workflow replayed under several policies.
//!
//! Each policy sizes a run from the runs of the same task before it. A run that gets less than its peak fails and is tried again with
//! more; a failed attempt wastes all it had, one that ends wastes what it did not use. The first runs of a task only teach.
//!
//! Invariant: the other policies share no code with ours.

mod policies;
mod table;

use std::fmt;

use serde::Serialize;

use policies::Sizer;
use table::{Row, Task};
pub use table::{TableError, Workflow};

/// Tasks with fewer runs are not replayed: there is nothing to learn from.
const RUNS_MIN: usize = 34;
/// Of each task's runs, this part only teaches.
const TEACHES: f64 = 0.3;
/// No policy is that far off; one that would be is no policy.
const ATTEMPTS_MAX: u32 = 64;
const GIB: f64 = (1_u64 << 30) as f64;

/// What a failed attempt is taken to cost beyond what it wastes, in GiB times hours: a small machine for an hour.
pub const FAILURE_COST_GIB_H: f64 = 16.0;

/// Who sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// What the workflow's author asked for.
    User,
    /// As the Vertical Pod Autoscaler does.
    Vpa,
    /// As KRR does.
    Krr,
    /// The largest peak seen; twice as much after a failure.
    Maxseen,
    /// Ours.
    Stokehold,
}

impl Policy {
    pub const ALL: [Self; 5] = [
        Self::User,
        Self::Vpa,
        Self::Krr,
        Self::Maxseen,
        Self::Stokehold,
    ];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Vpa => "vpa",
            Self::Krr => "krr",
            Self::Maxseen => "maxseen",
            Self::Stokehold => "stokehold",
        })
    }
}

/// How the policies did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub policies: Vec<Score>,
}

/// How one policy did, over all files.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Score {
    pub policy: Policy,
    /// Memory that was held and not used, times how long.
    pub waste_gib_h: f64,
    pub failed_attempts: u64,
    /// Tasks of which an attempt failed.
    pub tasks_failed: u64,
    /// Tasks that were replayed.
    pub tasks: u64,
}

/// Replays every workflow under every policy. `failure_cost_gib_h` is what ours takes a failure to cost, for instance
/// [`FAILURE_COST_GIB_H`].
pub fn backtest(workflows: &[Workflow], failure_cost_gib_h: f64) -> Report {
    let policies = Policy::ALL.map(|policy| score(policy, workflows, failure_cost_gib_h));
    Report {
        policies: policies.into(),
    }
}

fn score(policy: Policy, workflows: &[Workflow], failure_cost_gib_h: f64) -> Score {
    let mut score = Score {
        policy,
        waste_gib_h: 0.0,
        failed_attempts: 0,
        tasks_failed: 0,
        tasks: 0,
    };
    let tasks = workflows.iter().flat_map(|workflow| &workflow.tasks);
    for task in tasks.filter(|task| task.rows.len() >= RUNS_MIN) {
        let (waste, failed) = replay(task, policies::of(policy, failure_cost_gib_h).as_mut());
        score.waste_gib_h += waste;
        score.failed_attempts += u64::from(failed);
        score.tasks_failed += u64::from(failed > 0);
        score.tasks += 1;
    }
    score
}

/// What was wasted on a task's runs, and how many attempts failed.
fn replay(task: &Task, sizer: &mut dyn Sizer) -> (f64, u32) {
    let taught = (TEACHES * task.rows.len() as f64) as usize;
    let mut waste = 0.0;
    let mut failed = 0;
    for (index, row) in task.rows.iter().enumerate() {
        if index >= taught {
            let (wasted, failures) = attempts(row, sizer);
            waste += wasted;
            failed += failures;
        }
        sizer.learn(row);
    }
    (waste, failed)
}

fn attempts(row: &Row, sizer: &dyn Sizer) -> (f64, u32) {
    let gib_hours = |bytes: f64| bytes / GIB * row.seconds / 3600.0;
    let peak = row.peak as f64;
    let mut had = sizer.size(row);
    let mut waste = 0.0;
    let mut failures = 0;
    while had < peak && failures < ATTEMPTS_MAX {
        failures += 1;
        waste += gib_hours(had);
        // Twice nothing is nothing.
        had = sizer.again(had).max(1.0);
    }
    (waste + gib_hours((had - peak).max(0.0)), failures)
}

#[cfg(test)]
mod tests;
