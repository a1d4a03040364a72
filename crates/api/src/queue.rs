//! Queue: who may use how much.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::GpuAmount;

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
        name = "GPUs",
        type_ = "string",
        json_path = ".status.use",
        description = "GPUs in use, of those guaranteed."
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
        name = "Usable",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Usable\")].status",
        description = "Whether jobs may start from it."
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
    /// GPUs it gets whenever it wants them, by GPU type as in a job's `gpuTypes`; `any` for those of no type in particular.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub guaranteed: BTreeMap<String, GpuCount>,
    /// GPUs it never exceeds, by GPU type; `any` for all types together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub ceiling: BTreeMap<String, GpuCount>,
    /// May it use what others do not use of their guarantee? They get it back when they want it. Production jobs never borrow.
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

/// What a Queue tells about itself. Written only by the controller.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStatus {
    /// Jobs that wait in it.
    pub waiting: u32,
    /// Jobs of it that run.
    pub running: u32,
    /// GPUs in use, of those guaranteed, all types together: `6.5/8`.
    #[serde(rename = "use", skip_serializing_if = "String::is_empty")]
    pub in_use: String,
    /// GPUs of it and of the queues below it, by the types that its guarantee and ceiling name; `any` is all types together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, QueueGpus>,
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// At most one of each type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a queue uses of one type of GPU, against what it may.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(default)]
pub struct QueueGpus {
    /// In use now: `6.5`.
    pub used: GpuAmount,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<GpuCount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<GpuCount>,
}
