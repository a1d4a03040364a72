//! What the scheduler is told of data, and who is woken for it.

use super::*;

fn dataset(version: u32, uri: &str, size: Option<&str>, warm: &[&str]) -> Value {
    json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"name": "imagenet", "namespace": "ns", "uid": "d", "resourceVersion": version.to_string()},
        "spec": {"uri": uri},
        "status": {"size": size, "warmNodes": warm},
    })
}

const STORE: &str = "s3://bucket/imagenet";

/// A job that reads `imagenet`.
fn reader(version: u32, status: Value) -> Value {
    let mut reader = job(
        "reader",
        version,
        "standard",
        "2026-01-01T00:00:02Z",
        status,
    );
    reader["spec"]["datasets"] = json!([{"name": "imagenet", "path": "/data"}]);
    reader
}

/// It, and two nodes that are alike.
fn two_nodes(status: Value) -> World {
    let mut world = World::new(config());
    for (version, name) in [(1, "m"), (2, "n")] {
        let mut node = node(version, "2026-01-01T00:00:00Z", "8Gi");
        node["metadata"]["name"] = json!(name);
        tell::<Node>(&mut world, node);
    }
    tell::<TrainJob>(&mut world, reader(3, status));
    world
}

fn look(world: &mut World) {
    while let Some(key) = world.next_unseen() {
        let job = world.jobs.get(&key).expect("it").clone();
        world.ask(&job, asks(1, 4)).expect("as it was");
    }
}

/// Where the reader goes, and what is said of its data.
fn given_to_reader(world: &mut World) -> (Vec<String>, Vec<String>) {
    look(world);
    world.serve(now());
    match world.room_of(&key("reader")) {
        Room::Given { grant, .. } => {
            let fetches = grant.fetches.iter().map(ToString::to_string);
            (grant.plan.nodes, fetches.collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_goes_to_the_node_that_has_its_data() {
    let cases = [
        (
            dataset(4, STORE, Some("150Gi"), &[]),
            "m",
            Some("imagenet (150 GiB) is copied to m"),
        ),
        (
            dataset(4, STORE, Some("150Gi"), &["n"]),
            "n",
            Some("imagenet (150 GiB) is on n already"),
        ),
        (
            dataset(4, STORE, None, &["n"]),
            "n",
            Some("imagenet is on n already"),
        ),
        // What every node sees is copied nowhere.
        (dataset(4, "file:///data", Some("150Gi"), &["n"]), "m", None),
    ];
    for (told, node, said) in cases {
        let mut world = two_nodes(json!({"phase": "Queued"}));
        tell::<Dataset>(&mut world, told.clone());
        let expected = (
            vec![node.to_owned()],
            said.map(str::to_owned).into_iter().collect(),
        );
        assert_eq!(given_to_reader(&mut world), expected, "{told}");
    }
}

#[test]
fn the_next_attempt_goes_back_to_where_its_data_is() {
    let ended = json!({"phase": "Queued", "attempt": 1, "attempts": [{"number": 1, "nodes": ["n"], "outcome": "Interrupted",
        "placedAt": "2026-01-01T00:00:03Z", "finishedAt": "2026-01-01T00:00:04Z"}]});
    let mut world = two_nodes(ended);
    tell::<Dataset>(&mut world, dataset(4, STORE, Some("150Gi"), &["n"]));
    assert_eq!(given_to_reader(&mut world).0, ["n"]);
}

#[test]
fn another_warm_node_wakes_nobody_and_moves_nobody() {
    let mut world = two_nodes(json!({"phase": "Queued"}));
    let woken = tell::<Dataset>(&mut world, dataset(4, STORE, Some("150Gi"), &[]));
    assert_eq!(names(&woken.jobs_waiting), ["reader"], "it is there at all");
    assert_eq!(given_to_reader(&mut world).0, ["m"]);
    let woken = tell::<Dataset>(&mut world, dataset(5, STORE, Some("150Gi"), &["n"]));
    assert_eq!(woken, Wakes::default());
    assert_eq!(world.next_unseen(), None);
    assert!(!world.is_stirred(), "nobody is decided on anew");
    assert_eq!(given_to_reader(&mut world).0, ["m"], "it keeps what it has");

    let woken = tell::<Dataset>(&mut world, dataset(6, STORE, Some("160Gi"), &["n"]));
    assert_eq!(
        names(&woken.jobs_waiting),
        ["reader"],
        "memory is sized by it"
    );
    assert_eq!(given_to_reader(&mut world).0, ["n"], "it was asked anew");
}
