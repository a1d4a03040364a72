//! While a pod's shim runs: what it says goes to the API, what the API says goes to it.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use stoke_api::names::JOB_LABEL;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::notice::{Notice, notices};
use super::publish::grace_seconds;
use super::watched::Deed;
use super::{Backoff, Next, Stopping, Worker};
use crate::causes::chain;
use crate::checkpoint;
use crate::idle::{Eyes, Idle};
use crate::probe::{self, Finding, Report};
use crate::shim::protocol::{ContainerState, Request, ShimStatus};
use crate::shim::{self, Connection, Life};
use crate::spec;
use crate::status::{Fate, Health, Resize};
use crate::storage::{self, DiskUse};
use crate::usage::sample::Sampler;
use crate::volumes;

/// How soon something that failed while supervising is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// How often files of configMaps and secrets are compared with their objects; a kubelet's rhythm.
const REFRESH_EVERY: Duration = Duration::from_secs(60);
/// How often the checkpoint directory is looked into.
const CHECKPOINTS_EVERY: Duration = Duration::from_secs(10);
/// The same while one was asked for.
const AWAITED_EVERY: Duration = Duration::from_millis(250);
/// An evicted pod gets a moment, no more: it is harming others.
const EVICTION_GRACE_SECONDS: u64 = 1;
/// How long beyond the grace period a shim may take to end a pod before it is killed itself.
const STOP_SLACK: Duration = Duration::from_secs(15);
/// How long a shim may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longer than any pod lives. What a pod asks for may be more than a clock can hold.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const REPORTS_MAX: usize = 32;
const DEEDS_MAX: usize = 8;

/// What is under way while a pod is supervised. Dropping it ends its tasks.
struct Watchers {
    statuses: mpsc::Receiver<ShimStatus>,
    reports: mpsc::Receiver<Report>,
    report_to: mpsc::Sender<Report>,
    usage: mpsc::Receiver<crate::usage::Usage>,
    deeds: mpsc::Receiver<Deed>,
    disk: mpsc::Receiver<(DiskUse, Duration)>,
    disk_to: mpsc::Sender<(DiskUse, Duration)>,
    /// By container: the run that is being probed.
    probes: BTreeMap<String, (u32, AbortHandle)>,
    follower: AbortHandle,
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.follower.abort();
        self.probes.values().for_each(|(_, task)| task.abort());
    }
}

/// The next times at which something is due.
struct Due {
    disk: Option<Instant>,
    refresh: Option<Instant>,
    checkpoint: Option<Instant>,
    deadline: Option<Instant>,
    /// A write or a request that failed.
    again: Option<Instant>,
}

impl Worker {
    pub(super) async fn supervise(&mut self) -> Next {
        let mut watchers = self.watch();
        let now = Instant::now();
        let mut due = Due {
            disk: self.measures_disk().then_some(now),
            refresh: volumes::has_refreshable(&self.pod).then(|| now + REFRESH_EVERY),
            checkpoint: self.knows_checkpoints().then(|| now + CHECKPOINTS_EVERY),
            deadline: self.deadline(),
            again: None,
        };
        let mut released = self.shared.released.subscribe();
        let mut shortage = self.shared.commons.shortage();
        loop {
            let deferred = matches!(self.resize, Some(Resize::Deferred(_)));
            let kill_at = self.stopping.map(|stopping| stopping.kill_at);
            tokio::select! {
                status = watchers.statuses.recv() => match status {
                    Some(status) => self.observe(status, &mut watchers).await,
                    None => return self.shim_left().await,
                },
                () = self.intent_changed() => {
                    due.deadline = self.deadline();
                    self.consider_resize().await;
                    self.show_requests().await;
                }
                Some(deed) = watchers.deeds.recv() => {
                    self.act(deed).await;
                    due.checkpoint = due.checkpoint.map(|due| due.min(Instant::now() + AWAITED_EVERY));
                }
                // It is told below.
                Ok(()) = shortage.changed() => {}
                Some(report) = watchers.reports.recv() => self.hear(report).await,
                Some(usage) = watchers.usage.recv() => self.publish_usage(&usage).await,
                Some((usage, again)) = watchers.disk.recv() => {
                    due.disk = Some(Instant::now() + again);
                    self.judge_disk(&usage);
                }
                () = at(due.disk) => {
                    due.disk = None;
                    self.measure_disk(&watchers);
                }
                () = at(due.refresh) => {
                    due.refresh = Some(Instant::now() + REFRESH_EVERY);
                    self.refresh_files().await;
                }
                () = at(due.checkpoint) => {
                    let is_awaited = self.risk.as_ref().is_some_and(|risk| risk.checkpoint_asked_at.is_some());
                    let again = if is_awaited { AWAITED_EVERY } else { CHECKPOINTS_EVERY };
                    due.checkpoint = Some(Instant::now() + again);
                    let is_running = self.shim.as_ref().is_none_or(ShimStatus::is_running);
                    self.publish_checkpoint(is_running).await;
                }
                () = at(due.deadline), if self.fate.is_none() => {
                    self.shared.events.normal(&self.about, "DeadlineExceeded", Fate::DeadlineExceeded.message());
                    self.condemn(Fate::DeadlineExceeded);
                }
                Ok(()) = released.changed(), if deferred => self.consider_resize().await,
                () = at(due.again) => {
                    due.again = None;
                    self.consider_resize().await;
                    self.show_requests().await;
                }
                () = at(kill_at) => self.kill_shim(),
            }
            let stopped = self.stop_if_due().await;
            let written = self.publish().await;
            self.publish_gpus().await;
            let told = self.tell_risk().await;
            let shown = self.is_request_shown();
            let resizing = matches!(self.resize, Some(Resize::InProgress(_)));
            if (!stopped || !written || !told || !shown || resizing) && due.again.is_none() {
                due.again = Some(Instant::now() + AGAIN_AFTER);
            }
        }
    }

