//! Unmodified kubectl against the engine, as the person who already knows it would use it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::support::{Engine, have, said};

struct Kubectl<'a>(&'a Engine);

impl Kubectl<'_> {
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.0.kubectl(arguments).output().expect("kubectl runs");
        assert!(
            output.status.success(),
            "kubectl {}: {}",
            arguments.join(" "),
            said(&output)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Runs a command that must print `expected`.
    fn shows(&self, arguments: &[&str], expected: &[&str]) {
        let text = self.run(arguments);
        for expected in expected {
            assert!(
                text.contains(expected),
                "kubectl {}: no {expected:?} in {text}",
                arguments.join(" ")
            );
        }
    }

    fn refused(&self, arguments: &[&str], expected: &str) {
        let output = self.0.kubectl(arguments).output().expect("kubectl runs");
        assert!(
            !output.status.success(),
            "kubectl {} must be refused",
            arguments.join(" ")
        );
        assert!(
            said(&output).contains(expected),
            "kubectl {}: {}",
            arguments.join(" "),
            said(&output)
        );
    }
}

const JOB: &str = r#"
apiVersion: stokehold.dev/v1alpha1
kind: TrainJob
metadata:
  name: hello
  labels: {team: vision}
spec:
  command: [sh, -c, "until [ -e GO ]; do sleep 0.05; done; for i in 1 2 3; do echo line $i; done"]
  memory: {limit: 64Mi}
"#;

