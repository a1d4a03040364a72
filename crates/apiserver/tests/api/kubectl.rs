//! The real `kubectl` over TLS, against a server without a node.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use stoke_apiserver::kubeconfig::{self, Access};
use stoke_apiserver::pki::Authority;
use stoke_apiserver::serve::{Token, serve};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::world::{PATIENCE, World};

/// A server on a port of its own, with a kubeconfig for it.
struct Served {
    world: World,
    directory: tempfile::TempDir,
    url: String,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    async fn new() -> Self {
        let world = World::kept().await;
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::open(&directory.path().join("pki")).unwrap();
        let token = Token::open(&directory.path().join("token")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let access = Access {
            url: &url,
            ca_pem: authority.certificate_pem(),
            token: &token,
        };
        kubeconfig::write(&directory.path().join("kubeconfig"), &access).unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(
            world.server.clone(),
            listener,
            authority.server_config(&[]).unwrap(),
            token,
            shutdown.clone(),
        ));
        Self {
            world,
            directory,
            url,
            shutdown,
            task,
        }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(arguments)
            .env("KUBECONFIG", self.path().join("kubeconfig"))
            .env("HOME", self.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self.command(arguments).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        tokio::time::timeout(PATIENCE, child.wait_with_output())
            .await
            .unwrap_or_else(|_| panic!("kubectl {arguments:?} hangs"))
            .unwrap()
    }

    /// What it prints, if it succeeds.
    async fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_with(arguments, "").await
    }

    async fn kubectl_with(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input).await;
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success(),
            "kubectl {arguments:?}\n{text}\n{errors}"
        );
        text
    }

    /// What it says when it fails.
    async fn refused(&self, arguments: &[&str], input: &str) -> String {
        let output = self.run(arguments, input).await;
        assert!(!output.status.success(), "kubectl {arguments:?} succeeds");
        String::from_utf8(output.stderr).unwrap()
    }
}

const JOB: &str = "
apiVersion: stokehold.dev/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  command: [python, train.py]
  workers: 2
";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: main
    image: host
    command: [sleep, '1000']
    resources: {limits: {cpu: 1, memory: 64Mi}}
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works() {
    if std::process::Command::new("kubectl")
        .arg("version")
        .arg("--client")
        .output()
        .is_err()
    {
        eprintln!("skipped: kubectl is not installed");
        return;
    }
    let served = Served::new().await;
    let k = &served;

    let version = k.kubectl(&["version", "-o", "json"]).await;
    let version: Value = serde_json::from_str(&version).unwrap();
    assert!(version["serverVersion"]["gitVersion"].is_string());
    let resources = k.kubectl(&["api-resources"]).await;
    for kind in ["Pod", "TrainJob", "CustomResourceDefinition", "Lease"] {
        assert!(resources.contains(kind), "{resources}");
    }
    let explained = k.kubectl(&["explain", "trainjob.spec"]).await;
    assert!(explained.contains("workers"), "{explained}");
    let explained = k.kubectl(&["explain", "pod.spec.containers"]).await;
    assert!(explained.contains("image"), "{explained}");

    let applied = k.kubectl_with(&["apply", "-f", "-"], JOB).await;
    assert_eq!(applied, "trainjob.stokehold.dev/digits created\n");
    let changed = JOB.replace("workers: 2", "workers: 3");
    let applied = k.kubectl_with(&["apply", "-f", "-"], &changed).await;
    assert_eq!(applied, "trainjob.stokehold.dev/digits configured\n");
    let applied = k.kubectl_with(&["apply", "-f", "-"], &changed).await;
    assert_eq!(applied, "trainjob.stokehold.dev/digits unchanged\n");
    let workers = k
        .kubectl(&[
            "get",
            "trainjob",
            "digits",
            "-o",
            "jsonpath={.spec.workers}",
        ])
        .await;
    assert_eq!(workers, "3");
    let applied = k.kubectl_with(&["apply", "-f", "-"], POD).await;
    assert_eq!(applied, "pod/web created\n");
    let image = POD.replace("image: host", "image: other");
    let applied = k.kubectl_with(&["apply", "-f", "-"], &image).await;
    assert_eq!(applied, "pod/web configured\n");

    let unknown = JOB.replace("workers", "wokers");
    let said = k.refused(&["apply", "-f", "-"], &unknown).await;
    assert!(said.contains("unknown field \"spec.wokers\""), "{said}");
    let zero = JOB.replace("workers: 2", "workers: 0");
    let said = k.refused(&["apply", "-f", "-"], &zero).await;
    assert!(said.contains("spec.workers"), "{said}");

    let wide = k
        .kubectl(&["get", "trainjobs,pods,namespaces", "-o", "wide"])
        .await;
    assert!(
        wide.contains("digits") && wide.contains("pod/web"),
        "{wide}"
    );
    assert!(wide.contains("Pending"), "{wide}");
    k.kubectl(&["get", "all", "-A"]).await;
    watch_labels_and_patches(k).await;

    let waited = k
        .kubectl(&["wait", "--for=condition=Ready", "pod/web", "--timeout=15s"])
        .await;
    assert_eq!(waited, "pod/web condition met\n");
    k.kubectl(&["describe", "pod", "web"]).await;
    k.kubectl(&["describe", "trainjob", "digits"]).await;
    k.kubectl(&["create", "configmap", "c", "--from-literal=a=b"])
        .await;
    k.kubectl(&["create", "secret", "generic", "s", "--from-literal=a=b"])
        .await;
    k.kubectl(&["create", "serviceaccount", "robot"]).await;
    k.kubectl(&["create", "priorityclass", "p", "--value=5"])
        .await;
    let secret = k.kubectl(&["get", "secret", "s", "-o", "jsonpath={.data.a}"]);
    assert_eq!(secret.await, "Yg==");
    k.kubectl(&["create", "namespace", "team"]).await;
    k.kubectl(&["delete", "namespace", "team"]).await;
    let logs = k.kubectl(&["logs", "web"]).await;
    assert_eq!(logs, "");
    let events = k
        .kubectl_with(&["create", "-f", "-", "-o", "name"], EVENT)
        .await;
    assert_eq!(events, "event/started\n");
    let events = k.kubectl(&["get", "events"]).await;
    assert!(events.contains("it started"), "{events}");
    let deleted = k.kubectl(&["delete", "pod/web", "trainjob/digits"]).await;
    assert!(deleted.contains("\"digits\" deleted"), "{deleted}");
    let gone = k.refused(&["get", "pod", "web"], "").await;
    assert_eq!(
        gone,
        "Error from server (NotFound): pods \"web\" not found\n"
    );

    let outsider = k.refused(&["get", "pods", "--token=guess"], "").await;
    assert!(
        outsider.contains("Unauthorized") || outsider.contains("logged in"),
        "{outsider}"
    );
    served.shutdown.cancel();
    tokio::time::timeout(PATIENCE, served.task)
        .await
        .unwrap()
        .unwrap();
    drop(served.world);
    let _ = served.url;
}

