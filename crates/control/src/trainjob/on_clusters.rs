//! Jobs on a cluster: their pods whole, what stands beside them, and how they fare when nodes fail them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use stoke_api::trainjob::{Attempt, Outcome, Phase, Sizing};
use stoke_api::{Bytes, CpuMilli, DatasetSpec};

use super::children;
use super::fixtures::{Stage, at, dataset, job, node};
use super::pod::{Blueprint, Site};
use crate::config::Config;

fn cluster() -> Config {
    Config {
        image: Some("stokehold.dev/stoke:1".to_owned()),
        ..Config::cluster()
    }
}

fn on(nodes: impl IntoIterator<Item = Node>, spec: Value) -> Stage {
    let mut stage = Stage::new([job(spec)], nodes);
    stage.config = cluster();
    stage
}

fn two_nodes(spec: Value) -> Stage {
    on([node("n1", 0), node("n2", 0)], spec)
}

fn status(stage: &Stage) -> stoke_api::TrainJobStatus {
    stage.jobs["j"].status.clone().expect("a status")
}

fn first_line(said: &str) -> &str {
    said.lines().next().unwrap_or_default()
}

/// One pod of each shape that jobs have on clusters.
fn shapes() -> BTreeMap<&'static str, Pod> {
    let everything = json!({
        "framework": "torch", "command": ["python", "train.py"], "image": "acme/vision:1.4", "workers": 2, "gpus": 8,
        "gpuTypes": ["a100-80g", "h100"], "priority": "production", "cpus": "12",
        "checkpoint": {"path": "/ckpt", "size": "200Gi"},
        "datasets": [{"name": "images", "path": "/data/images"}],
        "template": {"spec": {
            "serviceAccountName": "trainer",
            "imagePullSecrets": [{"name": "registry"}],
            "securityContext": {"runAsUser": 1000, "runAsNonRoot": true},
            "containers": [{"name": "worker"}, {"name": "log", "image": "acme/shipper:2"}],
        }},
    });
    let rdma = json!({
        "framework": "torch", "command": ["python", "train.py"], "image": "acme/vision:1.4", "workers": 2, "gpus": 8, "network": "host",
        "template": {"spec": {"containers": [{
            "name": "worker",
            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
            "resources": {"limits": {"hugepages-2Mi": "5120Mi", "rdma/hca": 1, "vpc.amazonaws.com/efa": 4, "ephemeral-storage": "100Gi"}},
        }]}},
    });
    let mpi = json!({"framework": "mpi", "command": ["./train"], "image": "acme/mpi:1", "workers": 2, "spot": "never", "memory": {"limit": "2Gi"}});
    let signal = json!({"command": ["python", "train.py"], "image": "acme/train:1", "checkpoint": {"path": "/ckpt", "signal": "SIGUSR1"}});
    let plain = json!({"command": ["train"], "image": "acme/train:1", "priority": "experiment"});
    [
        ("everything", everything),
        ("rdma", rdma),
        ("mpi", mpi),
        ("signal", signal),
        ("plain", plain),
    ]
    .into_iter()
    .map(|(name, spec)| (name, shape(spec)))
    .collect()
}

/// The last pod of an attempt.
fn shape(spec: Value) -> Pod {
    let job = job(spec);
    let claim = Some("images-claim".to_owned());
    let datasets = BTreeMap::from([(
        "images".to_owned(),
        DatasetSpec {
            claim,
            ..DatasetSpec::default()
        },
    )]);
    let config = cluster();
    let blueprint = Blueprint::new(&job, &datasets, &config).expect("a good job");
    let nodes = [node("n1", 8), node("n2", 8)];
    let snapshot = crate::cluster::snapshot(nodes.iter(), std::iter::empty());
    let attempt = Attempt {
        number: 2,
        nodes: ["n1", "n2"][..job.spec.workers as usize]
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
        port: (blueprint.network() == stoke_api::trainjob::Network::Host).then_some(23_456),
        cpus: Some(CpuMilli(12_000)),
        memory: Some(Sizing {
            request: Bytes::gib(2),
            limit: Bytes::gib(2),
            why: String::new(),
        }),
        storage: Some(Bytes::gib(50)),
        ..Attempt::default()
    };
    let addresses = BTreeMap::from([("n1".to_owned(), "10.0.0.1".to_owned())]);
    let site = Site {
        attempt: &attempt,
        addresses: &addresses,
        cluster: &snapshot,
    };
    let pods = blueprint.pods(&site, [job.spec.workers - 1]);
    pods.expect("pods").remove(0)
}

