//! CustomResourceDefinitions, and the kinds they bring.

use serde_json::{Value, json};

use crate::world::{World, next_event};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.dev/v1/namespaces/default/widgets";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "colour": {"type": "string", "default": "red"},
                    }},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    })
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn a_definition_is_served_at_once() {
    let world = World::kept().await;
    let early = world.post(WIDGETS, widget("a", json!({"size": 1}))).await;
    assert_eq!(early.code, 404);
    let created = world.post(DEFINITIONS, definition()).await.ok();
    let conditions = created["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .all(|condition| condition["status"] == "True")
    );
    assert_eq!(created["status"]["acceptedNames"]["kind"], "Widget");

    let a = world
        .post(WIDGETS, widget("a", json!({"size": 1})))
        .await
        .ok();
    assert_eq!(a["spec"]["colour"], "red");
    assert_eq!(a["metadata"]["generation"], 1);
    let invalid = world
        .post(WIDGETS, widget("b", json!({"size": 0})))
        .await
        .refused(422, "Invalid");
    assert_eq!(invalid["details"]["causes"][0]["field"], "spec.size");
    let missing = world
        .post(WIDGETS, widget("b", json!({})))
        .await
        .refused(422, "Invalid");
    assert_eq!(
        missing["details"]["causes"][0]["reason"],
        "FieldValueRequired"
    );
    let unknown = widget("b", json!({"size": 1, "shape": "round"}));
    world
        .post(&format!("{WIDGETS}?fieldValidation=Strict"), unknown)
        .await
        .refused(400, "BadRequest");

    let path = format!("{WIDGETS}/a");
    let grown = world
        .patch(&path, "merge", json!({"spec": {"size": 2}}))
        .await
        .ok();
    assert_eq!(grown["metadata"]["generation"], 2);
    let labelled = world
        .patch(&path, "merge", json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .ok();
    assert_eq!(labelled["metadata"]["generation"], 2);
    let status = json!({"spec": {"size": 9}, "status": {"done": true}});
    let status = world
        .patch(&format!("{path}/status"), "merge", status)
        .await
        .ok();
    assert_eq!(
        (&status["spec"]["size"], &status["status"]["done"]),
        (&json!(2), &json!(true))
    );
    world
        .patch(&path, "strategic-merge", json!({}))
        .await
        .refused(415, "UnsupportedMediaType");
    let mut unversioned = status.clone();
    unversioned["metadata"]["resourceVersion"] = json!(null);
    let refused = world.put(&path, unversioned).await.refused(422, "Invalid");
    assert_eq!(
        refused["details"]["causes"][0]["field"],
        "metadata.resourceVersion"
    );
}

#[tokio::test]
async fn the_end_of_a_definition_is_the_end_of_its_objects() {
    let world = World::kept().await;
    world.post(DEFINITIONS, definition()).await.ok();
    let mut held = widget("a", json!({"size": 1}));
    held["metadata"]["finalizers"] = json!(["stokehold.dev/hold"]);
    world.post(WIDGETS, held).await.ok();
    world
        .post(WIDGETS, widget("b", json!({"size": 1})))
        .await
        .ok();
    let mut definitions = world
        .watch(&format!(
            "{DEFINITIONS}?watch=1&fieldSelector=metadata.name%3Dwidgets.example.dev"
        ))
        .await;
    assert_eq!(
        next_event(&mut definitions).await,
        "ADDED widgets.example.dev"
    );
    world
        .delete(&format!("{DEFINITIONS}/widgets.example.dev"))
        .await
        .ok();
    assert_eq!(
        next_event(&mut definitions).await,
        "MODIFIED widgets.example.dev"
    );
    world
        .post(WIDGETS, widget("c", json!({"size": 1})))
        .await
        .refused(405, "MethodNotAllowed");
    world
        .patch(
            &format!("{WIDGETS}/a"),
            "merge",
            json!({"metadata": {"finalizers": null}}),
        )
        .await
        .ok();
    while next_event(&mut definitions).await != "DELETED widgets.example.dev" {}
    // A definition made anew finds nothing of the old.
    world.post(DEFINITIONS, definition()).await.ok();
    assert!(
        world.get(WIDGETS).await.ok()["items"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn bad_definitions() {
    let world = World::new().await;
    let mut misnamed = definition();
    misnamed["metadata"]["name"] = "gadgets.example.dev".into();
    world
        .post(DEFINITIONS, misnamed)
        .await
        .refused(422, "Invalid");
    let mut unstored = definition();
    unstored["spec"]["versions"][0]["storage"] = false.into();
    world
        .post(DEFINITIONS, unstored)
        .await
        .refused(422, "Invalid");
    world.post(DEFINITIONS, definition()).await.ok();
    let mut rescoped = world
        .get(&format!("{DEFINITIONS}/widgets.example.dev"))
        .await
        .ok();
    rescoped["spec"]["scope"] = "Cluster".into();
    world
        .put(&format!("{DEFINITIONS}/widgets.example.dev"), rescoped)
        .await
        .refused(422, "Invalid");
    let mut rival = definition();
    rival["metadata"]["name"] = "widgetz.example.dev".into();
    rival["spec"]["names"]["plural"] = "widgetz".into();
    let rival = world.post(DEFINITIONS, rival).await.ok();
    assert_eq!(
        rival["status"]["conditions"][0]["status"], "False",
        "the kind is taken: {rival}"
    );
    let unserved = world.get("/apis/example.dev/v1/widgetz").await;
    assert_eq!(unserved.code, 404);
}

#[tokio::test]
async fn our_own_kinds_are_there_and_checked() {
    let world = World::new().await;
    let jobs = "/apis/stokehold.dev/v1alpha1/namespaces/default/trainjobs";
    let job = |spec: Value| json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "j"}, "spec": spec});
    let refused = world
        .post(jobs, job(json!({"command": ["true"], "workers": 0})))
        .await;
    let refused = refused.refused(422, "Invalid");
    assert_eq!(
        refused["details"]["causes"][0]["field"], "spec.workers",
        "{refused}"
    );
    world
        .post(jobs, job(json!({"command": ["true"], "workers": 2})))
        .await
        .ok();
}

#[tokio::test]
async fn a_second_start_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let start = async || {
        let store = stoke_store::Store::open(
            &directory.path().join("store.db"),
            &stoke_store::Options::default(),
        );
        let logs = std::sync::Arc::new(stoke_apiserver::NoLogs);
        let options = stoke_apiserver::Options::default();
        let server = stoke_apiserver::ApiServer::new(store.unwrap(), logs, options).await;
        server.unwrap().store().revision()
    };
    assert_eq!(start().await, start().await);
}
