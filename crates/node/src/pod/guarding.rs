//! What the node does for a pod whose memory runs out, and what it tells of what a run used.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use stoke_api::Bytes;
use stoke_api::names::{
    CHECKPOINT_REQUEST_ANNOTATION, JOB_LABEL, MEMORY_DIGEST_ANNOTATION, MEMORY_RISK_ANNOTATION,
};
use stoke_memory::guard::Action;

use super::Worker;
use super::watched::Deed;
use crate::causes::chain;
use crate::kernel_log::{self, Victim};
use crate::resources::{self, MEMORY};
use crate::shim::protocol::{ContainerState, ContainerStatus, Exit, ShimStatus, reason};
use crate::status::{Resize, bare_container_id};
use crate::vigil;

const SIGKILL: i32 = 9;

impl Worker {
    /// Does what the guard of a container asks for: first what helps, then the telling.
    pub(super) async fn act(&mut self, deed: Deed) {
        if self.fate.is_some() || self.is_leaving() {
            return;
        }
        let Deed { container, action } = deed;
        tracing::info!(pod = self.pod.name_any(), container, "{action}");
        match &action {
            Action::Raise { to, .. } | Action::GiveBack { to, .. } => {
                if let Err(why) = self.resize_memory(&container, *to).await {
                    tracing::warn!(
                        pod = self.pod.name_any(),
                        container,
                        why,
                        "a memory limit is not changed"
                    );
                    self.watched.refused(&container, why);
                    return;
                }
            }
            Action::AskCheckpoint { .. } | Action::AskInTime { .. } => {
                if !self.ask_for_checkpoint(&action.to_string()).await {
                    self.watched.ask_again(&container);
                    return;
                }
            }
            Action::Calm => {}
        }
        let now = Timestamp::now();
        let before = self.risk.as_ref();
        let risk = self
            .watched
            .of(&container, |vigil| vigil.risk(&action, before, now))
            .flatten();
        if risk.is_some() || action == Action::Calm {
            self.risk = risk;
        }
    }

    /// Changes a limit. What is not given now is asked for no more, or it would be given when nobody needs it.
    async fn resize_memory(&mut self, container: &str, bytes: u64) -> Result<(), String> {
        let before = self.container(container).and_then(resources::memory_limit);
        self.ask_for_memory(container, bytes).await?;
        let Some(why) = objection(self.resize.as_ref()) else {
            return Ok(());
        };
        if let Some(before) = before {
            self.ask_for_memory(container, before).await?;
        }
        Err(why)
    }

