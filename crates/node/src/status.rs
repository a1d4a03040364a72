//! What a pod's status says, as a kubelet would write it.
//!
//! Pure: one function of what is known now. The status last written is only looked at for the times at which conditions
//! changed and for conditions that are not ours. Invariant: a pod is never shown as ended while one of its processes may
//! still run, because whoever reads `Failed` or `Succeeded` gives its GPUs to somebody else.

mod conditions;
mod containers;

pub(crate) use containers::bare_container_id;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::resources::{self, Granted};
use crate::shim::protocol::{SHUTDOWN, ShimStatus, reason};

/// How the node decided that a pod must end, whatever its processes say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Fate {
    /// It was never started: the node has no room, or cannot read what it asks for.
    Rejected { reason: String, message: String },
    /// It used more of the node's disk than it may.
    Evicted { message: String },
    /// It ran longer than `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// What became of it cannot be found out.
    Lost { message: String },
    /// The node went down before the pod's work was over.
    NodeShutdown,
}

impl Fate {
    /// `status.reason`.
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Rejected { reason, .. } => reason,
            Self::Evicted { .. } => "Evicted",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::Lost { .. } => reason::CONTAINER_STATUS_UNKNOWN,
            Self::NodeShutdown => "Terminated",
        }
    }

    /// `status.message`.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Rejected { message, .. } | Self::Evicted { message } | Self::Lost { message } => {
                message
            }
            Self::DeadlineExceeded => {
                "Pod was active on the node longer than the specified deadline"
            }
            Self::NodeShutdown => {
                "The node was shut down and stopped the pod before its work was over"
            }
        }
    }
}

/// Why nothing of the pod has been started yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// What probes say of a running container. Without probes it is started and ready as soon as it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) started: bool,
    pub(crate) ready: bool,
}

/// How far a change of a running pod's resources has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resize {
    /// The node could never hold it.
    Infeasible(String),
    /// The node cannot hold it now.
    Deferred(String),
    /// Granted and being put in force; the text is what went wrong so far.
    InProgress(Option<String>),
}

/// Everything a status is made of.
#[derive(Debug, Clone)]
pub(crate) struct Observed<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) granted: &'a Granted,
    pub(crate) address: &'a str,
    /// When the node accepted the pod; `None` for a pod it turned away.
    pub(crate) accepted_at: Option<Timestamp>,
    pub(crate) shim: Option<&'a ShimStatus>,
    pub(crate) hold: Option<&'a Hold>,
    pub(crate) health: &'a BTreeMap<String, Health>,
    pub(crate) fate: Option<&'a Fate>,
    pub(crate) resize: Option<&'a Resize>,
    /// Nothing of the pod runs any more or will run again.
    pub(crate) ended: bool,
    pub(crate) now: Timestamp,
}

/// The phase, by the kubelet's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The phase a pod's recorded status shows.
pub(crate) fn recorded_phase(pod: &Pod) -> Option<Phase> {
    let all = [
        Phase::Pending,
        Phase::Running,
        Phase::Succeeded,
        Phase::Failed,
    ];
    let name = pod.status.as_ref()?.phase.as_deref()?;
    all.into_iter().find(|phase| phase.name() == name)
}

/// A time as the API shows it: whole seconds.
pub(crate) fn time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// The status to write.
pub(crate) fn pod_status(observed: &Observed<'_>) -> PodStatus {
    let observed = &Observed {
        fate: observed.fate.or_else(|| observed.shim.and_then(shut_down)),
        ..observed.clone()
    };
    let phase = phase(observed);
    let generation = observed.pod.metadata.generation;
    let mut status = PodStatus {
        phase: Some(phase.name().to_owned()),
        qos_class: Some(resources::qos_class(observed.pod).to_owned()),
        observed_generation: generation,
        start_time: observed.accepted_at.map(time),
        ..PodStatus::default()
    };
    if let Some(fate) = observed.fate
        && phase.is_terminal()
    {
        status.reason = Some(fate.reason().to_owned());
        status.message = Some(fate.message().to_owned());
    }
    let never_here =
        matches!(observed.fate, Some(Fate::Rejected { .. })) && observed.shim.is_none();
    if !never_here {
        let address = observed.address.to_owned();
        status.host_ip = Some(address.clone());
        status.host_ips = Some(vec![HostIP {
            ip: address.clone(),
        }]);
        status.pod_ip = Some(address.clone());
        status.pod_ips = Some(vec![PodIP { ip: address }]);
        status.container_statuses = containers::statuses(observed);
        status.init_container_statuses = containers::init_statuses(observed);
    }
    status.conditions = Some(conditions::conditions(observed, phase, &status));
    status
}

/// The fate of a pod that was stopped with its node. Nobody decides it while the pod runs: the engine may be gone before the
/// shims are told, so what the shim wrote down has to be enough.
fn shut_down(shim: &ShimStatus) -> Option<&'static Fate> {
    let stopped = shim.cut_short && shim.stop_reason.as_deref() == Some(SHUTDOWN);
    stopped.then_some(&Fate::NodeShutdown)
}

fn phase(observed: &Observed<'_>) -> Phase {
    let spec = observed.pod.spec.clone().unwrap_or_default();
    if observed.ended && observed.fate.is_some() {
        return Phase::Failed;
    }
    let never_again = spec.restart_policy.as_deref() == Some("Never");
    let run = |name: &str| containers::Run::of(observed.shim, name);

    let init: Vec<containers::Run> = spec
        .init_containers
        .iter()
        .flatten()
        .map(|container| run(&container.name))
        .collect();
    if init
        .iter()
        .any(|run| matches!(run, containers::Run::Ended { code } if *code != 0))
        && (never_again || observed.ended)
    {
        return Phase::Failed;
    }
    let initialized = init
        .iter()
        .all(|run| matches!(run, containers::Run::Ended { code: 0 }));

    let runs: Vec<containers::Run> = spec
        .containers
        .iter()
        .map(|container| run(&container.name))
        .collect();
    let count =
        |wanted: fn(&containers::Run) -> bool| runs.iter().filter(|run| wanted(run)).count();
    let waiting = count(|run| matches!(run, containers::Run::Waiting));
    let running = count(|run| matches!(run, containers::Run::Running));
    let stopped = count(|run| {
        matches!(
            run,
            containers::Run::Ended { .. } | containers::Run::BackingOff
        )
    });
    let succeeded = count(|run| matches!(run, containers::Run::Ended { code: 0 }));

    if observed.ended {
        let all_well = initialized && succeeded == runs.len() && !runs.is_empty();
        return if all_well {
            Phase::Succeeded
        } else {
            Phase::Failed
        };
    }
    if !initialized || waiting > 0 {
        return Phase::Pending;
    }
    // Where all have stopped, either one is started again, or the shim is about to say that this is the end.
    if running > 0 || stopped > 0 {
        Phase::Running
    } else {
        Phase::Pending
    }
}

#[cfg(test)]
mod tests;
