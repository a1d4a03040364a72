//! The first thing a pod's task does: find out whether the pod is new, runs already, or has ended.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kube::ResourceExt;
use stoke_api::names::GPU_DEVICES_ANNOTATION;

use super::{Next, Worker};
use crate::causes::chain;
use crate::pod_dir::{LAYOUT_VERSION, Record};
use crate::resources;
use crate::shim::protocol::{ContainerState, ShimStatus, reason};
use crate::shim::{self, Life};
use crate::status::{self, Fate, Health, Phase, Resize};

impl Worker {
    pub(super) async fn begin(&mut self) -> Next {
        let record = self.dir.read_record().unwrap_or_else(|error| {
            tracing::warn!(pod = self.pod.name_any(), error = %chain(&error), "what was known of a pod cannot be read");
            None
        });
        let life = shim::life(self.dir.path()).unwrap_or(Life::Gone);
        match (record, life) {
            (None, Life::Gone) if has_begun(&self.pod, self.dir.path()) => {
                self.take_over(self.guessed_record());
                self.resume().await
            }
            (None, Life::Gone) => {
                self.dir.keep_secrets_in(self.found_secrets_dir());
                self.accept()
            }
            (record, Life::Running) => {
                self.take_over(record.unwrap_or_else(|| self.guessed_record()));
                self.book();
                Next::Supervise
            }
            (Some(record), Life::Gone) => {
                self.take_over(record);
                self.resume().await
            }
        }
    }

    /// Books what a pod that runs, or is about to run again, was granted. One that has ended must hold nothing, not even
    /// for the moment it takes to find that out.
    fn book(&mut self) {
        let held = resources::requests(&self.pod_as_granted()).unwrap_or_default();
        let ids = self
            .record
            .as_ref()
            .map(|record| record.gpus.clone())
            .unwrap_or_default();
        self.gpus = self.shared.ledger().restore(&self.uid, held, &ids);
    }

    /// A pod the node accepted before: its decisions stand.
    fn take_over(&mut self, record: Record) {
        self.fate.clone_from(&record.fate);
        self.dir.keep_secrets_in(record.secrets.clone());
        self.record = Some(record);
        self.health = recorded_health(&self.pod);
        // A resize may have been granted and not yet put in force; supervising finds out.
        self.resize = Some(Resize::InProgress(None));
    }

    fn found_secrets_dir(&self) -> Option<PathBuf> {
        self.own_secrets_dir().filter(|dir| dir.is_dir())
    }

    /// After a power cut, a record can be lost though the pod ran: what the API remembers stands in.
    fn guessed_record(&self) -> Record {
        Record {
            version: LAYOUT_VERSION,
            accepted_at: self
                .pod
                .creation_timestamp()
                .map_or_else(Timestamp::now, |time| time.0),
            gpus: chosen_gpus(&self.pod).unwrap_or_default(),
            granted: resources::asked(&self.pod),
            fate: None,
            secrets: self.found_secrets_dir(),
        }
    }

    /// A pod whose shim is not there: not started yet, ended, or lost.
    pub(super) async fn resume(&mut self) -> Next {
        let dir = self.dir.path().to_owned();
        let settled = tokio::task::spawn_blocking(move || shim::settle(&dir)).await;
        self.shim = match settled {
            Ok(Ok(status)) => status,
            // It may have run, and nothing may run twice that is not meant to.
            Ok(Err(error)) => {
                self.condemn(Fate::Lost {
                    message: chain(&error),
                });
                None
            }
            Err(error) => {
                self.condemn(Fate::Lost {
                    message: error.to_string(),
                });
                None
            }
        };
        let ran = status::recorded_phase(&self.pod) == Some(Phase::Running);
        if self.shim.is_none() && ran {
            let message = "the pod ran, and nothing on the node tells what became of it";
            self.condemn(Fate::Lost {
                message: message.to_owned(),
            });
        }
        let over = self.fate.is_some() || self.is_leaving();
        let policy = self
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref());
        let goes_on = self
            .shim
            .as_ref()
            .is_none_or(|status| was_interrupted(status, policy.unwrap_or("Always")));
        if over || !goes_on {
            return Next::End;
        }
        if self.shim.is_some() {
            tracing::info!(
                pod = self.pod.name_any(),
                "a pod's shim was lost; the pod is started again"
            );
        }
        self.book();
        Next::Start
    }

    /// A pod seen for the first time: is there room for it?
    fn accept(&mut self) -> Next {
        let is_over = status::recorded_phase(&self.pod).is_some_and(Phase::is_terminal);
        if is_over || self.is_leaving() {
            return Next::End;
        }
        let granted = resources::asked(&self.pod);
        let admitted = match resources::requests(&self.pod) {
            Ok(asked) => {
                let chosen = chosen_gpus(&self.pod);
                let admitted = self
                    .shared
                    .ledger()
                    .admit(&self.uid, &asked, chosen.as_deref());
                admitted.map_err(|rejection| (rejection.reason, rejection.message))
            }
            Err(error) => Err(("UnexpectedAdmissionError".to_owned(), error.to_string())),
        };
        match admitted {
            Ok(gpus) => {
                self.record = Some(Record {
                    version: LAYOUT_VERSION,
                    accepted_at: Timestamp::now(),
                    gpus: gpus.iter().map(|gpu| gpu.id.clone()).collect(),
                    granted,
                    fate: None,
                    secrets: None,
                });
                self.gpus = gpus;
                Next::Start
            }
            Err((reason, message)) => {
                tracing::warn!(
                    pod = self.pod.name_any(),
                    reason,
                    message,
                    "a pod was turned away"
                );
                self.shared
                    .events
                    .warning(&self.about, "FailedAdmission", message.clone());
                self.condemn(Fate::Rejected { reason, message });
                Next::End
            }
        }
    }
}

