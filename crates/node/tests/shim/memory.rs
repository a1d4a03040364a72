//! Limits of memory, enforced by the kernel or by the guard.

use std::process::ExitCode;

use stoke_node::shim::protocol::{ContainerSpec, Request, Response};

use crate::pod::{Pod, container, exe, exit_in, pid_in, sh, wait_until};
use crate::{Case, Outcome, case, case_for_all};

pub const CASES: &[Case] = &[
    case("over_the_limit_is_oom_killed", over_the_limit_is_oom_killed),
    case_for_all(
        "the_guard_holds_the_limit_without_cgroup",
        the_guard_holds_the_limit_without_cgroup,
    ),
    case(
        "a_killed_child_is_counted_while_the_container_lives",
        a_killed_child_is_counted,
    ),
    case(
        "a_shell_that_reports_its_killed_child_is_oom_killed",
        a_shell_that_reports_its_killed_child,
    ),
    case("the_limit_can_be_raised_live", the_limit_can_be_raised_live),
    case_for_all(
        "who_reaches_a_limit_that_may_be_raised_waits_for_it",
        who_reaches_a_limit_waits,
    ),
    case_for_all("who_waits_in_vain_is_killed", who_waits_in_vain_is_killed),
    case("a_kill_carries_its_reason", a_kill_carries_its_reason),
    case("orphan_cgroups_are_removed", orphan_cgroups_are_removed),
];

const MIB: u64 = 1 << 20;

