//! On a real Kubernetes: `make kube-up` starts one, and these tests use it. Without one they say that they were skipped.

mod agent;
mod audit;
mod bad_days;
mod chart;
mod commands;
mod deleting;
mod draining;
mod installing;
mod launching;
mod leaders;
mod operators;
mod own_node;
mod release;
mod rights;
mod support;
mod training;
mod workers;
