//! Placement: a snapshot of the nodes and a gang in, a node for every worker or the reason why not out.
//!
//! The seam is [`place`]: it sees the whole snapshot and the whole gang, so that a cleverer algorithm (queues, topology,
//! preemption) can stand behind the same call. Callers may rely on what [`Plan`] and [`Explanation`] promise and on
//! nothing about which of several fitting nodes is chosen.
//!
//! Invariant: nothing here does IO, reads a clock or draws a random number. The same snapshot and gang give the same answer.

mod data;
mod explain;
mod gang;
mod gpu;
mod place;
mod queues;
pub mod replay;
mod resources;
mod scheduler;
mod snapshot;
pub mod value;

pub use data::{Data, Dataset, Fetch};
pub use explain::{Explanation, Help, NoRoom, Obstacle};
pub use gang::{Gang, HOSTNAME, Operator, Requirement, Subject, Term, Toleration, Topology};
pub use gpu::{GpuModel, Parts, is_of_type};
pub use place::{Appraiser, Plan, candidates, find, find_near, fitting, place};
pub use queues::{History, Limit, Past, QueueFault, QuotaShortage, Standing};
pub use resources::{Other, Protocol, Resources};
pub use scheduler::{
    Change, Claim, Constraint, Decision, Estimate, Job, JobId, Policy, Remedy, Running, Scheduler,
    Wait,
};
pub use snapshot::{Effect, Node, Snapshot, Taint, Trouble};
