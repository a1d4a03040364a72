//! End to end: the real binary, real processes, the real kubectl. Every test has an engine of its own.

mod bad_input;
mod crash;
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
#[path = "../support/random.rs"]
mod random;
mod recovering;
mod scheduling;
mod support;
mod worlds;
