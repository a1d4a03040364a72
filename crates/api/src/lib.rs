//! The words everything else is said in: kinds, conditions, reasons, defaults and validation.
//!
//! Invariant: nothing here does IO, reads a clock or knows a runtime. A rule about a kind stands once, in [`rules`],
//! as CEL for a real API server and as Rust for ours, side by side.

pub mod condition;
pub mod contract;
pub mod crd;
pub mod dataset;
pub mod digest;
pub mod gpu_name;
pub mod names;
pub mod profile;
pub mod quantity;
pub mod queue;
pub mod reason;
pub mod risk;
pub mod rules;
pub mod trainjob;

pub use crd::crds;
pub use dataset::{Dataset, DatasetSpec, DatasetStatus, Nfs};
pub use profile::{JobProfile, JobProfileSpec};
pub use quantity::{Bytes, CpuMilli, GpuAmount, GpuMilli, GpuRequest, Parameters, Span};
pub use queue::{Queue, QueueSpec, QueueStatus};
pub use reason::Reason;
pub use rules::{Violation, misspelling, violations};
pub use trainjob::{TrainJob, TrainJobSpec, TrainJobStatus};