    /// Whether there is a place that tells of checkpoints: where they are kept, or where the program says that it wrote one.
    fn knows_checkpoints(&self) -> bool {
        let directory = checkpoint::directory(&self.pod, &self.shared.claims.borrow());
        directory.is_some() || self.watched.has_status()
    }

    fn watch(&self) -> Watchers {
        let (status_to, statuses) = mpsc::channel(1);
        let (report_to, reports) = mpsc::channel(REPORTS_MAX);
        let (usage_to, usage) = mpsc::channel(1);
        let (deeds_to, deeds) = mpsc::channel(DEEDS_MAX);
        let (disk_to, disk) = mpsc::channel(1);
        let follower = tokio::spawn(follow(self.dir.path().to_owned(), status_to)).abort_handle();
        let sampler = Sampler {
            pod_dir: self.dir.path().to_owned(),
            gpus: self.gpus.clone(),
            source: self.shared.gpu_source.clone(),
            watched: self.watched.clone(),
            idle: Idle::of(&self.pod, Eyes::Node),
        };
        // It ends by itself once nobody listens.
        tokio::spawn(sampler.run(usage_to, deeds_to));
        Watchers {
            statuses,
            reports,
            report_to,
            usage,
            deeds,
            disk,
            disk_to,
            probes: BTreeMap::new(),
            follower,
        }
    }

    /// Takes over what the shim says.
    async fn observe(&mut self, status: ShimStatus, watchers: &mut Watchers) {
        for notice in notices(&self.pod, self.shim.as_ref(), &status) {
            match notice {
                Notice::Normal(reason, message) => {
                    self.shared.events.normal(&self.about, reason, message);
                }
                Notice::Warning(reason, message) => {
                    self.shared.events.warning(&self.about, reason, message);
                }
            }
        }
        self.probe(&status, watchers);
        self.reconnect = Backoff::new();
        self.tell_digests(&status).await;
        self.shim = Some(status);
        if self.resize.is_some() {
            self.consider_resize().await;
        }
    }

    /// Probes what runs, and stops probing what does not.
    fn probe(&mut self, status: &ShimStatus, watchers: &mut Watchers) {
        for container in &status.containers {
            let ContainerState::Running { started_at, .. } = container.state else {
                self.health.remove(&container.name);
                if let Some((_, task)) = watchers.probes.remove(&container.name) {
                    task.abort();
                }
                continue;
            };
            let Some(spec) = self.container(&container.name).cloned() else {
                continue;
            };
            let probed = watchers
                .probes
                .get(&container.name)
                .is_some_and(|(run, _)| *run == container.restart_count);
            if probed || !probe::has_probes(&spec) {
                continue;
            }
            let is_first_look = self.shim.is_none() && watchers.probes.is_empty();
            // A pod that was taken over keeps what its probes had found until they find otherwise.
            if !(is_first_look && self.health.contains_key(&container.name)) {
                let fresh = Health {
                    started: spec.startup_probe.is_none(),
                    ready: spec.readiness_probe.is_none(),
                };
                self.health.insert(container.name.clone(), fresh);
            }
            let target = probe::Target {
                pod_dir: self.dir.path().to_owned(),
                address: self.shared.facts.address.clone(),
                container: spec,
                restart_count: container.restart_count,
                started_at,
            };
            let task = tokio::spawn(probe::run(target, watchers.report_to.clone())).abort_handle();
            if let Some((_, old)) = watchers
                .probes
                .insert(container.name.clone(), (container.restart_count, task))
            {
                old.abort();
            }
        }
    }

