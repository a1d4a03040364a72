//! Nodes and pods as placement sees them: what there is, and what is taken.

mod amounts;
mod claims;
pub mod devices;
mod notices;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    Toleration as PodToleration,
};
use stoke_api::names::{
    GPU_MEMORY_LABEL, GPU_PRODUCT_LABEL, GPU_REPLICAS_LABEL, GPU_SHARING_LABEL, GPU_SIMULATED_LABEL,
};
use stoke_api::{Bytes, Dataset};
use stoke_sched::{
    Effect, GpuModel, Operator, Parts, Requirement, Resources, Subject, Taint, Term, Toleration,
};

pub use amounts::{held, requests};
pub use claims::Claim;
pub use devices::devices;
pub use notices::{Notice, Then, notice};

/// How the clouds and Karpenter say that a node can be taken away.
pub const SPOT_LABELS: [(&str, &str); 4] = [
    ("karpenter.sh/capacity-type", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
];

/// The cluster at this instant, all at once; the world keeps the same up change by change. `taken` is what pods have of their nodes, and what is promised to those that are not there yet.
#[cfg(test)]
pub fn snapshot<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    taken: impl Iterator<Item = (&'a str, Resources)>,
) -> stoke_sched::Snapshot {
    let mut nodes: BTreeMap<String, stoke_sched::Node> = nodes
        .map(node)
        .map(|node| (node.name.clone(), node))
        .collect();
    for (name, resources) in taken {
        if let Some(node) = nodes.get_mut(name) {
            node.used.add(&resources);
        }
    }
    nodes.into_values().collect()
}

/// Data that is copied to nodes, as placement sees it; none where it is mounted as it is.
pub fn staged(dataset: &Dataset) -> Option<stoke_sched::Dataset> {
    dataset.spec.staged_uri()?;
    let status = dataset.status.as_ref();
    let warm = status.map(|status| status.warm_nodes.iter().cloned().collect());
    Some(stoke_sched::Dataset {
        size: status.and_then(|status| status.size),
        warm: warm.unwrap_or_default(),
    })
}

/// A node with nothing on it, as placement sees it.
pub fn node(node: &Node) -> stoke_sched::Node {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    let gpu = gpu(&labels);
    let mut seen = stoke_sched::Node {
        name: node.metadata.name.clone().unwrap_or_default(),
        allocatable: allocatable.map(amounts::read).unwrap_or_default(),
        used: Resources::default(),
        taints: taints.into_iter().flatten().filter_map(taint).collect(),
        ready: is_ready(node),
        // One that goes away takes nobody new, whatever taints a gang tolerates.
        schedulable: !spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
            && notice(node).is_none_or(|notice| notice.then == Then::MayGo),
        gpu,
        spot: SPOT_LABELS
            .iter()
            .any(|(key, value)| labels.get(*key).is_some_and(|found| found == value)),
        labels: labels.into(),
        devices: None,
    };
    seen.devices = devices(&seen, []);
    seen
}

/// What feature discovery says of a node's GPUs.
fn gpu(labels: &BTreeMap<String, String>) -> Option<GpuModel> {
    let product = labels.get(GPU_PRODUCT_LABEL)?;
    let is = |label: &str, value: &str| labels.get(label).is_some_and(|found| found == value);
    let memory = labels
        .get(GPU_MEMORY_LABEL)
        .and_then(|mib| mib.parse().ok());
    // Where a node shares its GPUs out, that is in the product's name unless someone chose another name for the parts.
    let shared = product.ends_with("-SHARED")
        || labels.contains_key(GPU_SHARING_LABEL) && !is(GPU_SHARING_LABEL, "none");
    let replicas = labels.get(GPU_REPLICAS_LABEL);
    let replicas = replicas.and_then(|replicas| replicas.parse().ok());
    let parts = match product.split_once("-MIG-") {
        _ if shared => Parts::Turns {
            replicas: replicas.unwrap_or(0),
        },
        Some((_, profile)) => Parts::Mig {
            profile: profile.to_owned(),
        },
        None => Parts::Whole,
    };
    Some(GpuModel {
        product: product.clone(),
        memory: memory.map(Bytes::mib),
        simulated: is(GPU_SIMULATED_LABEL, "true"),
        parts,
    })
}

pub fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Where other nodes reach it.
pub fn address(node: &Node) -> Option<&str> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let of_type = |wanted: &str| addresses.iter().find(|address| address.type_ == wanted);
    let found = of_type("InternalIP").or_else(|| of_type("Hostname"))?;
    Some(&found.address)
}

fn taint(taint: &k8s_openapi::api::core::v1::Taint) -> Option<Taint> {
    Some(Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: effect(&taint.effect)?,
    })
}

/// Those that only prefer other nodes are none.
fn effect(effect: &str) -> Option<Effect> {
    match effect {
        "NoSchedule" => Some(Effect::NoSchedule),
        "NoExecute" => Some(Effect::NoExecute),
        _ => None,
    }
}

#[cfg(test)]
pub fn is_finished(pod: &Pod) -> bool {
    crate::seen::Pod::from(pod.clone()).is_finished()
}

/// The node a pod is on, or is meant for.
pub fn node_of(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    let bound = spec.node_name.as_deref().filter(|name| !name.is_empty());
    bound.or_else(|| pinned_to(spec))
}

