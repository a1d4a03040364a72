//! What says that a node is going away: the words of clouds' own handlers, of autoscalers and of Kubernetes, in one table.
//!
//! Times that another machine wrote are not read: how long there is counts from when it is seen here.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};

/// A node that is going away, or may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Who says so.
    pub by: &'static str,
    /// What is going to happen, said of the node.
    pub why: &'static str,
    /// The taint, condition or field that says it.
    pub said_by: &'static str,
    pub then: Then,
}

/// What is to be done about it, what is less urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Then {
    /// It may go: what runs there saves its work, and runs on.
    MayGo,
    /// It goes. Whoever saves its work has so long for it, and is then stopped with what is left of the notice.
    Goes { wait: Wait },
    /// It gives no sign of life. That may be the node, or the way to it.
    Silent,
    /// Someone who knows says that its machine is off: nothing on it is waited for.
    Gone,
}

/// Less time is more urgent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait(pub Duration);

impl Ord for Wait {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.cmp(&self.0)
    }
}

impl PartialOrd for Wait {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

const fn goes(seconds: u64) -> Then {
    Then::Goes {
        wait: Wait(Duration::from_secs(seconds)),
    }
}

/// Key, value where it matters, who, what, and how urgent.
type Row = (
    &'static str,
    Option<&'static str>,
    &'static str,
    &'static str,
    Then,
);

/// AWS gives two minutes from its notice to the end of a spot machine, Google Cloud and Azure half a minute: of that a worker has what leaves
/// it some seconds to end. Autoscalers evict what is still there, and wait for its grace period.
const TAINTS: [Row; 14] = [
    (
        "aws-node-termination-handler/spot-itn",
        None,
        "AWS",
        "its spot machine is reclaimed",
        goes(90),
    ),
    (
        "aws-node-termination-handler/scheduled-maintenance",
        None,
        "AWS",
        "maintenance of its machine is due",
        goes(90),
    ),
    (
        "aws-node-termination-handler/asg-lifecycle-termination",
        None,
        "AWS",
        "its Auto Scaling group ends it",
        goes(90),
    ),
    (
        "aws-node-termination-handler/rebalance-recommendation",
        None,
        "AWS",
        "its spot machine is likely to be reclaimed",
        Then::MayGo,
    ),
    (
        "cloud.google.com/impending-node-termination",
        None,
        "Google Cloud",
        "its machine is about to be stopped",
        goes(15),
    ),
    (
        "remediator.kubernetes.azure.com/unschedulable",
        None,
        "Azure",
        "its machine is about to be taken away",
        goes(15),
    ),
    (
        "remediator.aks.microsoft.com/unschedulable",
        None,
        "Azure",
        "its machine is about to be taken away",
        goes(15),
    ),
    (
        "karpenter.sh/disrupted",
        None,
        "Karpenter",
        "it is being replaced or removed",
        goes(60),
    ),
    (
        "karpenter.sh/disruption",
        Some("disrupting"),
        "Karpenter",
        "it is being replaced or removed",
        goes(60),
    ),
    (
        "ToBeDeletedByClusterAutoscaler",
        None,
        "Cluster Autoscaler",
        "it is being removed",
        goes(60),
    ),
    (
        "DeletionCandidateOfClusterAutoscaler",
        None,
        "Cluster Autoscaler",
        "it may be removed soon",
        Then::MayGo,
    ),
    (
        "node.cloudprovider.kubernetes.io/shutdown",
        None,
        "its cloud",
        "its machine is shut down",
        Then::Gone,
    ),
    (
        "node.kubernetes.io/out-of-service",
        None,
        "an administrator",
        "it is out of service",
        Then::Gone,
    ),
    (
        "node.kubernetes.io/unreachable",
        None,
        "Kubernetes",
        "it gives no sign of life",
        Then::Silent,
    ),
];

/// Types of conditions that hold, and a word of their reason or message where that matters. AKS has one type for all events of a machine, of
/// which a freeze is no end.
const CONDITIONS: [Row; 7] = [
    (
        "PreemptScheduled",
        None,
        "Azure",
        "its spot machine is reclaimed",
        goes(15),
    ),
    (
        "TerminateScheduled",
        None,
        "Azure",
        "its machine is about to be deleted",
        goes(15),
    ),
    (
        "RedeployScheduled",
        None,
        "Azure",
        "its machine is about to move",
        goes(15),
    ),
    (
        "VMEventScheduled",
        Some("Preempt"),
        "Azure",
        "its spot machine is reclaimed",
        goes(15),
    ),
    (
        "VMEventScheduled",
        Some("Terminate"),
        "Azure",
        "its machine is about to be deleted",
        goes(15),
    ),
    (
        "VMEventScheduled",
        Some("Redeploy"),
        "Azure",
        "its machine is about to move",
        goes(15),
    ),
    (
        "VMEventScheduled",
        Some("Reboot"),
        "Azure",
        "its machine is about to reboot",
        Then::MayGo,
    ),
];

/// What a kubelet says of itself while its machine shuts down; by then it stops its pods.
const SHUTTING_DOWN: &str = "node is shutting down";

/// The most urgent that a node says, or that is said of it.
pub fn notice(node: &Node) -> Option<Notice> {
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    let taints = taints.into_iter().flatten();
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let conditions = conditions.into_iter().flatten();
    let cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
    let cordoned = cordoned.then_some(Notice {
        by: "an administrator",
        why: "it is cordoned, as before a drain",
        said_by: "spec.unschedulable",
        then: Then::MayGo,
    });
    let is_deleted = node.metadata.deletion_timestamp.is_some();
    let deleted = is_deleted.then_some(Notice {
        by: "Kubernetes",
        why: "it is being deleted",
        said_by: "metadata.deletionTimestamp",
        then: goes(60),
    });
    let told = taints.filter_map(of_taint);
    let told = told.chain(conditions.filter_map(of_condition));
    // Of several that are as urgent, the first: a taint names who says so.
    told.chain(deleted)
        .chain(cordoned)
        .reduce(|one, other| if other.then > one.then { other } else { one })
}

fn read((said_by, _, by, why, then): &Row) -> Notice {
    Notice {
        by,
        why,
        said_by,
        then: *then,
    }
}

fn of_taint(taint: &Taint) -> Option<Notice> {
    let value = taint.value.as_deref().unwrap_or_default();
    let mut rows = TAINTS.iter();
    let row =
        rows.find(|(key, wanted, ..)| *key == taint.key && wanted.is_none_or(|it| it == value));
    row.map(read)
}

fn of_condition(condition: &NodeCondition) -> Option<Notice> {
    let says = |word: &str| {
        let told = [&condition.reason, &condition.message];
        told.into_iter().flatten().any(|text| text.contains(word))
    };
    match (condition.type_.as_str(), condition.status.as_str()) {
        ("Ready", "Unknown") => Some(Notice {
            by: "Kubernetes",
            why: "it gives no sign of life",
            said_by: "Ready",
            then: Then::Silent,
        }),
        ("Ready", "False") if says(SHUTTING_DOWN) => Some(Notice {
            by: "its kubelet",
            why: "its machine shuts down",
            said_by: "Ready",
            then: goes(0),
        }),
        (type_, "True") => {
            let mut rows = CONDITIONS.iter();
            let row = rows.find(|(known, word, ..)| *known == type_ && word.is_none_or(says));
            row.map(read)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(node: Value) -> String {
        let node: Node = serde_json::from_value(node).expect("a node");
        let Some(notice) = notice(&node) else {
            return "nothing".to_owned();
        };
        let then = match notice.then {
            Then::MayGo => "may go".to_owned(),
            Then::Goes { wait } => format!("goes, {} s", wait.0.as_secs()),
            Then::Silent => "silent".to_owned(),
            Then::Gone => "gone".to_owned(),
        };
        format!("{then}: {} ({}: {})", notice.why, notice.by, notice.said_by)
    }

    fn tainted(taints: &[(&str, &str, &str)]) -> Value {
        let taints: Vec<Value> = taints
            .iter()
            .map(|(key, value, effect)| json!({"key": key, "value": value, "effect": effect}))
            .collect();
        json!({"metadata": {"name": "n"}, "spec": {"taints": taints}})
    }

    fn conditioned(type_: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"metadata": {"name": "n"}, "status": {"conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": type_, "status": status, "reason": reason, "message": message}]}})
    }

    #[test]
    fn a_node_that_goes_is_known_by_what_its_cloud_says() {
        let rows = [
            ("a node", json!({"metadata": {"name": "n"}})),
            (
                "spot label as a taint",
                tainted(&[(
                    "kubernetes.azure.com/scalesetpriority",
                    "spot",
                    "NoSchedule",
                )]),
            ),
            (
                "disk pressure",
                tainted(&[("node.kubernetes.io/disk-pressure", "", "NoSchedule")]),
            ),
            (
                "AWS",
                tainted(&[(
                    "aws-node-termination-handler/spot-itn",
                    "73687",
                    "NoSchedule",
                )]),
            ),
            (
                "AWS, first likely and then sure",
                tainted(&[
                    (
                        "aws-node-termination-handler/rebalance-recommendation",
                        "",
                        "NoSchedule",
                    ),
                    ("aws-node-termination-handler/spot-itn", "", "NoSchedule"),
                ]),
            ),
            (
                "Google Cloud",
                tainted(&[(
                    "cloud.google.com/impending-node-termination",
                    "",
                    "NoSchedule",
                )]),
            ),
            (
                "Karpenter before 1.0",
                tainted(&[("karpenter.sh/disruption", "disrupting", "NoSchedule")]),
            ),
            (
                "Karpenter, another word",
                tainted(&[("karpenter.sh/disruption", "candidate", "NoSchedule")]),
            ),
            (
                "a candidate",
                tainted(&[(
                    "DeletionCandidateOfClusterAutoscaler",
                    "1",
                    "PreferNoSchedule",
                )]),
            ),
            (
                "several, the most urgent",
                tainted(&[
                    ("ToBeDeletedByClusterAutoscaler", "1", "NoSchedule"),
                    (
                        "cloud.google.com/impending-node-termination",
                        "",
                        "NoSchedule",
                    ),
                ]),
            ),
            (
                "out of service",
                tainted(&[(
                    "node.kubernetes.io/out-of-service",
                    "nodeshutdown",
                    "NoExecute",
                )]),
            ),
            (
                "silent",
                conditioned(
                    "Ready",
                    "Unknown",
                    "NodeStatusUnknown",
                    "Kubelet stopped posting node status.",
                ),
            ),
            (
                "unready but there",
                conditioned(
                    "Ready",
                    "False",
                    "KubeletNotReady",
                    "container runtime is down",
                ),
            ),
            (
                "shutting down",
                conditioned("Ready", "False", "KubeletNotReady", "node is shutting down"),
            ),
            (
                "Azure",
                conditioned(
                    "VMEventScheduled",
                    "True",
                    "VMEventScheduled",
                    "Preempt Scheduled: Mon, 02 Mar 2026 19:01:45 GMT",
                ),
            ),
            (
                "Azure, for seconds",
                conditioned(
                    "VMEventScheduled",
                    "True",
                    "VMEventScheduled",
                    "Freeze Scheduled: now",
                ),
            ),
            (
                "Azure, over",
                conditioned(
                    "VMEventScheduled",
                    "False",
                    "NoVMEventScheduled",
                    "Preempt is over",
                ),
            ),
            (
                "cordoned",
                json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}}),
            ),
            (
                "deleted",
                json!({"metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"unschedulable": true}}),
            ),
        ];
        let said: Vec<String> = rows
            .into_iter()
            .map(|(name, node)| format!("{name}: {}", told(node)))
            .collect();
        insta::assert_snapshot!(said.join("\n"), @r"
        a node: nothing
        spot label as a taint: nothing
        disk pressure: nothing
        AWS: goes, 90 s: its spot machine is reclaimed (AWS: aws-node-termination-handler/spot-itn)
        AWS, first likely and then sure: goes, 90 s: its spot machine is reclaimed (AWS: aws-node-termination-handler/spot-itn)
        Google Cloud: goes, 15 s: its machine is about to be stopped (Google Cloud: cloud.google.com/impending-node-termination)
        Karpenter before 1.0: goes, 60 s: it is being replaced or removed (Karpenter: karpenter.sh/disruption)
        Karpenter, another word: nothing
        a candidate: may go: it may be removed soon (Cluster Autoscaler: DeletionCandidateOfClusterAutoscaler)
        several, the most urgent: goes, 15 s: its machine is about to be stopped (Google Cloud: cloud.google.com/impending-node-termination)
        out of service: gone: it is out of service (an administrator: node.kubernetes.io/out-of-service)
        silent: silent: it gives no sign of life (Kubernetes: Ready)
        unready but there: nothing
        shutting down: goes, 0 s: its machine shuts down (its kubelet: Ready)
        Azure: goes, 15 s: its spot machine is reclaimed (Azure: VMEventScheduled)
        Azure, for seconds: nothing
        Azure, over: nothing
        cordoned: may go: it is cordoned, as before a drain (an administrator: spec.unschedulable)
        deleted: goes, 60 s: it is being deleted (Kubernetes: metadata.deletionTimestamp)
        ");
    }
}
