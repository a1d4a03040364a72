//! Leaders die at any moment, while jobs come and go: nothing is doubled, nothing is orphaned, no attempt is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::operators::{Audit, Operators, SHORT_LEASE};
use crate::random::Random;
use crate::release::{self, succeed};
use crate::support::{Testbed, eventually, eventually_or, testbed, text};
use crate::workers::kwok_node;

const KILLS: usize = 30;
const JOBS: usize = 40;
const NODES: usize = 12;
const WHERE: &str = "storm";

#[test]
fn nothing_is_lost_or_doubled_however_often_leaders_die() {
    let Some(testbed) = testbed() else { return };
    // Operators of our own, that can be killed by their process.
    let Some(_release) = release::without_operator(&testbed) else {
        return;
    };
    let storm = Storm::begin(&testbed);
    storm.rage();
    storm.check();
    drop(storm);
    takes_over_in_time(&testbed);
    writes_nothing_when_it_comes_back(&testbed);
}

/// A leader that was stopped, as a machine that hangs stops it, and goes on when another leads.
fn writes_nothing_when_it_comes_back(testbed: &Testbed) {
    let mut operators = Operators::new(testbed, &SHORT_LEASE);
    operators.start();
    let first = operators.leader();
    operators.start();
    operators.signal(first, Signal::STOP);
    let second = eventually("another to lead", || {
        Some(operators.leader()).filter(|leader| *leader != first)
    });
    let audit = Audit::from_now(testbed);
    // Both would have something to say of it: there is no node for it.
    testbed.create(&[unplaced("unplaced")]);
    operators.signal(first, Signal::CONT);
    eventually_or(
        "it to notice",
        || {
            let told = operators.told_by(first);
            told.contains("lost the lease; standing by").then_some(())
        },
        || operators.told(),
    );
    assert_eq!(operators.leader(), second);
    eventually("the other to tell", || {
        let job = testbed.get(&["trainjob", "unplaced", "-n", "default"]);
        (text(&job, "/status/reason") == "NoMatchingNodes").then_some(())
    });
    succeed(&mut testbed.kubectl(&["delete", "trainjob", "unplaced", "-n", "default"]));
    let entries = audit.of_operator(first).into_iter();
    let written: Vec<Value> = entries
        .filter(|entry| !matches!(text(entry, "/verb"), "get" | "list" | "watch"))
        // A renewal that it was about to send is refused, for the lease is another's.
        .filter(|entry| text(entry, "/objectRef/resource") != "leases")
        .collect();
    assert!(written.is_empty(), "a loser wrote: {written:#?}");
}

/// With the lease that is shipped, from the moment the leader dies until another has done something for a job that nobody had seen.
fn takes_over_in_time(testbed: &Testbed) {
    const AIM: Duration = Duration::from_secs(20);
    let mut operators = Operators::new(testbed, &[]);
    let first = operators.start();
    operators.leads(first);
    let second = operators.start();
    eventually("the other to stand by", || {
        operators
            .ready(second)
            .ok()
            .filter(|told| told.contains("stands by"))
    });
    // There is no node for it, and so it is told at once that it waits.
    testbed.create(&[unplaced("orphan")]);
    eventually("the leader to have seen it", || {
        let job = testbed.get(&["trainjob", "orphan", "-n", "default"]);
        (text(&job, "/status/reason") == "NoMatchingNodes").then_some(())
    });
    let died = Instant::now();
    operators.kill(first);
    testbed.create(&[unplaced("taken-over")]);
    eventually_or(
        "another to work on it",
        || {
            let job = testbed.get(&["trainjob", "taken-over", "-n", "default"]);
            (text(&job, "/status/reason") == "NoMatchingNodes").then_some(())
        },
        || operators.told(),
    );
    let took = died.elapsed();
    println!(
        "a takeover with the shipped lease took {:.1} s",
        took.as_secs_f64()
    );
    for job in ["orphan", "taken-over"] {
        succeed(&mut testbed.kubectl(&["delete", "trainjob", job, "-n", "default"]));
    }
    assert!(took < AIM, "it took {took:?}");
}

/// A job that waits for ever: what is said of it shows who works.
fn unplaced(name: &str) -> Value {
    json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name, "namespace": "default"},
        "spec": {"image": "none", "command": ["train"], "template": {"spec": {"nodeSelector": {"stokehold.dev/testbed": "none"}}}},
    })
}

/// What is to become of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Completes,
    /// Every attempt does; one retry is allowed.
    Fails,
    RunsOn,
    /// Someone deletes it, at whatever point it is.
    Deleted,
}

#[derive(Debug, Clone)]
struct Job {
    name: String,
    workers: usize,
    fate: Fate,
}

struct Storm<'a> {
    testbed: &'a Testbed,
    jobs: Vec<Job>,
    dice: std::cell::RefCell<Random>,
    audit: Audit,
}

