//! Memory decisions: how much a worker gets, and what it died of.
//!
//! The seams are [`size`] and [`diagnose`]. Both take plain values and answer with the reason beside the decision, so that
//! learning from earlier runs (`size`) and reading logs (`diagnose`) can grow behind them.
//!
//! Invariant: nothing here does IO, reads a clock or draws a random number.

mod diagnosis;
mod sizing;

pub use diagnosis::{
    Blame, Diagnosis, End, Evidence, NOT_STARTED, Terminated, diagnose, may_still_start,
};
pub use sizing::{Share, share_of, size};
