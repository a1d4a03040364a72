//! What the node and a pod's shim say to each other: the files `shim.json` and `status.json`, and the lines on `shim.sock`.
//!
//! The shim of a pod may be older than the engine that talks to it, because a training outlives an upgrade. So every document
//! carries a version, unknown fields are ignored and new fields have defaults.
//!
//! Invariant: a status is on disk before anyone is told of it. Who missed the telling reads the file and knows as much.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupSpec, MemorySample};

/// Version of the documents in this module.
pub const VERSION: u32 = 1;

/// Reasons of waiting and ended containers, as a kubelet spells them.
pub mod reason {
    pub const COMPLETED: &str = "Completed";
    pub const CONTAINER_CREATING: &str = "ContainerCreating";
    pub const CONTAINER_STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
    pub const ERROR: &str = "Error";
    pub const OOM_KILLED: &str = "OOMKilled";
    pub const POD_INITIALIZING: &str = "PodInitializing";
    pub const START_ERROR: &str = "StartError";
}

/// What a `Stop` gives as its reason when the whole node goes down.
pub const SHUTDOWN: &str = "Shutdown";

/// All that a shim needs to run one pod. Written to `shim.json` before the shim starts, never changed afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimSpec {
    pub version: u32,
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Set in a UTS namespace of the container's own where the machine permits, otherwise the host's name stays.
    pub hostname: String,
    pub restart_policy: RestartPolicy,
    /// The pod's own cgroup; absent where the machine has none to give. Then the shim itself watches the memory of
    /// containers with a limit and kills those that exceed it, also while the engine is down.
    #[serde(default)]
    pub cgroup: Option<CgroupSpec>,
    /// Memory-backed volumes. They live in the shim's mount namespace: mounted before the first container starts, gone with the shim.
    #[serde(default)]
    pub tmpfs: Vec<Tmpfs>,
    #[serde(default)]
    pub init: Vec<ContainerSpec>,
    pub containers: Vec<ContainerSpec>,
    /// A log file is rotated when it is about to exceed this.
    pub log_max_bytes: u64,
    /// How many files one run of a container may have, the current one included.
    pub log_max_files: u32,
    #[serde(default)]
    pub backoff: Backoff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// How long a container that keeps ending is held back: the first restart is immediate, then `initial`, doubling to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backoff {
    pub initial_ms: u64,
    pub max_ms: u64,
}

impl Default for Backoff {
    /// A kubelet's.
    fn default() -> Self {
        Self {
            initial_ms: 10_000,
            max_ms: 300_000,
        }
    }
}

/// A tmpfs mounted at `path`, an existing directory (a volume's directory below the pod's).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tmpfs {
    pub path: PathBuf,
    /// Absent: the kernel's default, half of the machine's memory.
    #[serde(default)]
    pub size_bytes: Option<u64>,
}

/// One container: a process of the host. There is no image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerSpec {
    pub name: String,
    /// Program and arguments; a program without a slash is looked up in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment: nothing is inherited from the engine.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Absent: `/`.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    #[serde(default)]
    pub mounts: Vec<Mount>,
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
    /// What the node may raise the limit to. Below it, who reaches the limit waits a moment for that before it is killed.
    #[serde(default)]
    pub memory_max_bytes: Option<u64>,
    /// Becomes the cgroup's weight, as a kubelet converts it.
    #[serde(default)]
    pub cpu_request_millis: Option<u64>,
    /// Becomes the cgroup's quota.
    #[serde(default)]
    pub cpu_limit_millis: Option<u64>,
    #[serde(default)]
    pub pids_max: Option<u64>,
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub gid: Option<u32>,
    /// Supplementary groups; only looked at where the machine permits to change the user.
    #[serde(default)]
    pub groups: Vec<u32>,
    #[serde(default)]
    pub no_new_privileges: bool,
    /// Best effort: lowering it needs a privilege.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
    /// Signal number that asks the container to end. Absent: SIGTERM.
    #[serde(default)]
    pub stop_signal: Option<i32>,
}

/// `source`, a directory or file of the host, shown to the container at `target`, which need not exist on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    pub source: PathBuf,
    /// Absolute and without `..`.
    pub target: PathBuf,
    #[serde(default)]
    pub read_only: bool,
}

/// What is known of a pod's processes. Replaced atomically in `status.json` on every change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShimStatus {
    pub version: u32,
    /// The shim's process id. Whether it lives is told by [`super::life`], not by this number.
    pub pid: u32,
    /// Every container has ended for good; the shim has left or is about to.
    pub finished: bool,
    /// Why the pod was stopped, as the first `Stop` said.
    #[serde(default)]
    pub stop_reason: Option<String>,
    /// That first `Stop` came before the pod's work was over. Exit codes do not tell: a process may well answer the stop
    /// signal with 0.
    #[serde(default)]
    pub cut_short: bool,
    #[serde(default)]
    pub init: Vec<ContainerStatus>,
    pub containers: Vec<ContainerStatus>,
}

