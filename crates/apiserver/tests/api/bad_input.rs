//! What is refused, and how: the status, the reason and the field that Kubernetes gives.

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};

use crate::world::{CONFIGS, PODS, World, config, pod, raw_request, request};

fn changed(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = pod("a");
    change(&mut pod);
    pod
}

#[tokio::test]
async fn bodies() {
    let world = World::new().await;
    let json = "application/json";
    let table: Vec<(&str, Request<Body>)> = vec![
        (
            "a truncated body",
            raw_request("POST", CONFIGS, json, r#"{"apiVersion":"v1","kind":"#),
        ),
        ("an empty body", raw_request("POST", CONFIGS, json, "")),
        ("not an object", raw_request("POST", CONFIGS, json, "[]")),
        (
            "not UTF-8",
            raw_request("POST", CONFIGS, json, &b"{\"a\":\"\xff\"}"[..]),
        ),
        (
            "nested without end",
            raw_request("POST", CONFIGS, json, "{\"a\":".repeat(10_000)),
        ),
        (
            "a subresource that is not served, without a body",
            raw_request("POST", "/api/v1/namespaces/default/pods/a/exec", json, ""),
        ),
        (
            "10 MiB",
            raw_request("POST", CONFIGS, json, "x".repeat(10 << 20)),
        ),
        (
            "protobuf",
            raw_request(
                "POST",
                CONFIGS,
                "application/vnd.kubernetes.protobuf",
                "k8s\0",
            ),
        ),
        (
            "yaml that is none",
            raw_request("POST", CONFIGS, "application/yaml", "a: ["),
        ),
        ("another kind", request("POST", CONFIGS, json, &pod("a"))),
        (
            "another version",
            request(
                "POST",
                CONFIGS,
                json,
                &json!({"apiVersion": "v2", "kind": "ConfigMap"}),
            ),
        ),
        (
            "another namespace",
            request(
                "POST",
                CONFIGS,
                json,
                &json!({"metadata": {"name": "a", "namespace": "b"}}),
            ),
        ),
        (
            "a version before its time",
            request(
                "POST",
                CONFIGS,
                json,
                &json!({"metadata": {"name": "a", "resourceVersion": "5"}}),
            ),
        ),
        (
            "no name",
            request("POST", CONFIGS, json, &json!({"metadata": {}})),
        ),
        (
            "a bad name",
            request("POST", CONFIGS, json, &config("Not_A_Name")),
        ),
        (
            "a name too long",
            request("POST", CONFIGS, json, &config(&"a".repeat(254))),
        ),
        (
            "a namespace that is not there",
            request(
                "POST",
                "/api/v1/namespaces/no/configmaps",
                json,
                &config("a"),
            ),
        ),
        (
            "metadata of a wrong type",
            request("POST", CONFIGS, json, &json!({"metadata": []})),
        ),
        (
            "labels of a wrong type",
            request(
                "POST",
                CONFIGS,
                json,
                &json!({"metadata": {"name": "a", "labels": {"a": 1}}}),
            ),
        ),
        (
            "a bad label",
            request(
                "POST",
                CONFIGS,
                json,
                &json!({"metadata": {"name": "a", "labels": {"a": "-"}}}),
            ),
        ),
        (
            "a merge patch that is a list",
            request("PATCH", CONFIGS, "application/merge-patch+json", &json!([])),
        ),
        (
            "a field twice",
            raw_request(
                "POST",
                &format!("{CONFIGS}?fieldValidation=Strict"),
                json,
                r#"{"metadata":{"name":"a","name":"b"}}"#,
            ),
        ),
    ];
    insta::assert_snapshot!(run(&world, table).await);
    assert!(
        world.get(CONFIGS).await.ok()["items"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn pods() {
    let world = World::new().await;
    let spec = |spec: Value| {
        changed(|pod| {
            for (field, value) in spec.as_object().unwrap() {
                pod["spec"][field] = value.clone();
            }
        })
    };
    let container = |part: Value| {
        changed(|pod| {
            for (field, value) in part.as_object().unwrap() {
                pod["spec"]["containers"][0][field] = value.clone();
            }
        })
    };
    let table = [
        ("no containers", spec(json!({"containers": []}))),
        ("no spec", json!({"metadata": {"name": "a"}})),
        (
            "containers of a wrong type",
            spec(json!({"containers": "main"})),
        ),
        (
            "a count of a wrong type",
            spec(json!({"terminationGracePeriodSeconds": "soon"})),
        ),
        (
            "a negative count",
            spec(json!({"terminationGracePeriodSeconds": -1})),
        ),
        (
            "a grace without end",
            spec(json!({"terminationGracePeriodSeconds": 2_147_483_648_i64})),
        ),
        ("no time at all", spec(json!({"activeDeadlineSeconds": 0}))),
        (
            "a deadline beyond all time",
            spec(json!({"activeDeadlineSeconds": i64::MAX})),
        ),
        (
            "a policy that is none",
            spec(json!({"restartPolicy": "Sometimes"})),
        ),
        (
            "two of a name",
            spec(json!({"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]})),
        ),
        ("no image", spec(json!({"containers": [{"name": "a"}]}))),
        (
            "a volume that is not there",
            container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})),
        ),
        (
            "no quantity",
            container(json!({"resources": {"limits": {"memory": "lots"}}})),
        ),
        (
            "more than the limit",
            container(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}})),
        ),
        (
            "half a device",
            container(json!({"resources": {"limits": {"nvidia.com/gpu": "500m"}}})),
        ),
        (
            "devices without a limit",
            container(json!({"resources": {"requests": {"nvidia.com/gpu": "1"}}})),
        ),
        (
            "a class that is not there",
            spec(json!({"priorityClassName": "no"})),
        ),
        (
            "an account that is not there",
            spec(json!({"serviceAccountName": "no"})),
        ),
    ];
    let table = table
        .into_iter()
        .map(|(what, body)| (what, request("POST", PODS, "application/json", &body)))
        .collect();
    insta::assert_snapshot!(run(&world, table).await);
}

#[tokio::test]
async fn updates_of_pods() {
    let world = World::new().await;
    let created = world.create_pod("a").await;
    let path = format!("{PODS}/a");
    let put = |change: &dyn Fn(&mut Value)| {
        let mut pod = created.clone();
        change(&mut pod);
        request("PUT", &path, "application/json", &pod)
    };
    let merge = |body: Value| request("PATCH", &path, "application/merge-patch+json", &body);
    let table = vec![
        (
            "a node by hand",
            put(&|pod| pod["spec"]["nodeName"] = "n".into()),
        ),
        (
            "a command",
            put(&|pod| pod["spec"]["containers"][0]["command"] = json!(["x"])),
        ),
        (
            "another container",
            put(&|pod| {
                let containers = pod["spec"]["containers"].as_array_mut().unwrap();
                containers.push(json!({"name": "b", "image": "i"}));
            }),
        ),
        (
            "resources",
            put(&|pod| pod["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}})),
        ),
        (
            "another name",
            put(&|pod| pod["metadata"]["name"] = "b".into()),
        ),
        ("another kind", put(&|pod| pod["kind"] = "Node".into())),
        (
            "a patch that breaks a rule",
            merge(json!({"spec": {"restartPolicy": "Never"}})),
        ),
        (
            "a patch of a wrong type",
            merge(json!({"spec": {"containers": 1}})),
        ),
        (
            "a patch that renames",
            merge(json!({"metadata": {"name": "b"}})),
        ),
        (
            "a patch that leaves nothing",
            merge(json!({"metadata": null})),
        ),
    ];
    insta::assert_snapshot!(run(&world, table).await);
    assert_eq!(world.get(&path).await.ok(), created);
}

#[tokio::test]
async fn paths_and_queries() {
    let world = World::new().await;
    let get = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    let mut table = Vec::new();
    for path in [
        "/api/v1/namespaces/default/pods/..",
        "/api/v1/namespaces/%2e%2e/pods",
        "/api/v1/namespaces/default/pods/a%00b",
        "/api/v1/namespaces/default/pods/a%2fb",
        "/api/v1/namespaces/default/widgets",
        "/api/v9/pods",
        "/apis/nothing.dev/v1/things",
        "/api/v1/namespaces/default/nodes",
        "/api/v1/pods/a",
        "/api/v1/namespaces/default/pods/a/exec",
        "/nothing",
        "/api/v1/pods?labelSelector=a%20in%20(",
        "/api/v1/pods?labelSelector=a%3D%3D%3Db",
        "/api/v1/pods?fieldSelector=spec.containers%3Da",
        "/api/v1/pods?fieldSelector=nonsense",
        "/api/v1/pods?limit=many",
        "/api/v1/pods?continue=nonsense",
        "/api/v1/pods?resourceVersion=abc",
        "/api/v1/pods?resourceVersion=99999999",
        "/api/v1/pods?resourceVersionMatch=Exact",
        "/api/v1/pods?resourceVersion=0&resourceVersionMatch=Exact",
        "/api/v1/pods?resourceVersion=1&resourceVersionMatch=Nearly",
        "/api/v1/pods?watch=1&sendInitialEvents=true",
        "/api/v1/pods?a=%zz",
        "/api/v1/namespaces/default/pods/a/log?tailLines=-1",
    ] {
        table.push((path, get(path)));
    }
    let with = |method: &str, path: &'static str| {
        (
            path,
            Request::builder()
                .method(method)
                .uri(path)
                .body(Body::empty())
                .unwrap(),
        )
    };
    table.push(with("PUT", "/api/v1/pods"));
    table.push(with("OPTIONS", "/api/v1/namespaces/default/pods"));
    table.push(with("POST", "/version"));
    table.push(with("DELETE", "/api/v1/pods"));
    table.push(with("DELETE", "/api/v1/namespaces/default"));
    let accept = Request::get("/api/v1/pods")
        .header("accept", "application/vnd.kubernetes.protobuf")
        .body(Body::empty())
        .unwrap();
    table.push(("protobuf wanted", accept));
    let shown = run(&world, table).await;
    insta::assert_snapshot!(shown);
}

async fn run(world: &World, table: Vec<(&str, Request<Body>)>) -> String {
    let mut shown = Vec::new();
    for (what, request) in table {
        let answer = world.send(request).await;
        shown.push(format!(
            "{what}\n  {}",
            answer.shown().replace('\n', "\n  ")
        ));
    }
    shown.join("\n")
}
