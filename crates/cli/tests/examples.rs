//! The scripts in `examples/`, by themselves: they train, and a run that was killed ends as if it had not been.
//!
//! That they do so as jobs of an engine is tested beside the engine.

#[path = "support/gang.rs"]
mod gang;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gang::{Gang, end_of, free_port, has, python_with, skip, text};
use stoke_api::TrainJob;
use tempfile::TempDir;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// What a run tells about itself.
#[derive(Debug, PartialEq)]
struct Story {
    resumed: bool,
    first: f64,
    last: f64,
}

impl Story {
    /// Of what rank 0 wrote, which ends with `final loss 1.234, from 4.321 at the start`.
    fn read(out: &str) -> Self {
        let end = out.lines().last().unwrap_or_default();
        let numbers: Vec<f64> = end
            .split([' ', ','])
            .filter_map(|word| word.parse().ok())
            .collect();
        let [last, first] = numbers[..] else {
            panic!("no final loss in: {out}");
        };
        Self {
            resumed: out.contains("resumed at step"),
            first,
            last,
        }
    }
}

/// An example's processes, the one that reports first.
type Run<'a> = &'a dyn Fn(&Path) -> Vec<Child>;

fn finish(children: Vec<Child>) -> Story {
    let ended: Vec<_> = children.into_iter().map(end_of).collect();
    for output in &ended {
        assert!(output.status.success(), "{output:?}");
    }
    Story::read(&text(&ended[0].stdout))
}

/// Kills all of them once a checkpoint is there and some steps were made after it.
fn interrupt(mut children: Vec<Child>, after: &str) {
    let out = children[0].stdout.as_mut().expect("a pipe");
    let reached = BufReader::new(out)
        .lines()
        .map_while(Result::ok)
        .any(|line| line.starts_with(after));
    assert!(reached, "never came to {after}");
    for child in &mut children {
        child.kill().expect("killed");
    }
    for child in children {
        end_of(child);
    }
}

/// The loss falls by `fall` at least, and a run that is killed at `kill_at` and started again ends with the same loss.
fn check(run: Run, fall: f64, kill_at: &str) {
    let whole = finish(run(TempDir::new().expect("a directory").path()));
    assert!(!whole.resumed);
    assert!(whole.first - whole.last > fall, "{whole:?}");

    let kept = TempDir::new().expect("a directory");
    interrupt(run(kept.path()), kill_at);
    let resumed = finish(run(kept.path()));
    assert_eq!(
        resumed,
        Story {
            resumed: true,
            ..whole
        }
    );
}

fn piped(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

#[test]
fn jobs_are_valid() {
    for name in ["charlm-ddp", "charlm-mpi", "plain"] {
        let path = examples().join(name).join("job.yaml");
        let yaml = fs::read_to_string(&path).expect("a job");
        let job: TrainJob = serde_saphyr::from_str(&yaml).expect("a TrainJob");
        assert_eq!(job.name(), name);
        let job = serde_json::to_value(&job).expect("JSON");
        assert_eq!(stoke_api::violations("TrainJob", &job, None), []);
    }
}

#[test]
fn queues_are_valid() {
    let path = examples().join("queues/queues.yaml");
    let yaml = fs::read_to_string(&path).expect("queues");
    for document in yaml.split("---\n") {
        let queue: stoke_api::Queue = serde_saphyr::from_str(document).expect("a Queue");
        let queue = serde_json::to_value(&queue).expect("JSON");
        assert_eq!(stoke_api::violations("Queue", &queue, None), []);
    }
    let job = fs::read_to_string(examples().join("queues/job.yaml")).expect("a job");
    let job: TrainJob = serde_saphyr::from_str(&job).expect("a TrainJob");
    let job = serde_json::to_value(&job).expect("JSON");
    assert_eq!(stoke_api::violations("TrainJob", &job, None), []);
}

#[test]
fn plain_python_trains_and_resumes() {
    let Some(python) = python_with("json") else {
        return skip("Python 3");
    };
    let script = examples().join("plain/train.py");
    let run = |checkpoints: &Path| {
        let mut command = Command::new(python);
        command
            .arg(&script)
            .args(["--epochs", "6", "--pause", "0.2"]);
        command.env("STOKE_CHECKPOINT_DIR", checkpoints);
        vec![piped(&mut command)]
    };
    check(&run, 0.4, "step 2/");
}

#[test]
fn a_gang_of_pytorch_processes_trains_and_resumes() {
    let Some(python) = python_with("torch") else {
        return skip("PyTorch");
    };
    let script = examples().join("charlm-ddp/train.py");
    let run = |checkpoints: &Path| {
        let port = free_port().to_string();
        let rank = |rank: &str| {
            let mut command = Command::new(python);
            command.arg(&script);
            command.args(["--steps", "60", "--report", "10", "--save", "15"]);
            command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]);
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())]);
            command.env("GLOO_SOCKET_IFNAME", "lo");
            command.env("STOKE_CHECKPOINT_DIR", checkpoints);
            piped(&mut command)
        };
        vec![rank("0"), rank("1")]
    };
    check(&run, 1.5, "step 20/");
}

#[test]
fn pytorch_trains_in_one_process_too() {
    let Some(python) = python_with("torch") else {
        return skip("PyTorch");
    };
    let mut command = Command::new(python);
    command.arg(examples().join("charlm-ddp/train.py"));
    command.args(["--steps", "30"]);
    for name in ["RANK", "WORLD_SIZE", "STOKE_CHECKPOINT_DIR"] {
        command.env_remove(name);
    }
    let story = finish(vec![piped(&mut command)]);
    assert!(story.first - story.last > 1.0, "{story:?}");
}

#[test]
fn a_gang_of_mpi_processes_trains_and_resumes() {
    let Some(python) = python_with("mpi4py.MPI, numpy").filter(|_| has("mpirun")) else {
        return skip("Open MPI, mpi4py or NumPy");
    };
    let script = examples().join("charlm-mpi/train.py");
    let script = script.to_str().expect("a path that is text");
    let run = |checkpoints: &Path| {
        let gang = Gang::of(2);
        let train = ["launch", "--", python, script];
        let few = ["--steps", "120", "--report", "10", "--save", "15"];
        let pod = |rank: usize, args: &[&str]| {
            let mut command = gang.pod(rank, args);
            command.env("STOKE_CHECKPOINT_DIR", checkpoints);
            command.spawn().expect("started")
        };
        let worker = pod(1, &["worker"]);
        vec![pod(0, &[train.as_slice(), &few].concat()), worker]
    };
    check(&run, 1.5, "step 20/");
}