impl ShimStatus {
    /// A container's status by name, init containers included.
    pub fn container(&self, name: &str) -> Option<&ContainerStatus> {
        self.init
            .iter()
            .chain(&self.containers)
            .find(|status| status.name == name)
    }

    /// Whether any of its containers runs, init containers not counted.
    pub fn is_running(&self) -> bool {
        let mut states = self.containers.iter().map(|status| &status.state);
        states.any(|state| matches!(state, ContainerState::Running { .. }))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    pub name: String,
    /// How many times it was started again. Its log is `logs/<name>/<restart_count>.log`.
    pub restart_count: u32,
    pub state: ContainerState,
    /// How the run before the current state ended.
    #[serde(default)]
    pub last: Option<Exit>,
    /// Processes of the current run that the kernel killed at the memory limit while the container went on.
    #[serde(default)]
    pub oom_kills: u64,
    /// The memory limit in force, after any `SetMemoryLimit`.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum ContainerState {
    #[serde(rename_all = "camelCase")]
    Waiting {
        reason: String,
        #[serde(default)]
        message: Option<String>,
    },
    #[serde(rename_all = "camelCase")]
    Running {
        pid: u32,
        started_at: Timestamp,
    },
    Terminated(Exit),
}

/// How one run of a container ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// What a shell would say: 128 + signal for a process that a signal ended; 128 for one that never started.
    pub exit_code: i32,
    #[serde(default)]
    pub signal: Option<i32>,
    pub oom_killed: bool,
    /// One of [`reason`], or the reason a `Kill` gave.
    pub reason: String,
    #[serde(default)]
    pub message: Option<String>,
    /// Absent if it never started.
    #[serde(default)]
    pub started_at: Option<Timestamp>,
    pub finished_at: Timestamp,
    /// Highest use of memory: exact with a cgroup, the highest sample without.
    #[serde(default)]
    pub peak_memory_bytes: Option<u64>,
    /// Processes of this run that the kernel killed at the memory limit; may be above zero though `oom_killed` is false:
    /// then only children were killed and the main process ended on its own account.
    #[serde(default)]
    pub oom_kills: u64,
}

/// One line to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub enum Request {
    /// Answered by `Response::Status` at once and again after every change, until the connection ends. Changes that follow
    /// each other faster than the client reads are merged into the latest. Nothing else may be asked on the connection.
    Watch,
    /// End the pod for good: the stop signal to each container's process group, SIGKILL to all that is left after the grace
    /// period. Answered at once. A second `Stop` can shorten the grace period, never lengthen it.
    #[serde(rename_all = "camelCase")]
    Stop { grace_seconds: u64, reason: String },
    /// End one container and start it again, if the restart policy is not `Never` (a failed liveness probe).
    #[serde(rename_all = "camelCase")]
    Restart {
        container: String,
        grace_seconds: u64,
    },
    /// SIGKILL to all of one container. The restart policy applies. `OOMKilled` as reason also sets `oom_killed`.
    Kill { container: String, reason: String },
    /// Of the running container and of its later restarts.
    SetMemoryLimit { container: String, bytes: u64 },
    /// Run a command inside the container (its mounts, its cgroup, its environment), for probes and hooks.
    /// Answered by `Response::Exec`; output beyond 16 KiB is dropped.
    #[serde(rename_all = "camelCase")]
    Exec {
        container: String,
        argv: Vec<String>,
        timeout_ms: u64,
    },
    /// Memory of the running containers; answered by `Response::Usage`.
    Usage,
}

/// One line from the shim. Requests of one connection are answered in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Response {
    Done,
    Status {
        status: ShimStatus,
    },
    Usage {
        containers: Vec<ContainerUsage>,
    },
    #[serde(rename_all = "camelCase")]
    Exec {
        /// 128 + signal for a signal; 137 after a timeout.
        exit_code: i32,
        timed_out: bool,
        /// stdout and stderr together, invalid UTF-8 replaced.
        output: String,
    },
    /// The request could not be done; the connection goes on.
    Error {
        message: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsage {
    pub name: String,
    /// Without a cgroup only `usage_bytes`, `working_set_bytes`, `anon_bytes`, `peak_bytes` and `limit_bytes` are filled.
    pub memory: MemorySample,
    /// CPU time used since the start of the run.
    #[serde(default)]
    pub cpu_usec: Option<u64>,
}
