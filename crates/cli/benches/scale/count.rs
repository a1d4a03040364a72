//! Counts pods as they get their node or begin to run, and jobs as they reach a phase, by a watch that goes on where it was broken off: under this load the API
//! server drops watchers by the dozen, and listing anew would itself be load.

use std::collections::HashSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use stoke_api::TrainJob;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long the count may stand still.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Count {
    what: &'static str,
    counted: watch::Receiver<(usize, Instant)>,
    counting: JoinHandle<Result<()>>,
}

/// As little of a pod or job as will do: reading is not what is measured.
#[derive(Clone, Deserialize)]
struct Counted {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: String,
    resource_version: String,
}

impl Count {
    pub async fn bound(client: &Client) -> Result<Self> {
        Self::of::<Pod>(client, "pods bound", Some("spec.nodeName!="), |_| true).await
    }

    pub async fn running(client: &Client) -> Result<Self> {
        let selector = Some("status.phase=Running");
        Self::of::<Pod>(client, "pods running", selector, |_| true).await
    }

    pub async fn jobs_running(client: &Client) -> Result<Self> {
        let runs = |job: &Counted| job.status.phase == "Running";
        Self::of::<TrainJob>(client, "jobs running", None, runs).await
    }

    pub async fn jobs_complete(client: &Client) -> Result<Self> {
        let is_complete = |job: &Counted| job.status.phase == "Complete";
        Self::of::<TrainJob>(client, "jobs complete", None, is_complete).await
    }

    /// Counts from now on, in all namespaces. With a selector an object appears when it is as selected.
    async fn of<K>(
        client: &Client,
        what: &'static str,
        selector: Option<&'static str>,
        counts: fn(&Counted) -> bool,
    ) -> Result<Self>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let all: Api<K> = Api::all(client.clone());
        let list = all.list_metadata(&ListParams::default().limit(1)).await?;
        let from = list.metadata.resource_version.context("no version")?;
        let (sender, counted) = watch::channel((0, Instant::now()));
        let requests = Request::new(K::url_path(&(), None));
        let mut parameters = WatchParams::default().timeout(290);
        parameters.field_selector = selector.map(ToOwned::to_owned);
        let counting = count(client.clone(), requests, parameters, from, counts, sender);
        Ok(Self {
            what,
            counted,
            counting: tokio::spawn(counting),
        })
    }

    /// When the last of so many was counted.
    pub async fn reach(mut self, wanted: usize) -> Result<Instant> {
        loop {
            let (count, at) = *self.counted.borrow_and_update();
            if count >= wanted {
                return Ok(at);
            }
            match tokio::time::timeout(PATIENCE, self.counted.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    (&mut self.counting).await??;
                    bail!("the watch ended");
                }
                Err(_) => bail!("{}: no more than {count} of {wanted}", self.what),
            }
        }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.counting.abort();
    }
}

async fn count(
    client: Client,
    requests: Request,
    parameters: WatchParams,
    mut from: String,
    counts: fn(&Counted) -> bool,
    counted: watch::Sender<(usize, Instant)>,
) -> Result<()> {
    let mut seen = HashSet::new();
    loop {
        let request = requests.watch(&parameters, &from)?;
        let mut events = match client.request_events::<Counted>(request).await {
            Ok(events) => events.boxed(),
            Err(error) => {
                eprintln!("the watch was refused, trying again: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while let Some(Ok(event)) = events.next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let counts = counts(&object);
                    from = object.metadata.resource_version;
                    if counts && seen.insert(object.metadata.uid) {
                        counted.send_replace((seen.len(), Instant::now()));
                    }
                }
                WatchEvent::Deleted(object) => from = object.metadata.resource_version,
                WatchEvent::Bookmark(mark) => from = mark.metadata.resource_version,
                WatchEvent::Error(status) => bail!("{}", status.message),
            }
        }
    }
}
