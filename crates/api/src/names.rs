//! Labels, annotations, resources and other names that more than one crate must spell alike.

use crate::trainjob::Priority;

pub const GROUP: &str = "stokehold.dev";
pub const VERSION: &str = "v1alpha1";

/// On every pod of a job: the job's name.
pub const JOB_LABEL: &str = "stokehold.dev/job";
/// On every pod of a job: which attempt it belongs to, from 1.
pub const ATTEMPT_LABEL: &str = "stokehold.dev/attempt";
/// On every pod of a job: its place in the gang, from 0.
pub const RANK_LABEL: &str = "stokehold.dev/rank";
/// Kueue's label, read as the queue where `spec.queue` is absent.
pub const KUEUE_QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";

/// On a pod: the GPUs it was given on its node, by index, separated by commas. Who places the pod may choose them; else the node does.
pub const GPU_DEVICES_ANNOTATION: &str = "stokehold.dev/gpu-devices";
/// On a pod of a job: after how many seconds without a sign of life it is held to be hung.
pub const HUNG_AFTER_ANNOTATION: &str = "stokehold.dev/hung-after";
/// On a pod of a job on a cluster: that it has done nothing for that long, as far as its node's agent sees; absent while it does something.
pub const IDLE_ANNOTATION: &str = "stokehold.dev/idle";
/// On a pod: what it uses now, as JSON. Written by the node, at most every few seconds.
pub const USAGE_ANNOTATION: &str = "stokehold.dev/usage";
/// On a pod of a job: what its containers used of memory from start to end, as JSON ([`crate::digest::PodDigest`]). Written by
/// the node's agent when a container ends.
pub const MEMORY_DIGEST_ANNOTATION: &str = "stokehold.dev/memory-digest";
/// On a pod of a job: what may be done with its memory limit while it runs, as JSON ([`crate::contract::MemoryTerms`]). Without it the
/// limit stays as it is.
pub const MEMORY_TERMS_ANNOTATION: &str = "stokehold.dev/memory-terms";
/// On a pod of a job: it may soon need more memory than it may have, as JSON ([`crate::risk::MemoryRisk`]). Written by the node, and
/// removed when the danger is over.
pub const MEMORY_RISK_ANNOTATION: &str = "stokehold.dev/memory-risk";
/// On a pod of a job: someone wants a checkpoint soon. The worker sees the text in a file ([`crate::contract`]).
pub const CHECKPOINT_REQUEST_ANNOTATION: &str = "stokehold.dev/checkpoint-request";
/// On a pod of a job: when its newest checkpoint was written, as RFC 3339. Written by the node.
pub const LAST_CHECKPOINT_ANNOTATION: &str = "stokehold.dev/last-checkpoint";
/// On a pod of a job: its newest checkpoint, as JSON ([`crate::contract::checkpoints::Saved`]). Written by the node.
pub const SAVED_ANNOTATION: &str = "stokehold.dev/saved";
/// On a pod: how far its node is with its data, as JSON ([`crate::dataset::Staging`]). Written where a kubelet writes the pod's status.
pub const STAGING_ANNOTATION: &str = "stokehold.dev/staging";
/// By whom, as the API server keeps it with the time.
pub const STAGING_MANAGER: &str = "stokehold-data";
/// On a node: its GPUs are made up.
pub const GPU_SIMULATED_LABEL: &str = "stokehold.dev/gpu-simulated";

/// Where a pod finds the `stoke` binary that an init container put there.
pub const WORKER_BIN_DIR: &str = "/opt/stokehold/bin";

/// The PriorityClasses of the chart; they never preempt by themselves.
pub fn priority_class(priority: Priority) -> &'static str {
    match priority {
        Priority::Production => "stokehold-production",
        Priority::Standard => "stokehold-standard",
        Priority::Experiment => "stokehold-experiment",
    }
}

/// As NVIDIA's feature discovery labels nodes.
pub const GPU_PRODUCT_LABEL: &str = "nvidia.com/gpu.product";
/// `none`, or how one GPU is shared out as several.
pub const GPU_SHARING_LABEL: &str = "nvidia.com/gpu.sharing-strategy";
pub const GPU_COUNT_LABEL: &str = "nvidia.com/gpu.count";
/// In MiB, for one GPU.
pub const GPU_MEMORY_LABEL: &str = "nvidia.com/gpu.memory";
/// Into how many one GPU is shared out.
pub const GPU_REPLICAS_LABEL: &str = "nvidia.com/gpu.replicas";
/// What a pod requests and a node has.
pub const GPU_RESOURCE: &str = "nvidia.com/gpu";
/// The same where GPUs are shared out in time and the device plugin was told to say so.
pub const GPU_SHARED_RESOURCE: &str = "nvidia.com/gpu.shared";
/// Followed by a MIG profile: `nvidia.com/mig-1g.10gb`.
pub const MIG_RESOURCE_PREFIX: &str = "nvidia.com/mig-";
/// Thousandths of a GPU. Only a node whose devices we choose ourselves has it: a pod that asks for fewer than a thousand shares one
/// GPU with others that do.
pub const GPU_MILLI_RESOURCE: &str = "stokehold.dev/gpu-milli";

