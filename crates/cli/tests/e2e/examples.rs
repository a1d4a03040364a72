//! The examples train for real.

use std::path::{Path, PathBuf};

use crate::support::{Engine, have, python_with, said};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(name)
        .join("job.yaml")
}

/// Runs an example to its end and gives the losses it printed, in order.
fn train(name: &str, python: &str) -> Vec<f64> {
    let engine = Engine::start();
    // The interpreter that has what the example needs comes first on the path, as in an activated environment.
    let found = std::process::Command::new(python)
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let found = String::from_utf8(found.expect("python runs").stdout).expect("UTF-8");
    let bin = Path::new(found.trim())
        .parent()
        .expect("a folder")
        .display()
        .to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());

    let job = example(name);
    let output = engine
        .command(&["run", job.to_str().expect("UTF-8")])
        .env("PATH", path)
        .output()
        .expect("stoke runs");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let losses: Vec<f64> = text
        .lines()
        .filter_map(|line| {
            line.split("loss ")
                .nth(1)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .collect();
    assert!(losses.len() >= 3, "{text}");
    losses
}

fn falls(losses: &[f64]) {
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last < first * 0.9, "the loss must fall: {losses:?}");
}

#[test]
fn a_language_model_trains_with_pytorch_ddp() {
    match python_with("torch") {
        Some(python) => falls(&train("charlm-ddp", &python)),
        None => println!("skipped: no Python here has torch"),
    }
}

#[test]
fn a_language_model_trains_with_mpi() {
    match python_with("mpi4py, numpy").filter(|_| have("mpirun")) {
        Some(python) => falls(&train("charlm-mpi", &python)),
        None => println!("skipped: mpirun or mpi4py is not here"),
    }
}

#[test]
fn a_job_in_a_queue_trains_on_half_a_gpu() {
    let engine = Engine::start_with(&["--gpus", "1"]);
    let folder = example("queues");
    let queues = folder.with_file_name("queues.yaml");
    let files = [&queues, &folder].map(|path| path.to_str().expect("UTF-8"));
    let output = engine.try_stoke(&["run", files[0], files[1]]);
    assert!(output.status.success(), "{}", said(&output));
    let shown = engine.stoke(&["queue", "research"]);
    assert!(shown.contains("└─ vision"), "{shown}");
}

#[test]
fn a_plain_script_trains() {
    falls(&train("plain", "python3"));
}
