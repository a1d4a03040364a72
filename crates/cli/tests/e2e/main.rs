//! End to end: the real binary, real processes, the real kubectl. Every test has an engine of its own.

mod bad_input;
#[path = "../support/copied.rs"]
mod copied;
mod crash;
mod data;
mod examples;
#[path = "../support/failing.rs"]
mod failing;
mod following;
mod gang;
#[path = "../support/growing.rs"]
mod growing;
#[path = "../support/interrupted.rs"]
mod interrupted;
mod interruptions;
mod kubectl;
mod memory;
mod memory_guard;
mod quotas;
#[path = "../support/random.rs"]
mod random;
mod recovering;
#[path = "../support/s3.rs"]
mod s3;
mod scheduling;
mod support;
mod uploading;
#[path = "../support/wire.rs"]
mod wire;
mod worlds;
