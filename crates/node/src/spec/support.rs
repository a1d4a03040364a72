//! What of a pod's spec this node cannot honour.
//!
//! A process on the host is not a container: some settings mean nothing here and are harmless (images, service accounts,
//! DNS policy), some are honoured by how things are (`hostNetwork`), and some would be broken promises. The last kind is
//! what this module finds.

use k8s_openapi::api::core::v1::{Container, Pod, Probe, Volume};

/// The first thing the pod asks for that this node cannot give, in words that fit after "does not support".
pub(crate) fn unsupported(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if spec.resources.is_some() {
        return Some("pod-level resources; give them to the containers".to_owned());
    }
    if spec
        .resource_claims
        .as_ref()
        .is_some_and(|claims| !claims.is_empty())
    {
        return Some("resource claims (dynamic resource allocation)".to_owned());
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return Some("operating systems other than linux".to_owned());
    }
    let context = spec.security_context.as_ref();
    if context
        .and_then(|context| context.sysctls.as_ref())
        .is_some_and(|sysctls| !sysctls.is_empty())
    {
        return Some("sysctls: they would change the whole machine".to_owned());
    }
    let init = spec.init_containers.iter().flatten();
    for container in init.clone() {
        if container.restart_policy.is_some() {
            return Some(format!(
                "init container {} with a restart policy of its own (a sidecar)",
                container.name
            ));
        }
    }
    spec.containers
        .iter()
        .chain(init)
        .find_map(container)
        .or_else(|| spec.volumes.iter().flatten().find_map(volume))
}

fn container(container: &Container) -> Option<String> {
    let name = &container.name;
    if container.restart_policy.is_some() || container.restart_policy_rules.is_some() {
        return Some(format!("container {name} with a restart policy of its own"));
    }
    if container
        .lifecycle
        .as_ref()
        .is_some_and(|lifecycle| lifecycle.post_start.is_some() || lifecycle.pre_stop.is_some())
    {
        return Some(format!(
            "lifecycle hooks of container {name}; SIGTERM and the grace period are honoured"
        ));
    }
    if container
        .volume_devices
        .as_ref()
        .is_some_and(|devices| !devices.is_empty())
    {
        return Some(format!("block devices of container {name}"));
    }
    if container.tty == Some(true) || container.stdin == Some(true) {
        return Some(format!("a terminal or standard input for container {name}"));
    }
    let probes = [
        &container.startup_probe,
        &container.liveness_probe,
        &container.readiness_probe,
    ];
    probes
        .into_iter()
        .flatten()
        .find_map(|found| probe(name, found))
}

fn probe(container: &str, probe: &Probe) -> Option<String> {
    let https = |scheme: &Option<String>| {
        scheme
            .as_deref()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"))
    };
    if probe.grpc.is_some() {
        Some(format!("grpc probes (container {container})"))
    } else if probe
        .http_get
        .as_ref()
        .is_some_and(|get| https(&get.scheme))
    {
        Some(format!(
            "https probes (container {container}); a tcpSocket or exec probe can stand in"
        ))
    } else {
        None
    }
}

fn volume(volume: &Volume) -> Option<String> {
    let known = volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
        || volume.host_path.is_some()
        || volume.persistent_volume_claim.is_some()
        || crate::volumes::dataset(volume).is_some();
    if known {
        return None;
    }
    match &volume.empty_dir {
        Some(source) => match source.medium.as_deref() {
            None | Some("" | "Memory") => None,
            Some(medium) => Some(format!(
                "volume {}: emptyDir of medium {medium}",
                volume.name
            )),
        },
        None => Some(format!(
            "volume {}: only emptyDir, hostPath, configMap, secret, downwardAPI, projected and persistentVolumeClaim",
            volume.name
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests_support::pod;
    use serde_json::json;

    #[test]
    fn broken_promises_are_found_and_named() {
        let table = [
            (
                json!({"containers": [{"name": "c", "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}]}),
                "lifecycle hooks of container c",
            ),
            (
                json!({"containers": [{"name": "c", "livenessProbe": {"grpc": {"port": 1}}}]}),
                "grpc probes",
            ),
            (
                json!({"containers": [{"name": "c", "readinessProbe": {"httpGet": {"port": 1, "scheme": "HTTPS"}}}]}),
                "https probes",
            ),
            (
                json!({"containers": [{"name": "c"}], "volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}),
                "volume v: only emptyDir",
            ),
            (
                json!({"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {"medium": "HugePages"}}]}),
                "medium HugePages",
            ),
            (
                json!({"containers": [{"name": "c"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]}),
                "a sidecar",
            ),
            (
                json!({"containers": [{"name": "c", "tty": true}]}),
                "a terminal",
            ),
            (
                json!({"containers": [{"name": "c"}], "securityContext": {"sysctls": [{"name": "a", "value": "b"}]}}),
                "sysctls",
            ),
        ];
        for (spec, expected) in table {
            let found = unsupported(&pod(json!({"spec": spec}))).expect(expected);
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn an_ordinary_training_pod_is_fine() {
        let pod = pod(json!({"spec": {
            "hostNetwork": false, "serviceAccountName": "default", "dnsPolicy": "ClusterFirst",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "host", "securityContext": {"capabilities": {"drop": ["ALL"]}},
                "livenessProbe": {"httpGet": {"port": "http"}}}],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "d", "hostPath": {"path": "/d"}}],
        }}));
        assert_eq!(unsupported(&pod), None);
    }
}
