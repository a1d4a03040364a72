//! JobProfile: what runs of one fingerprint used.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::quantity::Bytes;

/// What the runs of one kind of job used, so that the next one can be given what it needs.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "stokehold.dev",
    version = "v1alpha1",
    kind = "JobProfile",
    namespaced,
    derive = "PartialEq",
    shortname = "jp",
    category = "stokehold",
    doc = "What the runs of one kind of job used, so that the next one can be given what it needs.",
    printcolumn(
        name = "Runs",
        type_ = "integer",
        json_path = ".spec.runs",
        description = "Runs it knows of."
    ),
    printcolumn(
        name = "Peak",
        type_ = "string",
        json_path = ".spec.peak",
        description = "The most memory a worker used."
    ),
    printcolumn(
        name = "Last-Run",
        type_ = "date",
        json_path = ".spec.lastRun",
        description = "When the last of them ended."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct JobProfileSpec {
    /// What makes runs alike, as a hash that is also in the object's name.
    #[schemars(length(min = 1, max = 63))]
    pub fingerprint: String,
    /// Runs it knows of.
    #[serde(default)]
    pub runs: u32,
    /// The most memory a worker of any run used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Bytes>,
    /// When the last run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Time>,
}
