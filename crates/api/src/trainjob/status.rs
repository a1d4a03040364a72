//! What a TrainJob tells about itself. Written only by the controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::retrying::{ByCause, FailureCause};
use super::tuning::{Finding, Tuning};
use crate::contract::checkpoints::Saved;
use crate::quantity::{Bytes, CpuMilli};

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct TrainJobStatus {
    /// What the job is doing, in one word.
    pub phase: Phase,
    /// Since when it is in this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_since: Option<Time>,
    /// Why it is in this phase, as one PascalCase word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same as a sentence, with what would help.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Workers running, of all: `2/2`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ready: String,
    /// Which attempt this is, from 1; 0 before the first.
    pub attempt: u32,
    /// Failed attempts that count against `retries`.
    pub failures: u32,
    /// The same by what they died of; what `retryLimits` counts.
    #[serde(skip_serializing_if = "ByCause::is_empty")]
    pub failures_by_cause: ByCause,
    /// Attempts that ended because a machine was taken away that can be; what `spotInterruptions` counts.
    #[serde(skip_serializing_if = "is_zero")]
    pub spot_interruptions: u32,
    /// Where it stands in line, while it waits for room or quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// What the next attempt runs with that the spec does not say.
    #[serde(skip_serializing_if = "Tuning::is_none")]
    pub tuning: Tuning,
    /// What of that will be new.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Why, as a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub changed_for: String,
    /// When the newest checkpoint of any attempt was written, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<Time>,
    /// The newest checkpoint, where the program writes them with markers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedCheckpoint>,
    /// When the next attempt may start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Time>,
    /// When the first worker of the first attempt was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the job ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Seconds spent running in attempts that have ended; what `maxDuration` counts, with the attempt that runs.
    pub ran_seconds: u64,
    /// The generation of the spec this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// At most one of each type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The latest attempts, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Attempts kept in the status; `attempt` goes on counting.
pub const ATTEMPTS_KEPT: usize = 10;

impl TrainJobStatus {
    pub fn current_attempt(&self) -> Option<&Attempt> {
        self.attempts
            .last()
            .filter(|attempt| attempt.number == self.attempt)
    }

    /// Adds an attempt and forgets the oldest beyond what is kept.
    pub fn push_attempt(&mut self, attempt: Attempt) {
        self.attempt = attempt.number;
        self.attempts.push(attempt);
        let excess = self.attempts.len().saturating_sub(ATTEMPTS_KEPT);
        self.attempts.drain(..excess);
    }
}

/// A complete checkpoint, as its worker's node has seen it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct SavedCheckpoint {
    /// Its directory, below `checkpoint.path`.
    pub name: String,
    /// The step that it goes on from, where the program says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// When it was seen to be complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    pub bytes: u64,
    /// How long it took to write, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The newest of which there is a complete copy in the object store, where the job wants copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploaded: Option<UploadedCheckpoint>,
    /// Why the next copy is not there yet, where something is wrong. The training goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload_problem: Option<String>,
}

/// A complete copy of a checkpoint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct UploadedCheckpoint {
    /// The step that it goes on from.
    pub step: u64,
    /// When all of it had arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

impl From<&Saved> for SavedCheckpoint {
    fn from(saved: &Saved) -> Self {
        let uploaded = saved.carried.uploaded.as_ref();
        Self {
            uploaded: uploaded.map(|uploaded| UploadedCheckpoint {
                step: uploaded.step,
                at: uploaded.at.parse().ok().map(Time),
            }),
            upload_problem: saved.carried.upload_problem.clone(),
            name: saved.name.clone(),
            step: saved.step,
            at: saved.at.parse().ok().map(Time),
            bytes: saved.bytes,
            seconds: saved.millis.map(|millis| millis as f64 / 1000.0),
        }
    }
}

/// Where a job stood in line when that was last written. It is written with the reason and not for itself, for the line moves with every
/// job that ends; `stoke explain` works it out anew.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Waiting {
    /// Its place in the line of its queue, from 1.
    pub position: u32,
    /// When it starts, as far as the jobs before it are known to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_start: Option<Time>,
    /// When that was so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Time>,
}

/// What a job is doing, for people.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// Waits for a place, for quota, for data or for its next attempt. The reason says which.
    #[default]
    Queued,
    /// Has its place; not all workers run yet.
    Starting,
    /// All workers run.
    Running,
    /// A worker failed or was interrupted; the rest is being stopped before the next attempt.
    Restarting,
    /// Stopped by `suspend`, with its place kept.
    Suspended,
    /// Ended well.
    Complete,
    /// Ended badly, for good.
    Failed,
}

