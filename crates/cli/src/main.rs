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
mod outlook;
mod program;
mod render;
mod session;
mod terminal;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os().peekable();
    let is_plugin = program::is_plugin(words.peek().map(std::ffi::OsString::as_os_str));
    let args = match args::Args::read(words, is_plugin) {
        Ok(args) => args,
        Err(error) => return failure::usage(&error),
    };
    program::be_called(program::name(is_plugin), &args.world.typed());
    commands::run(args).unwrap_or_else(|error| failure::report(&error))
}
