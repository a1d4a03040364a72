//! What clients ask of a pod, done.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::super::exec::ExecRun;
use super::super::protocol::{ContainerUsage, Request, Response};
use super::super::run::{Run, hold, with_cause};
use super::{Phase, Supervisor};
use crate::cgroup::CgroupSpec;

const EXECS_MAX: usize = 32;
/// A grace period longer than this is a mistake; a day is more than any checkpoint takes.
const GRACE_MAX: Duration = Duration::from_secs(24 * 3600);
const TIMEOUT_MAX: Duration = GRACE_MAX;

impl Supervisor {
    /// Does what is asked. `None` if the answer comes later, through `answer`.
    pub(super) fn answer(
        &mut self,
        request: Request,
        answer: &SyncSender<Response>,
    ) -> Option<Response> {
        let now = Instant::now();
        let done = match request {
            Request::Watch => Err("`watch` is answered elsewhere".to_owned()),
            Request::Stop {
                grace_seconds,
                reason,
            } => {
                self.stop(Duration::from_secs(grace_seconds), reason, now);
                Ok(Response::Done)
            }
            Request::Restart {
                container,
                grace_seconds,
            } => self.running(&container).map(|(slot, run)| {
                let grace = Duration::from_secs(grace_seconds).min(GRACE_MAX);
                run.ask_to_end(slot.stop_signal, now + grace);
                *slot.restart_wanted = true;
                Response::Done
            }),
            Request::Kill { container, reason } => {
                let orphans = self.orphans();
                self.running(&container).map(|(_, run)| {
                    run.kill_reason = Some((reason, None));
                    run.kill(&orphans);
                    Response::Done
                })
            }
            Request::SetMemoryLimit { container, bytes } => {
                self.set_memory_limit(&container, bytes)
            }
            Request::Usage => Ok(self.usage()),
            Request::Exec {
                container,
                argv,
                timeout_ms,
            } => match self.exec(
                &container,
                argv,
                Duration::from_millis(timeout_ms).min(TIMEOUT_MAX),
                answer,
            ) {
                Ok(()) => return None,
                Err(message) => Err(message),
            },
        };
        Some(done.unwrap_or_else(|message| Response::Error { message }))
    }

    fn stop(&mut self, grace: Duration, reason: String, now: Instant) {
        if self.stop_reason.is_none() {
            // What ended by itself just now was not stopped by us.
            self.collect_children();
            self.cut_short = self.has_work_left();
            self.stop_reason = Some(reason);
        }
        self.stopping = true;
        let kill_at = now + grace.min(GRACE_MAX);
        for slot in &mut self.slots {
            match &mut slot.phase {
                Phase::Active(run) => run.ask_to_end(slot.spec.stop_signal, kill_at),
                Phase::Backoff { .. } => {
                    // It ended already and will not be started again.
                    slot.phase = slot.last.take().map_or(Phase::Idle, Phase::Done);
                }
                Phase::Idle | Phase::Done(_) => {}
            }
        }
    }

    fn running(&mut self, container: &str) -> Result<(Handle<'_>, &mut Run), String> {
        let slot = self
            .slots
            .iter_mut()
            .find(|slot| slot.spec.name == container);
        let slot = slot.ok_or_else(|| format!("there is no container {container:?}"))?;
        match &mut slot.phase {
            Phase::Active(run) if run.is_running() => Ok((
                Handle {
                    stop_signal: slot.spec.stop_signal,
                    restart_wanted: &mut slot.restart_wanted,
                },
                run,
            )),
            _ => Err(format!("container {container:?} is not running")),
        }
    }

    fn set_memory_limit(&mut self, container: &str, bytes: u64) -> Result<Response, String> {
        let slot = self
            .slots
            .iter_mut()
            .find(|slot| slot.spec.name == container);
        let slot = slot.ok_or_else(|| format!("there is no container {container:?}"))?;
        let before = slot.spec.memory_limit_bytes.replace(bytes);
        if let Phase::Active(run) = &slot.phase
            && let Some(cgroup) = &run.cgroup
        {
            if let Err(error) = cgroup.set_memory_limit(bytes) {
                slot.spec.memory_limit_bytes = before;
                return Err(with_cause(&error));
            }
            hold(cgroup, &slot.spec);
        }
        Ok(Response::Done)
    }

    fn usage(&mut self) -> Response {
        let orphans = self.orphans();
        let mut containers = Vec::new();
        for slot in &mut self.slots {
            let Phase::Active(run) = &mut slot.phase else {
                continue;
            };
            let Ok(memory) = run.sample(slot.spec.memory_limit_bytes, &orphans) else {
                continue;
            };
            containers.push(ContainerUsage {
                name: slot.spec.name.clone(),
                memory,
                cpu_usec: run.cgroup.as_ref().and_then(CgroupSpec::cpu_usec),
            });
        }
        Response::Usage { containers }
    }

    fn exec(
        &mut self,
        container: &str,
        argv: Vec<String>,
        timeout: Duration,
        answer: &SyncSender<Response>,
    ) -> Result<(), String> {
        if self.execs.len() >= EXECS_MAX {
            return Err(format!(
                "{EXECS_MAX} commands are running in this pod already"
            ));
        }
        let index = self
            .slots
            .iter()
            .position(|slot| slot.spec.name == container);
        let index = index.ok_or_else(|| format!("there is no container {container:?}"))?;
        let slot = &self.slots[index];
        let run = match &slot.phase {
            Phase::Active(run) if run.is_running() => run,
            _ => return Err(format!("container {container:?} is not running")),
        };
        self.exec_number += 1;
        let mut spec = slot.spec.clone();
        spec.argv = argv;
        let exec = ExecRun::start(
            self.exec_number,
            index,
            &self.spec,
            spec,
            run,
            timeout,
            answer.clone(),
            &self.events,
        )
        .map_err(|error| format!("cannot start a process: {error}"))?;
        self.execs.push(exec);
        let _ = self.spawned.send(());
        Ok(())
    }
}

/// What a request may change of a slot besides its run.
struct Handle<'a> {
    stop_signal: Option<i32>,
    restart_wanted: &'a mut bool,
}
