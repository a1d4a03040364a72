//! What a pod's containers used of memory from their start to their end: a few kilobytes each, small enough for an annotation,
//! enough to tell what the next run needs. How samples become this, and several of these one, is `stoke-memory`'s to say.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The value of [`crate::names::MEMORY_DIGEST_ANNOTATION`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodDigest {
    /// By the container's name; the last run of each.
    pub containers: BTreeMap<String, ContainerDigest>,
    /// What the kernel's log says of processes of the pod that it killed for want of memory, where its node could read that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernel: Vec<String>,
}

/// One run of one container, or several runs taken together.
///
/// "Unreclaimable" is what the kernel cannot take back under pressure: anonymous, shared and kernel memory. It is what must fit below
/// the limit; page cache makes room by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerDigest {
    /// The runtime's id of the container that this speaks of.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    pub samples: u64,
    /// From the first sample to the last.
    pub seconds: u64,
    /// The most it used, page cache included; the kernel's own count where it has one, which misses no spike.
    pub peak_bytes: u64,
    /// The most without inactive page cache, as a kubelet counts.
    pub peak_working_set_bytes: u64,
    /// The most of what is unreclaimable, spikes between two samples included where the kernel counts them.
    pub peak_unreclaimable_bytes: u64,
    /// Half of the time it used less unreclaimable memory than this, half of the time more.
    pub median_bytes: u64,
    /// The most of shared memory, /dev/shm included.
    pub shm_peak_bytes: u64,
    /// The most of the node's local disk; absent where nobody measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_peak_bytes: Option<u64>,
    /// How large its input is, as the job said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<u64>,
    /// The limit at the end; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// How often the limit was raised while it ran.
    pub raises: u32,
    /// It was killed at its limit: it would have used more than its peak.
    pub oom_killed: bool,
    /// Processes that the kernel killed at the limit, as far as it was seen.
    pub oom_kills: u64,
    /// How often the limit was reached, reclaim included.
    pub limit_events: u64,
    /// Time in which some process waited for memory; absent where the kernel does not count it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stalled_seconds: Option<u64>,
    /// How long it used how much of unreclaimable memory.
    pub levels: Levels,
    pub series: Series,
    /// By name: as the job said, or as the shape suggests.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub phases: BTreeMap<String, PhaseDigest>,
    /// The training steps that it told of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Steps>,
    /// How its unreclaimable memory grew after its start; absent after a run too short to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope: Option<Slope>,
    /// By the device's id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, GpuDigest>,
}

/// Unreclaimable memory over the whole run: the highest of each interval, in MiB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Series {
    pub every_seconds: u64,
    pub mib: Vec<u64>,
}

/// A histogram: how long an amount of memory was between two bounds. Each doubling of the amount is cut into `2^bits` equal parts;
/// the more there is to hold, the fewer bits. The two lists go together, in ascending order of amounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Levels {
    pub bits: u8,
    pub parts: Vec<u16>,
    pub millis: Vec<u64>,
}

/// What was used in one phase of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseDigest {
    pub seconds: u64,
    /// Unreclaimable, as everything here.
    pub peak_bytes: u64,
    pub median_bytes: u64,
    pub levels: Levels,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Steps {
    pub first: u64,
    pub last: u64,
    /// Between the two.
    pub seconds: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Slope {
    pub bytes_per_hour: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_step: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuDigest {
    pub peak_bytes: u64,
    pub median_bytes: u64,
    pub levels: Levels,
}

impl PodDigest {
    /// Nonsense is no digest: whoever may write annotations may have written it.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl ContainerDigest {
    /// The least limit that this run shows to be needed. Who was killed at the limit needed more than it, though the last sample may
    /// be well below.
    pub fn needed_bytes(&self) -> u64 {
        let killed_at = self.limit_bytes.filter(|_| self.oom_killed).unwrap_or(0);
        self.peak_unreclaimable_bytes.max(killed_at)
    }
}
