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

/// Keeps three MiB more each step and says where it is. The first attempt ends in one large allocation that nobody can see coming.
const SURPRISES: &str = r#"
import json, os, time
directory, attempt = os.environ["STOKE_CHECKPOINT_DIR"], os.environ["STOKE_ATTEMPT"]
def load():
    try:
        return int(open(f"{directory}/step").read())
    except FileNotFoundError:
        return 0
saved, seen, kept = load(), "", []
for step in range(saved, 80):
    kept.append(bytearray(b"x" * (3 << 20)))
    time.sleep(0.25)
    if attempt == "1" and step == 48:
        kept.append(bytearray(b"x" * (400 << 20)))
    asked = open(os.environ["STOKE_CHECKPOINT_REQUEST"]).read()
    if asked and asked != seen:
        seen, saved = asked, step + 1
        with open(f"{directory}/step.new", "w") as file:
            file.write(str(saved))
        os.rename(f"{directory}/step.new", f"{directory}/step")
        print(f"saved at {saved}: {asked}", flush=True)
    path = os.environ["STOKE_STATUS_FILE"]
    with open(path + ".new", "w") as file:
        json.dump({"phase": "train", "step": step + 1, "saved_step": saved}, file)
    os.rename(path + ".new", path)
print(f"attempt {attempt} came to the end", flush=True)
"#;

#[test]
fn a_leak_that_was_killed_begins_anew_every_so_many_steps() {
    let engine = Engine::start();
    let script = engine.write("surprises.py", SURPRISES);
    let spec = json!({
        "command": ["python3", script], "memory": {"limit": "256Mi"},
        "checkpoint": {"path": "/ckpt", "size": "1Gi"}, "retries": 1,
    });
    let job = engine.run("surprises", &spec);
    assert_eq!(job["status"]["phase"], "Complete");
    let attempts = job["status"]["attempts"].as_array().expect("attempts");
    assert_eq!(attempts[0]["outcome"], "Failed");
    let steps = attempts[1]["tuning"]["restartEvery"]["steps"].as_u64();
    let steps = steps.expect("a schedule by steps");
    assert!((5..70).contains(&steps), "{steps}");
    let change = attempts[1]["changes"][0].as_str().unwrap_or_default();
    let said = format!("every {steps} steps, before its memory is full");
    assert!(change.contains(&said), "{change}");
    let restarted = attempts
        .iter()
        .filter(|attempt| attempt["outcome"] == "Restarted");
    assert!(restarted.count() > 0, "its steps were counted");
    let told = engine.stoke(&["explain", "surprises"]);
    assert!(told.contains(&said), "{told}");
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
