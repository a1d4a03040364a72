//! How each framework's workers are started: the command they run and the variables that tell them of each other.
//!
//! Invariant: a variable here is only a default. The job's own `env` and its template come after and win.

mod jax;
mod mpi;
mod plain;
mod tensorflow;
mod torch;

use std::path::Path;

use k8s_openapi::api::core::v1::EnvVar;
use stoke_api::trainjob::Framework;

use super::rendezvous::Rendezvous;
use super::template::Misconfigured;

/// A gang as its framework sees it.
pub struct Gang<'a> {
    pub job: &'a str,
    pub job_uid: &'a str,
    pub attempt: u32,
    pub workers: u32,
    /// What the author said.
    pub processes_said: Option<u32>,
    /// Said, or one a GPU, or one.
    pub processes: u32,
    pub gpus: u32,
    /// What every worker is meant to run. Empty: whatever the image does by itself.
    pub command: &'a [String],
    pub rendezvous: &'a Rendezvous,
    pub stoke_exe: &'a Path,
}

impl Gang<'_> {
    /// Processes of all workers.
    fn world_size(&self) -> u32 {
        self.workers.saturating_mul(self.processes)
    }
}

/// How one worker is started.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Start {
    /// Empty: whatever the image does by itself.
    pub command: Vec<String>,
    pub env: Vec<EnvVar>,
}

pub fn start(framework: Framework, gang: &Gang<'_>, rank: u32) -> Result<Start, Misconfigured> {
    let mut start = match framework {
        Framework::Torch => torch::start(gang, rank),
        Framework::Mpi => mpi::start(gang, rank)?,
        Framework::Tensorflow => {
            one_process(framework, gang)?;
            tensorflow::start(gang, rank)
        }
        Framework::Jax => {
            one_process(framework, gang)?;
            jax::start(gang, rank)
        }
        Framework::Plain => {
            one_process(framework, gang)?;
            plain::start(gang)
        }
    };
    // Python holds back what it prints to a file, and a log that comes late is no log.
    start.env.push(var("PYTHONUNBUFFERED", "1"));
    if gang.gpus > 0 {
        start.env.push(var("NCCL_DEBUG", "WARN"));
    }
    Ok(start)
}

/// Is the gang done when this worker is, whatever the others do?
pub fn is_leader(framework: Framework, rank: u32) -> bool {
    framework == Framework::Mpi && rank == 0
}

/// These start one process a worker, which sees all of its GPUs.
fn one_process(framework: Framework, gang: &Gang<'_>) -> Result<(), Misconfigured> {
    match gang.processes_said {
        None | Some(1) => Ok(()),
        Some(_) => Err(Misconfigured::new(
            "processesPerWorker",
            format!(
                "only torch and mpi start several processes a worker, not {framework:?}; use more workers"
            ),
        )),
    }
}

fn var(name: &str, value: impl ToString) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.to_string()),
        value_from: None,
    }
}

/// The last part of a path, as a shell names a program.
fn program(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