#[test]
fn pods_of_every_shape() {
    for (name, pod) in shapes() {
        insta::assert_yaml_snapshot!(format!("pod_{name}"), pod);
    }
}

/// What we generate must be what a real API server takes: it knows more rules than any of us.
#[test]
fn a_real_api_server_takes_every_shape() {
    let directory = std::env::var("STOKE_KUBE_DIR").unwrap_or_default();
    let kubeconfig = std::path::Path::new(&directory).join("kubeconfig");
    if directory.is_empty() || !kubeconfig.exists() {
        assert!(
            std::env::var("STOKE_KUBE_REQUIRED").is_err(),
            "STOKE_KUBE_DIR names no testbed"
        );
        println!("skipped: no testbed (make kube-up, and set STOKE_KUBE_DIR)");
        return;
    }
    let kubectl = |arguments: &[&str], input: &str| {
        let mut child = std::process::Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .args(arguments)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("kubectl");
        let mut stdin = child.stdin.take().expect("its input");
        std::io::Write::write_all(&mut stdin, input.as_bytes()).expect("it reads");
        drop(stdin);
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(said)
    };
    let classes = kubectl(&["get", "priorityclass", "stokehold-standard"], "").is_ok();
    let gang = job(
        json!({"framework": "mpi", "command": ["a"], "workers": 2, "checkpoint": {"path": "/ckpt"}}),
    );
    let beside = [
        json!(children::policy(&gang)),
        json!(children::service(&gang, 1)),
        json!(children::secret(&gang, "token".to_owned())),
        json!(children::checkpoint(&gang, &cluster())),
    ];
    let pods = shapes().into_values().map(|mut pod| {
        let spec = pod.spec.as_mut().expect("a spec");
        // The chart's classes and the job's own account are not what is tried here.
        spec.service_account_name = None;
        if !classes {
            spec.priority_class_name = None;
        }
        json!(pod)
    });
    for object in pods.chain(beside) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let taken = kubectl(
            &["create", "--dry-run=server", "-f", "-"],
            &object.to_string(),
        );
        assert_eq!(taken, Ok(()), "{} {name}", object["kind"]);
    }
}