    async fn hear(&mut self, report: Report) {
        let current = self
            .shim
            .as_ref()
            .and_then(|shim| shim.container(&report.container));
        if current.is_none_or(|current| current.restart_count != report.restart_count) {
            return;
        }
        let name = &report.container;
        match report.finding {
            Finding::Started => self.set_health(name, |health| health.started = true),
            Finding::Ready(ready) => self.set_health(name, |health| health.ready = ready),
            Finding::Failed { kind, message } => {
                let message = format!("{} probe failed: {message}", kind.name());
                self.shared
                    .events
                    .warning(&self.about, "Unhealthy", message);
            }
            Finding::Dead {
                kind,
                grace_seconds: grace,
            } => {
                let kind = kind.name().to_lowercase();
                let message = format!("Container {name} failed {kind} probe, will be restarted");
                self.shared.events.normal(&self.about, "Killing", message);
                let grace_seconds = grace.unwrap_or_else(|| grace_seconds(&self.pod));
                let restart = Request::Restart {
                    container: name.clone(),
                    grace_seconds,
                };
                if let Err(error) = self.ask_shim(&restart).await {
                    tracing::warn!(pod = self.pod.name_any(), container = name, error = %chain(&error), "a failed container could not be restarted");
                }
            }
        }
    }

    fn set_health(&mut self, container: &str, change: impl FnOnce(&mut Health)) {
        if let Some(health) = self.health.get_mut(container) {
            change(health);
        }
    }

    /// Asks the shim for something it does at once. One that does not answer is as good as one that is not there.
    pub(super) async fn ask_shim(&self, request: &Request) -> Result<(), shim::ConnectionError> {
        let asked = async {
            Connection::open(self.dir.path())
                .await?
                .request(request)
                .await
                .map(drop)
        };
        let late = |_| {
            Err(shim::ConnectionError::Broken(
                io::ErrorKind::TimedOut.into(),
            ))
        };
        tokio::time::timeout(ANSWER_WITHIN, asked)
            .await
            .unwrap_or_else(late)
    }

    /// Tells the shim to end the pod, if that is decided. False if it could not be told.
    async fn stop_if_due(&mut self) -> bool {
        let (grace_seconds, reason) = match &self.fate {
            Some(Fate::Evicted { .. }) => (EVICTION_GRACE_SECONDS, "Evicted"),
            Some(fate) => (grace_seconds(&self.pod), fate.reason()),
            None if self.is_leaving() => (grace_seconds(&self.pod), "Deleted"),
            None => return true,
        };
        let told = self.stopping.and_then(|stopping| stopping.grace_seconds);
        if told.is_some_and(|told| told <= grace_seconds) {
            return true;
        }
        let reason = reason.to_owned();
        if self.stopping.is_none() {
            self.tell_of_killing();
        }
        let asked = self
            .ask_shim(&Request::Stop {
                grace_seconds,
                reason,
            })
            .await;
        // A shim that cannot even be reached is not waited for longer than one that can, and trying again buys it no time.
        let latest = from_now(Duration::from_secs(grace_seconds)) + STOP_SLACK;
        let kill_at = self
            .stopping
            .map_or(latest, |stopping| stopping.kill_at.min(latest));
        let told = asked.is_ok().then_some(grace_seconds).or(told);
        self.stopping = Some(Stopping {
            grace_seconds: told,
            kill_at,
        });
        if let Err(error) = &asked {
            tracing::warn!(pod = self.pod.name_any(), error = %chain(error), "a pod could not be told to stop");
        }
        asked.is_ok()
    }

    fn tell_of_killing(&self) {
        let containers = self
            .shim
            .iter()
            .flat_map(|shim| shim.init.iter().chain(&shim.containers));
        for container in
            containers.filter(|container| matches!(container.state, ContainerState::Running { .. }))
        {
            self.shared.events.normal(
                &self.about,
                "Killing",
                format!("Stopping container {}", container.name),
            );
        }
    }

