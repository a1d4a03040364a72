//! Counts pods as they get their node, or as they begin to run, by a watch that goes on where it was broken off: under this load the API
//! server drops watchers by the dozen, and listing anew would itself be load.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::Request;
use kube::{Api, Client, Resource as _};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long the count may stand still.
const PATIENCE: Duration = Duration::from_secs(120);

pub struct PodCount {
    what: &'static str,
    counted: watch::Receiver<(usize, Instant)>,
    counting: JoinHandle<Result<()>>,
}

/// As little of a pod as will do: reading is not what is measured.
#[derive(Clone, Deserialize)]
struct Counted {
    metadata: Metadata,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: String,
    resource_version: String,
}

impl PodCount {
    pub async fn bound(client: &Client) -> Result<Self> {
        Self::of(client, "bound", "spec.nodeName!=").await
    }

    pub async fn running(client: &Client) -> Result<Self> {
        Self::of(client, "running", "status.phase=Running").await
    }

    /// Counts from now on, in all namespaces. With a selector a pod appears when it is as selected.
    async fn of(client: &Client, what: &'static str, selector: &'static str) -> Result<Self> {
        let pods: Api<Pod> = Api::all(client.clone());
        let list = pods.list_metadata(&ListParams::default().limit(1)).await?;
        let from = list.metadata.resource_version.context("no version")?;
        let (sender, counted) = watch::channel((0, Instant::now()));
        let counting = tokio::spawn(count(client.clone(), selector, from, sender));
        Ok(Self {
            what,
            counted,
            counting,
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
                Err(_) => bail!("no more than {count} of {wanted} pods are {}", self.what),
            }
        }
    }
}

impl Drop for PodCount {
    fn drop(&mut self) {
        self.counting.abort();
    }
}

async fn count(
    client: Client,
    selector: &'static str,
    mut from: String,
    counted: watch::Sender<(usize, Instant)>,
) -> Result<()> {
    let requests = Request::new(Pod::url_path(&(), None));
    let parameters = WatchParams::default().fields(selector).timeout(290);
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
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                    from = pod.metadata.resource_version;
                    if seen.insert(pod.metadata.uid) {
                        counted.send_replace((seen.len(), Instant::now()));
                    }
                }
                WatchEvent::Deleted(pod) => from = pod.metadata.resource_version,
                WatchEvent::Bookmark(mark) => from = mark.metadata.resource_version,
                WatchEvent::Error(status) => bail!("{}", status.message),
            }
        }
    }
}
