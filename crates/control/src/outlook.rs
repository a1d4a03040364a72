//! Questions to the scheduler about a cluster as it was listed: why a job waits, how the queues stand, what would become of jobs that are not
//! there yet. Nothing is written and nobody is woken.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;
use stoke_api::names::{JOB_LABEL, RANK_LABEL};
use stoke_api::{Dataset, Queue, QueueSpec, TrainJob};
use stoke_sched::{Claim, Decision, Fetch, JobId, Plan, Scheduler, Wait};

use crate::config::Config;
use crate::forecast::Listed;
use crate::mirror::Key;
use crate::queue_status;
use crate::trainjob::admission;
use crate::trainjob::observe::{Aside, observe};
use crate::trainjob::plan::plan;
use crate::world::{World, fetches, id_of, key_of};

/// A cluster at one moment.
pub struct Outlook {
    listed: Listed,
    config: Config,
    now: Timestamp,
}

/// What is not there, and is supposed to be.
#[derive(Debug, Clone, Default)]
pub struct Supposed {
    pub jobs: Vec<TrainJob>,
    /// In place of those of the same name.
    pub queues: Vec<Queue>,
    pub datasets: Vec<Dataset>,
}

/// What would become of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub job: JobId,
    /// Where it would run: now, or when those that make room have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// Those that would have to make room.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub room_from: Vec<Yield>,
    /// Why it would wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// What else stands in its way, whatever room there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Start {
    /// By rank.
    pub nodes: Vec<String>,
    /// By rank; absent where the nodes themselves pick them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Vec<u32>>,
    /// What of its data is there, and what is copied there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<Fetch>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Yield {
    pub job: JobId,
    /// Workers that it may keep; 0: it is preempted.
    pub workers: u32,
    pub why: Claim,
}

impl Outlook {
    pub fn of(listed: Listed, config: Config, now: Timestamp) -> Self {
        Self {
            listed,
            config,
            now,
        }
    }

    /// Why a job waits for room. None where it does not: it runs, is about to, or waits for something else.
    pub fn wait(&self, job: &TrainJob) -> Option<Wait> {
        let id = id_of(&Key::of(&job.metadata));
        let mut scheduler = self.listed.clone().scheduler(&self.config, self.now);
        scheduler.cycle(self.now);
        scheduler.explain(&id, self.now)
    }

    /// All queues as they stand. The last, which has no name, is that of the jobs that name none; it is there if there are any.
    pub fn queues(&self) -> Vec<Queue> {
        let mut scheduler = self.listed.clone().scheduler(&self.config, self.now);
        scheduler.cycle(self.now);
        let mut standings = scheduler.standings();
        let unnamed = standings.remove("").unwrap_or_default();
        let mut queues = self.listed.queues.clone();
        for queue in &mut queues {
            let name = queue.metadata.name.as_deref().unwrap_or_default();
            let standing = standings.remove(name).unwrap_or_default();
            queue.status = Some(queue_status::status(queue, &standing, self.now));
        }
        if unnamed.waiting + unnamed.running > 0 {
            let mut queue = Queue::new(
                "",
                QueueSpec {
                    weight: 1,
                    ..QueueSpec::default()
                },
            );
            queue.status = Some(queue_status::status(&queue, &unnamed, self.now));
            queue.metadata.name = None;
            queues.push(queue);
        }
        queues
    }

    /// A job that is there already under the name of one that is supposed.
    pub fn taken(&self, supposed: &Supposed) -> Option<JobId> {
        let there: BTreeSet<Key> = keys(&self.listed.jobs).collect();
        let taken = keys(&supposed.jobs).find(|key| there.contains(key));
        taken.map(|key| id_of(&key))
    }

    /// What would become of these jobs.
    pub fn suppose(&self, supposed: Supposed) -> Vec<Verdict> {
        let wanted: Vec<Key> = keys(&supposed.jobs).collect();
        let mut listed = self.listed.clone();
        put(&mut listed.queues, supposed.queues);
        put(&mut listed.datasets, supposed.datasets);
        listed.jobs.extend(supposed.jobs);

        let (world, mut scheduler) = self.looked_at(&listed);
        let decisions = scheduler.cycle(self.now);
        let mut verdicts: Vec<Verdict> = wanted
            .iter()
            .map(|key| self.verdict(key, &world, &scheduler, &decisions))
            .collect();
        if verdicts.iter().any(|verdict| !verdict.room_from.is_empty()) {
            for decision in &decisions {
                make_room(&mut listed, decision);
            }
            let mut then = self.looked_at(&listed).1;
            let later = then.cycle(self.now);
            for verdict in &mut verdicts {
                verdict.start = verdict
                    .start
                    .take()
                    .or_else(|| start(&verdict.job, &later, &then));
            }
        }
        verdicts
    }

    /// The world, and a scheduler that has been told of everything in it.
    fn looked_at(&self, listed: &Listed) -> (World, Scheduler) {
        let mut world = listed.clone().world(&self.config);
        admission::look_at_all(&mut world, &self.config, self.now);
        let scheduler = world.scheduler().clone();
        (world, scheduler)
    }

