//! What kube-apiserver writes into a pod that does not say it.
//!
//! Invariant: filling twice changes nothing, and nothing that is said is overwritten.

use serde_json::{Map, Value, json};

use super::CONTAINER_LISTS;
use crate::object::{child_mut, fill as set};

pub(super) fn fill(pod: &mut Value) {
    let spec = child_mut(pod, "spec");
    set(spec, "restartPolicy", "Always");
    set(spec, "dnsPolicy", "ClusterFirst");
    set(spec, "terminationGracePeriodSeconds", 30);
    if spec["terminationGracePeriodSeconds"]
        .as_i64()
        .is_some_and(|seconds| seconds < 0)
    {
        spec.insert("terminationGracePeriodSeconds".into(), 1.into());
    }
    set(spec, "schedulerName", "default-scheduler");
    set(spec, "securityContext", json!({}));
    set(spec, "enableServiceLinks", true);
    service_account(spec);
    tolerations(spec);
    for list in CONTAINER_LISTS {
        for container in each(spec, list) {
            fill_container(container);
        }
    }
    for volume in each(spec, "volumes") {
        fill_volume(volume);
    }
}

/// What the status of a pod shows even where nobody said it.
pub(super) fn fill_status(pod: &mut Value) {
    let status = child_mut(pod, "status");
    for condition in each(status, "conditions") {
        for field in ["lastProbeTime", "lastTransitionTime"] {
            condition.entry(field).or_insert(Value::Null);
        }
    }
    for list in ["containerStatuses", "initContainerStatuses"] {
        for container in each(status, list) {
            for field in ["state", "lastState"] {
                set(container, field, json!({}));
            }
            for field in ["image", "imageID"] {
                set(container, field, "");
            }
            set(container, "ready", false);
            set(container, "restartCount", 0);
        }
    }
}

fn each<'a>(
    map: &'a mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    map.get_mut(list)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// `serviceAccount` is the old name of `serviceAccountName`; both are shown.
fn service_account(spec: &mut Map<String, Value>) {
    let named = ["serviceAccountName", "serviceAccount"]
        .iter()
        .find_map(|field| {
            spec.get(*field)
                .filter(|value| *value != "" && !value.is_null())
        });
    let name = named.cloned().unwrap_or_else(|| "default".into());
    spec.insert("serviceAccountName".into(), name.clone());
    spec.insert("serviceAccount".into(), name);
}

/// A pod stays for five minutes on a node that is not ready, unless it says how long.
fn tolerations(spec: &mut Map<String, Value>) {
    set(spec, "tolerations", json!([]));
    let Some(list) = spec.get_mut("tolerations").and_then(Value::as_array_mut) else {
        return;
    };
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let tolerated = list.iter().any(|toleration| {
            let keyed = toleration["key"].as_str().unwrap_or_default();
            let effect = toleration["effect"].as_str().unwrap_or_default();
            matches!(effect, "" | "NoExecute") && (keyed == key || keyed.is_empty())
        });
        if !tolerated {
            list.push(json!({
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }));
        }
    }
}

fn fill_container(container: &mut Map<String, Value>) {
    set(container, "terminationMessagePath", "/dev/termination-log");
    set(container, "terminationMessagePolicy", "File");
    let policy = pull_policy(container.get("image").and_then(Value::as_str).unwrap_or(""));
    set(container, "imagePullPolicy", policy);
    set(container, "resources", json!({}));
    if let Some(resources) = container
        .get_mut("resources")
        .and_then(Value::as_object_mut)
    {
        requests_from_limits(resources);
    }
    for port in each(container, "ports") {
        set(port, "protocol", "TCP");
    }
    for variable in each(container, "env") {
        let field = variable
            .get_mut("valueFrom")
            .and_then(|from| from.get_mut("fieldRef"))
            .and_then(Value::as_object_mut);
        if let Some(field) = field {
            set(field, "apiVersion", "v1");
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(name).and_then(Value::as_object_mut) {
            fill_probe(probe);
        }
    }
    let hooks = container
        .get_mut("lifecycle")
        .and_then(Value::as_object_mut);
    for hook in hooks.into_iter().flat_map(Map::values_mut) {
        if let Some(get) = hook.get_mut("httpGet").and_then(Value::as_object_mut) {
            fill_http_get(get);
        }
    }
}

fn fill_probe(probe: &mut Map<String, Value>) {
    set(probe, "timeoutSeconds", 1);
    set(probe, "periodSeconds", 10);
    set(probe, "successThreshold", 1);
    set(probe, "failureThreshold", 3);
    if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
        fill_http_get(get);
    }
    if let Some(call) = probe.get_mut("grpc").and_then(Value::as_object_mut) {
        set(call, "service", "");
    }
}

