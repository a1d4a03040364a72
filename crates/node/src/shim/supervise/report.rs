//! What is told of a pod: to the disk first, then to whoever watches.

use std::time::{Duration, Instant};

use super::super::protocol::{ContainerState, ContainerStatus, Exit, ShimStatus, VERSION, reason};
use super::super::{Durable, FileError, STATUS_FILE, write_json};
use super::{Phase, Slot, Supervisor};

/// How often a status that could not be written is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

impl Supervisor {
    /// The first status, before anything is started.
    pub(in crate::shim) fn announce(&mut self) -> Result<(), FileError> {
        let status = self.status();
        write_json(&self.dir.join(STATUS_FILE), &status, Durable::No)?;
        self.board.post(&status);
        self.written = Some(status);
        Ok(())
    }

    /// Writes and posts the status, if it changed.
    pub(super) fn publish(&mut self, now: Instant) {
        let status = self.status();
        if self.written.as_ref() == Some(&status) {
            self.write_again_at = None;
            return;
        }
        if self.write_again_at.is_some_and(|at| now < at) {
            return;
        }
        // After a power cut the processes are gone anyway; only how something ended could not be found out again.
        let durable = if ends(&status) == self.written.as_ref().map(ends).unwrap_or_default()
            && !status.finished
        {
            Durable::No
        } else {
            Durable::Yes
        };
        match write_json(&self.dir.join(STATUS_FILE), &status, durable) {
            Ok(()) => {
                self.board.post(&status);
                self.written = Some(status);
                self.write_again_at = None;
            }
            Err(error) => {
                eprintln!(
                    "{error}: {}",
                    std::error::Error::source(&error)
                        .map(ToString::to_string)
                        .unwrap_or_default()
                );
                self.write_again_at = Some(now + WRITE_AGAIN);
            }
        }
    }

    fn status(&self) -> ShimStatus {
        let of = |is_init: bool| {
            let slots = self
                .slots
                .iter()
                .filter(move |slot| slot.is_init == is_init);
            slots.map(|slot| self.slot_status(slot)).collect()
        };
        ShimStatus {
            version: VERSION,
            pid: std::process::id(),
            finished: self.finished,
            stop_reason: self.stop_reason.clone(),
            cut_short: self.cut_short,
            init: of(true),
            containers: of(false),
        }
    }

    fn slot_status(&self, slot: &Slot) -> ContainerStatus {
        let waiting = |reason: &str, message| ContainerState::Waiting {
            reason: reason.to_owned(),
            message,
        };
        let state = match &slot.phase {
            Phase::Idle if self.spec.init.is_empty() => waiting(reason::CONTAINER_CREATING, None),
            Phase::Idle => waiting(reason::POD_INITIALIZING, None),
            Phase::Backoff { wait, .. } => {
                let message = format!(
                    "held back for {} s after it ended again",
                    wait.as_secs_f32()
                );
                waiting(reason::CRASH_LOOP_BACK_OFF, Some(message))
            }
            Phase::Active(run) => match run.started_at {
                Some(started_at) => ContainerState::Running {
                    pid: run.pid,
                    started_at,
                },
                None => waiting(reason::CONTAINER_CREATING, None),
            },
            Phase::Done(exit) => ContainerState::Terminated(exit.clone()),
        };
        ContainerStatus {
            name: slot.spec.name.clone(),
            restart_count: slot.restart_count,
            state,
            last: slot.last.clone(),
            oom_kills: match &slot.phase {
                Phase::Active(run) => run.oom_kills,
                _ => 0,
            },
            memory_limit_bytes: slot.spec.memory_limit_bytes,
        }
    }
}

/// Every end that a status tells of.
fn ends(status: &ShimStatus) -> Vec<&Exit> {
    let containers = status.init.iter().chain(&status.containers);
    containers
        .flat_map(|container| {
            let current = match &container.state {
                ContainerState::Terminated(exit) => Some(exit),
                _ => None,
            };
            [container.last.as_ref(), current]
        })
        .flatten()
        .collect()
}
