//! A job's pods, read as workers: which attempt and rank they are, how far they got, and what ended them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use stoke_api::names::{ATTEMPT_LABEL, JOB_LABEL, RANK_LABEL};
use stoke_api::{Bytes, TrainJob};
use stoke_memory::{End, Evidence, Terminated};

use crate::cluster;

/// A pod that belongs to a job, by its owner reference and not only by its labels.
#[derive(Debug, Clone, Copy)]
pub struct Worker<'a> {
    pub attempt: u32,
    pub rank: u32,
    pub pod: &'a Pod,
}

/// How far a worker got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Waiting,
    Running,
    Succeeded,
    Failed,
}

impl<'a> Worker<'a> {
    /// None for a pod that is not the job's.
    pub fn of(job: &TrainJob, pod: &'a Pod) -> Option<Self> {
        let uid = job.metadata.uid.as_deref()?;
        let owners = pod.metadata.owner_references.iter().flatten();
        if !owners.into_iter().any(|owner| owner.uid == uid) {
            return None;
        }
        let labels = pod.metadata.labels.as_ref()?;
        let number = |key: &str| labels.get(key).and_then(|value| value.parse().ok());
        Some(Self {
            attempt: number(ATTEMPT_LABEL)?,
            rank: number(RANK_LABEL)?,
            pod,
        })
    }

    pub fn name(&self) -> &'a str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn stage(&self) -> Stage {
        let phase = self
            .pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        match phase {
            Some("Running") => self.outlived_by_others().unwrap_or(Stage::Running),
            Some("Succeeded") => Stage::Succeeded,
            Some("Failed") => Stage::Failed,
            _ => Stage::Waiting,
        }
    }

    /// Where other containers of the template run on after the worker's own has ended, its end is the end.
    fn outlived_by_others(&self) -> Option<Stage> {
        let several = self.pod.spec.as_ref()?.containers.len() > 1;
        let code = self.terminated().filter(|_| several)?.exit_code;
        Some(if code == 0 {
            Stage::Succeeded
        } else {
            Stage::Failed
        })
    }

    pub fn is_finished(&self) -> bool {
        cluster::is_finished(self.pod)
    }

    /// Someone has deleted it and it has not ended yet.
    pub fn is_stopping(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some() && !self.is_finished()
    }

    /// When its grace period is over, if it was deleted.
    pub fn stop_due(&self) -> Option<Timestamp> {
        self.pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .map(|time| time.0)
    }

    pub fn started_at(&self) -> Option<Timestamp> {
        let state = self.container()?.state.as_ref()?;
        let running = state
            .running
            .as_ref()
            .and_then(|running| running.started_at.as_ref());
        let ended = state
            .terminated
            .as_ref()
            .and_then(|ended| ended.started_at.as_ref());
        running.or(ended).map(|time| time.0)
    }

    pub fn finished_at(&self) -> Option<Timestamp> {
        self.terminated()?.finished_at.as_ref().map(|time| time.0)
    }

    pub fn exit_code(&self) -> Option<i32> {
        self.terminated().map(|ended| ended.exit_code)
    }

    /// Why it does not run yet, as its node says.
    pub fn waits_for(&self) -> Option<String> {
        let status = self.pod.status.as_ref()?;
        let inits = status.init_container_statuses.iter().flatten();
        let waiting = inits
            .chain(status.container_statuses.iter().flatten())
            .filter_map(|container| container.state.as_ref()?.waiting.as_ref())
            .find(|waiting| waiting.reason.as_deref() != Some("PodInitializing"));
        let unscheduled = || {
            let conditions = status.conditions.iter().flatten();
            conditions
                .filter(|condition| {
                    condition.type_ == "PodScheduled" && condition.status == "False"
                })
                .find_map(|condition| condition.message.clone())
        };
        match waiting {
            Some(waiting) => {
                let reason = waiting.reason.clone().unwrap_or_default();
                let message = waiting
                    .message
                    .as_ref()
                    .filter(|message| !message.is_empty());
                Some(message.map_or(reason.clone(), |message| format!("{reason}: {message}")))
            }
            None => unscheduled(),
        }
    }

    /// Was it deleted before it ended? Then the end is of that doing.
    fn was_stopped(&self) -> bool {
        let Some(due) = self.stop_due() else {
            return false;
        };
        let grace = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let asked = due
            .saturating_sub(SignedDuration::from_secs(grace))
            .unwrap_or(due);
        self.finished_at().is_none_or(|ended| ended >= asked)
    }

    /// What is known of its end. `end` is what the caller knows beyond the pod itself.
    pub fn evidence(&self, end: Option<End>, limit: Option<Bytes>) -> Evidence {
        let status = self.pod.status.as_ref();
        let disruption = status
            .and_then(|status| status.conditions.as_ref())
            .into_iter()
            .flatten()
            .find(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
            .map(|condition| {
                (
                    condition.reason.clone().unwrap_or_default(),
                    condition.message.clone().unwrap_or_default(),
                )
            });
        let stopped = if self.was_stopped() {
            End::Deleted
        } else {
            End::Ended
        };
        Evidence {
            rank: self.rank,
            node: cluster::node_of(self.pod).unwrap_or_default().to_owned(),
            end: end.unwrap_or(stopped),
            pod_reason: status
                .and_then(|status| status.reason.clone())
                .unwrap_or_default(),
            pod_message: status
                .and_then(|status| status.message.clone())
                .or_else(|| self.waits_for())
                .unwrap_or_default(),
            disruption,
            container: self.failed_container(),
            limit,
        }
    }

    /// The worker container's end, or that of the init container that kept it from starting.
    fn failed_container(&self) -> Option<Terminated> {
        let inits = self
            .pod
            .status
            .as_ref()?
            .init_container_statuses
            .iter()
            .flatten();
        let failed_init = inits
            .filter_map(|init| Some((init, ended(init)?)))
            .find(|(_, ended)| ended.exit_code != 0);
        let (container, ended) = match failed_init {
            Some(found) => found,
            None => (self.container()?, self.terminated()?),
        };
        Some(Terminated {
            name: container.name.clone(),
            exit_code: ended.exit_code,
            signal: ended.signal,
            reason: ended.reason.clone().unwrap_or_default(),
            message: ended.message.clone().unwrap_or_default(),
        })
    }

    fn terminated(&self) -> Option<&'a ContainerStateTerminated> {
        self.container().and_then(ended)
    }

    /// The status of the worker container, which is the first of the pod; of several, the one that failed says more.
    fn container(&self) -> Option<&'a ContainerStatus> {
        let name = &self.pod.spec.as_ref()?.containers.first()?.name;
        let statuses = self.pod.status.as_ref()?.container_statuses.as_ref()?;
        let failed = statuses
            .iter()
            .find(|s| ended(s).is_some_and(|ended| ended.exit_code != 0));
        let own = statuses.iter().find(|status| status.name == *name);
        match own {
            Some(own) if ended(own).is_some_and(|ended| ended.exit_code == 0) => {
                failed.or(Some(own))
            }
            own => own,
        }
    }
}

fn ended(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let state: &ContainerState = status.state.as_ref()?;
    state.terminated.as_ref()
}

/// The job that a pod says it belongs to.
pub fn job_name(pod: &Pod) -> Option<&str> {
    pod.metadata
        .labels
        .as_ref()?
        .get(JOB_LABEL)
        .map(String::as_str)
}
