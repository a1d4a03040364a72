//! Counts pods as they get their node, by a watch that goes on where it was broken off: under this load the API server drops watchers by
//! the dozen, and listing anew would itself be load.

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

pub struct Binds {
    counted: watch::Receiver<(usize, Instant)>,
    counting: JoinHandle<Result<()>>,
}

/// As little of a pod as will do: reading is not what is measured.
#[derive(Clone, Deserialize)]
struct Bound {
    metadata: Metadata,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: String,
    resource_version: String,
}

impl Binds {
    /// Counts from now on, in all namespaces.
    pub async fn count(client: &Client) -> Result<Self> {
        let pods: Api<Pod> = Api::all(client.clone());
        let list = pods.list_metadata(&ListParams::default().limit(1)).await?;
        let from = list.metadata.resource_version.context("no version")?;
        let (sender, counted) = watch::channel((0, Instant::now()));
        let counting = tokio::spawn(count(client.clone(), from, sender));
        Ok(Self { counted, counting })
    }

    /// When the last of so many was bound.
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
                Err(_) => bail!("no more than {count} of {wanted} pods are bound"),
            }
        }
    }
}

impl Drop for Binds {
    fn drop(&mut self) {
        self.counting.abort();
    }
}

async fn count(
    client: Client,
    mut from: String,
    counted: watch::Sender<(usize, Instant)>,
) -> Result<()> {
    let requests = Request::new(Pod::url_path(&(), None));
    // With this a pod appears when it is bound.
    let parameters = WatchParams::default()
        .fields("spec.nodeName!=")
        .timeout(290);
    let mut bound = HashSet::new();
    loop {
        let request = requests.watch(&parameters, &from)?;
        let mut events = match client.request_events::<Bound>(request).await {
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
                    if bound.insert(pod.metadata.uid) {
                        counted.send_replace((bound.len(), Instant::now()));
                    }
                }
                WatchEvent::Deleted(pod) => from = pod.metadata.resource_version,
                WatchEvent::Bookmark(mark) => from = mark.metadata.resource_version,
                WatchEvent::Error(status) => bail!("{}", status.message),
            }
        }
    }
}