#[test]
fn kubectl_does_everything_the_readme_says() {
    if !have("kubectl") {
        println!("skipped: kubectl is not installed");
        return;
    }
    let engine = Engine::start();
    let kubectl = Kubectl(&engine);

    kubectl.shows(&["version"], &["Server Version: v1."]);
    kubectl.shows(
        &["api-resources"],
        &[
            "trainjobs",
            "pods",
            "persistentvolumeclaims",
            "leases",
            "queues",
            "tj",
        ],
    );
    kubectl.shows(
        &["explain", "trainjob.spec"],
        &["KIND:       TrainJob", "workers", "memory", "checkpoint"],
    );
    kubectl.shows(
        &["explain", "trainjob.spec.memory.limit"],
        &["What a worker is stopped at"],
    );
    kubectl.shows(
        &["explain", "pod.spec.containers"],
        &["image", "volumeMounts"],
    );

    // Watch from before the job exists; kubectl prints a line a change.
    let mut watch = engine.kubectl(&["get", "trainjobs", "-w", "-o", "name"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("kubectl runs");
    let watched = watch.stdout.take().expect("a pipe");

    // The job goes on when the test says so, however slow the machine is.
    let go = engine.folder().join("go");
    let job = JOB.replace("GO", go.to_str().expect("UTF-8"));
    let file = engine.write("job.yaml", &job);
    kubectl.shows(
        &["apply", "-f", &file],
        &["trainjob.stokehold.dev/hello created"],
    );
    let mut seen = String::new();
    BufReader::new(watched)
        .read_line(&mut seen)
        .expect("a line");
    assert_eq!(seen.trim(), "trainjob.stokehold.dev/hello");
    watch.kill().expect("kubectl ends");
    watch.wait().expect("kubectl ends");

    kubectl.shows(
        &["apply", "-f", &file],
        &["trainjob.stokehold.dev/hello unchanged"],
    );
    let changed = engine.write(
        "job.yaml",
        &job.replace("command:", "retries: 7\n  command:"),
    );
    kubectl.shows(
        &["apply", "-f", &changed],
        &["trainjob.stokehold.dev/hello configured"],
    );
    kubectl.shows(
        &["get", "trainjob", "hello", "-o", "jsonpath={.spec.retries}"],
        &["7"],
    );
    kubectl.shows(
        &["get", "trainjobs,pods,nodes", "-o", "wide"],
        &["hello", "PHASE", "Ready", "INTERNAL-IP"],
    );

    let follow = kubectl.run(&[
        "wait",
        "--for=condition=Running",
        "trainjob/hello",
        "--timeout=60s",
    ]);
    assert!(follow.contains("condition met"));
    std::fs::write(go, "").expect("a file");
    kubectl.shows(&["logs", "-f", "hello-1-0"], &["line 1\nline 2\nline 3\n"]);
    kubectl.shows(&["logs", "--tail=1", "hello-1-0"], &["line 3"]);
    kubectl.shows(
        &[
            "wait",
            "--for=condition=Complete",
            "trainjob/hello",
            "--timeout=60s",
        ],
        &["condition met"],
    );

    kubectl.shows(
        &["describe", "trainjob", "hello"],
        &["Kind:         TrainJob", "Events:", "Phase:"],
    );
    kubectl.shows(
        &["describe", "pod", "hello-1-0"],
        &["Exit Code:    0", "Completed", "QoS Class:"],
    );
    kubectl.shows(
        &["describe", "node"],
        &["Allocatable", "MemoryLimitsEnforced"],
    );
    kubectl.shows(&["get", "events"], &["hello"]);
    kubectl.shows(&["get", "events.events.k8s.io"], &["hello"]);

    kubectl.run(&["label", "trainjob", "hello", "stage=done"]);
    kubectl.run(&["annotate", "trainjob", "hello", "note=kept"]);
    kubectl.shows(
        &[
            "get",
            "tj",
            "-l",
            "stage=done,team in (vision, speech)",
            "-o",
            "name",
        ],
        &["hello"],
    );
    kubectl.run(&[
        "patch",
        "trainjob",
        "hello",
        "--type=merge",
        "-p",
        r#"{"spec":{"ttl":"1h"}}"#,
    ]);
    let patch = r#"[{"op":"test","path":"/spec/ttl","value":"1h"},{"op":"replace","path":"/spec/ttl","value":"2h"}]"#;
    kubectl.run(&["patch", "trainjob", "hello", "--type=json", "-p", patch]);
    kubectl.shows(
        &["get", "trainjob", "hello", "-o", "jsonpath={.spec.ttl}"],
        &["2h"],
    );
    kubectl.run(&[
        "patch",
        "pod",
        "hello-1-0",
        "--type=strategic",
        "-p",
        r#"{"metadata":{"labels":{"seen":"yes"}}}"#,
    ]);
    kubectl.shows(
        &["get", "pods", "-l", "seen=yes", "-o", "name"],
        &["pod/hello-1-0"],
    );

    kubectl.refused(
        &[
            "patch",
            "trainjob",
            "hello",
            "--type=merge",
            "-p",
            r#"{"spec":{"workers":0}}"#,
        ],
        "spec.workers",
    );
    kubectl.refused(
        &[
            "patch",
            "trainjob",
            "hello",
            "--type=merge",
            "-p",
            r#"{"spec":{"framework":"jax"}}"#,
        ],
        "framework cannot be changed",
    );
    kubectl.refused(&["get", "trainjob", "nobody"], "NotFound");

    kubectl.shows(&["delete", "trainjob", "hello"], &["deleted"]);
    kubectl.run(&["wait", "--for=delete", "pod/hello-1-0", "--timeout=60s"]);
    assert_eq!(kubectl.run(&["get", "trainjobs,pods", "-o", "name"]), "");
}

#[test]
fn a_plain_pod_over_its_limit_ends_as_on_a_cluster() {
    if !have("kubectl") {
        println!("skipped: kubectl is not installed");
        return;
    }
    let engine = Engine::start();
    let kubectl = Kubectl(&engine);
    let pod = engine.write(
        "pod.yaml",
        r#"
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: host
    command: [python3, -c, "x = bytearray(300 << 20); import time; time.sleep(5)"]
    resources: {limits: {memory: 128Mi}}
"#,
    );
    kubectl.run(&["apply", "-f", &pod]);
    kubectl.run(&[
        "wait",
        "--for=jsonpath={.status.phase}=Failed",
        "pod/greedy",
        "--timeout=60s",
    ]);
    let path = "jsonpath={.status.containerStatuses[0].state.terminated.reason} {.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(
        kubectl.run(&["get", "pod", "greedy", "-o", path]),
        "OOMKilled 137"
    );
    kubectl.shows(&["get", "pods"], &["OOMKilled"]);
}

#[test]
fn nobody_is_answered_without_the_token() {
    if !have("curl") {
        println!("skipped: curl is not installed");
        return;
    }
    let engine = Engine::start();
    let kubeconfig =
        std::fs::read_to_string(engine.data_dir().join("kubeconfig")).expect("a kubeconfig");
    let server = kubeconfig
        .split("https://")
        .nth(1)
        .expect("an address")
        .split(['\n', '"', '\''])
        .next()
        .expect("an address")
        .trim();
    for path in [
        "/",
        "/version",
        "/api",
        "/healthz",
        "/api/v1/pods",
        "/openapi/v3",
        "/apis",
    ] {
        let url = format!("https://{server}{path}");
        let output = Command::new("curl")
            .args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", &url])
            .output();
        assert_eq!(
            String::from_utf8_lossy(&output.expect("curl runs").stdout),
            "401",
            "{path}"
        );
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(engine.data_dir().join("kubeconfig"))
            .expect("a file")
            .permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}
