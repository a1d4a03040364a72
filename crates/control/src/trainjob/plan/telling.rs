//! How a job's state is said: sentences, conditions, and an Event for each thing that went wrong.
//!
//! Invariant: nothing here depends on the clock but the times it is given, so that saying it again changes nothing.

use std::fmt;
use std::ops::RangeInclusive;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use stoke_api::condition::{self, ConditionType};
use stoke_api::trainjob::{
    Attempt, FailureCause, Leaving, Phase, Preemption, TrainJobStatus, Waiting,
};
use stoke_api::{Reason, Span};
use stoke_sched::Wait;

use super::{Action, Turn};
use crate::trainjob::workers::Worker;

/// An Event about a job: a warning. What goes as it should is in the conditions, with its time, and is not told twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telling {
    pub reason: String,
    pub message: String,
}

impl fmt::Display for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

impl Turn<'_> {
    /// Writes conditions from the phase and adds the Events of what changed.
    pub(super) fn tell(&mut self) {
        if let Some(refused) = &self.observed.refused
            && !self.status.phase.is_final()
        {
            self.status.reason = refused.reason().to_string();
            self.status.message.clone_from(&refused.message);
        }
        self.status.observed_generation = self.job.metadata.generation;
        self.set_conditions();
        self.tell_risk();
        self.tell_unsaved();
        self.tell_upload();
        let before = self.job.status.clone().unwrap_or_default();
        let moved = (before.phase, &before.reason) != (self.status.phase, &self.status.reason);
        if (self.job.status.is_none() || moved) && self.went_wrong() {
            self.actions.push(Action::Tell(Telling {
                reason: self.status.reason.clone(),
                message: self.status.message.clone(),
            }));
        }
    }

    fn went_wrong(&self) -> bool {
        let calm = [
            Reason::BackingOff,
            Reason::StoppingWorkers,
            Reason::InsufficientCapacity,
            Reason::WaitingForQuota,
            Reason::WaitingForTurn,
            Reason::WaitingForNodes,
        ];
        let status = &self.status;
        match status.phase {
            Phase::Failed | Phase::Restarting => true,
            Phase::Queued => !calm.iter().any(|calm| calm.to_string() == status.reason),
            _ => status.reason == Reason::ApplyFailed.to_string(),
        }
    }

    fn set_conditions(&mut self) {
        use ConditionType::{Admitted, Complete, Failed, Queued, Running, Suspended};
        let phase = self.status.phase;
        let placed = matches!(phase, Phase::Starting | Phase::Running);
        self.set(Queued, phase == Phase::Queued);
        self.set(Admitted, placed);
        self.set(Running, phase == Phase::Running);
        let was_suspended = condition::get(&self.status.conditions, Suspended).is_some();
        if phase == Phase::Suspended || was_suspended {
            self.set(Suspended, phase == Phase::Suspended);
        }
        match phase {
            Phase::Complete => self.set(Complete, true),
            Phase::Failed => self.set(Failed, true),
            _ => {}
        }
    }

    fn set(&mut self, kind: ConditionType, holds: bool) {
        let known = condition::get(&self.status.conditions, kind);
        let is_false = known.is_some_and(|condition| condition.status == "False");
        // What does not hold keeps the reason for which it ceased to, but that workers do not run yet is told as it changes.
        let awaited = kind == ConditionType::Running && self.status.phase == Phase::Starting;
        if !holds && is_false && !awaited {
            return;
        }
        let (reason, message) = match kind {
            ConditionType::Admitted if holds => {
                let attempt = self.status.current_attempt();
                (
                    Reason::Placed.to_string(),
                    attempt.map(place).unwrap_or_default(),
                )
            }
            ConditionType::Suspended if !holds => (Reason::Resumed.to_string(), String::new()),
            _ if !holds
                && self.status.phase == Phase::Starting
                && kind == ConditionType::Queued =>
            {
                (Reason::Placed.to_string(), String::new())
            }
            _ => (self.status.reason.clone(), self.status.message.clone()),
        };
        let generation = self.job.metadata.generation;
        let now = Time(self.now);
        condition::set(
            &mut self.status.conditions,
            kind,
            holds,
            &reason,
            &message,
            generation,
            &now,
        );
    }
}

pub fn workers(count: usize) -> String {
    if count == 1 {
        "1 worker".to_owned()
    } else {
        format!("{count} workers")
    }
}

pub fn none_of(count: usize) -> String {
    format!("0/{count}")
}

/// `grows_by`: until when it is waited for a checkpoint, to go on from with more workers.
pub fn running(count: usize, grows_by: Option<Timestamp>) -> String {
    let runs = match count {
        1 => "its worker runs".to_owned(),
        _ => format!("all {count} workers run"),
    };
    match grows_by {
        None => runs,
        Some(by) => format!(
            "{runs}; there is room for more, and a checkpoint to go on from was asked for, by {by:.0}"
        ),
    }
}

