//! Mounts at paths that the host does not have, on a host that must not notice.

use std::path::{Path, PathBuf};

use stoke_node::shim::protocol::{ContainerSpec, Mount, Request, Response, RestartPolicy, Tmpfs};
use stoke_node::shim::{self, SpawnError};

use crate::pod::{Pod, exe, exit_in, sh, wait_until};
use crate::{Case, Outcome, case, case_for_all};

pub const CASES: &[Case] = &[
    case_for_all(
        "mounts_appear_where_the_yaml_says",
        mounts_appear_where_the_yaml_says,
    ),
    case_for_all("files_can_be_mounted", files_can_be_mounted),
    case_for_all("mounts_can_be_nested", mounts_can_be_nested),
    case_for_all("read_only_mounts_are", read_only_mounts_are),
    case_for_all(
        "a_covered_directory_keeps_what_it_had",
        a_covered_directory_keeps_what_it_had,
    ),
    case_for_all(
        "memory_backed_volumes_have_a_size_and_leave_no_trace",
        memory_backed_volumes,
    ),
    case_for_all(
        "bad_mounts_are_refused_with_the_reason",
        bad_mounts_are_refused,
    ),
    case_for_all(
        "the_host_looks_the_same_inside",
        the_host_looks_the_same_inside,
    ),
    case("the_hostname_is_the_pods_own", the_hostname_is_the_pods_own),
    case_for_all(
        "what_the_machine_permits_can_be_asked",
        what_the_machine_permits,
    ),
];

fn mount(source: PathBuf, target: &str) -> Mount {
    Mount {
        source,
        target: target.into(),
        read_only: false,
    }
}

/// The reason why no pod with mounts can run here.
fn impossible() -> Option<Outcome> {
    shim::capabilities(&exe())
        .mounts
        .err()
        .map(Outcome::Skipped)
}

/// A pod whose one container has the mounts that `mounts` makes from it.
fn pod_with(script: &str, mounts: impl FnOnce(&Pod) -> Vec<Mount>) -> Pod {
    let mut pod = Pod::new(RestartPolicy::Never, Vec::new());
    let mounts = mounts(&pod);
    pod.spec.containers = vec![ContainerSpec {
        mounts,
        ..sh("main", script)
    }];
    pod
}

/// Runs it to its end and gives its log; the host's mounts must be the same before, while it runs and after.
fn run_unnoticed(pod: Pod) -> String {
    let before = host_mounts();
    let pod = pod.start();
    assert_eq!(host_mounts(), before);
    let status = pod.wait_finished();
    assert_eq!(host_mounts(), before);
    let exit = exit_in(&status, "main");
    let log = pod.log("main", 0);
    assert_eq!(exit.exit_code, 0, "{exit:?}\n{log}");
    log
}

fn host_mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").expect("readable")
}

fn mounts_appear_where_the_yaml_says() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    let targets = [
        "/stokehold-data",
        "/mnt/stokehold-a/b/c",
        "/usr/share/stokehold/x",
        "/dev/shm",
    ];
    let script = targets
        .map(|target| format!("cat {target}/name; echo new > {target}/written"))
        .join(" && ");
    let mut volumes = Vec::new();
    let pod = pod_with(&script, |pod| {
        let each = targets.iter().enumerate().map(|(number, target)| {
            let volume = pod.volume(&number.to_string());
            std::fs::write(volume.join("name"), format!("{target}\n")).expect("ours");
            volumes.push(volume.clone());
            mount(volume, target)
        });
        each.collect()
    });
    let home = pod.dir.clone();
    let before = host_mounts();
    let pod = pod.start();
    let status = pod.wait_finished();
    assert_eq!(host_mounts(), before);
    assert_eq!(
        exit_in(&status, "main").exit_code,
        0,
        "{status:?} {}",
        pod.log("main", 0)
    );
    assert_eq!(
        pod.log("main", 0),
        targets.map(|target| format!("{target}\n")).concat()
    );
    for volume in &volumes {
        assert_eq!(
            std::fs::read_to_string(volume.join("written")).expect("written through"),
            "new\n"
        );
    }
    for absent in [
        "/stokehold-data",
        "/mnt/stokehold-a",
        "/usr/share/stokehold",
        "/dev/shm/written",
    ] {
        assert!(
            !Path::new(absent).exists(),
            "{absent} must not appear on the host"
        );
    }
    assert_eq!(
        std::fs::read_dir(home.join("root")).expect("ours").count(),
        0
    );
    Outcome::Passed
}

