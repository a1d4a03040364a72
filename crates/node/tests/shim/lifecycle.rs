//! Starting, ending, restarting, stopping.

use std::time::{Duration, Instant};

use stoke_node::shim::protocol::{ContainerState, Request, Response, RestartPolicy};

use crate::pod::{Pod, container, exit_in, is_alive, pid_in, sh, wait_until};
use crate::{Case, Outcome, case, case_for_all};

pub const CASES: &[Case] = &[
    case_for_all("exit_codes_and_reasons", exit_codes_and_reasons),
    case_for_all("what_cannot_start_says_why", what_cannot_start_says_why),
    case("init_containers_run_in_order", init_containers_run_in_order),
    case(
        "a_failed_init_container_ends_the_pod",
        a_failed_init_container_ends_the_pod,
    ),
    case(
        "failures_are_restarted_with_back_off",
        failures_are_restarted_with_back_off,
    ),
    case_for_all("stop_kills_what_ignores_it", stop_kills_what_ignores_it),
    case(
        "stop_kills_what_ignores_it_without_cgroup",
        stop_kills_what_ignores_it_without_cgroup,
    ),
    case(
        "stop_lets_a_container_end_itself",
        stop_lets_a_container_end_itself,
    ),
    case("stop_ends_a_back_off", stop_ends_a_back_off),
    case(
        "the_end_of_the_main_process_ends_the_rest",
        the_end_of_the_main_process_ends_the_rest,
    ),
    case("restart_on_request", restart_on_request),
    case_for_all("a_container_inherits_nothing", a_container_inherits_nothing),
    case("another_user", another_user),
    case_for_all(
        "commands_run_inside_a_container",
        commands_run_inside_a_container,
    ),
    case("bad_clients_harm_nothing", bad_clients_harm_nothing),
];

fn exit_codes_and_reasons() -> Outcome {
    for (script, code, signal, reason) in [
        ("exit 0", 0, None, "Completed"),
        ("exit 3", 3, None, "Error"),
        ("kill -KILL $$", 137, Some(9), "Error"),
        ("kill -TERM $$", 143, Some(15), "Error"),
        ("kill -SEGV $$", 139, Some(11), "Error"),
    ] {
        let pod = Pod::of(sh("main", script)).start();
        let status = pod.wait_finished();
        let exit = exit_in(&status, "main");
        assert_eq!(
            (exit.exit_code, exit.signal, exit.reason.as_str()),
            (code, signal, reason),
            "{script}"
        );
        assert!(!exit.oom_killed, "{script}");
        assert!(
            exit.started_at
                .is_some_and(|started| started <= exit.finished_at),
            "{script}"
        );
    }
    Outcome::Passed
}

fn what_cannot_start_says_why() -> Outcome {
    let mut nowhere = sh("main", "true");
    nowhere.cwd = Some("/no/such/place".into());
    for (container, expected) in [
        (
            container("main", &["no-such-program"]),
            "executable file not found in $PATH",
        ),
        (container("main", &["/etc/passwd"]), "ermission denied"),
        (container("main", &[]), "no command"),
        (nowhere, "/no/such/place"),
    ] {
        let pod = Pod::of(container).start();
        let status = pod.wait_finished();
        let exit = exit_in(&status, "main");
        assert_eq!((exit.exit_code, exit.reason.as_str()), (128, "StartError"));
        assert!(
            exit.message
                .as_ref()
                .is_some_and(|message| message.contains(expected)),
            "{exit:?}"
        );
        assert_eq!(exit.started_at, None);
    }
    Outcome::Passed
}

fn init_containers_run_in_order() -> Outcome {
    let mut pod = Pod::new(RestartPolicy::Never, Vec::new());
    let seen = pod.volume("seen").join("order");
    let note = |name: &str| sh(name, &format!("echo {name} >> {}", seen.display()));
    pod.spec.init = vec![note("first"), note("second")];
    pod.spec.containers = vec![note("main")];
    let pod = pod.start();
    let status = pod.wait_finished();
    assert_eq!(
        std::fs::read_to_string(&seen).expect("written"),
        "first\nsecond\nmain\n"
    );
    assert!(status.init.iter().all(
        |init| matches!(&init.state, ContainerState::Terminated(exit) if exit.exit_code == 0)
    ));
    Outcome::Passed
}

fn a_failed_init_container_ends_the_pod() -> Outcome {
    let mut pod = Pod::of(sh("main", "true"));
    pod.spec.init = vec![sh("first", "exit 4"), sh("second", "true")];
    let status = pod.start().wait_finished();
    assert_eq!(exit_in(&status, "first").exit_code, 4);
    for untouched in ["second", "main"] {
        let state = &status.container(untouched).expect("told").state;
        assert!(
            matches!(state, ContainerState::Waiting { reason, .. } if reason == "PodInitializing"),
            "{state:?}"
        );
    }
    Outcome::Passed
}

