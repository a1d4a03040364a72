//! What `kubectl get pods` says of a pod: READY, STATUS and RESTARTS.
//!
//! The status is the reason nearest to the person: of the container that waits or ended, of the
//! initialization that is under way, or of the pod itself.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{condition, count, flag, list, since, text, timestamp};

/// One line about a pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PodLine {
    ready: usize,
    containers: usize,
    pub status: String,
    restarts: i64,
    restarted_at: Option<Timestamp>,
}

impl PodLine {
    pub(super) fn of(pod: &Value) -> PodLine {
        let mut line = PodLine {
            containers: list(pod, "/spec/containers").len() + sidecars(pod).count(),
            status: own_status(pod),
            ..PodLine::default()
        };
        let initializing = line.read_init(pod);
        if !initializing
            || condition(pod, "Initialized")
                .is_some_and(|condition| text(condition, "/status") == "True")
        {
            line.read_containers(pod);
        }
        let phase = text(pod, "/status/phase");
        if pod
            .pointer("/metadata/deletionTimestamp")
            .is_some_and(|at| !at.is_null())
        {
            if text(pod, "/status/reason") == "NodeLost" {
                line.status = "Unknown".into();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                line.status = "Terminating".into();
            }
        }
        line
    }

    pub(super) fn ready(&self) -> String {
        format!("{}/{}", self.ready, self.containers)
    }

    pub(super) fn restarts(&self, now: Timestamp) -> String {
        match self.restarted_at {
            Some(at) if self.restarts > 0 => {
                format!("{} ({} ago)", self.restarts, since(Some(at), now))
            }
            _ => self.restarts.to_string(),
        }
    }

    /// Reads the init containers up to the one that is under way; says whether there is one.
    fn read_init(&mut self, pod: &Value) -> bool {
        let total = list(pod, "/spec/initContainers").len();
        for (index, container) in list(pod, "/status/initContainerStatuses")
            .iter()
            .enumerate()
        {
            self.count_restarts(container);
            let is_sidecar = sidecars(pod).any(|name| name == text(container, "/name"));
            let waiting = text(container, "/state/waiting/reason");
            if let Some(exit) = container
                .pointer("/state/terminated")
                .filter(|exit| exit.is_object())
            {
                if count(exit, "/exitCode") == 0 {
                    continue;
                }
                self.status = format!("Init:{}", exit_reason(exit));
            } else if is_sidecar && flag(container, "/started") {
                self.ready += usize::from(flag(container, "/ready"));
                continue;
            } else if !waiting.is_empty() && waiting != "PodInitializing" {
                self.status = format!("Init:{waiting}");
            } else {
                self.status = format!("Init:{index}/{total}");
            }
            return true;
        }
        false
    }

    fn read_containers(&mut self, pod: &Value) {
        // Past initialization only containers that go on count: sidecars and the main ones.
        (self.restarts, self.restarted_at) = (0, None);
        for container in list(pod, "/status/initContainerStatuses") {
            if sidecars(pod).any(|name| name == text(container, "/name")) {
                self.count_restarts(container);
            }
        }
        let mut any_running = false;
        // The first container has the last word, so the list is read backwards.
        for container in list(pod, "/status/containerStatuses").iter().rev() {
            self.count_restarts(container);
            let waiting = text(container, "/state/waiting/reason");
            let exit = container
                .pointer("/state/terminated")
                .filter(|exit| exit.is_object());
            let running = container
                .pointer("/state/running")
                .is_some_and(Value::is_object);
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.status);
            } else if let Some(exit) = exit {
                self.status = exit_reason(exit);
            } else if flag(container, "/ready") && running {
                any_running = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" && any_running {
            let ready = condition(pod, "Ready")
                .is_some_and(|condition| text(condition, "/status") == "True");
            self.status = if ready { "Running" } else { "NotReady" }.into();
        }
    }

    fn count_restarts(&mut self, container: &Value) {
        self.restarts += count(container, "/restartCount");
        let ended = timestamp(container, "/lastState/terminated/finishedAt");
        self.restarted_at = self.restarted_at.max(ended);
    }
}

fn own_status(pod: &Value) -> String {
    let gated = condition(pod, "PodScheduled")
        .is_some_and(|condition| text(condition, "/reason") == "SchedulingGated");
    let reason = text(pod, "/status/reason");
    match (gated, reason) {
        (true, _) => "SchedulingGated".into(),
        (false, "") => text(pod, "/status/phase").into(),
        (false, reason) => reason.into(),
    }
}

