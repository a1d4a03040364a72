//! Changing the memory of a running pod, as the `resize` subresource asks.

use k8s_openapi::api::core::v1::Container;
use kube::ResourceExt;

use super::Worker;
use crate::causes::chain;
use crate::ledger::ResizeRefusal;
use crate::resources::{self, Granted, MEMORY};
use crate::shim::protocol::{ContainerState, Request, ShimStatus};
use crate::status::Resize;

impl Worker {
    /// Compares what the pod asks for with what it was granted, and grants it if there is room.
    pub(super) async fn consider_resize(&mut self) {
        if self.fate.is_some() || self.is_leaving() {
            return;
        }
        let granted = self.granted();
        let asked = resources::asked(&self.pod);
        let changed = resources::changed(&asked, &granted);
        if changed.is_empty() {
            if self.resize.is_some() {
                self.enforce().await;
            }
            return;
        }
        if let Some(problem) = impossible(&asked, &granted, &changed) {
            self.resize = Some(Resize::Infeasible(problem));
            return;
        }
        let wanted = match resources::requests(&self.pod) {
            Ok(wanted) => wanted,
            Err(error) => {
                self.resize = Some(Resize::Infeasible(error.to_string()));
                return;
            }
        };
        let booked = self.shared.ledger().resize(&self.uid, &wanted);
        match booked {
            Err(ResizeRefusal::Infeasible(message)) => {
                self.resize = Some(Resize::Infeasible(message));
            }
            Err(ResizeRefusal::Deferred(message)) => self.resize = Some(Resize::Deferred(message)),
            Ok(()) => {
                // Less memory may have been booked than before.
                self.shared.released.send_modify(|count| *count += 1);
                if let Some(record) = &mut self.record {
                    record.granted = asked;
                }
                self.save_record();
                self.resize = Some(Resize::InProgress(None));
                self.enforce().await;
            }
        }
    }

    /// Brings the limits in force to what was granted.
    async fn enforce(&mut self) {
        let pod = self.pod_as_granted();
        let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
        let wrong = self
            .shim
            .as_ref()
            .map(|shim| out_of_force(shim, &containers))
            .unwrap_or_default();
        if wrong.is_empty() {
            self.resize = None;
            return;
        }
        let mut problem = None;
        for (container, bytes) in wrong {
            let requests =
                requests_for(&container, bytes, super::publish::grace_seconds(&self.pod));
            for request in requests {
                if let Err(error) = self.ask_shim(&request).await {
                    tracing::warn!(pod = self.pod.name_any(), container = container.name, error = %chain(&error), "a memory limit could not be changed");
                    problem = Some(chain(&error));
                    break;
                }
            }
        }
        // The shim's next status says whether it is in force.
        self.resize = Some(Resize::InProgress(problem));
    }
}

/// What no amount of free memory would make possible.
fn impossible(
    asked: &Granted,
    granted: &Granted,
    changed: &std::collections::BTreeSet<String>,
) -> Option<String> {
    if let Some(other) = changed.iter().find(|name| *name != MEMORY) {
        return Some(format!(
            "{other} cannot be changed while the pod runs; on this node only memory can"
        ));
    }
    let limit = |list: &Granted, name: &String| {
        list.get(name)
            .and_then(|resources| resources.limits.as_ref())
            .is_some_and(|limits| limits.contains_key(MEMORY))
    };
    let removed = granted
        .keys()
        .find(|name| limit(granted, name) && !limit(asked, name))?;
    Some(format!(
        "the memory limit of container {removed} cannot be removed while it runs"
    ))
}

/// Running containers whose memory limit is not the granted one, with the granted one.
fn out_of_force(shim: &ShimStatus, containers: &[Container]) -> Vec<(Container, u64)> {
    let differs = |container: &Container| {
        let granted = resources::memory_limit(container)?;
        let status = shim.container(&container.name)?;
        let runs = matches!(status.state, ContainerState::Running { .. });
        (runs && status.memory_limit_bytes != Some(granted)).then(|| (container.clone(), granted))
    };
    containers.iter().filter_map(differs).collect()
}

/// The new limit, and a restart where the container says that it only notices then.
fn requests_for(container: &Container, bytes: u64, grace_seconds: u64) -> Vec<Request> {
    let name = container.name.clone();
    let restarts = container.resize_policy.iter().flatten().any(|policy| {
        policy.resource_name == MEMORY && policy.restart_policy == "RestartContainer"
    });
    let mut requests = vec![Request::SetMemoryLimit {
        container: name.clone(),
        bytes,
    }];
    if restarts {
        requests.push(Request::Restart {
            container: name,
            grace_seconds,
        });
    }
    requests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests_support::pod;
    use serde_json::json;

    fn granted(limits: serde_json::Value) -> Granted {
        resources::asked(&pod(
            json!({"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}),
        ))
    }

    #[test]
    fn only_memory_and_only_to_another_limit() {
        let before = granted(json!({"memory": "1Gi", "cpu": "1"}));
        let check = |limits| {
            let asked = granted(limits);
            let changed = resources::changed(&asked, &before);
            impossible(&asked, &before, &changed)
        };
        assert_eq!(check(json!({"memory": "2Gi", "cpu": "1"})), None);
        assert!(
            check(json!({"memory": "1Gi", "cpu": "2"}))
                .is_some_and(|message| message.starts_with("cpu cannot"))
        );
        assert!(
            check(json!({"cpu": "1"})).is_some_and(|message| message.contains("cannot be removed"))
        );
    }

    #[test]
    fn a_container_may_ask_to_be_restarted() {
        let container: Container = serde_json::from_value(json!({
            "name": "c", "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
        }))
        .expect("a container");
        assert_eq!(requests_for(&container, 5, 3).len(), 2);
        assert_eq!(
            requests_for(
                &Container {
                    name: "c".to_owned(),
                    ..Container::default()
                },
                5,
                3
            )
            .len(),
            1
        );
    }
}
