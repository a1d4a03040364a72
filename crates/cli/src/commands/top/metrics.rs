//! What pods use on a cluster, from its metrics API.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use kube::core::Request;
use kube::{Client, ResourceExt};
use serde::Deserialize;
use stoke_api::names::{JOB_LABEL, USAGE_ANNOTATION};
use stoke_api::{Bytes, CpuMilli};
use stoke_node::usage::Usage;

/// Of `PodMetrics` what is needed here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PodMetrics {
    metadata: Metadata,
    containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    usage: BTreeMap<String, Quantity>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    items: Vec<PodMetrics>,
}

/// Puts what each pod uses where a node of ours would have written it. The error says why nothing is known.
pub async fn lay_over(
    client: &Client,
    namespace: Option<&str>,
    pods: &mut [Pod],
) -> Result<(), String> {
    let below = namespace.map(|namespace| format!("/namespaces/{namespace}"));
    let path = format!(
        "/apis/metrics.k8s.io/v1beta1{}/pods",
        below.unwrap_or_default()
    );
    let request = Request::new(path)
        .list(&ListParams::default().labels(JOB_LABEL))
        .map_err(|error| error.to_string())?;
    let list: List = client.request(request).await.map_err(why)?;
    lay(&list.items, pods);
    Ok(())
}

fn why(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => match status.code {
            404 => "this cluster has no metrics API (metrics-server)".to_owned(),
            403 => "you may not read the metrics API".to_owned(),
            _ => format!("the metrics API does not answer: {}", status.message),
        },
        _ => "the metrics API does not answer".to_owned(),
    }
}

fn lay(metrics: &[PodMetrics], pods: &mut [Pod]) {
    for pod in pods {
        let measured = metrics.iter().find(|metrics| {
            metrics.metadata.name == pod.name_any()
                && Some(metrics.metadata.namespace.as_str()) == pod.metadata.namespace.as_deref()
        });
        if let Some(text) =
            measured.and_then(|measured| serde_json::to_string(&usage(measured)).ok())
        {
            pod.annotations_mut()
                .insert(USAGE_ANNOTATION.to_owned(), text);
        }
    }
}

fn usage(metrics: &PodMetrics) -> Usage {
    let amounts = |resource: &'static str| {
        metrics
            .containers
            .iter()
            .filter_map(move |container| container.usage.get(resource))
    };
    Usage {
        memory_bytes: amounts("memory")
            .filter_map(|amount| Bytes::try_from(amount).ok())
            .fold(0, |sum, bytes| sum.saturating_add(bytes.0)),
        cpu_millicores: amounts("cpu")
            .filter_map(|amount| CpuMilli::try_from(amount).ok())
            .fold(0, |sum, cpu| sum.saturating_add(cpu.0)),
        ..Usage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::{fixtures, top};
    use serde_json::json;

    #[test]
    fn a_pod_shows_what_was_measured_of_it() {
        let list: List = serde_json::from_value(json!({"items": [
            {"metadata": {"name": "resnet50-1-0", "namespace": "default"}, "containers": [
                {"name": "worker", "usage": {"cpu": "2500123456n", "memory": "3145728Ki"}},
                {"name": "proxy", "usage": {"cpu": "12m", "memory": "junk"}}
            ]},
            {"metadata": {"name": "resnet50-1-1", "namespace": "elsewhere"}, "containers": []}
        ]}))
        .unwrap();
        let mut pods = [fixtures::pod(1, 0, 0), fixtures::pod(1, 1, 0)];
        for pod in &mut pods {
            pod.metadata.annotations = None;
        }
        lay(&list.items, &mut pods);
        let seen = top::usage(&pods[0]);
        assert_eq!(seen.memory, Some(3 << 30));
        assert_eq!(seen.limit, Some(8 << 30), "the limit is the pod's own");
        assert!(
            seen.cpu_milli
                .is_some_and(|cpu| (2512..=2514).contains(&cpu)),
            "{seen:?}"
        );
        assert_eq!(top::usage(&pods[1]).memory, None, "another namespace");
    }
}
