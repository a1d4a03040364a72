//! What the scheduler is told of jobs, and what it decides for them.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;
use stoke_api::Span;
use stoke_api::trainjob::{Priority, Spot};

use crate::gang::Gang;
use crate::place::Plan;

/// What the caller calls a job, as `namespace/name`. Cheap to copy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Arc<str>);

impl JobId {
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A job that wants room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub gang: Arc<Gang>,
    /// Absent: it is in the queue of those that name none.
    pub queue: Option<String>,
    pub priority: Priority,
    /// Its place in line. A job that was preempted keeps it.
    pub submitted_at: Timestamp,
    /// Since when it has no room: when it was submitted, or lost the room that it had.
    pub waits_since: Timestamp,
    /// How long it may run, once it has started.
    pub limit: Option<Span>,
    /// What it reads, by the names that the scheduler was told of. Jobs that differ in nothing else are alike in whether there is room.
    pub datasets: Arc<[String]>,
}

impl Job {
    pub(crate) fn is_production(&self) -> bool {
        self.priority == Priority::Production
    }

    /// A spot machine's end is no surprise to it, so neither is a preemption.
    pub(crate) fn tolerates_spot(&self) -> bool {
        self.gang.spot != Spot::Never
    }
}

/// A job that has room. What it holds is in what the caller says is used of its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    pub job: Job,
    /// Where its workers are, by rank; an elastic gang may have fewer than it would like.
    pub plan: Plan,
    pub since: Timestamp,
    /// When it will have ended, where that is known or limited.
    pub ends_by: Option<Timestamp>,
    /// Its last checkpoint. Absent: all it did since its start would be lost.
    pub saved_at: Option<Timestamp>,
    pub change: Change,
}

impl Running {
    /// One that just started and keeps what it has.
    pub fn new(job: Job, plan: Plan, since: Timestamp) -> Self {
        let ends_by = job.limit.and_then(|limit| later(since, limit));
        Self {
            job,
            plan,
            since,
            ends_by,
            saved_at: None,
            change: Change::None,
        }
    }
}

/// What a running job was asked to do and has not done yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Change {
    #[default]
    None,
    /// It is in the grace before its preemption.
    Yields,
    /// It gives up its last ranks, down to so many workers.
    Shrinks { to: u32 },
    /// It gets more workers, after those that it has. They are not yet in what the caller says is used.
    Grows { plan: Plan },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Its room is set aside until the caller says that it runs, that it waits again, or that it is gone.
    Start { job: JobId, plan: Plan },
    /// All of these are asked to save their work and end; they are submitted again with the `submitted_at` they had.
    Preempt {
        victims: Vec<JobId>,
        for_job: JobId,
        why: Claim,
    },
    /// It gives up its last ranks, at a checkpoint.
    Shrink {
        job: JobId,
        to: u32,
        for_job: JobId,
        why: Claim,
    },
    /// It gets these workers more, at a checkpoint. Their room is set aside until the caller says again how it runs.
    Grow { job: JobId, plan: Plan },
}

/// By what right a job takes the room of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Claim {
    /// It is within what its queue is guaranteed.
    Guarantee { queue: String },
    /// It is more important.
    Priority,
    /// Workers beyond the minimum of an elastic gang are lent to it until another wants the room.
    Surplus,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guarantee { queue } => {
                write!(f, "queue {queue} takes back what it is guaranteed")
            }
            Self::Priority => f.write_str("it is more important"),
            Self::Surplus => f.write_str("it waits, and the gang can do with fewer workers"),
        }
    }
}

/// That much later; none where no clock goes so far.
pub(crate) fn later(time: Timestamp, span: Span) -> Option<Timestamp> {
    let seconds = i64::try_from(span.seconds).ok()?;
    time.checked_add(jiff::SignedDuration::from_secs(seconds))
        .ok()
}