fn failures_are_restarted_with_back_off() -> Outcome {
    let pod = Pod::new(RestartPolicy::OnFailure, Vec::new());
    let count = pod.volume("count").join("runs");
    let script = format!(
        "echo run >> {0}; echo this is $(wc -l < {0}); [ $(wc -l < {0}) = 4 ]",
        count.display()
    );
    let mut pod = pod;
    pod.spec.containers = vec![sh("main", &script)];
    let pod = pod.start();
    let seen = pod.watch_until(|status| status.finished);
    let last = seen
        .last()
        .and_then(|status| status.container("main"))
        .expect("told");
    assert_eq!(last.restart_count, 3);
    assert_eq!(last.last.as_ref().map(|exit| exit.exit_code), Some(1));
    let held_back = seen.iter().filter_map(|status| status.container("main")).any(
        |status| matches!(&status.state, ContainerState::Waiting { reason, .. } if reason == "CrashLoopBackOff"),
    );
    assert!(held_back, "{seen:#?}");
    assert_eq!(pod.log("main", 3), "this is 4\n");
    assert_eq!(pod.log("main", 2), "this is 3\n");
    assert!(
        !stoke_node::logs::path(&pod.dir, "main", 1).exists(),
        "only one ended run is kept"
    );
    Outcome::Passed
}

/// A main process that ignores the request to end, with a child of its own session and an orphan.
const STUBBORN: &str = r#"
    trap '' TERM
    setsid sh -c 'trap "" TERM; echo $$; sleep 1000 & echo $!; wait' &
    (setsid sh -c 'echo $$; trap "" TERM; while :; do sleep 1000; done' &)
    echo $$
    while :; do sleep 1000; done
"#;

fn stop_kills_what_ignores_it() -> Outcome {
    stop_stubborn(Pod::of(sh("main", STUBBORN)))
}

fn stop_kills_what_ignores_it_without_cgroup() -> Outcome {
    // A second container that must not be taken for the first one's.
    let pod = Pod::new(
        RestartPolicy::Never,
        vec![
            sh("main", STUBBORN),
            sh("other", "trap 'exit 7' TERM; echo ready; sleep 1000 & wait"),
        ],
    );
    stop_stubborn(pod.without_cgroup())
}

fn stop_stubborn(pod: Pod) -> Outcome {
    let pod = pod.start();
    pod.wait_running("main");
    wait_until("all have started", || {
        pod.log("main", 0).lines().count() == 4
    });
    let pids: Vec<u32> = pod
        .log("main", 0)
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    let asked = Instant::now();
    pod.stop(1);
    let status = pod.wait_finished();
    assert!(
        asked.elapsed() >= Duration::from_secs(1),
        "the grace period is waited for"
    );
    let exit = exit_in(&status, "main");
    assert_eq!((exit.exit_code, exit.reason.as_str()), (137, "Error"));
    assert_eq!(status.stop_reason.as_deref(), Some("Test"));
    assert!(status.cut_short, "it had not ended by itself");
    assert!(
        !pids.iter().any(|pid| is_alive(*pid)),
        "nobody is left when the shim says finished"
    );
    if status.container("other").is_some() {
        assert_eq!(exit_in(&status, "other").exit_code, 7);
    }
    Outcome::Passed
}

fn stop_lets_a_container_end_itself() -> Outcome {
    let pod = Pod::of(sh(
        "main",
        "trap 'echo saved; exit 0' TERM; echo ready; sleep 1000 & wait",
    ))
    .start();
    wait_until("it is ready", || pod.log("main", 0).contains("ready"));
    let asked = Instant::now();
    pod.stop(600);
    let status = pod.wait_finished();
    assert!(
        asked.elapsed() < Duration::from_secs(60),
        "nobody waits for a grace period that is not used"
    );
    assert_eq!(exit_in(&status, "main").exit_code, 0);
    assert_eq!(pod.log("main", 0), "ready\nsaved\n");
    Outcome::Passed
}

fn stop_ends_a_back_off() -> Outcome {
    let mut pod = Pod::new(RestartPolicy::Always, vec![sh("main", "exit 1")]);
    pod.spec.backoff.initial_ms = 600_000;
    pod.spec.backoff.max_ms = 600_000;
    let pod = pod.start();
    pod.watch_until(|status| {
        let state = status.container("main").map(|status| &status.state);
        matches!(state, Some(ContainerState::Waiting { reason, .. }) if reason == "CrashLoopBackOff")
    });
    pod.stop(30);
    let status = pod.wait_finished();
    assert_eq!(exit_in(&status, "main").exit_code, 1);
    Outcome::Passed
}

fn the_end_of_the_main_process_ends_the_rest() -> Outcome {
    for cgroup in [true, false] {
        let pod = Pod::of(sh("main", "setsid sleep 1000 & echo $!; exit 0"));
        let pod = if cgroup { pod } else { pod.without_cgroup() }.start();
        let status = pod.wait_finished();
        assert_eq!(exit_in(&status, "main").exit_code, 0);
        let left: u32 = pod.log("main", 0).trim().parse().expect("a number");
        assert!(!is_alive(left), "cgroup: {cgroup}");
    }
    Outcome::Passed
}

