//! Writes digests on pods: one patch of one annotation for each container that ended.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use stoke_api::names::MEMORY_DIGEST_ANNOTATION;
use tokio::sync::mpsc;

use super::Shared;
use super::deeds::Who;
use super::roster::Report;

/// How long a stopping agent waits for what is being written.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(5);
/// A server that is away is asked again after 1, 2, 4, ... seconds. Then the digest is let go: it is a help, not a record.
const TRIES_MAX: u32 = 6;

pub(super) struct Writer {
    client: Client,
    shared: Arc<Shared>,
}

/// Whether it is worth asking again.
enum Failed {
    ForNow(kube::Error),
    ForGood(kube::Error),
}

impl Writer {
    pub(super) fn new(client: Client, shared: Arc<Shared>) -> Self {
        Self { client, shared }
    }

    pub(super) async fn run(self, mut reports: mpsc::Receiver<Report>) {
        while let Some(report) = reports.recv().await {
            let written = self.write_patiently(&report).await;
            let mut own = self.shared.own();
            match written {
                Ok(()) => own.digests_written += 1,
                Err(error) => {
                    own.digests_failed += 1;
                    let causes = crate::causes::chain(&error);
                    let Who { namespace, pod, .. } = &report.who;
                    tracing::warn!(namespace, pod, error = causes, "a digest is not written");
                }
            }
        }
    }

    async fn write_patiently(&self, report: &Report) -> Result<(), kube::Error> {
        let mut tries = 1;
        loop {
            match self.write(report).await {
                Ok(()) => return Ok(()),
                Err(Failed::ForNow(_)) if tries < TRIES_MAX => {
                    tokio::time::sleep(Duration::from_secs(1 << (tries - 1))).await;
                    tries += 1;
                }
                Err(Failed::ForNow(error) | Failed::ForGood(error)) => return Err(error),
            }
        }
    }

    async fn write(&self, report: &Report) -> Result<(), Failed> {
        let text = serde_json::to_string(&report.digest)
            .map_err(|error| Failed::ForGood(kube::Error::SerdeError(error)))?;
        // With the uid: a pod of the same name that came after it is not meant.
        let patch = json!({"metadata": {
            "uid": report.who.uid, "annotations": {MEMORY_DIGEST_ANNOTATION: text}
        }});
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &report.who.namespace);
        let patched = pods
            .patch_metadata(
                &report.who.pod,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await;
        match patched {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => match status.code {
                // The pod went first; who would have read it has gone too.
                404 | 409 => Ok(()),
                429 | 500..=599 | 401 => Err(Failed::ForNow(kube::Error::Api(status))),
                _ => Err(Failed::ForGood(kube::Error::Api(status))),
            },
            Err(error) => Err(Failed::ForNow(error)),
        }
    }
}
