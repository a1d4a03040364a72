//! Bad days on a real API server: what the job needs is refused, taken away or not there. Each time the job's own status, or the operator's
//! /readyz, says what happened and what to do; nobody asks again at once; and when it is mended the job runs, by itself.

mod access;
mod losing;
mod refused;
mod starting;

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::operators::{Audit, Operators};
use crate::support::{Testbed, eventually, text};
use crate::workers::{Jobs, kwok_node};

/// Nodes of a test; each has 8 GPUs.
const NODES: usize = 3;

/// A namespace, nodes of its own that kwok plays, and a look at all that is asked of the API server meanwhile.
struct Day<'a> {
    audit: Audit,
    // In this order they go: without its node a worker would be long in going.
    jobs: Jobs<'a>,
    _nodes: Nodes<'a>,
}

/// Nodes of a pool; they go with this.
struct Nodes<'a> {
    testbed: &'a Testbed,
    pool: &'static str,
}

impl<'a> Day<'a> {
    fn begin(testbed: &'a Testbed, namespace: &'static str) -> Self {
        let jobs = Jobs::new(testbed, namespace);
        let nodes = Nodes::new(testbed, namespace);
        // Until then the namespace refuses every pod.
        eventually("the namespace's service account", || {
            let found = testbed.get(&["serviceaccount", "default", "-n", namespace]);
            found["metadata"].is_object().then_some(())
        });
        Self {
            audit: Audit::from_now(testbed),
            jobs,
            _nodes: nodes,
        }
    }

    /// A job for these nodes; what is said more is said of its spec.
    fn submit(&self, name: &str, workers: usize, more: &Value) {
        let mut spec = json!({
            "command": ["train"], "workers": workers, "gpus": 8, "processesPerWorker": 1, "retries": 1,
            "image": "stokehold.dev/testbed/pause:1",
            "template": {"spec": {
                "nodeSelector": {"stokehold.dev/testbed": self.jobs.namespace()},
                "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            }},
        });
        merge(&mut spec, more);
        self.jobs.create(name, &spec);
    }

    /// Requests of an operator but for its lease, and but for watches, of which it has one for each kind.
    fn asked(&self, operator: usize) -> Vec<Value> {
        let mut asked = self.audit.of_operator(operator);
        asked.retain(|entry| {
            text(entry, "/objectRef/resource") != "leases" && text(entry, "/verb") != "watch"
        });
        asked
    }

    /// Those of its requests that were turned down.
    fn turned_down(&self, operator: usize) -> Vec<Value> {
        let mut asked = self.asked(operator);
        asked.retain(|entry| entry["responseStatus"]["code"].as_u64() >= Some(400));
        asked
    }

    /// Nobody spins: from the first word to the last, so many requests at most.
    fn was_calm(&self, operator: usize, most: usize) {
        let asked = self.asked(operator);
        let lines = asked.iter().map(|entry| {
            let at = text(entry, "/requestReceivedTimestamp");
            let code = &entry["responseStatus"]["code"];
            format!(
                "{at} {} {} {code}",
                text(entry, "/verb"),
                text(entry, "/requestURI")
            )
        });
        let lines: Vec<String> = lines.collect();
        println!("{} requests", lines.len());
        assert!(lines.len() <= most, "{} requests: {lines:#?}", lines.len());
    }
}

impl<'a> Nodes<'a> {
    fn new(testbed: &'a Testbed, pool: &'static str) -> Self {
        let nodes = Self { testbed, pool };
        nodes.clear();
        let objects = (0..NODES).map(|n| kwok_node(&format!("{pool}-{n}"), pool));
        testbed.create(&objects.collect::<Vec<_>>());
        nodes
    }

    fn clear(&self) {
        let selector = format!("stokehold.dev/testbed={}", self.pool);
        let mut delete = self.testbed.kubectl(&["delete", "nodes", "-l", &selector]);
        let _ = delete.arg("--ignore-not-found").output();
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// One operator, as its own account, that leads already.
fn operator<'a>(testbed: &'a Testbed, arguments: &'a [&'a str]) -> (Operators<'a>, usize) {
    let mut operators = Operators::new(testbed, arguments);
    let number = operators.start();
    operators.leads(number);
    (operators, number)
}

/// Waits until there are so many, and checks that each was waited for at least as long as said.
fn waited(what: &str, waits: &[Duration], times: impl Fn() -> Vec<Timestamp>) {
    let times = eventually(what, || {
        let times = times();
        (times.len() > waits.len()).then_some(times)
    });
    for ((pair, wait), n) in times.windows(2).zip(waits).zip(1..) {
        let passed = pair[1].duration_since(pair[0]);
        // What is counted from is a moment later than what is logged.
        let least = jiff::SignedDuration::try_from(*wait / 10 * 9).expect("a short time");
        assert!(
            passed >= least,
            "{what}: only {passed:?} after number {n}: {times:#?}"
        );
    }
}

fn at(entry: &Value) -> Timestamp {
    let text = text(entry, "/requestReceivedTimestamp");
    text.parse().expect("a time")
}

/// Objects are merged, everything else is replaced.
fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

fn says(text: &Value, parts: &[&str]) {
    let text = text.as_str().unwrap_or_default();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
