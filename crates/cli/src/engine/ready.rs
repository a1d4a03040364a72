//! When an engine can be used: it serves, and its node takes pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};

/// A node that is not there by then is told of by its own log; the API is useful without it.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn node(client: Client, name: &str) {
    let nodes: Api<Node> = Api::all(client);
    let is_ready = |node: Option<&Node>| {
        let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    match tokio::time::timeout(PATIENCE, await_condition(nodes, name, is_ready)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the node cannot be watched"),
        Err(_) => tracing::warn!("the node is not ready yet"),
    }
}
