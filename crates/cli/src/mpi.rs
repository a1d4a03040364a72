//! MPI across pods without ssh: what `framework: mpi` runs in the pods of a gang.
//!
//! The first pod runs `stoke mpi launch`, the others `stoke mpi worker`. `launch` calls `mpirun`, which starts its
//! daemon on every other host through an "rsh agent": that is `stoke mpi rsh`, which hands the daemon's command line to
//! the worker of that host. No image needs an ssh server, a key or a root user.
//!
//! The gang finds itself in the environment that the controller writes:
//!
//! - `STOKE_MPI_HOSTS`: `name=address:port,...` in rank order, the launcher first;
//! - `STOKE_MPI_LISTEN`: `address:port` this pod's worker listens on;
//! - `STOKE_MPI_TOKEN`: the gang's secret.
//!
//! Invariant: a worker runs nothing for a caller that has not proved that it knows the token, and the token itself
//! never crosses the network. Nothing a worker started outlives its launcher.

mod channel;
mod descendants;
mod hosts;
mod install;
mod launch;
mod rsh;
mod worker;

use std::env;
use std::io;
use std::net::TcpStream;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use channel::{Receiver, Sender, Token};

pub const HOSTS: &str = "STOKE_MPI_HOSTS";
pub const LISTEN: &str = "STOKE_MPI_LISTEN";
pub const TOKEN: &str = "STOKE_MPI_TOKEN";

/// The commands of a gang's pods. People do not type them: the controller writes them into pods, and mpirun calls `rsh`.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Wait for the gang's workers, run mpirun over all of them and end as it ends
    Launch(launch::Args),
    /// Run what the launcher asks for, until it is done
    Worker(worker::Args),
    /// Run a command on a worker, as mpirun would by ssh
    Rsh(rsh::Args),
    /// Copy this binary to where the pod's worker finds it
    Install(install::Args),
}

pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Launch(args) => Ok(launch::run(&args)?),
        Command::Worker(args) => Ok(worker::run(&args)?),
        Command::Rsh(args) => Ok(rsh::run(&args)),
        Command::Install(args) => {
            install::run(&args)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What the environment of a gang's pod lacks.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    #[error("{0} is not set: `stoke mpi` runs inside the pods of a job with `framework: mpi`")]
    Missing(&'static str),
    #[error("{0} is not text")]
    NotText(&'static str),
    #[error(
        "{TOKEN} is too short to be a secret: at least {} characters",
        Token::LENGTH_MIN
    )]
    WeakToken,
}

fn setting(name: &'static str) -> Result<String, SettingError> {
    match env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        Ok(_) | Err(env::VarError::NotPresent) => Err(SettingError::Missing(name)),
        Err(env::VarError::NotUnicode(_)) => Err(SettingError::NotText(name)),
    }
}

fn token() -> Result<Token, SettingError> {
    Token::new(&setting(TOKEN)?).ok_or(SettingError::WeakToken)
}

/// How long the two sides may take to prove themselves to each other.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

type Caller = (Sender<TcpStream>, Receiver<TcpStream>);

/// Reaches a worker and proves both sides to each other.
fn call(host: &hosts::Host, token: &Token) -> Result<Caller, channel::ChannelError> {
    let stream = host.connect(HANDSHAKE_TIMEOUT)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let reading = stream.try_clone()?;
    let channel = channel::call(token, reading, stream.try_clone()?)?;
    stream.set_read_timeout(None)?;
    notice_silence(&stream)?;
    Ok(channel)
}

/// A peer whose machine is gone says nothing: let the kernel ask, so that the end of the connection is seen within a minute.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(20))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    Ok(())
}

/// An exit status as a shell counts it: 128 and the number for a signal.
fn code_of(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1)
}

/// The process' own end, for a code that came over the wire or from a child.
fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
