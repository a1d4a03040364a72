//! Who is on this node: the containers that run, what was measured of them, what is to be done for them, and what is told when one
//! ends.
//!
//! A synchronous value, fed by the watch of pods and by the sampler. Invariant: it holds nothing of a container that has
//! ended but its digest, and nothing of a pod that is gone.

mod entry;
mod seen;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use stoke_api::contract::JobStatus;
use stoke_api::digest::PodDigest;
use stoke_api::names::IDLE_ANNOTATION;
use stoke_memory::Verdict;
use stoke_memory::guard::{Neighbour, NodeGuard, Shortage};

use super::deeds::{Change, Deed, Who};
use super::layout::{Container, Qos};
use super::neighbours::{NodeLook, Place};
use super::outbox::Outbox;
use crate::cgroup::{CgroupSpec, MemorySample};
use crate::idle::{Eyes, Idle};
use crate::vigil::{self, Vigil};

use entry::{Around, Entry, Running};
use seen::{
    annotated_risk, asked_limit, bare_id, cgroup_uid, end_of, is_running, labels, objection,
    promised, statuses,
};

/// Digests kept of one pod; its containers are few, and an annotation is to stay small.
const DIGESTS_MAX: usize = 8;
/// A raise goes through the API server and the kubelet before the kernel hears of it. On a busy node that takes seconds.
const REACT: Duration = Duration::from_secs(5);

/// Whose pods are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Jobs,
    AllPods,
}

#[derive(Debug)]
pub(super) struct Roster {
    scope: Scope,
    /// By the API's uid.
    pods: HashMap<String, Entry>,
    node: NodeGuard,
    shortage: Option<Shortage>,
}

/// Who a pod is, in metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Labels {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// Empty for a pod that is not of a job.
    pub(super) job: String,
    pub(super) attempt: String,
    pub(super) rank: String,
}

/// What the sampler has to look at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) pod_uid: String,
    pub(super) container: Container,
    /// Where it was the last time.
    pub(super) cgroup: Option<CgroupSpec>,
    /// It is the worker of a job, whose program may say where it is.
    pub(super) is_worker: bool,
    /// What it used when it was last looked at, page cache included.
    pub(super) usage: u64,
    /// It is to be known whether it does anything, and time for a look.
    pub(super) wants_cpu: bool,
}

/// What the sampler found.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) pod_uid: String,
    pub(super) id: String,
    pub(super) outcome: Outcome,
}

impl Reading {
    /// The group that was measured.
    pub(super) fn directory(&self) -> Option<&Path> {
        match &self.outcome {
            Outcome::Measured { cgroup, .. } => Some(cgroup.path()),
            Outcome::Absent | Outcome::Unreadable(_) => None,
        }
    }
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are measured, and they live for a moment"
)]
pub(super) enum Outcome {
    Measured {
        cgroup: Box<CgroupSpec>,
        sample: MemorySample,
        said: JobStatus,
        /// Where that was asked for and is known.
        cpu_usec: Option<u64>,
    },
    /// It is not there: not made yet, or gone already.
    Absent,
    /// It is there and cannot be read.
    Unreadable(String),
}

/// A digest to be written on a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) who: Who,
    pub(super) digest: PodDigest,
}

/// One container as metrics show it.
pub(super) struct Shown<'a> {
    pub(super) labels: &'a Labels,
    pub(super) container: &'a str,
    pub(super) sample: &'a MemorySample,
    pub(super) peak: u64,
    /// Of the worker of a job: whether its memory is in danger.
    pub(super) is_at_risk: Option<bool>,
    pub(super) foreseen: Option<&'a Verdict>,
}

impl Roster {
    pub(super) fn new(scope: Scope) -> Self {
        Self {
            scope,
            pods: HashMap::new(),
            node: NodeGuard::default(),
            shortage: None,
        }
    }

