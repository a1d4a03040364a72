//! What a pod must be to run: names, references, amounts.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::{CONTAINER_LISTS, containers, qos};
use crate::names;
use stoke_api::quantity::Exact;

use crate::schema::FieldError;

/// The longest time a pod may ask for; later arithmetic on times cannot overflow with it.
const SECONDS_MAX: i64 = i32::MAX as i64;

/// Everything wrong with a pod that its schema cannot say.
pub(crate) fn errors(pod: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    let spec = &pod["spec"];
    let volumes = volume_names(&mut found, spec);
    if containers(pod, "containers").next().is_none() {
        found.push(FieldError::required("spec.containers", ""));
    }
    let mut seen = BTreeSet::new();
    for list in CONTAINER_LISTS {
        for (place, container) in containers(pod, list).enumerate() {
            let path = format!("spec.{list}[{place}]");
            container_name(&mut found, &mut seen, &path, container);
            check_container(&mut found, &volumes, &path, container);
        }
    }
    one_of(
        &mut found,
        spec,
        "spec",
        "restartPolicy",
        &["Always", "OnFailure", "Never"],
    );
    one_of(
        &mut found,
        spec,
        "spec",
        "dnsPolicy",
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    at_most(
        &mut found,
        spec,
        "spec",
        "terminationGracePeriodSeconds",
        SECONDS_MAX,
    );
    within(
        &mut found,
        &spec["activeDeadlineSeconds"],
        "spec.activeDeadlineSeconds",
        1..=SECONDS_MAX,
    );
    for field in ["hostname", "subdomain"] {
        if let Some(name) = spec[field].as_str().filter(|name| !name.is_empty()) {
            invalid_name(&mut found, &format!("spec.{field}"), name);
        }
    }
    for (key, value) in spec["nodeSelector"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let wrong = names::qualified_name(key)
            .into_iter()
            .map(|why| (key.as_str(), why));
        for (what, why) in wrong.chain(
            names::label_value(value)
                .into_iter()
                .map(|why| (value, why)),
        ) {
            found.push(FieldError::invalid_text("spec.nodeSelector", what, &why));
        }
    }
    for (place, toleration) in list(spec, "tolerations").enumerate() {
        check_toleration(
            &mut found,
            &format!("spec.tolerations[{place}]"),
            toleration,
        );
    }
    found
}

/// Says so if `name` is no DNS label.
fn invalid_name(found: &mut Vec<FieldError>, path: &str, name: &str) -> bool {
    let wrong = names::dns_label(name);
    for why in &wrong {
        found.push(FieldError::invalid_text(path, name, why));
    }
    !wrong.is_empty()
}

/// The sources of volumes, in the order in which Kubernetes looks for them: all but the first are too many.
const SOURCES: [&str; 12] = [
    "emptyDir",
    "hostPath",
    "secret",
    "nfs",
    "iscsi",
    "persistentVolumeClaim",
    "downwardAPI",
    "configMap",
    "projected",
    "csi",
    "ephemeral",
    "image",
];

fn volume_names<'a>(found: &mut Vec<FieldError>, spec: &'a Value) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (place, volume) in list(spec, "volumes").enumerate() {
        let path = format!("spec.volumes[{place}]");
        let name = volume["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            found.push(FieldError::required(&format!("{path}.name"), ""));
        } else if !invalid_name(found, &format!("{path}.name"), name) && !names.insert(name) {
            found.push(FieldError::duplicate(
                &format!("{path}.name"),
                &Value::from(name),
            ));
        }
        for extra in SOURCES
            .iter()
            .filter(|source| volume.get(**source).is_some())
            .skip(1)
        {
            let why = "may not specify more than 1 volume type";
            found.push(FieldError::forbidden(&format!("{path}.{extra}"), why));
        }
    }
    names
}

fn container_name<'a>(
    found: &mut Vec<FieldError>,
    seen: &mut BTreeSet<&'a str>,
    path: &str,
    container: &'a Value,
) {
    let name = container["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        found.push(FieldError::required(&format!("{path}.name"), ""));
    } else if !invalid_name(found, &format!("{path}.name"), name) && !seen.insert(name) {
        found.push(FieldError::duplicate(
            &format!("{path}.name"),
            &Value::from(name),
        ));
    }
    if container["image"].as_str().unwrap_or_default().is_empty() {
        found.push(FieldError::required(&format!("{path}.image"), ""));
    }
}

