//! A job that died for want of something is given it, or is told at once that nothing helps; and what runs needed is known to the next.

use serde_json::{Value, json};

use crate::failing;
use crate::support::Engine;

fn bare_template() -> Value {
    json!({"spec": {"containers": [{"name": "worker", "volumeMounts": []}], "volumes": []}})
}

#[test]
fn a_batch_that_does_not_fit_the_gpu_is_cut_into_smaller_parts() {
    let engine = Engine::start();
    let script = engine.write("cuda.py", failing::CUDA);
    let spec = json!({"command": ["python3", script], "memory": {"limit": "256Mi"}});
    let job = engine.run("cuda", &spec);
    failing::check_cuda(&job["status"]);
    let told = engine.stoke(&["explain", "cuda"]);
    assert!(told.contains("micro-batch of 1/2"), "{told}");
    assert!(
        told.contains("CUDA out of memory"),
        "the evidence is quoted: {told}"
    );
    assert!(engine.stoke(&["logs", "cuda"]).contains("trained with 0.5"));
}

#[test]
fn a_shared_memory_that_is_full_is_larger_the_next_time() {
    let engine = Engine::start();
    let script = engine.write("shared.py", failing::SHARED);
    let mut template = bare_template();
    failing::with_small_shm(&mut template);
    let spec =
        json!({"command": ["python3", script], "memory": {"limit": "512Mi"}, "template": template});
    let job = engine.run("shared", &spec);
    failing::check_shared(&job["status"]);
}

#[test]
fn local_disk_that_was_too_small_is_larger_the_next_time() {
    let engine = Engine::start();
    let script = engine.write("fills.py", failing::FILLS);
    let mut template = bare_template();
    failing::with_little_disk(&mut template);
    let spec =
        json!({"command": ["python3", script], "memory": {"limit": "128Mi"}, "template": template});
    let job = engine.run("fills", &spec);
    failing::check_fills(&job["status"]);
}

#[test]
fn a_leak_that_nothing_can_hold_fails_at_once_with_the_reason() {
    let engine = Engine::start();
    let script = engine.write("leaks.py", failing::LEAKS);
    let memory = json!({"limit": "128Mi", "max": "160Mi"});
    let spec = json!({"command": ["python3", script], "memory": memory, "retries": 50});
    let job = engine.run("leaks", &spec);
    failing::check_hopeless(&job["status"]);
    let told = engine.stoke(&["explain", "leaks"]);
    assert!(told.contains("160 MiB"), "{told}");
}

#[test]
fn from_the_second_run_on_a_job_is_given_what_it_needs() {
    let engine = Engine::start();
    let script = engine.write("steady.py", failing::STEADY);
    let spec = json!({"command": ["python3", script], "cpus": "100m"});
    for i in 1..=10 {
        let name = format!("steady-{i}");
        let job = engine.run(&name, &spec);
        let logs = engine.stoke(&["logs", &name]);
        failing::check_steady(i, &job["status"], &logs);
    }
    let picture = engine.stoke(&["memory", "steady-10"]);
    println!("{picture}");
    for part in ["█", "limit", "promised", "The next run", "10 runs"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
}
