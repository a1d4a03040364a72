//! Who is on this node: the containers that run, what was measured of them, and what is told when one ends.
//!
//! A synchronous value, fed by the watch of pods and by the sampler. Invariant: it holds nothing of a container that has
//! ended but its digest, and nothing of a pod that is gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use stoke_api::digest::{ContainerDigest, PodDigest};
use stoke_api::names::{ATTEMPT_LABEL, JOB_LABEL, RANK_LABEL};

use super::digest::Digest;
use super::layout::{Container, Qos};
use crate::cgroup::{CgroupSpec, MemorySample};

/// On a pod that a kubelet read from a file: the uid under which it keeps it, which is not the API's.
const STATIC_HASH: &str = "kubernetes.io/config.hash";
const STATIC_MARK: &str = "kubernetes.io/config.mirror";
/// Digests kept of one pod; its containers are few, and an annotation is to stay small.
const DIGESTS_MAX: usize = 8;

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
}

#[derive(Debug)]
struct Entry {
    labels: Labels,
    cgroup_uid: String,
    qos: Option<Qos>,
    /// By the runtime's id: a restarted container is another one.
    running: BTreeMap<String, Running>,
    ended: BTreeMap<String, ContainerDigest>,
}

/// Who a pod is, in metrics and in patches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Labels {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// Empty for a pod that is not of a job.
    pub(super) job: String,
    pub(super) attempt: String,
    pub(super) rank: String,
}

#[derive(Debug)]
struct Running {
    name: String,
    cgroup: Option<CgroupSpec>,
    latest: Option<MemorySample>,
    digest: Digest,
    /// Why it cannot be measured, once that lasts.
    trouble: Option<String>,
    /// Passes in a row in which it was not found.
    missed: u32,
}

/// What the sampler has to look at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) pod_uid: String,
    pub(super) container: Container,
    /// Where it was the last time.
    pub(super) cgroup: Option<CgroupSpec>,
}

/// What the sampler found.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) pod_uid: String,
    pub(super) id: String,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Measured {
        cgroup: Box<CgroupSpec>,
        sample: MemorySample,
    },
    /// It is not there: not made yet, or gone already.
    Absent,
    /// It is there and cannot be read.
    Unreadable(String),
}

/// A digest to be written on a pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: String,
    pub(super) digest: PodDigest,
}

/// One container as metrics show it.
pub(super) struct Shown<'a> {
    pub(super) labels: &'a Labels,
    pub(super) container: &'a str,
    pub(super) sample: &'a MemorySample,
    pub(super) peak: u64,
}

impl Roster {
    pub(super) fn new(scope: Scope) -> Self {
        Self {
            scope,
            pods: HashMap::new(),
        }
    }

