//! Memory limits are real: with cgroups, and without.

use crate::support::{Engine, alive, eventually, is_root, said};
use serde_json::Value;

const GREEDY: &str = r#"
import sys, time
held = []
for _ in range(int(sys.argv[1])):
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.003)
print("held it all", flush=True)
time.sleep(1)
"#;

fn oom_is_seen(engine: &Engine) {
    let script = engine.write("greedy.py", GREEDY);
    let arguments = [
        "run",
        "--name",
        "greedy",
        "--memory",
        "128Mi",
        "--retries",
        "0",
        "--",
        "python3",
        &script,
        "300",
    ];
    let output = engine.try_stoke(&arguments);
    assert_eq!(output.status.code(), Some(137), "{}", said(&output));

    let job = engine.job("greedy");
    let exit = &job["status"]["attempts"][0]["exit"];
    assert_eq!(job["status"]["phase"], "Failed", "{job:#}");
    assert_eq!(exit["reason"], "OOMKilled", "{job:#}");
    assert_eq!(exit["exitCode"], 137, "{job:#}");
    let told = engine.stoke(&["explain", "greedy"]);
    assert!(told.contains("128"), "the limit is told: {told}");
    assert!(!engine.stoke(&["logs", "greedy"]).contains("held it all"));

    // Within its limit the same script is left alone.
    let output = engine.try_stoke(&[
        "run", "--name", "modest", "--memory", "128Mi", "--", "python3", &script, "60",
    ]);
    assert!(output.status.success(), "{}", said(&output));
}

fn enforced_by(engine: &Engine) -> String {
    let nodes: Value =
        serde_json::from_str(&engine.stoke(&["get", "nodes", "-o", "json"])).expect("JSON");
    let conditions = nodes["items"][0]["status"]["conditions"]
        .as_array()
        .expect("conditions")
        .clone();
    let condition = conditions
        .into_iter()
        .find(|condition| condition["type"] == "MemoryLimitsEnforced");
    condition.expect("the node says who enforces limits")["reason"]
        .as_str()
        .expect("a reason")
        .to_owned()
}

#[test]
fn a_worker_over_its_limit_is_oom_killed() {
    let engine = Engine::start();
    let enforced_by = enforced_by(&engine);
    println!("limits are enforced by {enforced_by}");
    oom_is_seen(&engine);
    // The kernel's own words, where they may be read.
    let is_kernel = enforced_by.starts_with("Cgroup");
    if is_kernel && std::fs::File::open("/dev/kmsg").is_ok() {
        let told = engine.stoke(&["explain", "greedy"]);
        let quote = "> Memory cgroup out of memory: Killed process";
        assert!(told.contains(quote) && told.contains("anon-rss:"), "{told}");
    }
}

#[test]
fn an_ordinary_user_has_limits_too() {
    if !is_root() {
        println!("skipped: already an ordinary user, so the other test is this one");
        return;
    }
    let engine = Engine::start_as(65_534, &[]);
    assert_eq!(enforced_by(&engine), "SamplingGuard");
    oom_is_seen(&engine);

    let doctor = engine.try_stoke(&["doctor"]);
    let told = said(&doctor);
    assert!(told.contains("cgroup"), "{told}");

    // Mount paths that the host does not have appear for the job, and only for it.
    let script = engine.write(
        "mounted.py",
        "import os\nopen('/ckpt/here', 'w').write('x')\nprint(os.listdir('/ckpt'))\n",
    );
    let output = engine.try_stoke(&[
        "run",
        "--name",
        "mounted",
        "--checkpoint",
        "/ckpt",
        "--",
        "python3",
        &script,
    ]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        !std::path::Path::new("/ckpt").exists(),
        "the host is not touched"
    );
}

/// The cgroups of a pod, in every hierarchy.
fn cgroups_of(uid: &str) -> Vec<String> {
    let found = std::process::Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-path", &format!("*{uid}*")])
        .output();
    let found = String::from_utf8(found.expect("find runs").stdout).expect("UTF-8");
    found.lines().map(str::to_owned).collect()
}

#[test]
fn nothing_is_left_behind() {
    let mounts = || {
        std::fs::read_to_string("/proc/self/mountinfo")
            .expect("mountinfo")
            .lines()
            .count()
    };
    let mounted_before = mounts();
    let engine = Engine::start();
    let command = "sleep 1000 & echo $!; wait";
    engine.stoke(&[
        "run",
        "--detach",
        "--name",
        "long",
        "--checkpoint",
        "/ckpt",
        "--",
        "sh",
        "-c",
        command,
    ]);
    // It may not have printed yet, or not even have begun.
    let grandchild: u32 = eventually("the worker's child", || {
        let logs = engine.try_stoke(&["logs", "long"]);
        String::from_utf8(logs.stdout).ok()?.trim().parse().ok()
    });
    assert!(alive(grandchild));
    let pod: Value = serde_json::from_str(&engine.stoke(&["get", "pod", "long-1-0", "-o", "json"]))
        .expect("JSON");
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    if enforced_by(&engine) != "SamplingGuard" {
        assert!(!cgroups_of(uid).is_empty(), "a running pod has its cgroups");
    }
    assert_eq!(mounts(), mounted_before, "no mount reaches the host");

    engine.stoke(&["delete", "long", "--wait"]);
    let pods = engine.data_dir().join("pods");
    eventually("the pod's folder to go", || {
        (std::fs::read_dir(&pods).ok()?.count() == 0).then_some(())
    });
    assert!(!alive(grandchild), "no process is left");
    assert_eq!(cgroups_of(uid), [""; 0], "no cgroup is left");
}
