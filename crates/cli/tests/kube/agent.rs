//! The agent beside a real kubelet: it finds the containers of its node, measures them, and tells when one has ended.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use stoke_api::digest::PodDigest;
use stoke_api::names::MEMORY_DIGEST_ANNOTATION;

use crate::support::{self, Testbed, eventually};
use crate::workers::{Jobs, host_programs};

/// What the worker fills, beside what Python itself needs.
const FILLED: u64 = 60 << 20;
const FILL: &str = "
import os, time
memory = bytearray(60 << 20)
for page in range(0, len(memory), 4096): memory[page] = 1
while not os.path.exists('/tmp/enough'): time.sleep(0.1)
";

/// An agent as a process of this machine, which sees the cgroups of all the testbed's kubelets.
struct Agent {
    process: Child,
    address: String,
}

impl Agent {
    fn start(testbed: &Testbed, node: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_stoke"))
            .args(["agent", "--node", node, "--listen", "127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(testbed.kubeconfig())
            .env("NO_COLOR", "1")
            .env_remove("STOKE_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("stoke runs");
        let mut log = BufReader::new(process.stderr.take().expect("stderr")).lines();
        let address = log
            .by_ref()
            .map(|line| line.expect("text"))
            .find_map(|line| {
                eprintln!("{line}");
                Some(line.split_once("address=")?.1.trim().to_owned())
            })
            .expect("an address");
        // Whoever writes a log is read to the end, or it stops.
        std::thread::spawn(move || log.for_each(|line| eprintln!("{}", line.unwrap_or_default())));
        Self { process, address }
    }

    fn ask(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// The value of a metric of a container.
    fn metric(&self, name: &str, pod: &str) -> Option<u64> {
        let start = format!("stoke_container_memory_{name}{{");
        let label = format!("pod=\"{pod}\"");
        let text = self.ask("/metrics");
        let line = text
            .lines()
            .find(|line| line.starts_with(&start) && line.contains(&label))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    fn stop(mut self) {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("a pid");
        kill_process(pid, Signal::TERM).expect("it runs");
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Gone already, unless the test failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pod(name: &str, node: &str, labels: Value) -> Value {
    let mut template = host_programs(&[]);
    let mut spec = template["spec"].take();
    spec["nodeName"] = json!(node);
    spec["restartPolicy"] = json!("Never");
    let worker = &mut spec["containers"][0];
    worker["image"] = json!("stokehold.dev/testbed/host:1");
    worker["command"] = json!(["/usr/bin/python3", "-c", FILL]);
    worker["resources"] = json!({"requests": {"memory": "32Mi"}, "limits": {"memory": "200Mi"}});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels}, "spec": spec,
    })
}

#[test]
fn a_node_is_measured_and_a_container_that_ended_is_told_of() {
    let Some(testbed) = support::testbed() else {
        return;
    };
    let nodes = testbed.nodes();
    let Some(node) = nodes.first() else {
        eprintln!("skipped: the testbed has no real node (make kube-up as root)");
        return;
    };
    let jobs = Jobs::new(&testbed, "agent-test");
    let agent = Agent::start(&testbed, node);
    let labels = json!({"stokehold.dev/job": "gpt", "stokehold.dev/attempt": "1", "stokehold.dev/rank": "0"});
    jobs.apply(&pod("gpt-1-0", node, labels.clone()));
    jobs.apply(&pod("stranger", node, json!({})));
    if let Some(other) = nodes.get(1) {
        jobs.apply(&pod("gpt-1-1", other, labels));
    }

    let used = eventually("the worker to be measured", || {
        agent
            .metric("working_set_bytes", "gpt-1-0")
            .filter(|used| *used > FILLED)
    });
    assert!(used < 200 << 20, "{used}");
    assert_eq!(agent.metric("limit_bytes", "gpt-1-0"), Some(200 << 20));
    assert!(agent.metric("anon_bytes", "gpt-1-0") >= Some(FILLED));
    eventually("the others to run", || {
        let pods = testbed.get(&["pods", "-n", jobs.namespace()]);
        let pods = pods["items"].as_array()?;
        let all = pods.iter().all(|pod| pod["status"]["phase"] == "Running");
        all.then_some(())
    });
    assert_eq!(agent.metric("usage_bytes", "stranger"), None, "of no job");
    assert_eq!(
        agent.metric("usage_bytes", "gpt-1-1"),
        None,
        "of another node"
    );
    assert!(agent.ask("/healthz").starts_with("HTTP/1.1 200"));

    for name in ["gpt-1-0", "stranger"] {
        let arguments = [
            "exec",
            "-n",
            jobs.namespace(),
            name,
            "--",
            "/usr/bin/touch",
            "/tmp/enough",
        ];
        crate::release::succeed(&mut testbed.kubectl(&arguments));
    }
    let annotation = |name: &str| {
        let pod = testbed.get(&["pod", name, "-n", jobs.namespace()]);
        let text = pod["metadata"]["annotations"][MEMORY_DIGEST_ANNOTATION].as_str()?;
        let state = pod.pointer("/status/containerStatuses/0/state")?.clone();
        Some((state, PodDigest::parse(text)?))
    };
    let (state, digest) = eventually("the digest", || annotation("gpt-1-0"));
    assert!(state["terminated"].is_object(), "{state:#}");
    let worker = &digest.containers["worker"];
    assert!(
        worker.peak_bytes > FILLED && worker.peak_unreclaimable_bytes >= FILLED,
        "{worker:?}"
    );
    assert_eq!(worker.limit_bytes, Some(200 << 20));
    assert!(
        worker.samples > 0 && !worker.series.mib.is_empty(),
        "{worker:?}"
    );
    assert_eq!(
        annotation("stranger"),
        None,
        "nothing is written on other pods"
    );
    assert_eq!(agent.metric("usage_bytes", "gpt-1-0"), None, "it is over");
    agent.stop();
}