#[test]
fn a_gang_has_names_and_a_fence_and_one_worker_alone_needs_neither() {
    let spec = |workers: u32| json!({"framework": "torch", "command": ["python", "train.py"], "image": "a", "workers": workers, "memory": {"limit": "1Gi"}});
    insta::assert_snapshot!(two_nodes(spec(1)).turn("j"), @r"
    Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1
      create pod j-1-0 on n1
      again in 900s
    ");
    insta::assert_snapshot!(two_nodes(spec(2)).turn("j"), @r"
    Starting (StartingWorkers) 0/2 failures 0: attempt 1 on n1
      ensure network policy j
      ensure service j
      create pod j-1-0 on n1
      create pod j-1-1 on n1
      again in 900s
    ");
    let mut unfenced = two_nodes(spec(2));
    unfenced.config.network_policies = false;
    assert!(!unfenced.turn("j").contains("network policy"));
    let mut host = spec(2);
    host["network"] = json!("host");
    let said = two_nodes(host).turn("j");
    assert!(
        !said.contains("ensure"),
        "on their nodes' network they need no names and no policy holds: {said}"
    );
    insta::assert_yaml_snapshot!("policy", children::policy(&job(spec(2))));
    insta::assert_yaml_snapshot!("service", children::service(&job(spec(2)), 3));
}

#[test]
fn what_a_cluster_cannot_run_says_which_field_to_change() {
    let reason = |spec: Value| {
        let said = two_nodes(spec).turn("j");
        first_line(&said).to_owned()
    };
    insta::assert_snapshot!(reason(json!({"command": ["train"]})), @"Queued (Misconfigured) 0/1 failures 0: spec.image: a job on a cluster needs an image");
    let template =
        |spec: Value| json!({"command": ["a"], "image": "a", "template": {"spec": spec}});
    insta::assert_snapshot!(reason(template(json!({"nodeName": "n1"}))), @"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.nodeName: workers are placed together: use nodeSelector or affinity to say where");
    insta::assert_snapshot!(reason(template(json!({"priorityClassName": "high"}))), @"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.priorityClassName: set spec.priority: production, standard or experiment");
    insta::assert_snapshot!(reason(template(json!({"restartPolicy": "OnFailure"}))), @"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.restartPolicy: a gang is started anew as a whole: say how often with spec.retries");
    insta::assert_snapshot!(reason(template(json!({"hostname": "trainer"}))), @"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.hostname: workers find each other by their host names, which are <job>-<rank>: leave it out");
    insta::assert_snapshot!(reason(template(json!({"subdomain": "gang"}))), @"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.subdomain: workers find each other under the job's own name: leave it out");
    let harmless = template(json!({"restartPolicy": "Never", "hostname": ""}));
    assert!(
        reason(harmless).starts_with("Starting"),
        "it is what they have anyway"
    );
    insta::assert_snapshot!(reason(template(json!({"hostNetwork": true}))), @"Queued (Misconfigured) 0/1 failures 0: spec.template.spec.hostNetwork: set network: host, so that workers are told the ports they have there");
    let mut stage = two_nodes(json!({"framework": "mpi", "command": ["a"], "image": "a"}));
    stage.config.image = None;
    insta::assert_snapshot!(first_line(&stage.turn("j")), @"Queued (Misconfigured) 0/1 failures 0: spec.framework: MPI workers get their launcher from the operator's own image, and it was started without --image");
    let mut stage = two_nodes(
        json!({"command": ["a"], "image": "a", "checkpoint": {"path": "/c", "signal": "SIGUSR2"}}),
    );
    stage.config.image = None;
    insta::assert_snapshot!(first_line(&stage.turn("j")), @"Queued (Misconfigured) 0/1 failures 0: spec.checkpoint.signal: workers get what signals them from the operator's own image, and it was started without --image");
    insta::assert_snapshot!(reason(json!({"image": "a", "template": {"spec": {}}, "checkpoint": {"path": "/c", "signal": "SIGUSR2"}})), @"Queued (Misconfigured) 0/1 failures 0: spec.command: say what to run: nobody here knows the image's own command, and a signal is for what was started");
    insta::assert_snapshot!(reason(json!({"command": ["a"], "image": "a", "template": {"spec": {"containers": [{"name": "worker", "resources": {"limits": {"rdma/hca": 1}}}]}}})), @"Queued (NoMatchingNodes) 0/1 failures 0: no room for a worker with 1 CPU and 16 GiB of memory; 2 nodes: 2 lack a device or huge pages it asks for; no node has that much rdma/hca: ask for less of it in the template, or add nodes that have it");
}

#[test]
fn gpu_nodes_are_found_by_label_and_their_taints_are_tolerated_by_jobs_with_gpus_only() {
    let tainted = |name: &str, product: &str| {
        let mut node = node(name, 8);
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert("nvidia.com/gpu.product".to_owned(), product.to_owned());
        node.spec = serde_json::from_value(
            json!({"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}),
        )
        .expect("a spec");
        node
    };
    let nodes = || {
        [
            tainted("n1", "Tesla-T4"),
            tainted("n2", "NVIDIA-H100-80GB-HBM3"),
            tainted("n3", "NVIDIA-A100-SXM4-80GB"),
        ]
    };
    let asking = |gpus: u32, types: &[&str]| json!({"command": ["a"], "image": "a", "gpus": gpus, "gpuTypes": types, "memory": {"limit": "1Gi"}});
    let said = on(nodes(), asking(1, &["a100-80g"])).turn("j");
    assert!(said.contains("create pod j-1-0 on n3"), "{said}");
    let said = on(nodes(), asking(1, &["h100", "a100"])).turn("j");
    assert!(said.contains("create pod j-1-0 on n2"), "{said}");
    insta::assert_snapshot!(first_line(&on(nodes(), asking(0, &[])).turn("j")), @"Queued (NoMatchingNodes) 0/1 failures 0: no room for a worker with 1 CPU and 1.0 GiB of memory; 3 nodes: 3 are tainted; tolerate nvidia.com/gpu=present:NoSchedule in template.spec.tolerations");
}

#[test]
fn a_gang_that_does_not_start_is_placed_anew_elsewhere() {
    let spec = json!({"command": ["train"], "image": "a", "workers": 2, "cpus": "5", "memory": {"limit": "1Gi"}});
    let mut stage = on([node("n1", 0), node("n2", 0), node("n3", 0)], spec);
    stage.turn("j");
    assert_eq!(status(&stage).attempts[0].nodes, ["n1", "n2"]);
    stage.run_pod("j-1-0");
    let no_room = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity].";
    stage.pass(10);
    unschedule(&mut stage, "j-1-1", "Unschedulable", no_room);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Starting (StartingWorkers) 1/2 failures 0: attempt 1 on n1, n2; rank 1 waits: Unschedulable: 0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity].
      again in 30s
    ");
    stage.pass(30);
    insta::assert_snapshot!(stage.turn("j"), @r"
    Restarting (StartFailed) 0/2 failures 0: rank 1 did not start in time on n2: Unschedulable: 0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]; the next attempt goes to other nodes where it can
      delete pod j-1-0
      delete pod j-1-1
      tell StartFailed: rank 1 did not start in time on n2: Unschedulable: 0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]; the next attempt goes to other nodes where it can
    ");
    let first = status(&stage).attempts[0].clone();
    assert_eq!(first.outcome, Some(Outcome::Interrupted));
    assert_eq!(first.avoid, ["n2"], "the one on n1 had started");
    stage.pods.clear();
    stage.pass(1);
    stage.turn("j");
    assert_eq!(status(&stage).attempts[1].nodes, ["n1", "n3"]);

    // Where no other fits it is tried again; and after a while it is like any other.
    stage.nodes.remove("n3");
    stage.turn("j");
    stage.pods.clear();
    stage.pass(60);
    stage.turn("j");
    assert_eq!(status(&stage).attempts[2].nodes, ["n1", "n2"]);
}

/// As kube-scheduler says that it has found no node.
fn unschedule(stage: &mut Stage, pod: &str, reason: &str, message: &str) {
    let since = stage.now.to_string();
    let status = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason,
        "message": message, "lastTransitionTime": since}]});
    stage.set_pod(pod, status);
    let spec = stage.pods.get_mut(pod).expect("a pod").spec.as_mut();
    spec.expect("a spec").node_name = None;
}