fn check_container(
    found: &mut Vec<FieldError>,
    volumes: &BTreeSet<&str>,
    path: &str,
    container: &Value,
) {
    one_of(
        found,
        container,
        path,
        "imagePullPolicy",
        &["Always", "IfNotPresent", "Never"],
    );
    let mut mounted = BTreeSet::new();
    for (place, mount) in list(container, "volumeMounts").enumerate() {
        let mounts = format!("{path}.volumeMounts");
        let path = format!("{mounts}[{place}]");
        let name = mount["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            found.push(FieldError::required(&format!("{path}.name"), ""));
        } else if !volumes.contains(name) {
            found.push(FieldError::not_found(&format!("{path}.name"), name));
        }
        let target = mount["mountPath"].as_str().unwrap_or_default();
        if target.is_empty() {
            found.push(FieldError::required(&format!("{path}.mountPath"), ""));
        } else if !mounted.insert(target) {
            found.push(FieldError::invalid_text(
                &format!("{path}.mountPath"),
                target,
                "must be unique",
            ));
        }
        if let Some(sub) = mount["subPath"].as_str() {
            let path = format!("{mounts}.subPath");
            if sub.starts_with('/') {
                found.push(FieldError::invalid_text(
                    &path,
                    sub,
                    "must be a relative path",
                ));
            }
            if sub.split('/').any(|part| part == "..") {
                found.push(FieldError::invalid_text(
                    &path,
                    sub,
                    "must not contain '..'",
                ));
            }
        }
    }
    for (place, variable) in list(container, "env").enumerate() {
        check_variable(found, &format!("{path}.env[{place}]"), variable);
    }
    for (place, port) in list(container, "ports").enumerate() {
        check_port(
            found,
            &format!("{path}.ports[{place}].containerPort"),
            &port["containerPort"],
        );
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if container[probe].is_object() {
            check_probe(found, &format!("{path}.{probe}"), &container[probe], probe);
        }
    }
    check_resources(found, &format!("{path}.resources"), &container["resources"]);
}

fn check_toleration(found: &mut Vec<FieldError>, path: &str, toleration: &Value) {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    let (key, operator) = (text("key"), text("operator"));
    let operator_path = format!("{path}.operator");
    if key.is_empty() && operator != "Exists" {
        found.push(FieldError::invalid_text(
            &operator_path,
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ));
    }
    if operator == "Exists" && !text("value").is_empty() {
        let why = "value must be empty when `operator` is 'Exists'";
        found.push(FieldError::invalid_text(&operator_path, text("value"), why));
    }
    one_of(found, toleration, path, "operator", &["Equal", "Exists"]);
    one_of(
        found,
        toleration,
        path,
        "effect",
        &["NoSchedule", "PreferNoSchedule", "NoExecute"],
    );
}

fn check_variable(found: &mut Vec<FieldError>, path: &str, variable: &Value) {
    let name = variable["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        found.push(FieldError::required(&format!("{path}.name"), ""));
    } else if name.contains('=') || !name.chars().all(|c| (' '..='~').contains(&c)) {
        let why = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        found.push(FieldError::invalid_text(&format!("{path}.name"), name, why));
    }
    let Some(from) = variable["valueFrom"].as_object() else {
        return;
    };
    if variable["value"]
        .as_str()
        .is_some_and(|value| !value.is_empty())
    {
        let why = "may not be specified when `value` is not empty";
        found.push(FieldError::invalid_text(
            &format!("{path}.valueFrom"),
            "",
            why,
        ));
    }
    if from.len() != 1 {
        let why = "exactly one source must be specified";
        found.push(FieldError::invalid_text(
            &format!("{path}.valueFrom"),
            "",
            why,
        ));
    }
}

fn check_port(found: &mut Vec<FieldError>, path: &str, port: &Value) {
    if port == 0 {
        found.push(FieldError::required(path, ""));
        return;
    }
    within(found, port, path, 1..=65535);
}

const HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];

