//! Output of containers: written by the shim, read while it is written.

use std::io::Write as _;
use std::process::ExitCode;

use futures::StreamExt as _;
use stoke_node::logs::{self, LogError, LogOptions};
use stoke_node::shim::protocol::RestartPolicy;

use crate::pod::{Pod, container, exe, on_a_runtime, sh, wait_until};
use crate::{Case, Outcome, case, case_for_all};

pub const CASES: &[Case] = &[
    case(
        "following_across_rotation_misses_nothing",
        following_across_rotation_misses_nothing,
    ),
    case("output_is_kept_byte_for_byte", output_is_kept_byte_for_byte),
    case_for_all(
        "the_last_words_of_both_streams_are_kept",
        the_last_words_of_both_streams_are_kept,
    ),
    case(
        "a_begun_line_is_shown_before_it_ends",
        a_begun_line_is_shown_before_it_ends,
    ),
    case("logs_of_runs_are_kept_apart", logs_of_runs_are_kept_apart),
    case(
        "a_follower_that_leaves_is_let_go",
        a_follower_that_leaves_is_let_go,
    ),
    case(
        "many_lines_are_bounded_on_disk",
        many_lines_are_bounded_on_disk,
    ),
];

/// `count LAST`: the numbers from one, a line each.
pub fn count(last: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    for number in 1..=last.parse().unwrap_or(0_u64) {
        if writeln!(out, "line {number}").is_err() {
            return ExitCode::FAILURE;
        }
        if number % 1000 == 0 {
            // Time for a reader to be in the middle of it.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    ExitCode::SUCCESS
}

fn counting(last: &str) -> Pod {
    let exe = exe();
    Pod::of(container(
        "main",
        &[exe.to_str().expect("a plain path"), "count", last],
    ))
}

fn read_all(pod: &Pod, options: &LogOptions) -> Vec<u8> {
    on_a_runtime(async {
        let mut stream = logs::open(&pod.dir, "main", options).expect("there");
        let mut all = Vec::new();
        while let Some(block) = stream.next().await {
            all.extend_from_slice(&block.expect("readable"));
        }
        all
    })
}

fn numbers(text: &[u8]) -> Vec<u64> {
    let text = std::str::from_utf8(text).expect("numbers");
    let number = |line: &str| {
        line.strip_prefix("line ")
            .and_then(|number| number.parse().ok())
    };
    text.lines()
        .map(|line| number(line).unwrap_or_else(|| panic!("{line:?}")))
        .collect()
}

fn following() -> LogOptions {
    LogOptions {
        follow: true,
        ..LogOptions::default()
    }
}

fn following_across_rotation_misses_nothing() -> Outcome {
    let mut pod = counting("50000");
    pod.spec.log_max_bytes = 64 << 10;
    pod.spec.log_max_files = 100;
    let pod = pod.start();
    pod.wait_running("main");
    let seen = numbers(&read_all(&pod, &following()));
    assert_eq!(seen, (1..=50_000).collect::<Vec<_>>());
    pod.wait_finished();
    assert_eq!(
        numbers(&read_all(&pod, &LogOptions::default())),
        seen,
        "read again after the end"
    );
    let tail = LogOptions {
        tail_lines: Some(12_345),
        ..LogOptions::default()
    };
    assert_eq!(
        numbers(&read_all(&pod, &tail)),
        (50_000 - 12_344..=50_000).collect::<Vec<_>>()
    );
    Outcome::Passed
}

fn output_is_kept_byte_for_byte() -> Outcome {
    let pod = Pod::new(RestartPolicy::Never, Vec::new());
    let file = pod.volume("data").join("bytes");
    // Every byte there is, a line of 10 MiB, and no newline at the end.
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.extend(std::iter::repeat_n(b'x', 10 << 20));
    bytes.extend_from_slice(b"\r\n\n\nthe end");
    std::fs::write(&file, &bytes).expect("ours");
    let mut pod = pod;
    pod.spec.log_max_bytes = 100 << 20;
    pod.spec.containers = vec![container("main", &["cat", file.to_str().expect("plain")])];
    let pod = pod.start();
    pod.wait_finished();
    assert!(
        read_all(&pod, &LogOptions::default()) == bytes,
        "not the same bytes"
    );
    assert!(logs::tail(&pod.dir, "main", 0, 1, 100).expect("there") == b"the end");
    Outcome::Passed
}

fn the_last_words_of_both_streams_are_kept() -> Outcome {
    for round in 0..20 {
        let pod = Pod::of(sh(
            "main",
            "echo one; echo two >&2; echo three; echo four >&2",
        ))
        .start();
        pod.wait_finished();
        let log = pod.log("main", 0);
        let mut lines: Vec<&str> = log.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["four", "one", "three", "two"], "in round {round}");
    }
    Outcome::Passed
}

fn a_begun_line_is_shown_before_it_ends() -> Outcome {
    let pod = Pod::of(sh("main", "printf 'step 1'; while :; do sleep 1000; done")).start();
    pod.wait_running("main");
    wait_until("it is shown", || pod.log("main", 0) == "step 1");
    Outcome::Passed
}

fn logs_of_runs_are_kept_apart() -> Outcome {
    let mut pod = Pod::new(RestartPolicy::OnFailure, Vec::new());
    let count = pod.volume("count").join("runs");
    let script = format!(
        "echo run >> {0}; echo run $(wc -l < {0}); [ $(wc -l < {0}) = 3 ] && exec sleep 1000",
        count.display()
    );
    pod.spec.containers = vec![sh("main", &script)];
    let pod = pod.start();
    wait_until("the third run speaks", || {
        pod.status().containers[0].restart_count == 2 && pod.log("main", 2).contains("run 3")
    });
    pod.wait_running("main");
    assert_eq!(read_all(&pod, &LogOptions::default()), b"run 3\n");
    let previous = LogOptions {
        previous: true,
        follow: true,
        ..LogOptions::default()
    };
    assert_eq!(read_all(&pod, &previous), b"run 2\n");
    assert!(matches!(
        logs::open(&pod.dir, "other", &previous),
        Err(LogError::NoContainer { .. })
    ));
    let fresh = Pod::of(sh("main", "sleep 1000")).start();
    fresh.wait_running("main");
    assert!(matches!(
        logs::open(&fresh.dir, "main", &previous),
        Err(LogError::NoPrevious { .. })
    ));
    Outcome::Passed
}

fn a_follower_that_leaves_is_let_go() -> Outcome {
    let pod = Pod::of(sh("main", "echo here; exec sleep 1000")).start();
    pod.wait_running("main");
    on_a_runtime(async {
        let mut stream = logs::open(&pod.dir, "main", &following()).expect("there");
        let first = stream.next().await.expect("not over").expect("readable");
        assert_eq!(&first[..], b"here\n");
    });
    let readers = || {
        let tasks = std::fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "log-reader").count()
    };
    wait_until("its thread ends", || readers() == 0);
    Outcome::Passed
}

fn many_lines_are_bounded_on_disk() -> Outcome {
    let mut pod = counting("100000");
    pod.spec.log_max_bytes = 100 << 10;
    pod.spec.log_max_files = 3;
    let pod = pod.start();
    pod.wait_finished();
    let files: Vec<_> = std::fs::read_dir(pod.dir.join("logs/main"))
        .expect("there")
        .flatten()
        .collect();
    assert_eq!(files.len(), 3);
    for file in files {
        assert!(file.metadata().expect("there").len() <= 100 << 10);
    }
    let kept = numbers(pod.log("main", 0).as_bytes());
    assert_eq!(kept.last(), Some(&100_000));
    assert!(kept.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    Outcome::Passed
}
