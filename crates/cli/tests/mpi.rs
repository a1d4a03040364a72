//! `stoke mpi` as pods run it: real processes, and the machine's own mpirun where it has one.

#[path = "support/gang.rs"]
mod gang;

use std::io::{BufRead, BufReader};
use std::process::Output;

use gang::{Gang, end_of, has, python_with, skip, text};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

fn codes(ended: &[Output]) -> Vec<Option<i32>> {
    ended.iter().map(|output| output.status.code()).collect()
}

#[test]
fn a_worker_runs_a_line_as_ssh_would() {
    let gang = Gang::of(2);
    let worker = gang.pod(1, &["worker"]).spawn().unwrap();
    let line = [
        "rsh",
        "pod-1",
        "echo",
        "'two  words'; echo oops",
        ">&2;",
        "exit 3",
    ];
    // Until the worker listens, the host is out of reach.
    let answer = loop {
        let answer = end_of(gang.pod(0, &line).spawn().unwrap());
        if answer.status.code() != Some(255) {
            break answer;
        }
    };
    assert_eq!(answer.status.code(), Some(3));
    assert_eq!(text(&answer.stdout), "two  words\n");
    assert_eq!(text(&answer.stderr), "oops\n");

    let mut stranger = gang.pod(0, &line);
    stranger.env("STOKE_MPI_TOKEN", "what a stranger would guess");
    let refused = end_of(stranger.spawn().unwrap());
    assert_eq!(refused.status.code(), Some(255));
    assert!(text(&refused.stderr).contains("does not know this gang's token"));
    assert_eq!(text(&refused.stdout), "");

    let unknown = end_of(gang.pod(0, &["rsh", "pod-7", "true"]).spawn().unwrap());
    assert_eq!(unknown.status.code(), Some(255));
    assert!(text(&unknown.stderr).contains("no host `pod-7`"));

    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    assert_eq!(end_of(worker).status.code(), Some(128 + 15));
}

#[test]
fn what_a_caller_started_ends_with_it_and_the_token_is_not_passed_on() {
    let gang = Gang::of(2);
    let worker = gang.pod(1, &["worker"]).spawn().unwrap();
    let line = "echo \"[$STOKE_MPI_TOKEN] $$\"; sleep 600 & wait";
    let (mut caller, first) = loop {
        let mut caller = gang.pod(0, &["rsh", "pod-1", line]).spawn().unwrap();
        let mut first = String::new();
        let out = caller.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut first).unwrap();
        if !first.is_empty() {
            break (caller, first);
        }
        end_of(caller);
    };
    let (token, shell) = first.trim_end().split_once(' ').unwrap();
    assert_eq!(token, "[]");
    let shell = Pid::from_raw(shell.parse().unwrap()).unwrap();
    test_kill_process(shell).unwrap();
    caller.kill().unwrap();
    caller.wait().unwrap();
    // Only a worker that has waited for it can have made the number disappear.
    while test_kill_process(shell).is_ok() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    end_of(worker);
}

#[test]
fn a_worker_that_never_comes_is_named() {
    let gang = Gang::of(3);
    let mut launch = gang.pod(0, &["launch", "--start-timeout", "1", "--", "true"]);
    let output = end_of(launch.spawn().unwrap());
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("pod-1 (127.0.0.1:"), "{said}");
    assert!(said.contains("pod-2 (127.0.0.1:"), "{said}");
}

#[test]
fn a_launcher_that_never_comes_is_not_awaited_for_ever() {
    let worker = Gang::of(2)
        .pod(1, &["worker", "--start-timeout", "1"])
        .spawn();
    let output = end_of(worker.unwrap());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no launcher came within 1 s"));
}

#[test]
fn every_slot_of_every_pod_gets_a_rank() {
    if !has("mpirun") {
        return skip("Open MPI");
    }
    let gang = Gang::of(2);
    let report = "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE";
    let command = [
        "launch", "--np", "4", "--slots", "2", "--", "sh", "-c", report,
    ];
    let ended = gang.run(&mut gang.pod(0, &command));
    assert_eq!(codes(&ended), [Some(0), Some(0)], "{ended:?}");
    let out = text(&ended[0].stdout);
    let mut ranks: Vec<&str> = out.lines().collect();
    ranks.sort_unstable();
    assert_eq!(ranks, ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]);
}

#[test]
fn ranks_in_three_pods_sum_what_they_have() {
    if !has("mpirun") {
        return skip("Open MPI");
    }
    let Some(python) = python_with("mpi4py.MPI") else {
        return skip("mpi4py");
    };
    let gang = Gang::of(3);
    // In one write, for lines of several ranks are put together as they come.
    let script = "import os; from mpi4py import MPI; w = MPI.COMM_WORLD; os.write(1, b'%d\\n' % w.allreduce(w.rank + 1))";
    let command = ["launch", "--slots", "2", "--", python, "-c", script];
    let ended = gang.run(&mut gang.pod(0, &command));
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:?}");
    assert_eq!(text(&ended[0].stdout), "21\n".repeat(6));
}

#[test]
fn a_rank_that_fails_ends_the_gang_with_its_code() {
    if !has("mpirun") {
        return skip("Open MPI");
    }
    let gang = Gang::of(2);
    let script = "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exit 7; fi; exec sleep 600";
    let command = ["launch", "--", "sh", "-c", script];
    let ended = gang.run(&mut gang.pod(0, &command));
    assert_eq!(codes(&ended), [Some(7), Some(0)], "{ended:?}");
}

#[test]
fn a_worker_does_not_outlive_its_launcher() {
    if !has("mpirun") {
        return skip("Open MPI");
    }
    let gang = Gang::of(2);
    let worker = gang.pod(1, &["worker"]).spawn().unwrap();
    let script = "echo $$; exec sleep 600";
    let mut launcher = gang
        .pod(0, &["launch", "--", "sh", "-c", script])
        .spawn()
        .unwrap();
    let out = BufReader::new(launcher.stdout.as_mut().unwrap());
    let ranks: Vec<Pid> = out
        .lines()
        .take(2)
        .map(|line| Pid::from_raw(line.unwrap().parse().unwrap()).unwrap())
        .collect();
    assert_eq!(ranks.len(), 2);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let ended = end_of(worker);
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("the launcher went away"));
}
