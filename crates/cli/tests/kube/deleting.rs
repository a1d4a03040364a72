//! A job deleted in whatever it is doing takes all with it: objects, processes and cgroups.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::release;
use crate::support::{Testbed, eventually_or};
use crate::workers::{Jobs, host_programs};

/// Everything a job may own.
const KINDS: &str =
    "trainjobs,pods,services,endpointslices,networkpolicies,secrets,persistentvolumeclaims";

struct Case {
    name: &'static str,
    spec: Value,
    /// Whether the job does what it is deleted in.
    reached: fn(&Value) -> bool,
}

fn in_phase(status: &Value, phase: &str) -> bool {
    status["phase"] == phase
}

fn cases() -> Vec<Case> {
    // Deaf to being asked to end, so that its gang stays in the midst of restarting.
    let deaf = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
        time.sleep(1)\nos.environ['STOKE_RANK'] == '0' and os._exit(3)\ntime.sleep(3600)";
    let mut patient = host_programs(&[]);
    patient["spec"]["terminationGracePeriodSeconds"] = json!(20);
    vec![
        Case {
            name: "queued",
            spec: json!({"command": ["true"], "gpus": 1000}),
            reached: |status| in_phase(status, "Queued") && status["reason"].is_string(),
        },
        Case {
            name: "starting",
            spec: json!({"command": ["true"], "workers": 2, "image": "stokehold.dev/testbed/none:1",
                "checkpoint": {"path": "/checkpoints", "storageClass": "none"}}),
            reached: |status| !status["phase"].is_null(),
        },
        Case {
            name: "starting-mpi",
            spec: json!({"command": ["true"], "framework": "mpi", "workers": 2, "image": "stokehold.dev/testbed/none:1"}),
            reached: |status| in_phase(status, "Starting"),
        },
        Case {
            name: "running",
            spec: json!({"command": ["sleep", "3600"], "workers": 2}),
            reached: |status| in_phase(status, "Running"),
        },
        Case {
            name: "restarting",
            spec: json!({"command": ["python3", "-c", deaf], "workers": 2, "template": patient}),
            reached: |status| in_phase(status, "Restarting"),
        },
        Case {
            name: "backing-off",
            spec: json!({"command": ["false"], "retries": 50}),
            reached: |status| {
                status["reason"] == "BackingOff" && status["attempt"].as_u64() > Some(1)
            },
        },
        Case {
            name: "complete",
            spec: json!({"command": ["true"], "workers": 2}),
            reached: |status| in_phase(status, "Complete"),
        },
        Case {
            name: "failed",
            spec: json!({"command": ["false"], "retries": 0}),
            reached: |status| in_phase(status, "Failed"),
        },
        Case {
            name: "suspended",
            spec: json!({"command": ["true"], "suspend": true}),
            reached: |status| in_phase(status, "Suspended"),
        },
    ]
}

#[test]
fn a_job_deleted_in_any_phase_leaves_nothing() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "deleting");
    let ours_before = objects(&testbed, &jobs);
    for case in cases() {
        jobs.create(case.name, &case.spec);
        jobs.wait_until(case.name, "to do what it is deleted in", case.reached);
        let workers = jobs.pods(case.name);
        let uids: Vec<_> = workers.as_array().into_iter().flatten().collect();
        let uids: Vec<_> = uids.iter().filter_map(|pod| pod["uid"].as_str()).collect();
        if matches!(case.name, "running" | "restarting") {
            assert!(
                !processes(&uids).is_empty(),
                "{}: no process of its pods is found",
                case.name
            );
            assert!(
                !cgroups(&uids).is_empty(),
                "{}: no cgroup of its pods is found",
                case.name
            );
        }

        jobs.delete(case.name);
        let left = || {
            let mut left = objects(&testbed, &jobs);
            left.retain(|object| !ours_before.contains(object));
            left.extend(processes(&uids));
            left.extend(cgroups(&uids).iter().map(|dir| dir.display().to_string()));
            left
        };
        eventually_or(
            &format!("nothing to be left of a job deleted while {}", case.name),
            || left().is_empty().then_some(()),
            || format!("{:#?}", left()),
        );
    }
}

/// What is in the namespace, as `kind/name`.
fn objects(testbed: &Testbed, jobs: &Jobs<'_>) -> Vec<String> {
    let mut command = testbed.kubectl(&["get", KINDS, "-n", jobs.namespace(), "-o", "name"]);
    let output = command.output().expect("kubectl");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // An answer that did not come is not an empty one.
    if !output.status.success() {
        return vec![String::from_utf8_lossy(&output.stderr).into_owned()];
    }
    text.lines().map(str::to_owned).collect()
}

/// Processes in the cgroups of these pods. The kubelet names a pod's cgroup by the pod's uid.
fn processes(uids: &[&str]) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pods = entries.filter_map(|entry| {
        let cgroup = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let command = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        uids.iter()
            .any(|uid| cgroup.contains(uid))
            .then(|| format!("{}: {}", entry.path().display(), command.replace('\0', " ")))
    });
    pods.collect()
}

/// Cgroups of these pods, in every hierarchy.
fn cgroups(uids: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut to_visit = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((dir, depth)) = to_visit.pop() {
        for entry in children(&dir) {
            let name = entry
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if uids.iter().any(|uid| name.contains(uid)) {
                found.push(entry);
            } else if depth < 6 {
                to_visit.push((entry, depth + 1));
            }
        }
    }
    found
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let dirs = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).collect()
}