    fn verdict(
        &self,
        key: &Key,
        world: &World,
        scheduler: &Scheduler,
        decisions: &[Decision],
    ) -> Verdict {
        let job = id_of(key);
        let start = start(&job, decisions, scheduler);
        let wait = scheduler.explain(&job, self.now);
        let problem = || {
            let observed = observe(world, key, Aside::default())?;
            Some(plan(&observed, &self.config, self.now).status.message)
        };
        Verdict {
            room_from: yielding(&job, decisions),
            problem: if start.is_none() && wait.is_none() {
                problem()
            } else {
                None
            },
            start,
            wait,
            job,
        }
    }
}

fn keys<K: kube::Resource>(objects: &[K]) -> impl Iterator<Item = Key> {
    objects.iter().map(|object| Key::of(object.meta()))
}

/// Each in place of the one of its name.
fn put<K: kube::Resource>(objects: &mut Vec<K>, supposed: Vec<K>) {
    let replaced: BTreeSet<Key> = keys(&supposed).collect();
    objects.retain(|object| !replaced.contains(&Key::of(object.meta())));
    objects.extend(supposed);
}

fn start(wanted: &JobId, decisions: &[Decision], scheduler: &Scheduler) -> Option<Start> {
    let plan = decisions.iter().find_map(|decision| match decision {
        Decision::Start { job, plan } if job == wanted => Some(plan),
        _ => None,
    })?;
    let data = fetches(scheduler, &key_of(wanted), plan);
    let Plan { nodes, devices, .. } = plan.clone();
    let chosen = devices.iter().any(|devices| !devices.is_empty());
    Some(Start {
        nodes,
        devices: if chosen { devices } else { Vec::new() },
        data,
    })
}

fn yielding(wanted: &JobId, decisions: &[Decision]) -> Vec<Yield> {
    let asked = decisions.iter().flat_map(|decision| match decision {
        Decision::Preempt {
            victims,
            for_job,
            why,
        } if for_job == wanted => victims
            .iter()
            .map(|job| Yield {
                job: job.clone(),
                workers: 0,
                why: why.clone(),
            })
            .collect(),
        Decision::Shrink {
            job,
            to,
            for_job,
            why,
        } if for_job == wanted => vec![Yield {
            job: job.clone(),
            workers: *to,
            why: why.clone(),
        }],
        _ => Vec::new(),
    });
    asked.collect()
}

