//! `stoke mpi rsh HOST LINE...`: what mpirun calls in place of ssh.
//!
//! It behaves as ssh does: the words are joined and run by a shell on the other side, output comes back on the stream it
//! was written to, the exit code is the command's, and 255 says that the host could not be reached.

use std::io::{self, Write};
use std::process::ExitCode;

use super::channel::{ChannelError, Message, Stream};
use super::hosts::{Gang, HostsError};
use super::{HOSTS, SettingError, call, exit_code, setting, token};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// A name in STOKE_MPI_HOSTS
    host: String,
    /// What to run there
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    line: Vec<String>,
}

const UNREACHED: u8 = 255;

#[derive(Debug, thiserror::Error)]
enum RshError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("{HOSTS} cannot be read")]
    Hosts(#[source] HostsError),
    #[error("there is no host `{0}` in {HOSTS}")]
    NoHost(String),
    #[error("lost the worker on {0}")]
    Channel(String, #[source] ChannelError),
    #[error("cannot write what {0} sent")]
    Output(String, #[source] io::Error),
}

/// Never an error: mpirun reads the exit code, a person what is on stderr.
pub fn run(args: &Args) -> ExitCode {
    match remote(args) {
        Ok(code) => exit_code(code),
        Err(error) => {
            eprintln!("stoke mpi rsh: {:#}", anyhow::Error::from(error));
            ExitCode::from(UNREACHED)
        }
    }
}

fn remote(args: &Args) -> Result<i32, RshError> {
    let gang = Gang::parse(&setting(HOSTS)?).map_err(RshError::Hosts)?;
    let token = token()?;
    let name = args.host.clone();
    let host = gang
        .find(&args.host)
        .ok_or_else(|| RshError::NoHost(name.clone()))?;
    let lost = |error| RshError::Channel(name.clone(), error);
    let (mut say, mut hear) = call(host, &token).map_err(lost)?;
    say.send(&Message::Exec(args.line.join(" ")))
        .map_err(lost)?;
    loop {
        match hear.receive().map_err(lost)? {
            Message::Output(Stream::Stdout, bytes) => write(io::stdout().lock(), &bytes),
            Message::Output(Stream::Stderr, bytes) => write(io::stderr().lock(), &bytes),
            Message::Exit(code) => return Ok(code),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
        .map_err(|error| RshError::Output(name.clone(), error))?;
    }
}

fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}
