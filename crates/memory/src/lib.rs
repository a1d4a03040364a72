//! Memory decisions: how much a worker gets, what it died of, and what its model needs of a GPU.
//!
//! The seams are [`size`], [`diagnose`], [`recover`] and [`estimate::estimate`]. All take plain values and answer with the reason beside
//! the decision.
//!
//! Invariant: nothing here does IO, reads a clock or draws a random number.

mod backtest;
mod diagnosis;
pub mod digest;
pub mod estimate;
mod foresee;
pub mod guard;
mod history;
mod recovery;
mod sample;
mod sizing;

pub use backtest::{FAILURE_COST_GIB_H, Policy, Report, Score, TableError, Workflow, backtest};
pub use diagnosis::{
    Blame, Cause, Confidence, Diagnosis, End, Evidence, FENCED, Facts, Figures, Framework,
    LeakRate, LogDigest, LogScan, NOT_STARTED, Remedy, Resource, Shape, Terminated, Usage,
    diagnose, events_may_tell, may_still_start,
};
pub use digest::Digest;
pub use foresee::{Earlier, Place, Point, Verdict, Watcher};
pub use history::{Advice, FailureCost, History};
pub use recovery::{Advised, Case, Change, Had, Recovery, Room, Tried, recover};
pub use sample::Sample;
pub use sizing::{Share, lopsided, share_of, size};