fn files_can_be_mounted() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    let pod = pod_with(
        "cat /etc/hosts /stokehold/app/conf.yaml; ls -a /stokehold/app",
        |pod| {
            let volume = pod.volume("files");
            std::fs::write(volume.join("hosts"), "10.0.0.1 rank-0\n").expect("ours");
            std::fs::write(volume.join("conf"), "lr: 0.1\n").expect("ours");
            vec![
                mount(volume.join("hosts"), "/etc/hosts"),
                mount(volume.join("conf"), "/stokehold/app/conf.yaml"),
            ]
        },
    );
    assert_eq!(
        run_unnoticed(pod),
        "10.0.0.1 rank-0\nlr: 0.1\n.\n..\nconf.yaml\n"
    );
    Outcome::Passed
}

fn mounts_can_be_nested() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    // The inner one first in the list: the order of the YAML must not matter.
    let pod = pod_with(
        "cat /stokehold-out/name /stokehold-out/in/side/name",
        |pod| {
            let (outer, inner) = (pod.volume("outer"), pod.volume("inner"));
            std::fs::write(outer.join("name"), "outer\n").expect("ours");
            std::fs::write(inner.join("name"), "inner\n").expect("ours");
            vec![
                mount(inner, "/stokehold-out/in/side"),
                mount(outer, "/stokehold-out"),
            ]
        },
    );
    assert_eq!(run_unnoticed(pod), "outer\ninner\n");
    Outcome::Passed
}

fn read_only_mounts_are() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    // One stream, because two are in no order.
    let script = "exec 2>&1; cat /stokehold-ro/name; echo no > /stokehold-ro/name || echo refused; \
                  echo yes > /stokehold-rw/name && echo taken";
    let pod = pod_with(script, |pod| {
        let volume = pod.volume("both");
        std::fs::write(volume.join("name"), "both\n").expect("ours");
        let mut read_only = mount(volume.clone(), "/stokehold-ro");
        read_only.read_only = true;
        vec![read_only, mount(volume, "/stokehold-rw")]
    });
    let log = run_unnoticed(pod);
    assert!(
        log.starts_with("both\n") && log.contains("Read-only file system"),
        "{log}"
    );
    assert!(log.ends_with("refused\ntaken\n"), "{log}");
    Outcome::Passed
}

fn a_covered_directory_keeps_what_it_had() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    // The mount path lies in a directory of the host that has other things in it.
    let pod = Pod::new(RestartPolicy::Never, Vec::new());
    let project = pod.volume("project");
    std::fs::create_dir(project.join("src")).expect("ours");
    std::fs::write(project.join("train.py"), "print()\n").expect("ours");
    std::os::unix::fs::symlink("train.py", project.join("link")).expect("ours");
    let volume = pod.volume("ckpt");
    let script = format!(
        "exec 2>&1; cd {} && ls && cat link && echo w >> train.py && echo step > ckpt/step && echo x > src/new && (echo lost > stray || echo refused)",
        project.display()
    );
    let mut pod = pod;
    pod.spec.containers = vec![ContainerSpec {
        mounts: vec![mount(
            volume.clone(),
            project.join("ckpt").to_str().expect("plain"),
        )],
        ..sh("main", &script)
    }];
    let pod = pod.start();
    let status = pod.wait_finished();
    let log = pod.log("main", 0);
    assert_eq!(exit_in(&status, "main").exit_code, 0, "{status:?} {log}");
    assert!(
        log.starts_with("ckpt\nlink\nsrc\ntrain.py\nprint()\n"),
        "{log}"
    );
    assert!(
        log.ends_with("refused\n"),
        "a file that would be lost is refused: {log}"
    );
    assert_eq!(
        std::fs::read_to_string(project.join("train.py")).expect("there"),
        "print()\nw\n"
    );
    assert!(project.join("src/new").exists() && volume.join("step").exists());
    assert!(!project.join("ckpt").exists() && !project.join("stray").exists());
    Outcome::Passed
}