impl<'a> Storm<'a> {
    fn begin(testbed: &'a Testbed) -> Self {
        let mut dice = Random::new("leaders");
        let jobs = (0..JOBS).map(|n| Job {
            name: format!("job-{n}"),
            workers: 1 + dice.below(4) as usize,
            fate: [Fate::Completes, Fate::Fails, Fate::RunsOn, Fate::Deleted][n % 4],
        });
        let jobs: Vec<Job> = jobs.collect();
        clear(testbed);
        let nodes = (0..NODES).map(|n| kwok_node(&format!("storm-{n}"), WHERE));
        testbed.create(&nodes.collect::<Vec<_>>());
        succeed(&mut testbed.kubectl(&["create", "namespace", WHERE]));
        Self {
            testbed,
            jobs,
            dice: dice.into(),
            audit: Audit::from_now(testbed),
        }
    }

    /// Jobs come and go, and the leader is killed again and again, at no moment in particular.
    fn rage(&self) {
        let mut operators = Operators::new(self.testbed, &SHORT_LEASE);
        operators.start();
        operators.start();
        let mut coming = self.jobs.chunks(JOBS.div_ceil(KILLS));
        let mut to_go: Vec<&str> = Vec::new();
        for _ in 0..KILLS {
            let leader = operators.leader();
            let jobs = coming.next().unwrap_or_default();
            let objects: Vec<Value> = jobs.iter().map(Job::object).collect();
            self.testbed.create(&objects);
            let doomed = jobs.iter().filter(|job| job.fate == Fate::Deleted);
            to_go.extend(doomed.map(|job| job.name.as_str()));
            // What came before the last few is deleted, however far it got.
            while to_go.len() > 2 {
                self.delete(to_go.remove(0));
            }
            std::thread::sleep(Duration::from_millis(self.dice.borrow_mut().below(1200)));
            operators.kill(leader);
            operators.start();
        }
        for job in to_go {
            self.delete(job);
        }
        eventually_or(
            "every job to be where it belongs",
            || self.unsettled().is_empty().then_some(()),
            || format!("{:#?}", self.unsettled()),
        );
    }

    fn delete(&self, job: &str) {
        succeed(&mut self.testbed.kubectl(&[
            "delete",
            "trainjob",
            job,
            "-n",
            WHERE,
            "--wait=false",
        ]));
    }

    /// Jobs, and pods of deleted ones, that are not yet as they will be.
    fn unsettled(&self) -> Vec<String> {
        let found = self.found("trainjobs");
        let pods = self.found("pods");
        let unsettled = self.jobs.iter().filter(|job| {
            let phase = found.get(&job.name).map(|job| &job["status"]["phase"]);
            let of_job = pods.values().filter(|pod| job_of(pod) == job.name);
            match job.fate {
                Fate::Completes => phase != Some(&json!("Complete")),
                Fate::Fails => phase != Some(&json!("Failed")),
                Fate::RunsOn => phase != Some(&json!("Running")),
                Fate::Deleted => phase.is_some() || of_job.count() > 0,
            }
        });
        let said = |job: &Job| {
            format!(
                "{job:?}: {:#}",
                found.get(&job.name).unwrap_or(&json!(null))["status"]
            )
        };
        unsettled.map(said).collect()
    }

    fn found(&self, kind: &str) -> BTreeMap<String, Value> {
        let list = self.testbed.get(&[kind, "-n", WHERE]);
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let named = |item: Value| (text(&item, "/metadata/name").to_owned(), item);
        items.into_iter().map(named).collect()
    }

    fn check(&self) {
        let jobs = self.found("trainjobs");
        let pods = self.found("pods");
        for job in self.jobs.iter().filter(|job| job.fate != Fate::Deleted) {
            check_job(job, &jobs[&job.name]["status"], &pods);
        }
        self.check_nothing_is_orphaned(&jobs);
        self.check_nothing_was_doubled();
    }

    /// Whatever is there belongs to a job that is there.
    fn check_nothing_is_orphaned(&self, jobs: &BTreeMap<String, Value>) {
        let uids: BTreeSet<&str> = jobs
            .values()
            .map(|job| text(job, "/metadata/uid"))
            .collect();
        for kind in [
            "pods",
            "services",
            "networkpolicies",
            "secrets",
            "persistentvolumeclaims",
        ] {
            for (name, child) in self.found(kind) {
                let owner = text(&child, "/metadata/ownerReferences/0/uid");
                assert!(
                    uids.contains(owner),
                    "{kind} {name} is of no job: {owner:?}"
                );
            }
        }
    }

    /// By the API server's own log: no pod was ever created a second time, nor one that nobody should have.
    fn check_nothing_was_doubled(&self) {
        let mut expected: BTreeSet<String> = BTreeSet::new();
        for job in &self.jobs {
            let attempts = if job.fate == Fate::Fails { 2 } else { 1 };
            expected.extend((1..=attempts).flat_map(|attempt| job.pods(attempt)));
        }
        let mut created = BTreeSet::new();
        for name in self.pods_created() {
            assert!(expected.contains(&name), "pod {name} was not called for");
            assert!(created.insert(name.clone()), "pod {name} was created twice");
        }
        for job in &self.jobs {
            let was_created = |pod: &String| created.contains(pod);
            match job.fate {
                Fate::Completes | Fate::RunsOn => {
                    let lacking = job.pods(1).into_iter().find(|pod| !was_created(pod));
                    assert_eq!(lacking, None, "never created");
                }
                // The first worker that fails ends the attempt, perhaps before a new leader has created the last.
                Fate::Fails => {
                    for attempt in [1, 2] {
                        assert!(
                            job.pods(attempt).iter().any(was_created),
                            "attempt {attempt} of {job:?} had no pod"
                        );
                    }
                }
                Fate::Deleted => (),
            }
        }
    }

