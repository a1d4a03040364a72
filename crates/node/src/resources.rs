//! What a pod asks of a node, as numbers.
//!
//! Pure. A container's request is what it requests, else its limit, else nothing; a pod's is the larger of its
//! containers together and its hungriest init container, plus overhead.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::{self, ResourceList};

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";
pub use stoke_api::names::{GPU_MILLI_RESOURCE as GPU_MILLI, GPU_RESOURCE as GPU};

/// Amounts by resource name: `cpu` in millicores, everything else in whole units.
pub type Amounts = BTreeMap<String, u64>;

/// What was granted to each container, by name. It differs from the pod's spec while a resize is not yet granted.
pub type Granted = BTreeMap<String, ResourceRequirements>;

/// A resource amount that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{resource} amount {text:?} of container {container} is not a quantity")]
pub struct BadQuantity {
    pub container: String,
    pub resource: String,
    pub text: String,
}

/// One amount in the unit [`Amounts`] uses for `resource`.
pub fn amount(resource: &str, quantity: &Quantity) -> Option<u64> {
    if resource == CPU {
        quantity::millis(quantity)
    } else {
        quantity::whole(quantity)
    }
}

/// A limit of a container, if it has a readable one. Zero means "no limit", as for a container runtime.
pub fn limit(container: &Container, resource: &str) -> Option<u64> {
    let quantity = container
        .resources
        .as_ref()?
        .limits
        .as_ref()?
        .get(resource)?;
    amount(resource, quantity).filter(|amount| *amount > 0)
}

/// The memory limit a container is held to. No less than a process needs to be told that it has too little.
pub fn memory_limit(container: &Container) -> Option<u64> {
    const MIN_BYTES: u64 = 4 << 20;
    limit(container, MEMORY).map(|bytes| bytes.max(MIN_BYTES))
}

/// A request of a container: its own, else its limit.
pub fn request(container: &Container, resource: &str) -> Option<u64> {
    let resources = container.resources.as_ref()?;
    let of = |list: &Option<ResourceList>| amount(resource, list.as_ref()?.get(resource)?);
    of(&resources.requests).or_else(|| of(&resources.limits))
}

/// Everything the pod asks for. Also the place where unreadable amounts are found, so that nothing later has to guess.
pub fn requests(pod: &Pod) -> Result<Amounts, BadQuantity> {
    let Some(spec) = &pod.spec else {
        return Ok(Amounts::new());
    };
    let mut total = Amounts::new();
    for container in &spec.containers {
        for (resource, amount) in container_requests(container)? {
            let sum = total.entry(resource).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    for container in spec.init_containers.iter().flatten() {
        for (resource, amount) in container_requests(container)? {
            let largest = total.entry(resource).or_default();
            *largest = (*largest).max(amount);
        }
    }
    for (resource, quantity) in spec.overhead.iter().flatten() {
        let sum = total.entry(resource.clone()).or_default();
        *sum = sum.saturating_add(amount(resource, quantity).unwrap_or(0));
    }
    total.insert(PODS.to_owned(), 1);
    Ok(total)
}

fn container_requests(container: &Container) -> Result<Amounts, BadQuantity> {
    let mut amounts = Amounts::new();
    let Some(resources) = &container.resources else {
        return Ok(amounts);
    };
    // Limits first: a request of the same name then takes its place.
    for list in [&resources.limits, &resources.requests] {
        for (resource, quantity) in list.iter().flatten() {
            let amount = amount(resource, quantity).ok_or_else(|| BadQuantity {
                container: container.name.clone(),
                resource: resource.clone(),
                text: quantity.0.clone(),
            })?;
            amounts.insert(resource.clone(), amount);
        }
    }
    Ok(amounts)
}

/// The sum of the containers' limits of a resource, if every container has one.
pub fn total_limit(pod: &Pod, resource: &str) -> Option<u64> {
    let containers = &pod.spec.as_ref()?.containers;
    containers
        .iter()
        .map(|container| limit(container, resource))
        .try_fold(0_u64, |sum, limit| sum.checked_add(limit?))
}

/// `Guaranteed`, `Burstable` or `BestEffort`, by Kubernetes' rule on cpu and memory.
pub fn qos_class(pod: &Pod) -> &'static str {
    let Some(spec) = &pod.spec else {
        return "BestEffort";
    };
    let containers: Vec<&Container> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .collect();
    let names = [CPU, MEMORY];
    let asks = |container: &&Container| {
        names.iter().any(|name| {
            request(container, name).is_some_and(|amount| amount > 0)
                || limit(container, name).is_some()
        })
    };
    let fixed = |container: &&Container| {
        names.iter().all(|name| {
            limit(container, name).is_some() && request(container, name) == limit(container, name)
        })
    };
    if !containers.iter().any(asks) {
        "BestEffort"
    } else if containers.iter().all(fixed) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// What the pod's containers ask for now, to be kept as granted once admitted.
pub fn asked(pod: &Pod) -> Granted {
    let Some(spec) = &pod.spec else {
        return Granted::new();
    };
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    containers
        .map(|container| {
            (
                container.name.clone(),
                container.resources.clone().unwrap_or_default(),
            )
        })
        .collect()
}

/// The pod with what was granted in place of what it asks for.
pub fn as_granted(pod: &Pod, granted: &Granted) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        let containers = spec
            .containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten());
        for container in containers {
            if let Some(resources) = granted.get(&container.name) {
                container.resources = Some(resources.clone());
            }
        }
    }
    pod
}

