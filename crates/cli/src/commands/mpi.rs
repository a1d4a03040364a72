//! `stoke mpi`: the part of an MPI gang that runs inside its pods. Not for people.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::failure;
use crate::mpi;

/// Run an MPI gang's part of a pod
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Its own command line, which knows neither engines nor namespaces: `-n` is mpirun's here
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    line: Vec<OsString>,
}

#[derive(Debug, Parser)]
#[command(name = "stoke mpi")]
struct Line {
    #[command(subcommand)]
    command: mpi::Command,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let words = std::iter::once(OsString::from("stoke mpi")).chain(args.line);
    match Line::try_parse_from(words) {
        Ok(line) => mpi::run(line.command),
        Err(error) => Ok(failure::usage(&error)),
    }
}