fn exit_reason(exit: &Value) -> String {
    match (text(exit, "/reason"), count(exit, "/signal")) {
        ("", 0) => format!("ExitCode:{}", count(exit, "/exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Init containers that stay: `restartPolicy: Always`.
fn sidecars(pod: &Value) -> impl Iterator<Item = &str> {
    list(pod, "/spec/initContainers")
        .iter()
        .filter(|container| text(container, "/restartPolicy") == "Always")
        .map(|container| text(container, "/name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(spec: Value, status: Value, deleted: bool) -> String {
        let mut pod = json!({"metadata": {}, "spec": spec, "status": status});
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let line = PodLine::of(&pod);
        format!(
            "{} {} {}",
            line.ready(),
            line.status,
            line.restarts("2026-01-01T01:00:00Z".parse().unwrap())
        )
    }

    fn one(state: &Value) -> Value {
        json!({"phase": "Running", "containerStatuses": [{"name": "a", "restartCount": 0, "state": state}]})
    }

    #[test]
    fn lines() {
        let single = json!({"containers": [{"name": "a"}]});
        let with_init = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
        let sidecar = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
        let running =
            json!({"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}});
        for (spec, status, deleted, expected) in [
            (&single, json!({"phase": "Pending"}), false, "0/1 Pending 0"),
            (
                &single,
                json!({"phase": "Pending"}),
                true,
                "0/1 Terminating 0",
            ),
            (
                &single,
                json!({"phase": "Succeeded"}),
                true,
                "0/1 Succeeded 0",
            ),
            (
                &single,
                json!({"phase": "Running", "reason": "NodeLost"}),
                true,
                "0/1 Unknown 0",
            ),
            (
                &single,
                json!({"phase": "Failed", "reason": "Evicted"}),
                false,
                "0/1 Evicted 0",
            ),
            (
                &single,
                json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
                false,
                "0/1 SchedulingGated 0",
            ),
            (
                &single,
                json!({"phase": "Running", "containerStatuses": [running]}),
                false,
                "1/1 Running 0",
            ),
            (
                &single,
                one(&json!({"waiting": {"reason": "CrashLoopBackOff"}})),
                false,
                "0/1 CrashLoopBackOff 0",
            ),
            (
                &single,
                one(&json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}})),
                false,
                "0/1 OOMKilled 0",
            ),
            (
                &single,
                one(&json!({"terminated": {"reason": "Completed", "exitCode": 0}})),
                false,
                "0/1 Completed 0",
            ),
            (
                &single,
                one(&json!({"terminated": {"exitCode": 3}})),
                false,
                "0/1 ExitCode:3 0",
            ),
            (
                &single,
                one(&json!({"terminated": {"exitCode": 137, "signal": 9}})),
                false,
                "0/1 Signal:9 0",
            ),
            (
                &single,
                json!({"phase": "Running", "containerStatuses": [{"name": "a", "ready": true, "restartCount": 2,
                "state": {"running": {}}, "lastState": {"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}}}]}),
                false,
                "1/1 Running 2 (5m ago)",
            ),
            (
                &with_init,
                json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": {"running": {}}}]}),
                false,
                "0/1 Init:1/2 0",
            ),
            (
                &with_init,
                json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
                false,
                "0/1 Init:CrashLoopBackOff 3",
            ),
            (
                &with_init,
                json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}]}),
                false,
                "0/1 Init:0/2 0",
            ),
            (
                &with_init,
                json!({"phase": "Failed", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}),
                false,
                "0/1 Init:Error 0",
            ),
            (
                &with_init,
                json!({"phase": "Failed", "initContainerStatuses": [
                {"name": "i", "state": {"terminated": {"exitCode": 1}}}]}),
                false,
                "0/1 Init:ExitCode:1 0",
            ),
            (
                &sidecar,
                json!({"phase": "Running", "initContainerStatuses": [
                {"name": "s", "started": true, "ready": true, "restartCount": 1, "state": {"running": {}}}], "containerStatuses": [running]}),
                false,
                "2/2 Running 1",
            ),
            (
                &json!({"containers": [{}, {}]}),
                json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [
                {"name": "b", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}, running]}),
                false,
                "1/2 NotReady 0",
            ),
        ] {
            assert_eq!(
                line(spec.clone(), status.clone(), deleted),
                expected,
                "{status}"
            );
        }
        assert_eq!(PodLine::of(&json!([])), PodLine::default());
    }
}
