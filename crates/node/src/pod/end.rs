//! From the last process to the last trace.

use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};

use super::{Backoff, Worker};
use crate::causes::chain;

impl Worker {
    /// Tells how the pod ended, keeps its logs until somebody deletes it, and then removes everything.
    pub(super) async fn end(mut self) {
        self.ended = true;
        self.resize = None;
        // First, so that whoever reads that the pod has ended finds its room free.
        self.shared.release(&self.uid);
        self.release_data().await;
        let mut backoff = Backoff::new();
        loop {
            let told = match self.shim.take() {
                Some(status) => {
                    let told = self.tell_digests(&status).await;
                    self.shim = Some(status);
                    told
                }
                None => true,
            };
            let written = self.publish().await && told;
            if self.is_leaving() {
                break;
            }
            let again = backoff.wait();
            tokio::select! {
                () = self.intent_changed() => {}
                () = tokio::time::sleep(again), if !written => {}
            }
        }
        self.remove_files().await;
        self.remove_object().await;
    }

    async fn remove_files(&self) {
        let mut backoff = Backoff::new();
        loop {
            let dir = self.dir.clone();
            let removed = tokio::task::spawn_blocking(move || dir.remove()).await;
            match removed {
                Ok(Err(error)) => {
                    tracing::warn!(pod = self.pod.name_any(), error = %chain(&error), "a pod's files could not be removed");
                }
                _ => return,
            }
            tokio::time::sleep(backoff.wait()).await;
        }
    }

    /// Lets the object go: nothing of the pod is left.
    async fn remove_object(&mut self) {
        let mut backoff = Backoff::new();
        while !self.gone {
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(self.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match self.pods().delete(&self.pod.name_any(), &params).await {
                Ok(_) => return,
                // Gone, or already another pod of the same name.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                    return;
                }
                Err(error) => {
                    tracing::warn!(pod = self.pod.name_any(), error = %chain(&error), "an ended pod's object could not be removed");
                }
            }
            let again = backoff.wait();
            tokio::select! {
                () = self.intent_changed() => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }
}