    /// The last resort against a shim that does not end its pod. Its containers die with it, and what is left of them is
    /// ended when the loss is noticed.
    fn kill_shim(&mut self) {
        if let Some(stopping) = &mut self.stopping {
            stopping.kill_at = Instant::now() + STOP_SLACK;
        }
        let dir = self.dir.path();
        let runs = shim::life(dir).is_ok_and(|life| life == Life::Running);
        let status = shim::read_status(dir)
            .ok()
            .flatten()
            .or_else(|| self.shim.clone());
        let pid = status.and_then(|status| rustix::process::Pid::from_raw(status.pid as i32));
        if let (true, Some(pid)) = (runs, pid) {
            tracing::error!(
                pod = self.pod.name_any(),
                "a pod's shim did not end it in time and is killed"
            );
            if let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::KILL) {
                tracing::error!(pod = self.pod.name_any(), %error, "nor could it be killed");
            }
        }
    }

    /// When the pod's time is over.
    fn deadline(&self) -> Option<Instant> {
        let seconds = self.pod.spec.as_ref()?.active_deadline_seconds?;
        let accepted = self.record.as_ref()?.accepted_at;
        let age =
            Duration::try_from(Timestamp::now().duration_since(accepted)).unwrap_or(Duration::ZERO);
        let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Some(from_now(allowed.saturating_sub(age)))
    }

    /// Measures beside the event loop: a large tree takes a while.
    fn measure_disk(&self, watchers: &Watchers) {
        let (pod, dir, result) = (self.pod.clone(), self.dir.clone(), watchers.disk_to.clone());
        tokio::task::spawn_blocking(move || {
            // Nobody listens any more: the pod has ended.
            let _ = result.blocking_send(storage::measure(&pod, &dir));
        });
    }

    /// What a job uses of the disk is learned from; others are only held to their limits.
    fn measures_disk(&self) -> bool {
        storage::is_limited(&self.pod) || self.pod.labels().contains_key(JOB_LABEL)
    }

    fn judge_disk(&mut self, usage: &DiskUse) {
        self.watched.storage(usage.total());
        if self.fate.is_none()
            && let Some(message) = storage::excess(&self.pod_as_granted(), usage)
        {
            self.shared
                .events
                .warning(&self.about, "Evicted", message.clone());
            self.condemn(Fate::Evicted { message });
        }
    }

    /// Brings files of configMaps and secrets up to date. What is missing by now stays as it was. False if they could not be brought.
    pub(super) async fn refresh_files(&self) -> bool {
        let sources = match self.sources(&spec::references(&self.pod)).await {
            Ok(sources) => sources,
            Err(error) => {
                tracing::debug!(pod = self.pod.name_any(), error = %chain(&error), "a pod's configuration could not be read again");
                return false;
            }
        };
        let (pod, dir, shared) = (self.pod_as_granted(), self.dir.clone(), self.shared.clone());
        let refreshed = tokio::task::spawn_blocking(move || {
            volumes::refresh(&pod, &dir, &shared.facts, &sources)
        })
        .await;
        if let Ok(Err(error)) = &refreshed {
            tracing::debug!(pod = self.pod.name_any(), error = %chain(error), "a pod's files could not be refreshed");
        }
        matches!(refreshed, Ok(Ok(_)))
    }

    /// The shim's end of the connection closed: it left, died, or only the connection broke.
    async fn shim_left(&mut self) -> Next {
        if shim::life(self.dir.path()).is_ok_and(|life| life == Life::Running) {
            let finished = shim::read_status(self.dir.path())
                .ok()
                .flatten()
                .filter(|status| status.finished);
            if finished.is_none() {
                self.stop_if_due().await;
                if self
                    .stopping
                    .is_some_and(|stopping| stopping.kill_at <= Instant::now())
                {
                    self.kill_shim();
                }
                tokio::time::sleep(self.reconnect.wait()).await;
                self.read_intent();
                return Next::Supervise;
            }
            // It has said its last word and is on its way out; nothing of the pod runs any more.
            self.shim = finished;
            return Next::End;
        }
        self.resume().await
    }
}

/// That long from now.
fn from_now(wait: Duration) -> Instant {
    Instant::now() + wait.min(FAR)
}

/// Sleeps until then, or for ever.
async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// Hands on what the shim says until it has nothing more to say. The channel closes with it.
async fn follow(dir: std::path::PathBuf, statuses: mpsc::Sender<ShimStatus>) {
    let opened = async { Connection::open(&dir).await?.watch().await };
    let (first, mut watch) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(error = %chain(&error), "a shim cannot be followed");
            return;
        }
    };
    if statuses.send(first).await.is_err() {
        return;
    }
    loop {
        match watch.next().await {
            Ok(Some(status)) => {
                if statuses.send(status).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(error = %chain(&error), "the connection to a shim broke");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_too_long_for_the_clock() {
        let begun = Instant::now();
        let latest = from_now(Duration::from_secs(u64::MAX)) + STOP_SLACK;
        assert!(latest.duration_since(begun) >= FAR);
        assert!(from_now(Duration::from_secs(30)) <= Instant::now() + Duration::from_secs(30));
    }
}
