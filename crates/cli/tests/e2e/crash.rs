//! The engine dies, the training does not.

use std::time::Duration;

use serde_json::json;

use crate::random::Random;
use crate::support::{Engine, eventually};

/// Prints a numbered line every few milliseconds, with its process id, so that a lost, doubled or restarted line shows.
const COUNTER: &str = r#"
import os, sys, time
for i in range(int(sys.argv[1])):
    print(f"pid={os.getpid()} line={i}", flush=True)
    time.sleep(0.02)
"#;

#[test]
fn a_training_outlives_twenty_deaths_of_the_engine() {
    let mut random = Random::new("engine deaths");
    let engine = Engine::start();
    let script = engine.write("count.py", COUNTER);
    engine.stoke(&[
        "run",
        "--detach",
        "--name",
        "counter",
        "--retries",
        "0",
        "--",
        "python3",
        &script,
        "1500",
    ]);
    engine.wait_for_phase("counter", "Running");

    for death in 1..=20 {
        std::thread::sleep(Duration::from_millis(random.below(700)));
        engine.kill();
        std::thread::sleep(Duration::from_millis(random.below(200)));
        engine.up();
        let job = engine.job("counter");
        assert_eq!(
            job["status"]["attempt"], 1,
            "after death {death}: {:#}",
            job["status"]
        );
    }

    engine.wait_for_phase("counter", "Complete");
    let lines = engine.stoke(&["logs", "counter"]);
    let lines: Vec<&str> = lines.lines().collect();
    let pid = lines[0].split(' ').next().expect("a pid");
    let expected: Vec<String> = (0..1500).map(|line| format!("{pid} line={line}")).collect();
    assert_eq!(
        lines, expected,
        "no line is lost or doubled, and the process is the same"
    );
}

/// Death at the moments that matter most: while a job is submitted, placed, started and finished.
#[test]
fn jobs_submitted_around_deaths_run_exactly_once() {
    let mut random = Random::new("deaths around submissions");
    let engine = Engine::start();
    let marks = engine.folder().join("marks");
    std::fs::create_dir(&marks).expect("a folder");
    let script = r#"import os, sys; open(f"{sys.argv[1]}/{sys.argv[2]}", "a").write("ran\n")"#;
    let script = engine.write("mark.py", script);

    for round in 0..8 {
        let name = format!("job-{round}");
        let marks = marks.to_str().expect("UTF-8");
        engine.stoke(&[
            "run", "--detach", "--name", &name, "--", "python3", &script, marks, &name,
        ]);
        std::thread::sleep(Duration::from_millis(random.below(150)));
        engine.kill();
        engine.up();
    }
    for round in 0..8 {
        let name = format!("job-{round}");
        let job = engine.wait_for_phase(&name, "Complete");
        let ran = eventually("the mark", || {
            std::fs::read_to_string(marks.join(&name)).ok()
        });
        assert_eq!(
            ran, "ran\n",
            "{name} ran more than once: {:#}",
            job["status"]
        );
    }
}

/// What an engine that was killed at the wrong moment leaves behind goes at the next start; nobody's data does.
#[test]
fn what_nobody_owns_is_swept_at_the_start_and_data_is_not() {
    let engine = Engine::start();
    let spec = json!({
        "command": ["sh", "-c", "echo weights > /ckpt/file"], "checkpoint": {"path": "/ckpt", "size": "1Mi", "onDelete": "keep"},
    });
    engine.run("keeper", &spec);
    engine.wait_for_phase("keeper", "Complete");
    engine.stoke(&["delete", "keeper"]);
    engine.kill();
    let volumes = engine.data_dir().join("volumes/default");
    let pod = engine
        .data_dir()
        .join("pods/3e1f0c52-0000-4000-8000-000000000000");
    std::fs::create_dir_all(pod.join("logs/worker")).expect("made");
    std::fs::create_dir_all(volumes.join("half-made")).expect("made");
    std::fs::create_dir_all(volumes.join("mine")).expect("made");
    std::fs::write(volumes.join("mine/file"), "data").expect("written");
    engine.up();
    eventually("orphans to go", || {
        (!pod.exists() && !volumes.join("half-made").exists()).then_some(())
    });
    assert!(volumes.join("mine/file").exists(), "data is kept");
    let kept = volumes.join("keeper-checkpoint/file");
    assert!(kept.exists(), "a volume that was to be kept is");
}
