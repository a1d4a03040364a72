//! Deaths of those above: of whoever started the shim, and of the shim itself.

use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, kill_process};
use stoke_node::shim::protocol::{RestartPolicy, ShimSpec};
use stoke_node::shim::{self, Life, SpawnError};

use crate::pod::{Pod, container, exe, exit_in, is_alive, pid_in, sh, wait_until};
use crate::{Case, Outcome, case, case_for_all};

pub const CASES: &[Case] = &[
    case_for_all(
        "a_shim_outlives_who_started_it",
        a_shim_outlives_who_started_it,
    ),
    case(
        "no_zombie_is_left_to_who_started_it",
        no_zombie_is_left_to_who_started_it,
    ),
    case("one_shim_per_pod", one_shim_per_pod),
    case_for_all(
        "the_death_of_a_shim_is_settled",
        the_death_of_a_shim_is_settled,
    ),
    case(
        "the_death_of_a_shim_is_settled_without_cgroup",
        the_death_of_a_shim_is_settled_without_cgroup,
    ),
    case("a_long_path_is_no_trouble", a_long_path_is_no_trouble),
    case(
        "a_shim_is_deaf_to_polite_requests",
        a_shim_is_deaf_to_polite_requests,
    ),
];

/// Starts the pod that `shim.json` in `dir` describes, and is killed.
pub fn spawn_and_die(dir: &Path) -> ExitCode {
    let spec: Option<ShimSpec> = shim::read_spec(dir).ok().flatten();
    let started = spec.map(|spec| shim::spawn(dir, &spec, &exe()));
    if !matches!(started, Some(Ok(()))) {
        return ExitCode::FAILURE;
    }
    let _ = kill_process(rustix::process::getpid(), Signal::KILL);
    ExitCode::FAILURE
}

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, signal).expect("it is ours");
}

fn a_shim_outlives_who_started_it() -> Outcome {
    let exe = exe();
    let pod = Pod::of(container(
        "main",
        &[exe.to_str().expect("a plain path"), "count", "20000"],
    ));
    let spec = serde_json::to_vec(&pod.spec).expect("JSON");
    std::fs::write(pod.dir.join("shim.json"), spec).expect("ours");
    let status = Command::new(&exe)
        .arg("spawn-and-die")
        .arg(&pod.dir)
        .status()
        .expect("started");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "it was killed, having started the pod"
    );
    let status = pod.wait_finished();
    assert_eq!(exit_in(&status, "main").exit_code, 0);
    let log = pod.log("main", 0);
    let numbers: Vec<u32> = log
        .lines()
        .filter_map(|line| line.strip_prefix("line ")?.parse().ok())
        .collect();
    assert_eq!(
        numbers,
        (1..=20_000).collect::<Vec<_>>(),
        "every line is there once"
    );
    wait_until("the shim leaves", || {
        matches!(shim::life(&pod.dir), Ok(Life::Gone))
    });
    assert!(!pod.dir.join("shim.sock").exists());
    if let Some(cgroup) = &pod.spec.cgroup {
        assert!(!cgroup.path().exists(), "the cgroup goes with the pod");
    }
    Outcome::Passed
}

const PARENT: usize = 1;
const SESSION: usize = 3;

/// A field of `/proc/<pid>/stat`, counted from the state. Where the session's leader is outside our pid namespace its
/// session reads 0, which `getsid` of rustix does not take.
fn stat_field(pid: impl std::fmt::Display, field: usize) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(") ").expect("a command in parentheses");
    rest.split(' ').nth(field).expect("it is there").to_owned()
}

fn no_zombie_is_left_to_who_started_it() -> Outcome {
    let pod = Pod::of(sh("main", "sleep 1000")).start();
    let shim = pod.status().pid;
    let ours = std::process::id().to_string();
    assert_ne!(stat_field(shim, PARENT), ours, "we are not its parent");
    assert_ne!(
        stat_field(shim, SESSION),
        stat_field(&ours, SESSION),
        "nor of its session"
    );
    Outcome::Passed
}

fn one_shim_per_pod() -> Outcome {
    let pod = Pod::of(sh("main", "sleep 1000")).start();
    let first = pod.wait_running("main");
    let Err(SpawnError::Refused(reason)) = shim::spawn(&pod.dir, &pod.spec, &exe()) else {
        panic!("two shims for one pod")
    };
    assert!(reason.contains("another shim"), "{reason}");
    assert_eq!(pid_in(&pod.status(), "main"), Some(first));
    assert_eq!(
        shim::settle(&pod.dir).expect("readable"),
        Some(pod.status()),
        "a living pod is left alone"
    );
    assert!(is_alive(first));
    Outcome::Passed
}

fn the_death_of_a_shim_is_settled() -> Outcome {
    settle(Pod::new(
        RestartPolicy::Always,
        vec![sh("main", LEAVES_ORPHAN)],
    ))
}

fn the_death_of_a_shim_is_settled_without_cgroup() -> Outcome {
    settle(Pod::new(RestartPolicy::Always, vec![sh("main", LEAVES_ORPHAN)]).without_cgroup())
}

const LEAVES_ORPHAN: &str =
    "(setsid sh -c 'echo $$; while :; do sleep 1000; done' &); while :; do sleep 1000; done";

fn settle(pod: Pod) -> Outcome {
    let pod = pod.start();
    let main = pod.wait_running("main");
    wait_until("the orphan speaks", || {
        pod.log("main", 0).lines().count() == 1
    });
    let orphan: u32 = pod.log("main", 0).trim().parse().expect("a number");
    signal(pod.status().pid, Signal::KILL);
    wait_until("the main process follows its shim", || !is_alive(main));
    wait_until("its lock is gone", || {
        matches!(shim::life(&pod.dir), Ok(Life::Gone))
    });
    let status = shim::settle(&pod.dir)
        .expect("readable")
        .expect("it was written");
    let exit = exit_in(&status, "main");
    assert_eq!(
        (exit.exit_code, exit.reason.as_str()),
        (137, "ContainerStatusUnknown")
    );
    assert!(status.finished);
    assert_eq!(pod.status(), status);
    wait_until("the orphan is ended", || !is_alive(orphan));
    // And again, as after a reboot.
    let pod = pod.start();
    pod.wait_running("main");
    let again = pod.status();
    let again = again.container("main").expect("told");
    assert_eq!(again.restart_count, 1);
    assert_eq!(again.last.as_ref(), Some(exit));
    Outcome::Passed
}

fn a_long_path_is_no_trouble() -> Outcome {
    let mut pod = Pod::of(sh("main", "echo fine"));
    let deep = pod.dir.join("x".repeat(100)).join("y".repeat(100));
    std::fs::create_dir_all(&deep).expect("ours");
    pod.dir = deep;
    let pod = pod.start();
    assert_eq!(exit_in(&pod.wait_finished(), "main").exit_code, 0);
    assert_eq!(pod.log("main", 0), "fine\n");
    Outcome::Passed
}

fn a_shim_is_deaf_to_polite_requests() -> Outcome {
    let pod = Pod::of(sh(
        "main",
        "trap 'exit 9' TERM; echo ready; sleep 1000 & wait",
    ))
    .start();
    wait_until("it is ready", || pod.log("main", 0).contains("ready"));
    for polite in [Signal::TERM, Signal::HUP, Signal::INT] {
        signal(pod.status().pid, polite);
    }
    signal(pod.wait_running("main"), Signal::TERM);
    assert_eq!(
        exit_in(&pod.wait_finished(), "main").exit_code,
        9,
        "seen to its end"
    );
    Outcome::Passed
}
