//! What is worth an event when a shim's status changes.
//!
//! Pure.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::shim::protocol::{ContainerState, ShimStatus, reason};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    Normal(&'static str, String),
    Warning(&'static str, String),
}

/// The events between two statuses. Without an earlier one only what starts now is told: an engine that takes over a pod
/// does not repeat its history.
pub(super) fn notices(pod: &Pod, before: Option<&ShimStatus>, after: &ShimStatus) -> Vec<Notice> {
    let mut notices = Vec::new();
    for container in after.init.iter().chain(&after.containers) {
        let name = &container.name;
        let old = before.and_then(|before| before.container(name));
        let same_run = old.is_some_and(|old| old.restart_count == container.restart_count);
        match &container.state {
            ContainerState::Running { .. } => {
                let was_running = same_run
                    && old.is_some_and(|old| matches!(old.state, ContainerState::Running { .. }));
                if before.is_some() && !was_running {
                    notices.push(Notice::Normal(
                        "Created",
                        format!("Created container: {name}"),
                    ));
                    notices.push(Notice::Normal(
                        "Started",
                        format!("Started container {name}"),
                    ));
                }
            }
            ContainerState::Waiting { reason: why, .. } if why == reason::CRASH_LOOP_BACK_OFF => {
                let told = old.is_some_and(|old| old.state == container.state);
                if !told {
                    let pod_name = format!(
                        "{}_{}({})",
                        pod.name_any(),
                        pod.namespace().unwrap_or_default(),
                        pod.uid().unwrap_or_default()
                    );
                    notices.push(Notice::Warning(
                        "BackOff",
                        format!("Back-off restarting failed container {name} in pod {pod_name}"),
                    ));
                }
            }
            ContainerState::Terminated(exit) if exit.reason == reason::START_ERROR => {
                let told = old.is_some_and(|old| old.state == container.state);
                if !told {
                    let why = exit.message.clone().unwrap_or_default();
                    notices.push(Notice::Warning(
                        "Failed",
                        format!("Error: failed to start container {name}: {why}"),
                    ));
                }
            }
            _ => {}
        }
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::protocol::{ContainerStatus, VERSION};
    use crate::spec::tests_support::pod;
    use jiff::Timestamp;
    use serde_json::json;

    fn status(restart_count: u32, state: ContainerState) -> ShimStatus {
        let container = ContainerStatus {
            name: "main".to_owned(),
            restart_count,
            state,
            last: None,
            oom_kills: 0,
            memory_limit_bytes: None,
        };
        ShimStatus {
            version: VERSION,
            pid: 1,
            finished: false,
            stop_reason: None,
            cut_short: false,
            init: vec![],
            containers: vec![container],
        }
    }

    fn running() -> ContainerState {
        ContainerState::Running {
            pid: 5,
            started_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn waiting(reason: &str) -> ContainerState {
        ContainerState::Waiting {
            reason: reason.to_owned(),
            message: None,
        }
    }

    #[test]
    fn each_change_is_told_once() {
        let pod = pod(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}));
        let reasons = |before: Option<&ShimStatus>, after: &ShimStatus| -> Vec<String> {
            let name = |notice: Notice| match notice {
                Notice::Normal(reason, _) | Notice::Warning(reason, _) => reason.to_owned(),
            };
            notices(&pod, before, after).into_iter().map(name).collect()
        };
        let creating = status(0, waiting("ContainerCreating"));
        let first = status(0, running());
        let backing_off = status(0, waiting(reason::CRASH_LOOP_BACK_OFF));
        let second = status(1, running());
        assert_eq!(reasons(Some(&creating), &first), ["Created", "Started"]);
        assert!(reasons(Some(&first), &first).is_empty());
        assert_eq!(reasons(Some(&first), &backing_off), ["BackOff"]);
        assert!(reasons(Some(&backing_off), &backing_off).is_empty());
        assert_eq!(reasons(Some(&backing_off), &second), ["Created", "Started"]);
        assert_eq!(
            reasons(Some(&first), &second),
            ["Created", "Started"],
            "a restart too quick to be seen"
        );
        assert!(reasons(None, &first).is_empty(), "taken over");
    }
}
