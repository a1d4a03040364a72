//! Why a job waits, until when, and what would help: the one value behind `stoke explain`, the condition, the Event and the metric.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use stoke_api::Reason;

use super::job::JobId;
use crate::explain::Explanation;
use crate::queues::{QueueFault, QuotaShortage};

/// Why a job waits. Its `Display` is one sentence.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    pub job: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Jobs before it in its queue.
    pub ahead: u32,
    pub constraint: Constraint,
    /// Any one of these alone would let it start. Each was tried on a copy of the cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub helps: Vec<Remedy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Estimate>,
}

/// What keeps a job from starting, first of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Constraint {
    QueueNotFound {
        queue: String,
    },
    QueueUnusable {
        queue: String,
        fault: QueueFault,
    },
    Quota(QuotaShortage),
    /// An older job waits for this queue's quota, and has waited long enough.
    QuotaKept {
        queue: String,
        for_job: JobId,
    },
    Room {
        #[serde(serialize_with = "told")]
        explanation: Explanation,
    },
    /// There is room, and it is kept for a job that goes first.
    RoomKept {
        for_job: JobId,
    },
    /// Others make room for it.
    Coming {
        from: Vec<JobId>,
    },
    /// No cycle has looked at it yet.
    NotLookedAt,
}

fn told<S: serde::Serializer>(explanation: &Explanation, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(explanation)
}

/// What would let a job start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Remedy {
    FewerWorkers {
        workers: u32,
    },
    OtherGpuTypes {
        products: Vec<String>,
    },
    /// So many more nodes like this one, empty.
    MoreNodes {
        like: String,
        count: u32,
    },
    /// Let the queue have so many of a type.
    RaiseCeiling {
        queue: String,
        gpus: String,
        to: u32,
    },
    RaiseGuarantee {
        queue: String,
        gpus: String,
        to: u32,
    },
    /// All of these together.
    All {
        of: Vec<Remedy>,
    },
}

/// When a job should start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Estimate {
    /// At the latest, if nobody with a right comes between.
    pub at: Timestamp,
    /// The last of those that must end before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<JobId>,
}

impl Wait {
    pub fn reason(&self) -> Reason {
        match &self.constraint {
            Constraint::QueueNotFound { .. } => Reason::QueueNotFound,
            Constraint::QueueUnusable { .. } => Reason::QueueUnusable,
            Constraint::Quota(_) => Reason::WaitingForQuota,
            Constraint::Room { explanation } => explanation.reason(),
            Constraint::QuotaKept { .. }
            | Constraint::RoomKept { .. }
            | Constraint::NotLookedAt => Reason::WaitingForTurn,
            Constraint::Coming { .. } => Reason::WaitingForPreemption,
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.constraint.fmt(f)?;
        match (self.ahead, &self.queue) {
            (0, _) => {}
            (ahead, Some(queue)) => write!(f, "; {ahead} ahead in queue {queue}")?,
            (ahead, None) => write!(f, "; {ahead} ahead of it")?,
        }
        if let Some(start) = &self.start {
            start.fmt(f)?;
        }
        for (i, remedy) in self.helps.iter().enumerate() {
            let lead = if i == 0 {
                "; it would start with "
            } else {
                ", or with "
            };
            write!(f, "{lead}{remedy}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueNotFound { queue } => write!(
                f,
                "queue {queue} does not exist; create it, or change spec.queue"
            ),
            Self::QueueUnusable { queue, fault } => {
                write!(f, "queue {queue} cannot be used: {fault}")
            }
            Self::Quota(short) => short.fmt(f),
            Self::QuotaKept { queue, for_job } => write!(
                f,
                "what comes free of the quota of queue {queue} is kept for {for_job}, which has waited for long"
            ),
            Self::Room { explanation } => explanation.fmt(f),
            Self::RoomKept { for_job } => write!(
                f,
                "there is room, but it is kept for {for_job}, which goes first"
            ),
            Self::Coming { from } => match from.as_slice() {
                [] => f.write_str("room is being made for it"),
                [one] => write!(f, "{one} makes room for it"),
                [first, others @ ..] => {
                    write!(f, "{first} and {} more make room for it", others.len())
                }
            },
            Self::NotLookedAt => f.write_str("it was not looked at yet"),
        }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "; it should start by {}", self.at)?;
        match &self.after {
            Some(after) => write!(f, ", when {after} has ended"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |count: u32| if count == 1 { "" } else { "s" };
        match self {
            Self::FewerWorkers { workers } => write!(f, "{workers} worker{}", s(*workers)),
            Self::OtherGpuTypes { products } => {
                write!(f, "GPUs of another type ({})", products.join(", "))
            }
            Self::MoreNodes { like, count } => {
                write!(f, "{count} more node{} like {like}", s(*count))
            }
            Self::RaiseCeiling { queue, gpus, to } => {
                write!(f, "a ceiling of {to} ({gpus}) for queue {queue}")
            }
            Self::RaiseGuarantee { queue, gpus, to } => {
                write!(f, "a guarantee of {to} ({gpus}) for queue {queue}")
            }
            Self::All { of } => {
                let of: Vec<String> = of.iter().map(ToString::to_string).collect();
                f.write_str(&of.join(" and "))
            }
        }
    }
}
