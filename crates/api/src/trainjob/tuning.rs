//! What attempts learn from each other: what the last one died of, and what the next one gets because of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Bytes;

/// What an attempt runs with that its spec does not say. The next attempt has it too, and what was changed on top.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Tuning {
    /// Memory limit of each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// What each worker is promised at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_request: Option<Bytes>,
    /// Size of each worker's /dev/shm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<Bytes>,
    /// Local disk each worker may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Bytes>,
    /// Size of the volume that takes temporary files instead of the node's disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scratch: Option<Bytes>,
    /// The micro-batch is divided by this and gradients are accumulated as many times as often; a power of two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub micro_batch_divisor: Option<u32>,
    /// PyTorch's allocator grows its segments, so that free memory is not in pieces.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expandable_segments: bool,
    /// The GPU types it goes on with, of those that the job allows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_types: Vec<String>,
    /// Nodes that it is kept away from, where it can be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoid_nodes: Vec<String>,
    /// How often it is asked for a checkpoint and begun anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_every: Option<RestartEvery>,
}

/// When a job that leaks begins anew from its checkpoint: by its steps where they are said, which its nodes count, else by the
/// clock. Where nothing came of the steps in twice the time, by the clock too.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartEvery {
    /// Seconds of running.
    pub seconds: u64,
    /// Steps, where the job tells them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

/// A micro-batch is told to the job as this part of what it would take.
pub const MICRO_BATCH_SCALE: &str = "STOKE_MICRO_BATCH_SCALE";
/// And this many times as many of them make a step, so that it learns the same.
pub const GRAD_ACCUM_SCALE: &str = "STOKE_GRAD_ACCUM_SCALE";
/// Options of PyTorch's allocator, separated by commas.
pub const TORCH_ALLOCATOR: &str = "PYTORCH_CUDA_ALLOC_CONF";

impl Tuning {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The variables that tell a worker. Of [`TORCH_ALLOCATOR`] it is an option to add to what the job itself may say there.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let mut env = Vec::new();
        if let Some(divisor) = self.micro_batch_divisor {
            // One part of a power of two has a short decimal that is exact.
            env.push((
                MICRO_BATCH_SCALE,
                format!("{}", 1.0 / f64::from(divisor.max(1))),
            ));
            env.push((GRAD_ACCUM_SCALE, divisor.max(1).to_string()));
        }
        if self.expandable_segments {
            env.push((TORCH_ALLOCATOR, "expandable_segments:True".to_owned()));
        }
        env
    }
}

/// What an attempt died of, as far as it was found out.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Finding {
    /// One PascalCase word: `ContainerLimit`, `GpuOutOfMemory`.
    pub cause: String,
    /// Of GPU memory: `Fragmentation`, `CoTenant`, `TooBig`, `Leak` or `Plain`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shape: String,
    /// `Certain`, `Likely` or `Possible`.
    pub confidence: String,
    /// The allocation that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried: Option<Bytes>,
    /// What was allocated when it failed: GPU memory, or the most of host memory that the worker used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<Bytes>,
    /// The error that ended the program, as it printed it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// What tells so, as it was found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotes: Vec<String>,
    /// What helps, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_and_accumulation_are_exactly_one_together() {
        for power in 0..=10 {
            let tuning = Tuning {
                micro_batch_divisor: Some(1 << power),
                ..Tuning::default()
            };
            let env = tuning.env();
            let scale: f64 = env[0].1.parse().expect("a number");
            let accumulation: f64 = env[1].1.parse().expect("a number");
            assert!((scale * accumulation).to_bits() == 1_f64.to_bits());
        }
        let tuning = Tuning {
            micro_batch_divisor: Some(4),
            expandable_segments: true,
            ..Tuning::default()
        };
        assert_eq!(
            tuning.env(),
            [
                (MICRO_BATCH_SCALE, "0.25".to_owned()),
                (GRAD_ACCUM_SCALE, "4".to_owned()),
                (TORCH_ALLOCATOR, "expandable_segments:True".to_owned()),
            ]
        );
        assert_eq!(Tuning::default().env(), []);
    }
}
