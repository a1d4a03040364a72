//! A worker that may soon need more memory than it may have, as its node says it on the pod.

use serde::{Deserialize, Serialize};

/// The value of [`crate::names::MEMORY_RISK_ANNOTATION`]. The node removes it when the danger is over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryRisk {
    /// When it began, as RFC 3339.
    pub since: String,
    /// What was done about it last, and why: a sentence with its figures.
    pub why: String,
    pub stage: Stage,
    /// Unreclaimable memory in use when that was said.
    pub used_bytes: u64,
    /// The limit in force then.
    pub limit_bytes: u64,
    /// The limit it started with.
    pub first_limit_bytes: u64,
    /// When it was last asked for a checkpoint because of it, as RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_asked_at: Option<String>,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// It grows in a way that will need more than it has; there is time.
    Foreseen,
    /// It was given more, and there is more to give.
    #[default]
    Raised,
    /// It cannot be given more, or leaks and has done the steps of its schedule; it was asked to save its work.
    AtTheEnd,
    /// The node itself runs out; whoever is harmed least should yield.
    NodeShort,
}

impl MemoryRisk {
    /// Nonsense is no risk: whoever may write annotations may have written it.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}