fn restart_on_request() -> Outcome {
    let pod = Pod::new(
        RestartPolicy::OnFailure,
        vec![sh(
            "main",
            "trap 'exit 0' TERM; echo ready; sleep 1000 & wait",
        )],
    )
    .start();
    let first = pod.wait_running("main");
    wait_until("it is ready", || pod.log("main", 0).contains("ready"));
    let request = Request::Restart {
        container: "main".to_owned(),
        grace_seconds: 30,
    };
    assert_eq!(pod.ask(request).expect("answered"), Response::Done);
    let seen = pod.watch_until(|status| pid_in(status, "main").is_some_and(|pid| pid != first));
    let status = seen
        .last()
        .and_then(|status| status.container("main"))
        .expect("told");
    assert_eq!(status.restart_count, 1);
    assert_eq!(
        status.last.as_ref().map(|exit| exit.exit_code),
        Some(0),
        "restarted although it ended well"
    );
    let nobody = Request::Restart {
        container: "other".to_owned(),
        grace_seconds: 0,
    };
    assert!(pod.ask(nobody).is_err());
    Outcome::Passed
}

fn a_container_inherits_nothing() -> Outcome {
    let script = "env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= -e ^STOKEHOLD_; ls /proc/self/fd | wc -l; \
                  grep -e SigBlk -e SigIgn /proc/self/status; umask; pwd; readlink /proc/self/fd/0; \
                  [ $(cut -d' ' -f6 /proc/self/stat) = $$ ] && echo own session";
    let pod = Pod::of(sh("main", script)).start();
    pod.wait_finished();
    let expected = "PATH=/usr/bin:/bin\n4\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0022\n/\n/dev/null\nown session\n";
    assert_eq!(pod.log("main", 0), expected);
    Outcome::Passed
}

fn another_user() -> Outcome {
    let mut main = sh(
        "main",
        "id -u; id -g; id -G; echo by name > /dev/stdout; grep NoNewPrivs /proc/self/status",
    );
    main.uid = Some(12345);
    main.gid = Some(23456);
    main.groups = vec![34567];
    main.no_new_privileges = true;
    if !rustix::process::geteuid().is_root() {
        return Outcome::Skipped("only root can change the user".to_owned());
    }
    let pod = Pod::of(main).start();
    pod.wait_finished();
    assert_eq!(
        pod.log("main", 0),
        "12345\n23456\n23456 34567\nby name\nNoNewPrivs:\t1\n"
    );
    Outcome::Passed
}

fn commands_run_inside_a_container() -> Outcome {
    let pod = Pod::of(sh("main", "sleep 1000")).start();
    pod.wait_running("main");
    let exec = |argv: &[&str], timeout_ms: u64| {
        pod.ask(Request::Exec {
            container: "main".to_owned(),
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            timeout_ms,
        })
    };
    let answer = exec(&["sh", "-c", "echo out; echo err >&2; exit 5"], 60_000).expect("answered");
    let Response::Exec {
        exit_code,
        timed_out,
        output,
    } = answer
    else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (exit_code, timed_out, output.as_str()),
        (5, false, "out\nerr\n")
    );
    let answer = exec(&["sh", "-c", "sleep 1000 & sleep 1000"], 100).expect("answered");
    assert!(
        matches!(
            answer,
            Response::Exec {
                exit_code: 137,
                timed_out: true,
                ..
            }
        ),
        "{answer:?}"
    );
    let Err(refused) = exec(&["no-such-program"], 60_000) else {
        panic!("there is no such program")
    };
    assert!(refused.to_string().contains("not found"), "{refused}");
    assert!(
        pid_in(&pod.status(), "main").is_some(),
        "the container has not noticed"
    );
    Outcome::Passed
}

fn bad_clients_harm_nothing() -> Outcome {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixStream;
    let pod = Pod::of(sh(
        "main",
        "trap 'exit 0' TERM; echo ready; sleep 1000 & wait",
    ))
    .start();
    pod.wait_running("main");
    wait_until("it is ready", || pod.log("main", 0).contains("ready"));
    let connect = || UnixStream::connect(pod.dir.join("shim.sock")).expect("listening");
    for _ in 0..20 {
        connect().write_all(b"{\"do\":\"watch\"}\n").expect("taken");
        connect().write_all(b"{\"do\":\"us").expect("taken");
    }
    let mut garbage = connect();
    garbage
        .write_all(b"\xff\xfe nonsense\n{\"do\":\"fly\"}\n")
        .expect("taken");
    let mut answers = BufReader::new(garbage).lines();
    for _ in 0..2 {
        let answer = answers.next().expect("answered").expect("text");
        assert!(answer.contains("not a request"), "{answer}");
    }
    pod.stop(30);
    assert_eq!(exit_in(&pod.wait_finished(), "main").exit_code, 0);
    Outcome::Passed
}
