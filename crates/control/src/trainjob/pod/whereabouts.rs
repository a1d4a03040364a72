//! Which node a pod may be bound to: the one that was chosen for it, and no other.

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration,
};
use stoke_api::names::{GPU_PRODUCT_LABEL, GPU_RESOURCE};

/// How GPU nodes are commonly tainted, so that only pods with GPUs come there.
const GPU_TAINTS: [(&str, Option<&str>); 2] = [(GPU_RESOURCE, None), ("sku", Some("gpu"))];

/// How clouds taint nodes that can be taken away.
const SPOT_TAINTS: [(&str, Option<&str>); 2] = [
    ("cloud.google.com/gke-spot", Some("true")),
    ("kubernetes.azure.com/scalesetpriority", Some("spot")),
];

pub fn tolerate_gpu_taints(spec: &mut PodSpec) {
    for (key, value) in GPU_TAINTS {
        tolerate(spec, key, value);
    }
}

pub fn tolerate_spot_taints(spec: &mut PodSpec) {
    for (key, value) in SPOT_TAINTS {
        tolerate(spec, key, value);
    }
}

fn tolerate(spec: &mut PodSpec, key: &str, value: Option<&str>) {
    let toleration = Toleration {
        key: Some(key.to_owned()),
        operator: Some(if value.is_some() { "Equal" } else { "Exists" }.to_owned()),
        value: value.map(str::to_owned),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    if !tolerations.contains(&toleration) {
        tolerations.push(toleration);
    }
}

/// Leaves a pod no other node than this, and every other constraint as it is.
pub fn pin(spec: &mut PodSpec, node: &str) {
    let field = requirement("metadata.name", node);
    require(spec, |term| {
        term.match_fields
            .get_or_insert_default()
            .push(field.clone());
    });
}

/// The node must have the GPUs that it had when it was chosen: a machine can come back under its name with others.
pub fn pin_gpu(spec: &mut PodSpec, product: &str) {
    let label = requirement(GPU_PRODUCT_LABEL, product);
    require(spec, |term| {
        term.match_expressions
            .get_or_insert_default()
            .push(label.clone());
    });
}

fn requirement(key: &str, value: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![value.to_owned()]),
    }
}

fn require(spec: &mut PodSpec, add: impl Fn(&mut NodeSelectorTerm)) {
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required
            .node_selector_terms
            .push(NodeSelectorTerm::default());
    }
    // Terms are alternatives, so each must say it.
    required.node_selector_terms.iter_mut().for_each(add);
}
