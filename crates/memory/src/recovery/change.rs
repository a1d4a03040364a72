//! What one attempt has and the one before had not.

use std::fmt;

use serde::{Deserialize, Serialize};
use stoke_api::Bytes;
use stoke_api::trainjob::{RestartEvery, Tuning};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// Another memory limit, and another promise where that is said.
    Memory {
        limit: Bytes,
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<Bytes>,
    },
    /// A /dev/shm of this size.
    Shm {
        size: Bytes,
    },
    /// So much local disk.
    Storage {
        size: Bytes,
    },
    /// A volume of this size for temporary files.
    Scratch {
        size: Bytes,
    },
    /// The micro-batch divided by this, gradients accumulated as many times as often.
    MicroBatch {
        divisor: u32,
    },
    ExpandableSegments {},
    /// Only these GPU types, of those that the job allows.
    GpuTypes {
        names: Vec<String>,
    },
    /// Not on these nodes, where there are others.
    AvoidNodes {
        names: Vec<String>,
    },
    /// Asked for a checkpoint and begun anew in time.
    Restart {
        every: RestartEvery,
    },
}

/// More nodes are not kept in mind: the oldest may be better by now.
const AVOIDED_MAX: usize = 16;

impl Change {
    /// Makes the tuning of the next attempt out of that of the last.
    pub fn apply(&self, tuning: &mut Tuning) {
        match self {
            Self::Memory { limit, request } => {
                tuning.memory = Some(*limit);
                tuning.memory_request = request.or(tuning.memory_request);
            }
            Self::Shm { size } => tuning.shm = Some(*size),
            Self::Storage { size } => tuning.storage = Some(*size),
            Self::Scratch { size } => tuning.scratch = Some(*size),
            Self::MicroBatch { divisor } => tuning.micro_batch_divisor = Some(*divisor),
            Self::ExpandableSegments {} => tuning.expandable_segments = true,
            Self::GpuTypes { names } => tuning.gpu_types.clone_from(names),
            Self::AvoidNodes { names } => {
                tuning.avoid_nodes.retain(|known| !names.contains(known));
                tuning.avoid_nodes.extend(names.iter().cloned());
                let excess = tuning.avoid_nodes.len().saturating_sub(AVOIDED_MAX);
                tuning.avoid_nodes.drain(..excess);
            }
            Self::Restart { every } => tuning.restart_every = Some(*every),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory {
                limit,
                request: None,
            } => write!(f, "a memory limit of {}", limit.human()),
            Self::Memory {
                limit,
                request: Some(request),
            } => {
                write!(
                    f,
                    "{} of memory promised, {} at most",
                    request.human(),
                    limit.human()
                )
            }
            Self::Shm { size } => write!(f, "a /dev/shm of {}", size.human()),
            Self::Storage { size } => write!(f, "{} of local disk", size.human()),
            Self::Scratch { size } => write!(f, "a volume of {} for temporary files", size.human()),
            Self::MicroBatch { divisor } => {
                write!(
                    f,
                    "a micro-batch of 1/{divisor} with {divisor} times the gradient accumulation"
                )
            }
            Self::ExpandableSegments {} => {
                f.write_str("expandable segments in PyTorch's allocator")
            }
            Self::GpuTypes { names } => write!(f, "GPUs with more memory: {}", names.join(" or ")),
            Self::AvoidNodes { names } => write!(f, "another node than {}", names.join(", ")),
            Self::Restart { every } => {
                f.write_str("a restart from its checkpoint every ")?;
                match every.steps {
                    Some(steps) => write!(f, "{steps} steps")?,
                    None => f.write_str(&span(every.seconds))?,
                }
                f.write_str(", before its memory is full")
            }
        }
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