/// Which resources differ, in amount, between what is asked and what was granted.
pub fn changed(asked: &Granted, granted: &Granted) -> BTreeSet<String> {
    let mut changed = BTreeSet::new();
    for (container, want) in asked {
        let Some(have) = granted.get(container) else {
            continue;
        };
        for (want, have) in [
            (&want.requests, &have.requests),
            (&want.limits, &have.limits),
        ] {
            let names: BTreeSet<&String> = want
                .iter()
                .flatten()
                .chain(have.iter().flatten())
                .map(|(name, _)| name)
                .collect();
            let of = |list: &'_ Option<ResourceList>, name: &String| {
                list.as_ref().and_then(|list| list.get(name)).cloned()
            };
            for name in names {
                if !quantity::same(of(want, name).as_ref(), of(have, name).as_ref()) {
                    changed.insert(name.clone());
                }
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("a pod")
    }

    fn container(requests: serde_json::Value, limits: serde_json::Value) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn a_pod_asks_for_its_containers_together_or_its_hungriest_init_container() {
        let pod = pod(json!({
            "containers": [
                container(json!({"cpu": "500m", "memory": "1Gi"}), json!({"memory": "2Gi", "nvidia.com/gpu": "2"})),
                container(json!({}), json!({"memory": "1Gi"})),
            ],
            "initContainers": [container(json!({"memory": "3Gi", "cpu": "100m"}), json!({}))],
            "overhead": {"cpu": "10m"},
        }));
        let asked = requests(&pod).expect("readable");
        let expected = [(CPU, 510), (GPU, 2), (MEMORY, 3 << 30), (PODS, 1)];
        assert_eq!(
            asked,
            expected
                .into_iter()
                .map(|(name, amount)| (name.to_owned(), amount))
                .collect()
        );
    }

    #[test]
    fn an_unreadable_amount_is_named() {
        let pod = pod(json!({"containers": [container(json!({"cpu": "-1"}), json!({}))]}));
        let error = requests(&pod).expect_err("negative");
        assert_eq!(
            error.to_string(),
            r#"cpu amount "-1" of container c is not a quantity"#
        );
    }

    #[test]
    fn quality_of_service_follows_cpu_and_memory() {
        let table = [
            (json!({}), json!({}), "BestEffort"),
            (
                json!({"nvidia.com/gpu": "1"}),
                json!({"nvidia.com/gpu": "1"}),
                "BestEffort",
            ),
            (json!({"cpu": "1"}), json!({}), "Burstable"),
            (json!({}), json!({"memory": "1Gi"}), "Burstable"),
            (
                json!({}),
                json!({"cpu": "1", "memory": "1Gi"}),
                "Guaranteed",
            ),
            (
                json!({"cpu": "1", "memory": "1024Mi"}),
                json!({"cpu": "1000m", "memory": "1Gi"}),
                "Guaranteed",
            ),
            (
                json!({"cpu": "1", "memory": "512Mi"}),
                json!({"cpu": "1", "memory": "1Gi"}),
                "Burstable",
            ),
        ];
        for (requests, limits, expected) in table {
            let pod = pod(json!({"containers": [container(requests, limits)]}));
            assert_eq!(qos_class(&pod), expected, "{:?}", pod.spec);
        }
    }

    #[test]
    fn a_respelled_amount_is_no_change() {
        let before = asked(&pod(
            json!({"containers": [container(json!({"memory": "1Gi"}), json!({"memory": "1Gi"}))]}),
        ));
        let same = asked(&pod(
            json!({"containers": [container(json!({"memory": "1024Mi"}), json!({"memory": "1Gi"}))]}),
        ));
        let more = asked(&pod(
            json!({"containers": [container(json!({"memory": "1Gi"}), json!({"memory": "2Gi"}))]}),
        ));
        assert!(changed(&same, &before).is_empty());
        assert_eq!(changed(&more, &before), BTreeSet::from([MEMORY.to_owned()]));
    }
}
