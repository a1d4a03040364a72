//! Writing a pod's status and annotations to the API.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use stoke_api::contract::checkpoints::Saved;
use stoke_api::names::{
    GPU_DEVICES_ANNOTATION, LAST_CHECKPOINT_ANNOTATION, SAVED_ANNOTATION, USAGE_ANNOTATION,
};

use super::Worker;
use crate::causes::chain;
use crate::checkpoint;
use crate::status::{self, Observed};
use crate::usage::Usage;

/// How often a write is repeated at once when somebody else wrote in between.
const CONFLICTS_MAX: u32 = 5;
/// Fields of the status that are the node's to remove.
const OWN_FIELDS: [&str; 12] = [
    "phase",
    "reason",
    "message",
    "conditions",
    "containerStatuses",
    "initContainerStatuses",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "qosClass",
    "startTime",
];

impl Worker {
    /// Writes the status if it differs from what the API has. False if it must be tried again.
    pub(super) async fn publish(&mut self) -> bool {
        // A pod we neither accepted nor turned away is not ours to describe.
        if self.record.is_none() && self.fate.is_none() {
            return true;
        }
        let name = self.pod.name_any();
        for _ in 0..CONFLICTS_MAX {
            if self.gone {
                return true;
            }
            let Some(patch) = status_patch(self.pod.status.as_ref(), &self.status()) else {
                return true;
            };
            // With both, the write fails when the object is not the one the status was made from.
            let identity = json!({"uid": self.uid, "resourceVersion": self.pod.resource_version()});
            let patch = json!({"metadata": identity, "status": patch});
            match self
                .pods()
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(pod) => self.pod = Arc::new(pod),
                Err(kube::Error::Api(status)) if status.is_not_found() => self.gone = true,
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    if !self.fetch().await {
                        return false;
                    }
                }
                Err(error) => {
                    tracing::warn!(pod = name, error = %chain(&error), "a pod's status could not be written");
                    return false;
                }
            }
        }
        false
    }

    fn status(&self) -> PodStatus {
        let granted = self.granted();
        status::pod_status(&Observed {
            pod: &self.pod,
            granted: &granted,
            address: &self.shared.facts.address,
            accepted_at: self.record.as_ref().map(|record| record.accepted_at),
            shim: self.shim.as_ref(),
            hold: self.hold.as_ref(),
            health: &self.health,
            fate: self.fate.as_ref(),
            resize: self.resize.as_ref(),
            ended: self.ended,
            now: Timestamp::now(),
        })
    }

    /// Reads the pod anew. False if that failed.
    async fn fetch(&mut self) -> bool {
        match self.pods().get_opt(&self.pod.name_any()).await {
            Ok(Some(pod)) if pod.uid().as_deref() == Some(&self.uid) => self.pod = Arc::new(pod),
            Ok(_) => self.gone = true,
            Err(error) => {
                tracing::warn!(pod = self.pod.name_any(), error = %chain(&error), "a pod could not be read");
                return false;
            }
        }
        true
    }

    /// Tells which GPUs the pod was given, unless it already says so.
    pub(super) async fn publish_gpus(&mut self) {
        if self.gpus.is_empty() || self.pod.annotations().contains_key(GPU_DEVICES_ANNOTATION) {
            return;
        }
        let indices: Vec<String> = self.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
        self.annotate(GPU_DEVICES_ANNOTATION, Some(indices.join(",")))
            .await;
    }

    pub(super) async fn publish_usage(&mut self, usage: &Usage) {
        if let Ok(text) = serde_json::to_string(usage) {
            self.annotate(USAGE_ANNOTATION, Some(text)).await;
        }
    }

    /// Tells when the newest checkpoint was written, once for each. What its program says is believed at once; what is found may be half
    /// written for as long as a container runs.
    pub(super) async fn publish_checkpoint(&mut self, is_running: bool) {
        let now = Timestamp::now();
        let settled = if is_running {
            now.checked_sub(checkpoint::SETTLES_IN).unwrap_or(now)
        } else {
            Timestamp::MAX
        };
        if let Some(saved) = self.watched.saved() {
            self.publish_saved(&saved).await;
            return;
        }
        let mut newest = self.watched.checkpoint();
        let directory = checkpoint::directory(&self.pod, &self.shared.claims.borrow());
        if let Some(dir) = directory {
            let find = move || checkpoint::newest(&dir, settled);
            let found = tokio::task::spawn_blocking(find).await;
            newest = newest.max(found.ok().flatten());
        }
        let told = self.pod.annotations().get(LAST_CHECKPOINT_ANNOTATION);
        if let Some(newest) = newest.filter(|newest| is_newer(*newest, told)) {
            let text = newest.to_string();
            self.annotate(LAST_CHECKPOINT_ANNOTATION, Some(text)).await;
        }
    }

    /// The same where it is known which one it is: nothing has to be guessed from files.
    async fn publish_saved(&mut self, saved: &Saved) {
        let Ok(text) = serde_json::to_string(saved) else {
            return;
        };
        if self.pod.annotations().get(SAVED_ANNOTATION) != Some(&text) {
            let annotations = json!({LAST_CHECKPOINT_ANNOTATION: saved.at, SAVED_ANNOTATION: text});
            self.annotate_all(SAVED_ANNOTATION, &annotations).await;
        }
    }

    /// Writes an annotation, or takes it away. False if that must be tried again.
    pub(super) async fn annotate(&mut self, name: &str, value: Option<String>) -> bool {
        self.annotate_all(name, &json!({name: value})).await
    }

    async fn annotate_all(&mut self, name: &str, annotations: &Value) -> bool {
        if self.gone {
            return true;
        }
        let patch = json!({"metadata": {"uid": self.uid, "annotations": annotations}});
        let params = PatchParams::default();
        match self
            .pods()
            .patch(&self.pod.name_any(), &params, &Patch::Merge(patch))
            .await
        {
            Ok(pod) => {
                self.pod = Arc::new(pod);
                true
            }
            Err(error) => {
                tracing::debug!(pod = self.pod.name_any(), name, error = %chain(&error), "an annotation could not be written");
                let is_gone = matches!(&error, kube::Error::Api(status) if status.is_not_found());
                is_gone
            }
        }
    }
}

