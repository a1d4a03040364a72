//! Following a job: over the death of its engine, until Ctrl-C, and through `stoke down`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Engine, eventually, said};

const COUNTER: &str = r#"
import os, sys, time
for i in range(int(sys.argv[1])):
    print(f"line {i}", flush=True)
    time.sleep(0.01)
"#;

/// A command that goes on beside the test.
fn spawn(engine: &Engine, arguments: &[&str]) -> Child {
    let mut command = engine.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("stoke runs")
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a pid");
    kill_process(pid, signal).expect("it runs");
}

/// Everything a child says on stderr, once it has ended.
fn last_words(child: &mut Child) -> String {
    let mut words = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut words).expect("text");
    }
    words
}

#[test]
fn a_follower_loses_and_doubles_nothing_when_the_engine_is_killed() {
    let engine = Engine::start();
    let script = engine.write("count.py", COUNTER);
    engine.stoke(&[
        "run",
        "--detach",
        "--name",
        "counted",
        "--workers",
        "2",
        "--memory",
        "64Mi",
        "--retries",
        "0",
        "--",
        "python3",
        &script,
        "400",
    ]);
    let mut follower = spawn(&engine, &["logs", "-f", "counted"]);
    let mut lines = BufReader::new(follower.stdout.take().expect("stdout")).lines();
    let mut heard: Vec<String> = Vec::new();
    for _ in 0..3 {
        // Some lines of this engine, then none of it any more.
        heard.extend(lines.by_ref().take(60).map(|line| line.expect("a line")));
        engine.kill();
        engine.up();
    }
    heard.extend(lines.map(|line| line.expect("a line")));
    let status = follower.wait().expect("it ends");
    assert!(status.success(), "{status}: {}", last_words(&mut follower));
    for rank in 0..2 {
        let expected: Vec<String> = (0..400)
            .map(|line| format!("[{rank}] line {line}"))
            .collect();
        let mark = format!("[{rank}] ");
        let of_rank: Vec<&String> = heard
            .iter()
            .filter(|line| line.starts_with(&mark))
            .collect();
        assert_eq!(of_rank, expected.iter().collect::<Vec<_>>(), "rank {rank}");
    }
    assert_eq!(engine.job("counted")["status"]["attempt"], 1);
}

#[test]
fn ctrl_c_leaves_the_job_running_and_says_how_to_come_back() {
    let engine = Engine::start();
    let mut run = spawn(
        &engine,
        &[
            "run",
            "--name",
            "long",
            "--",
            "sh",
            "-c",
            "echo begun; sleep 1000",
        ],
    );
    let mut lines = BufReader::new(run.stdout.take().expect("stdout")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "begun");
    signal(&run, Signal::INT);
    let status = run.wait().expect("it ends");
    let told = last_words(&mut run);
    assert_eq!(status.code(), Some(130), "{told}");
    assert!(told.contains("stoke logs -f long"), "{told}");
    assert_eq!(engine.job("long")["status"]["phase"], "Running");
    engine.stoke(&["delete", "long", "--wait"]);
}