const EVENT: &str = "
apiVersion: v1
kind: Event
metadata: {name: started}
involvedObject: {kind: Pod, name: web, namespace: default}
type: Normal
reason: Started
message: it started
";

async fn watch_labels_and_patches(k: &Served) {
    let mut watching = k.command(&["get", "pods", "-w"]).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next_line = async || {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        line.expect("a line in time")
            .unwrap()
            .expect("kubectl still watches")
    };
    assert!(next_line().await.starts_with("NAME"));
    assert!(next_line().await.contains("Pending"));

    k.kubectl(&["label", "pod", "web", "tier=front"]).await;
    next_line().await;
    k.kubectl(&["annotate", "pod", "web", "note=hello"]).await;
    k.kubectl(&[
        "patch",
        "pod",
        "web",
        "-p",
        r#"{"metadata":{"labels":{"a":"strategic"}}}"#,
    ])
    .await;
    k.kubectl(&[
        "patch",
        "pod",
        "web",
        "--type=merge",
        "-p",
        r#"{"metadata":{"labels":{"b":"merge"}}}"#,
    ])
    .await;
    let operations = r#"[{"op":"add","path":"/metadata/labels/c","value":"json"}]"#;
    k.kubectl(&["patch", "pod", "web", "--type=json", "-p", operations])
        .await;
    let ready = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
    k.kubectl(&[
        "patch",
        "pod",
        "web",
        "--subresource=status",
        "--type=merge",
        "-p",
        ready,
    ])
    .await;
    let shown = k
        .kubectl(&[
            "get",
            "pods",
            "--show-labels",
            "-l",
            "a=strategic,b=merge,c=json",
        ])
        .await;
    assert!(shown.contains("tier=front"), "{shown}");
    while !next_line().await.contains("Running") {}
    watching.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_answered_without_the_token() {
    let served = Served::new().await;
    let ca = served.path().join("pki/ca.crt");
    let config = kube::config::Kubeconfig::read_from(served.path().join("kubeconfig")).unwrap();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let ask = async |config: kube::config::Kubeconfig, path: &str| {
        let client = kube::Client::try_from(config).unwrap();
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        client.request_text(request).await
    };
    assert!(ca.exists());
    for path in [
        "/healthz",
        "/version",
        "/api",
        "/api/v1/pods",
        "/openapi/v3",
        "/nothing",
    ] {
        let mut anonymous = config.clone();
        anonymous.auth_infos[0].auth_info = None;
        let refused = ask(anonymous, path).await.unwrap_err();
        assert!(
            matches!(&refused, kube::Error::Api(status) if status.code == 401),
            "{path}: {refused}"
        );
    }
    ask(config, "/healthz").await.unwrap();
}