fn check_probe(found: &mut Vec<FieldError>, path: &str, probe: &Value, kind: &str) {
    let handlers: Vec<&&str> = HANDLERS
        .iter()
        .filter(|name| probe[**name].is_object())
        .collect();
    if handlers.is_empty() {
        found.push(FieldError::required(path, "must specify a handler type"));
    }
    for extra in handlers.iter().skip(1) {
        let why = "may not specify more than 1 handler type";
        found.push(FieldError::forbidden(&format!("{path}.{extra}"), why));
    }
    for name in ["httpGet", "tcpSocket", "grpc"] {
        check_port(found, &format!("{path}.{name}.port"), &probe[name]["port"]);
    }
    at_least(found, probe, path, "initialDelaySeconds", 0);
    for field in [
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        at_least(found, probe, path, field, 1);
    }
    if kind != "readinessProbe"
        && let Some(number) = probe["successThreshold"].as_i64()
        && number > 1
    {
        found.push(FieldError::invalid(
            &format!("{path}.successThreshold"),
            &Value::from(number),
            "must be 1",
        ));
    }
}

fn check_resources(found: &mut Vec<FieldError>, path: &str, resources: &Value) {
    for list in ["limits", "requests"] {
        for (name, amount) in resources[list].as_object().into_iter().flatten() {
            let path = format!("{path}.{list}[{name}]");
            let wrong = names::qualified_name(name);
            if wrong.is_empty() && !name.contains('/') && !is_standard(name) {
                for why in [
                    "must be a standard resource type or fully qualified",
                    "must be a standard resource for containers",
                ] {
                    found.push(FieldError::invalid_text(&path, name, why));
                }
            }
            for why in wrong {
                found.push(FieldError::invalid_text(&path, name, &why));
            }
            check_amount(found, path, name, amount);
        }
    }
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let limit = &resources["limits"][name.as_str()];
        let over = qos::amount(request) > qos::amount(limit);
        if is_extended(name) {
            if limit.is_null() {
                found.push(FieldError::required(
                    &format!("{path}.limits"),
                    "Limit must be set for non overcommitable resources",
                ));
            } else if qos::amount(request) != qos::amount(limit) {
                let limit = limit.as_str().unwrap_or("0");
                let why = format!("must be equal to {name} limit of {limit}");
                found.push(FieldError::invalid(
                    &format!("{path}.requests"),
                    request,
                    &why,
                ));
            }
        } else if over && !limit.is_null() {
            let limit = limit.as_str().unwrap_or_default();
            let why = format!("must be less than or equal to {name} limit of {limit}");
            found.push(FieldError::invalid(
                &format!("{path}.requests"),
                request,
                &why,
            ));
        }
    }
}

fn check_amount(found: &mut Vec<FieldError>, path: String, name: &str, amount: &Value) {
    let text = amount.as_str().unwrap_or_default();
    let Some(quantity) = Exact::parse(text) else {
        found.push(FieldError::invalid_text(&path, text, "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"));
        return;
    };
    if quantity.nanos() < 0 {
        found.push(FieldError::invalid_text(
            &path,
            text,
            "must be greater than or equal to 0",
        ));
    } else if is_extended(name) && quantity.nanos() % 1_000_000_000 != 0 {
        found.push(FieldError::invalid_text(&path, text, "must be an integer"));
    }
}

