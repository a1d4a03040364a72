//! Deletion and what follows from it: grace, finalizers, owners, namespaces.

use futures::Stream;
use serde_json::{Value, json};

use crate::world::{CONFIGS, PODS, World, config, next_event, pod};

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn placed(name: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = "here".into();
    pod
}

fn owned(name: &str, owner: &Value) -> Value {
    let mut object = config(name);
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true, "controller": true,
    }]);
    object
}

/// Waits until the watch says `wanted`; what it says before is returned.
async fn until(events: &mut (impl Stream<Item = Value> + Unpin), wanted: &str) -> Vec<String> {
    let mut before = Vec::new();
    loop {
        let event = next_event(events).await;
        if event == wanted {
            return before;
        }
        before.push(event);
    }
}

#[tokio::test]
async fn a_running_pod_gets_its_grace() {
    let world = World::new().await;
    world.post(PODS, placed("a")).await.ok();
    let path = format!("{PODS}/a");
    let ending = world.delete(&path).await.ok();
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(ending["metadata"]["generation"], 2);
    // A longer grace later changes nothing; a shorter one does.
    let same = world
        .delete_with(&path, json!({"gracePeriodSeconds": 60}))
        .await
        .ok();
    assert_eq!(same, ending);
    let sooner = world
        .delete_with(&path, json!({"gracePeriodSeconds": 5}))
        .await
        .ok();
    assert_eq!(sooner["metadata"]["deletionGracePeriodSeconds"], 5);
    assert!(
        sooner["metadata"]["deletionTimestamp"].as_str()
            < ending["metadata"]["deletionTimestamp"].as_str()
    );
    let gone = world
        .delete_with(&path, json!({"gracePeriodSeconds": 0}))
        .await
        .ok();
    assert_eq!(gone["kind"], "Pod");
    world.get(&path).await.refused(404, "NotFound");

    world.create_pod("nowhere").await;
    world.delete(&format!("{PODS}/nowhere")).await.ok();
    world
        .get(&format!("{PODS}/nowhere"))
        .await
        .refused(404, "NotFound");

    world.post(PODS, placed("done")).await.ok();
    world
        .patch(
            &format!("{PODS}/done/status"),
            "merge",
            json!({"status": {"phase": "Succeeded"}}),
        )
        .await
        .ok();
    world.delete(&format!("{PODS}/done")).await.ok();
    world
        .get(&format!("{PODS}/done"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn preconditions() {
    let world = World::new().await;
    let object = world.create_config("a").await;
    let path = format!("{CONFIGS}/a");
    let with = |preconditions: Value| json!({"preconditions": preconditions});
    world
        .delete_with(&path, with(json!({"uid": "other"})))
        .await
        .refused(409, "Conflict");
    world
        .delete_with(&path, with(json!({"resourceVersion": "1"})))
        .await
        .refused(409, "Conflict");
    let gone = world
        .delete_with(&path, with(json!({"uid": uid(&object)})))
        .await
        .ok();
    assert_eq!(
        (&gone["kind"], &gone["status"]),
        (&json!("Status"), &json!("Success"))
    );
    assert_eq!(gone["details"]["uid"], object["metadata"]["uid"]);
    world.delete(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn finalizers_hold() {
    let world = World::new().await;
    let mut body = config("a");
    body["metadata"]["finalizers"] = json!(["stokehold.dev/hold"]);
    world.post(CONFIGS, body).await.ok();
    let path = format!("{CONFIGS}/a");
    let held = world.delete(&path).await.ok();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["stokehold.dev/hold", "stokehold.dev/more"]}});
    world
        .patch(&path, "merge", more)
        .await
        .refused(422, "Invalid");
    world
        .patch(&path, "merge", json!({"data": {"still": "there"}}))
        .await
        .ok();
    world
        .patch(&path, "merge", json!({"metadata": {"finalizers": null}}))
        .await
        .ok();
    world.get(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn collections() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        let mut body = config(name);
        body["metadata"]["labels"] = json!({"which": name});
        world.post(CONFIGS, body).await.ok();
    }
    let deleted = world
        .delete(&format!("{CONFIGS}?labelSelector=which%20in%20(a,b)"))
        .await
        .ok();
    assert_eq!(deleted["kind"], "ConfigMapList");
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    let left = world.get(CONFIGS).await.ok();
    assert_eq!(left["items"][0]["metadata"]["name"], "c");
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_owned_goes_with_its_owner() {
    let world = World::kept().await;
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    let owner = world.create_config("owner").await;
    let child = world.post(CONFIGS, owned("child", &owner)).await.ok();
    world.post(CONFIGS, owned("grandchild", &child)).await.ok();
    world.create_config("bystander").await;
    world.delete(&format!("{CONFIGS}/owner")).await.ok();
    until(&mut events, "DELETED grandchild").await;
    let left = world.get(CONFIGS).await.ok();
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
    // One whose owner never was goes too; one of a kind nobody serves stays.
    let mut lost = owned("lost", &owner);
    world.post(CONFIGS, lost.clone()).await.ok();
    until(&mut events, "DELETED lost").await;
    lost["metadata"]["name"] = "foreign".into();
    lost["metadata"]["ownerReferences"][0]["apiVersion"] = "apps/v1".into();
    lost["metadata"]["ownerReferences"][0]["kind"] = "Deployment".into();
    world.post(CONFIGS, lost).await.ok();
    let after = world.post(CONFIGS, owned("after", &owner)).await.ok();
    assert_eq!(after["metadata"]["name"], "after");
    until(&mut events, "DELETED after").await;
    world.get(&format!("{CONFIGS}/foreign")).await.ok();
}

/// The namespace `default` may never be deleted, whoever is said to own it.
#[tokio::test]
async fn one_that_may_not_be_deleted_does_not_stop_the_others() {
    let world = World::kept().await;
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    let mut pods = world.watch(&format!("{PODS}?watch=1")).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let node = world.post("/api/v1/nodes", node).await.ok();
    let references = |owner: &Value| json!({"metadata": {"ownerReferences": owned("", owner)["metadata"]["ownerReferences"]}});
    let namespace = "/api/v1/namespaces/default";
    world
        .patch(namespace, "merge", references(&node))
        .await
        .ok();
    world.post(CONFIGS, owned("of-node", &node)).await.ok();

    // In the foreground: it blocks its owner, but the owner's other dependents go.
    world
        .delete_with(
            "/api/v1/nodes/n",
            json!({"propagationPolicy": "Foreground"}),
        )
        .await
        .ok();
    until(&mut events, "DELETED of-node").await;

    // In the background: its owner is gone for good.
    world
        .patch(
            namespace,
            "merge",
            json!({"metadata": {"ownerReferences": null}}),
        )
        .await
        .ok();
    let dead = world.create_config("dead").await;
    world.delete(&format!("{CONFIGS}/dead")).await.ok();
    world
        .patch(namespace, "merge", references(&dead))
        .await
        .ok();
    let owner = world.create_config("owner").await;
    let mut child = pod("child");
    child["metadata"]["ownerReferences"] =
        references(&owner)["metadata"]["ownerReferences"].clone();
    world.post(PODS, child).await.ok();
    world.delete(&format!("{CONFIGS}/owner")).await.ok();
    until(&mut pods, "DELETED child").await;
    world.get(namespace).await.ok();
}

#[tokio::test]
async fn in_the_foreground_the_owner_goes_last() {
    let world = World::kept().await;
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    let owner = world.create_config("owner").await;
    let mut child = owned("child", &owner);
    child["metadata"]["finalizers"] = json!(["stokehold.dev/hold"]);
    world.post(CONFIGS, child).await.ok();
    let held = world
        .delete_with(
            &format!("{CONFIGS}/owner"),
            json!({"propagationPolicy": "Foreground"}),
        )
        .await
        .ok();
    assert_eq!(
        held["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
    until(&mut events, "MODIFIED child").await;
    world.get(&format!("{CONFIGS}/owner")).await.ok();
    world
        .patch(
            &format!("{CONFIGS}/child"),
            "merge",
            json!({"metadata": {"finalizers": null}}),
        )
        .await
        .ok();
    let before = until(&mut events, "DELETED owner").await;
    assert!(before.contains(&"DELETED child".to_owned()), "{before:?}");
}

#[tokio::test]
async fn orphans_stay() {
    let world = World::kept().await;
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    let owner = world.create_config("owner").await;
    world.post(CONFIGS, owned("child", &owner)).await.ok();
    world
        .delete(&format!("{CONFIGS}/owner?propagationPolicy=Orphan"))
        .await
        .ok();
    until(&mut events, "DELETED owner").await;
    let child = world.get(&format!("{CONFIGS}/child")).await.ok();
    assert!(child["metadata"].get("ownerReferences").is_none());
}

#[tokio::test]
async fn one_of_two_owners_is_forgotten() {
    let world = World::kept().await;
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    let first = world.create_config("first").await;
    let second = world.create_config("second").await;
    let mut child = owned("child", &first);
    let other = owned("child", &second)["metadata"]["ownerReferences"][0].clone();
    let owners = child["metadata"]["ownerReferences"].as_array_mut();
    owners.unwrap().push(other);
    child["metadata"]["ownerReferences"][1]["controller"] = false.into();
    world.post(CONFIGS, child).await.ok();
    world.delete(&format!("{CONFIGS}/first")).await.ok();
    until(&mut events, "MODIFIED child").await;
    let left = world.get(&format!("{CONFIGS}/child")).await.ok();
    assert_eq!(left["metadata"]["ownerReferences"][0]["name"], "second");
    world.delete(&format!("{CONFIGS}/second")).await.ok();
    until(&mut events, "DELETED child").await;
}

#[tokio::test]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let world = World::kept().await;
    let mut events = world.watch("/api/v1/namespaces?watch=1").await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let created = world.post("/api/v1/namespaces", namespace).await.ok();
    assert_eq!(created["status"]["phase"], "Active");
    assert_eq!(created["spec"]["finalizers"], json!(["kubernetes"]));
    world
        .get("/api/v1/namespaces/team/serviceaccounts/default")
        .await
        .ok();
    world
        .post("/api/v1/namespaces/team/pods", placed("a"))
        .await
        .ok();
    world
        .post("/api/v1/namespaces/team/configmaps", config("c"))
        .await
        .ok();
    let ending = world.delete("/api/v1/namespaces/team").await.ok();
    assert_eq!(ending["status"]["phase"], "Terminating");
    let refused = world
        .post("/api/v1/namespaces/team/configmaps", config("d"))
        .await;
    let refused = refused.refused(403, "Forbidden");
    assert_eq!(
        refused["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    // The node lets its pod go.
    world
        .delete_with(
            "/api/v1/namespaces/team/pods/a",
            json!({"gracePeriodSeconds": 0}),
        )
        .await
        .ok();
    until(&mut events, "DELETED team").await;
    world
        .get("/api/v1/namespaces/team")
        .await
        .refused(404, "NotFound");
    let left = world
        .get("/api/v1/namespaces/team/serviceaccounts")
        .await
        .ok();
    assert!(left["items"].as_array().unwrap().is_empty());
    world
        .delete("/api/v1/namespaces/default")
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn the_default_account_comes_back() {
    let world = World::kept().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let mut events = world.watch(&format!("{accounts}?watch=1")).await;
    world.delete(&format!("{accounts}/default")).await.ok();
    until(&mut events, "DELETED default").await;
    until(&mut events, "ADDED default").await;
    world.create_pod("a").await;
}