    /// As anyone would, through the API, so that what it says is what is in force.
    async fn ask_for_memory(&mut self, container: &str, bytes: u64) -> Result<(), String> {
        let amount = json!({MEMORY: Bytes(bytes).to_string()});
        let mut resources = json!({"limits": amount});
        if resources::qos_class(&self.pod) == "Guaranteed" {
            resources["requests"] = amount;
        }
        let patch = json!({"spec": {"containers": [{"name": container, "resources": resources}]}});
        let name = self.pod.name_any();
        let patched = self
            .pods()
            .patch_subresource(
                "resize",
                &name,
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await;
        self.pod = Arc::new(patched.map_err(|error| chain(&error))?);
        self.consider_resize().await;
        Ok(())
    }

    /// Shows the program that a checkpoint is wanted. What it sees is new with each request. False if that failed.
    async fn ask_for_checkpoint(&mut self, why: &str) -> bool {
        let text = format!("{} {why}", Timestamp::now());
        let asked = self
            .annotate(CHECKPOINT_REQUEST_ANNOTATION, Some(text))
            .await;
        self.show_requests().await;
        asked
    }

    /// Brings what the program is asked for to where it looks, if that has changed.
    pub(super) async fn show_requests(&mut self) {
        if !self.is_request_shown() && self.refresh_files().await {
            self.request_shown = self.request().cloned();
        }
    }

    pub(super) fn is_request_shown(&self) -> bool {
        self.request() == self.request_shown.as_ref()
    }

    fn request(&self) -> Option<&String> {
        self.pod.annotations().get(CHECKPOINT_REQUEST_ANNOTATION)
    }

    /// Says how it stands with the worker's memory, if that is not what is said: that it is in danger, that it climbs or leaks, or that the
    /// machine as a whole runs out, which is for the operator to settle, who knows whom it would harm least. False if that must be tried
    /// again.
    pub(super) async fn tell_risk(&mut self) -> bool {
        let now = Timestamp::now();
        self.risk = self.watched.forewarning(self.risk.as_ref(), now);
        self.watched.note_risk(self.risk.as_ref());
        let is_of_job = self.pod.labels().contains_key(JOB_LABEL);
        let shortage = self.shared.commons.found().filter(|_| is_of_job);
        let (own, told) = (self.risk.as_ref(), self.risk_told.as_ref());
        let risk = vigil::said(shortage.as_ref(), own, told, now);
        if risk == self.risk_told {
            return true;
        }
        let text = risk
            .as_ref()
            .and_then(|risk| serde_json::to_string(risk).ok());
        let is_told = self.annotate(MEMORY_RISK_ANNOTATION, text).await;
        if is_told {
            self.risk_told = risk;
        }
        is_told
    }

    /// Tells what the runs that have ended used, before their end is told: who hears of the end wants to know.
    pub(super) async fn tell_digests(&mut self, status: &ShimStatus) -> bool {
        if !self.pod.labels().contains_key(JOB_LABEL) {
            return true;
        }
        let mut has_ended = false;
        for container in &status.containers {
            let Some((run, exit)) = last_end(container) else {
                continue;
            };
            let id = bare_container_id(&self.uid, &container.name, run);
            let told = self.digests.containers.get(&container.name);
            if told.is_some_and(|told| told.id == id) {
                continue;
            }
            has_ended = true;
            if is_a_kill(exit) {
                self.hear_kernel(&container.name, exit).await;
            }
            if let Some(digest) = self.watched.end(&container.name, &id, exit) {
                self.digests
                    .containers
                    .insert(container.name.clone(), digest);
                self.digests_told = false;
            }
        }
        if has_ended {
            // What it saved last, perhaps on our own request, is not to be lost with it.
            self.publish_checkpoint(status.is_running()).await;
        }
        if !self.digests_told
            && let Ok(text) = serde_json::to_string(&self.digests)
        {
            self.digests_told = self.annotate(MEMORY_DIGEST_ANNOTATION, Some(text)).await;
        }
        self.digests_told
    }

    /// What the kernel said of a container that it may have killed, for whoever judges its end.
    async fn hear_kernel(&mut self, container: &str, exit: &Exit) {
        let before = self
            .shim
            .as_ref()
            .and_then(|shim| shim.container(container));
        let pid = before.and_then(|before| match before.state {
            ContainerState::Running { pid, .. } => Some(pid),
            _ => None,
        });
        let age = exit
            .started_at
            .map(|started| Timestamp::now().duration_since(started));
        let victim = Victim {
            uid: self.uid.clone(),
            pid,
            age: age.unwrap_or_default().unsigned_abs(),
        };
        let reading = move || kernel_log::kills_of(&victim, Path::new(kernel_log::DEVICE));
        let lines = tokio::task::spawn_blocking(reading).await;
        let lines = lines.unwrap_or_default();
        if !lines.is_empty() && lines != self.digests.kernel {
            self.digests.kernel = lines;
            self.digests_told = false;
        }
    }
}

/// Was it killed by the kernel, or by nobody who says so?
fn is_a_kill(exit: &Exit) -> bool {
    let by_nobody = exit.signal == Some(SIGKILL) && exit.reason == reason::ERROR;
    exit.oom_killed || exit.oom_kills > 0 || by_nobody
}

/// Why a pod does not have the size it asks for, and will not have it now.
fn objection(resize: Option<&Resize>) -> Option<String> {
    match resize {
        Some(Resize::Infeasible(why) | Resize::Deferred(why)) => Some(why.clone()),
        _ => None,
    }
}

/// The last run of a container that is over: its number, and how it ended.
fn last_end(container: &ContainerStatus) -> Option<(u32, &Exit)> {
    match (&container.state, &container.last) {
        (ContainerState::Terminated(exit), _) => Some((container.restart_count, exit)),
        (_, Some(exit)) => Some((container.restart_count.checked_sub(1)?, exit)),
        _ => None,
    }
}

/// What a pod's annotation says, to carry on from it.
pub(super) fn annotated<T>(
    pod: &k8s_openapi::api::core::v1::Pod,
    name: &str,
    parse: fn(&str) -> Option<T>,
) -> Option<T> {
    pod.annotations().get(name).and_then(|text| parse(text))
}

#[cfg(test)]
mod tests;
