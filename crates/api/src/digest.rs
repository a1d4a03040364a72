//! What a pod's containers used of memory from their start to their end: a few hundred bytes each, small enough for an
//! annotation, enough to tell what the next run needs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The value of [`crate::names::MEMORY_DIGEST_ANNOTATION`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodDigest {
    /// By the container's name; the last run of each.
    pub containers: BTreeMap<String, ContainerDigest>,
}

/// One run of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerDigest {
    /// The runtime's id of the container that this speaks of.
    pub id: String,
    pub samples: u64,
    /// From the first sample to the last.
    pub seconds: u64,
    /// The most it used, page cache included; the kernel's own count where it has one, which misses no spike.
    pub peak_bytes: u64,
    /// The most without inactive page cache, as a kubelet counts.
    pub peak_working_set_bytes: u64,
    /// The most of what cannot be given back under pressure: anonymous, shared and kernel memory.
    pub peak_unreclaimable_bytes: u64,
    /// The limit at the end; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Processes that the kernel killed at the limit, as far as it was seen.
    pub oom_kills: u64,
    /// How often the limit was reached, reclaim included.
    pub limit_events: u64,
    pub series: Series,
}

/// The working set over the whole run: the highest of each interval, in MiB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Series {
    pub every_seconds: u64,
    pub mib: Vec<u64>,
}

impl PodDigest {
    /// Nonsense is no digest: whoever may write annotations may have written it.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}
