//! A job's pods, read as workers: which attempt and rank they are, how far they got, and what ended them.

use jiff::{SignedDuration, Timestamp};
use stoke_api::digest::ContainerDigest;
use stoke_api::names::{STAGED_REASON, STAGING_FAILED_REASON, STAGING_REASON};
use stoke_api::{Bytes, TrainJob};
use stoke_memory::{End, Evidence, Terminated, may_still_start};

use crate::seen::{self, ContainerState, ContainerStatus, Pod, PodCondition};

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

/// What keeps a worker from starting and is seldom over by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// The scheduler does not let it onto the one node that it is for.
    Unschedulable,
    /// Its node can make nothing of what its pod says.
    Unstartable,
}

impl<'a> Worker<'a> {
    /// None for a pod that is not the job's.
    pub fn of(job: &TrainJob, pod: &'a Pod) -> Option<Self> {
        let uid = job.metadata.uid.as_deref()?;
        if !pod.metadata.owners.iter().any(|owner| **owner == *uid) {
            return None;
        }
        Some(Self {
            attempt: pod.metadata.attempt?,
            rank: pod.metadata.rank?,
            pod,
        })
    }

    pub fn uid(&self) -> &'a str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &'a str {
        &self.pod.metadata.name
    }

    pub fn stage(&self) -> Stage {
        match self.pod.status.phase.as_deref() {
            Some("Running") => self.outlived_by_others().unwrap_or(Stage::Running),
            Some("Succeeded") => Stage::Succeeded,
            Some("Failed") => Stage::Failed,
            _ => Stage::Waiting,
        }
    }

    /// Where other containers of the template run on after the worker's own has ended, its end is the end.
    fn outlived_by_others(&self) -> Option<Stage> {
        let several = self.pod.spec.containers.len() > 1;
        let code = self.terminated().filter(|_| several)?.exit_code;
        Some(if code == 0 {
            Stage::Succeeded
        } else {
            Stage::Failed
        })
    }

    pub fn is_finished(&self) -> bool {
        self.pod.is_finished()
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
        let time = match &self.container()?.state {
            ContainerState::Running(started) => started.as_ref(),
            ContainerState::Terminated(ended) => ended.started_at.as_ref(),
            ContainerState::Waiting(_) | ContainerState::Unknown => None,
        };
        time.map(|time| time.0)
    }

    pub fn finished_at(&self) -> Option<Timestamp> {
        self.terminated()?.finished_at.as_ref().map(|time| time.0)
    }

    pub fn exit_code(&self) -> Option<i32> {
        self.terminated().map(|ended| ended.exit_code)
    }

    /// Why it does not run yet, as its node or the scheduler says.
    pub fn waits_for(&self) -> Option<String> {
        let (reason, message) = self.wait()?;
        Some(if message.is_empty() {
            reason.to_owned()
        } else {
            format!("{reason}: {message}")
        })
    }

    /// The same, where it is not what every worker goes through. A kubelet that tries an image again and again says so in two ways in
    /// turn; here it is one, lest the job's status be written each time.
    pub fn trouble(&self) -> Option<String> {
        let (reason, message) = self.wait()?;
        match reason {
            "ContainerCreating" | "PodInitializing" => None,
            STAGING_REASON => Some(message.to_owned()),
            "ErrImagePull" | "ImagePullBackOff" => {
                let (_, cause) = message
                    .split_once("ErrImagePull: ")
                    .unwrap_or(("", message));
                Some(format!("its image cannot be pulled: {cause}"))
            }
            _ => self.waits_for(),
        }
    }

    /// Its node copies a dataset, and is as far as it says; who says it is who runs the pod, so it is alive.
    pub fn is_staging(&self) -> bool {
        let reason = self.wait().map(|(reason, _)| reason);
        reason == Some(STAGING_REASON) && self.pod.metadata.staging.is_none()
    }

    /// When another than who runs the pod last said how far its data is. It may be no more.
    pub fn last_heard_of_data(&self) -> Option<Timestamp> {
        self.pod.metadata.staging.as_ref()?.at
    }

    /// It is on its node, and nobody there has said anything of the data that it needs first.
    pub fn awaits_data(&self) -> bool {
        let is_first = self.pod.status.phase.as_deref() == Some("Pending")
            && self.pod.spec.node_name.is_some()
            && !self.pod.status.has_sandbox;
        is_first && self.pod.metadata.staging.is_none() && self.trouble().is_none()
    }

    /// That failed, and its node tries again.
    pub fn stages_again(&self) -> bool {
        self.wait()
            .is_some_and(|(reason, _)| reason == STAGING_FAILED_REASON)
    }

    /// Reason and message.
    fn wait(&self) -> Option<(&'a str, &'a str)> {
        let status = &self.pod.status;
        let inits = status.init_container_statuses.iter();
        let waiting = inits
            .chain(&status.container_statuses)
            .filter_map(|container| match &container.state {
                ContainerState::Waiting(waiting) => Some(waiting),
                _ => None,
            })
            .find(|waiting| waiting.reason.as_deref() != Some("PodInitializing"));
        let text = |text: &'a Option<Box<str>>| text.as_deref().unwrap_or_default();
        let is_usual =
            waiting.is_none_or(|waiting| waiting.reason.as_deref() == Some("ContainerCreating"));
        if is_usual
            && status.phase.as_deref() == Some("Pending")
            && let Some(told) = self.pod.metadata.staging.as_deref()
            && told.staging.reason != STAGED_REASON
        {
            return Some((&told.staging.reason, &told.staging.message));
        }
        if let Some(waiting) = waiting {
            return Some((text(&waiting.reason), text(&waiting.message)));
        }
        let unscheduled = self.unscheduled()?;
        Some((text(&unscheduled.reason), text(&unscheduled.message)))
    }

