//! `containerStatuses` and `initContainerStatuses`.

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ResourceRequirements,
};

use super::{Observed, time};
use crate::quantity;
use crate::resources::{self, MEMORY};
use crate::shim::protocol::{self, Exit, ShimStatus, reason};

/// What one container counts as when the phase is worked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// Never ran yet.
    Waiting,
    Running,
    /// Ran, ended, and waits to be started again.
    BackingOff,
    Ended {
        code: i32,
    },
}

impl Run {
    pub(super) fn of(shim: Option<&ShimStatus>, name: &str) -> Self {
        let Some(status) = shim.and_then(|shim| shim.container(name)) else {
            return Self::Waiting;
        };
        match &status.state {
            protocol::ContainerState::Waiting { .. } if status.last.is_some() => Self::BackingOff,
            protocol::ContainerState::Waiting { .. } => Self::Waiting,
            protocol::ContainerState::Running { .. } => Self::Running,
            protocol::ContainerState::Terminated(exit) => Self::Ended {
                code: exit.exit_code,
            },
        }
    }
}

pub(super) fn statuses(observed: &Observed<'_>) -> Option<Vec<ContainerStatus>> {
    let spec = observed.pod.spec.as_ref()?;
    let has_init = spec
        .init_containers
        .as_ref()
        .is_some_and(|init| !init.is_empty());
    let statuses = spec.containers.iter().map(|container| {
        let hold = if has_init {
            Waiting::ForInit
        } else {
            Waiting::ForStart
        };
        let mut status = status(observed, container, hold);
        let running = Run::of(observed.shim, &container.name) == Run::Running;
        let health = observed.health.get(&container.name);
        status.started = Some(running && health.is_none_or(|health| health.started));
        status.ready = running && health.is_none_or(|health| health.started && health.ready);
        status
    });
    Some(statuses.collect())
}

pub(super) fn init_statuses(observed: &Observed<'_>) -> Option<Vec<ContainerStatus>> {
    let init = observed
        .pod
        .spec
        .as_ref()?
        .init_containers
        .as_ref()
        .filter(|init| !init.is_empty())?;
    let statuses = init.iter().enumerate().map(|(position, container)| {
        let hold = if position == 0 {
            Waiting::ForStart
        } else {
            Waiting::ForInit
        };
        let mut status = status(observed, container, hold);
        let run = Run::of(observed.shim, &container.name);
        status.started = Some(run == Run::Running);
        status.ready = run == Run::Ended { code: 0 };
        status
    });
    Some(statuses.collect())
}

/// What a container without any state yet is waiting for.
enum Waiting {
    ForStart,
    ForInit,
}

fn status(observed: &Observed<'_>, container: &Container, hold: Waiting) -> ContainerStatus {
    let known = observed
        .shim
        .and_then(|shim| shim.container(&container.name));
    let state = match known {
        Some(known) => state(observed, known),
        None => waiting(observed, hold),
    };
    let restart_count = known.map_or(0, |known| known.restart_count);
    let begun = known.is_some_and(|known| {
        !matches!(known.state, protocol::ContainerState::Waiting { .. }) || known.last.is_some()
    });
    let resources = resources(observed, container, known);
    ContainerStatus {
        name: container.name.clone(),
        // No image is pulled, so there is no image id to give.
        image: container.image.clone().unwrap_or_default(),
        image_id: String::new(),
        container_id: begun.then(|| container_id(observed, &container.name, restart_count)),
        restart_count: i32::try_from(restart_count).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: Some(
            known
                .map(|known| last_state(observed, known))
                .unwrap_or_default(),
        ),
        allocated_resources: resources.as_ref().and_then(|_| {
            observed
                .granted
                .get(&container.name)
                .and_then(|granted| granted.requests.clone())
        }),
        resources,
        ..ContainerStatus::default()
    }
}

/// One id for each run, so that who keeps the last one seen notices a restart.
fn container_id(observed: &Observed<'_>, container: &str, restart: u32) -> String {
    let uid = observed.pod.metadata.uid.as_deref().unwrap_or_default();
    format!("stokehold://{}", bare_container_id(uid, container, restart))
}

/// The same without its scheme.
pub(crate) fn bare_container_id(uid: &str, container: &str, restart: u32) -> String {
    format!("{uid}/{container}/{restart}")
}

fn waiting(observed: &Observed<'_>, hold: Waiting) -> ContainerState {
    let (reason, message) = match (observed.hold, hold) {
        (_, Waiting::ForInit) => (reason::POD_INITIALIZING, None),
        (Some(hold), Waiting::ForStart) => (hold.reason, Some(hold.message.clone())),
        (None, Waiting::ForStart) => (reason::CONTAINER_CREATING, None),
    };
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn state(observed: &Observed<'_>, known: &protocol::ContainerStatus) -> ContainerState {
    match &known.state {
        protocol::ContainerState::Waiting { reason, message } => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.clone()),
                message: message.clone(),
            }),
            ..ContainerState::default()
        },
        protocol::ContainerState::Running { started_at, .. } => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: Some(time(*started_at)),
            }),
            ..ContainerState::default()
        },
        protocol::ContainerState::Terminated(exit) => {
            terminated(observed, &known.name, known.restart_count, exit)
        }
    }
}

fn last_state(observed: &Observed<'_>, known: &protocol::ContainerStatus) -> ContainerState {
    let Some(exit) = &known.last else {
        return ContainerState::default();
    };
    // A container that waits has not been started again: its last run is the one the count stands at.
    let waits = matches!(known.state, protocol::ContainerState::Waiting { .. });
    let restart = if waits {
        known.restart_count
    } else {
        known.restart_count.saturating_sub(1)
    };
    terminated(observed, &known.name, restart, exit)
}

fn terminated(
    observed: &Observed<'_>,
    container: &str,
    restart: u32,
    exit: &Exit,
) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: exit.exit_code,
            reason: Some(exit.reason.clone()),
            message: exit.message.clone(),
            started_at: exit.started_at.map(time),
            finished_at: Some(time(exit.finished_at)),
            container_id: Some(container_id(observed, container, restart)),
            // Kubelets leave the signal out; the exit code says it.
            signal: None,
        }),
        ..ContainerState::default()
    }
}

/// What is in force: what was granted, with the memory limit the shim says it holds the container to.
fn resources(
    observed: &Observed<'_>,
    container: &Container,
    known: Option<&protocol::ContainerStatus>,
) -> Option<ResourceRequirements> {
    let mut resources = observed
        .granted
        .get(&container.name)
        .or(container.resources.as_ref())?
        .clone();
    if resources.limits.is_none() && resources.requests.is_none() {
        return None;
    }
    let in_force = known
        .filter(|_| !observed.ended)
        .and_then(|known| known.memory_limit_bytes);
    if let (Some(bytes), Some(limits)) = (in_force, &mut resources.limits)
        && let Some(limit) = limits.get_mut(MEMORY)
        && resources::memory_limit(container) != Some(bytes)
    {
        *limit = quantity::bytes(bytes);
    }
    Some(resources)
}
