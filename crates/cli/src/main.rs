//! `stoke`: machine-learning work on one machine or on Kubernetes.
//!
//! Invariant: stdout is data, stderr is talk, and the exit code says how it ended (see [`failure::Exit`]).

mod args;
mod clock;
mod commands;
mod data_dir;
mod engine;
mod failure;
mod follow;
mod jobs;
mod kinds;
mod manifest;
mod mpi;
mod render;
mod session;
mod terminal;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return failure::usage(&error),
    };
    commands::run(args).unwrap_or_else(|error| failure::report(&error))
}
