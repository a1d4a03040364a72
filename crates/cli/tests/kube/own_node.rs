//! The API server keeps each agent and each data driver to its own node: the token says which that is.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use crate::release::{self, succeed};
use crate::support::{self, Testbed, eventually};

const NAMESPACE: &str = "own-node";

/// Takes away what the test made, also when it fails.
struct Scene<'a> {
    testbed: &'a Testbed,
    folder: tempfile::TempDir,
}

impl<'a> Scene<'a> {
    fn new(testbed: &'a Testbed) -> Self {
        let scene = Self {
            testbed,
            folder: tempfile::tempdir().expect("a folder"),
        };
        scene.clear();
        scene.create(
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        );
        // No kubelet: what matters is what the API server says of them.
        for node in ["own-node-a", "own-node-b"] {
            scene.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"unschedulable": true}}));
        }
        eventually("the namespace's account", || {
            let found = testbed
                .kubectl(&["get", "serviceaccount", "default", "-n", NAMESPACE])
                .output();
            found.expect("kubectl").status.success().then_some(())
        });
        scene
    }

    fn create(&self, object: &Value) {
        let file = self.folder.path().join("object.json");
        std::fs::write(&file, object.to_string()).expect("a file");
        let path = file.to_str().expect("UTF-8");
        succeed(&mut self.testbed.kubectl(&["create", "-f", path]));
    }

    fn pod(&self, namespace: &str, name: &str, node: &str, labels: Value, account: &str) {
        self.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": {
                "example.com/owner": "someone", "stokehold.dev/memory-terms": r#"{"limit":"160Mi","max":"512Mi"}"#}},
            "spec": {"nodeName": node, "serviceAccountName": account, "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {"name": "worker", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "100Mi"}, "limits": {"memory": "160Mi"}}},
                    {"name": "other", "image": "none", "resources": {"limits": {"memory": "64Mi"}}}]},
        }));
    }

    fn clear(&self) {
        let delete = |arguments: &[&str]| {
            let mut command = self.testbed.kubectl(&[
                "delete",
                "--ignore-not-found",
                "--grace-period=0",
                "--force",
            ]);
            command.args(arguments).output().expect("kubectl");
        };
        delete(&[
            "pod",
            "own-node-agent",
            "own-node-data",
            "-n",
            release::NAMESPACE,
        ]);
        delete(&["pods", "--all", "-n", NAMESPACE]);
        delete(&["nodes", "own-node-a", "own-node-b"]);
        delete(&["namespace", NAMESPACE]);
    }
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The namespace's pods, with the token of an agent.
async fn pods(testbed: &Testbed, bound_to: Option<&str>) -> Api<Pod> {
    Api::namespaced(
        client(testbed, "stokehold-agent", bound_to).await,
        NAMESPACE,
    )
}

async fn client(testbed: &Testbed, account: &str, bound_to: Option<&str>) -> Client {
    let config = release::account(testbed, account, bound_to);
    let config: Kubeconfig = serde_json::from_value(config).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Client::try_from(config).expect("a client")
}

/// The same of a change of a container's size.
async fn resize_refusal(
    pods: &Api<Pod>,
    name: &str,
    container: &str,
    resources: &Value,
) -> Option<String> {
    let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}});
    let params = PatchParams::default();
    let patched = pods
        .patch_subresource("resize", name, &params, &Patch::Strategic(patch))
        .await;
    match patched {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message.clone()),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// What the API server says against a patch. kubectl would read the pod first, which an agent may not.