pub fn succeeded(count: usize) -> String {
    match count {
        1 => "its worker ended well".to_owned(),
        _ => format!("its {count} workers ended well"),
    }
}

/// `attempt 2 on node-a, node-b`
fn place(attempt: &Attempt) -> String {
    const NAMED: usize = 3;
    let mut nodes: Vec<&str> = attempt.nodes.iter().map(String::as_str).collect();
    nodes.dedup();
    let whereabouts = if nodes.len() > NAMED {
        format!("{} nodes", nodes.len())
    } else {
        nodes.join(", ")
    };
    format!("attempt {} on {whereabouts}", attempt.number)
}

pub fn starting(
    attempt: &Attempt,
    waiting: Option<&Worker<'_>>,
    data: Option<(&str, Option<&str>)>,
) -> String {
    if let (Some(worker), Some((dataset, secret))) = (waiting, data) {
        // Without the Secret its node does not even begin, and tells nobody but the pod's events.
        let keys = secret.map(|secret| format!(", which needs Secret {secret} in this namespace"));
        return format!(
            "{}; rank {} waits for its volumes, dataset {dataset} among them{}",
            place(attempt),
            worker.rank,
            keys.unwrap_or_default()
        );
    }
    let held = waiting.and_then(|worker| {
        Some(format!(
            "; rank {} waits: {}",
            worker.rank,
            worker.trouble()?
        ))
    });
    format!("{}{}", place(attempt), held.unwrap_or_default())
}

pub fn suspended(stopping: usize) -> String {
    match stopping {
        0 => "suspended; it goes on when spec.suspend is false".to_owned(),
        n => format!("suspended; {} must still stop", workers(n)),
    }
}

/// Why it waits and what would help, but for what changes with every job that ends.
pub fn waiting(wait: &Wait) -> String {
    let mut words = wait.constraint.to_string();
    for (i, remedy) in wait.helps.iter().enumerate() {
        words.push_str(if i == 0 {
            "; it would start with "
        } else {
            ", or with "
        });
        words.push_str(&remedy.to_string());
    }
    words
}

/// Where it stands in line, by the same value that says why it waits.
pub fn place_in_line(wait: &Wait, told_at: Option<Timestamp>) -> Waiting {
    Waiting {
        position: wait.ahead.saturating_add(1),
        estimated_start: wait.start.as_ref().map(|start| Time(start.at)),
        as_of: told_at.map(Time),
    }
}

pub fn preempted(preemption: &Preemption, writes_checkpoints: bool) -> String {
    let Preemption { by, why, .. } = preemption;
    let until = preemption.until.as_ref();
    let until = until.map(|until| format!(" by {:.0}", until.0));
    let goes_on = if writes_checkpoints {
        "it goes on from its last checkpoint"
    } else {
        "it begins anew"
    };
    format!(
        "it gives its room to {by}: {why}; its workers stop{}, and {goes_on} when there is room again",
        until.unwrap_or_default()
    )
}

/// While it still saves its work.
pub fn giving_way(preemption: &Preemption) -> String {
    let Preemption { by, why, .. } = preemption;
    let until = preemption.until.as_ref();
    let until = until.map(|until| format!(", by {:.0} at the latest", until.0));
    format!(
        "it was asked for a checkpoint and then gives room to {by}{}: {why}",
        until.unwrap_or_default()
    )
}

/// While its node is still there.
pub fn leaving(leaving: &Leaving, saves: bool) -> String {
    let Leaving { node, by, why, .. } = leaving;
    let until = leaving.until.as_ref();
    let until = until.map(|until| format!(", by {:.0} at the latest", until.0));
    let moves = if saves {
        "it was asked for a checkpoint and then moves"
    } else {
        "it moves"
    };
    format!(
        "node {node} goes away, says {by}: {why}; {moves}{}",
        until.unwrap_or_default()
    )
}

pub fn moved(leaving: &Leaving, saves: bool, saved: Option<Timestamp>) -> String {
    let Leaving { node, by, why, .. } = leaving;
    let goes_on = match (saves, saved) {
        (true, Some(_)) => "it goes on elsewhere from the checkpoint that it has just written",
        (true, None) => "it goes on elsewhere from its last checkpoint; none was written in time",
        (false, _) => "it begins anew elsewhere, for it writes no checkpoints",
    };
    format!("node {node} goes away, says {by}: {why}; {goes_on}")
}

/// `is_silent`: that nothing was logged either was found out here.
pub fn hung(rank: u32, seen: &str, is_silent: bool) -> String {
    let log = if is_silent {
        ", and its log has nothing of that time"
    } else {
        ""
    };
    format!(
        "it hangs: of rank {rank} its node says that {seen}{log}; look at what it waits for (stoke logs), or allow it more with hungAfter"
    )
}

/// After a sentence.
pub fn stays_off_spot(interruptions: u32) -> String {
    let times = match interruptions {
        1 => "once".to_owned(),
        n => format!("{n} times"),
    };
    format!(
        "; it lost machines that can be taken away {times}, as often as spotInterruptions lets it, and now uses others only"
    )
}