    /// A name for each creation. Where the client died before its answer, the log has a time-out, made or not: made it was if
    /// somebody worked on it before it was created again.
    fn pods_created(&self) -> Vec<String> {
        let mut created = Vec::new();
        let mut unanswered = BTreeSet::new();
        for entry in self.audit.entries() {
            let object = &entry["objectRef"];
            if object["resource"] != "pods" || object["namespace"] != WHERE {
                continue;
            }
            let name = text(&entry, "/objectRef/name").to_owned();
            let creates = entry["verb"] == "create" && object["subresource"].is_null();
            match entry["responseStatus"]["code"].as_u64() {
                Some(201) if creates => {
                    unanswered.remove(&name);
                    created.push(name);
                }
                Some(504) if creates => _ = unanswered.insert(name),
                Some(200..300) if unanswered.remove(&name) => created.push(name),
                _ => (),
            }
        }
        created
    }
}

impl Drop for Storm<'_> {
    fn drop(&mut self) {
        clear(self.testbed);
    }
}

impl Job {
    fn object(&self) -> Value {
        let mut annotations = json!({});
        let ends = matches!(self.fate, Fate::Completes | Fate::Fails);
        if ends {
            annotations["stokehold.dev/testbed-complete-after"] = json!("2s");
        }
        if self.fate == Fate::Fails {
            annotations["stokehold.dev/testbed-exit-code"] = json!("3");
        }
        json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": self.name, "namespace": WHERE},
            "spec": {
                "workers": self.workers, "gpus": 1, "cpus": "1", "memory": {"request": "1Gi", "limit": "1Gi"}, "retries": 1,
                "image": "stokehold.dev/testbed/pause:1", "command": ["train"],
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {
                        "nodeSelector": {"stokehold.dev/testbed": WHERE},
                        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
                    },
                },
            },
        })
    }

    fn pods(&self, attempt: usize) -> Vec<String> {
        let ranks = 0..self.workers;
        ranks
            .map(|rank| format!("{}-{attempt}-{rank}", self.name))
            .collect()
    }
}

fn check_job(job: &Job, status: &Value, pods: &BTreeMap<String, Value>) {
    let said = || format!("{job:?}: {status:#}");
    let attempts = status["attempts"].as_array().cloned().unwrap_or_default();
    let outcomes: Vec<&Value> = attempts.iter().map(|attempt| &attempt["outcome"]).collect();
    let (expected, failures) = match job.fate {
        Fate::Completes => (vec![json!("Succeeded")], 0),
        Fate::Fails => (vec![json!("Failed"), json!("Failed")], 2),
        Fate::RunsOn => (vec![Value::Null], 0),
        Fate::Deleted => return,
    };
    assert_eq!(outcomes, expected.iter().collect::<Vec<_>>(), "{}", said());
    assert_eq!(status["attempt"], expected.len(), "{}", said());
    assert_eq!(
        status["failures"].as_u64().unwrap_or(0),
        failures,
        "{}",
        said()
    );
    let there = pods.iter().filter(|(_, pod)| job_of(pod) == job.name);
    let there: BTreeMap<&String, &str> = there
        .map(|(name, pod)| (name, text(pod, "/status/phase")))
        .collect();
    // When one fails the others are stopped, and some of those may have ended by themselves before.
    if job.fate == Fate::Fails {
        let known = [job.pods(1), job.pods(2)].concat();
        for (name, phase) in there {
            assert!(known.contains(name), "{name}: {}", said());
            assert!(
                phase != "Running" && phase != "Pending",
                "{name} {phase}: {}",
                said()
            );
        }
    } else {
        let phase = if job.fate == Fate::RunsOn {
            "Running"
        } else {
            "Succeeded"
        };
        let own = job.pods(1);
        let expected: BTreeMap<&String, &str> = own.iter().map(|pod| (pod, phase)).collect();
        assert_eq!(there, expected, "{}", said());
    }
}

/// Everything of an earlier storm.
fn clear(testbed: &Testbed) {
    let _ = testbed
        .kubectl(&["delete", "namespace", WHERE, "--ignore-not-found"])
        .output();
    let selector = format!("stokehold.dev/testbed={WHERE}");
    let _ = testbed
        .kubectl(&["delete", "nodes", "-l", &selector, "--ignore-not-found"])
        .output();
    eventually("the earlier storm to be over", || {
        let namespace = testbed.get(&["namespace", WHERE, "--ignore-not-found"]);
        namespace["metadata"].is_null().then_some(())
    });
}

fn job_of(pod: &Value) -> &str {
    text(pod, "/metadata/labels/stokehold.dev~1job")
}