#[test]
fn down_stops_jobs_and_up_lets_them_go_on_without_blame() {
    let engine = Engine::start();
    // The polite one says that it ended well, though its work was not done; the other just dies.
    for (name, first, engine_is_dead) in [
        ("rude", "exec sleep 1000", false),
        ("polite", "trap 'exit 0' TERM; sleep 1000 & wait", false),
        ("orphaned", "exec sleep 1000", true),
    ] {
        let script =
            format!("echo attempt $STOKE_ATTEMPT; [ $STOKE_ATTEMPT -gt 1 ] && exit 0; {first}");
        engine.stoke(&[
            "run",
            "--detach",
            "--name",
            name,
            "--retries",
            "0",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        engine.wait_for_phase(name, "Running");
        if engine_is_dead {
            engine.kill();
        }
        let down = engine.try_stoke(&["down"]);
        assert!(down.status.success(), "{name}: {}", said(&down));
        assert!(said(&down).contains("1 pod"), "{name}: {}", said(&down));
        let again = engine.try_stoke(&["down"]);
        assert!(
            again.status.success(),
            "nothing is left to stop: {}",
            said(&again)
        );
        engine.up();
        let status = &engine.wait_for_phase(name, "Complete")["status"];
        assert_eq!(status["failures"], 0, "{name}: {status:#}");
        assert_eq!(status["attempt"], 2, "{name}: {status:#}");
        assert_eq!(
            status["attempts"][0]["outcome"], "Interrupted",
            "{name}: {status:#}"
        );
    }
}

#[test]
fn down_can_leave_jobs_running() {
    let engine = Engine::start();
    let script = engine.write("count.py", COUNTER);
    engine.stoke(&[
        "run", "--detach", "--name", "kept", "--", "python3", &script, "300",
    ]);
    engine.wait_for_phase("kept", "Running");
    let down = engine.try_stoke(&["down", "--keep-jobs"]);
    assert!(
        down.status.success() && said(&down).contains("left running"),
        "{}",
        said(&down)
    );
    engine.up();
    let job = engine.wait_for_phase("kept", "Complete");
    assert_eq!(job["status"]["attempt"], 1);
    assert_eq!(engine.stoke(&["logs", "kept"]).lines().count(), 300);
}

#[test]
fn a_second_engine_is_refused_with_the_pid_of_the_first() {
    let engine = Engine::start();
    for arguments in [&["up"][..], &["up", "--detach"]] {
        let second = engine.try_stoke(arguments);
        assert_eq!(second.status.code(), Some(5), "{}", said(&second));
        assert!(
            said(&second).contains(&engine.pid().to_string()),
            "{}",
            said(&second)
        );
    }
    let far = engine.try_stoke(&["up", "--detach", "--listen", "0.0.0.0:0"]);
    assert_eq!(far.status.code(), Some(2), "{}", said(&far));
}

#[test]
fn data_goes_to_stdout_and_a_reader_may_leave() {
    let engine = Engine::start();
    let name = engine.stoke(&["run", "--detach", "--", "sh", "-c", "echo hello"]);
    let name = name.trim();
    assert!(name.starts_with("sh-"), "{name:?}");
    engine.wait_for_phase(name, "Complete");

    let names = engine.stoke(&["get", "jobs", "-o", "name"]);
    assert_eq!(names, format!("trainjob.stokehold.dev/{name}\n"));
    let list: Value = serde_json::from_str(&engine.stoke(&["get", "-o", "json"])).expect("JSON");
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"][0]["metadata"]["name"], name);
    assert!(
        engine
            .stoke(&["get", "job", name, "-o", "yaml"])
            .contains("kind: TrainJob")
    );
    assert!(engine.stoke(&["get", "jobs,nodes"]).contains("Complete"));
    assert_eq!(engine.stoke(&["logs", name]), "hello\n");

    // `stoke get | true`: nobody reads, and that is no failure.
    let mut unread = engine
        .command(&["get", "nodes", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("stoke runs");
    drop(unread.stdout.take());
    let status = unread.wait().expect("it ends");
    assert!(status.success(), "{status}: {}", last_words(&mut unread));
}

#[test]
fn a_file_is_run_where_it_lies_and_again_only_when_told() {
    let engine = Engine::start();
    let folder = engine.folder().join("project");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("hello.py"), "print('found it')\n").expect("a file");
    let queue = "apiVersion: stokehold.dev/v1alpha1\nkind: Queue\nmetadata: {name: vision}\nspec: {weight: 2}\n";
    let job = "apiVersion: stokehold.dev/v1alpha1\nkind: TrainJob\nmetadata: {name: filed}\nspec:\n  queue: vision\n  command: [python3, hello.py]\n";
    let file = folder.join("job.yaml");
    std::fs::write(&file, format!("{queue}---\n{job}")).expect("a file");
    let file = file.to_str().expect("UTF-8");

    assert_eq!(engine.stoke(&["run", file]), "found it\n");
    let again = engine.try_stoke(&["run", file]);
    assert_eq!(again.status.code(), Some(5), "{}", said(&again));
    assert!(said(&again).contains("--replace"), "{}", said(&again));
    assert_eq!(engine.stoke(&["run", "--replace", file]), "found it\n");
    assert!(engine.stoke(&["get", "queues"]).contains("vision"));
}

#[test]
fn what_is_watched_is_told_as_it_changes() {
    let engine = Engine::start();
    let mut watch = spawn(&engine, &["get", "jobs", "-w"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("stdout")).lines();
    engine.stoke(&["run", "--name", "seen", "--", "true"]);
    let head = lines.next().expect("a line").expect("text");
    assert!(head.starts_with("NAME"), "{head}");
    let complete = lines
        .map(|line| line.expect("text"))
        .find(|line| line.starts_with("seen") && line.contains("Complete"));
    assert!(complete.is_some());
    watch.kill().expect("it runs");
    watch.wait().expect("it ends");
    let top = eventually("the picture", || {
        let top = engine.stoke(&["top", "--once"]);
        top.contains("seen").then_some(top)
    });
    assert!(top.contains("NODE"), "{top}");
}
