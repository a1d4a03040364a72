//! How many objects a namespace may hold.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};

use crate::world::{CONFIGS, PATIENCE, PODS, World, config, pod};

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

async fn limit(world: &World, hard: Value) -> Value {
    let quota = json!({"metadata": {"name": "team"}, "spec": {"hard": hard}});
    world.post(QUOTAS, quota).await.ok()
}

/// Housekeeping counts after the answer.
async fn used_becomes(world: &World, wanted: Value) {
    let path = format!("{QUOTAS}/team");
    let waited = tokio::time::timeout(PATIENCE, async {
        while world.get(&path).await.ok()["status"]["used"] != wanted {
            tokio::task::yield_now().await;
        }
    });
    let is_so = waited.await.is_ok();
    let status = world.get(&path).await.ok()["status"].take();
    assert!(is_so, "not {wanted}: {status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_race_lets_one_too_many_in() {
    let world = World::kept().await;
    world.post(CONFIGS, config("before")).await.ok();
    let made = limit(&world, json!({"count/configmaps": "6", "pods": "3"})).await;
    assert_eq!(
        made["status"]["used"],
        json!({"count/configmaps": "1", "pods": "0"})
    );
    let world = &world;
    let configs =
        (0..40).map(|i| async move { world.post(CONFIGS, config(&format!("c{i}"))).await });
    let configs: Vec<_> = configs.collect::<FuturesUnordered<_>>().collect().await;
    let pods = (0..20).map(|i| async move { world.post(PODS, pod(&format!("p{i}"))).await });
    let pods: Vec<_> = pods.collect::<FuturesUnordered<_>>().collect().await;
    for (answers, let_in) in [(configs, 5), (pods, 3)] {
        let (made, refused): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .partition(|answer| answer.code.is_success());
        assert_eq!(made.len(), let_in);
        for answer in refused {
            answer.refused(403, "Forbidden");
        }
    }
    used_becomes(world, json!({"count/configmaps": "6", "pods": "3"})).await;
}

#[tokio::test]
async fn what_is_in_the_way_is_said_and_room_comes_back() {
    let world = World::kept().await;
    limit(&world, json!({"pods": "1", "count/configmaps": "1"})).await;
    world.post(PODS, pod("a")).await.ok();
    world.post(CONFIGS, config("a")).await.ok();
    let refused = world.post(PODS, pod("b")).await.shown();
    insta::assert_snapshot!(refused, @r#"403 Forbidden: pods "b" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1"#);
    // A pod that has ended is no longer counted, though it is still there.
    let ended = json!({"status": {"phase": "Succeeded"}});
    world
        .patch(&format!("{PODS}/a/status"), "merge", ended)
        .await
        .ok();
    used_becomes(&world, json!({"pods": "0", "count/configmaps": "1"})).await;
    world.post(PODS, pod("b")).await.ok();
    world.delete(&format!("{CONFIGS}/a")).await.ok();
    world.post(CONFIGS, config("b")).await.ok();
    used_becomes(&world, json!({"pods": "1", "count/configmaps": "1"})).await;
    // What was refused after all was not counted.
    world
        .post(CONFIGS, config("b"))
        .await
        .refused(403, "Forbidden");
    let more = json!({"spec": {"hard": {"count/configmaps": "2"}}});
    let raised = world
        .patch(&format!("{QUOTAS}/team"), "merge", more)
        .await
        .ok();
    assert_eq!(raised["status"]["hard"]["count/configmaps"], "2");
    world
        .post(CONFIGS, config("b"))
        .await
        .refused(409, "AlreadyExists");
    used_becomes(&world, json!({"pods": "1", "count/configmaps": "1"})).await;
    world.post(CONFIGS, config("c")).await.ok();
}

#[tokio::test]
async fn a_status_that_someone_makes_up_limits_nothing() {
    let world = World::new().await;
    limit(&world, json!({"count/configmaps": "1"})).await;
    let made_up =
        json!({"status": {"hard": {"count/configmaps": "9"}, "used": {"count/configmaps": "-5"}}});
    let path = format!("{QUOTAS}/team/status");
    let told = world.patch(&path, "merge", made_up).await.ok();
    assert_eq!(
        told["status"],
        json!({"hard": {"count/configmaps": "1"}, "used": {"count/configmaps": "0"}})
    );
    world.post(CONFIGS, config("a")).await.ok();
    world
        .post(CONFIGS, config("b"))
        .await
        .refused(403, "Forbidden");
}
