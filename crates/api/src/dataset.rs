//! Dataset: where data lives and where it is warm.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Bytes;

/// Data that jobs read: where it comes from, how much it is, and on which nodes it already lies.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "stokehold.dev",
    version = "v1alpha1",
    kind = "Dataset",
    namespaced,
    status = "DatasetStatus",
    derive = "PartialEq",
    shortname = "ds",
    category = "stokehold",
    doc = "Data that jobs read: where it comes from, how much it is, and on which nodes it already lies.",
    printcolumn(
        name = "URI",
        type_ = "string",
        json_path = ".spec.uri",
        description = "Where it comes from."
    ),
    printcolumn(
        name = "Claim",
        type_ = "string",
        json_path = ".spec.claim",
        description = "The volume claim it lies on."
    ),
    printcolumn(
        name = "Size",
        type_ = "string",
        json_path = ".status.size",
        description = "How much it is."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "When it was made."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct DatasetSpec {
    /// Where it comes from: `file:///data/imagenet`, a directory every node sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^file:///"))]
    pub uri: Option<String>,
    /// A PersistentVolumeClaim in the same namespace that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DatasetStatus {
    /// How much it is, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Nodes that hold it already.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm_nodes: Vec<String>,
}
