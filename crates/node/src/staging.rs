//! Datasets that a node copies to its disk before a pod reads them, and what is said of that on their objects.
//!
//! Invariant: what is in a Secret goes into a request's signature and nowhere else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use stoke_api::Dataset;
use stoke_data::{Cache, Credentials, DataError, Pin, Progress, Remote, Stage, Staged};
use tokio::task::JoinHandle;

use crate::causes::chain;

/// Copying hashes and writes without pause. It has threads of its own, so that nobody else waits for a disk.
const THREADS: usize = 2;

/// Where the data directory of an engine has its datasets.
pub fn cache_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("data")
}

/// Why a dataset cannot even be asked for.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("dataset {0} is used as it is; there is nothing to copy")]
    NotStaged(String),
    #[error(
        "dataset {dataset} takes its keys from Secret {secret}, and there is none in namespace {namespace}"
    )]
    NoSecret {
        dataset: String,
        secret: String,
        namespace: String,
    },
    #[error("cannot read Secret {secret}")]
    Secret { secret: String, source: kube::Error },
    #[error(transparent)]
    Data(#[from] DataError),
}

/// The place a dataset names, with the keys its Secret holds.
pub async fn source(client: &Client, dataset: &Dataset) -> Result<Remote, SourceError> {
    let name = dataset.name_any();
    let uri = dataset.spec.staged_uri();
    let uri = uri.ok_or_else(|| SourceError::NotStaged(name.clone()))?;
    let namespace = dataset.namespace().unwrap_or_default();
    let keys = match &dataset.spec.secret {
        None => Credentials::default(),
        Some(secret) => {
            let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
            let found = api
                .get_opt(secret)
                .await
                .map_err(|source| SourceError::Secret {
                    secret: secret.clone(),
                    source,
                })?;
            let found = found.ok_or_else(|| SourceError::NoSecret {
                dataset: name,
                secret: secret.clone(),
                namespace,
            })?;
            let values = found.data.unwrap_or_default().into_iter();
            let text = |(key, value): (String, k8s_openapi::ByteString)| {
                Some((key, String::from_utf8(value.0).ok()?))
            };
            Credentials::new(values.filter_map(text))
        }
    };
    Ok(Remote::open(uri, dataset.spec.endpoint.as_deref(), &keys)?)
}

/// Writes on a dataset what became of copying it: how much it is, or why it failed.
pub async fn tell(client: &Client, dataset: &Dataset, outcome: Result<&Staged, &str>) {
    let status = match outcome {
        Ok(staged) => {
            json!({"size": staged.bytes.to_string(), "files": staged.files, "message": null})
        }
        Err(message) => json!({"message": message}),
    };
    patch(client, dataset, status).await;
}

async fn patch(client: &Client, dataset: &Dataset, status: serde_json::Value) {
    let api: Api<Dataset> =
        Api::namespaced(client.clone(), &dataset.namespace().unwrap_or_default());
    let patch = Patch::Merge(json!({"status": status}));
    let name = dataset.name_any();
    if let Err(error) = api
        .patch_status(&name, &PatchParams::default(), &patch)
        .await
    {
        tracing::warn!(dataset = name, error = %chain(&error), "a dataset's status could not be written");
    }
}

/// Brings what all datasets say of a node in line with what lies there.
pub async fn tell_warm(client: &Client, node: &str, cache: &Cache) {
    let held = match cache.held() {
        Ok(held) => held,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "the data cache cannot be read");
            return;
        }
    };
    let api: Api<Dataset> = Api::all(client.clone());
    let datasets = match api.list(&ListParams::default()).await {
        Ok(datasets) => datasets,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "datasets cannot be listed");
            return;
        }
    };
    for dataset in datasets {
        let is_here = |uri: &str| {
            let uri = uri.trim_end_matches('/');
            held.iter().any(|held| held.is_whole && held.uri == uri)
        };
        let is_warm = dataset.spec.staged_uri().is_some_and(is_here);
        let told = dataset
            .status
            .as_ref()
            .map(|status| status.warm_nodes.as_slice());
        let mut nodes = told.unwrap_or_default().to_vec();
        if nodes.iter().any(|name| name == node) != is_warm {
            nodes.retain(|name| name != node);
            nodes.extend(is_warm.then(|| node.to_owned()));
            patch(client, &dataset, json!({"warmNodes": nodes})).await;
        }
    }
}

