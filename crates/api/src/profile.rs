//! JobProfile: what runs of one fingerprint used.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::ContainerDigest;
use crate::quantity::Bytes;
use crate::record::JobRecord;

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
    /// How what follows is to be read. A profile of another version is left alone and not learned from.
    #[serde(default)]
    pub version: u32,
    /// What makes runs alike, as a hash that is also in the object's name.
    #[schemars(length(min = 1, max = 63))]
    pub fingerprint: String,
    /// The same for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Runs it has learned from, those that are kept no more included.
    #[serde(default)]
    pub runs: u32,
    /// The most memory a worker of any run used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Bytes>,
    /// When the last run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Time>,
    /// All runs taken together: how long how much was used, and in which phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<ContainerDigest>,
    /// The latest runs, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 400))]
    pub history: Vec<Run>,
    /// How the latest jobs went, oldest first; `stoke history` shows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub jobs: Vec<JobRecord>,
}

/// What is written to [`JobProfileSpec::version`].
pub const PROFILE_VERSION: u32 = 1;
/// Runs that a profile keeps: enough to see a tail, and some tens of kilobytes.
pub const RUNS_KEPT: usize = 400;

/// What one attempt of a job used: of its workers, whatever was the most.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Run {
    /// Which attempt of which job it was: it is learned once.
    pub key: String,
    /// When it ended, in seconds of Unix time.
    pub at: u64,
    /// How long it ran.
    pub seconds: u64,
    /// How much it read, where it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Bytes>,
    /// The most memory that a worker used and could not have given back.
    pub peak: Bytes,
    /// What a worker used half of the time.
    pub median: Bytes,
    /// It was killed at its limit: it would have used more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub censored: bool,
    /// The most local disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Bytes>,
    /// The most of /dev/shm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<Bytes>,
    /// The most memory of one GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Bytes>,
}

impl Run {
    /// Another worker of the same attempt. Joining one twice changes nothing, and the order does not matter.
    pub fn join(&mut self, other: &Self) {
        // A worker that was killed says least of what it needs, unless it had the most.
        self.censored = match self.peak.cmp(&other.peak) {
            Ordering::Less => other.censored,
            Ordering::Equal => self.censored || other.censored,
            Ordering::Greater => self.censored,
        };
        self.at = self.at.max(other.at);
        self.seconds = self.seconds.max(other.seconds);
        self.input = self.input.max(other.input);
        self.peak = self.peak.max(other.peak);
        self.median = self.median.max(other.median);
        self.storage = self.storage.max(other.storage);
        self.shm = self.shm.max(other.shm);
        self.gpu = self.gpu.max(other.gpu);
    }
}