    /// A pod as it is now. Gives what is to be written on it if a container of it has ended since.
    pub(super) fn observe(&mut self, pod: &Pod) -> Option<Report> {
        let uid = pod.metadata.uid.clone()?;
        let labels = labels(pod);
        let is_ours = !labels.job.is_empty();
        if !is_ours && self.scope == Scope::Jobs {
            self.pods.remove(&uid);
            return None;
        }
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| Entry {
            labels,
            cgroup_uid: cgroup_uid(pod, &uid),
            qos: None,
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
        });
        let status = pod.status.as_ref();
        entry.qos = status
            .and_then(|status| status.qos_class.as_deref())
            .and_then(Qos::parse);
        let running: BTreeMap<String, String> = statuses(pod)
            .filter(|status| is_running(status))
            .filter_map(|status| Some((bare_id(status)?, status.name.clone())))
            .collect();
        let mut has_news = false;
        entry.running.retain(|id, container| {
            if running.contains_key(id) {
                return true;
            }
            if let Some(digest) = container.digest.told(id) {
                has_news |=
                    entry.ended.len() < DIGESTS_MAX || entry.ended.contains_key(&container.name);
                if has_news {
                    entry.ended.insert(container.name.clone(), digest);
                }
            }
            false
        });
        for (id, name) in running {
            entry.running.entry(id).or_insert_with(|| Running {
                name,
                cgroup: None,
                latest: None,
                digest: Digest::default(),
                trouble: None,
                missed: 0,
            });
        }
        (has_news && is_ours).then(|| Report {
            namespace: entry.labels.namespace.clone(),
            pod: entry.labels.pod.clone(),
            uid,
            digest: PodDigest {
                containers: entry.ended.clone(),
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

    pub(super) fn targets(&self) -> Vec<Target> {
        let targets = self.pods.iter().flat_map(|(uid, entry)| {
            entry.running.iter().map(|(id, running)| Target {
                pod_uid: uid.clone(),
                container: Container {
                    pod_uid: entry.cgroup_uid.clone(),
                    qos: entry.qos,
                    id: id.clone(),
                },
                cgroup: running.cgroup.clone(),
            })
        });
        targets.collect()
    }

    /// What was found at `at`, since any fixed moment. Gives what is to be logged: each trouble once.
    pub(super) fn record(&mut self, at: Duration, readings: Vec<Reading>) -> Vec<String> {
        /// A cgroup appears a moment after its container is said to run, and goes a moment before it is said to have ended.
        const MISSED_MAX: u32 = 10;
        let mut news = Vec::new();
        for reading in readings {
            let Some(entry) = self.pods.get_mut(&reading.pod_uid) else {
                continue;
            };
            // It may have ended between the look and now.
            let Some(running) = entry.running.get_mut(&reading.id) else {
                continue;
            };
            let trouble = match reading.outcome {
                Outcome::Measured { cgroup, sample } => {
                    running.digest.add(at, &sample);
                    running.latest = Some(sample);
                    running.cgroup = Some(*cgroup);
                    running.missed = 0;
                    running.trouble = None;
                    continue;
                }
                Outcome::Absent => {
                    running.cgroup = None;
                    running.latest = None;
                    running.missed = running.missed.saturating_add(1);
                    if running.missed < MISSED_MAX {
                        continue;
                    }
                    "its cgroup is not found".to_owned()
                }
                Outcome::Unreadable(why) => {
                    running.latest = None;
                    why
                }
            };
            if running.trouble.as_ref() != Some(&trouble) {
                let Labels { namespace, pod, .. } = &entry.labels;
                let name = &running.name;
                news.push(format!("{namespace}/{pod} container {name}: {trouble}"));
                running.trouble = Some(trouble);
            }
        }
        news
    }

    /// Containers that were measured, in a fixed order.
    pub(super) fn shown(&self) -> Vec<Shown<'_>> {
        let mut shown: Vec<Shown<'_>> = self
            .pods
            .values()
            .flat_map(|entry| {
                entry.running.values().filter_map(|running| {
                    Some(Shown {
                        labels: &entry.labels,
                        container: &running.name,
                        sample: running.latest.as_ref()?,
                        peak: running.digest.peak(),
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

fn labels(pod: &Pod) -> Labels {
    let label = |key: &str| {
        let labels = pod.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(key))
            .cloned()
            .unwrap_or_default()
    };
    Labels {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pod: pod.metadata.name.clone().unwrap_or_default(),
        job: label(JOB_LABEL),
        attempt: label(ATTEMPT_LABEL),
        rank: label(RANK_LABEL),
    }
}

fn cgroup_uid(pod: &Pod, uid: &str) -> String {
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).cloned();
    let hash = annotation(STATIC_MARK).and_then(|_| annotation(STATIC_HASH));
    hash.unwrap_or_else(|| uid.to_owned())
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let all = status.map(|status| {
        [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ]
    });
    all.into_iter().flatten().flatten().flatten()
}

fn is_running(status: &ContainerStatus) -> bool {
    status
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some())
}

/// `containerd://9f86d0...` without its scheme.
fn bare_id(status: &ContainerStatus) -> Option<String> {
    let (_, id) = status.container_id.as_deref()?.split_once("://")?;
    (!id.is_empty()).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cgroup::CgroupVersion;

    fn pod(job: Option<&str>, containers: &[(&str, &str, bool)]) -> Pod {
        let statuses: Vec<_> = containers
            .iter()
            .map(|(name, id, runs)| {
                let state = if *runs {
                    json!({"running": {}})
                } else {
                    json!({"terminated": {"exitCode": 0}})
                };
                json!({"name": name, "containerID": format!("containerd://{id}"), "state": state,
                       "ready": true, "restartCount": 0, "image": "", "imageID": ""})
            })
            .collect();
        let mut labels = json!({});
        if let Some(job) = job {
            labels = json!({JOB_LABEL: job, ATTEMPT_LABEL: "1", RANK_LABEL: "0"});
        }
        serde_json::from_value(json!({
            "metadata": {"name": "gpt-1-0", "namespace": "ml", "uid": "u1", "labels": labels},
            "status": {"qosClass": "Burstable", "containerStatuses": statuses}
        }))
        .unwrap()
    }

    fn measured(id: &str, bytes: u64) -> Vec<Reading> {
        vec![Reading {
            pod_uid: "u1".to_owned(),
            id: id.to_owned(),
            outcome: Outcome::Measured {
                cgroup: Box::new(CgroupSpec::foreign(CgroupVersion::V2, "/x".into())),
                sample: MemorySample {
                    usage_bytes: bytes,
                    working_set_bytes: bytes,
                    ..MemorySample::default()
                },
            },
        }]
    }

    #[test]
    fn a_container_is_told_of_once_when_it_ends() {
        let mut roster = Roster::new(Scope::Jobs);
        assert_eq!(
            roster.observe(&pod(Some("gpt"), &[("worker", "a", true)])),
            None
        );
        assert_eq!(roster.targets()[0].container.qos, Some(Qos::Burstable));
        roster.record(Duration::ZERO, measured("a", 5 << 20));
        roster.record(Duration::from_secs(1), measured("a", 3 << 20));
        assert_eq!(roster.shown()[0].peak, 5 << 20);

        let report = roster.observe(&pod(Some("gpt"), &[("worker", "a", false)]));
        let report = report.expect("it ended");
        let digest = &report.digest.containers["worker"];
        assert_eq!((digest.peak_bytes, digest.samples), (5 << 20, 2));
        assert_eq!(roster.running(), 0);
        assert_eq!(
            roster.observe(&pod(Some("gpt"), &[("worker", "a", false)])),
            None,
            "once"
        );
        // A reading that was under way when it ended.
        assert!(
            roster
                .record(Duration::from_secs(2), measured("a", 1))
                .is_empty()
        );
    }

    #[test]
    fn a_restarted_container_is_another_one() {
        let mut roster = Roster::new(Scope::Jobs);
        roster.observe(&pod(
            Some("gpt"),
            &[("worker", "a", true), ("proxy", "p", true)],
        ));
        roster.record(Duration::ZERO, measured("a", 100));
        let report = roster.observe(&pod(
            Some("gpt"),
            &[("worker", "b", true), ("proxy", "p", true)],
        ));
        assert_eq!(
            report.expect("the first ended").digest.containers["worker"].id,
            "a"
        );
        assert_eq!(roster.running(), 2);
        roster.record(Duration::from_secs(9), measured("b", 7));
        let report = roster.observe(&pod(
            Some("gpt"),
            &[("worker", "b", false), ("proxy", "p", true)],
        ));
        let digest = report.expect("the second ended").digest;
        assert_eq!(digest.containers["worker"].peak_bytes, 7);
        assert_eq!(digest.containers.len(), 1, "the proxy runs on");
    }

    #[test]
    fn only_jobs_are_measured_unless_all_are_wanted() {
        let stranger = pod(None, &[("web", "a", true)]);
        let mut roster = Roster::new(Scope::Jobs);
        roster.observe(&stranger);
        assert_eq!(roster.running(), 0);
        let mut roster = Roster::new(Scope::AllPods);
        roster.observe(&stranger);
        assert_eq!(roster.running(), 1);
        roster.record(Duration::ZERO, measured("a", 1));
        let ended = roster.observe(&pod(None, &[("web", "a", false)]));
        assert_eq!(ended, None, "nothing is written on a stranger's pod");
    }

    #[test]
    fn a_static_pod_is_kept_under_its_files_hash() {
        let mut mirror = pod(None, &[("etcd", "a", true)]);
        mirror.metadata.annotations = Some(
            [(STATIC_HASH, "abc123"), (STATIC_MARK, "abc123")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        );
        let mut roster = Roster::new(Scope::AllPods);
        roster.observe(&mirror);
        assert_eq!(roster.targets()[0].container.pod_uid, "abc123");
        assert_eq!(roster.targets()[0].pod_uid, "u1");
    }

    #[test]
    fn trouble_is_told_once_and_gone_pods_are_forgotten() {
        let mut roster = Roster::new(Scope::Jobs);
        let running = pod(Some("gpt"), &[("worker", "a", true)]);
        roster.observe(&running);
        let absent = || {
            vec![Reading {
                pod_uid: "u1".to_owned(),
                id: "a".to_owned(),
                outcome: Outcome::Absent,
            }]
        };
        let mut told = Vec::new();
        for second in 0..30 {
            told.extend(roster.record(Duration::from_secs(second), absent()));
        }
        assert_eq!(
            told,
            ["ml/gpt-1-0 container worker: its cgroup is not found"]
        );
        assert_eq!(roster.troubled(), 1);
        roster.record(Duration::from_secs(31), measured("a", 1));
        assert_eq!(roster.troubled(), 0);
        roster.keep_only(&BTreeSet::from(["u1".to_owned()]));
        assert_eq!(roster.running(), 1);
        roster.keep_only(&BTreeSet::new());
        assert_eq!(roster.running(), 0);
        roster.observe(&running);
        roster.forget(&running);
        assert_eq!(roster.running(), 0);
    }

    #[test]
    fn a_pod_full_of_containers_keeps_a_small_annotation() {
        let mut roster = Roster::new(Scope::Jobs);
        for n in 0..40 {
            let (name, id) = (format!("c{n}"), format!("i{n}"));
            roster.observe(&pod(Some("gpt"), &[(&name, &id, true)]));
            roster.record(Duration::ZERO, measured(&id, 1));
        }
        let report = roster.observe(&pod(Some("gpt"), &[]));
        assert_eq!(report, None, "there is no room for more");
        let ended = &roster.pods["u1"].ended;
        assert_eq!(ended.len(), DIGESTS_MAX);
    }
}
