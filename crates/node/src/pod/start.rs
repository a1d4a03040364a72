//! From an accepted pod to a running shim.
//!
//! This is the path a person waits for, so it polls nothing and writes nothing to the API unless something is missing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::{Backoff, Next, Worker};
use crate::causes::chain;
use crate::pod_dir::{self, PodDirError};
use crate::shim::{self, Life, SpawnError};
use crate::spec::{self, Sources, SpecError};
use crate::status::Hold;
use crate::volumes::{self, ClaimPaths, DataPaths, VolumeError};

/// A claim made together with its pod is bound a moment later; that is not worth a complaint.
const CLAIMS_WITHIN: Duration = Duration::from_secs(2);

/// Why a pod does not start, for its status and its events.
pub(super) struct Problem {
    pub(super) reason: &'static str,
    pub(super) event: &'static str,
    pub(super) message: String,
    /// Only a change of the pod itself would help, so there is no use in trying again.
    pub(super) is_final: bool,
}

impl From<SpecError> for Problem {
    fn from(error: SpecError) -> Self {
        let message = error.to_string();
        Self {
            reason: "CreateContainerConfigError",
            event: "Failed",
            message,
            is_final: error.is_final(),
        }
    }
}

impl From<VolumeError> for Problem {
    fn from(error: VolumeError) -> Self {
        let is_final = error.is_final();
        let reason = if is_final {
            "CreateContainerConfigError"
        } else {
            "ContainerCreating"
        };
        Self {
            reason,
            event: "FailedMount",
            message: chain(&error),
            is_final,
        }
    }
}

impl From<SpawnError> for Problem {
    fn from(error: SpawnError) -> Self {
        Self {
            reason: "CreateContainerError",
            event: "FailedCreatePodSandBox",
            message: chain(&error),
            is_final: false,
        }
    }
}

impl From<PodDirError> for Problem {
    fn from(error: PodDirError) -> Self {
        Self {
            reason: "CreateContainerError",
            event: "Failed",
            message: chain(&error),
            is_final: false,
        }
    }
}

impl From<kube::Error> for Problem {
    fn from(error: kube::Error) -> Self {
        Self {
            reason: "ContainerCreating",
            event: "FailedMount",
            message: chain(&error),
            is_final: false,
        }
    }
}

impl Worker {
    pub(super) async fn start(&mut self) -> Next {
        let mut backoff = Backoff::new();
        loop {
            // An engine that was killed while it started the pod may have got further than it could note.
            if shim::life(self.dir.path()).is_ok_and(|life| life == Life::Running) {
                self.hold = None;
                return Next::Supervise;
            }
            if self.is_leaving() {
                return Next::End;
            }
            let data = self.stage_data().await;
            if self.is_leaving() {
                return Next::End;
            }
            let started = match data {
                Ok(data) => self.try_start(data).await,
                Err(problem) => Err(problem),
            };
            let problem = match started {
                Ok(()) => {
                    self.hold = None;
                    return Next::Supervise;
                }
                Err(problem) => problem,
            };
            tracing::warn!(
                pod = self.pod.name_any(),
                reason = problem.reason,
                message = problem.message,
                "a pod cannot start yet"
            );
            self.shared.events.warning(
                &self.about,
                problem.event,
                format!("Error: {}", problem.message),
            );
            self.hold = Some(Hold {
                reason: problem.reason,
                message: problem.message,
            });
            let written = self.publish().await;
            let again = backoff.wait();
            let mut claims = self.shared.claims.clone();
            claims.mark_unchanged();
            tokio::select! {
                () = self.intent_changed() => {}
                Ok(()) = claims.changed() => {}
                () = tokio::time::sleep(again), if !problem.is_final || !written => {}
            }
        }
    }

