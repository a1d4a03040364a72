//! The server as controllers see it: through `kube::Client`, in the process.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::world::{PATIENCE, World, config, pod};

#[tokio::test]
async fn kube_client_reads_and_writes() {
    let world = World::new().await;
    let client = world.server.client();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let made: Pod = serde_json::from_value(pod("a")).unwrap();
    let created = pods.create(&PostParams::default(), &made).await.unwrap();
    assert!(created.uid().is_some());
    let again = pods
        .create(&PostParams::default(), &made)
        .await
        .unwrap_err();
    assert!(matches!(again, kube::Error::Api(status) if status.is_already_exists()));
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    pods.patch("a", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Running"}}));
    let running = pods
        .patch_status("a", &PatchParams::default(), &status)
        .await
        .unwrap();
    assert_eq!(running.status.unwrap().phase.as_deref(), Some("Running"));
    let found = pods
        .list(&ListParams::default().labels("a=b"))
        .await
        .unwrap();
    assert_eq!(found.items.len(), 1);
    let gone = pods.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(gone.is_left(), "a pod is answered with itself");
    assert!(pods.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watcher_of_kube_runtime_sees_everything() {
    let world = World::new().await;
    for number in 0..20 {
        world.create_config(&format!("before-{number}")).await;
    }
    let configs: Api<ConfigMap> = Api::default_namespaced(world.server.client());
    for settings in [
        watcher::Config::default().page_size(7),
        watcher::Config::default().streaming_lists(),
    ] {
        let stream = watcher(configs.clone(), settings).applied_objects();
        let mut stream = std::pin::pin!(stream);
        let mut seen = Vec::new();
        while seen.len() < 20 {
            let object = tokio::time::timeout(PATIENCE, stream.try_next())
                .await
                .unwrap();
            seen.push(object.unwrap().unwrap().name_any());
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 20);
        let made: ConfigMap = serde_json::from_value(config("later")).unwrap();
        configs.create(&PostParams::default(), &made).await.unwrap();
        let next = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap();
        assert_eq!(next.unwrap().unwrap().name_any(), "later");
        configs
            .delete("later", &DeleteParams::default())
            .await
            .unwrap();
    }
}
