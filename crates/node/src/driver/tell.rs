//! What is said of copying: on the pod that waits for it, and on the dataset.
//!
//! Many nodes write on one dataset. So each writes on condition that it is as it was read, and reads it again where it is not; and nobody
//! waits for that, for what could not be said is said later.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use stoke_api::dataset::Staging;
use stoke_api::names::{
    STAGING_ANNOTATION, STAGING_FAILED_REASON, STAGING_MANAGER, STAGING_REASON,
};
use stoke_api::{Dataset, DatasetStatus};

use super::ledger::Volume;
use crate::causes::chain;

/// How often a dataset that others write on is tried before it is left for later.
const TRIES_MAX: u32 = 6;

/// What became of a dataset on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change<'a> {
    Here { bytes: u64, files: u64 },
    Gone,
    Failed(&'a str),
}

/// What is to be written so that the dataset says so; none where it does.
fn patch_of(told: &DatasetStatus, node: &str, change: Change<'_>) -> Option<Value> {
    let is_warm = told.warm_nodes.iter().any(|name| name == node);
    let nodes = |is_warm: bool| {
        let others = told.warm_nodes.iter().filter(|name| *name != node);
        let mut nodes: Vec<&str> = others.map(String::as_str).collect();
        nodes.extend(is_warm.then_some(node));
        nodes.sort_unstable();
        nodes.dedup();
        json!(nodes)
    };
    match change {
        Change::Failed(message) => {
            (told.message.as_deref() != Some(message)).then(|| json!({"message": message}))
        }
        Change::Gone => is_warm.then(|| json!({"warmNodes": nodes(false)})),
        Change::Here { bytes, files } => {
            let is_told = is_warm
                && told.message.is_none()
                && told.size.is_some_and(|size| size.0 == bytes)
                && told.files == i64::try_from(files).ok();
            (!is_told).then(|| {
                json!({"size": bytes.to_string(), "files": files, "message": null, "warmNodes": nodes(true)})
            })
        }
    }
}

/// How all volumes of each pod stand. A pod has one place for it, so what keeps it the longest is told there.
#[derive(Debug, Default)]
pub(super) struct Standing(BTreeMap<String, BTreeMap<String, (String, String)>>);

impl Standing {
    /// Notes how one volume stands. Returns how its pod does: what failed, else what is on its way, else that all is there.
    fn note(&mut self, volume: &Volume, reason: &str, message: &str) -> (String, String) {
        let pod = format!("{}/{}", volume.namespace, volume.pod);
        let volumes = self.0.entry(pod).or_default();
        let new = (reason.to_owned(), message.to_owned());
        volumes.insert(volume.id.clone(), new.clone());
        let of = |reason: &str| volumes.values().find(|it| it.0 == reason).cloned();
        of(STAGING_FAILED_REASON)
            .or_else(|| of(STAGING_REASON))
            .unwrap_or(new)
    }

    fn forget(&mut self, id: &str) {
        self.0.retain(|_, volumes| {
            volumes.remove(id);
            !volumes.is_empty()
        });
    }
}

pub(super) struct Teller {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) standing: Mutex<Standing>,
}

impl Teller {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing more will be said of this volume.
    pub(super) fn forget(&self, id: &str) {
        self.standing().forget(id);
    }

