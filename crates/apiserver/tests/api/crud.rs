//! Create, read, change.

use http::header;
use serde_json::json;

use crate::world::{CONFIGS, PODS, World, config, pod};

#[tokio::test]
async fn a_new_object_gets_its_identity_from_the_server() {
    let world = World::new().await;
    let mut body = config("a");
    body["metadata"]["uid"] = "mine".into();
    body["metadata"]["selfLink"] = "/x".into();
    body["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    body["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    body["metadata"]["deletionTimestamp"] = "2001-01-01T00:00:00Z".into();
    let created = world.post(CONFIGS, body).await;
    assert_eq!(created.code, 201);
    let created = created.ok();
    let metadata = &created["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    assert!(metadata["creationTimestamp"].as_str().unwrap() > "2020");
    assert!(
        metadata["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 1
    );
    for absent in [
        "selfLink",
        "managedFields",
        "deletionTimestamp",
        "generation",
    ] {
        assert!(metadata.get(absent).is_none(), "{absent}");
    }
    let read = world.get(&format!("{CONFIGS}/a")).await.ok();
    assert_eq!(read, created);
    world
        .post(CONFIGS, config("a"))
        .await
        .refused(409, "AlreadyExists");
}

#[tokio::test]
async fn names_are_generated() {
    let world = World::new().await;
    let mut body = config("");
    body["metadata"] = json!({"generateName": "run-"});
    let created = world.post(CONFIGS, body).await.ok();
    let name = created["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("run-") && name.len() == 9, "{name}");

    // Where there is a name as well, it counts.
    let mut both = config("run");
    both["metadata"]["generateName"] = "run-".into();
    let created = world.post(CONFIGS, both.clone()).await.ok();
    assert_eq!(created["metadata"]["name"], "run");
    for query in ["", "?dryRun=All"] {
        let again = world.post(&format!("{CONFIGS}{query}"), both.clone()).await;
        again.refused(409, "AlreadyExists");
    }
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let world = World::new().await;
    let created = world
        .post(&format!("{CONFIGS}?dryRun=All"), config("a"))
        .await
        .ok();
    assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);
    let path = format!("{CONFIGS}/a");
    world.get(&path).await.refused(404, "NotFound");
    world.create_config("a").await;
    let patched = world
        .patch(
            &format!("{path}?dryRun=All"),
            "merge",
            json!({"data": {"k": "v"}}),
        )
        .await
        .ok();
    assert_eq!(patched["data"]["k"], "v");
    world.delete(&format!("{path}?dryRun=All")).await.ok();
    assert!(world.get(&path).await.ok().get("data").is_none());
    world
        .post(&format!("{CONFIGS}?dryRun=Some"), config("b"))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn writes_on_an_old_version_conflict() {
    let world = World::new().await;
    let first = world.create_config("a").await;
    let path = format!("{CONFIGS}/a");
    let mut next = first.clone();
    next["data"] = json!({"k": "1"});
    let second = world.put(&path, next.clone()).await.ok();
    assert_ne!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    next["data"] = json!({"k": "2"});
    world
        .put(&path, next.clone())
        .await
        .refused(409, "Conflict");
    let stale = json!({"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"k": "3"}});
    world
        .patch(&path, "merge", stale)
        .await
        .refused(409, "Conflict");
    next["metadata"]["resourceVersion"] = "".into();
    let third = world.put(&path, next.clone()).await.ok();
    assert_eq!(third["data"]["k"], "2");
    next["metadata"]["uid"] = "other".into();
    world.put(&path, next).await.refused(409, "Conflict");
}

#[tokio::test]
async fn a_change_that_changes_nothing_is_not_written() {
    let world = World::new().await;
    let first = world.create_config("a").await;
    let path = format!("{CONFIGS}/a");
    let same = world
        .patch(&path, "merge", json!({"metadata": {"labels": null}}))
        .await
        .ok();
    assert_eq!(same, first);
    assert_eq!(world.put(&path, first.clone()).await.ok(), first);
}

#[tokio::test]
async fn the_three_patches() {
    let world = World::new().await;
    world.create_pod("a").await;
    let path = format!("{PODS}/a");
    let json_patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "1"}}]);
    let patched = world.patch(&path, "json", json_patch).await.ok();
    assert_eq!(patched["metadata"]["labels"], json!({"a": "1"}));
    let merge = json!({"metadata": {"labels": {"a": null, "b": "2"}}});
    let patched = world.patch(&path, "merge", merge).await.ok();
    assert_eq!(patched["metadata"]["labels"], json!({"b": "2"}));
    let strategic = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let patched = world.patch(&path, "strategic-merge", strategic).await.ok();
    assert_eq!(patched["spec"]["containers"][0]["image"], "other");
    assert_eq!(patched["metadata"]["generation"], 2);

    let refused = world
        .patch(&path, "apply", json!({"apiVersion": "v1", "kind": "Pod"}))
        .await
        .refused(415, "UnsupportedMediaType");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("application/merge-patch+json")
    );
    let failed = json!([{"op": "test", "path": "/metadata/name", "value": "b"}]);
    world
        .patch(&path, "json", failed)
        .await
        .refused(422, "Invalid");
    world
        .patch(&path, "json", json!({}))
        .await
        .refused(400, "BadRequest");
    world
        .patch(&format!("{PODS}/no"), "merge", json!({}))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn status_and_spec_do_not_touch_each_other() {
    let world = World::new().await;
    let created = world.create_pod("a").await;
    assert_eq!(
        created["status"],
        json!({"phase": "Pending", "qosClass": "BestEffort"})
    );
    let path = format!("{PODS}/a");
    let both = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}});
    let main = world.patch(&path, "merge", both.clone()).await.ok();
    assert_eq!(main["status"]["phase"], "Pending");
    assert_eq!(main["metadata"]["labels"]["a"], "b");
    let other = json!({"metadata": {"labels": {"a": "c"}}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
    let status = world
        .patch(&format!("{path}/status"), "merge", other)
        .await
        .ok();
    assert_eq!(status["status"]["phase"], "Running");
    assert_eq!(status["metadata"]["labels"]["a"], "c");
    assert!(status["spec"].get("nodeName").is_none());
    assert_eq!(status["metadata"]["generation"], 1);
}

#[tokio::test]
async fn unknown_fields_are_refused_told_or_dropped() {
    let world = World::new().await;
    let mut body = pod("a");
    body["spec"]["nonsense"] = 1.into();
    let strict = world
        .post(&format!("{PODS}?fieldValidation=Strict"), body.clone())
        .await;
    let refused = strict.refused(400, "BadRequest");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("unknown field \"spec.nonsense\""),
        "{refused}"
    );
    let warned = world
        .post(
            &format!("{PODS}?fieldValidation=Warn&dryRun=All"),
            body.clone(),
        )
        .await;
    assert_eq!(
        warned.headers[header::WARNING],
        "299 - \"unknown field \\\"spec.nonsense\\\"\""
    );
    assert!(warned.ok()["spec"].get("nonsense").is_none());
    let ignored = world
        .post(&format!("{PODS}?fieldValidation=Ignore"), body)
        .await;
    assert!(!ignored.headers.contains_key(header::WARNING));
    assert!(ignored.ok()["spec"].get("nonsense").is_none());
    let patch = json!({"spec": {"nonsense": 1}});
    world
        .patch(&format!("{PODS}/a?fieldValidation=Strict"), "merge", patch)
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn events_have_two_faces_of_one_object() {
    let world = World::new().await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "it started", "type": "Normal", "count": 2,
        "source": {"component": "node"},
    });
    world
        .post("/api/v1/namespaces/default/events", event)
        .await
        .ok();
    let other = world
        .get("/apis/events.k8s.io/v1/namespaces/default/events/e")
        .await
        .ok();
    assert_eq!(other["apiVersion"], "events.k8s.io/v1");
    assert_eq!(other["note"], "it started");
    assert_eq!(other["regarding"]["name"], "p");
    let new = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "f"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Ended", "note": "it ended", "type": "Normal", "action": "Run",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "node", "reportingInstance": "n",
    });
    world
        .post("/apis/events.k8s.io/v1/namespaces/default/events", new)
        .await
        .ok();
    let core = world.get("/api/v1/namespaces/default/events/f").await.ok();
    assert_eq!(core["message"], "it ended");
    assert_eq!(core["involvedObject"]["name"], "p");
    let by_field = "/api/v1/events?fieldSelector=involvedObject.name%3Dp,reason%3DEnded";
    assert_eq!(
        world.get(by_field).await.ok()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn secrets_and_services() {
    let world = World::new().await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": "v"}});
    let secret = world
        .post("/api/v1/namespaces/default/secrets", secret)
        .await
        .ok();
    assert_eq!(secret["data"]["k"], "dg==");
    assert!(secret.get("stringData").is_none());
    assert_eq!(secret["type"], "Opaque");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}}});
    let service = world
        .post("/api/v1/namespaces/default/services", service)
        .await
        .ok();
    assert_eq!(
        service["spec"]["clusterIP"], "None",
        "there is no service network to give an address of"
    );
    let balanced = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "t"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    world
        .post("/api/v1/namespaces/default/services", balanced)
        .await
        .refused(422, "Invalid");
}