/// The cluster as it is when those who were asked to make room have done so.
fn make_room(listed: &mut Listed, decision: &Decision) {
    let (jobs, keep) = match decision {
        Decision::Preempt { victims, .. } => (victims.as_slice(), 0),
        Decision::Shrink { job, to, .. } => (std::slice::from_ref(job), *to),
        Decision::Start { .. } | Decision::Grow { .. } => return,
    };
    let asked: BTreeSet<&str> = jobs.iter().map(JobId::as_str).collect();
    let is_asked =
        |namespace: &str, job: &str| asked.contains(format!("{namespace}/{job}").as_str());
    listed.pods.retain(|pod| {
        let labels = pod.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|labels| labels.get(key));
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let rank: Option<u32> = label(RANK_LABEL).and_then(|rank| rank.parse().ok());
        let goes = label(JOB_LABEL).is_some_and(|job| is_asked(namespace, job));
        !goes || rank.is_some_and(|rank| rank < keep)
    });
    if keep == 0 {
        // It waits again, behind whoever it made room for.
        listed
            .jobs
            .retain(|job| !is_asked(job.namespace(), job.name()));
        return;
    }
    for job in &mut listed.jobs {
        if !is_asked(job.namespace(), job.name()) {
            continue;
        }
        let attempt = job
            .status
            .as_mut()
            .and_then(|status| status.attempts.last_mut());
        if let Some(attempt) = attempt {
            attempt.nodes.truncate(keep as usize);
            attempt.devices.truncate(keep as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        "2027-01-15T09:00:00Z".parse().expect("a time")
    }

    fn job(name: &str, spec: Value) -> TrainJob {
        let mut object = json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}"), "generation": 1, "creationTimestamp": "2027-01-15T08:00:00Z"},
            "spec": {"command": ["train"], "cpus": "100m", "memory": {"limit": "64Mi"}},
        });
        let fields = spec.as_object().expect("a map").clone();
        let whole = object["spec"].as_object_mut().expect("a map");
        whole.extend(fields);
        serde_json::from_value(object).expect("a job")
    }

    /// One that runs on the first GPU.
    fn running(name: &str, spec: Value) -> (TrainJob, Pod) {
        let mut job = job(name, spec);
        let status = json!({
            "phase": "Running", "attempt": 1,
            "attempts": [{"number": 1, "generation": 1, "placedAt": "2027-01-15T08:00:01Z", "runningAt": "2027-01-15T08:00:02Z", "nodes": ["box"],
                "devices": ["0"], "cpus": "100m", "memory": {"request": "64Mi", "limit": "64Mi", "why": ""}}],
        });
        job.status = Some(serde_json::from_value(status).expect("a status"));
        let pod = json!({
            "metadata": {"name": format!("{name}-1-0"), "namespace": "ns", "uid": "p",
                "labels": {"stokehold.dev/job": name, "stokehold.dev/attempt": "1", "stokehold.dev/rank": "0"},
                "annotations": {"stokehold.dev/gpu-devices": "0"},
                "ownerReferences": [{"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "name": name, "uid": format!("uid-{name}"), "controller": true}]},
            "spec": {"nodeName": "box", "containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"},
        });
        (job, serde_json::from_value(pod).expect("a pod"))
    }

    fn outlook(jobs: Vec<(TrainJob, Pod)>, queues: &[(&str, Value)]) -> Outlook {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "box", "labels": {"nvidia.com/gpu.product": "simulated", "stokehold.dev/gpu-simulated": "true"}},
            "status": {
                "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "2", "stokehold.dev/gpu-milli": "2000"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            },
        }))
        .expect("a node");
        let (jobs, pods) = jobs.into_iter().unzip();
        let listed = Listed {
            nodes: vec![node],
            jobs,
            pods,
            queues: queues
                .iter()
                .map(|(name, spec)| queue(name, spec))
                .collect(),
            ..Listed::default()
        };
        Outlook::of(listed, Config::machine("/usr/bin/stoke".into()), now())
    }

    fn queue(name: &str, spec: &Value) -> Queue {
        let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec});
        serde_json::from_value(object).expect("a queue")
    }

    fn suppose(outlook: &Outlook, jobs: Vec<TrainJob>) -> Vec<Verdict> {
        outlook.suppose(Supposed {
            jobs,
            ..Supposed::default()
        })
    }

    #[test]
    fn what_fits_starts_and_the_rest_waits() {
        let outlook = outlook(vec![running("there", json!({"gpus": 1}))], &[]);
        let jobs = vec![
            job("half", json!({"gpus": "0.5"})),
            job("other", json!({"gpus": "0.5"})),
            job("whole", json!({"gpus": 1})),
            job(
                "broken",
                json!({"gpus": 1, "datasets": [{"name": "absent", "path": "/data"}]}),
            ),
        ];
        let verdicts = suppose(&outlook, jobs);
        let devices = |verdict: &Verdict| verdict.start.as_ref().map(|start| start.devices.clone());
        assert_eq!(devices(&verdicts[0]), Some(vec![vec![1]]), "{verdicts:#?}");
        assert_eq!(devices(&verdicts[1]), Some(vec![vec![1]]), "{verdicts:#?}");
        assert!(
            verdicts[2].start.is_none() && verdicts[2].wait.is_some(),
            "{verdicts:#?}"
        );
        let problem = verdicts[3].problem.as_deref().unwrap_or_default();
        assert!(problem.contains("absent"), "{verdicts:#?}");
    }

    #[test]
    fn whom_a_job_would_preempt_is_told_and_where_it_starts_then() {
        let there = running("there", json!({"gpus": 1, "priority": "experiment"}));
        let outlook = outlook(vec![there], &[]);
        let urgent = job("urgent", json!({"gpus": 2, "priority": "production"}));
        let verdicts = suppose(&outlook, vec![urgent]);
        let [verdict] = verdicts.as_slice() else {
            panic!("one verdict: {verdicts:#?}");
        };
        let from: Vec<&str> = verdict.room_from.iter().map(|it| it.job.as_str()).collect();
        assert_eq!(from, ["ns/there"], "{verdict:#?}");
        let start = verdict.start.as_ref().expect("a start");
        assert_eq!(start.devices, [vec![0, 1]], "{verdict:#?}");
    }

    #[test]
    fn queues_stand_as_they_would_with_what_is_supposed() {
        let there = running("there", json!({"gpus": 1, "queue": "small"}));
        let outlook = outlook(vec![there], &[("small", json!({"ceiling": {"any": 1}}))]);
        let queues = outlook.queues();
        let used = |queue: &Queue| queue.status.as_ref().map(|status| status.gpus["any"].used);
        assert_eq!(
            used(&queues[0]).map(|used| used.milli),
            Some(1000),
            "{queues:#?}"
        );
        let more = || vec![job("more", json!({"gpus": 1, "queue": "small"}))];
        let waits = suppose(&outlook, more());
        let wait = waits[0].wait.as_ref().expect("a reason");
        assert_eq!(wait.reason(), stoke_api::Reason::WaitingForQuota, "{wait}");
        let larger = outlook.suppose(Supposed {
            jobs: more(),
            queues: vec![queue("small", &json!({"ceiling": {"any": 2}}))],
            ..Supposed::default()
        });
        assert!(larger[0].start.is_some(), "{larger:#?}");
        let taken = Supposed {
            jobs: vec![job("there", json!({}))],
            ..Supposed::default()
        };
        assert_eq!(outlook.taken(&taken), Some(JobId::new("ns/there")));
    }
}
