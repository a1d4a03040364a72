//! One file per command. Each has its arguments, what they mean, and what is done.

pub mod agent;
pub mod completions;
pub mod crds;
pub mod data;
pub mod data_driver;
pub mod delete;
pub mod describe;
pub mod doctor;
pub mod down;
pub mod estimate;
pub mod explain;
pub mod get;
pub mod heed;
pub mod history;
pub mod kubeconfig;
pub mod logs;
pub mod memory;
pub mod mpi;
pub mod operator;
pub mod queue;
pub mod run;
pub mod sched;
pub mod shim;
pub mod suspend;
pub mod top;
pub mod up;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;

use crate::args::{Args, Command, WorldArgs};
use crate::data_dir::DataDir;
use crate::failure::{self, Exit, Failure};
use crate::session::Session;
use crate::terminal;

/// Does what was asked, and gives the code to end with.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let world = &args.world;
    match args.command {
        // A shim outlives engines and there is one a pod: it gets no runtime and no thread it does not need.
        Command::Shim(args) => Ok(shim::run(&args)),
        Command::ShimContainer(args) => Ok(shim::run_container(&args)),
        Command::Mpi(args) => mpi::run(args),
        Command::Heed(args) => heed::run(&args),
        Command::Completions(args) => completions::run(args),
        Command::Crds(args) => crds::run(args),
        Command::Estimate(args) => estimate::run(&args),
        Command::Operator(args) => operator::run(args, world),
        Command::Agent(args) => agent::run(args, world),
        Command::DataDriver(args) => data_driver::run(args, world),
        Command::Kubeconfig(args) => kubeconfig::run(args, &here("kubeconfig", world)?),
        Command::Up(args) => up::run(args, &here("up", world)?),
        Command::Down(args) => {
            let data_dir = here("down", world)?;
            block_on(down::run(args, data_dir))
        }
        Command::Doctor(args) if doctor::is_of_cluster(world) => {
            wait_for(world, |session| doctor::run_on_cluster(args, session))
        }
        Command::Doctor(args) => {
            let session = Session::with_engine(world, data_dir(world)?).quietly();
            block_on(doctor::run(args, session, data_dir(world)?))
        }
        Command::Run(args) => wait_for(world, |session| run::run(*args, session)),
        Command::Get(args) => wait_for(world, |session| get::run(args, session)),
        Command::Describe(args) => wait_for(world, |session| describe::run(args, session)),
        Command::Logs(args) => wait_for(world, |session| logs::run(args, session)),
        Command::Top(args) => wait_for(world, |session| top::run(args, session)),
        Command::Data(args) => {
            let data_dir = data_dir(world)?;
            wait_for(world, |session| data::run(args, session, data_dir))
        }
        Command::Queue(args) => wait_for(world, |session| queue::run(args, session)),
        Command::Sched(args) => sched::run(args, world),
        Command::Memory(args) => memory::run(args, world),
        Command::History(args) => wait_for(world, |session| history::run(args, session)),
        Command::Explain(args) => wait_for(world, |session| explain::run(args, session)),
        Command::Suspend(args) => wait_for(world, |session| suspend::run(args, session, true)),
        Command::Resume(args) => wait_for(world, |session| suspend::run(args, session, false)),
        Command::Delete(args) => wait_for(world, |session| delete::run(args, session)),
    }
}

fn data_dir(args: &WorldArgs) -> anyhow::Result<DataDir> {
    let is_root = rustix::process::geteuid().is_root();
    let asked = args.data_dir.clone();
    Ok(DataDir::resolve(
        asked,
        |name| std::env::var_os(name),
        is_root,
    )?)
}

/// For commands about the engine of this machine, which no cluster has.
fn here(command: &str, args: &WorldArgs) -> anyhow::Result<DataDir> {
    if args.asked().names_cluster {
        let what = format!(
            "{command} is about the engine of this machine; it takes no --context and no --kubeconfig"
        );
        return Err(Failure::new(Exit::Usage, what)
            .hint(format!("leave them out: stoke {command}"))
            .into());
    }
    data_dir(args)
}

fn wait_for<F>(world: &WorldArgs, command: impl FnOnce(Session) -> F) -> anyhow::Result<ExitCode>
where
    F: Future<Output = anyhow::Result<ExitCode>>,
{
    let session = Session::open(world, data_dir(world)?)?;
    let place = session.place();
    block_on(command(session)).map_err(|error| failure::at(place, error))
}

/// A client waits on one connection at a time; one thread is enough.
fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    terminal::log_to_stderr();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let result = runtime.block_on(command);
    // A read of stdin or a lookup that hangs must not keep the command from ending.
    runtime.shutdown_background();
    result
}
