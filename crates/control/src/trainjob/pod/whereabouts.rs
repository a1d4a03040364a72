//! Which node a pod may be bound to: the one that was chosen for it, and no other; or, where an autoscaler has yet to bring it, any with the
//! GPUs that the job may run on.

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration,
};
use std::collections::BTreeSet;

use stoke_api::names::{GPU_PRODUCT_LABEL, GPU_RESOURCE};
use stoke_sched::{Snapshot, is_of_type};

use crate::cluster::SPOT_LABELS;

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

/// What those who make nodes call a GPU, before a node of that kind is there to say it itself.
struct Known {
    /// As in `gpuTypes`.
    model: &'static str,
    /// Karpenter on AWS: its name, and its memory in MiB where one name stands for several.
    karpenter: Option<(&'static str, Option<&'static str>)>,
    /// GKE's accelerators.
    gke: &'static [&'static str],
}

const KARPENTER_GPU_LABEL: &str = "karpenter.k8s.aws/instance-gpu-name";
const KARPENTER_GPU_MEMORY_LABEL: &str = "karpenter.k8s.aws/instance-gpu-memory";
const GKE_GPU_LABEL: &str = "cloud.google.com/gke-accelerator";

const fn known(
    model: &'static str,
    karpenter: Option<(&'static str, Option<&'static str>)>,
    gke: &'static [&'static str],
) -> Known {
    Known {
        model,
        karpenter,
        gke,
    }
}

/// More exact names first: the first that a type begins with is the one.
const KNOWN: [Known; 12] = [
    known(
        "a100-80g",
        Some(("a100", Some("81920"))),
        &["nvidia-a100-80gb"],
    ),
    known(
        "a100-40g",
        Some(("a100", Some("40960"))),
        &["nvidia-tesla-a100"],
    ),
    known(
        "a100",
        Some(("a100", None)),
        &["nvidia-a100-80gb", "nvidia-tesla-a100"],
    ),
    known("a10g", Some(("a10g", None)), &[]),
    known("b200", Some(("b200", None)), &["nvidia-b200"]),
    known(
        "h100",
        Some(("h100", None)),
        &["nvidia-h100-80gb", "nvidia-h100-mega-80gb"],
    ),
    known("h200", Some(("h200", None)), &["nvidia-h200-141gb"]),
    known("l40s", Some(("l40s", None)), &[]),
    known("l4", Some(("l4", None)), &["nvidia-l4"]),
    known("p100", None, &["nvidia-tesla-p100"]),
    known("t4", Some(("t4", None)), &["nvidia-tesla-t4"]),
    known("v100", Some(("v100", None)), &["nvidia-tesla-v100"]),
];

/// Leaves a pod all nodes with GPUs of these types, those that do not exist yet included. Nodes say what they have in different words, so a
/// node must say it in one of them; the words of nodes that are there are known.
pub fn constrain(spec: &mut PodSpec, types: &[String], cluster: &Snapshot) {
    let there = cluster.nodes().filter_map(|node| node.gpu.as_ref());
    let of_type = there.filter(|gpu| types.iter().any(|name| is_of_type(name, gpu)));
    let products: BTreeSet<&str> = of_type.map(|gpu| gpu.product.as_str()).collect();
    let mut alternatives: Vec<Vec<NodeSelectorRequirement>> = Vec::new();
    if !products.is_empty() {
        alternatives.push(vec![one_of(GPU_PRODUCT_LABEL, products)]);
    }
    for name in types {
        let name = name.to_ascii_lowercase();
        let Some(known) = KNOWN.iter().find(|known| name.starts_with(known.model)) else {
            continue;
        };
        if let Some((name, memory)) = known.karpenter {
            let name = requirement(KARPENTER_GPU_LABEL, name);
            let memory = memory.map(|memory| requirement(KARPENTER_GPU_MEMORY_LABEL, memory));
            alternatives.push([name].into_iter().chain(memory).collect());
        }
        if !known.gke.is_empty() {
            alternatives.push(vec![one_of(GKE_GPU_LABEL, known.gke.iter().copied())]);
        }
    }
    require_any(spec, &alternatives);
}

