//! The world a command talks to, reached: one client, and one line on stderr that says whose it is.

mod transport;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::OnceCell;

use crate::args::WorldArgs;
use crate::data_dir::DataDir;
use crate::failure::{Exit, Failure};
use crate::terminal::{self, DIM, paint};
use crate::world::{self, Cluster, Place, World};

/// What every command has that talks to a server.
#[derive(Clone)]
pub struct Session {
    pub namespace: String,
    world: World,
    verbose: bool,
    quiet: bool,
    shared: Arc<Shared>,
}

/// What clones of a session have in common.
#[derive(Default)]
struct Shared {
    is_told: AtomicBool,
    /// A cluster stays where it is, and its credentials may cost a program's run: one client serves all.
    client: OnceCell<Client>,
}

impl Session {
    /// A session in the world the command line means.
    pub fn open(args: &WorldArgs, data_dir: DataDir) -> anyhow::Result<Self> {
        let world = World::resolve(args, data_dir)?;
        Ok(Self::new(args, world))
    }

    /// A session with the engine of this machine, whatever else there is.
    pub fn with_engine(args: &WorldArgs, data_dir: DataDir) -> Self {
        Self::new(args, World::Engine(data_dir))
    }

    fn new(args: &WorldArgs, world: World) -> Self {
        let of_context = match &world {
            World::Cluster(cluster) => cluster.namespace.clone(),
            World::Engine(_) | World::Nowhere { .. } => None,
        };
        let namespace = args.namespace.clone().or(of_context);
        Self {
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            world,
            verbose: args.verbose,
            quiet: args.quiet,
            shared: Arc::default(),
        }
    }

    pub fn quietly(mut self) -> Self {
        self.quiet = true;
        self
    }

    pub fn place(&self) -> Place {
        self.world.place()
    }

    pub fn is_cluster(&self) -> bool {
        self.world.is_cluster()
    }

    /// A client for the server that is there now. Asking again after a restart of the engine gives one for the new engine,
    /// whose address may be another.
    pub async fn client(&self) -> anyhow::Result<Client> {
        match &self.world {
            World::Engine(data_dir) => self.engine(data_dir).await,
            World::Cluster(cluster) => {
                let client = self
                    .shared
                    .client
                    .get_or_try_init(|| self.cluster(cluster))
                    .await?;
                Ok(client.clone())
            }
            World::Nowhere {
                data_dir,
                is_plugin,
            } => Err(world::nowhere(data_dir, *is_plugin).into()),
        }
    }

    async fn engine(&self, data_dir: &DataDir) -> anyhow::Result<Client> {
        let Some(pid) = data_dir.holder()? else {
            return Err(world::no_engine(data_dir, "").into());
        };
        let path = data_dir.kubeconfig();
        let kubeconfig = Kubeconfig::read_from(&path).map_err(|source| {
            Failure::new(
                Exit::Unreachable,
                format!(
                    "the engine (pid {pid}) has not written {} yet",
                    path.display()
                ),
            )
            .hint("try again in a moment")
            .source(source)
        })?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .with_context(|| format!("cannot read {}", path.display()))?;
        // The engine is on this machine, whatever proxy the kubeconfig or the environment may name.
        config.proxy_url = None;
        self.tell_once(&format!(
            "engine {} (this machine){}",
            bare(&config.cluster_url.to_string()),
            self.namespace_if_chosen()
        ));
        terminal::whisper(
            self.verbose,
            format_args!("pid {pid}, data in {}", data_dir.path().display()),
        );
        transport::near(config).context("cannot set up a client for the engine")
    }

    async fn cluster(&self, cluster: &Cluster) -> anyhow::Result<Client> {
        self.tell_once(&format!(
            "cluster {} ({}), namespace {}",
            cluster.name,
            bare(&cluster.server),
            self.namespace
        ));
        let config = cluster.config().await?;
        transport::far(config)
            .with_context(|| format!("cannot set up a client for cluster {}", cluster.name))
    }

    fn namespace_if_chosen(&self) -> String {
        if self.namespace == "default" {
            String::new()
        } else {
            format!(", namespace {}", self.namespace)
        }
    }

    fn tell_once(&self, line: &str) {
        if !self.quiet && !self.shared.is_told.swap(true, Ordering::Relaxed) {
            terminal::talk(format_args!("{}", paint(DIM, line)));
        }
    }

    /// The server stayed away for too long while a job was followed.
    pub fn lost(&self, job: &str) -> Failure {
        let (what, hint) = match &self.world {
            World::Engine(data_dir) | World::Nowhere { data_dir, .. } => (
                format!(
                    "the engine of {} has not come back",
                    data_dir.path().display()
                ),
                format!(
                    "the job's processes may still run; start the engine and look: stoke up --detach && stoke logs -f {job}"
                ),
            ),
            World::Cluster(cluster) => (
                format!(
                    "cluster {} ({}) has not answered for too long",
                    cluster.name, cluster.server
                ),
                format!("the job goes on without you; look again: stoke logs -f {job}"),
            ),
        };
        Failure::new(Exit::Unreachable, what).hint(hint)
    }
}

/// An address without the slash that a parser adds.
fn bare(url: &str) -> &str {
    url.trim_end_matches('/')
}