/// The one node that a pod's required affinity leaves, as DaemonSet pods and ours have it.
pub fn pinned_to(spec: &PodSpec) -> Option<&str> {
    let terms = &spec
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?
        .node_selector_terms;
    let mut named = terms.iter().map(term_node);
    let first = named.next()??;
    named.all(|node| node == Some(first)).then_some(first)
}

fn term_node(term: &NodeSelectorTerm) -> Option<&str> {
    let fields = term.match_fields.as_ref()?;
    fields.iter().find_map(|field| {
        let values = field.values.as_deref().unwrap_or_default();
        match (field.key.as_str(), field.operator.as_str(), values) {
            ("metadata.name", "In", [node]) => Some(node.as_str()),
            _ => None,
        }
    })
}

/// A pod's required node affinity. `Err` names an operator that is none.
pub fn terms(spec: &PodSpec) -> Result<Vec<Term>, String> {
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    required.map_or_else(|| Ok(Vec::new()), selected)
}

/// The alternatives of a selector.
fn selected(selector: &NodeSelector) -> Result<Vec<Term>, String> {
    selector.node_selector_terms.iter().map(term).collect()
}

fn term(term: &NodeSelectorTerm) -> Result<Term, String> {
    let labels = term.match_expressions.iter().flatten();
    let labels = labels.map(|found| requirement(found, Subject::Label(found.key.clone())));
    let fields = term.match_fields.iter().flatten();
    let fields = fields.map(|found| requirement(found, Subject::NodeName));
    labels.chain(fields).collect::<Result<_, _>>().map(Term)
}

fn requirement(found: &NodeSelectorRequirement, subject: Subject) -> Result<Requirement, String> {
    let values = found.values.clone().unwrap_or_default();
    let number = || match values.as_slice() {
        [one] => one.parse().map_err(|_| format!("{one:?} is not a number")),
        _ => Err(format!("{} takes one value", found.operator)),
    };
    let operator = match found.operator.as_str() {
        "In" => Operator::In(values),
        "NotIn" => Operator::NotIn(values),
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt(number()?),
        "Lt" => Operator::Lt(number()?),
        other => return Err(format!("{other:?} is not an operator")),
    };
    Ok(Requirement { subject, operator })
}

pub fn tolerations(spec: &PodSpec) -> Vec<Toleration> {
    let found = spec.tolerations.iter().flatten();
    found.filter_map(toleration).collect()
}

/// One for a taint that only prefers other nodes covers none that we look at.
fn toleration(found: &PodToleration) -> Option<Toleration> {
    let named = found.effect.as_deref().filter(|effect| !effect.is_empty());
    let exists = found.operator.as_deref() == Some("Exists");
    Some(Toleration {
        key: found.key.clone().filter(|key| !key.is_empty()),
        value: (!exists).then(|| found.value.clone().unwrap_or_default()),
        effect: match named {
            Some(named) => Some(effect(named)?),
            None => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: serde_json::Value) -> PodSpec {
        serde_json::from_value(value).expect("a pod spec")
    }

    #[test]
    fn only_a_pod_that_can_go_nowhere_else_is_pinned() {
        let name = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        let affinity = |terms: serde_json::Value| {
            spec(json!({"containers": [], "affinity": {"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
        };
        assert_eq!(pinned_to(&affinity(json!([name("a")]))), Some("a"));
        assert_eq!(
            pinned_to(&affinity(json!([name("a"), name("a")]))),
            Some("a")
        );
        assert_eq!(pinned_to(&affinity(json!([name("a"), name("b")]))), None);
        assert_eq!(pinned_to(&spec(json!({"containers": []}))), None);
    }

    #[test]
    fn nodes_are_read_with_their_gpus_and_what_is_taken() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"}},
            "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "PreferNoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "1"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
        .expect("a node");
        let taken = Resources {
            memory: Bytes::gib(1),
            ..Resources::default()
        };
        let snapshot = snapshot(
            [&node].into_iter(),
            [("n", taken.clone()), ("n", taken.clone()), ("gone", taken)].into_iter(),
        );
        let node = snapshot.node("n").expect("the node");
        assert_eq!(node.used.memory, Bytes::gib(2));
        assert!(node.ready && node.schedulable);
        assert_eq!(node.taints.len(), 1);
        assert_eq!(
            node.gpu.as_ref().and_then(|gpu| gpu.memory),
            Some(Bytes::gib(15))
        );
    }
    #[test]
    fn gpus_that_are_shared_out_are_not_whole() {
        let parts = |labels: &[(&str, &str)]| {
            let labels = labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            gpu(&labels).map(|gpu| gpu.parts)
        };
        let product = |name| ("nvidia.com/gpu.product", name);
        let sharing = |how| ("nvidia.com/gpu.sharing-strategy", how);
        let replicas = |count| ("nvidia.com/gpu.replicas", count);
        let turns = |replicas| Some(Parts::Turns { replicas });
        assert_eq!(parts(&[]), None);
        assert_eq!(
            parts(&[
                product("NVIDIA-A100-SXM4-40GB"),
                sharing("none"),
                replicas("1")
            ]),
            Some(Parts::Whole)
        );
        assert_eq!(parts(&[product("Tesla-T4-SHARED")]), turns(0));
        assert_eq!(
            parts(&[product("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")]),
            Some(Parts::Mig {
                profile: "1g.5gb".to_owned()
            })
        );
        assert_eq!(
            parts(&[product("Tesla-T4"), sharing("time-slicing"), replicas("4")]),
            turns(4)
        );
    }
}
