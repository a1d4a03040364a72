//! TrainJob: one training run, one pod or many, as a gang.

mod model;
mod retrying;
mod status;
mod tuning;
pub mod unsaved;

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use model::{Method, Model, Optimizer, Precision};
pub use retrying::{ByCause, FailureCause};
pub use status::{
    Attempt, Exit, GpuResource, Growing, Leaving, Outcome, Phase, Preemption, SavedCheckpoint,
    Sizing, TrainJobStatus, Waiting,
};
pub use tuning::{
    Finding, GRAD_ACCUM_SCALE, MICRO_BATCH_SCALE, RestartEvery, TORCH_ALLOCATOR, Tuning,
};

use crate::names::KUEUE_QUEUE_LABEL;
use crate::quantity::{Bytes, CpuMilli, GpuRequest, Span};

/// One training run: a command, run by one worker or by a gang of workers that start, fail and end together.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[kube(
    group = "stokehold.dev",
    version = "v1alpha1",
    kind = "TrainJob",
    namespaced,
    status = "TrainJobStatus",
    derive = "PartialEq",
    derive = "Default",
    shortname = "tj",
    category = "stokehold",
    doc = "One training run: a command, run by one worker or by a gang of workers that start, fail and end together.",
    selectable = ".spec.queue",
    printcolumn(
        name = "Phase",
        type_ = "string",
        json_path = ".status.phase",
        description = "What the job is doing."
    ),
    printcolumn(
        name = "Why",
        type_ = "string",
        json_path = ".status.reason",
        description = "Why it is doing that."
    ),
    printcolumn(
        name = "Workers",
        type_ = "string",
        json_path = ".status.ready",
        description = "Workers running, of all."
    ),
    printcolumn(
        name = "GPUs",
        type_ = "string",
        json_path = ".spec.gpus",
        description = "GPUs of each worker."
    ),
    printcolumn(
        name = "Attempt",
        type_ = "integer",
        json_path = ".status.attempt",
        description = "Which attempt this is."
    ),
    printcolumn(
        name = "Saved",
        type_ = "date",
        json_path = ".status.lastCheckpoint",
        description = "When its newest checkpoint was written."
    ),
    printcolumn(
        name = "Since",
        type_ = "date",
        json_path = ".status.phaseSince",
        description = "Since when it is in this phase."
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "When it was submitted."
    ),
    printcolumn(
        name = "Queue",
        type_ = "string",
        json_path = ".spec.queue",
        priority = "1",
        description = "The queue it waits in."
    ),
    printcolumn(
        name = "Priority",
        type_ = "string",
        json_path = ".spec.priority",
        priority = "1",
        description = "Who goes first."
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.message",
        priority = "1",
        description = "The reason in a sentence."
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TrainJobSpec {
    /// How workers find each other: `torch`, `mpi`, `tensorflow`, `jax`, or `plain` for a command that needs no one.
    #[serde(default)]
    pub framework: Framework,

    /// Pods in the gang. All of them run, or none does.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub workers: u32,

    /// Run with as few as `min` workers and grow to `max`. Beside it, `workers` is how many are wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,

    /// GPUs of each worker: `8`, a fraction of one (`"0.5"`), or a MIG profile (`"1g.10gb"`).
    #[serde(default)]
    pub gpus: GpuRequest,

    /// GPU models the job may run on, any of them: `a100-80g`, `h100`. Absent: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub gpu_types: Vec<String>,

    /// How near to each other the workers run, where it matters. Absent: as near as there is room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,

    /// CPUs of each worker. Absent: its GPUs' share of the node, else one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuMilli>,

    /// Container image. Required on a cluster; not used on a single machine, where the host's own tools run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,

    /// What every worker runs. With `framework: torch` it is started by torchrun, unless it already is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub command: Vec<String>,

    /// Directory the command starts in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub working_dir: Option<String>,

    /// Environment variables, as a container has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub env: Vec<EnvVar>,

    /// Processes each worker starts. Absent: one a GPU, else one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub processes_per_worker: Option<u32>,

    /// The queue to wait in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queue: Option<String>,

    /// `production` goes before `standard`, which goes before `experiment`.
    #[serde(default)]
    pub priority: Priority,

    /// Memory of each worker. What is absent is chosen for you, and the status says how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,

    /// What is trained, and how: a job whose model cannot fit its GPUs is told so before it starts. `stoke estimate` tells more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,

    /// Which runs are alike, for learning from them. Absent: those with the same image, command and shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub profile: Option<String>,

    /// Datasets, each at the path where the workers see it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub datasets: Vec<DatasetMount>,

    /// Where checkpoints are kept: a volume that outlives pods and attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,

    /// May it run on machines that can be taken away? `never`, `allowed` or `only`.
    #[serde(default)]
    pub spot: Spot,

    /// After so many attempts that ended because such a machine was taken away, only those that stay are used. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub spot_interruptions: Option<u32>,

    /// `pod` gives each worker its own address; `host` uses the node's, as RDMA and EFA want. Absent: what the cluster prefers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,

    /// How often a failed attempt is tried again.
    #[serde(default = "three")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,

    /// Of these, how many may be for one cause. A cause that is not named has no limit of its own. An interruption counts against nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_limits: Option<ByCause>,

    /// An attempt whose workers all do nothing for so long (no CPU time to speak of, no log line, no step told, and on a single machine no GPU
    /// at work) has failed. Absent: it runs on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hung_after: Option<Span>,

    /// How long the job may run, all attempts together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<Span>,

    /// How long the finished job is kept. Absent: until it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,

    /// True: stop the workers, keep the job and its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,

    /// Another controller that runs this job instead of Stokehold. Cannot be changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub managed_by: Option<String>,

    /// The way out: a PodTemplateSpec laid under every worker's pod. Its first container, or the one named `worker`, is the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

/// How workers find each other.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    Torch,
    Mpi,
    Tensorflow,
    Jax,
    #[default]
    Plain,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// The fewest workers the job can run with.
    #[schemars(range(min = 1, max = 4096))]
    pub min: u32,
    /// The most workers the job can use.
    #[schemars(range(min = 1, max = 4096))]
    pub max: u32,
}

/// How near to each other workers run. A level of the network is named by the key of the node label that tells it, as the cluster was
/// set up (`stoke operator --topology-label`); `kubernetes.io/hostname` is one node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
pub struct Topology {
    /// All workers run inside one domain of this level, or the job waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub required: Option<String>,
    /// All workers run inside one domain of this level where there is room, else in as few and as near ones as possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub preferred: Option<String>,
}

/// Who goes first.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    Experiment,
    #[default]
    Standard,
    Production,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
pub struct Memory {
    /// What a worker is promised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Bytes>,
    /// What a worker is stopped at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Bytes>,
    /// What a limit that is learned or raised may reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Bytes>,
    /// `burstable` promises less than the limit; `guaranteed` promises all of it.
    #[serde(default)]
    pub qos: Qos,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum Qos {
    #[default]
    Burstable,
    Guaranteed,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct DatasetMount {
    /// Name of a Dataset in the job's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Absolute path where workers see it, read-only.
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub path: String,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Absolute path where workers write checkpoints.
    #[schemars(length(min = 1, max = 4096), regex(pattern = r"^/"))]
    pub path: String,
    /// Size of the volume that holds them.
    #[serde(default = "ten_gib")]
    pub size: Bytes,
    /// How often the job means to write one; told to it as `STOKE_CHECKPOINT_EVERY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// How many to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: Option<u32>,
    /// Storage class of the volume. Absent: the cluster's default.
    #[serde(rename = "storageClass", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class: Option<String>,
    /// Who may mount the volume. `ReadWriteOnce`: one node, so that of several workers on a cluster only the first has it. `ReadWriteMany`: all
    /// workers, wherever they are. Absent: `ReadWriteOnce` for one worker, `ReadWriteMany` for several.
    #[serde(rename = "accessMode", skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,
    /// What becomes of the volume when the job is deleted: it goes too (`delete`), which is so where absent, or it stays for a job of the same
    /// name (`keep`). Read when the volume is made.
    #[serde(rename = "onDelete", skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<OnDelete>,
    /// A signal that the program has a handler for, and writes a checkpoint on: sent when one is wanted soon, beside the text in
    /// `STOKE_CHECKPOINT_REQUEST`. Absent: none is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<CheckpointSignal>,
    /// An object store that gets a copy of the newest, and that it is brought back from when the volume is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<Upload>,
}

/// Where copies of checkpoints go.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// `s3://bucket/path`, `gs://bucket/path`, `az://container/path`, or `file:///path` as the first worker sees it.
    #[schemars(
        length(min = 1, max = 2048),
        regex(pattern = r"^(s3|gs|az)://[^/@?#]+(/[^?#]*)?$|^file:///[^?#]*$")
    )]
    pub uri: String,
    /// A Secret in the job's namespace with the keys to it. Absent: requests are not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret: Option<String>,
    /// The server of an S3-compatible store: `https://minio.example.com:9000`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), regex(pattern = r"^https?://[^/@?#]+/?$"))]
    pub endpoint: Option<String>,
    /// What the copies go under. Jobs of a namespace that give the same name go on from each other's copies. Absent: the job's own, which
    /// no other job has, not even one of the same name that is made later.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 100),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub name: Option<String>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    ReadWriteOnce,
    ReadWriteMany,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum OnDelete {
    Delete,
    Keep,
}

impl Checkpoint {
    /// Whether the volume stays when the job is deleted.
    pub fn is_kept(&self) -> bool {
        self.on_delete == Some(OnDelete::Keep)
    }

    /// Whether only the first of so many workers has the volume, where they may be on several nodes.
    pub fn is_for_first_only(&self, workers: u32) -> bool {
        self.access_mode == Some(AccessMode::ReadWriteOnce) && workers > 1
    }
}

/// Those that mean nothing by themselves. SIGHUP is none of them: launchers such as torchrun take it for the end.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointSignal {
    #[serde(rename = "SIGUSR1")]
    Usr1,
    #[serde(rename = "SIGUSR2")]
    Usr2,
}