async fn refusal(pods: &Api<Pod>, name: &str, patch: &Value) -> Option<String> {
    let patched = pods
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Ok(_) => None,
        Err(kube::Error::Api(status)) => Some(status.message.clone()),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn an_agent_writes_to_the_workers_of_its_node_and_to_nothing_else() {
    let Some(testbed) = support::testbed() else {
        return;
    };
    let Some(_release) = release::shared(&testbed) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(try_everything(&testbed));
}

async fn try_everything(testbed: &Testbed) {
    let scene = Scene::new(testbed);
    let worker = || json!({"stokehold.dev/job": "some"});
    scene.pod(
        release::NAMESPACE,
        "own-node-agent",
        "own-node-a",
        json!({}),
        "stokehold-agent",
    );
    scene.pod(NAMESPACE, "own", "own-node-a", worker(), "default");
    scene.pod(NAMESPACE, "foreign", "own-node-b", worker(), "default");
    scene.pod(NAMESPACE, "plain", "own-node-a", json!({}), "default");

    let agent = pods(testbed, Some("Pod/own-node-agent")).await;
    let nowhere = pods(testbed, None).await;
    let annotation = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let usage = || annotation("stokehold.dev/usage", json!("{}"));
    // A policy is in force a moment after it was made.
    let deadline = Instant::now() + support::PATIENCE;
    while refusal(&agent, "foreign", &usage()).await.is_none() {
        assert!(Instant::now() < deadline, "the policy is never in force");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    let of_another =
        r#"the agent of node "own-node-a" may not write to a pod of node "own-node-b""#;
    let only_ours = "may change annotations of stokehold.dev only";
    let relabel = json!({"metadata": {"labels": {"stokehold.dev/job": "other"}}});
    let finalizer = json!({"metadata": {"finalizers": ["example.com/never"]}});
    for (by, pod, patch, refused) in [
        (&agent, "own", usage(), None),
        (
            &agent,
            "own",
            annotation("stokehold.dev/usage", Value::Null),
            None,
        ),
        (&agent, "foreign", usage(), Some(of_another)),
        (
            &agent,
            "plain",
            usage(),
            Some("writes to the workers of jobs only"),
        ),
        // A token that was made for no pod has no node.
        (&nowhere, "own", usage(), Some(r#"the agent of node """#)),
        (
            &agent,
            "own",
            annotation("example.com/mine", json!("x")),
            Some(only_ours),
        ),
        (
            &agent,
            "own",
            annotation("example.com/owner", json!("me")),
            Some(only_ours),
        ),
        (
            &agent,
            "own",
            annotation("example.com/owner", Value::Null),
            Some(only_ours),
        ),
        (
            &agent,
            "own",
            annotation("stokehold.dev/memory-terms", json!(r#"{"max":"64Gi"}"#)),
            Some(only_ours),
        ),
        (&agent, "own", relabel, Some(only_ours)),
        (&agent, "own", finalizer, Some(only_ours)),
        (
            &agent,
            "own",
            json!({"spec": {"activeDeadlineSeconds": 1}}),
            Some(only_ours),
        ),
    ] {
        let said = refusal(by, pod, &patch).await;
        match refused {
            None => assert_eq!(said, None, "{pod} {patch}"),
            Some(message) => {
                let said = said.unwrap_or_default();
                assert!(said.contains(message), "{pod} {patch}: {said:?}");
            }
        }
    }
    let up_to = "up to its job's memory.max and no further";
    let memory_only = "the memory of the worker and nothing else";
    for (pod, container, resources, refused) in [
        (
            "own",
            "worker",
            json!({"limits": {"memory": "512Mi"}}),
            None,
        ),
        (
            "own",
            "worker",
            json!({"limits": {"memory": "160Mi"}}),
            None,
        ),
        (
            "own",
            "worker",
            json!({"limits": {"memory": "513Mi"}}),
            Some(up_to),
        ),
        (
            "own",
            "worker",
            json!({"requests": {"memory": "120Mi"}}),
            Some(up_to),
        ),
        (
            "own",
            "worker",
            json!({"requests": {"cpu": "2"}}),
            Some(memory_only),
        ),
        (
            "own",
            "other",
            json!({"limits": {"memory": "65Mi"}, "requests": {"memory": "65Mi"}}),
            Some(memory_only),
        ),
        (
            "foreign",
            "worker",
            json!({"limits": {"memory": "200Mi"}}),
            Some(of_another),
        ),
        (
            "plain",
            "worker",
            json!({"limits": {"memory": "200Mi"}}),
            Some("writes to the workers of jobs only"),
        ),
    ] {
        let said = resize_refusal(&agent, pod, container, &resources).await;
        match refused {
            None => assert_eq!(said, None, "{pod} {resources}"),
            Some(message) => {
                let said = said.unwrap_or_default();
                assert!(said.contains(message), "{pod} {resources}: {said:?}");
            }
        }
    }
    try_as_driver(&scene).await;
    // Nobody else is kept from anything.
    let patch = annotation("example.com/mine", json!("x")).to_string();
    succeed(
        testbed
            .kubectl(&["patch", "pod", "foreign", "-n", NAMESPACE])
            .args(["--type=merge", "-p", &patch]),
    );
}

/// The same for who copies datasets, on the scene as it is.
async fn try_as_driver(scene: &Scene<'_>) {
    scene.pod(
        release::NAMESPACE,
        "own-node-data",
        "own-node-a",
        json!({}),
        "stokehold-data",
    );
    scene.create(
        &json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset",
        "metadata": {"name": "words", "namespace": NAMESPACE}, "spec": {"uri": "s3://bucket/words"}}),
    );
    let token = Some("Pod/own-node-data");
    let driver = client(scene.testbed, "stokehold-data", token).await;
    let nowhere = client(scene.testbed, "stokehold-data", None).await;
    let annotation = |key: &str| json!({"metadata": {"annotations": {key: "{}"}}});
    let staging = || annotation("stokehold.dev/staging");
    let of_another =
        r#"the data driver of node "own-node-a" may not write to a pod of node "own-node-b""#;
    let only_ours = "may change the annotation stokehold.dev/staging only";
    let of_no_node = "the data driver's token is of no node";
    // A policy is in force a moment after it was made.
    let pods: Api<Pod> = Api::namespaced(driver.clone(), NAMESPACE);
    let deadline = Instant::now() + support::PATIENCE;
    while refusal(&pods, "foreign", &staging()).await.is_none() {
        assert!(Instant::now() < deadline, "the policy is never in force");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (by, pod, patch, refused) in [
        (&driver, "own", staging(), None),
        // Whoever reads a dataset without being a job's worker is told, too.
        (&driver, "plain", staging(), None),
        (&driver, "foreign", staging(), Some(of_another)),
        (&nowhere, "own", staging(), Some(of_no_node)),
        (
            &driver,
            "own",
            annotation("stokehold.dev/usage"),
            Some(only_ours),
        ),
        (
            &driver,
            "own",
            annotation("example.com/owner"),
            Some(only_ours),
        ),
        (
            &driver,
            "own",
            json!({"metadata": {"labels": {"stokehold.dev/job": "other"}}}),
            Some(only_ours),
        ),
        (
            &driver,
            "own",
            json!({"spec": {"activeDeadlineSeconds": 1}}),
            Some(only_ours),
        ),
    ] {
        let pods: Api<Pod> = Api::namespaced(by.clone(), NAMESPACE);
        let said = refusal(&pods, pod, &patch).await;
        expect(said, refused, &format!("{pod} {patch}"));
    }
    let own_only = "may say of its own node only whether a dataset is warm there";
    for (by, status, refused) in [
        (
            &driver,
            json!({"warmNodes": ["own-node-a"], "size": "1Gi"}),
            None,
        ),
        (
            &driver,
            json!({"warmNodes": ["own-node-b"]}),
            Some(own_only),
        ),
        (&driver, json!({"warmNodes": []}), None),
        (&nowhere, json!({"message": "x"}), Some(of_no_node)),
    ] {
        let datasets: Api<stoke_api::Dataset> = Api::namespaced(by.clone(), NAMESPACE);
        let patch = json!({"status": status});
        let patched = datasets
            .patch_status("words", &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let said = match patched {
            Ok(_) => None,
            Err(kube::Error::Api(status)) => Some(status.message.clone()),
            Err(error) => panic!("{patch}: {error}"),
        };
        expect(said, refused, &patch.to_string());
    }
}

fn expect(said: Option<String>, refused: Option<&str>, what: &str) {
    match refused {
        None => assert_eq!(said, None, "{what}"),
        Some(message) => {
            let said = said.unwrap_or_default();
            assert!(said.contains(message), "{what}: {said:?}");
        }
    }
}
