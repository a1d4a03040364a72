//! Why a job is where it is, as one word. The same word is the condition's reason, the Event's reason and the metric's label.

use std::fmt;

/// Every reason a TrainJob's phase or condition, or a Queue's, may carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    // Waiting. The words are shared with Kueue where it has one.
    NoMatchingNodes,
    InsufficientCapacity,
    WaitingForQuota,
    /// There would be room, but it is kept for a job that goes first.
    WaitingForTurn,
    /// Others were asked to make room for it.
    WaitingForPreemption,
    /// Its pods are there for an autoscaler to see; the nodes are not.
    WaitingForNodes,
    QueueNotFound,
    /// Its queue cannot be used; the queue says why.
    QueueUnusable,
    WaitingForDataset,
    BackingOff,
    Misconfigured,
    /// No GPU that it may run on can hold its model.
    ModelTooBig,
    // Going on.
    Placed,
    StartingWorkers,
    /// Goes on with more or fewer workers.
    Resized,
    /// Goes on from its checkpoint with its memory given back.
    Restarted,
    WorkersRunning,
    /// Its memory: it climbs or leaks, and there is time to do something about it.
    MemoryClimbs,
    /// Its memory: the limit was raised while it runs.
    LimitRaised,
    /// Its memory: it may have no more, and was asked to save its work.
    CheckpointAsked,
    /// Its memory: its node has nearly none left.
    NodeShortOfMemory,
    /// Its memory was in danger, and is no more.
    OutOfDanger,
    /// Its memory was in danger when it ended.
    NotRunning,
    /// Its work: hours of it are in no checkpoint, for the job keeps none.
    NoCheckpoints,
    /// Its work: none was written for much longer than the job means to.
    CheckpointOverdue,
    /// Its work is in a checkpoint again.
    CheckpointWritten,
    /// Copies of its checkpoints do not get to the object store.
    UploadFailed,
    /// They do again.
    UploadWorks,
    StoppingWorkers,
    Suspended,
    Resumed,
    // Over.
    Succeeded,
    OutOfMemory,
    /// Local disk, or a volume, was full.
    OutOfStorage,
    WorkerFailed,
    /// Its workers did nothing for longer than `hungAfter`.
    Hung,
    WorkerLost,
    Evicted,
    /// A node of it goes away.
    NodeLeaving,
    Preempted,
    StartFailed,
    RetriesExhausted,
    /// One cause ended as many attempts as `retryLimits` lets it.
    RetryLimitReached,
    DeadlineExceeded,
    /// A write to the API server was refused; the message is the server's.
    ApplyFailed,
    // Of a Queue.
    Usable,
    ParentNotFound,
    ParentCycle,
    GuaranteeAboveCeiling,
    /// The guarantees of its children are more than its own.
    GuaranteeAboveParent,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
