//! What a Queue tells about itself: what is used of its guarantee, who waits and who runs, and what is wrong with it.
//!
//! Whatever changes in a queue is told of it, and of those above it, within seconds and together with what else changes meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use stoke_api::condition::{self, ConditionType};
use stoke_api::names::ANY_GPU_TYPE;
use stoke_api::queue::QueueGpus;
use stoke_api::{GpuAmount, Queue, QueueStatus, Reason};
use stoke_sched::Standing;

use crate::hub::Hub;
use crate::mirror::Key;
use crate::queue::Done;
use crate::trainjob::apply::difference;

/// Writes what has changed, if anything did.
pub async fn tell(hub: &Hub, key: &Key) -> Done {
    let Some((queue, standing)) = ({
        let world = hub.world();
        let queue = world.queues.get(key).cloned();
        queue.map(|queue| (queue, world.scheduler().standings().remove(&key.name)))
    }) else {
        return Done::Well(None);
    };
    let status = status(&queue, &standing.unwrap_or_default(), Timestamp::now());
    let to_value = |status: &QueueStatus| serde_json::to_value(status).unwrap_or_default();
    let before = queue.status.as_ref().map_or_else(|| json!({}), to_value);
    let Some(changed) = difference(&before, &to_value(&status)) else {
        return Done::Well(None);
    };
    let patch = json!({"metadata": {"uid": queue.metadata.uid}, "status": changed});
    let api: Api<Queue> = Api::all(hub.client.clone());
    let written = api
        .patch_status(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match written {
        Ok(queue) => {
            hub.wrote(queue);
            Done::Well(None)
        }
        // Gone, or another of its name: the watch will tell.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Done::Well(None),
        Err(error) => {
            tracing::warn!(queue = %key.name, error = &error as &dyn std::error::Error, "could not write a queue's status");
            Done::Error
        }
    }
}

/// How a queue stands, as its status says it.
pub fn status(queue: &Queue, standing: &Standing, now: Timestamp) -> QueueStatus {
    let mut conditions = queue
        .status
        .as_ref()
        .map_or_else(Vec::new, |status| status.conditions.clone());
    let (reason, message) = match &standing.fault {
        None => (Reason::Usable, String::new()),
        Some(fault) => (fault.reason(), fault.to_string()),
    };
    condition::set(
        &mut conditions,
        ConditionType::Usable,
        standing.fault.is_none(),
        &reason.to_string(),
        &message,
        queue.metadata.generation,
        &Time(now),
    );
    QueueStatus {
        waiting: standing.waiting,
        running: standing.running,
        in_use: in_use(queue, standing),
        gpus: gpus(queue, standing),
        observed_generation: queue.metadata.generation,
        conditions,
    }
}

/// `6.5/8`: all types together.
fn in_use(queue: &Queue, standing: &Standing) -> String {
    let used = amount(standing, ANY_GPU_TYPE);
    let guaranteed = &queue.spec.guaranteed;
    let all = guaranteed
        .values()
        .fold(0_u64, |sum, count| sum.saturating_add(count.0.into()));
    format!("{used}/{all}")
}

/// By the types that it speaks of, and all together.
fn gpus(queue: &Queue, standing: &Standing) -> BTreeMap<String, QueueGpus> {
    let spec = &queue.spec;
    let named = spec.guaranteed.keys().chain(spec.ceiling.keys());
    let named: BTreeSet<&str> = named.map(String::as_str).chain([ANY_GPU_TYPE]).collect();
    let of_type = |name: &str| QueueGpus {
        used: amount(standing, name),
        guaranteed: spec.guaranteed.get(name).copied(),
        ceiling: spec.ceiling.get(name).copied(),
    };
    named
        .into_iter()
        .map(|name| (name.to_owned(), of_type(name)))
        .collect()
}

fn amount(standing: &Standing, name: &str) -> GpuAmount {
    standing.used.get(name).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_sched::QueueFault;

    fn queue(spec: serde_json::Value) -> Queue {
        serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue",
            "metadata": {"name": "q", "generation": 3}, "spec": spec,
        }))
        .expect("a queue")
    }

    #[test]
    fn a_queue_tells_what_it_uses_of_what_it_may() {
        let queue = queue(json!({"guaranteed": {"a100": 4, "any": 4}, "ceiling": {"h100": 2}}));
        let used = [("any", 6500), ("a100", 6500), ("h100", 0)];
        let used = used.map(|(name, milli)| (name.to_owned(), GpuAmount { milli }));
        let standing = Standing {
            waiting: 2,
            running: 3,
            used: used.into_iter().collect(),
            ..Standing::default()
        };
        let told = status(&queue, &standing, Timestamp::UNIX_EPOCH);
        insta::assert_json_snapshot!(told, @r#"
        {
          "waiting": 2,
          "running": 3,
          "use": "6.5/8",
          "gpus": {
            "a100": {
              "used": "6.5",
              "guaranteed": 4
            },
            "any": {
              "used": "6.5",
              "guaranteed": 4
            },
            "h100": {
              "used": "0",
              "ceiling": 2
            }
          },
          "observedGeneration": 3,
          "conditions": [
            {
              "lastTransitionTime": "1970-01-01T00:00:00Z",
              "message": "",
              "observedGeneration": 3,
              "reason": "Usable",
              "status": "True",
              "type": "Usable"
            }
          ]
        }
        "#);
        let again = Queue {
            status: Some(told.clone()),
            ..queue
        };
        let later = Timestamp::from_second(60).expect("a time");
        assert_eq!(status(&again, &standing, later), told, "nothing is new");
        let broken = Standing {
            fault: Some(QueueFault::ParentNotFound {
                parent: "p".to_owned(),
            }),
            ..standing
        };
        let told = status(&again, &broken, later);
        let condition = &told.conditions[0];
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("False", "ParentNotFound")
        );
        assert_eq!(condition.last_transition_time.0, later);
    }
}
