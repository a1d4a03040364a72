//! Lists: selectors, pages, revisions, shapes.

use axum::body::Body;
use http::{Request, header};
use serde_json::{Value, json};
use stoke_store::Retention;

use crate::world::{CONFIGS, World, config};

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

async fn labelled(world: &World, count: usize) {
    for number in 0..count {
        let mut body = config(&format!("c{number}"));
        body["metadata"]["labels"] =
            json!({"parity": if number % 2 == 0 { "even" } else { "odd" }});
        world.post(CONFIGS, body).await.ok();
    }
}

#[tokio::test]
async fn selectors() {
    let world = World::new().await;
    labelled(&world, 6).await;
    let list = |query: &str| format!("{CONFIGS}?{query}");
    for (query, expected) in [
        ("labelSelector=parity%3Deven", vec!["c0", "c2", "c4"]),
        (
            "labelSelector=parity%20notin%20(even)",
            vec!["c1", "c3", "c5"],
        ),
        ("fieldSelector=metadata.name%3Dc3", vec!["c3"]),
        (
            "fieldSelector=metadata.name!%3Dc3&labelSelector=parity%3Dodd",
            vec!["c1", "c5"],
        ),
        ("labelSelector=!parity", vec![]),
        (
            "limit=-1&labelSelector=",
            vec!["c0", "c1", "c2", "c3", "c4", "c5"],
        ),
    ] {
        let found = world.get(&list(query)).await.ok();
        assert_eq!(names(&found), expected, "{query}");
        assert_eq!(found["kind"], "ConfigMapList");
    }
    let everywhere = world
        .get("/api/v1/configmaps?labelSelector=parity")
        .await
        .ok();
    assert_eq!(names(&everywhere).len(), 6);
}

#[tokio::test]
async fn pages_show_one_moment() {
    let world = World::new().await;
    labelled(&world, 7).await;
    for selector in ["", "&labelSelector=parity"] {
        let first = world
            .get(&format!("{CONFIGS}?limit=3{selector}"))
            .await
            .ok();
        assert_eq!(names(&first), ["c0", "c1", "c2"]);
        if selector.is_empty() {
            assert_eq!(first["metadata"]["remainingItemCount"], 4);
        }
        // What happens meanwhile does not show.
        world.delete(&format!("{CONFIGS}/c4")).await.ok();
        world.create_config("c33").await;
        world
            .patch(
                &format!("{CONFIGS}/c5"),
                "merge",
                json!({"data": {"k": "v"}}),
            )
            .await
            .ok();
        let mut rest = Vec::new();
        let mut token = first["metadata"]["continue"].as_str().unwrap().to_owned();
        loop {
            let page = world
                .get(&format!("{CONFIGS}?limit=2{selector}&continue={token}"))
                .await
                .ok();
            assert_eq!(
                page["metadata"]["resourceVersion"],
                first["metadata"]["resourceVersion"]
            );
            rest.extend(page["items"].as_array().unwrap().clone());
            match page["metadata"]["continue"].as_str() {
                Some(next) => token = next.to_owned(),
                None => break,
            }
        }
        let shown: Vec<_> = rest
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(shown, ["c3", "c4", "c5", "c6"]);
        assert!(rest[2].get("data").is_none(), "as it was");
        // Back to the beginning for the second round.
        world.delete(&format!("{CONFIGS}/c33")).await.ok();
        world
            .patch(&format!("{CONFIGS}/c5"), "merge", json!({"data": null}))
            .await
            .ok();
        let mut again = config("c4");
        again["metadata"]["labels"] = json!({"parity": "even"});
        world.post(CONFIGS, again).await.ok();
    }
}

#[tokio::test]
async fn a_page_of_a_forgotten_moment_is_gone() {
    let world = World::new().await;
    labelled(&world, 4).await;
    let first = world.get(&format!("{CONFIGS}?limit=2")).await.ok();
    labelled(&World::new().await, 1).await;
    for number in 0..5 {
        world.create_config(&format!("d{number}")).await;
    }
    let retention = Retention {
        changes_max: 2,
        ..Retention::default()
    };
    world.server.store().compact(retention).await.unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    world
        .get(&format!("{CONFIGS}?limit=2&continue={token}"))
        .await
        .refused(410, "Expired");
}

#[tokio::test]
async fn revisions() {
    let world = World::new().await;
    let first = world.create_config("a").await;
    let at = first["metadata"]["resourceVersion"].as_str().unwrap();
    world.create_config("b").await;
    for (query, expected) in [
        (String::new(), vec!["a", "b"]),
        ("resourceVersion=0".to_owned(), vec!["a", "b"]),
        (format!("resourceVersion={at}"), vec!["a", "b"]),
        (
            format!("resourceVersion={at}&resourceVersionMatch=NotOlderThan"),
            vec!["a", "b"],
        ),
        (
            format!("resourceVersion={at}&resourceVersionMatch=Exact"),
            vec!["a"],
        ),
        (format!("resourceVersion={at}&limit=10"), vec!["a"]),
    ] {
        let list = world.get(&format!("{CONFIGS}?{query}")).await.ok();
        assert_eq!(names(&list), expected, "{query}");
    }
    world
        .get(&format!("{CONFIGS}/a?resourceVersion=999999"))
        .await
        .refused(504, "Timeout");
}

#[tokio::test]
async fn tables_and_metadata() {
    let world = World::new().await;
    world.create_pod("a").await;
    let ask = |path: &str, accept: &str| {
        let request = Request::get(path).header(header::ACCEPT, accept);
        world.send(request.body(Body::empty()).unwrap())
    };
    let wanted = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    let pods = "/api/v1/namespaces/default/pods";
    let table = ask(pods, wanted).await.ok();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["rows"][0]["cells"][0], "a");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert!(table["metadata"]["resourceVersion"].is_string());
    let single = ask(&format!("{pods}/a?includeObject=Object"), wanted)
        .await
        .ok();
    assert_eq!(single["rows"][0]["object"]["kind"], "Pod");
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = ask(pods, partial).await.ok();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0].get("spec").is_none());
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
}
