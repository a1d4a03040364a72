//! The engine a command talks to: found through the data directory, reached through its kubeconfig.

use std::time::Duration;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::data_dir::DataDir;
use crate::failure::{Exit, Failure};
use crate::terminal;

/// On one machine an answer takes a millisecond; a connection that takes this long will not come.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Session {
    pub data_dir: DataDir,
    pub namespace: String,
    pub verbose: bool,
}

impl Session {
    /// A client for the engine that runs now. Asking again after a restart gives one for the new engine, whose address may
    /// be another.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let Some(pid) = self.data_dir.holder()? else {
            return Err(self.no_engine().into());
        };
        let path = self.data_dir.kubeconfig();
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
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // A person waits for the answer: an engine that is busy is told at once, and followers retry by themselves.
        config.default_retry = false;
        // The engine is on this machine, whatever proxy the kubeconfig or the environment may name.
        config.proxy_url = None;
        terminal::whisper(
            self.verbose,
            format_args!(
                "engine {} (pid {pid}), data in {}",
                config.cluster_url,
                self.data_dir.path().display()
            ),
        );
        Client::try_from(config).context("cannot set up a client for the engine")
    }

    pub fn no_engine(&self) -> Failure {
        let place = self.data_dir.path().display();
        let what = if self.data_dir.record().is_some() {
            format!("the engine of {place} is not running")
        } else {
            format!("no engine runs on {place}")
        };
        Failure::new(Exit::Unreachable, what).hint("start one: stoke up --detach")
    }
}
