//! Which world a command talks to: the engine of this machine, or a cluster.
//!
//! Choosing is a pure function of what was asked and what is there. Invariant: what was said on the command line is never
//! overruled by what happens to be there.

mod kubeconfig;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use kube::Config;

use crate::args::WorldArgs;
use crate::data_dir::DataDir;
use crate::failure::{Exit, Failure};
use kubeconfig::Contexts;

/// What the command line and the environment say about where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// A context or a kubeconfig was named.
    pub names_cluster: bool,
    pub data_dir: Named,
    /// Typed as `kubectl stoke`.
    pub is_plugin: bool,
}

/// How the engine's directory was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    ByFlag,
    ByVariable,
    No,
}

/// What is there to choose from. Reading a kubeconfig costs something, so it is asked for only where it decides.
pub struct Around<'a> {
    pub engine_runs: bool,
    pub has_context: &'a dyn Fn() -> bool,
    pub is_in_pod: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    Engine,
    /// The kubeconfig's context: the named one, else the current one.
    Kubeconfig,
    /// The cluster this process runs in, as its service account.
    Pod,
    Nowhere,
}

/// Who types `kubectl stoke` means kubectl's cluster: then neither a running engine nor a variable that names one counts.
pub fn choose(asked: Asked, around: &Around<'_>) -> Choice {
    if asked.names_cluster {
        return Choice::Kubeconfig;
    }
    let engine_is_meant = match asked.data_dir {
        Named::ByFlag => true,
        Named::ByVariable => !asked.is_plugin,
        Named::No => around.engine_runs && !asked.is_plugin,
    };
    if engine_is_meant {
        Choice::Engine
    } else if (around.has_context)() {
        Choice::Kubeconfig
    } else if around.is_in_pod {
        Choice::Pod
    } else {
        Choice::Nowhere
    }
}

/// Where a command goes.
#[derive(Clone)]
pub enum World {
    Engine(DataDir),
    Cluster(Cluster),
    /// Neither an engine nor a context: whoever needs a server is told so.
    Nowhere {
        data_dir: DataDir,
        is_plugin: bool,
    },
}

/// A Kubernetes that is not ours.
#[derive(Clone)]
pub struct Cluster {
    pub name: String,
    pub server: String,
    /// The context's own, where it names one.
    pub namespace: Option<String>,
    access: Access,
}

#[derive(Clone)]
enum Access {
    Kubeconfig(Box<Contexts>),
    Pod,
}

/// What a cluster that this process runs in is called, for want of a context.
const OWN_CLUSTER: &str = "in-cluster";

impl World {
    pub fn resolve(args: &WorldArgs, data_dir: DataDir) -> anyhow::Result<Self> {
        let variable = |name: &str| std::env::var_os(name);
        let read = || Contexts::read(args.kubeconfig.as_deref(), &variable);
        let around = Around {
            engine_runs: data_dir.holder()?.is_some(),
            // A broken kubeconfig is one that was meant; using it then tells what is wrong with it.
            has_context: &|| read().map_or(true, |contexts| contexts.current().is_some()),
            is_in_pod: is_in_pod(variable),
        };
        Ok(match choose(args.asked(), &around) {
            Choice::Engine => Self::Engine(data_dir),
            Choice::Kubeconfig => {
                Self::Cluster(Cluster::of_context(read()?, args.context.as_deref())?)
            }
            Choice::Pod => Self::Cluster(Cluster::around_us()?),
            Choice::Nowhere => Self::Nowhere {
                data_dir,
                is_plugin: args.is_plugin,
            },
        })
    }