impl Phase {
    pub fn is_final(self) -> bool {
        matches!(self, Self::Complete | Self::Failed)
    }
}

/// One try at running the whole gang.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Attempt {
    /// From 1.
    pub number: u32,
    /// When its pods were placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placed_at: Option<Time>,
    /// When all its workers ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_at: Option<Time>,
    /// When it was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// When it wrote its newest checkpoint, where that is known. An attempt that saved something has got on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved_at: Option<Time>,
    /// The generation of the spec it runs; a spec changed since takes effect with the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The node of each worker, by rank.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The GPUs of each worker on its node, by rank, as indices separated by commas. Absent where the node itself picks them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// What each worker asks its node for in place of whole GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_resource: Option<GpuResource>,
    /// The first of the ports leased for its rendezvous, where workers share a network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// CPUs of each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuMilli>,
    /// Memory of each worker, and how it was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Sizing>,
    /// Local disk each worker may use at most, where its template does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Bytes>,
    /// Of that, what each worker is promised. Absent: a gibibyte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_promised: Option<Bytes>,
    /// What the memory limit may be raised to while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<Bytes>,
    /// The most memory that a worker of an earlier run like it needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_expected: Option<Bytes>,
    /// /dev/shm of each worker. Absent: as its template says, else as large as its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<Bytes>,
    /// What it runs with that the spec does not say, since attempts before it died for want of it.
    #[serde(skip_serializing_if = "Tuning::is_none")]
    pub tuning: Tuning,
    /// What of that is new with this attempt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Why, as a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub changed_for: String,
    /// Workers that have ended well while others run on, by rank. Their pods may be gone since.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub succeeded: Vec<u32>,
    /// Nodes on which workers did not start. The next attempts go elsewhere for a while, where they can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<String>,
    /// Its room was asked for by another job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// A node of it goes away, or may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Box<Leaving>>,
    /// There is room for more workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growing: Option<Growing>,
    /// Some of its nodes are machines that can be taken away.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,
    /// What of its data its nodes had when it was placed, and what was copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// What its failure counts as, for `retryLimits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_for: Option<FailureCause>,
    /// Which worker ended it, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// What it is held to have died of, where it did not end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Finding>,
}

impl Attempt {
    /// Is the worker of this rank known to have ended well?
    pub fn has_succeeded(&self, rank: usize) -> bool {
        self.succeeded.iter().any(|known| *known as usize == rank)
    }
}

/// A resource that stands for a part of a GPU.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
pub struct GpuResource {
    /// `nvidia.com/mig-1g.10gb`, `nvidia.com/gpu.shared` or, on one machine, `stokehold.dev/gpu-milli`.
    pub name: String,
    pub count: u32,
}

/// An attempt that gives its room to another job.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Preemption {
    /// The job that gets the room: `namespace/name`.
    pub by: String,
    /// Why it goes before this one, as a sentence.
    pub why: String,
    /// When the workers were asked to write a checkpoint and end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Time>,
    /// When they are stopped, checkpoint or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// An attempt on a node that goes away, or may: its workers were asked to save their work.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Leaving {
    /// The node that goes.
    pub node: String,
    /// Who says so.
    pub by: String,
    /// What happens to the node, and what says so.
    pub why: String,
    /// When the workers were asked to write a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Time>,
    /// When they move, checkpoint or not. Absent: the node may stay, and they run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// An attempt that could go on with more workers: its own were asked to save their work first.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Growing {
    /// When the workers were asked to write a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<Time>,
    /// Until when an answer is waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// The memory of a worker and why it is that much.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
pub struct Sizing {
    pub request: Bytes,
    pub limit: Bytes,
    /// How it was chosen, as a sentence.
    pub why: String,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every worker ended with 0.
    Succeeded,
    /// A worker failed; counts against `retries`.
    Failed,
    /// Taken away by something outside the job; does not count.
    Interrupted,
    /// Stopped by `suspend`; does not count.
    Suspended,
    /// Gave its room to another job; does not count, and its place in line is kept.
    Preempted,
    /// Stopped to go on with more or fewer workers; does not count.
    Resized,
    /// Stopped to go on from its checkpoint with its memory given back, for it leaks; does not count.
    Restarted,
}

/// The end of the worker that ended the attempt.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct Exit {
    pub rank: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// As the kubelet gave it: `OOMKilled`, `Error`, `Evicted`.
    pub reason: String,
    /// What is known of the cause, as a sentence with its evidence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
