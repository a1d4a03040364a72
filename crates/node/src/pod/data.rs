//! A pod's datasets: copied before it starts, told while that goes on, kept as long as it is there.

use std::time::Duration;

use kube::{Api, ResourceExt};
use stoke_api::Dataset;
use stoke_api::names::{STAGING_FAILED_REASON, STAGING_REASON};
use stoke_data::Meter;
use tokio::time::Instant;

use super::Worker;
use super::start::Problem;
use crate::causes::chain;
use crate::staging::{self, Begun};
use crate::status::Hold;
use crate::volumes::{self, DataPaths};

/// How often it is told how far it is. Each time costs a write of the pod's status.
const TELL_EVERY: Duration = Duration::from_secs(3);
/// What is there already is found within this time, and that needs no telling.
const TELL_FIRST: Duration = Duration::from_millis(500);

impl Worker {
    fn datasets(&self) -> Vec<String> {
        let volumes = self
            .pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        let mut names: Vec<String> = volumes
            .filter_map(volumes::dataset)
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Where the pod's datasets lie, once they do. Also returns, with less, when the pod is to go away.
    pub(super) async fn stage_data(&mut self) -> Result<DataPaths, Problem> {
        let mut paths = DataPaths::new();
        for name in self.datasets() {
            if self.is_leaving() {
                break;
            }
            let api: Api<Dataset> = Api::namespaced(
                self.shared.client.clone(),
                &self.pod.namespace().unwrap_or_default(),
            );
            let Some(dataset) = api.get_opt(&name).await? else {
                return Err(problem(format!("there is no Dataset {name}")));
            };
            match self.stage(&dataset).await {
                Ok(Some(path)) => drop(paths.insert(name, path)),
                Ok(None) => break,
                Err(message) => {
                    let client = &self.shared.client;
                    staging::tell(client, &dataset, Err(&message)).await;
                    return Err(problem(format!("dataset {name}: {message}")));
                }
            }
        }
        Ok(paths)
    }

    async fn stage(&mut self, dataset: &Dataset) -> Result<Option<std::path::PathBuf>, String> {
        let (shared, name) = (self.shared.clone(), dataset.name_any());
        let remote = staging::source(&shared.client, dataset)
            .await
            .map_err(|error| chain(&error))?;
        let uri = remote.uri().to_owned();
        // A machine is one person's, or those on it trust each other.
        let begun = shared
            .stager
            .begin("", remote, name.clone(), self.uid.clone());
        let Begun { progress, mut work } = begun.map_err(|error| chain(&error))?;
        let began = Instant::now();
        let mut meter = Meter::default();
        let mut tell = tokio::time::interval_at(began + TELL_FIRST, TELL_EVERY);
        let staged = loop {
            tokio::select! {
                ended = &mut work => match ended {
                    Ok(staged) => break staged.map_err(|error| chain(&error))?,
                    Err(error) => return Err(format!("copying was interrupted: {error}")),
                },
                () = self.intent_changed() => if self.is_leaving() {
                    work.abort();
                    return Ok(None);
                },
                _ = tell.tick() => {
                    let far = meter.told(began.elapsed(), &shared.stager.shown(&uri, &progress));
                    let message = format!("copying {name}: {far}");
                    self.hold = Some(Hold { reason: STAGING_REASON, message });
                    self.publish().await;
                }
            }
        };
        if staged.mended.files > 0 {
            let message = format!(
                "{} damaged files of dataset {name} were fetched again",
                staged.mended.files
            );
            shared.events.warning(&self.about, "DatasetMended", message);
        }
        let known = dataset.status.as_ref();
        let is_told = known.is_some_and(|status| {
            let warm = status.warm_nodes.contains(&shared.facts.name);
            warm && status.message.is_none()
                && status.size.is_some_and(|size| size.0 == staged.bytes)
        });
        if !is_told {
            staging::tell(&shared.client, dataset, Ok(&staged)).await;
            if let Ok(cache) = shared.stager.cache() {
                staging::tell_warm(&shared.client, &shared.facts.name, &cache).await;
            }
        }
        Ok(Some(staged.path.clone()))
    }

    /// The pod reads nothing any more.
    pub(super) async fn release_data(&self) {
        if self.datasets().is_empty() {
            return;
        }
        let (shared, uid) = (self.shared.clone(), self.uid.clone());
        // A lock of the cache may be waited for.
        let swept = tokio::task::spawn_blocking(move || shared.stager.sweep(|name| name == uid));
        let _ = swept.await;
    }
}

fn problem(message: String) -> Problem {
    Problem {
        reason: STAGING_FAILED_REASON,
        event: "FailedMount",
        message,
        is_final: false,
    }
}