/// The innermost level of every topology: one node.
pub const HOST_LEVEL: &str = "kubernetes.io/hostname";
/// In a queue's guarantee and ceiling: GPUs of whatever type, all together.
pub const ANY_GPU_TYPE: &str = "any";

/// Node condition: can memory limits be enforced, and by what.
pub const MEMORY_LIMITS_ENFORCED: &str = "MemoryLimitsEnforced";

/// The container that runs a job's command in each of its pods.
pub const WORKER_CONTAINER: &str = "worker";
/// What a pod's image says where the host's own tools are used.
pub const HOST_IMAGE: &str = "host";

/// `<job>-<attempt>-<rank>`: the attempt is in the name, so that a pod that will not die cannot block the next attempt.
pub fn pod_name(job: &str, attempt: u32, rank: u32) -> String {
    format!("{job}-{attempt}-{rank}")
}

/// The name a worker has for others, in every attempt: `<job>-<rank>`.
pub fn host_name(job: &str, rank: u32) -> String {
    format!("{job}-{rank}")
}

/// The claim that holds a job's checkpoints.
pub fn checkpoint_claim(job: &str) -> String {
    format!("{job}-checkpoint")
}

/// The secret that the pods of an MPI job know each other by; its one key is [`MPI_TOKEN_KEY`]. No other job ever has the same, so
/// that nobody needs to read it to know whose it is.
pub fn mpi_secret(job: &str, uid: &str) -> String {
    let distinct = uid.split('-').next().unwrap_or_default();
    format!("{job}-mpi-{distinct}")
}

pub const MPI_TOKEN_KEY: &str = "token";

/// What `spec.managedBy` says where it means us; any other value means hands off.
pub const MANAGED_BY: &str = "stokehold.dev/stoke";

/// Variables that every worker of every framework has.
pub mod env {
    pub const JOB: &str = "STOKE_JOB";
    /// From 1.
    pub const ATTEMPT: &str = "STOKE_ATTEMPT";
    /// The worker's place in the gang, from 0.
    pub const RANK: &str = "STOKE_RANK";
    /// Workers in the gang.
    pub const WORKERS: &str = "STOKE_WORKERS";
    /// Of a worker that shares its GPU: the part of it that is its own, such as `0.5`. Nothing else keeps it to that.
    pub const GPU_SHARE: &str = "STOKE_GPU_SHARE";
    /// Where checkpoints are written.
    pub const CHECKPOINT_DIR: &str = "STOKE_CHECKPOINT_DIR";
    /// The newest complete checkpoint when the attempt began; absent where there was none.
    pub const RESUME_FROM: &str = "STOKE_RESUME_FROM";
    /// How often they are meant to be written, in seconds.
    pub const CHECKPOINT_EVERY: &str = "STOKE_CHECKPOINT_EVERY";
    /// How many are meant to be kept.
    pub const CHECKPOINT_KEEP: &str = "STOKE_CHECKPOINT_KEEP";

    /// A file that is empty until someone wants a checkpoint soon ([`crate::contract`]).
    pub const CHECKPOINT_REQUEST: &str = "STOKE_CHECKPOINT_REQUEST";
    /// A file in which the program may say where it is ([`crate::contract`]).
    pub const STATUS_FILE: &str = "STOKE_STATUS_FILE";

    /// Of an MPI gang: `name=address:port,...` in the order of ranks, the launcher first.
    pub const MPI_HOSTS: &str = "STOKE_MPI_HOSTS";
    /// `address:port` that this worker listens on.
    pub const MPI_LISTEN: &str = "STOKE_MPI_LISTEN";
    /// What the pods of the gang know each other by.
    pub const MPI_TOKEN: &str = "STOKE_MPI_TOKEN";
}

/// The longest name a job may have, so that `<job>-<attempt>-<rank>` is still a valid host name.
pub const JOB_NAME_LENGTH_MAX: usize = 50;

/// The driver of volumes that a node fills with a dataset before it shows them; the dataset is named by the attribute.
pub const DATA_DRIVER: &str = "data.stokehold.dev";
pub const DATA_DRIVER_DATASET: &str = "dataset";
/// Why a container waits whose node is copying a dataset. That takes as long as it takes.
pub const STAGING_REASON: &str = "StagingDataset";
/// The same when all of it is there.
pub const STAGED_REASON: &str = "DatasetStaged";
/// The same where that failed. Its node tries again.
pub const STAGING_FAILED_REASON: &str = "StagingFailed";
