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
    /// Where it comes from. `file:///data/imagenet` is a directory every node sees; `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix` and `https://host/file` are copied once to each node that needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 4096),
        regex(pattern = r"^(file:///|(s3|gs|az)://[^/@]+(/|$)|https?://[^/@?#]+/[^?#]+$)")
    )]
    pub uri: Option<String>,
    /// A Secret in the same namespace with the keys of the object store: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and so on. Without
    /// one, requests are not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret: Option<String>,
    /// Where the object store is, if it is not the usual one: `https://minio.example.com:9000`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^https?://[^/@?#]+/?$"))]
    pub endpoint: Option<String>,
    /// A PersistentVolumeClaim in the same namespace that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub claim: Option<String>,
    /// An NFS export that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs: Option<Nfs>,
}

/// An export of an NFS server.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase")]
pub struct Nfs {
    /// Its name or address.
    #[schemars(length(min = 1, max = 253))]
    pub server: String,
    /// The exported path.
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub path: String,
}

impl DatasetSpec {
    /// What is copied to a node before a job reads it; everything else is mounted as it is.
    pub fn staged_uri(&self) -> Option<&str> {
        self.uri
            .as_deref()
            .filter(|uri| !uri.starts_with("file://"))
    }
}

/// How far a node is with the data of a pod, as it says on the pod.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
pub struct Staging {
    /// One of [`crate::names::STAGING_REASON`], [`crate::names::STAGING_FAILED_REASON`] and [`crate::names::STAGED_REASON`].
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Staging {
    /// Whoever may annotate a pod may have written anything, and as much of it as they liked.
    const LENGTH_MAX: usize = 4096;

    pub fn parse(text: &str) -> Option<Self> {
        (text.len() <= Self::LENGTH_MAX)
            .then(|| serde_json::from_str(text).ok())
            .flatten()
    }

    /// As it is written on a pod.
    pub fn text(reason: &str, message: &str) -> String {
        // What is too long would not be read; most of it says enough.
        let message: String = message.chars().take(1000).collect();
        serde_json::json!({"reason": reason, "message": message}).to_string()
    }
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct DatasetStatus {
    /// How much it is, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// How many files it has, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<i64>,
    /// Why it could not be copied the last time that was tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Nodes that hold it already.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warm_nodes: Vec<String>,
}