/// The GPUs somebody chose for the pod, or that it was given before: indices or ids.
fn chosen_gpus(pod: &k8s_openapi::api::core::v1::Pod) -> Option<Vec<String>> {
    let text = pod.annotations().get(GPU_DEVICES_ANNOTATION)?;
    Some(
        text.split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    )
}

/// What the probes had found before, so that a restarted engine does not make ready pods unready for a while.
fn recorded_health(
    pod: &k8s_openapi::api::core::v1::Pod,
) -> std::collections::BTreeMap<String, Health> {
    let statuses = pod
        .status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten());
    statuses
        .map(|status| {
            (
                status.name.clone(),
                Health {
                    started: status.started == Some(true),
                    ready: status.ready,
                },
            )
        })
        .collect()
}

/// Whether a pod without a record has been started all the same: its shim, or the API, remembers.
fn has_begun(pod: &k8s_openapi::api::core::v1::Pod, dir: &Path) -> bool {
    match status::recorded_phase(pod) {
        Some(Phase::Succeeded | Phase::Failed) => false,
        Some(Phase::Running) => true,
        // A status that cannot be read was still written.
        Some(Phase::Pending) | None => !matches!(shim::read_status(dir), Ok(None)),
    }
}

/// Whether a pod whose shim is gone has something left to run.
fn was_interrupted(status: &ShimStatus, restart_policy: &str) -> bool {
    if status.stop_reason.is_some() {
        return false;
    }
    let never_ran = |state: &ContainerState| matches!(state, ContainerState::Waiting { .. });
    let lost = |state: &ContainerState| {
        never_ran(state)
            || matches!(state, ContainerState::Terminated(exit) if exit.reason == reason::CONTAINER_STATUS_UNKNOWN)
    };
    if restart_policy != "Never" {
        return status
            .init
            .iter()
            .chain(&status.containers)
            .any(|container| lost(&container.state));
    }
    // Nothing may run twice, so only a pod that has not begun its work can go on.
    let untouched = status
        .containers
        .iter()
        .all(|container| never_ran(&container.state) && container.last.is_none());
    let init_is_well = status.init.iter().all(|container| {
        never_ran(&container.state)
            || matches!(&container.state, ContainerState::Terminated(exit) if exit.exit_code == 0)
    });
    untouched && init_is_well
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::protocol::{ContainerStatus, Exit, VERSION};

    fn ended(code: i32, reason: &str) -> ContainerState {
        ContainerState::Terminated(Exit {
            exit_code: code,
            signal: None,
            oom_killed: false,
            reason: reason.to_owned(),
            message: None,
            started_at: None,
            finished_at: Timestamp::UNIX_EPOCH,
            peak_memory_bytes: None,
            oom_kills: 0,
        })
    }

    fn waiting() -> ContainerState {
        ContainerState::Waiting {
            reason: "PodInitializing".to_owned(),
            message: None,
        }
    }

    fn status(init: Vec<ContainerState>, containers: Vec<ContainerState>) -> ShimStatus {
        let named = |states: Vec<ContainerState>| {
            let container = |(position, state): (usize, ContainerState)| ContainerStatus {
                name: position.to_string(),
                restart_count: 0,
                state,
                last: None,
                oom_kills: 0,
                memory_limit_bytes: None,
            };
            states.into_iter().enumerate().map(container).collect()
        };
        ShimStatus {
            version: VERSION,
            pid: 1,
            finished: true,
            stop_reason: None,
            cut_short: false,
            init: named(init),
            containers: named(containers),
        }
    }

    #[test]
    fn a_pod_without_a_record_is_new_only_if_nothing_remembers_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let begun = |phase: Option<&str>| {
            let pod = serde_json::json!({"metadata": {}, "status": {"phase": phase}});
            has_begun(&serde_json::from_value(pod).expect("a pod"), dir.path())
        };
        let all = || [None, Some("Pending"), Some("Running"), Some("Failed")].map(begun);
        assert_eq!(all(), [false, false, true, false], "no status on disk");
        std::fs::write(dir.path().join("status.json"), b"{").expect("written");
        assert_eq!(all(), [true, true, true, false], "even a torn status tells");
    }

    #[test]
    fn a_lost_pod_goes_on_if_its_policy_says_so() {
        let lost = || ended(137, reason::CONTAINER_STATUS_UNKNOWN);
        let table = [
            (
                "lost while running",
                status(vec![], vec![lost()]),
                [true, true, false],
            ),
            (
                "one lost, one done",
                status(vec![], vec![lost(), ended(0, "Completed")]),
                [true, true, false],
            ),
            (
                "ended by itself",
                status(vec![], vec![ended(1, "Error")]),
                [false, false, false],
            ),
            (
                "done",
                status(vec![], vec![ended(0, "Completed")]),
                [false, false, false],
            ),
            (
                "lost before it began",
                status(vec![], vec![waiting()]),
                [true, true, true],
            ),
            (
                "lost between init and work",
                status(vec![ended(0, "Completed")], vec![waiting()]),
                [true, true, true],
            ),
            (
                "lost in init",
                status(vec![lost()], vec![waiting()]),
                [true, true, false],
            ),
        ];
        for (what, status, expected) in table {
            for (policy, expected) in ["Always", "OnFailure", "Never"].into_iter().zip(expected) {
                assert_eq!(
                    was_interrupted(&status, policy),
                    expected,
                    "{what}, {policy}"
                );
            }
            let stopped = ShimStatus {
                stop_reason: Some("Deleted".to_owned()),
                ..status
            };
            assert!(
                !was_interrupted(&stopped, "Always"),
                "{what}, but it was told to stop"
            );
        }
    }
}