    async fn try_start(&mut self, data: DataPaths) -> Result<(), Problem> {
        if let Some(what) = spec::unsupported(&self.pod) {
            return Err(SpecError::Unsupported(what).into());
        }
        self.dir.create()?;
        self.choose_secrets_dir();
        self.dir.write_pod(&self.pod)?;
        if let Some(record) = &self.record {
            self.dir.write_record(record)?;
        }
        let references = spec::references(&self.pod);
        let claims = self.claims(&references.claims).await;
        let sources = self.sources(&references).await?;

        // Everything that follows touches the disk or waits for the shim, so it leaves the event loop alone.
        let pod = self.pod_as_granted();
        let dir = self.dir.clone();
        let shared = self.shared.clone();
        let cgroup = self.shared.cgroups.pod(&self.uid);
        let gpus = self.gpus.clone();
        let started = tokio::task::spawn_blocking(move || -> Result<(), Problem> {
            let node = &shared.facts;
            let ingredients = volumes::Ingredients {
                pod: &pod,
                dir: &dir,
                node,
                sources: &sources,
                claims: &claims,
                data: &data,
            };
            let mut prepared = volumes::prepare(ingredients)?;
            prepared.cgroup = cgroup;
            prepared.gpus = gpus;
            let spec = spec::shim_spec(&pod, node, &sources, &prepared)?;
            volumes::prepare_sub_paths(&pod, &prepared, &spec)?;
            shim::spawn(dir.path(), &spec, &shared.stoke_exe)?;
            Ok(())
        });
        started.await.unwrap_or_else(|error| {
            let message = format!("starting the pod was interrupted: {error}");
            Err(Problem {
                reason: "CreateContainerError",
                event: "Failed",
                message,
                is_final: false,
            })
        })
    }

    /// Finds a place in memory for the pod's secret volumes, if it has any. Memory can be taken away (logging out removes the
    /// user's runtime directory); then they go where all its volumes are, which only the engine's user can read either.
    fn choose_secrets_dir(&mut self) {
        if !volumes::has_secrets(&self.pod) {
            return;
        }
        let before = self
            .record
            .as_ref()
            .and_then(|record| record.secrets.clone());
        let chosen = before
            .into_iter()
            .chain(self.own_secrets_dir())
            .find(|dir| pod_dir::private_dir(dir).is_ok());
        if chosen.is_none() {
            tracing::debug!(
                pod = self.pod.name_any(),
                "no place in memory for a pod's secrets; they go to its own directory"
            );
        }
        self.dir.keep_secrets_in(chosen.clone());
        if let Some(record) = &mut self.record {
            record.secrets = chosen;
        }
    }

    /// Where in memory the secret volumes of a pod go that has none yet.
    pub(super) fn own_secrets_dir(&self) -> Option<PathBuf> {
        Some(self.shared.secrets_dir.as_ref()?.join(&self.uid))
    }

    /// Where the pod's claims are; those that are not bound within a moment are left out.
    async fn claims(&self, names: &BTreeSet<String>) -> ClaimPaths {
        let namespace = self.pod.namespace().unwrap_or_default();
        let mut bound = self.shared.claims.clone();
        let all = |bound: &volumes::claims::Bound| {
            names
                .iter()
                .all(|name| bound.contains_key(&(namespace.clone(), name.clone())))
        };
        // Late or never: what is there by then is what there is.
        let _ = tokio::time::timeout(CLAIMS_WITHIN, bound.wait_for(all)).await;
        let bound = bound.borrow();
        let path = |name: &String| {
            Some((
                name.clone(),
                bound.get(&(namespace.clone(), name.clone()))?.clone(),
            ))
        };
        names.iter().filter_map(path).collect()
    }

    /// The configMaps and secrets the pod refers to, as far as they exist.
    pub(super) async fn sources(
        &self,
        references: &spec::References,
    ) -> Result<Sources, kube::Error> {
        let namespace = self.pod.namespace().unwrap_or_default();
        let config_maps = fetch::<ConfigMap>(
            Api::namespaced(self.shared.client.clone(), &namespace),
            &references.config_maps,
        );
        let secrets = fetch::<Secret>(
            Api::namespaced(self.shared.client.clone(), &namespace),
            &references.secrets,
        );
        let (config_maps, secrets) = tokio::try_join!(config_maps, secrets)?;
        Ok(Sources::new(&namespace, config_maps, secrets))
    }
}

async fn fetch<K>(api: Api<K>, names: &BTreeSet<String>) -> Result<Vec<K>, kube::Error>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let found = try_join_all(names.iter().map(|name| api.get_opt(name))).await?;
    Ok(found.into_iter().flatten().collect())
}
