//! No right is missing and none is spare: the operator, the agents and the data drivers are taken through everything they do, and the API
//! server's audit log says which of their rights that took.

use serde_json::{Value, json};

use crate::audit::{self, Differences};
use crate::chart;
use crate::release::{self, NAMESPACE, succeed};
use crate::support::{self, Testbed, eventually};
use crate::workers::Jobs;

const JOBS: &str = "rights";

/// Without what operators outside of the cluster were denied: other tests take rights away from those, and their tokens are of no pod.
fn log(testbed: &Testbed) -> Vec<Value> {
    let text = std::fs::read_to_string(testbed.audit()).expect("the audit log");
    let is_outside = |event: &Value| {
        let of_pod = &event["user"]["extra"]["authentication.kubernetes.io/pod-name"];
        let is_denied = event["annotations"]["authorization.k8s.io/decision"] == "forbid";
        is_denied && of_pod.is_null()
    };
    // The last line may be half written.
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event| !is_outside(event))
        .collect()
}

fn holder(testbed: &Testbed) -> String {
    let lease = testbed.get(&["lease", "stokehold-operator", "-n", NAMESPACE]);
    lease["spec"]["holderIdentity"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Everything that the operator and the agents can be brought to do.
fn exercise(testbed: &Testbed, jobs: &Jobs) {
    // A name that is taken: the pod is read to see whose it is, and the job waits until it has gone.
    jobs.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "taken-1-0"},
        "spec": {"nodeSelector": {"nowhere": "at-all"}, "containers": [{"name": "c", "image": "none"}]},
    }));
    jobs.create("taken", &json!({"command": ["true"]}));
    // A claim that is there already is read as well; one that is not is made. Neither is ever bound here, and need not be.
    jobs.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept-checkpoint"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }));
    for name in ["kept", "made"] {
        jobs.create(
            name,
            &json!({"command": ["true"], "checkpoint": {"path": "/ckpt", "size": "1Mi"}}),
        );
    }
    // A gang that fails once: names and rules for its network, workers that are stopped, a second attempt that finds them there.
    let script =
        "test $STOKE_ATTEMPT = 2 && exit 0; test $STOKE_RANK = 1 && exit 1; exec sleep 600";
    jobs.create(
        "gang",
        &json!({"command": ["sh", "-c", script], "workers": 2, "retries": 1}),
    );
    // What its workers know each other by.
    jobs.create(
        "ring",
        &json!({"framework": "mpi", "command": ["true"], "workers": 2, "retries": 0}),
    );
    // One that is cleared away.
    jobs.create("brief", &json!({"command": ["true"], "ttl": "1s"}));
    // Two runs of one kind, long enough for the agent to measure: a profile is made, and then added to.
    for name in ["first", "second"] {
        jobs.create(name, &json!({"command": ["sleep", "8"]}));
        jobs.wait(name, "Complete");
    }
    outlive_a_profile(testbed, jobs);
    // A dataset whose keys are in a Secret that holds none: the driver reads it, and says so on the dataset and on the pod.
    jobs.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "no-keys"}}));
    jobs.apply(&json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": "locked"},
        "spec": {"uri": "s3://bucket/locked", "secret": "no-keys"},
    }));
    jobs.create(
        "locked-out",
        &json!({"command": ["true"], "datasets": [{"name": "locked", "path": "/data"}]}),
    );
    jobs.wait_until("locked-out", "to say that it has no keys", |status| {
        let message = status["message"].as_str();
        message.is_some_and(|it| it.contains("its keys are in Secret no-keys"))
    });
    jobs.delete("locked-out");
    // One that was killed, nobody knows by whom: Events may tell.
    jobs.create(
        "killed",
        &json!({"command": ["sh", "-c", "exit 137"], "retries": 0}),
    );
    jobs.wait("killed", "Failed");
    ask_for_a_checkpoint(testbed, jobs);
    // One that needs more than it was given, and is given it.
    let grows = "import time\nkept = []\nfor _ in range(80): kept.append(bytearray(b'x' * (1 << 20))); time.sleep(0.05)";
    jobs.create(
        "grows",
        &json!({"command": ["/usr/bin/python3", "-c", grows], "memory": {"limit": "64Mi", "max": "256Mi"}}),
    );
    jobs.wait("grows", "Complete");
    // One for the agent to look at.
    jobs.create("steady", &json!({"command": ["sleep", "600"]}));

    // The same complaint twice is one Event, counted.
    jobs.create(
        "wanting",
        &json!({"command": ["true"], "datasets": [{"name": "absent", "path": "/data"}]}),
    );
    for (suspend, phase) in [(false, "Queued"), (true, "Suspended"), (false, "Queued")] {
        jobs.patch("wanting", &json!({"spec": {"suspend": suspend}}));
        jobs.wait("wanting", phase);
    }

    // A queue is told how it stands.
    jobs.apply(&json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Queue", "metadata": {"name": JOBS}, "spec": {"guaranteed": {"any": 1}},
    }));
    eventually("the queue to say that it can be used", || {
        let queue = testbed.get(&["queue.stokehold.dev", JOBS]);
        let usable = &queue["status"]["conditions"][0];
        (usable["type"] == "Usable" && usable["status"] == "True").then_some(())
    });
    succeed(&mut testbed.kubectl(&["delete", "queue.stokehold.dev", JOBS]));

    jobs.wait("gang", "Complete");
    jobs.wait("steady", "Running");
    eventually("the name to be found taken", || {
        let job = jobs.get("taken");
        job["status"]
            .to_string()
            .contains("taken-1-0")
            .then_some(())
    });
    succeed(&mut testbed.kubectl(&[
        "delete",
        "pod",
        "taken-1-0",
        "-n",
        JOBS,
        "--grace-period=0",
        "--force",
    ]));
    jobs.wait("taken", "Complete");
    eventually("the brief job to be cleared away", || {
        let found = testbed
            .kubectl(&["get", "trainjob", "brief", "-n", JOBS])
            .output();
        (!found.expect("kubectl").status.success()).then_some(())
    });

    // The leader is killed, and the other takes over.
    let before = eventually("a leader", || {
        Some(holder(testbed)).filter(|holder| !holder.is_empty())
    });
    let pods = testbed.get(&[
        "pods",
        "-n",
        NAMESPACE,
        "-l",
        "app.kubernetes.io/component=operator",
    ]);
    let leader = pods["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|pod| pod["metadata"]["name"].as_str())
        .find(|name| before.starts_with(name))
        .expect("the leader is a pod of ours");
    succeed(&mut testbed.kubectl(&[
        "delete",
        "pod",
        leader,
        "-n",
        NAMESPACE,
        "--grace-period=0",
        "--force",
    ]));
    eventually("another leader", || {
        Some(holder(testbed)).filter(|holder| !holder.is_empty() && *holder != before)
    });
    jobs.create("after", &json!({"command": ["true"]}));
    jobs.wait("after", "Complete");
}