fn fill_http_get(get: &mut Map<String, Value>) {
    set(get, "path", "/");
    set(get, "scheme", "HTTP");
}

/// An image without a tag, or with `latest`, may change under its name.
fn pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or(image);
    let moving = !last.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    if moving { "Always" } else { "IfNotPresent" }
}

/// A limit is also a request where no request is made.
fn requests_from_limits(resources: &mut Map<String, Value>) {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else {
        return;
    };
    if limits.is_empty() {
        return;
    }
    set(resources, "requests", json!({}));
    if let Some(requests) = resources.get_mut("requests").and_then(Value::as_object_mut) {
        for (name, limit) in limits {
            set(requests, &name, limit);
        }
    }
}

fn fill_volume(volume: &mut Map<String, Value>) {
    // A volume that names no source is an empty directory.
    if !volume.keys().any(|field| field != "name") {
        volume.insert("emptyDir".into(), json!({}));
    }
    for (source, field, value) in [
        ("configMap", "defaultMode", json!(0o644)),
        ("secret", "defaultMode", json!(0o644)),
        ("downwardAPI", "defaultMode", json!(0o644)),
        ("projected", "defaultMode", json!(0o644)),
        ("hostPath", "type", json!("")),
    ] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            set(source, field, value);
        }
    }
    for item in volume
        .get_mut("downwardAPI")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(|source| each(source, "items"))
    {
        if let Some(field) = item.get_mut("fieldRef").and_then(Value::as_object_mut) {
            set(field, "apiVersion", "v1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pod_becomes_a_whole_one() {
        let mut pod = json!({"spec": {
            "containers": [{
                "name": "a",
                "image": "host",
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": 80}},
                "ports": [{"containerPort": 80}],
            }],
            "volumes": [{"name": "scratch"}, {"name": "c", "configMap": {"name": "c"}}],
        }});
        fill(&mut pod);
        insta::assert_yaml_snapshot!(pod, @r#"
        spec:
          containers:
            - image: host
              imagePullPolicy: Always
              livenessProbe:
                failureThreshold: 3
                httpGet:
                  path: /
                  port: 80
                  scheme: HTTP
                periodSeconds: 10
                successThreshold: 1
                timeoutSeconds: 1
              name: a
              ports:
                - containerPort: 80
                  protocol: TCP
              resources:
                limits:
                  cpu: "1"
                  memory: 1Gi
                requests:
                  cpu: 500m
                  memory: 1Gi
              terminationMessagePath: /dev/termination-log
              terminationMessagePolicy: File
          dnsPolicy: ClusterFirst
          enableServiceLinks: true
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
          volumes:
            - emptyDir: {}
              name: scratch
            - configMap:
                defaultMode: 420
                name: c
              name: c
        "#);
        let once = pod.clone();
        fill(&mut pod);
        assert_eq!(pod, once);
    }

    #[test]
    fn only_images_that_may_move_are_pulled_always() {
        for (image, policy) in [
            ("host", "Always"),
            ("a/b:latest", "Always"),
            ("localhost:5000/a", "Always"),
            ("a/b:1.4", "IfNotPresent"),
            ("a@sha256:00", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }
}