    fn unscheduled(&self) -> Option<&'a PodCondition> {
        let mut conditions = self.pod.status.conditions.iter();
        conditions.find(|condition| *condition.type_ == *"PodScheduled")
    }

    /// What holds it back, and since when, where that is known. Not that its volumes are being made, which takes its time.
    pub fn hold(&self) -> Option<(Hold, Option<Timestamp>)> {
        let (reason, message) = self.wait().filter(|_| self.stage() == Stage::Waiting)?;
        let provisioning = message.contains("unbound immediate PersistentVolumeClaims");
        match reason {
            STAGING_REASON => None,
            "Unschedulable" if !provisioning => {
                let since = self.unscheduled()?.last_transition_time.as_ref();
                Some((Hold::Unschedulable, since.map(|time| time.0)))
            }
            word if !may_still_start(word) => {
                let since = self.pod.status.since.as_ref();
                Some((Hold::Unstartable, since.map(|time| time.0)))
            }
            _ => None,
        }
    }

    /// Its node is about to start it, and pulls its image by now.
    pub fn is_pulling(&self) -> bool {
        self.pod.status.has_sandbox && self.trouble().is_none()
    }

    /// When someone deleted it.
    pub fn stop_asked(&self) -> Option<Timestamp> {
        let due = self.stop_due()?;
        let grace = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let asked = due.saturating_sub(SignedDuration::from_secs(grace));
        Some(asked.unwrap_or(due))
    }

    /// Was it deleted before it ended? Then the end is of that doing.
    fn was_stopped(&self) -> bool {
        let ended = self.finished_at();
        self.stop_asked()
            .is_some_and(|asked| ended.is_none_or(|ended| ended >= asked))
    }

    /// That it does nothing, and what was seen.
    pub fn idle(&self) -> Option<&'a str> {
        let mut conditions = self.pod.status.conditions.iter();
        let idle = conditions.find(|it| *it.type_ == *seen::IDLE)?;
        idle.message.as_deref()
    }

    /// Something is about to take it away: why, in a word and in a sentence.
    pub fn disruption(&self) -> Option<(&'a str, &'a str)> {
        let mut conditions = self.pod.status.conditions.iter();
        let condition = conditions.find(|it| *it.type_ == *"DisruptionTarget")?;
        let text = |text: &'a Option<Box<str>>| text.as_deref().unwrap_or_default();
        Some((text(&condition.reason), text(&condition.message)))
    }

    /// What is known of its end. `end` is what the caller knows beyond the pod itself.
    pub fn evidence(&self, end: Option<End>) -> Evidence {
        let text = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
        let status = &self.pod.status;
        let owned = |(reason, message): (&str, &str)| (reason.to_owned(), message.to_owned());
        let disruption = self.disruption().map(owned);
        let stopped = if self.was_stopped() {
            End::Deleted
        } else {
            End::Ended
        };
        let digest = self.pod.metadata.digest.as_deref();
        let peak = digest.map(|digest| Bytes(digest.peak_bytes));
        Evidence {
            rank: self.rank,
            node: self.pod.node().unwrap_or_default().to_owned(),
            end: end.unwrap_or(stopped),
            pod_reason: text(&status.reason),
            pod_message: match &status.message {
                Some(message) => message.as_ref().to_owned(),
                None => self.waits_for().unwrap_or_default(),
            },
            disruption,
            container: self.failed_container(),
            peak: peak.filter(|peak| peak.0 > 0),
            oom_kills: digest.map_or(0, |digest| digest.oom_kills),
            kernel: self
                .pod
                .metadata
                .kernel
                .iter()
                .map(ToString::to_string)
                .collect(),
            uid: text(&self.pod.metadata.uid),
            ..Evidence::default()
        }
    }

    pub fn is_measured(&self) -> bool {
        self.pod.metadata.digest.is_some()
    }

    /// What its node measured of the worker from its start to its end.
    pub fn digest(&self) -> Option<&'a ContainerDigest> {
        let digest = self.pod.metadata.digest.as_deref();
        digest.filter(|digest| digest.samples > 0)
    }

    /// The worker container's end, or that of the init container that kept it from starting.
    pub fn failed_container(&self) -> Option<Terminated> {
        let inits = self.pod.status.init_container_statuses.iter();
        let failed_init = inits
            .filter_map(|init| Some((init, ended(init)?)))
            .find(|(_, ended)| ended.exit_code != 0);
        let (container, ended) = match failed_init {
            Some(found) => found,
            None => (self.container()?, self.terminated()?),
        };
        let text = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
        Some(Terminated {
            name: container.name.as_ref().to_owned(),
            exit_code: ended.exit_code,
            signal: ended.signal,
            reason: text(&ended.reason),
            message: text(&ended.message),
        })
    }

    fn terminated(&self) -> Option<&'a seen::Terminated> {
        self.container().and_then(ended)
    }

    /// The status of the worker container, which is the first of the pod; of several, the one that failed says more.
    fn container(&self) -> Option<&'a ContainerStatus> {
        let name = self.pod.spec.containers.first()?;
        let statuses = &self.pod.status.container_statuses;
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

fn ended(status: &ContainerStatus) -> Option<&seen::Terminated> {
    match &status.state {
        ContainerState::Terminated(ended) => Some(ended),
        _ => None,
    }
}