/// A copy that is on its way.
pub(crate) struct Begun {
    pub(crate) progress: Arc<Progress>,
    pub(crate) work: JoinHandle<Result<Staged, DataError>>,
}

/// The cache of a node, and who copies into it.
pub(crate) struct Stager {
    dir: PathBuf,
    bytes_max: Option<u64>,
    runtime: Mutex<Option<tokio::runtime::Runtime>>,
    /// How far everybody is, by where it comes from.
    running: Mutex<BTreeMap<String, Vec<Weak<Progress>>>>,
}

impl Drop for Stager {
    fn drop(&mut self) {
        // Waiting for its threads is not allowed where this is dropped; what they were at is gone on with later.
        if let Some(runtime) = locked(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stager {
    pub(crate) fn new(dir: PathBuf, bytes_max: Option<u64>) -> Self {
        Self {
            dir,
            bytes_max,
            runtime: Mutex::default(),
            running: Mutex::default(),
        }
    }

    pub(crate) fn cache(&self) -> Result<Cache, DataError> {
        Cache::open(&self.dir, self.bytes_max)
    }

    /// Takes away the pins of pods that are no more. Where nothing was ever copied, nothing is made.
    pub(crate) fn sweep(&self, is_gone: impl Fn(&str) -> bool) {
        if !self.dir.is_dir() {
            return;
        }
        let swept = self.cache().and_then(|cache| cache.unpin_where(is_gone));
        if let Err(error) = swept {
            tracing::warn!(error = %chain(&error), "the data cache cannot be read");
        }
    }

    /// Begins to copy, for whoever keeps it by this name until it is unpinned. Scopes share nothing.
    pub(crate) fn begin(
        &self,
        scope: &str,
        remote: Remote,
        name: String,
        holder: String,
    ) -> Result<Begun, DataError> {
        let cache = self.cache()?.within(scope);
        let progress = Arc::new(Progress::default());
        {
            let mut running = locked(&self.running);
            running.retain(|_, all| {
                all.retain(|progress| progress.strong_count() > 0);
                !all.is_empty()
            });
            let here = running.entry(remote.uri().to_owned()).or_default();
            here.push(Arc::downgrade(&progress));
        }
        let mut runtime = locked(&self.runtime);
        if runtime.is_none() {
            let made = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(THREADS)
                .thread_name("staging")
                .enable_all()
                .build();
            *runtime = Some(made.map_err(|error| DataError::Disk {
                what: "start threads for",
                path: self.dir.clone(),
                why: error.to_string(),
            })?);
        }
        let shown = progress.clone();
        let work = async move {
            cache
                .stage(&remote, &name, Pin::Kept(&holder), false, &shown)
                .await
        };
        // It was made above.
        let handle = runtime.as_ref().map(|runtime| runtime.spawn(work));
        let handle = handle.ok_or(DataError::Busy {
            path: self.dir.clone(),
        })?;
        Ok(Begun {
            progress,
            work: handle,
        })
    }

    /// Whose counters tell how far it is: of several that want the same, one copies and the others wait for it.
    pub(crate) fn shown(&self, uri: &str, own: &Arc<Progress>) -> Arc<Progress> {
        if own.stage() != Stage::Waiting {
            return own.clone();
        }
        let running = locked(&self.running);
        let others = running
            .get(uri)
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade);
        let copying = others
            .into_iter()
            .find(|progress| progress.stage() == Stage::Copying);
        copying.unwrap_or_else(|| own.clone())
    }
}
