//! Queue: who may use how much.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who may use how many GPUs: what is guaranteed, what may be borrowed on top, and who goes first.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "stokehold.dev",
    version = "v1alpha1",
    kind = "Queue",
    status = "QueueStatus",
    derive = "PartialEq",
    shortname = "sq",
    category = "stokehold",
    doc = "Who may use how many GPUs: what is guaranteed, what may be borrowed on top, and who goes first.",
    printcolumn(
        name = "Parent",
        type_ = "string",
        json_path = ".spec.parent",
        description = "The queue above it."
    ),
    printcolumn(
        name = "Weight",
        type_ = "integer",
        json_path = ".spec.weight",
        description = "Its share of what is left over."
    ),
    printcolumn(
        name = "Waiting",
        type_ = "integer",
        json_path = ".status.waiting",
        description = "Jobs that wait."
    ),
    printcolumn(
        name = "Running",
        type_ = "integer",
        json_path = ".status.running",
        description = "Jobs that run."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "When it was made."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// The queue above it. Absent: it is at the top.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub parent: Option<String>,
    /// Its share of what is left over, against its siblings.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
    /// GPUs it always gets, by GPU type; `any` for those of no type in particular.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub guaranteed: BTreeMap<String, GpuCount>,
    /// GPUs it never exceeds, by GPU type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ceiling: BTreeMap<String, GpuCount>,
    /// May it use what others do not use of their guarantee?
    #[serde(default = "yes")]
    pub borrow: bool,
}

/// A number of whole GPUs.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct GpuCount(#[schemars(range(min = 0, max = 1_000_000))] pub u32);

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(default)]
pub struct QueueStatus {
    /// Jobs that wait in it.
    pub waiting: u32,
    /// Jobs of it that run.
    pub running: u32,
}
