//! Gives pods without a node to theirs, where there is no kube-scheduler: pods that can run on one node only to that one, all others
//! to the machine's own node.
//!
//! Invariant: it chooses nothing. Room was found before the pod was created; a pod of someone else's is admitted or turned away by
//! the node, as by a kubelet.

use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::Value;

use crate::hub::Hub;
use crate::mirror::Key;
use crate::queue::Done;
use crate::world::World;

/// Binds one pod, if it is there and waits.
pub async fn bind(hub: &Hub, key: &Key) -> Done {
    let Some(binding) = binding(&hub.world(), key) else {
        // A node that comes wakes all pods that wait for one.
        return Done::Well(None);
    };
    let pods: Api<Pod> = Api::namespaced(hub.client.clone(), &key.namespace);
    let bound: Result<Value, _> = pods
        .create_subresource("binding", &key.name, &PostParams::default(), &binding)
        .await;
    match bound {
        Ok(_) => Done::Well(None),
        // Gone, or bound already.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Done::Well(None),
        Err(error) => {
            tracing::warn!(pod = %key, error = &error as &dyn std::error::Error, "could not bind a pod");
            Done::Error
        }
    }
}

fn binding(world: &World, key: &Key) -> Option<Binding> {
    let pod = world.pods.get(key).filter(|pod| pod.is_unbound())?;
    let pinned = pod.spec.pinned_to.as_deref();
    let mut nodes = world.nodes.iter().map(|(node, _)| node.name.as_str());
    let node = if let Some(pinned) = pinned {
        nodes.find(|node| *node == pinned)?
    } else {
        let only = nodes.next()?;
        nodes.next().is_none().then_some(only)?
    };
    Some(Binding {
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.namespace.clone()),
            uid: pod.metadata.uid.as_deref().map(str::to_owned),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            ..ObjectReference::default()
        },
    })
}