/// `allocate MIB (sleep|exit)`: takes that much memory, touches it, says so.
pub fn allocate(mebibytes: &str, then: &str) -> ExitCode {
    let mebibytes: usize = mebibytes.parse().unwrap_or(0);
    let mut taken = Vec::new();
    for _ in 0..mebibytes {
        // In steps, as a training grows, so that a guard that samples has something to see.
        taken.push(vec![1_u8; MIB as usize]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    println!("allocated {}", taken.len());
    if then == "sleep" {
        std::thread::sleep(std::time::Duration::from_secs(1000));
    }
    ExitCode::SUCCESS
}

fn allocating(mebibytes: &str, then: &str) -> ContainerSpec {
    let exe = exe();
    container(
        "main",
        &[
            exe.to_str().expect("a plain path"),
            "allocate",
            mebibytes,
            then,
        ],
    )
}

fn limited(mut spec: ContainerSpec, mebibytes: u64) -> Pod {
    spec.memory_limit_bytes = Some(mebibytes * MIB);
    Pod::of(spec)
}

fn no_cgroup() -> Outcome {
    let why = match stoke_node::cgroup::detect("test-why") {
        stoke_node::cgroup::Cgroups::Unusable { reason } => reason,
        usable @ stoke_node::cgroup::Cgroups::Usable(_) => {
            usable.release();
            "the other cgroup version is needed".to_owned()
        }
    };
    Outcome::Skipped(why)
}

fn over_the_limit_is_oom_killed() -> Outcome {
    let pod = limited(allocating("300", "exit"), 128);
    if pod.spec.cgroup.is_none() {
        return no_cgroup();
    }
    let status = pod.start().wait_finished();
    let exit = exit_in(&status, "main");
    assert_eq!(
        (exit.exit_code, exit.reason.as_str(), exit.oom_killed),
        (137, "OOMKilled", true)
    );
    assert_eq!(exit.oom_kills, 1);
    let peak = exit.peak_memory_bytes.expect("a cgroup knows its peak");
    assert!((120 * MIB..=128 * MIB).contains(&peak), "{peak}");
    assert!(
        exit.message
            .as_ref()
            .is_some_and(|message| message.contains("128 MiB")),
        "{exit:?}"
    );
    Outcome::Passed
}

fn the_guard_holds_the_limit_without_cgroup() -> Outcome {
    let pod = limited(allocating("1200", "sleep"), 128)
        .without_cgroup()
        .start();
    let status = pod.wait_finished();
    let exit = exit_in(&status, "main");
    assert_eq!(
        (exit.exit_code, exit.reason.as_str(), exit.oom_killed),
        (137, "OOMKilled", true)
    );
    assert!(
        exit.peak_memory_bytes.is_some_and(|peak| peak > 128 * MIB),
        "{exit:?}"
    );
    // And one below its limit is left alone.
    let pod = limited(allocating("64", "exit"), 128)
        .without_cgroup()
        .start();
    assert_eq!(exit_in(&pod.wait_finished(), "main").exit_code, 0);
    Outcome::Passed
}

fn a_killed_child_is_counted() -> Outcome {
    let script = format!(
        "{} allocate 300 exit; echo child ended with $?; sleep 1000",
        exe().display()
    );
    let pod = limited(sh("main", &script), 128);
    if pod
        .spec
        .cgroup
        .as_ref()
        .map(stoke_node::cgroup::CgroupSpec::version)
        != Some(stoke_node::cgroup::CgroupVersion::V1)
    {
        return no_cgroup();
    }
    let pod = pod.start();
    let seen = pod.watch_until(|status| {
        status
            .container("main")
            .is_some_and(|status| status.oom_kills > 0)
    });
    assert!(
        seen.last()
            .is_some_and(|status| pid_in(status, "main").is_some()),
        "the container lives"
    );
    wait_until("the shell has seen it", || {
        pod.log("main", 0).contains("child ended with 137")
    });
    pod.stop(0);
    let status = pod.wait_finished();
    assert_eq!(exit_in(&status, "main").oom_kills, 1);
    Outcome::Passed
}

fn a_shell_that_reports_its_killed_child() -> Outcome {
    let script = format!("{} allocate 300 exit", exe().display());
    let pod = limited(sh("main", &format!("{script}; exit $?")), 128);
    if pod.spec.cgroup.is_none() {
        return no_cgroup();
    }
    let status = pod.start().wait_finished();
    let exit = exit_in(&status, "main");
    assert_eq!((exit.exit_code, exit.reason.as_str()), (137, "OOMKilled"));
    Outcome::Passed
}

fn the_limit_can_be_raised_live() -> Outcome {
    let script = format!(
        "while [ ! -e go ]; do sleep 0.01; done; exec {} allocate 200 sleep",
        exe().display()
    );
    let mut spec = sh("main", &script);
    spec.memory_limit_bytes = Some(64 * MIB);
    let mut pod = Pod::of(spec);
    let volume = pod.volume("go");
    pod.spec.containers[0].cwd = Some(volume.clone());
    if pod.spec.cgroup.is_none() {
        return no_cgroup();
    }
    let pod = pod.start();
    pod.wait_running("main");
    let request = Request::SetMemoryLimit {
        container: "main".to_owned(),
        bytes: 400 * MIB,
    };
    assert_eq!(pod.ask(request).expect("answered"), Response::Done);
    std::fs::write(volume.join("go"), "").expect("ours");
    wait_until("it has what it wants", || {
        pod.log("main", 0).contains("allocated 200")
    });
    let Response::Usage { containers } = pod.ask(Request::Usage).expect("answered") else {
        panic!("not a usage")
    };
    let memory = containers[0].memory;
    assert_eq!(memory.limit_bytes, Some(400 * MIB));
    assert!(
        memory.anon_bytes >= 200 * MIB && memory.usage_bytes >= memory.anon_bytes,
        "{memory:?}"
    );
    assert!(
        memory.working_set_bytes <= memory.usage_bytes && memory.oom_kills == 0,
        "{memory:?}"
    );
    assert_eq!(
        pod.status().containers[0].memory_limit_bytes,
        Some(400 * MIB)
    );
    Outcome::Passed
}

fn raisable(mebibytes: &str, then: &str) -> Pod {
    let mut spec = allocating(mebibytes, then);
    spec.memory_limit_bytes = Some(64 * MIB);
    spec.memory_max_bytes = Some(512 * MIB);
    Pod::of(spec)
}

fn who_reaches_a_limit_waits() -> Outcome {
    let pod = raisable("200", "sleep").start();
    pod.wait_running("main");
    // Not at the limit by then, at the limit, or just beyond it where nobody but the shim holds it.
    wait_until("it needs more", || {
        let Ok(Response::Usage { containers }) = pod.ask(Request::Usage) else {
            return false;
        };
        let memory = containers.first().map(|container| container.memory);
        memory.is_some_and(|memory| memory.held || memory.usage_bytes > 62 * MIB)
    });
    let request = Request::SetMemoryLimit {
        container: "main".to_owned(),
        bytes: 400 * MIB,
    };
    assert_eq!(pod.ask(request).expect("answered"), Response::Done);
    wait_until("it has what it wants", || {
        pod.log("main", 0).contains("allocated 200")
    });
    Outcome::Passed
}

fn who_waits_in_vain_is_killed() -> Outcome {
    let status = raisable("200", "sleep").start().wait_finished();
    let exit = exit_in(&status, "main");
    assert_eq!((exit.exit_code, exit.reason.as_str()), (137, "OOMKilled"));
    Outcome::Passed
}

fn a_kill_carries_its_reason() -> Outcome {
    let pod = Pod::of(sh("main", "sleep 1000")).start();
    pod.wait_running("main");
    let request = Request::Kill {
        container: "main".to_owned(),
        reason: "OOMKilled".to_owned(),
    };
    assert_eq!(pod.ask(request).expect("answered"), Response::Done);
    let status = pod.wait_finished();
    let exit = exit_in(&status, "main");
    assert_eq!(
        (exit.exit_code, exit.reason.as_str(), exit.oom_killed),
        (137, "OOMKilled", true)
    );
    Outcome::Passed
}

fn orphan_cgroups_are_removed() -> Outcome {
    let cgroups = stoke_node::cgroup::detect(&format!("orphans-{}", std::process::id()));
    let (Some(known), Some(orphan)) = (cgroups.pod("known"), cgroups.pod("orphan")) else {
        return no_cgroup();
    };
    for pod in [&known, &orphan] {
        pod.create_parent().expect("ours");
        pod.child("main")
            .create(&stoke_node::cgroup::Limits::default())
            .expect("ours");
    }
    let mut sleeper = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("sleep is everywhere");
    std::fs::write(
        orphan.child("main").path().join("cgroup.procs"),
        sleeper.id().to_string(),
    )
    .expect("ours");
    // Collected by another thread, as init would; a zombie keeps its cgroup busy.
    let collector = std::thread::spawn(move || sleeper.wait());
    let (removed, errors) = cgroups.remove_orphans(&["known".to_owned()].into());
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(removed.into_iter().collect::<Vec<_>>(), ["podorphan"]);
    assert!(known.path().exists() && !orphan.path().exists());
    let status = collector.join().expect("no panic").expect("our child");
    assert!(!status.success());
    cgroups.remove_orphans(&std::collections::BTreeSet::new());
    cgroups.release();
    Outcome::Passed
}
