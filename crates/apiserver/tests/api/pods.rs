//! What only pods have.

use serde_json::{Value, json};

use crate::world::{PODS, World, pod};

fn sized(name: &str, resources: Value) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = resources;
    pod
}

#[tokio::test]
async fn a_short_pod_becomes_a_whole_one() {
    let world = World::new().await;
    let body = sized(
        "a",
        json!({"limits": {"cpu": 2, "memory": "1024Mi"}, "requests": {"cpu": "0.5"}}),
    );
    let created = world.post(PODS, body).await.ok();
    insta::assert_yaml_snapshot!(json!({"spec": created["spec"], "status": created["status"]}), @r#"
        spec:
          containers:
            - image: host
              imagePullPolicy: Always
              name: main
              resources:
                limits:
                  cpu: "2"
                  memory: 1Gi
                requests:
                  cpu: 500m
                  memory: 1Gi
              terminationMessagePath: /dev/termination-log
              terminationMessagePolicy: File
          dnsPolicy: ClusterFirst
          enableServiceLinks: true
          preemptionPolicy: PreemptLowerPriority
          priority: 0
          restartPolicy: Always
          schedulerName: default-scheduler
          securityContext: {}
          serviceAccount: default
          serviceAccountName: default
          terminationGracePeriodSeconds: 30
          tolerations:
            - effect: NoExecute
              key: node.kubernetes.io/not-ready
              operator: Exists
              tolerationSeconds: 300
            - effect: NoExecute
              key: node.kubernetes.io/unreachable
              operator: Exists
              tolerationSeconds: 300
        status:
          phase: Pending
          qosClass: Burstable
        "#);
}

#[tokio::test]
async fn binding() {
    let world = World::new().await;
    world.create_pod("a").await;
    let path = format!("{PODS}/a/binding");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "here"},
    });
    let mut outdated = binding.clone();
    outdated["metadata"]["uid"] = "that-of-an-earlier-pod".into();
    world.post(&path, outdated).await.refused(409, "Conflict");
    let found = world.get(&format!("{PODS}/a")).await.ok();
    assert!(found["spec"].get("nodeName").is_none());
    let mut binding = binding;
    binding["metadata"]["uid"] = found["metadata"]["uid"].clone();
    let bound = world.post(&path, binding.clone()).await;
    assert_eq!(bound.code, 201);
    assert_eq!(bound.ok()["status"], "Success");
    let pod = world.get(&format!("{PODS}/a")).await.ok();
    assert_eq!(pod["spec"]["nodeName"], "here");
    assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
    world
        .post(&path, binding.clone())
        .await
        .refused(409, "Conflict");
    let mut elsewhere = binding.clone();
    elsewhere["metadata"]["name"] = "no".into();
    world
        .post(&format!("{PODS}/no/binding"), elsewhere)
        .await
        .refused(404, "NotFound");
    world
        .post(&format!("{PODS}/no/binding"), binding)
        .await
        .refused(400, "BadRequest");
    world.get(&path).await.refused(405, "MethodNotAllowed");
    let list = world
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dhere")
        .await
        .ok();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn eviction_is_a_deletion() {
    let world = World::new().await;
    world.create_pod("a").await;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let evicted = world.post(&format!("{PODS}/a/eviction"), eviction).await;
    assert_eq!(evicted.code, 201);
    world
        .get(&format!("{PODS}/a"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn an_evicted_pod_says_so_while_it_ends() {
    let world = World::new().await;
    let mut placed = pod("a");
    placed["spec"]["nodeName"] = "here".into();
    let created = world.post(PODS, placed).await.ok();
    let path = format!("{PODS}/a");
    let eviction = |resource_version: &Value| {
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"},
            "deleteOptions": {"preconditions": {"resourceVersion": resource_version}}})
    };
    let evict = |body: Value, query: &str| {
        let path = format!("{path}/eviction{query}");
        let world = &world;
        async move { world.post(&path, body).await }
    };
    let version = &created["metadata"]["resourceVersion"];
    evict(eviction(&json!("1")), "")
        .await
        .refused(409, "Conflict");
    evict(eviction(version), "?dryRun=All").await.ok();
    assert_eq!(world.get(&path).await.ok(), created);

    evict(eviction(version), "").await.ok();
    let ending = world.get(&path).await.ok();
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    let conditions = ending["status"]["conditions"].as_array().unwrap();
    let evicted = conditions
        .iter()
        .find(|condition| condition["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(
        (&evicted["status"], &evicted["reason"]),
        (&json!("True"), &json!("EvictionByEvictionAPI"))
    );
}

#[tokio::test]
async fn resize_changes_resources_and_nothing_else() {
    let world = World::new().await;
    let resources = json!({"limits": {"memory": "1Gi", "nvidia.com/gpu": "1"}, "requests": {"memory": "512Mi"}});
    world.post(PODS, sized("a", resources)).await.ok();
    let path = format!("{PODS}/a/resize");
    let patch = |resources: Value| json!({"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "main", "image": "z", "resources": resources}]}});
    let grown = world
        .patch(
            &path,
            "strategic-merge",
            patch(json!({"limits": {"memory": "2Gi"}})),
        )
        .await
        .ok();
    let container = &grown["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["memory"], "2Gi");
    assert_eq!(container["image"], "host");
    assert!(grown["metadata"].get("labels").is_none());
    assert_eq!(grown["metadata"]["generation"], 2);
    let labels = json!({"metadata": {"labels": {"x": "y"}}});
    world
        .patch(&format!("{PODS}/a"), "merge", labels)
        .await
        .ok();
    for (what, resources) in [
        (
            "another class",
            json!({"limits": {"memory": "2Gi", "cpu": "1"}, "requests": {"memory": "2Gi", "cpu": "1"}}),
        ),
        (
            "devices",
            json!({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}),
        ),
        ("less than requested", json!({"limits": {"memory": "1Mi"}})),
        ("nothing", json!({"limits": {"memory": null}})),
    ] {
        let answer = world
            .patch(&path, "strategic-merge", patch(resources))
            .await;
        assert_eq!(answer.code, 422, "{what}: {}", answer.shown());
    }
}

#[tokio::test]
async fn logs_are_asked_of_the_node() {
    let world = World::new().await;
    let mut two = pod("two");
    two["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "side", "image": "host"}));
    world.post(PODS, two).await.ok();
    world.create_pod("one").await;
    let nowhere = world.get(&format!("{PODS}/one/log")).await;
    assert_eq!((nowhere.code.as_u16(), nowhere.text.as_str()), (200, ""));
    let which = world
        .get(&format!("{PODS}/two/log"))
        .await
        .refused(400, "BadRequest");
    assert!(
        which["message"]
            .as_str()
            .unwrap()
            .contains("choose one of: [main side]")
    );
    let none = world.get(&format!("{PODS}/two/log?container=no")).await;
    none.refused(400, "BadRequest");
    let mut placed = pod("placed");
    placed["spec"]["nodeName"] = "here".into();
    world.post(PODS, placed).await.ok();
    let waiting = world
        .get(&format!("{PODS}/placed/log"))
        .await
        .refused(400, "BadRequest");
    assert!(
        waiting["message"]
            .as_str()
            .unwrap()
            .contains("waiting to start")
    );
    world
        .get(&format!("{PODS}/no/log"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn priority_comes_from_the_class() {
    let world = World::new().await;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"});
    world
        .post("/apis/scheduling.k8s.io/v1/priorityclasses", class)
        .await
        .ok();
    let mut body = pod("a");
    body["spec"]["priorityClassName"] = "high".into();
    let created = world.post(PODS, body).await.ok();
    assert_eq!(created["spec"]["priority"], 1000);
    assert_eq!(created["spec"]["preemptionPolicy"], "Never");
    assert_eq!(world.create_pod("b").await["spec"]["priority"], 0);
}