/// A profile that no run has touched for a quarter of a century, beside one that was touched just now.
fn outlive_a_profile(testbed: &Testbed, jobs: &Jobs) {
    jobs.apply(&json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "JobProfile", "metadata": {"name": "forgotten"},
        "spec": {"version": 1, "fingerprint": "forgotten", "lastRun": "2001-01-01T00:00:00Z"},
    }));
    eventually("the forgotten profile to be deleted", || {
        let found = testbed
            .kubectl(&["get", "jobprofile", "forgotten", "-n", JOBS])
            .output();
        (!found.expect("kubectl").status.success()).then_some(())
    });
}

/// A worker that its node says to be at the end of its memory: the operator asks all of its gang to save.
fn ask_for_a_checkpoint(testbed: &Testbed, jobs: &Jobs) {
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "rights-checkpoint"},
        "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "hostPath": {"path": "/tmp", "type": "Directory"}, "claimRef": {"namespace": JOBS, "name": "saving-checkpoint"}}});
    jobs.apply(&volume);
    jobs.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "saving-checkpoint"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "rights-checkpoint",
            "resources": {"requests": {"storage": "1Mi"}}},
    }));
    jobs.create(
        "saving",
        &json!({"command": ["sleep", "600"], "checkpoint": {"path": "/ckpt", "size": "1Mi"}}),
    );
    jobs.wait("saving", "Running");
    let asked = jobs.get("saving")["status"]["attempts"][0]["runningAt"].clone();
    let asked = asked.as_str().expect("a time");
    let risk = json!({"since": asked, "why": "a test says so", "stage": "AtTheEnd", "checkpointAskedAt": asked});
    let risk = format!("stokehold.dev/memory-risk={risk}");
    succeed(&mut testbed.kubectl(&["annotate", "pod", "saving-1-0", "-n", JOBS, &risk]));
    eventually("the worker to be asked for a checkpoint", || {
        let pod = testbed.get(&["pod", "saving-1-0", "-n", JOBS]);
        let request = &pod["metadata"]["annotations"]["stokehold.dev/checkpoint-request"];
        (!request.is_null()).then_some(())
    });
    succeed(&mut testbed.kubectl(&["delete", "trainjob", "saving", "-n", JOBS]));
    succeed(&mut testbed.kubectl(&["delete", "pv", "rights-checkpoint", "--wait=false"]));
}

#[test]
fn nothing_is_denied_and_no_right_is_spare() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let objects = chart::rendered(Some("testbed.yaml")).expect("helm is there");
    let jobs = Jobs::new(&testbed, JOBS);
    exercise(&testbed, &jobs);

    let accounts = ["stokehold-operator", "stokehold-agent", "stokehold-data"];
    let compare = || {
        let log = log(&testbed);
        accounts.map(|account| {
            let rights = audit::rights(&objects, NAMESPACE, account).expect("no wildcard");
            audit::compare(&rights, &log, NAMESPACE, account)
        })
    };
    // The agent writes what a worker uses a few seconds after it started.
    let deadline = std::time::Instant::now() + support::PATIENCE;
    while compare().iter().any(|found| !found.spare.is_empty())
        && std::time::Instant::now() < deadline
    {
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    for (account, found) in accounts.iter().zip(compare()) {
        assert_eq!(found, Differences::default(), "{account}");
    }
}