/// What every container may ask for.
fn is_standard(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// Resources that a device plugin counts, such as GPUs: whole, and never overcommitted.
fn is_extended(name: &str) -> bool {
    name.split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

fn list<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    object[field].as_array().into_iter().flatten()
}

fn one_of(found: &mut Vec<FieldError>, object: &Value, path: &str, field: &str, allowed: &[&str]) {
    if let Some(value) = object[field].as_str()
        && !allowed.contains(&value)
    {
        let allowed: Vec<String> = allowed.iter().map(|value| format!("{value:?}")).collect();
        found.push(FieldError::not_supported(
            &format!("{path}.{field}"),
            &Value::from(value),
            &allowed,
        ));
    }
}

fn at_least(found: &mut Vec<FieldError>, object: &Value, path: &str, field: &str, least: i64) {
    if let Some(number) = object[field].as_i64()
        && number < least
    {
        found.push(FieldError::invalid(
            &format!("{path}.{field}"),
            &Value::from(number),
            &format!("must be greater than or equal to {least}"),
        ));
    }
}

fn at_most(found: &mut Vec<FieldError>, object: &Value, path: &str, field: &str, most: i64) {
    if let Some(number) = object[field].as_i64()
        && number > most
    {
        found.push(FieldError::invalid(
            &format!("{path}.{field}"),
            &Value::from(number),
            &format!("must be less than or equal to {most}"),
        ));
    }
}

fn within(found: &mut Vec<FieldError>, value: &Value, path: &str, range: RangeInclusive<i64>) {
    if let Some(number) = value.as_i64()
        && !range.contains(&number)
    {
        found.push(FieldError::invalid(
            path,
            &Value::from(number),
            &format!(
                "must be between {} and {}, inclusive",
                range.start(),
                range.end()
            ),
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(spec: Value) -> String {
        let errors = errors(&json!({"spec": spec}));
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    fn one(container: Value) -> String {
        let mut whole = json!({"name": "a", "image": "host"});
        for (field, value) in container.as_object().unwrap() {
            whole[field] = value.clone();
        }
        found(json!({"containers": [whole], "volumes": [{"name": "data", "emptyDir": {}}]}))
    }

    #[test]
    fn a_good_pod_passes() {
        assert_eq!(one(json!({})), "");
        assert_eq!(
            one(json!({"volumeMounts": [{"name": "data", "mountPath": "/d"}]})),
            ""
        );
        assert_eq!(
            one(
                json!({"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"},
            "requests": {"nvidia.com/gpu": "1", "cpu": "500m"}}})
            ),
            ""
        );
    }

    #[test]
    fn each_mistake_is_named() {
        insta::assert_snapshot!(found(json!({})), @"spec.containers: Required value");
        insta::assert_snapshot!(found(json!({
            "restartPolicy": "Sometimes",
            "terminationGracePeriodSeconds": -1,
            "activeDeadlineSeconds": 0,
            "hostname": "A",
            "volumes": [{"name": "v", "emptyDir": {}, "hostPath": {}}, {"name": "v"}, {}],
            "containers": [{"name": "a", "image": "i"}, {"name": "a"}, {"name": "B", "image": "i"}],
        })), @r#"
        spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type
        spec.volumes[1].name: Duplicate value: "v"
        spec.volumes[2].name: Required value
        spec.containers[1].name: Duplicate value: "a"
        spec.containers[1].image: Required value
        spec.containers[2].name: Invalid value: "B": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
        spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"
        spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive
        spec.hostname: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
        "#);
        insta::assert_snapshot!(one(json!({
            "volumeMounts": [{"name": "no", "mountPath": "/a"}, {"name": "data", "mountPath": "/a", "subPath": "../x"}],
            "env": [{"name": "A=B"}, {"name": "C", "value": "x", "valueFrom": {"fieldRef": {}}}],
            "ports": [{"containerPort": 0}],
            "livenessProbe": {"successThreshold": 2, "exec": {}, "httpGet": {"port": 70000}},
            "readinessProbe": {"periodSeconds": 0},
        })), @r#"
        spec.containers[0].volumeMounts[0].name: Not found: "no"
        spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/a": must be unique
        spec.containers[0].volumeMounts.subPath: Invalid value: "../x": must not contain '..'
        spec.containers[0].env[0].name: Invalid value: "A=B": a valid environment variable name must consist only of printable ASCII characters other than '='
        spec.containers[0].env[1].valueFrom: Invalid value: "": may not be specified when `value` is not empty
        spec.containers[0].ports[0].containerPort: Required value
        spec.containers[0].livenessProbe.httpGet: Forbidden: may not specify more than 1 handler type
        spec.containers[0].livenessProbe.httpGet.port: Invalid value: 70000: must be between 1 and 65535, inclusive
        spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1
        spec.containers[0].readinessProbe: Required value: must specify a handler type
        spec.containers[0].readinessProbe.periodSeconds: Invalid value: 0: must be greater than or equal to 1
        "#);
        insta::assert_snapshot!(one(json!({"resources": {
            "limits": {"cpu": "1", "memory": "lots", "nvidia.com/gpu": "1500m", "bad name": "1"},
            "requests": {"cpu": "2", "memory": "-1", "nvidia.com/gpu": "1"},
        }})), @r#"
        spec.containers[0].resources.limits[bad name]: Invalid value: "bad name": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        spec.containers[0].resources.limits[memory]: Invalid value: "lots": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
        spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "1500m": must be an integer
        spec.containers[0].resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0
        spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1
        spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 1500m
        "#);
    }
}
