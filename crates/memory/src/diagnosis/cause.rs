//! What a worker can die of, how sure that is, and what helps against it.

use std::fmt;

use stoke_api::trainjob::FailureCause;

/// What ended a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The kernel killed it at its own memory limit.
    ContainerLimit,
    /// One of its processes was killed, and the rest ended by itself.
    ChildKilled,
    /// The kernel killed it because the whole machine had no memory left.
    NodeOutOfMemory,
    /// Its node made room before that.
    NodePressure(Resource),
    /// More important work took its room.
    Preempted,
    GpuOutOfMemory {
        framework: Framework,
        shape: Shape,
    },
    /// /dev/shm was full.
    SharedMemory,
    /// Local disk was full, or it used more of it than it may.
    EphemeralStorage,
    /// The volume that keeps its checkpoints was full.
    CheckpointVolume,
    /// It was refused host memory, and was not killed.
    HostAllocation,
    /// It ended by an error of its own that is none of these.
    Crash,
    /// Someone deleted it or sent it a signal.
    KilledByPerson,
    /// Its node is no more.
    NodeLost,
    /// Drained, or stopped with its node.
    Disrupted,
    /// Its node did not start it.
    NotStarted,
    /// It ran longer than its pod may.
    Overdue,
    Unknown,
}

/// What a node was short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource {
    Memory,
    Storage,
    Processes,
}

/// Whose words told of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Framework {
    Cuda,
    Hip,
    Mps,
    Xpu,
    TensorFlow,
    Jax,
    /// A device that says no more than what it is.
    Other,
}

/// Why GPU memory was not enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// There was enough, in pieces.
    Fragmentation,
    /// Another process had it.
    CoTenant,
    /// One allocation is more than the GPU has.
    TooBig,
    /// It grew and grew.
    Leak,
    Plain,
}

impl Cause {
    /// One word for a status and a metric.
    pub fn name(self) -> &'static str {
        match self {
            Self::ContainerLimit => "ContainerLimit",
            Self::ChildKilled => "ChildKilled",
            Self::NodeOutOfMemory => "NodeOutOfMemory",
            Self::NodePressure(_) => "NodePressure",
            Self::Preempted => "Preempted",
            Self::GpuOutOfMemory { .. } => "GpuOutOfMemory",
            Self::SharedMemory => "SharedMemory",
            Self::EphemeralStorage => "EphemeralStorage",
            Self::CheckpointVolume => "CheckpointVolume",
            Self::HostAllocation => "HostAllocation",
            Self::Crash => "Crash",
            Self::KilledByPerson => "KilledByPerson",
            Self::NodeLost => "NodeLost",
            Self::Disrupted => "Disrupted",
            Self::NotStarted => "NotStarted",
            Self::Overdue => "Overdue",
            Self::Unknown => "Unknown",
        }
    }

    /// What a failure of this counts as, for a job that limits its retries by cause.
    pub fn counts_as(self) -> FailureCause {
        match self {
            Self::ContainerLimit
            | Self::ChildKilled
            | Self::NodeOutOfMemory
            | Self::NodePressure(Resource::Memory)
            | Self::SharedMemory
            | Self::HostAllocation => FailureCause::Memory,
            Self::GpuOutOfMemory { .. } => FailureCause::GpuMemory,
            Self::EphemeralStorage
            | Self::CheckpointVolume
            | Self::NodePressure(Resource::Storage) => FailureCause::Storage,
            Self::NotStarted => FailureCause::Start,
            Self::NodePressure(Resource::Processes)
            | Self::Preempted
            | Self::Crash
            | Self::KilledByPerson
            | Self::NodeLost
            | Self::Disrupted
            | Self::Overdue
            | Self::Unknown => FailureCause::Program,
        }
    }

    /// Was memory of any kind too little?
    pub fn is_memory(self) -> bool {
        matches!(
            self,
            Self::ContainerLimit
                | Self::ChildKilled
                | Self::NodeOutOfMemory
                | Self::NodePressure(Resource::Memory)
                | Self::GpuOutOfMemory { .. }
                | Self::SharedMemory
                | Self::HostAllocation
        )
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for Framework {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "CUDA",
            Self::Hip => "HIP",
            Self::Mps => "MPS",
            Self::Xpu => "XPU",
            Self::TensorFlow => "TensorFlow",
            Self::Jax => "JAX",
            Self::Other => "other",
        })
    }
}

/// How sure a cause is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Nothing speaks against it, and little for it.
    Possible,
    /// The program's own last words, or a sign that seldom means anything else.
    Likely,
    /// Who did it says so, or two that know of each other's nothing.
    Certain,
}

impl fmt::Display for Confidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What helps. What of it can be done, and how much of it, is for [`crate::recover`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// A higher memory limit.
    MoreMemory,
    /// As much promised as is used, so that others are made room of first.
    PromisedMemory,
    /// Begin anew from a checkpoint before the leak has eaten what there is.
    RestartInTime,
    MoreSharedMemory,
    MoreStorage,
    /// A volume for temporary files.
    ScratchVolume,
    SmallerMicroBatch,
    ExpandableSegments,
    BiggerGpu,
    OtherNode,
    /// As it was: it was not its own doing, or a matter of luck.
    TryAgain,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MoreMemory => "a higher memory limit",
            Self::PromisedMemory => "a promise of as much memory as it uses",
            Self::RestartInTime => {
                "a restart from its checkpoint before the leak has filled what there is"
            }
            Self::MoreSharedMemory => "a larger /dev/shm",
            Self::MoreStorage => "more local disk",
            Self::ScratchVolume => "a volume for its temporary files",
            Self::SmallerMicroBatch => {
                "a smaller micro-batch with as much more gradient accumulation"
            }
            Self::ExpandableSegments => "expandable segments in PyTorch's allocator",
            Self::BiggerGpu => "a GPU with more memory, or the model sharded over more of them",
            Self::OtherNode => "another node",
            Self::TryAgain => "another attempt",
        })
    }
}