    pub fn place(&self) -> Place {
        match self {
            Self::Cluster(cluster) => Place::Cluster {
                name: cluster.name.clone(),
                server: cluster.server.clone(),
            },
            Self::Engine(_) | Self::Nowhere { .. } => Place::Engine,
        }
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

/// A process in a pod has a service account; kubectl takes it too where there is no kubeconfig.
fn is_in_pod(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    variable("KUBERNETES_SERVICE_HOST").is_some() && PathBuf::from(TOKEN).exists()
}

impl Cluster {
    fn of_context(contexts: Contexts, name: Option<&str>) -> Result<Self, Failure> {
        let context = contexts.find(name)?;
        Ok(Self {
            name: context.name,
            server: context.server,
            namespace: context.namespace,
            access: Access::Kubeconfig(Box::new(contexts)),
        })
    }

    fn around_us() -> anyhow::Result<Self> {
        let config = Config::incluster().context("cannot use the pod's service account")?;
        Ok(Self {
            name: OWN_CLUSTER.to_owned(),
            server: config.cluster_url.to_string(),
            namespace: Some(config.default_namespace),
            access: Access::Pod,
        })
    }

    pub async fn config(&self) -> anyhow::Result<Config> {
        match &self.access {
            Access::Pod => Config::incluster().context("cannot use the pod's service account"),
            Access::Kubeconfig(contexts) => contexts.config(&self.name).await,
        }
    }
}

/// Does a process that serves a cluster run in it, as its service account?
pub fn serves_from_within(args: &WorldArgs) -> bool {
    !args.asked().names_cluster && is_in_pod(|name: &str| std::env::var_os(name))
}

/// How a process that serves a cluster reaches it: as told on the command line, as its service account, or as the person
/// who started it by hand.
pub async fn service_config(args: &WorldArgs) -> anyhow::Result<Config> {
    if serves_from_within(args) {
        return Cluster::around_us()?.config().await;
    }
    let variable = |name: &str| std::env::var_os(name);
    let contexts = Contexts::read(args.kubeconfig.as_deref(), &variable)?;
    let cluster = Cluster::of_context(contexts, args.context.as_deref())?;
    cluster.config().await
}

/// A world in messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Engine,
    Cluster { name: String, server: String },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine => f.write_str("the engine"),
            Self::Cluster { name, .. } => write!(f, "cluster {name}"),
        }
    }
}

/// Nothing to talk to, and both ways out.
pub fn nowhere(data_dir: &DataDir, is_plugin: bool) -> Failure {
    if is_plugin {
        let what = "the kubeconfig has no current context";
        return Failure::new(Exit::Unreachable, what).hint(
            "choose one: kubectl config use-context NAME, or --context NAME; for the engine of this machine: --data-dir DIR",
        );
    }
    no_engine(data_dir, "; or name a cluster: --context NAME")
}

pub fn no_engine(data_dir: &DataDir, or_else: &str) -> Failure {
    let place = data_dir.path().display();
    let what = if data_dir.record().is_some() {
        format!("the engine of {place} is not running")
    } else {
        format!("no engine runs on {place}")
    };
    Failure::new(Exit::Unreachable, what).hint(format!("start one: stoke up --detach{or_else}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_counts_before_what_is_there() {
        use Choice::{Engine, Kubeconfig, Nowhere, Pod};
        use Named::{ByFlag, ByVariable, No};
        // cluster named, directory named, plugin | engine runs, context, in a pod | choice
        let table = [
            ((false, No, false), (false, false, false), Nowhere),
            ((false, No, false), (true, false, false), Engine),
            ((false, No, false), (true, true, true), Engine),
            ((false, No, false), (false, true, true), Kubeconfig),
            ((false, No, false), (false, false, true), Pod),
            ((true, No, false), (true, true, false), Kubeconfig),
            ((true, ByFlag, false), (true, false, false), Kubeconfig),
            ((true, ByVariable, true), (true, true, false), Kubeconfig),
            ((false, ByFlag, false), (false, true, true), Engine),
            ((false, ByVariable, false), (false, true, true), Engine),
            ((false, No, true), (true, true, false), Kubeconfig),
            ((false, No, true), (true, false, false), Nowhere),
            ((false, No, true), (true, false, true), Pod),
            ((false, ByVariable, true), (true, true, false), Kubeconfig),
            ((false, ByVariable, true), (true, false, false), Nowhere),
            ((false, ByFlag, true), (false, true, false), Engine),
        ];
        for ((names_cluster, data_dir, is_plugin), around, expected) in table {
            let (engine_runs, has_context, is_in_pod) = around;
            let asked = Asked {
                names_cluster,
                data_dir,
                is_plugin,
            };
            let here = Around {
                engine_runs,
                has_context: &|| has_context,
                is_in_pod,
            };
            assert_eq!(choose(asked, &here), expected, "{asked:?} {around:?}");
        }
    }

    #[test]
    fn a_kubeconfig_is_not_read_where_it_cannot_decide() {
        let unread = Around {
            engine_runs: true,
            has_context: &|| panic!("it was read"),
            is_in_pod: false,
        };
        let asked = Asked {
            names_cluster: false,
            data_dir: Named::No,
            is_plugin: false,
        };
        assert_eq!(choose(asked, &unread), Choice::Engine);
    }
}
