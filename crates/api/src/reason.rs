//! Why a job is where it is, as one word. The same word is the condition's reason, the Event's reason and the metric's label.

use std::fmt;

/// Every reason a TrainJob's phase or condition may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    // Waiting. The words are shared with Kueue where it has one.
    NoMatchingNodes,
    InsufficientCapacity,
    WaitingForQuota,
    WaitingForDataset,
    BackingOff,
    Misconfigured,
    // Going on.
    Placed,
    StartingWorkers,
    WorkersRunning,
    StoppingWorkers,
    Suspended,
    Resumed,
    // Over.
    Succeeded,
    OutOfMemory,
    WorkerFailed,
    WorkerLost,
    Evicted,
    StartFailed,
    RetriesExhausted,
    DeadlineExceeded,
    /// A write to the API server was refused; the message is the server's.
    ApplyFailed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