/// Whether a checkpoint is news. A file that is older than what a program said of it does not take that back.
fn is_newer(newest: Timestamp, told: Option<&String>) -> bool {
    let told = told.and_then(|told| told.parse::<Timestamp>().ok());
    told.is_none_or(|told| told < newest)
}

/// The merge patch from one status to the other, `None` if there is nothing to change.
fn status_patch(before: Option<&PodStatus>, after: &PodStatus) -> Option<Value> {
    let before = before
        .and_then(|status| serde_json::to_value(status).ok())
        .unwrap_or_default();
    let after = serde_json::to_value(after).unwrap_or_default();
    let mut patch = serde_json::Map::new();
    for (field, value) in after.as_object().into_iter().flatten() {
        if before.get(field) != Some(value) {
            patch.insert(field.clone(), value.clone());
        }
    }
    for field in OWN_FIELDS {
        if after.get(field).is_none() && before.get(field).is_some_and(|value| !value.is_null()) {
            patch.insert(field.to_owned(), Value::Null);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// How long a pod that is told to stop may take.
pub(super) fn grace_seconds(pod: &Pod) -> u64 {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let own = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    asked
        .or(own)
        .and_then(|seconds| u64::try_from(seconds).ok())
        .unwrap_or(30)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).expect("a status")
    }

    #[test]
    fn only_what_differs_is_sent_and_only_what_is_ours_is_removed() {
        let before = status(
            json!({"phase": "Pending", "reason": "x", "nominatedNodeName": "n", "hostIP": "1.2.3.4"}),
        );
        let after = status(json!({"phase": "Running", "hostIP": "1.2.3.4"}));
        assert_eq!(
            status_patch(Some(&before), &after),
            Some(json!({"phase": "Running", "reason": null}))
        );
        assert_eq!(status_patch(Some(&after), &after), None);
        assert_eq!(
            status_patch(None, &after),
            Some(json!({"phase": "Running", "hostIP": "1.2.3.4"}))
        );
    }

    #[test]
    fn a_checkpoint_is_not_taken_back() {
        let said: Timestamp = "2026-01-01T00:00:05.7Z".parse().expect("a time");
        let of_file: Timestamp = "2026-01-01T00:00:05Z".parse().expect("a time");
        assert!(is_newer(of_file, None));
        assert!(is_newer(said, Some(&of_file.to_string())));
        assert!(!is_newer(of_file, Some(&said.to_string())));
        assert!(!is_newer(said, Some(&said.to_string())), "told once");
        assert!(is_newer(of_file, Some(&"nonsense".to_owned())));
    }

    #[test]
    fn grace_is_what_the_deletion_says_else_the_pods_own() {
        let pod = |value: Value| -> Pod { serde_json::from_value(value).expect("a pod") };
        assert_eq!(grace_seconds(&pod(json!({"spec": {"containers": []}}))), 30);
        assert_eq!(
            grace_seconds(&pod(
                json!({"spec": {"containers": [], "terminationGracePeriodSeconds": 5}})
            )),
            5
        );
        let deleted = json!({"metadata": {"deletionGracePeriodSeconds": 0}, "spec": {"containers": [], "terminationGracePeriodSeconds": 5}});
        assert_eq!(grace_seconds(&pod(deleted)), 0);
    }
}
