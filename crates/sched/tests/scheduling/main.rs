//! What the scheduler promises, on examples and on clusters drawn at random.

mod examples;
mod promises;
mod rights;
mod site;
#[path = "../support/sized.rs"]
mod sized;
mod waiting;
mod warm;