impl CheckpointSignal {
    pub const ALL: [Self; 2] = [Self::Usr1, Self::Usr2];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
        }
    }
}

fn ten_gib() -> Bytes {
    Bytes::gib(10)
}

/// May the job run on machines that can be taken away?
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum Spot {
    Never,
    #[default]
    Allowed,
    Only,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    Pod,
    Host,
}

/// A container's environment variable. `valueFrom` is as Kubernetes has it; it is checked when pods are made.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<Template>,
}

/// An object whose schema is Kubernetes' own and is kept out of ours, so that the CRD stays readable.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Default)]
#[serde(transparent)]
pub struct Template(pub BTreeMap<String, Value>);

impl JsonSchema for Template {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

impl TrainJobSpec {
    /// Processes of one worker: said, or one a GPU, or one.
    pub fn processes_per_worker(&self) -> u32 {
        self.processes_per_worker
            .unwrap_or_else(|| self.gpus.whole().max(1))
    }

    /// The most workers it may have at once.
    pub fn workers_max(&self) -> u32 {
        self.elastic.map_or(self.workers, |elastic| elastic.max)
    }

    /// Processes of the whole gang.
    pub fn world_size(&self) -> u32 {
        self.workers.saturating_mul(self.processes_per_worker())
    }
}

impl TrainJob {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("default")
    }

    /// The queue it waits in; Kueue's label is read where the spec says nothing.
    pub fn queue(&self) -> Option<&str> {
        let label = || {
            self.metadata
                .labels
                .as_ref()?
                .get(KUEUE_QUEUE_LABEL)
                .map(String::as_str)
        };
        self.spec.queue.as_deref().or_else(label)
    }

    /// Complete or failed: nothing more will run.
    pub fn is_finished(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|status| status.phase.is_final())
    }
}
