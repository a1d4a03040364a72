//! A node is drained for its upgrade, as `kubectl drain` does it, under a gang that spans two.

use serde_json::{Value, json};

use crate::release::{self, succeed};
use crate::support::{self, Testbed, eventually};
use crate::workers::{self, Jobs, host_programs};

/// Takes work again when the test ends, however it ends.
pub struct Drained<'a> {
    testbed: &'a Testbed,
    node: &'a str,
}

impl Drop for Drained<'_> {
    fn drop(&mut self) {
        let _ = self.testbed.kubectl(&["uncordon", self.node]).output();
    }
}

pub fn drain<'a>(testbed: &'a Testbed, node: &'a str) -> Drained<'a> {
    let drained = Drained { testbed, node };
    succeed(&mut testbed.kubectl(&[
        "drain",
        node,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        "--force",
        "--timeout=120s",
    ]));
    drained
}

/// A job that holds GPUs of one node.
fn hold(jobs: &Jobs<'_>, name: &str, node: &str, gpus: u32) {
    let mut template = host_programs(&[]);
    template["spec"]["nodeSelector"]["kubernetes.io/hostname"] = json!(node);
    let spec = json!({"command": ["sleep", "3600"], "gpus": gpus, "processesPerWorker": 1, "template": template});
    jobs.create(name, &spec);
    jobs.wait(name, "Running");
}

#[test]
fn a_drained_node_restarts_the_gang_whole_on_the_rest() {
    let Some(testbed) = support::testbed() else {
        return;
    };
    let nodes = testbed.nodes();
    let [first, second] = nodes.as_slice() else {
        eprintln!("skipped: no two real nodes (make kube-up as root)");
        return;
    };
    // Other tests' workers must not be on the node that is drained.
    let Some(_release) = release::exclusive(&testbed) else {
        return;
    };
    let jobs = Jobs::new(&testbed, "draining");
    // Half of each node is taken, so that the gang spans both; then it is free, so that one node could hold the gang.
    hold(&jobs, "holds-first", first, 2);
    hold(&jobs, "holds-second", second, 2);
    let gang =
        json!({"command": ["sleep", "3600"], "workers": 2, "gpus": 2, "processesPerWorker": 1});
    jobs.create("gang", &gang);
    jobs.wait("gang", "Running");
    for holder in ["holds-first", "holds-second"] {
        jobs.delete(holder);
        eventually("the holder to be gone", || {
            workers::is_empty(&jobs.pods(holder)).then_some(())
        });
    }
    let before = jobs.pods("gang");
    let spans = |pods: &Value| -> Vec<String> {
        let nodes = pods
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| &pod["node"]);
        let mut nodes: Vec<_> = nodes.filter_map(Value::as_str).map(str::to_owned).collect();
        nodes.sort();
        nodes
    };
    assert_eq!(spans(&before), [first.clone(), second.clone()]);

    let _drained = drain(&testbed, first);
    let status = jobs.wait_until("gang", "to run again", |status| {
        status["attempt"] == 2 && status["phase"] == "Running"
    });
    assert_eq!(
        status["attempts"][0]["outcome"], "Interrupted",
        "{status:#}"
    );
    assert_eq!(
        status["failures"], 0,
        "a drained node is no failure: {status:#}"
    );
    assert_eq!(
        status["attempts"][1]["nodes"],
        json!([second, second]),
        "{status:#}"
    );

    // Whole: the worker on the other node was restarted too.
    let after = jobs.pods("gang");
    assert_eq!(spans(&after), [second.clone(), second.clone()]);
    let uids = |pods: &Value| -> Vec<Value> {
        let pods = pods.as_array().into_iter().flatten();
        pods.map(|pod| pod["uid"].clone()).collect()
    };
    assert!(
        uids(&after).iter().all(|uid| !uids(&before).contains(uid)),
        "{before:#} {after:#}"
    );
}