    pub(super) fn datasets(&self, namespace: &str) -> Api<Dataset> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// On the pod, where its job reads it. Whether it could be said changes nothing.
    pub(super) async fn pod(&self, volume: &Volume, reason: &str, message: &str) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &volume.namespace);
        let (reason, message) = self.standing().note(volume, reason, message);
        let text = Staging::text(&reason, &message);
        let patch = json!({"metadata": {"annotations": {STAGING_ANNOTATION: text}}});
        let params = PatchParams {
            field_manager: Some(STAGING_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match api
            .patch_metadata(&volume.pod, &params, &Patch::Merge(patch))
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                tracing::warn!(pod = volume.pod, namespace = volume.namespace, error = %chain(&error), "a pod could not be told how far its data is");
            }
            Ok(_) => {}
        }
    }

    /// On the dataset. Whether it says so now.
    pub(super) async fn dataset(&self, namespace: &str, name: &str, change: Change<'_>) -> bool {
        match self.write(namespace, name, change).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(dataset = name, namespace, error = %chain(&error), "a dataset's status could not be written");
                false
            }
        }
    }

    async fn write(
        &self,
        namespace: &str,
        name: &str,
        change: Change<'_>,
    ) -> Result<(), kube::Error> {
        let api = self.datasets(namespace);
        let mut tries = 0;
        loop {
            // One that is gone has nothing to say.
            let Some(dataset) = api.get_opt(name).await? else {
                return Ok(());
            };
            let told = dataset.status.clone().unwrap_or_default();
            let Some(status) = patch_of(&told, &self.node, change) else {
                return Ok(());
            };
            let read = dataset.resource_version();
            let patch = json!({"metadata": {"resourceVersion": read}, "status": status});
            let written = api
                .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
                .await;
            tries += 1;
            match written {
                Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES_MAX => {
                    tokio::time::sleep(self.wait(tries)).await;
                }
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                written => return written.map(drop),
            }
        }
    }

    /// Longer each time, and another for each node.
    fn wait(&self, tries: u32) -> Duration {
        let mut hasher = DefaultHasher::new();
        (&self.node, tries).hash(&mut hasher);
        Duration::from_millis(20 + hasher.finish() % (100 << tries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_api::Bytes;
    use stoke_api::names::STAGED_REASON;

    #[test]
    fn what_keeps_a_pod_the_longest_is_told_on_it() {
        let volume = |id: &str| Volume {
            id: id.to_owned(),
            target: "/t".into(),
            namespace: "ml".to_owned(),
            pod: "p".to_owned(),
            dataset: "d".to_owned(),
        };
        let mut standing = Standing::default();
        let mut note = |id, reason, message| standing.note(&volume(id), reason, message).1;
        assert_eq!(note("a", STAGING_REASON, "a 1 of 9"), "a 1 of 9");
        assert_eq!(note("b", STAGING_FAILED_REASON, "b 403"), "b 403");
        assert_eq!(note("a", STAGING_REASON, "a 2 of 9"), "b 403");
        assert_eq!(note("b", STAGED_REASON, ""), "a 2 of 9");
        assert_eq!(note("a", STAGED_REASON, ""), "");
        standing.forget("a");
        standing.forget("b");
        assert!(standing.0.is_empty());
    }

    #[test]
    fn a_node_writes_for_itself_and_only_what_is_news() {
        let of = |nodes: &[&str], message: Option<&str>| DatasetStatus {
            size: Some(Bytes(7)),
            files: Some(2),
            message: message.map(str::to_owned),
            warm_nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
        };
        let here = Change::Here { bytes: 7, files: 2 };
        let whole =
            |nodes: &[&str]| json!({"size": "7", "files": 2, "message": null, "warmNodes": nodes});
        for (told, change, patch) in [
            (DatasetStatus::default(), here, Some(whole(&["b"]))),
            (of(&["a", "c"], None), here, Some(whole(&["a", "b", "c"]))),
            (of(&["a", "b"], None), here, None),
            (of(&["a", "b"], Some("x")), here, Some(whole(&["a", "b"]))),
            (
                of(&["a", "b"], None),
                Change::Here { bytes: 8, files: 2 },
                Some(json!({"size": "8", "files": 2, "message": null, "warmNodes": ["a", "b"]})),
            ),
            (
                of(&["a", "b"], None),
                Change::Gone,
                Some(json!({"warmNodes": ["a"]})),
            ),
            (of(&["a"], None), Change::Gone, None),
            (
                of(&["a"], None),
                Change::Failed("no"),
                Some(json!({"message": "no"})),
            ),
            (of(&["a"], Some("no")), Change::Failed("no"), None),
        ] {
            assert_eq!(patch_of(&told, "b", change), patch, "{told:?} {change:?}");
        }
    }
}