#[test]
fn room_is_given_back_soon_after_a_scheduler_refused_a_worker_for_good() {
    let table = [
        (
            "Unschedulable",
            "0/2 nodes are available: 1 Insufficient cpu",
            30,
        ),
        (
            "Unschedulable",
            "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            900,
        ),
        (
            "SchedulingGated",
            "Scheduling is blocked due to non-empty scheduling gates",
            900,
        ),
        ("SchedulerError", "binding rejected", 900),
    ];
    for (reason, message, expected) in table {
        let mut stage = two_nodes(json!({"command": ["train"], "image": "a"}));
        stage.turn("j");
        unschedule(&mut stage, "j-1-0", reason, message);
        let said = stage.turn("j");
        assert!(said.ends_with(&format!("again in {expected}s")), "{said}");
        stage.pass(expected - 1);
        assert!(
            stage.turn("j").starts_with("Starting"),
            "{reason}: {message}"
        );
        stage.pass(1);
        assert!(stage.turn("j").starts_with("Restarting (StartFailed)"));
    }
    // A clock that is behind ours does not end it at once.
    let mut stage = two_nodes(json!({"command": ["train"], "image": "a"}));
    stage.turn("j");
    stage.now = at(-3600);
    unschedule(
        &mut stage,
        "j-1-0",
        "Unschedulable",
        "0/2 nodes are available",
    );
    stage.now = at(0);
    assert!(stage.turn("j").ends_with("again in 30s"));
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_in_one_way() {
    let mut stage = two_nodes(json!({"command": ["train"], "image": "acme/nothing:1"}));
    stage.turn("j");
    let waiting = |reason: &str, message: &str| {
        json!({"phase": "Pending", "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}]})
    };
    stage.set_pod("j-1-0", waiting("ContainerCreating", ""));
    insta::assert_snapshot!(first_line(&stage.turn("j")), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1");
    stage.set_pod(
        "j-1-0",
        waiting("ErrImagePull", "rpc error: acme/nothing:1: not found"),
    );
    let said = stage.turn("j");
    insta::assert_snapshot!(first_line(&said), @"Starting (StartingWorkers) 0/1 failures 0: attempt 1 on n1; rank 0 waits: its image cannot be pulled: rpc error: acme/nothing:1: not found");
    let back_off = r#"Back-off pulling image "acme/nothing:1": ErrImagePull: rpc error: acme/nothing:1: not found"#;
    stage.set_pod("j-1-0", waiting("ImagePullBackOff", back_off));
    assert_eq!(stage.turn("j"), said, "nothing new to write");
    stage.pass(900);
    insta::assert_snapshot!(first_line(&stage.turn("j")), @r#"Restarting (StartFailed) 0/1 failures 1: rank 0 did not start in time on n1: ImagePullBackOff: Back-off pulling image "acme/nothing:1": ErrImagePull: rpc error: acme/nothing:1: not found; check the image's name and, for a private registry, template.spec.imagePullSecrets"#);
}

#[test]
fn a_node_that_still_pulls_the_image_is_tried_once_more() {
    let mut stage = two_nodes(json!({"command": ["train"], "image": "a"}));
    let creating = |sandbox: &str| {
        json!({"phase": "Pending", "conditions": [{"type": "PodReadyToStartContainers", "status": sandbox}],
            "containerStatuses": [{"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}}}]})
    };
    let mut fail = |sandbox: &str| {
        stage.turn("j");
        let attempt = status(&stage).attempt;
        stage.set_pod(&format!("j-{attempt}-0"), creating(sandbox));
        stage.pass(900);
        stage.turn("j");
        stage.pods.clear();
        stage.pass(450);
        let last = status(&stage).attempts.pop().expect("an attempt");
        (last.nodes, last.avoid)
    };
    let names = |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
    assert_eq!(fail("True"), (names(&["n1"]), names(&[])));
    assert_eq!(fail("True"), (names(&["n1"]), names(&["n1"])));
    // One that has no network or no volume for it would have none again.
    assert_eq!(fail("False"), (names(&["n2"]), names(&["n2"])));
}

#[test]
fn a_node_that_turns_a_worker_away_is_kept_off() {
    let mut stage = two_nodes(json!({"command": ["train"], "image": "a"}));
    stage.turn("j");
    let message = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected";
    stage.set_pod(
        "j-1-0",
        json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}),
    );
    assert!(stage.turn("j").contains("failures 0"));
    assert_eq!(status(&stage).attempts[0].avoid, ["n1"]);
    stage.pass(1);
    stage.turn("j");
    assert_eq!(status(&stage).attempts[1].nodes, ["n2"]);
}

fn running() -> Stage {
    let spec = json!({"command": ["train"], "image": "a", "workers": 2, "cpus": "5", "memory": {"limit": "1Gi"}});
    let mut stage = on([node("n1", 0), node("n2", 0)], spec);
    stage.turn("j");
    stage.run_pod("j-1-0");
    stage.run_pod("j-1-1");
    stage.turn("j");
    stage
}

fn disrupt(stage: &mut Stage, pod: &str, reason: &str, message: &str) {
    let status = json!({"phase": "Running", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]});
    stage.set_pod(pod, status);
    stage.delete_pod(pod, None);
}

#[test]
fn a_drained_node_restarts_the_gang_whole_on_the_rest() {
    let mut stage = running();
    if let Some(spec) = stage
        .nodes
        .get_mut("n2")
        .map(|node| node.spec.get_or_insert_default())
    {
        spec.unschedulable = Some(true);
    }
    disrupt(
        &mut stage,
        "j-1-1",
        "EvictionByEvictionAPI",
        "Eviction API: evicting",
    );
    insta::assert_snapshot!(stage.turn("j"), @r"
    Restarting (Evicted) 0/2 failures 0: rank 1 was evicted from n2: Eviction API: evicting
      delete pod j-1-0
      tell Evicted: rank 1 was evicted from n2: Eviction API: evicting
      again in 90s
    ");
    stage.pods.clear();
    stage.nodes.insert("n3".to_owned(), node("n3", 0));
    stage.pass(1);
    stage.turn("j");
    assert_eq!(status(&stage).attempts[1].nodes, ["n1", "n3"]);
}

#[test]
fn those_who_fail_because_another_was_taken_away_do_not_count() {
    // Its peer lost the connection, and was seen to fail before the evicted one had ended.
    let mut stage = running();
    disrupt(&mut stage, "j-1-1", "EvictionByEvictionAPI", "");
    stage.pass(3);
    stage.end_pod("j-1-0", 1, "Error");
    stage.pass(5);
    let said = stage.turn("j");
    assert!(
        said.starts_with("Restarting (Evicted) 0/2 failures 0: rank 1"),
        "{said}"
    );
    // Its peer failed while the other's node was out of reach.
    let mut stage = running();
    stage.pass(60);
    let lost = stage.nodes.get_mut("n2").expect("a node");
    lost.status =
        serde_json::from_value(json!({"conditions": [{"type": "Ready", "status": "Unknown"}]}))
            .expect("a status");
    stage.end_pod("j-1-0", 1, "Error");
    stage.pass(5);
    let said = stage.turn("j");
    assert!(
        said.starts_with("Queued (BackingOff) 0/2 failures 0"),
        "nobody on the lost node is waited for: {said}"
    );
    let exit = status(&stage).attempts[0].exit.clone().expect("an exit");
    assert_eq!((exit.rank, exit.reason.as_str()), (1, "NodeLost"));
    // One that fails long before another is taken away has failed by itself.
    let mut stage = running();
    stage.end_pod("j-1-0", 1, "Error");
    stage.pass(60);
    disrupt(&mut stage, "j-1-1", "EvictionByEvictionAPI", "");
    assert!(
        stage
            .turn("j")
            .contains("failures 1: rank 0 ended with exit code 1")
    );
    // And one that ran out of memory explains the rest, whatever happened beside.
    let mut stage = running();
    disrupt(&mut stage, "j-1-1", "EvictionByEvictionAPI", "");
    stage.end_pod("j-1-0", 137, "OOMKilled");
    stage.pass(5);
    assert!(stage.turn("j").contains("(OutOfMemory) 0/2 failures 1"));
}

#[test]
fn what_an_agent_measured_is_waited_for_but_not_for_long() {
    let mut stage = running();
    stage.end_pod("j-1-1", 1, "Error");
    insta::assert_snapshot!(stage.turn("j"), @r"
    Running (WorkersRunning) 2/2 failures 0: all 2 workers run
      again in 5s
    ");
    stage.pass(1);
    let mut told = running();
    told.jobs.clone_from(&stage.jobs);
    told.pods.clone_from(&stage.pods);
    told.now = stage.now;
    measure(&mut told, "j-1-1");
    assert!(told.turn("j").starts_with("Restarting (OutOfMemory)"));
    stage.pass(4);
    assert!(stage.turn("j").starts_with("Restarting (WorkerFailed)"));
    // A node's clock that is far from ours is no reason to wait.
    for drift in [-3600, 3600] {
        let mut stage = running();
        let now = stage.now;
        stage.now = at(drift);
        stage.end_pod("j-1-1", 1, "Error");
        stage.now = now;
        assert!(stage.turn("j").starts_with("Restarting (WorkerFailed)"));
    }
}

/// As an agent does when a worker has ended.
fn measure(stage: &mut Stage, pod: &str) {
    let pod = stage.pods.get_mut(pod).expect("a pod");
    let digest = json!({"containers": {"worker": {"peakBytes": 1_073_000_000, "oomKills": 1}}});
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("stokehold.dev/memory-digest".to_owned(), digest.to_string());
}

#[test]
fn memory_that_ran_out_is_told_with_the_containers_own_evidence() {
    let mut stage = running();
    measure(&mut stage, "j-1-1");
    stage.end_pod("j-1-1", 137, "OOMKilled");
    stage.turn("j");
    let exit = status(&stage).attempts[0].exit.clone().expect("an exit");
    assert_eq!(
        (exit.reason.as_str(), exit.exit_code),
        ("OOMKilled", Some(137))
    );
    insta::assert_snapshot!(exit.message, @"rank 1 was killed at its memory limit of 1.0 GiB (OOMKilled, exit code 137), having used 1.0 GiB; raise memory.limit, or use less: a smaller batch, fewer loader workers");
}

/// A status says `Error` and 137, and no more; its node's Events say why.
#[test]
fn events_are_read_where_a_status_leaves_it_open_who_killed_a_worker() {
    let told = |events: &[(&str, &str)]| {
        let mut stage = running();
        stage.end_pod("j-1-1", 137, "Error");
        stage.pass(60);
        let events = events.iter();
        let events = events.map(|(reason, message)| ((*reason).to_owned(), (*message).to_owned()));
        stage.events.insert("n2".to_owned(), events.collect());
        stage.turn("j");
        let finding = status(&stage).attempts[0].diagnosis.clone();
        let finding = finding.expect("a finding");
        format!(
            "{} {}: {:?}",
            finding.confidence, finding.cause, finding.quotes
        )
    };
    insta::assert_snapshot!(told(&[]), @"Possible KilledByPerson: []");
    insta::assert_snapshot!(told(&[("SystemOOM", "System OOM encountered, victim process: python3, pid: 51877")]), @r#"Likely NodeOutOfMemory: ["SystemOOM: System OOM encountered, victim process: python3, pid: 51877"]"#);
}

#[test]
fn workers_go_where_their_claims_volumes_are_and_share_only_what_can_be_shared() {
    let claim = |mode: &str| {
        serde_json::from_value(
            json!({"metadata": {"name": "images-claim", "namespace": "default"},
            "spec": {"accessModes": [mode], "volumeName": "v"}}),
        )
        .expect("a claim")
    };
    let volume = json!({"metadata": {"name": "v"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}}});
    let zoned = |name: &str, zone: &str| {
        let mut node = node(name, 0);
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert("zone".to_owned(), zone.to_owned());
        node
    };
    let stage = |workers: u32, mode: &str| {
        let spec = json!({"command": ["a"], "image": "a", "workers": workers, "datasets": [{"name": "images", "path": "/data"}]});
        let mut stage = on([zoned("n1", "a"), zoned("n2", "b")], spec);
        stage
            .datasets
            .push(dataset("images", json!({"claim": "images-claim"})));
        stage.claims.push(claim(mode));
        let volume = serde_json::from_value(volume.clone()).expect("a volume");
        stage.volumes.push(volume);
        stage
    };
    assert!(
        stage(1, "ReadWriteOnce")
            .turn("j")
            .contains("create pod j-1-0 on n2")
    );
    assert!(
        stage(2, "ReadOnlyMany")
            .turn("j")
            .contains("create pod j-1-1 on n2")
    );
    insta::assert_snapshot!(first_line(&stage(2, "ReadWriteOnce").turn("j")), @"Queued (Misconfigured) 0/2 failures 0: spec.datasets[0]: claim images-claim can be mounted on one node only, and 2 workers may be on several; make it ReadWriteMany or ReadOnlyMany, or run one worker");
}

#[test]
fn whose_checkpoints_a_volume_can_keep_is_said_before_anything_starts() {
    let turn = |mode: Option<&str>| {
        let mut checkpoint = json!({"path": "/c"});
        if let Some(mode) = mode {
            checkpoint["accessMode"] = json!(mode);
        }
        let spec = json!({"command": ["a"], "image": "a", "workers": 2, "checkpoint": checkpoint});
        let mut stage = on([node("n1", 0), node("n2", 0)], spec);
        let claim = json!({"metadata": {"name": "j-checkpoint", "namespace": "default"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
        stage
            .claims
            .push(serde_json::from_value(claim).expect("a claim"));
        first_line(&stage.turn("j")).to_owned()
    };
    insta::assert_snapshot!(turn(None), @"Queued (Misconfigured) 0/2 failures 0: spec.checkpoint: claim j-checkpoint can be mounted on one node only, and 2 workers may be on several; say accessMode: ReadWriteOnce if only the first needs it, or use a volume that is ReadWriteMany");
    assert!(turn(Some("ReadWriteOnce")).starts_with("Starting"));
}

#[test]
fn a_dataset_that_no_node_could_copy_is_told_before_anything_starts() {
    let spec =
        json!({"command": ["a"], "image": "a", "datasets": [{"name": "images", "path": "/data"}]});
    let mut stage = on([node("n1", 0)], spec);
    let bucket = json!({"uri": "s3://bucket/images", "secret": "keys"});
    stage.datasets.push(dataset("images", bucket));
    insta::assert_snapshot!(first_line(&stage.turn("j")), @"Queued (Misconfigured) 0/1 failures 0: spec.datasets[0]: Dataset images is s3://bucket/images, and no node of this cluster has the driver that copies it; install it with the chart's data.enabled=true (helm upgrade stokehold charts/stokehold --namespace stokehold-system --reset-then-reuse-values --set data.enabled=true), or put the data on a claim or an NFS export that the nodes reach");
    let export = json!({"nfs": {"server": "nas", "path": "/images"}});
    stage.datasets = vec![dataset("images", export)];
    assert!(stage.turn("j").contains("create pod j-1-0 on n1"));
}

#[test]
fn local_disk_is_limited_to_a_workers_share() {
    let with_disk = |name: &str, disk: &str| {
        let mut node = node(name, 4);
        let status = node.status.get_or_insert_default();
        let allocatable = status.allocatable.get_or_insert_default();
        let disk = k8s_openapi::apimachinery::pkg::api::resource::Quantity(disk.to_owned());
        allocatable.insert("ephemeral-storage".to_owned(), disk);
        node
    };
    let spec = json!({"command": ["a"], "image": "a", "gpus": 2});
    let mut stage = on(
        [with_disk("n1", "100Gi"), with_disk("n2", "200Gi")],
        spec.clone(),
    );
    stage.turn("j");
    assert_eq!(status(&stage).attempts[0].storage, Some(Bytes::gib(45)));
    let pod = stage.pods["j-1-0"].spec.clone().expect("a spec");
    let resources = pod.containers[0].resources.clone().expect("resources");
    let disk = |amounts: &Option<BTreeMap<String, _>>| {
        let amounts: Option<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> = amounts
            .as_ref()
            .and_then(|all| all.get("ephemeral-storage"));
        amounts.map(|amount| amount.0.clone())
    };
    assert_eq!(disk(&resources.requests).as_deref(), Some("1Gi"));
    assert_eq!(disk(&resources.limits).as_deref(), Some("45Gi"));
    let mut unsaid = on([with_disk("n1", "100Gi"), node("n2", 4)], spec);
    unsaid.turn("j");
    assert_eq!(status(&unsaid).attempts[0].storage, None);
}

#[test]
fn a_job_whose_volume_a_dead_machine_keeps_is_not_given_up() {
    for (mode, kept) in [("ReadWriteOnce", true), ("ReadWriteMany", false)] {
        let spec = json!({"command": ["a"], "image": "a", "checkpoint": {"path": "/c"}});
        let mut stage = two_nodes(spec);
        let claim = json!({"metadata": {"name": "j-checkpoint", "namespace": "default"}, "spec": {"accessModes": [mode]}});
        stage
            .claims
            .push(serde_json::from_value(claim).expect("a claim"));
        stage.turn("j");
        stage.run_pod("j-1-0");
        stage.turn("j");
        let dead = status(&stage).attempts[0].nodes[0].clone();
        let silent = json!({"conditions": [{"type": "Ready", "status": "Unknown"}]});
        let node = stage.nodes.get_mut(&dead).expect("a node");
        node.status = Some(serde_json::from_value(silent).expect("a status"));
        for _ in 0..40 {
            stage.turn("j");
            stage.pass(600);
            // Nobody ends what is on a node that does not answer.
            stage.pods.retain(|_, pod| {
                let is_stuck = crate::cluster::node_of(pod) == Some(&dead);
                is_stuck || pod.metadata.deletion_timestamp.is_none()
            });
        }
        let status = status(&stage);
        assert_eq!(status.phase == Phase::Failed, !kept, "{}", status.message);
        let mut ended = status.attempts.iter().skip(1);
        let mut tried = ended.clone().filter(|it| it.exit.is_some());
        assert!(ended.all(|it| it.avoid.is_empty() == kept || it.exit.is_none()));
        let said = tried.next().and_then(|it| it.exit.clone()).expect("why");
        let help = format!(
            "kubectl taint node {dead} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        );
        assert_eq!(said.message.contains(&help), kept, "{}", said.message);
    }
}

#[test]
fn a_pod_that_will_not_die_does_not_hold_up_the_next_attempt() {
    let mut stage = running();
    disrupt(
        &mut stage,
        "j-1-1",
        "DeletionByTaintManager",
        "Taint manager: deleting due to NoExecute taint",
    );
    let lost = stage.nodes.get_mut("n2").expect("a node");
    lost.status =
        serde_json::from_value(json!({"conditions": [{"type": "Ready", "status": "Unknown"}]}))
            .expect("a status");
    stage.nodes.insert("n3".to_owned(), node("n3", 0));
    stage.turn("j");
    stage.pods.remove("j-1-0");
    stage.pass(1);
    stage.turn("j");
    assert_eq!(status(&stage).attempts[1].nodes, ["n1", "n3"]);
    assert!(stage.pods.contains_key("j-1-1"), "it is still there");
    assert_eq!(stage.now, at(1));
}
