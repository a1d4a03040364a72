//! On a real Kubernetes: `make kube-up` starts one, and these tests use it. Without one they say that they were skipped.

mod agent;
mod audit;
mod bad_days;
mod chart;
mod commands;
#[path = "../support/copied.rs"]
mod copied;
mod data;
mod deleting;
mod draining;
#[path = "../support/failing.rs"]
mod failing;
#[path = "../support/growing.rs"]
mod growing;
mod hanging;
mod installing;
#[path = "../support/interrupted.rs"]
mod interrupted;
mod interruptions;
mod launching;
mod leaders;
mod memory_guard;
mod operators;
mod own_node;
#[path = "../support/random.rs"]
mod random;
mod recovering;
mod release;
mod rights;
#[allow(dead_code, reason = "others need more of it")]
#[path = "../support/s3.rs"]
mod s3;
mod support;
mod training;
mod uploading;
mod workers;