fn memory_backed_volumes() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    let script = "dd if=/dev/zero of=/dev/shm/small bs=1024 count=512 2>&1 && echo fits; \
                  dd if=/dev/zero of=/dev/shm/big bs=1024 count=2048 2>&1 || echo full; \
                  stat -f -c %T /dev/shm; while [ ! -e /stokehold-go/go ]; do sleep 0.01; done";
    let mut shm = PathBuf::new();
    let mut go = PathBuf::new();
    let mut pod = pod_with(script, |pod| {
        shm = pod.volume("shm");
        go = pod.volume("go");
        vec![
            mount(shm.clone(), "/dev/shm"),
            mount(go.clone(), "/stokehold-go"),
        ]
    });
    pod.spec.tmpfs = vec![Tmpfs {
        path: shm.clone(),
        size_bytes: Some(1 << 20),
    }];
    // A second container sees the same volume.
    let mut other = sh(
        "other",
        "while [ ! -e /shared/small ]; do sleep 0.01; done; echo seen",
    );
    other.mounts = vec![mount(shm.clone(), "/shared")];
    pod.spec.containers.push(other);
    let before = host_mounts();
    let pod = pod.start();
    wait_until("it fills the volume", || {
        pod.log("main", 0).contains("tmpfs")
    });
    assert_eq!(host_mounts(), before);
    assert_eq!(
        std::fs::read_dir(&shm).expect("ours").count(),
        0,
        "the host sees an empty directory"
    );
    let answer = pod.ask(Request::Exec {
        container: "main".to_owned(),
        argv: ["ls", "/dev/shm", "/stokehold-go"]
            .map(str::to_owned)
            .into(),
        timeout_ms: 60_000,
    });
    let Ok(Response::Exec {
        exit_code: 0,
        output,
        ..
    }) = answer
    else {
        panic!("{answer:?}")
    };
    assert!(
        output.contains("small"),
        "a command inside sees the container's mounts: {output}"
    );
    std::fs::write(go.join("go"), "").expect("ours");
    let status = pod.wait_finished();
    assert_eq!(host_mounts(), before);
    let log = pod.log("main", 0);
    assert!(
        log.contains("fits") && log.contains("No space left on device") && log.contains("full"),
        "{log}"
    );
    assert_eq!(pod.log("other", 0), "seen\n", "{status:?}");
    Outcome::Passed
}

fn bad_mounts_are_refused() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    for (target, expected) in [
        ("/data/../etc", "without `..`"),
        ("data", "must be absolute"),
        ("/", "not `/`"),
        ("/etc/passwd", "is a directory"),
        ("/etc/passwd/below", "ot a directory"),
    ] {
        let pod = pod_with("true", |pod| vec![mount(pod.volume("data"), target)]).start();
        let status = pod.wait_finished();
        let exit = exit_in(&status, "main");
        assert_eq!(exit.reason, "StartError", "{target}");
        assert!(
            exit.message
                .as_ref()
                .is_some_and(|message| message.contains(expected)),
            "{target}: {exit:?}"
        );
    }
    let pod = pod_with("true", |_| {
        vec![mount("/no/such/source".into(), "/stokehold-data")]
    })
    .start();
    let status = pod.wait_finished();
    assert!(
        exit_in(&status, "main")
            .message
            .as_ref()
            .is_some_and(|message| message.contains("/no/such/source"))
    );
    let mut pod = Pod::of(sh("main", "true"));
    pod.spec.tmpfs = vec![Tmpfs {
        path: "/no/such/volume".into(),
        size_bytes: None,
    }];
    let Err(SpawnError::Refused(reason)) = shim::spawn(&pod.dir, &pod.spec, &exe()) else {
        panic!("there is no such directory")
    };
    assert!(reason.contains("/no/such/volume"), "{reason}");
    Outcome::Passed
}

fn the_host_looks_the_same_inside() -> Outcome {
    if let Some(skipped) = impossible() {
        return skipped;
    }
    // Without the mount it runs on the host's own root; with it, on one that must look the same.
    let script = "ls / | grep -v stokehold-data; readlink /bin /lib /lib64; id -u; id -g; stat -c '%a %F' / /tmp /etc; \
                  echo x > /tmp/$$.stokehold && rm /tmp/$$.stokehold; echo y > /dev/null; head -c 1 /dev/urandom | wc -c; \
                  test -e /proc/1 && ls -d /sys/fs";
    let bare = Pod::of(sh("main", script)).start();
    bare.wait_finished();
    let rooted = run_unnoticed(pod_with(script, |pod| {
        vec![mount(pod.volume("data"), "/stokehold-data")]
    }));
    assert_eq!(rooted, bare.log("main", 0));
    Outcome::Passed
}

fn the_hostname_is_the_pods_own() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Outcome::Skipped("needs root".to_owned());
    }
    let before = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("readable");
    let pod = Pod::of(sh("main", "cat /proc/sys/kernel/hostname")).start();
    pod.wait_finished();
    assert_eq!(pod.log("main", 0), "test-0\n");
    assert_eq!(
        std::fs::read_to_string("/proc/sys/kernel/hostname").expect("readable"),
        before
    );
    Outcome::Passed
}

fn what_the_machine_permits() -> Outcome {
    let capabilities = shim::capabilities(&exe());
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(capabilities.change_user, is_root);
    match capabilities.mounts {
        Ok(shim::MountMethod::Privileged) => assert!(is_root),
        Ok(shim::MountMethod::UserNamespace) => {}
        Err(reason) => assert!(!reason.is_empty()),
    }
    Outcome::Passed
}
