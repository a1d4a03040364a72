//! When an engine can be used: it serves, and its node takes pods.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};

/// A node that is not there by then is told of by its own log; the API is useful without it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for a node that has said since `started` that it is ready: what the store remembers of it was said by an engine before
/// this one, which may have had other GPUs.
pub async fn node(client: Client, name: &str, started: Timestamp) {
    let nodes: Api<Node> = Api::all(client);
    // Kubernetes' times are whole seconds.
    let started = started.as_second();
    let is_ready = |node: Option<&Node>| {
        let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
        conditions.into_iter().flatten().any(|condition| {
            let said = condition.last_heartbeat_time.as_ref();
            condition.type_ == "Ready"
                && condition.status == "True"
                && said.is_some_and(|said| said.0.as_second() >= started)
        })
    };
    match tokio::time::timeout(PATIENCE, await_condition(nodes, name, is_ready)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the node cannot be watched"),
        Err(_) => tracing::warn!("the node is not ready yet"),
    }
}