pub fn resized(from: usize, to: usize, preemption: Option<&Preemption>) -> String {
    let change = format!("it goes on with {} instead of {from}", workers(to));
    match preemption {
        None => format!("{change}: there is room for more"),
        Some(Preemption { by, why, .. }) => format!("{change}, for {by}: {why}"),
    }
}

/// `at_risk`: what its node said of its memory.
pub fn restarted(attempt: &Attempt, at_risk: Option<&str>) -> String {
    let goes_on =
        "it goes on from the checkpoint that it has just written, with its memory given back";
    match (at_risk, attempt.tuning.restart_every) {
        (Some(why), _) => format!("{goes_on}: {why}"),
        (None, Some(every)) => {
            let seconds = every.seconds;
            let every = match every.steps {
                Some(steps) => format!("{steps} steps"),
                None => Span { seconds }.to_string(),
            };
            format!("{goes_on}, as every {every}, for it leaks")
        }
        (None, None) => goes_on.to_owned(),
    }
}

/// While what was there before stops.
pub fn resizing(attempt: &Attempt, stopping: usize) -> String {
    format!(
        "it goes on as attempt {} with {}; {} of the last must stop first",
        attempt.number,
        workers(attempt.nodes.len()),
        workers(stopping)
    )
}

pub fn no_ports(ports: &RangeInclusive<u16>) -> String {
    format!(
        "too few neighbouring ports are free between {} and {}; it starts when other jobs have ended",
        ports.start(),
        ports.end()
    )
}

pub fn awaiting_nodes(count: usize, until: Timestamp, waiting: Option<&Worker<'_>>) -> String {
    let said = waiting.and_then(Worker::waits_for);
    let said = said.map(|said| format!("; {said}"));
    format!(
        "no node has room for it: its pods ({count}) wait for an autoscaler to bring some, until {until:.0}{}",
        said.unwrap_or_default()
    )
}

pub fn no_nodes_came(attempt: &Attempt, unbound: usize, said: Option<&str>) -> String {
    let said = said.map(|said| format!("; the last that was said of them: {said}"));
    format!(
        "no autoscaler brought nodes in time for {unbound} of {}{}",
        workers(attempt.nodes.len()),
        said.unwrap_or_default()
    )
}

pub fn overdue(max: Span) -> String {
    format!("it ran for its maxDuration of {max}")
}

/// `of_cause`: the cause of the last failure, where it has a limit of its own, that limit, and how often it was seen.
pub fn backing_off(
    status: &TrainJobStatus,
    retries: u32,
    of_cause: Option<(FailureCause, u32, u32)>,
    at: &Time,
) -> String {
    let last = last_words(status);
    let next = status.attempt.saturating_add(1);
    let used = status.failures;
    let of_cause = of_cause.map(|(cause, limit, seen)| format!(" ({cause} {seen} of {limit})"));
    format!(
        "attempt {next} starts at {:.0}, {used} of {retries} retries used{}; the last: {last}",
        at.0,
        of_cause.unwrap_or_default()
    )
}

pub fn given_up(status: &TrainJobStatus) -> String {
    let last = last_words(status);
    match status.failures {
        0 | 1 => last,
        n => format!("{n} attempts failed; the last: {last}"),
    }
}

pub fn limit_reached(
    cause: FailureCause,
    limit: u32,
    failures: u32,
    status: &TrainJobStatus,
) -> String {
    let last = last_words(status);
    let died_of = match cause {
        FailureCause::Memory => "failed for want of memory",
        FailureCause::GpuMemory => "failed for want of GPU memory",
        FailureCause::Storage => "failed for want of disk",
        FailureCause::Start => "could not be started",
        FailureCause::Program => "failed by the program's own error",
        FailureCause::Hung => "hung",
    };
    let attempts = match failures {
        1 => "1 attempt".to_owned(),
        n => format!("{n} attempts"),
    };
    let allows = match limit {
        0 => "none to be tried again".to_owned(),
        1 => "1 retry".to_owned(),
        n => format!("{n} retries"),
    };
    format!("{attempts} {died_of}, and retryLimits.{cause} allows {allows}; the last: {last}")
}

pub fn never_starts(attempts: usize, status: &TrainJobStatus) -> String {
    let last = last_words(status);
    format!("{attempts} attempts in a row did not start; the last: {last}")
}

/// After a sentence.
pub fn volume_kept(node: &str, claim: &str) -> String {
    format!(
        "; node {node}, which does not answer, may still have the volume of claim {claim}: if its machine is off, say so with \
         kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
    )
}

fn last_words(status: &TrainJobStatus) -> String {
    let exit = status
        .attempts
        .last()
        .and_then(|attempt| attempt.exit.as_ref());
    exit.map_or_else(
        || "it was begun anew".to_owned(),
        |exit| exit.message.clone(),
    )
}