    /// A pod as it is now. Gives what is to be written on it if a container of it has ended since.
    pub(super) fn observe(&mut self, pod: &Pod) -> Option<Report> {
        let uid = pod.metadata.uid.clone()?;
        let labels = labels(pod);
        let is_ours = !labels.job.is_empty();
        let is_measured = is_ours || self.scope == Scope::AllPods;
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| Entry {
            who: Who {
                namespace: labels.namespace.clone(),
                pod: labels.pod.clone(),
                uid: uid.clone(),
            },
            labels,
            cgroup_uid: cgroup_uid(pod, &uid),
            qos: None,
            promised: 0,
            worker: vigil::terms(pod, REACT),
            risk: vigil::own_risk(annotated_risk(pod).as_ref()),
            told: annotated_risk(pod),
            idle: pod.annotations().get(IDLE_ANNOTATION).cloned(),
            outbox: Outbox::default(),
            objection: None,
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
        });
        let status = pod.status.as_ref();
        entry.qos = status
            .and_then(|status| status.qos_class.as_deref())
            .and_then(Qos::parse);
        entry.promised = promised(pod);
        if !is_measured {
            return None;
        }
        let running: BTreeMap<String, String> = statuses(pod)
            .filter(|status| is_running(status))
            .filter_map(|status| Some((bare_id(status)?, status.name.clone())))
            .collect();
        let mut has_news = false;
        entry.running.retain(|id, container| {
            if running.contains_key(id) {
                return true;
            }
            let (ran, oom_killed) = end_of(pod, id);
            container.vigil.end(None, ran, oom_killed);
            if let Some(digest) = container.vigil.told(id) {
                has_news |=
                    entry.ended.len() < DIGESTS_MAX || entry.ended.contains_key(&container.name);
                if has_news {
                    entry.ended.insert(container.name.clone(), digest);
                }
            }
            false
        });
        for (id, name) in running {
            let worker = entry.worker.as_ref().filter(|(worker, _)| *worker == name);
            let terms = worker.map(|(_, terms)| *terms);
            let idle = worker.and_then(|_| Idle::of(pod, Eyes::Agent));
            let is_in_danger = vigil::is_danger(entry.risk.as_ref());
            entry.running.entry(id).or_insert_with(|| {
                let mut vigil = Vigil::new(terms);
                if is_in_danger {
                    vigil.was_in_danger();
                }
                Running {
                    name,
                    cgroup: None,
                    latest: None,
                    vigil,
                    idle,
                    sought: None,
                    trouble: None,
                    missed: 0,
                }
            });
        }
        entry.hear(objection(pod), asked_limit(pod));
        (has_news && is_ours).then(|| Report {
            who: entry.who.clone(),
            digest: PodDigest {
                containers: entry.ended.clone(),
                // Its log is not for those who are not root.
                kernel: Vec::new(),
            },
        })
    }

    pub(super) fn forget(&mut self, pod: &Pod) {
        if let Some(uid) = &pod.metadata.uid {
            self.pods.remove(uid);
        }
    }

    /// Forgets all pods but these: those that went while nobody watched.
    pub(super) fn keep_only(&mut self, uids: &BTreeSet<String>) {
        self.pods.retain(|uid, _| uids.contains(uid));
    }

    /// What can be done now. What is not done comes again.
    pub(super) fn due(&mut self) -> Vec<Deed> {
        let all = self.pods.values_mut().flat_map(|entry| {
            let resize = entry.outbox.next_resize();
            let telling = entry.outbox.next_telling(&entry.who);
            resize.into_iter().chain(telling)
        });
        all.collect()
    }

    /// What was due is done, or nothing came of it.
    pub(super) fn done(&mut self, deed: &Deed, failure: Option<&str>) {
        let Some(entry) = self.pods.get_mut(&deed.who.uid) else {
            return;
        };
        entry.outbox.done(deed, failure.is_none());
        let Some(why) = failure else {
            return;
        };
        match deed.change {
            Change::Resize(_) if !entry.outbox.has_newer_size() => entry.refuse(why),
            Change::Annotate(_) if deed.asks_for_checkpoint() => entry.ask_again(),
            _ => {}
        }
    }

    /// What has waited for the like of it.
    pub(super) fn next_after(&mut self, deed: &Deed) -> Option<Deed> {
        let entry = self.pods.get_mut(&deed.who.uid)?;
        entry.outbox.next_after(deed)
    }

    /// Everyone. `at` is since any fixed moment.
    pub(super) fn targets(&self, at: Duration) -> Vec<Target> {
        self.targets_where(Some(at), |_| true)
    }

    /// Those that may be full before the next second is over, and for whom something can be done.
    pub(super) fn alert(&self) -> Vec<Target> {
        self.targets_where(None, Vigil::is_alert)
    }

    pub(super) fn is_any_alert(&self) -> bool {
        let mut all = self.pods.values().flat_map(|entry| entry.running.values());
        all.any(|running| running.vigil.is_alert())
    }

    fn targets_where(&self, at: Option<Duration>, is_wanted: fn(&Vigil) -> bool) -> Vec<Target> {
        let targets = self.pods.iter().flat_map(|(uid, entry)| {
            let wanted = entry
                .running
                .iter()
                .filter(move |(_, running)| is_wanted(&running.vigil));
            wanted.map(|(id, running)| Target {
                pod_uid: uid.clone(),
                container: Container {
                    pod_uid: entry.cgroup_uid.clone(),
                    qos: entry.qos,
                    id: id.clone(),
                },
                cgroup: running.cgroup.clone(),
                is_worker: entry.worker_name() == Some(&running.name),
                usage: running.latest.map_or(0, |sample| sample.usage_bytes),
                wants_cpu: (running.idle.as_ref().zip(at))
                    .is_some_and(|(idle, at)| idle.is_due(at)),
            })
        });
        targets.collect()
    }

    /// The pods that are not measured and have a claim on the node, if there is anyone for whom that matters.
    pub(super) fn strangers(&self) -> Vec<Place> {
        if !self.is_any_alert() {
            return Vec::new();
        }
        let others = self
            .pods
            .iter()
            .filter(|(_, entry)| entry.running.is_empty() && entry.promised > 0);
        let places = others.map(|(uid, entry)| Place {
            uid: uid.clone(),
            cgroup_uid: entry.cgroup_uid.clone(),
            qos: entry.qos,
        });
        places.collect()
    }

    /// The node as a whole at `at`, since any fixed moment. Once a second.
    pub(super) fn judge(&mut self, at: Duration, look: &NodeLook, now: Timestamp) {
        self.shortage = self
            .node
            .observe(at, look.total, look.available, look.reserve);
        for entry in self.pods.values_mut() {
            entry.outbox.pass();
            // Every time: some have just begun, and some say what was so before this process was.
            if !entry.running.is_empty() {
                entry.tell(self.shortage.as_ref(), now);
            }
        }
    }

    /// What was found at `at`, since any fixed moment. Gives what is to be logged: each trouble once.
    pub(super) fn record(
        &mut self,
        at: Duration,
        readings: Vec<Reading>,
        look: &NodeLook,
        now: Timestamp,
    ) -> Vec<String> {
        let mut around = Around {
            at,
            now,
            look,
            shortage: self.shortage,
            neighbours: self.neighbours(look),
        };
        let mut lines = Vec::new();
        for reading in readings {
            // It may have ended between the look and now.
            if let Some(entry) = self.pods.get_mut(&reading.pod_uid) {
                lines.extend(entry.record(reading, &mut around));
            }
        }
        lines
    }

    /// Everyone on the node, with what is theirs.
    fn neighbours(&self, look: &NodeLook) -> HashMap<String, Neighbour> {
        let all = self.pods.iter().map(|(uid, entry)| {
            let vigils = || entry.running.values().map(|running| &running.vigil);
            let sum = |of: fn(&Vigil) -> u64| vigils().map(of).fold(0, u64::saturating_add);
            let measured = sum(Vigil::used);
            let neighbour = Neighbour {
                promised: entry.promised,
                lent: sum(Vigil::lent),
                used: look.used.get(uid).copied().unwrap_or(measured),
            };
            (uid.clone(), neighbour)
        });
        all.collect()
    }

    /// Containers that were measured, in a fixed order.
    pub(super) fn shown(&self) -> Vec<Shown<'_>> {
        let mut shown: Vec<Shown<'_>> = self
            .pods
            .values()
            .flat_map(|entry| {
                entry.running.values().filter_map(|running| {
                    let is_worker = entry.worker_name() == Some(&running.name);
                    Some(Shown {
                        labels: &entry.labels,
                        container: &running.name,
                        sample: running.latest.as_ref()?,
                        peak: running.vigil.peak(),
                        is_at_risk: is_worker.then_some(entry.told.is_some()),
                        foreseen: running.vigil.foreseen(),
                    })
                })
            })
            .collect();
        shown.sort_by_key(|shown| {
            let Labels { namespace, pod, .. } = shown.labels;
            (namespace.clone(), pod.clone(), shown.container.to_owned())
        });
        shown
    }

    pub(super) fn running(&self) -> usize {
        self.pods.values().map(|entry| entry.running.len()).sum()
    }

    pub(super) fn troubled(&self) -> usize {
        let running = self.pods.values().flat_map(|entry| entry.running.values());
        running.filter(|running| running.trouble.is_some()).count()
    }
}

#[cfg(test)]
mod tests;
