//! End to end: the real binary, real processes, the real kubectl. Every test has an engine of its own.

mod bad_input;
mod crash;
mod examples;
mod following;
mod gang;
mod kubectl;
mod memory;
mod scheduling;
mod support;
mod worlds;
