//! Datasets in a real object store, on real nodes: the driver of each copies them once, shows them to workers, and leaves nothing behind.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::release::{self, NAMESPACE, said, succeed};
use crate::s3::{ACCESS, Server};
use crate::support::{Testbed, eventually};
use crate::workers::Jobs;

const SECRET: &str = "a-secret-that-nobody-may-see";
const WRONG: &str = "another-secret-that-opens-nothing";
const FILES: usize = 400;
const FILE_BYTES: usize = 100 << 10;
/// Slow enough to see it and to be killed meanwhile.
const SLOW: u64 = 2 << 20;

/// Stands before the store, counts what it sends, and may hold it back.
struct Narrows {
    port: u16,
    sent: Arc<AtomicU64>,
    /// Bytes a second; 0: as fast as it goes.
    rate: Arc<AtomicU64>,
}

impl Narrows {
    fn before(server: &Server, host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let behind = server.endpoint().replace("http://", "");
        let (sent, rate) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counters = (Arc::clone(&sent), Arc::clone(&rate));
        std::thread::spawn(move || {
            let free = Arc::new(Mutex::new(Instant::now()));
            for client in listener.incoming().flatten() {
                let Ok(store) = TcpStream::connect(&behind) else {
                    continue;
                };
                let (sent, rate) = (Arc::clone(&counters.0), Arc::clone(&counters.1));
                let free = Arc::clone(&free);
                let pair = (
                    client.try_clone().expect("a clone"),
                    store.try_clone().expect("a clone"),
                );
                std::thread::spawn(move || pass(pair.0, pair.1, |_| {}));
                std::thread::spawn(move || {
                    pass(store, client, |bytes| {
                        sent.fetch_add(bytes, Relaxed);
                        let rate = rate.load(Relaxed);
                        if rate > 0 {
                            let mut free = free.lock().expect("a lock");
                            let from = (*free).max(Instant::now());
                            *free = from + Duration::from_secs_f64(bytes as f64 / rate as f64);
                            let wait = *free - Instant::now();
                            drop(free);
                            std::thread::sleep(wait);
                        }
                    });
                });
            }
        });
        Self { port, sent, rate }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, each: impl Fn(u64)) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        each(read as u64);
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The store under a name of the cluster's own, as a platform team would have it.
fn expose(jobs: &Jobs<'_>, host: &str, port: u16) -> String {
    jobs.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "store"},
        "spec": {"clusterIP": "None", "ports": [{"name": "s3", "port": port}]},
    }));
    jobs.apply(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "store", "labels": {"kubernetes.io/service-name": "store"}},
        "endpoints": [{"addresses": [host], "conditions": {"ready": true}}], "ports": [{"name": "s3", "port": port}],
    }));
    format!("http://store.{}.svc.cluster.local:{port}", jobs.namespace())
}

fn keys(testbed: &Testbed, jobs: &Jobs<'_>, secret: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": jobs.namespace()},
        "stringData": {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": secret}});
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), object.to_string()).expect("a file");
    succeed(testbed.kubectl(&["apply", "-f"]).arg(file.path()));
}

fn dataset(jobs: &Jobs<'_>, endpoint: &str) {
    jobs.apply(&json!({
        "apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset", "metadata": {"name": "words"},
        "spec": {"uri": "s3://bucket/words", "secret": "keys", "endpoint": endpoint},
    }));
}

fn told_of(testbed: &Testbed, jobs: &Jobs<'_>) -> Value {
    let found = testbed.get(&["dataset", "words", "-n", jobs.namespace()]);
    found["status"].clone()
}

