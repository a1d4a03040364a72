//! How often a job is tried again, by what its attempts died of.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number for each thing that an attempt can die of by its own doing.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ByCause {
    /// Host memory: killed at its limit, refused an allocation, a full /dev/shm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u32>,
    /// A GPU's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_memory: Option<u32>,
    /// Local disk, or the volume of its checkpoints, was full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<u32>,
    /// A worker could not be started anywhere: no such image, no such Secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// The program ended with an error that is none of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<u32>,
    /// It did nothing for longer than `hungAfter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hung: Option<u32>,
}

/// What an attempt died of by its own doing, as coarse as a person who limits retries thinks of it.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(rename_all = "camelCase")]
pub enum FailureCause {
    Memory,
    GpuMemory,
    Storage,
    Start,
    Program,
    Hung,
}

impl FailureCause {
    pub const ALL: [Self; 6] = [
        Self::Memory,
        Self::GpuMemory,
        Self::Storage,
        Self::Start,
        Self::Program,
        Self::Hung,
    ];
}

/// The key of [`ByCause`].
impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::GpuMemory => "gpuMemory",
            Self::Storage => "storage",
            Self::Start => "start",
            Self::Program => "program",
            Self::Hung => "hung",
        })
    }
}

impl ByCause {
    pub fn get(&self, cause: FailureCause) -> Option<u32> {
        match cause {
            FailureCause::Memory => self.memory,
            FailureCause::GpuMemory => self.gpu_memory,
            FailureCause::Storage => self.storage,
            FailureCause::Start => self.start,
            FailureCause::Program => self.program,
            FailureCause::Hung => self.hung,
        }
    }

    /// One more of this.
    pub fn count(&mut self, cause: FailureCause) {
        let field = match cause {
            FailureCause::Memory => &mut self.memory,
            FailureCause::GpuMemory => &mut self.gpu_memory,
            FailureCause::Storage => &mut self.storage,
            FailureCause::Start => &mut self.start,
            FailureCause::Program => &mut self.program,
            FailureCause::Hung => &mut self.hung,
        };
        *field = Some(field.unwrap_or(0).saturating_add(1));
    }

    /// Those that are said, in a fixed order.
    pub fn said(&self) -> impl Iterator<Item = (FailureCause, u32)> {
        let all = FailureCause::ALL.into_iter();
        all.filter_map(|cause| Some((cause, self.get(cause)?)))
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_cause_is_a_key_of_its_own() {
        for cause in FailureCause::ALL {
            let mut counts = ByCause::default();
            counts.count(cause);
            counts.count(cause);
            let written = serde_json::to_value(counts).expect("JSON");
            assert_eq!(written, json!({cause.to_string(): 2}));
            assert_eq!(
                serde_json::to_value(cause).expect("JSON"),
                json!(cause.to_string())
            );
            assert_eq!(counts.said().collect::<Vec<_>>(), [(cause, 2)]);
        }
    }
}
