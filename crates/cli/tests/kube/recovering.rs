//! On real kubelets: a job that died for want of something is given it, or is told at once that nothing helps; and what runs needed is
//! known to the next.

use serde_json::{Value, json};

use crate::failing;
use crate::memory_guard::python;
use crate::release;
use crate::workers::{Jobs, host_programs};

/// Waits for a job's end and gives its status.
fn ended(jobs: &Jobs<'_>, name: &str) -> Value {
    jobs.wait_until(name, "to end", |status| {
        matches!(status["phase"].as_str(), Some("Complete" | "Failed"))
    })
}

#[test]
fn what_a_job_died_for_want_of_it_is_given() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "recovering");
    jobs.create(
        "cuda",
        &json!({"command": python(failing::CUDA), "memory": {"limit": "256Mi"}}),
    );
    let mut template = host_programs(&[]);
    failing::with_small_shm(&mut template);
    jobs.create(
        "shared",
        &json!({
            "command": python(failing::SHARED), "memory": {"limit": "512Mi"}, "template": template,
        }),
    );
    let mut template = host_programs(&[]);
    failing::with_little_disk(&mut template);
    jobs.create(
        "fills",
        &json!({
            "command": python(failing::FILLS), "memory": {"limit": "128Mi"}, "template": template,
        }),
    );
    jobs.create("hopeless", &json!({
        "command": python(failing::LEAKS), "memory": {"limit": "128Mi", "max": "160Mi"}, "retries": 50,
    }));
    failing::check_cuda(&ended(&jobs, "cuda"));
    failing::check_shared(&ended(&jobs, "shared"));
    failing::check_hopeless(&ended(&jobs, "hopeless"));
    failing::check_fills(&ended(&jobs, "fills"));
}

#[test]
fn from_the_second_run_on_a_job_is_given_what_it_needs() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let jobs = Jobs::new(&testbed, "learning");
    for run in 1..=10 {
        let name = format!("steady-{run}");
        let spec = json!({"command": python(failing::STEADY), "cpus": "100m", "memory": null});
        jobs.create(&name, &spec);
        let status = ended(&jobs, &name);
        let pod = format!("{name}-1-0");
        let logs = release::succeed(&mut testbed.kubectl(&["logs", &pod, "-n", jobs.namespace()]));
        failing::check_steady(run, &status, &logs);
    }
}