/// Leaves a pod all nodes but these.
pub fn avoid(spec: &mut PodSpec, nodes: &[String]) {
    if nodes.is_empty() {
        return;
    }
    // A field can be compared with one name at a time.
    let each = nodes.iter().map(|node| NodeSelectorRequirement {
        operator: "NotIn".to_owned(),
        ..requirement("metadata.name", node)
    });
    let each: Vec<NodeSelectorRequirement> = each.collect();
    require(spec, |term| {
        let fields = term.match_fields.get_or_insert_default();
        fields.extend(each.iter().cloned());
    });
}

/// Leaves a pod all nodes but those that can be taken away.
pub fn avoid_spot(spec: &mut PodSpec) {
    require(spec, |term| {
        let labels = term.match_expressions.get_or_insert_default();
        labels.extend(SPOT_LABELS.map(|(key, value)| NodeSelectorRequirement {
            operator: "NotIn".to_owned(),
            ..requirement(key, value)
        }));
    });
}

fn requirement(key: &str, value: &str) -> NodeSelectorRequirement {
    one_of(key, [value])
}

fn one_of<'a>(key: &str, values: impl IntoIterator<Item = &'a str>) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(values.into_iter().map(str::to_owned).collect()),
    }
}

/// Terms are alternatives, so each is told once with each of these.
fn require_any(spec: &mut PodSpec, alternatives: &[Vec<NodeSelectorRequirement>]) {
    if alternatives.is_empty() {
        return;
    }
    let terms = required_terms(spec);
    let told = std::mem::take(terms).into_iter().flat_map(|term| {
        alternatives.iter().map(move |alternative| {
            let mut term = term.clone();
            let labels = term.match_expressions.get_or_insert_default();
            labels.extend(alternative.iter().cloned());
            term
        })
    });
    *terms = told.collect();
}

fn require(spec: &mut PodSpec, add: impl Fn(&mut NodeSelectorTerm)) {
    // Terms are alternatives, so each must say it.
    required_terms(spec).iter_mut().for_each(add);
}

/// The terms of a pod's required node affinity, of which there is at least one.
fn required_terms(spec: &mut PodSpec) -> &mut Vec<NodeSelectorTerm> {
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
    &mut required.node_selector_terms
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a node may say of itself, any of these, each with all its parts.
    fn words(spec: &mut PodSpec, types: &[&str]) -> Vec<String> {
        let types: Vec<String> = types.iter().map(|name| (*name).to_owned()).collect();
        constrain(spec, &types, &Snapshot::default());
        let said = |term: &NodeSelectorTerm| {
            let labels = term.match_expressions.iter().flatten();
            let values = labels.map(|label| label.values.clone().unwrap_or_default().join("|"));
            values.collect::<Vec<_>>().join(" and ")
        };
        if spec.affinity.is_none() {
            return Vec::new();
        }
        required_terms(spec).iter().map(said).collect()
    }

    #[test]
    fn nodes_that_do_not_exist_yet_are_named_in_their_makers_words() {
        let mut any = PodSpec::default();
        assert_eq!(words(&mut any, &[]), [""; 0]);
        assert_eq!(
            words(&mut any, &["of-my-own"]),
            [""; 0],
            "nobody knows how it is called"
        );
        assert_eq!(
            words(&mut PodSpec::default(), &["A100-80G", "l4"]),
            ["a100 and 81920", "nvidia-a100-80gb", "l4", "nvidia-l4"]
        );
        // What the template wants is wanted of each.
        let mut chosen = PodSpec::default();
        for zone in ["x", "y"] {
            required_terms(&mut chosen).push(NodeSelectorTerm {
                match_expressions: Some(vec![requirement("zone", zone)]),
                match_fields: None,
            });
        }
        required_terms(&mut chosen).remove(0);
        assert_eq!(
            words(&mut chosen, &["t4"]),
            [
                "x and t4",
                "x and nvidia-tesla-t4",
                "y and t4",
                "y and nvidia-tesla-t4"
            ]
        );
    }
}
