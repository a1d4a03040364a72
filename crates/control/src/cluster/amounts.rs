//! What a pod takes of its node, as kube-scheduler counts it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use stoke_api::names::GPU_RESOURCE;
use stoke_api::{Bytes, CpuMilli};
use stoke_sched::{Other, Protocol, Resources};

type Quantities = BTreeMap<String, Quantity>;

/// An amount that cannot be read counts as nothing: the API server has let it through, and one bad object must not stop the rest.
pub fn read(quantities: &Quantities) -> Resources {
    let mut found = Resources::default();
    for (name, quantity) in quantities {
        let whole = || Bytes::try_from(quantity).unwrap_or_default();
        let count = || u32::try_from(whole().0).unwrap_or(u32::MAX);
        match name.as_str() {
            "cpu" => found.cpu = CpuMilli::try_from(quantity).unwrap_or_default(),
            "memory" => found.memory = whole(),
            "ephemeral-storage" => found.storage = whole(),
            "pods" => found.pods = count(),
            GPU_RESOURCE => found.gpus = count(),
            name => {
                // What a node has none of need not be said.
                if whole().0 > 0 {
                    found.others.insert(Other::Named(name.into()), whole().0);
                }
            }
        }
    }
    found
}

/// What a pod takes of its node, or will: a container that was resized takes the larger of what it has and what it is to have.
pub fn held(pod: &Pod) -> Resources {
    let Some(spec) = &pod.spec else {
        return Resources::default();
    };
    let status = pod.status.as_ref();
    sum(spec, |container| {
        let found = status.and_then(|status| status_of(status, &container.name));
        asked(container).max(&found.map(granted).unwrap_or_default())
    })
}

/// What a pod of this spec asks for.
pub fn requests(spec: &PodSpec) -> Resources {
    sum(spec, asked)
}

/// All containers together, or the largest init container beside the sidecars that run before it; with the ports of the node that they
/// listen on, and the runtime's own overhead.
fn sum(spec: &PodSpec, asked: impl Fn(&Container) -> Resources) -> Resources {
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for init in spec.init_containers.iter().flatten() {
        let asked = asked(init);
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&asked);
            starting = starting.max(&sidecars);
        } else {
            starting = starting.max(&sidecars.clone().plus(&asked));
        }
    }
    let mut running = sidecars;
    for container in &spec.containers {
        running.add(&asked(container));
    }
    let mut all = running.max(&starting);
    if let Some(whole) = &spec.resources {
        promised_whole(&mut all, whole);
    }
    if let Some(overhead) = &spec.overhead {
        all.add(&read(overhead));
    }
    for port in ports(spec) {
        all.others.insert(port, 1);
    }
    all.pods = 1;
    all
}

/// Where a pod asks as a whole, that stands for what its containers ask. Only these can be asked for so.
fn promised_whole(all: &mut Resources, whole: &ResourceRequirements) {
    let said = both(whole);
    let amounts = read(&said);
    for (name, quantity) in &said {
        match name.as_str() {
            "cpu" => all.cpu = amounts.cpu,
            "memory" => all.memory = amounts.memory,
            name if name.starts_with("hugepages-") => {
                let amount = Bytes::try_from(quantity).unwrap_or_default();
                all.others.insert(Other::Named(name.into()), amount.0);
            }
            _ => {}
        }
    }
}

/// A limit alone is a request too.
fn both(said: &ResourceRequirements) -> Quantities {
    let mut all = said.limits.clone().unwrap_or_default();
    all.extend(said.requests.clone().unwrap_or_default());
    all
}

fn asked(container: &Container) -> Resources {
    let said = container.resources.as_ref();
    said.map(|said| read(&both(said))).unwrap_or_default()
}

fn granted(status: &ContainerStatus) -> Resources {
    let allocated = status.allocated_resources.as_ref();
    let actual = status
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let amounts = allocated.into_iter().chain(actual).map(read);
    amounts.fold(Resources::default(), |all, next| all.max(&next))
}

fn status_of<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let containers = status.container_statuses.iter().flatten();
    let mut all = containers.chain(status.init_container_statuses.iter().flatten());
    all.find(|status| status.name == name)
}

fn ports(spec: &PodSpec) -> impl Iterator<Item = Other> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|init| init.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    let on_host = spec.host_network == Some(true);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(move |port| {
        // On the node's network a container's port is the node's, said or not.
        let own = on_host.then_some(port.container_port);
        let port_number = port.host_port.filter(|port| *port != 0).or(own)?;
        Some(Other::Port {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
            port: u16::try_from(port_number).ok()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn says(resources: &Resources) -> String {
        let others = resources.others.iter();
        let others: Vec<String> = others
            .map(|(other, count)| format!(" {count} {other}"))
            .collect();
        format!(
            "{} {} {} GPUs{}",
            resources.cpu,
            resources.memory,
            resources.gpus,
            others.concat()
        )
    }

    fn of(spec: serde_json::Value, status: serde_json::Value) -> String {
        let pod = serde_json::from_value(json!({"spec": spec, "status": status})).expect("a pod");
        says(&held(&pod))
    }

    #[test]
    fn pods_are_counted_as_kube_scheduler_counts_them() {
        let limits = |memory: &str| json!({"limits": {"memory": memory, "cpu": "1"}});
        let two = json!({"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "2", "rdma/hca": 1}}},
            {"name": "b", "resources": limits("1Gi")},
        ]});
        assert_eq!(of(two, json!({})), "1500m 2Gi 2 GPUs 1 rdma/hca");
        let init = json!({
            "initContainers": [
                {"name": "sidecar", "restartPolicy": "Always", "resources": limits("1Gi")},
                {"name": "once", "resources": limits("4Gi")},
            ],
            "containers": [{"name": "a", "resources": limits("1Gi")}],
            "overhead": {"memory": "1Mi"},
        });
        assert_eq!(of(init, json!({})), "2 5121Mi 0 GPUs");
        let whole = json!({
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
            "resources": {"requests": {"memory": "3Gi"}},
        });
        assert_eq!(of(whole, json!({})), "1 3Gi 0 GPUs");
    }

    #[test]
    fn what_a_resize_has_not_given_back_yet_is_still_taken() {
        let spec = json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]});
        let status = json!({"containerStatuses": [{
            "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": {"cpu": "2", "memory": "1Gi"}, "resources": {"requests": {"cpu": "1", "memory": "4Gi"}},
        }]});
        assert_eq!(of(spec, status), "2 4Gi 0 GPUs");
    }

    #[test]
    fn ports_of_the_node_are_taken_once() {
        let ports = json!([{"containerPort": 80}, {"containerPort": 81, "hostPort": 9000, "protocol": "UDP"}]);
        let own = json!({"containers": [{"name": "a", "ports": ports}]});
        assert_eq!(of(own, json!({})), "0 0 0 GPUs 1 UDP port 9000");
        let host = json!({"hostNetwork": true, "containers": [{"name": "a", "ports": [{"containerPort": 80}]}]});
        assert_eq!(of(host, json!({})), "0 0 0 GPUs 1 TCP port 80");
    }
}
