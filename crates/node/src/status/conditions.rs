//! Pod conditions: ours, with the times at which they changed, and whatever others have put there.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};

use super::{Fate, Observed, Phase, Resize, time};

const OURS: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
    "DisruptionTarget",
];

/// A condition before it is compared with what was there.
struct Verdict {
    type_: &'static str,
    holds: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn yes(type_: &'static str) -> Self {
        Self {
            type_,
            holds: true,
            reason: None,
            message: None,
        }
    }

    fn no(type_: &'static str, reason: &'static str, message: Option<String>) -> Self {
        Self {
            type_,
            holds: false,
            reason: Some(reason),
            message,
        }
    }
}

pub(super) fn conditions(
    observed: &Observed<'_>,
    phase: Phase,
    status: &PodStatus,
) -> Vec<PodCondition> {
    let before = observed
        .pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let init = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let containers_ready = containers_ready(phase, containers);
    let mut verdicts = vec![
        Verdict {
            type_: "PodReadyToStartContainers",
            holds: observed.shim.is_some() && !observed.ended,
            reason: None,
            message: None,
        },
        initialized(phase, init),
        ready(observed, &containers_ready, before),
        containers_ready,
        Verdict::yes("PodScheduled"),
    ];
    verdicts.extend(observed.resize.map(resize));
    verdicts.extend(observed.fate.and_then(disruption));

    let ours = verdicts
        .into_iter()
        .map(|verdict| settle(observed, verdict, before));
    // A disruption others announced (an eviction through the API) stays; so does everything we know nothing of.
    let announced = |condition: &&PodCondition| {
        !OURS.contains(&condition.type_.as_str())
            || (condition.type_ == "DisruptionTarget"
                && observed.fate.and_then(disruption).is_none())
    };
    let mut all: Vec<PodCondition> = ours.collect();
    all.extend(before.iter().filter(announced).cloned());
    all
}

/// Gives a verdict the time of its last change: now, unless it said the same before.
fn settle(observed: &Observed<'_>, verdict: Verdict, before: &[PodCondition]) -> PodCondition {
    let status = if verdict.holds { "True" } else { "False" };
    let old = before
        .iter()
        .find(|condition| condition.type_ == verdict.type_);
    let unchanged = old
        .filter(|condition| condition.status == status)
        .and_then(|condition| condition.last_transition_time.clone());
    PodCondition {
        type_: verdict.type_.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.map(str::to_owned),
        message: verdict.message,
        last_transition_time: Some(unchanged.unwrap_or_else(|| time(observed.now))),
        observed_generation: observed.pod.metadata.generation,
        last_probe_time: None,
    }
}

fn names<'a>(statuses: impl Iterator<Item = &'a ContainerStatus>) -> String {
    statuses
        .map(|status| status.name.as_str())
        .collect::<Vec<_>>()
        .join(" ")
}

fn initialized(phase: Phase, init: &[ContainerStatus]) -> Verdict {
    if phase == Phase::Succeeded {
        return Verdict {
            reason: Some("PodCompleted"),
            ..Verdict::yes("Initialized")
        };
    }
    let incomplete = names(init.iter().filter(|status| !status.ready));
    if incomplete.is_empty() {
        return Verdict::yes("Initialized");
    }
    let message = format!("containers with incomplete status: [{incomplete}]");
    Verdict::no("Initialized", "ContainersNotInitialized", Some(message))
}

fn containers_ready(phase: Phase, containers: &[ContainerStatus]) -> Verdict {
    match phase {
        Phase::Succeeded => Verdict::no("ContainersReady", "PodCompleted", None),
        Phase::Failed => Verdict::no("ContainersReady", "PodFailed", None),
        Phase::Pending | Phase::Running => {
            let unready = names(containers.iter().filter(|status| !status.ready));
            if unready.is_empty() {
                return Verdict::yes("ContainersReady");
            }
            let message = format!("containers with unready status: [{unready}]");
            Verdict::no("ContainersReady", "ContainersNotReady", Some(message))
        }
    }
}

fn ready(observed: &Observed<'_>, containers: &Verdict, before: &[PodCondition]) -> Verdict {
    if let (false, Some(reason)) = (containers.holds, containers.reason) {
        return Verdict::no("Ready", reason, containers.message.clone());
    }
    let gates = observed
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten());
    let problems: Vec<String> = gates
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match before.iter().find(|condition| condition.type_ == *name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {name:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {name:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if problems.is_empty() {
        Verdict::yes("Ready")
    } else {
        Verdict::no("Ready", "ReadinessGatesNotReady", Some(problems.join(", ")))
    }
}

fn resize(resize: &Resize) -> Verdict {
    match resize {
        Resize::Infeasible(message) => Verdict {
            reason: Some("Infeasible"),
            message: Some(message.clone()),
            ..Verdict::yes("PodResizePending")
        },
        Resize::Deferred(message) => Verdict {
            reason: Some("Deferred"),
            message: Some(message.clone()),
            ..Verdict::yes("PodResizePending")
        },
        Resize::InProgress(problem) => Verdict {
            reason: problem.as_ref().map(|_| "Error"),
            message: problem.clone(),
            ..Verdict::yes("PodResizeInProgress")
        },
    }
}

fn disruption(fate: &Fate) -> Option<Verdict> {
    match fate {
        Fate::Evicted { .. } | Fate::NodeShutdown => Some(Verdict {
            reason: Some("TerminationByKubelet"),
            message: Some(fate.message().to_owned()),
            ..Verdict::yes("DisruptionTarget")
        }),
        Fate::Rejected { .. } | Fate::DeadlineExceeded | Fate::Lost { .. } => None,
    }
}
