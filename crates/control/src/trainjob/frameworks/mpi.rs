//! MPI: rank 0 runs mpirun, the others run what mpirun asks of them. No ssh: `stoke mpi` is both ends.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, SecretKeySelector};
use stoke_api::names::{MPI_TOKEN_KEY, env, mpi_secret};

use super::{Gang, Start, program, var};
use crate::trainjob::template::Misconfigured;

pub fn start(gang: &Gang<'_>, rank: u32) -> Result<Start, Misconfigured> {
    let Some(first) = gang.command.first() else {
        return Err(Misconfigured::new(
            "command",
            "an MPI job needs a command for mpirun to run",
        ));
    };
    if matches!(
        program(first),
        "mpirun" | "mpiexec" | "orterun" | "horovodrun"
    ) {
        let problem = format!(
            "leave out {} and its options: the job runs mpirun itself, over all its workers",
            program(first)
        );
        return Err(Misconfigured::new("command", problem));
    }
    let stoke = gang.stoke_exe.to_string_lossy().into_owned();
    let mut command = vec![stoke, "mpi".to_owned()];
    if rank == 0 {
        command.extend(["launch", "--np"].map(str::to_owned));
        command.push(gang.world_size().to_string());
        command.push("--slots".to_owned());
        command.push(gang.processes.to_string());
        command.push("--".to_owned());
        command.extend_from_slice(gang.command);
    } else {
        command.push("worker".to_owned());
    }
    let hosts = gang.rendezvous.hosts();
    let all: Vec<String> = hosts
        .iter()
        .map(|host| format!("{}={}:{}", host.name, host.address, host.port))
        .collect();
    let mut variables = vec![var(env::MPI_HOSTS, all.join(",")), token(gang)];
    if let Some(own) = hosts.get(rank as usize) {
        variables.push(var(env::MPI_LISTEN, format!("{}:{}", own.listen, own.port)));
    }
    Ok(Start {
        command,
        env: variables,
    })
}

fn token(gang: &Gang<'_>) -> EnvVar {
    EnvVar {
        name: env::MPI_TOKEN.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: mpi_secret(gang.job, gang.job_uid),
                key: MPI_TOKEN_KEY.to_owned(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    }
}