/// A worker on one node, which reads it.
fn reader(node: &str, script: &str) -> Value {
    let mut template = crate::workers::host_programs(&[]);
    template["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    // Not root: what was copied is for everybody in the pod to read.
    template["spec"]["securityContext"] = json!({"runAsUser": 1000});
    json!({"command": ["sh", "-c", script], "datasets": [{"name": "words", "path": "/data"}], "retries": 0, "template": template})
}

/// What a node's driver keeps, as this machine sees it: `/var` of a node is a layer.
fn kept(testbed: &Testbed, node: &str) -> PathBuf {
    let var = testbed.dir().join(node).join("var/upper");
    var.join("lib/stokehold-data")
}

fn files(dir: PathBuf) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

/// Pins, records and mounts of this node.
fn in_use(testbed: &Testbed, node: &str) -> Vec<String> {
    let kept = kept(testbed, node);
    let mut all: Vec<PathBuf> = files(kept.join("volumes"));
    all.extend(files(kept.join("cache/pins")).into_iter().flat_map(files));
    let mut all: Vec<String> = all.iter().map(|path| path.display().to_string()).collect();
    let place = format!("/{node}/kubelet/pods/");
    for process in files(PathBuf::from("/proc")) {
        let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
        if name.trim() == "kubelet" {
            let mounts = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
            let ours = mounts
                .lines()
                .filter(|line| line.contains("/cache/") && line.contains(&place));
            all.extend(ours.map(str::to_owned));
        }
    }
    all
}

fn drivers(testbed: &Testbed, node: &str) -> Vec<String> {
    let field = format!("--field-selector=spec.nodeName={node}");
    let label = "app.kubernetes.io/component=data";
    let pods = testbed.get(&["pods", "-n", NAMESPACE, "-l", label, &field]);
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let name = |pod: &Value| pod["metadata"]["name"].as_str().map(str::to_owned);
    pods.iter().filter_map(name).collect()
}

#[test]
fn a_bucket_is_copied_once_to_a_node_though_its_driver_is_killed_and_leaves_nothing() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let objects = tempfile::tempdir().expect("a directory");
    let host = testbed.host();
    let Some(server) = Server::start_on(&host, objects.path(), SECRET) else {
        return;
    };
    let words = server.path("words");
    std::fs::create_dir_all(words.join("deep")).expect("a directory");
    let mut expected = Vec::new();
    for i in 0..FILES {
        let bytes: Vec<u8> = (0..FILE_BYTES)
            .map(|at| (at * 31 + i * 7 + at / 253) as u8)
            .collect();
        std::fs::write(words.join(format!("deep/{i:03}")), &bytes).expect("an object");
        expected.extend(bytes);
    }
    let whole = expected.len() as u64;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), expected).expect("a file");
    let sum = succeed(std::process::Command::new("sha256sum").arg(file.path()));
    let sum = sum.split_whitespace().next().expect("a sum").to_owned();

    let narrows = Narrows::before(&server, &host);
    let jobs = Jobs::new(&testbed, "data-test");
    let endpoint = expose(&jobs, &host, narrows.port);
    keys(&testbed, &jobs, SECRET);
    dataset(&jobs, &endpoint);
    let node = testbed.nodes().remove(0);
    let script = format!(
        "test \"$(cat /data/deep/* | sha256sum)\" = \"{sum}  -\" && ! touch /data/new && ! rm /data/deep/000"
    );

    // It says how far it is; its driver is killed, and goes on from there.
    narrows.rate.store(SLOW, Relaxed);
    jobs.create("first", &reader(&node, &script));
    jobs.wait_until("first", "to say how far its data is", |status| {
        let message = status["message"].as_str();
        message.is_some_and(|it| it.contains("rank 0 waits: copying words: "))
    });
    let before = narrows.sent();
    assert!(before < whole, "it was there already: {before}");
    let driver = drivers(&testbed, &node);
    succeed(
        testbed
            .kubectl(&[
                "delete",
                "pod",
                "-n",
                NAMESPACE,
                "--grace-period=0",
                "--force",
            ])
            .args(&driver),
    );
    narrows.rate.store(0, Relaxed);
    jobs.wait("first", "Complete");
    let sent = narrows.sent();
    assert!(
        sent < whole * 3 / 2 + before / 4,
        "{sent} bytes were sent for {whole}, {before} of them before"
    );
    let status = told_of(&testbed, &jobs);
    assert_eq!(status["warmNodes"], json!([node]), "{status:#}");
    assert_eq!(status["files"], FILES, "{status:#}");
    assert_eq!(status["message"], Value::Null);

    // The next one there finds it, as do several at once.
    let mut several = reader(&node, &script);
    several["workers"] = json!(3);
    jobs.create("second", &several);
    jobs.wait("second", "Complete");
    let more = narrows.sent() - sent;
    assert!(more < whole / 20, "{more} bytes were sent again");

    for name in ["first", "second"] {
        jobs.delete(name);
    }
    eventually("the node to be left as it was", || {
        let left = in_use(&testbed, &node);
        left.is_empty().then_some(())
    });
}

#[test]
fn what_is_wrong_with_the_keys_is_told_on_the_job_and_the_keys_are_told_nowhere() {
    let Some((testbed, _release)) = release::on_nodes() else {
        return;
    };
    let objects = tempfile::tempdir().expect("a directory");
    let Some(server) = Server::start_on(&testbed.host(), objects.path(), SECRET) else {
        return;
    };
    let words = server.path("words");
    std::fs::create_dir_all(&words).expect("a directory");
    std::fs::write(words.join("1"), "one").expect("an object");
    let jobs = Jobs::new(&testbed, "data-keys-test");
    dataset(&jobs, &server.endpoint());
    let nodes = testbed.nodes();
    let node = nodes.last().expect("a node");
    jobs.create("reader", &reader(node, "test \"$(cat /data/1)\" = one"));
    let says = |words: &'static str| {
        jobs.wait_until("reader", words, |status| {
            let message = status["message"].as_str();
            message.is_some_and(|it| it.contains(words))
        })
    };
    says(
        "waits for its volumes, dataset words among them, which needs Secret keys in this namespace",
    );
    keys(&testbed, &jobs, WRONG);
    says("StagingFailed: dataset words: s3://bucket/words: the server answers 403");
    let message = told_of(&testbed, &jobs)["message"].clone();
    assert!(
        message.as_str().is_some_and(|it| it.contains("403")),
        "{message}"
    );
    keys(&testbed, &jobs, SECRET);
    jobs.wait("reader", "Complete");
    assert_eq!(told_of(&testbed, &jobs)["message"], Value::Null);

    let objects = [
        "get",
        "events,pods,datasets,trainjobs",
        "-o",
        "yaml",
        "-n",
        jobs.namespace(),
    ];
    let mut told = said(&testbed.kubectl(&objects).output().expect("kubectl"));
    for part in ["data", "operator", "agent"] {
        let label = format!("app.kubernetes.io/component={part}");
        let logs = ["logs", "-n", NAMESPACE, "--tail=-1", "-l", &label];
        told.push_str(&said(&testbed.kubectl(&logs).output().expect("kubectl")));
    }
    assert!(told.contains("s3://bucket/words"));
    for key in [SECRET, WRONG, ACCESS] {
        assert!(!told.contains(key), "{key} is told");
    }
    // What a job no longer needs is let go of, though the job stays.
    jobs.delete("reader");
    eventually("the node to be left as it was", || {
        in_use(&testbed, node).is_empty().then_some(())
    });
}
