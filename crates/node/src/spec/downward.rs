//! What a pod may be told about itself: `fieldRef` and `resourceFieldRef`, for environment variables and files alike.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector};

use super::{NodeFacts, SpecError};
use crate::quantity;

/// The value of `fieldRef.fieldPath`.
pub(crate) fn field(pod: &Pod, node: &NodeFacts, path: &str) -> Result<String, SpecError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    if let Some((map, key)) = subscript(path) {
        let of = |map: &Option<BTreeMap<String, String>>| {
            map.as_ref()
                .and_then(|map| map.get(key))
                .cloned()
                .unwrap_or_default()
        };
        return match map {
            "metadata.labels" => Ok(of(&meta.labels)),
            "metadata.annotations" => Ok(of(&meta.annotations)),
            _ => Err(SpecError::UnknownField(path.to_owned())),
        };
    }
    Ok(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => listing(meta.labels.as_ref()),
        "metadata.annotations" => listing(meta.annotations.as_ref()),
        "spec.nodeName" => node.name.clone(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        // Pods share the host's network, so the pod's address is the node's.
        "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => {
            node.address.clone()
        }
        _ => return Err(SpecError::UnknownField(path.to_owned())),
    })
}

/// `metadata.labels['key']` as (`metadata.labels`, `key`).
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once('[')?;
    let key = rest.strip_suffix(']')?;
    let unquoted = |quote: char| {
        key.strip_prefix(quote)
            .and_then(|key| key.strip_suffix(quote))
    };
    Some((map, unquoted('\'').or_else(|| unquoted('"'))?))
}

/// All labels or annotations as a downward API file shows them: one `key="value"` a line.
fn listing(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    lines.join("\n")
}

/// The value of a `resourceFieldRef`. `own` is the container asking, unless the selector names another.
pub(crate) fn resource(
    pod: &Pod,
    node: &NodeFacts,
    own: Option<&str>,
    selector: &ResourceFieldSelector,
) -> Result<String, SpecError> {
    let name = selector
        .container_name
        .as_deref()
        .filter(|name| !name.is_empty())
        .or(own);
    let spec = pod.spec.as_ref();
    let mut containers = spec.into_iter().flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    });
    let container = containers
        .find(|container| Some(container.name.as_str()) == name)
        .ok_or_else(|| SpecError::UnknownContainer(name.unwrap_or_default().to_owned()))?;
    let unknown = || SpecError::UnknownField(selector.resource.clone());
    let (list, resource) = selector.resource.split_once('.').ok_or_else(unknown)?;
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let value = match list {
        // Without a limit, all that the node can give is the limit.
        "limits" => limits
            .and_then(|list| list.get(resource))
            .or_else(|| node.allocatable.get(resource)),
        "requests" => requests
            .and_then(|list| list.get(resource))
            .or_else(|| limits.and_then(|list| list.get(resource))),
        _ => return Err(unknown()),
    };
    let Some(value) = value else {
        return Ok("0".to_owned());
    };
    let number = quantity::divided(value, selector.divisor.as_ref()).ok_or_else(unknown)?;
    Ok(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests_support::{facts, pod};
    use serde_json::json;

    #[test]
    fn fields_of_the_pod() {
        let pod = pod(json!({
            "metadata": {
                "name": "p", "namespace": "ns", "uid": "u-1",
                "labels": {"b": "2", "a": "1\n"}, "annotations": {"stokehold.dev/x": "y"},
            },
            "spec": {"containers": [], "serviceAccountName": "default"},
        }));
        let table = [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "u-1"),
            ("metadata.labels", "a=\"1\\n\"\nb=\"2\""),
            ("metadata.labels['b']", "2"),
            ("metadata.labels['missing']", ""),
            ("metadata.annotations['stokehold.dev/x']", "y"),
            ("spec.nodeName", "node-a"),
            ("spec.serviceAccountName", "default"),
            ("status.podIP", "10.0.0.7"),
            ("status.hostIP", "10.0.0.7"),
        ];
        for (path, expected) in table {
            assert_eq!(field(&pod, &facts(), path).expect(path), expected, "{path}");
        }
        for path in [
            "",
            "spec.containers",
            "metadata.labels[b]",
            "metadata.finalizers['a']",
            "metadata.labels['",
        ] {
            assert!(field(&pod, &facts(), path).is_err(), "{path}");
        }
    }

    #[test]
    fn resources_of_a_container() {
        let pod = pod(json!({"spec": {"containers": [
            {"name": "main", "resources": {"limits": {"memory": "1Gi", "cpu": "1500m"}, "requests": {"cpu": "250m"}}},
            {"name": "bare"},
        ]}}));
        let table = [
            ("main", "limits.memory", None, "1073741824"),
            ("main", "limits.memory", Some("1Mi"), "1024"),
            ("main", "limits.cpu", None, "2"),
            ("main", "limits.cpu", Some("1m"), "1500"),
            ("main", "requests.cpu", None, "1"),
            ("main", "requests.memory", Some("1Mi"), "1024"),
            ("bare", "limits.cpu", None, "8"),
            ("bare", "requests.cpu", None, "0"),
        ];
        for (container, resource_name, divisor, expected) in table {
            let selector: ResourceFieldSelector = serde_json::from_value(
                json!({"containerName": container, "resource": resource_name, "divisor": divisor}),
            )
            .expect("a selector");
            assert_eq!(
                resource(&pod, &facts(), None, &selector).expect("known"),
                expected,
                "{container} {resource_name}"
            );
        }
        let nobody = ResourceFieldSelector {
            container_name: Some("nobody".into()),
            resource: "limits.cpu".into(),
            ..Default::default()
        };
        assert!(resource(&pod, &facts(), None, &nobody).is_err());
        let odd = ResourceFieldSelector {
            resource: "cpu".into(),
            ..Default::default()
        };
        assert!(resource(&pod, &facts(), Some("main"), &odd).is_err());
    }
}
