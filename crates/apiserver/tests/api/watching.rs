//! Watches, event by event.

use serde_json::{Value, json};
use stoke_store::Retention;

use crate::world::{CONFIGS, World, config, next, next_event};

fn revision(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

#[tokio::test]
async fn the_state_first_then_every_change() {
    let world = World::new().await;
    world.create_config("a").await;
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    assert_eq!(next_event(&mut events).await, "ADDED a");
    world.create_config("b").await;
    let path = format!("{CONFIGS}/a");
    let changed = world
        .patch(&path, "merge", json!({"data": {"k": "v"}}))
        .await
        .ok();
    assert_eq!(next_event(&mut events).await, "ADDED b");
    let event = next(&mut events).await;
    assert_eq!(
        (&event["type"], &event["object"]),
        (&json!("MODIFIED"), &changed)
    );
    world.delete(&path).await.ok();
    let event = next(&mut events).await;
    assert_eq!(event["type"], "DELETED");
    assert_ne!(revision(&event["object"]), revision(&changed));
}

#[tokio::test]
async fn from_a_revision_without_a_gap() {
    let world = World::new().await;
    let first = world.create_config("a").await;
    world.create_config("b").await;
    world.create_pod("elsewhere").await;
    let mut events = world
        .watch(&format!(
            "{CONFIGS}?watch=true&resourceVersion={}",
            revision(&first)
        ))
        .await;
    assert_eq!(next_event(&mut events).await, "ADDED b");
    world.create_config("c").await;
    assert_eq!(next_event(&mut events).await, "ADDED c");
    let mut one = world
        .watch(&format!(
            "{CONFIGS}?watch=true&fieldSelector=metadata.name%3Db&resourceVersion={}",
            revision(&first)
        ))
        .await;
    assert_eq!(next_event(&mut one).await, "ADDED b");
    world.delete(&format!("{CONFIGS}/c")).await.ok();
    world.delete(&format!("{CONFIGS}/b")).await.ok();
    assert_eq!(next_event(&mut one).await, "DELETED b");
}

#[tokio::test]
async fn what_stops_matching_is_deleted_for_the_watcher() {
    let world = World::new().await;
    let mut body = config("a");
    body["metadata"]["labels"] = json!({"on": "yes"});
    world.post(CONFIGS, body).await.ok();
    let mut events = world
        .watch(&format!("{CONFIGS}?watch=1&labelSelector=on%3Dyes"))
        .await;
    assert_eq!(next_event(&mut events).await, "ADDED a");
    let path = format!("{CONFIGS}/a");
    let label = |value: &str| json!({"metadata": {"labels": {"on": value}}});
    let changed = world.patch(&path, "merge", label("no")).await.ok();
    let event = next(&mut events).await;
    assert_eq!(event["type"], "DELETED");
    assert_eq!(
        event["object"]["metadata"]["labels"]["on"], "yes",
        "as it was when it matched"
    );
    assert_eq!(revision(&event["object"]), revision(&changed));
    world
        .patch(&path, "merge", json!({"data": {"k": "unseen"}}))
        .await
        .ok();
    world.patch(&path, "merge", label("yes")).await.ok();
    assert_eq!(next_event(&mut events).await, "ADDED a");
    world
        .patch(&path, "merge", json!({"data": {"k": "seen"}}))
        .await
        .ok();
    assert_eq!(next_event(&mut events).await, "MODIFIED a");
    world.delete(&path).await.ok();
    assert_eq!(next_event(&mut events).await, "DELETED a");
}

#[tokio::test]
async fn too_old_is_an_error_event() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.create_config(name).await;
    }
    let small = Retention {
        changes_max: 1,
        ..Retention::default()
    };
    world.server.store().compact(small).await.unwrap();
    // The ring in memory still knows; a restart forgets it, as does time.
    let world = reopened(world).await;
    let mut events = world
        .watch(&format!("{CONFIGS}?watch=1&resourceVersion=2"))
        .await;
    let event = next(&mut events).await;
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert_eq!(event["object"]["reason"], "Expired");
    let mut events = world
        .watch(&format!("{CONFIGS}?watch=1&resourceVersion=99999"))
        .await;
    assert_eq!(next(&mut events).await["object"]["code"], 410);
}

async fn reopened(world: World) -> World {
    // A store with a ring of its own, fed by new changes only.
    let options = stoke_store::Options {
        recent_changes_max: 1,
        ..stoke_store::Options::default()
    };
    drop(world);
    let world = World::with_store_options(&options).await;
    for name in ["a", "b", "c"] {
        world.create_config(name).await;
    }
    let small = Retention {
        changes_max: 1,
        ..Retention::default()
    };
    world.server.store().compact(small).await.unwrap();
    world
}

#[tokio::test]
async fn bookmarks_end_a_watch_and_the_initial_state() {
    let world = World::new().await;
    world.create_config("a").await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let mut events = world.watch(&format!("{CONFIGS}?{query}")).await;
    assert_eq!(next_event(&mut events).await, "ADDED a");
    let bookmark = next(&mut events).await;
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let last = next(&mut events).await;
    assert_eq!(last["type"], "BOOKMARK");
    assert_eq!(last["object"]["kind"], "ConfigMap");
    let end = futures::StreamExt::next(&mut events).await;
    assert_eq!(end, None, "the timeout ends the watch");
}

#[tokio::test]
async fn the_end_of_the_server_ends_watches() {
    let world = World::new().await;
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    world.server.end_streams();
    assert_eq!(futures::StreamExt::next(&mut events).await, None);
}

#[tokio::test]
async fn a_table_is_watched_row_by_row() {
    let world = World::new().await;
    world.create_pod("a").await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut events = world.watch_as("/api/v1/pods?watch=1", table).await;
    let first = next(&mut events).await;
    assert_eq!(first["type"], "ADDED");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "a");
    assert!(first["object"]["columnDefinitions"].is_array());
    world.create_pod("b").await;
    let second = next(&mut events).await;
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
    assert!(
        second["object"]["columnDefinitions"].is_null(),
        "columns are sent once"
    );
}

#[tokio::test]
async fn a_large_state_comes_in_order() {
    let world = World::new().await;
    for number in 0..1100 {
        world.create_config(&format!("c{number:04}")).await;
    }
    let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
    for number in 0..1100 {
        assert_eq!(next_event(&mut events).await, format!("ADDED c{number:04}"));
    }
    world.create_config("z").await;
    assert_eq!(next_event(&mut events).await, "ADDED z");
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_writers_and_eight_watchers_agree() {
    const WRITERS: usize = 16;
    const OBJECTS: usize = 1600;
    let world = std::sync::Arc::new(World::new().await);
    let mut watchers = Vec::new();
    for _ in 0..8 {
        let mut events = world.watch(&format!("{CONFIGS}?watch=1")).await;
        watchers.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < OBJECTS {
                let event = next(&mut events).await;
                seen.push(revision(&event["object"]).parse::<u64>().unwrap());
            }
            seen
        }));
    }
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let world = std::sync::Arc::clone(&world);
        writers.push(tokio::spawn(async move {
            let mut written = Vec::new();
            for number in (writer..OBJECTS).step_by(WRITERS) {
                let object = world.create_config(&format!("c{number}")).await;
                written.push(revision(&object).parse::<u64>().unwrap());
            }
            written
        }));
    }
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.unwrap());
    }
    written.sort_unstable();
    for watcher in watchers {
        assert_eq!(
            watcher.await.unwrap(),
            written,
            "every change, in order, once"
        );
    }
}
