//! The controllers against the real API server, in one process. Pods run nowhere: the tests say what a kubelet would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::{BodyStream, StreamBody};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use stoke_api::condition::{self, ConditionType};
use stoke_api::trainjob::Phase;
use stoke_api::{JobProfile, TrainJob};
use stoke_apiserver::{ApiServer, NoLogs, Options, housekeeping};
use stoke_control::{Config, ControlError, Fingerprint};
use stoke_store::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(30);

struct Engine {
    client: Client,
    /// What the controllers have instead: its answers can be cut off.
    cuttable: Client,
    cut: Arc<Mutex<CancellationToken>>,
    /// What the controllers wrote, by verb and resource.
    writes: Arc<Mutex<BTreeMap<String, u32>>>,
    config: Config,
    controllers: Option<(CancellationToken, JoinHandle<Result<(), ControlError>>)>,
    housekeeping: CancellationToken,
    _directory: tempfile::TempDir,
}

impl Engine {
    async fn start(gpus: u32) -> Self {
        Self::start_with(gpus, Config::machine("/usr/bin/stoke".into())).await
    }

    async fn start_with(gpus: u32, config: Config) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(
            &directory.path().join("store.db"),
            &stoke_store::Options::default(),
        );
        let server = ApiServer::new(
            store.expect("a store"),
            Arc::new(NoLogs),
            Options::default(),
        )
        .await;
        let server = server
            .map_err(|status| status.message().to_owned())
            .expect("a server");
        let housekeeping = CancellationToken::new();
        tokio::spawn(housekeeping::run(
            server.clone(),
            housekeeping::Options::default(),
            housekeeping.clone(),
        ));
        let cut = Arc::new(Mutex::new(CancellationToken::new()));
        let writes = Arc::default();
        let mut engine = Self {
            client: server.client(),
            cuttable: cuttable(&server, cut.clone(), Arc::clone(&writes)),
            cut,
            writes,
            config,
            controllers: None,
            housekeeping,
            _directory: directory,
        };
        engine.config.retry.first = Duration::ZERO;
        engine.add_node(gpus).await;
        engine.start_controllers();
        engine
    }

    async fn add_node(&self, gpus: u32) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "machine"}});
        let node = serde_json::from_value(node).expect("a node");
        nodes
            .create(&PostParams::default(), &node)
            .await
            .expect("the node is created");
        let status = json!({"status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        let patched = nodes
            .patch_status("machine", &PatchParams::default(), &Patch::Merge(status))
            .await;
        patched.expect("the node is ready");
    }

    async fn add_priority_class(&self, name: &str) {
        let classes: Api<PriorityClass> = Api::all(self.client.clone());
        let class = json!({"metadata": {"name": name}, "value": 1, "preemptionPolicy": "Never"});
        let class = serde_json::from_value(class).expect("a class");
        let created = classes.create(&PostParams::default(), &class).await;
        created.expect("the class is created");
    }

    fn start_controllers(&mut self) {
        let shutdown = CancellationToken::new();
        let run = stoke_control::run(self.cuttable.clone(), self.config.clone(), shutdown.clone());
        self.controllers = Some((shutdown, tokio::spawn(run)));
    }

    /// Breaks off every answer that the controllers are reading.
    fn cut_watches(&self) {
        let mut cut = self.cut.lock().expect("no panic");
        std::mem::take(&mut *cut).cancel();
    }

    async fn stop_controllers(&mut self) {
        if let Some((shutdown, running)) = self.controllers.take() {
            shutdown.cancel();
            let ended = tokio::time::timeout(PATIENCE, running)
                .await
                .expect("it ends in time");
            ended.expect("it does not panic").expect("it ends well");
        }
    }

    fn jobs(&self) -> Api<TrainJob> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn submit(&self, name: &str, spec: Value) {
        let job = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec});
        let job = serde_json::from_value(job).expect("a job");
        self.jobs()
            .create(&PostParams::default(), &job)
            .await
            .expect("the job is created");
    }

    /// Waits, by watching, until the job is as wanted.
    async fn job(&self, name: &str, what: &str, wanted: impl Fn(&TrainJob) -> bool) -> TrainJob {
        let condition = |job: Option<&TrainJob>| job.is_some_and(&wanted);
        let waiting = await_condition(self.jobs(), name, condition);
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(job) => job.expect("the watch holds").expect("the job is there"),
            Err(tokio::time::error::Elapsed { .. }) => panic!(
                "{name} did not become {what}: {:#?}",
                self.jobs().get(name).await.map(|job| job.status)
            ),
        }
    }

    async fn phase(&self, name: &str, phase: Phase) -> TrainJob {
        self.job(name, &format!("{phase:?}"), |job| {
            job.status
                .as_ref()
                .is_some_and(|status| status.phase == phase)
        })
        .await
    }

    async fn reason(&self, name: &str, reason: &str) -> TrainJob {
        self.job(name, reason, |job| {
            job.status
                .as_ref()
                .is_some_and(|status| status.reason == reason)
        })
        .await
    }

    /// Waits until all of these Events are there.
    async fn tells(&self, job: &str, reasons: &[&str]) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let selector = watcher::Config::default().fields(&format!("involvedObject.name={job}"));
        let mut events = watcher(events, selector).boxed();
        let mut missing: BTreeSet<&str> = reasons.iter().copied().collect();
        while !missing.is_empty() {
            let event = tokio::time::timeout(PATIENCE, events.next()).await;
            let event = event.unwrap_or_else(|_| panic!("no Events {missing:?}"));
            if let Some(Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event))) = event
            {
                missing.remove(event.reason.as_deref().unwrap_or_default());
            }
        }
    }

    /// Waits until the pod is bound, as a kubelet would, and says how it goes.
    async fn pod_goes(&self, name: &str, phase: &str, exit_code: Option<i32>) {
        let bound = |pod: Option<&Pod>| {
            pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone())
                .is_some()
        };
        let bound = tokio::time::timeout(PATIENCE, await_condition(self.pods(), name, bound)).await;
        bound
            .unwrap_or_else(|_| panic!("{name} was not bound"))
            .expect("the watch holds");
        let state = match exit_code {
            Some(code) => {
                json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": jiff::Timestamp::now()}})
            }
            None => json!({"running": {"startedAt": jiff::Timestamp::now()}}),
        };
        let container = json!({"name": "worker", "image": "host", "imageID": "", "ready": true, "restartCount": 0, "state": state});
        let status = json!({"status": {"phase": phase, "containerStatuses": [container]}});
        let patched = self
            .pods()
            .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
            .await;
        patched.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// A client of the server whose answers end in the middle when `cut` is cancelled, as with a lost connection; and that counts what is
/// written through it.
fn cuttable(
    server: &ApiServer,
    cut: Arc<Mutex<CancellationToken>>,
    writes: Arc<Mutex<BTreeMap<String, u32>>>,
) -> Client {
    let router = server.router();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let router = router.clone();
        if request.method() != http::Method::GET {
            let write = format!("{} {}", request.method(), resource(request.uri().path()));
            *writes.lock().expect("no panic").entry(write).or_default() += 1;
        }
        let cut = cut.lock().expect("no panic").clone();
        async move {
            let response = router.oneshot(request).await?;
            Ok::<_, std::convert::Infallible>(response.map(|body| {
                let frames = BodyStream::new(body).take_until(cut.cancelled_owned());
                StreamBody::new(frames.boxed())
            }))
        }
    });
    Client::new(service, "default")
}

/// `pods`, `trainjobs/status`: what a path is about, without the names.
fn resource(path: &str) -> String {
    let after = path.split("/namespaces/").nth(1).unwrap_or(path);
    let parts: Vec<&str> = after.split('/').skip(1).collect();
    match parts.as_slice() {
        [kind, _, subresource] => format!("{kind}/{subresource}"),
        [kind, ..] => (*kind).to_owned(),
        [] => path.to_owned(),
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.housekeeping.cancel();
        if let Some((shutdown, _)) = &self.controllers {
            shutdown.cancel();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_is_created_bound_watched_and_completed_with_few_writes() {
    let engine = Engine::start(0).await;
    let writes = watcher(engine.jobs(), watcher::Config::default());
    let counted = tokio::spawn(
        writes
            .try_take_while(|event| {
                let done = matches!(event, watcher::Event::Apply(job) if job.is_finished());
                futures::future::ready(Ok(!done))
            })
            .filter(|event| futures::future::ready(matches!(event, Ok(watcher::Event::Apply(_)))))
            .count(),
    );

    engine
        .submit(
            "gang",
            json!({"command": ["train"], "framework": "mpi", "workers": 2}),
        )
        .await;
    engine.pod_goes("gang-1-0", "Running", None).await;
    engine.pod_goes("gang-1-1", "Running", None).await;
    let job = engine.phase("gang", Phase::Running).await;
    assert_eq!(
        job.status.as_ref().map(|status| status.ready.as_str()),
        Some("2/2")
    );
    let secrets: Api<Secret> = Api::namespaced(engine.client.clone(), "default");
    let secrets = secrets.list(&ListParams::default()).await.expect("secrets");
    let secret = secrets.items.into_iter().next().expect("a secret");
    assert!(secret.name_any().starts_with("gang-mpi-"));
    assert!(secret.data.is_some_and(|data| data["token"].0.len() == 64));

    engine.pod_goes("gang-1-0", "Succeeded", Some(0)).await;
    let job = engine.phase("gang", Phase::Complete).await;
    let status = job.status.expect("a status");
    assert!(condition::is_true(
        &status.conditions,
        ConditionType::Complete
    ));
    // Created, starting, perhaps one of two running, running.
    let written = counted.await.expect("the count");
    assert!(written <= 4, "{written} writes before the last");

    let worker = await_condition(engine.pods(), "gang-1-1", |pod: Option<&Pod>| {
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    });
    tokio::time::timeout(PATIENCE, worker)
        .await
        .expect("the other worker is stopped")
        .expect("the watch holds");
}

/// Every write costs the API server, so jobs that go as they should cost few, and an Event says nothing that a condition says.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_on_a_cluster_costs_a_write_a_pod_and_five_at_most() {
    // kube-scheduler's work is done by our binder here, and our server has no NetworkPolicies: a gang's is one write more.
    let config = Config {
        binder: true,
        network_policies: false,
        ..Config::cluster()
    };
    let engine = Engine::start_with(0, config).await;
    engine.add_priority_class("stokehold-standard").await;
    for workers in [1, 8] {
        engine.writes.lock().expect("no panic").clear();
        let name = format!("job-{workers}");
        let spec = json!({"command": ["python", "train.py"], "framework": "torch", "image": "acme/train:1", "workers": workers, "cpus": "100m", "memory": {"limit": "1Gi"}});
        engine.submit(&name, spec).await;
        for rank in 0..workers {
            engine
                .pod_goes(&format!("{name}-1-{rank}"), "Running", None)
                .await;
        }
        engine.phase(&name, Phase::Running).await;
        for rank in 0..workers {
            engine
                .pod_goes(&format!("{name}-1-{rank}"), "Succeeded", Some(0))
                .await;
        }
        engine.phase(&name, Phase::Complete).await;
        let mut writes = engine.writes.lock().expect("no panic").clone();
        writes.remove("POST pods/binding");
        let mut expected = BTreeMap::from([
            ("POST pods".to_owned(), workers),
            ("PATCH trainjobs/status".to_owned(), 3),
        ]);
        if workers > 1 {
            expected.insert("POST services".to_owned(), 1);
        }
        assert_eq!(writes, expected, "{workers} workers");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_told_in_an_event() {
    let engine = Engine::start(0).await;
    engine
        .submit("bad", json!({"command": ["train"], "retries": 0}))
        .await;
    engine.pod_goes("bad-1-0", "Failed", Some(3)).await;
    engine.phase("bad", Phase::Failed).await;
    engine.tells("bad", &["WorkerFailed"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_are_served_in_their_order() {
    let engine = Engine::start(2).await;
    let spec = |priority: &str| json!({"command": ["train"], "gpus": 2, "cpus": 1, "memory": {"limit": "1Gi"}, "priority": priority});
    engine.submit("holder", spec("standard")).await;
    engine.pod_goes("holder-1-0", "Running", None).await;
    engine.phase("holder", Phase::Running).await;
    for (name, priority) in [
        ("first", "experiment"),
        ("second", "experiment"),
        ("urgent", "standard"),
    ] {
        engine.submit(name, spec(priority)).await;
        engine.reason(name, "InsufficientCapacity").await;
        // Who came first is told by whole seconds.
        if name == "first" {
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
    }
    engine.pod_goes("holder-1-0", "Succeeded", Some(0)).await;
    let order = ["urgent", "first", "second"];
    for (i, name) in order.iter().enumerate() {
        engine.phase(name, Phase::Starting).await;
        for waiting in &order[i + 1..] {
            let job = engine.jobs().get(waiting).await.expect("a job");
            assert_eq!(
                job.status.map(|status| status.phase),
                Some(Phase::Queued),
                "{waiting} before {name}"
            );
        }
        engine
            .pod_goes(&format!("{name}-1-0"), "Succeeded", Some(0))
            .await;
        engine.phase(name, Phase::Complete).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_carry_on_after_a_restart_and_after_lost_watches() {
    let mut engine = Engine::start(0).await;
    engine
        .submit(
            "train",
            json!({"command": ["train"], "workers": 2, "retries": 1}),
        )
        .await;
    engine.pod_goes("train-1-0", "Running", None).await;
    engine.pod_goes("train-1-1", "Running", None).await;
    engine.phase("train", Phase::Running).await;

    engine.stop_controllers().await;
    engine.pod_goes("train-1-1", "Failed", Some(9)).await;
    engine.start_controllers();
    let stopped =
        |pod: Option<&Pod>| pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
    let stopping = await_condition(engine.pods(), "train-1-0", stopped);
    tokio::time::timeout(PATIENCE, stopping)
        .await
        .expect("the rest is stopped")
        .expect("the watch holds");
    engine
        .pods()
        .delete("train-1-0", &DeleteParams::default().grace_period(0))
        .await
        .expect("the kubelet is done with it");

    engine.pod_goes("train-2-0", "Running", None).await;
    engine.pod_goes("train-2-1", "Running", None).await;
    engine.phase("train", Phase::Running).await;
    engine.cut_watches();
    engine.pod_goes("train-2-0", "Succeeded", Some(0)).await;
    engine.pod_goes("train-2-1", "Succeeded", Some(0)).await;
    let job = engine.phase("train", Phase::Complete).await;
    let status = job.status.expect("a status");
    assert_eq!((status.attempt, status.failures), (2, 1));
    let exit = status.attempts[0].exit.clone().expect("an exit");
    assert_eq!((exit.rank, exit.exit_code), (1, Some(9)));
    engine.stop_controllers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_is_told_in_its_own_words_and_can_be_mended() {
    let engine = Engine::start(0).await;
    let template = json!({"spec": {"containers": [{"name": "worker", "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]}]}});
    engine
        .submit("odd", json!({"command": ["train"], "template": template}))
        .await;
    let job = engine.reason("odd", "ApplyFailed").await;
    let message = job.status.map(|status| status.message).unwrap_or_default();
    assert!(
        message.contains("could not create pod odd-1-0") && message.contains("nowhere"),
        "{message}"
    );
    let mended = Patch::Merge(json!({"spec": {"template": null}}));
    engine
        .jobs()
        .patch("odd", &PatchParams::default(), &mended)
        .await
        .expect("the job is mended");
    let job = engine.reason("odd", "StartingWorkers").await;
    assert_eq!(job.status.map(|status| status.failures), Some(0));
    let job = engine.jobs().get("odd").await.expect("the job");
    let attempt = job.status.map_or(0, |status| status.attempt);
    engine
        .pod_goes(&format!("odd-{attempt}-0"), "Running", None)
        .await;
    engine.phase("odd", Phase::Running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_that_nobody_needs_is_deleted_and_one_whose_job_is_there_is_not() {
    let engine = Engine::start(0).await;
    engine.submit("here", json!({"command": ["train"]})).await;
    let job = engine.jobs().get("here").await.expect("the job");
    let profiles: Api<JobProfile> = Api::namespaced(engine.client.clone(), "default");
    let used = Fingerprint::of(&job).name;
    let names = [
        (used.as_str(), "2001-01-01T00:00:00Z"),
        ("forgotten", "2001-01-01T00:00:00Z"),
        ("lately", "2026-01-01T00:00:00Z"),
    ];
    for (name, last_run) in names {
        let profile = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "JobProfile", "metadata": {"name": name},
            "spec": {"version": 1, "fingerprint": name, "lastRun": last_run}});
        let profile = serde_json::from_value(profile).expect("a profile");
        let created = profiles.create(&PostParams::default(), &profile).await;
        created.expect("the profile is created");
    }
    let gone = await_condition(profiles.clone(), "forgotten", |it: Option<&JobProfile>| {
        it.is_none()
    });
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.expect("it is deleted").expect("a watch");
    let left = profiles.list(&ListParams::default()).await;
    let left: BTreeSet<String> = left
        .expect("a list")
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    assert_eq!(left, BTreeSet::from([used.clone(), "lately".to_owned()]));
}

/// Every pod that is bound runs and ends; nothing may ever be given out twice.
#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_at_once_share_the_machine_and_all_complete() {
    const JOBS: usize = 24;
    let engine = Arc::new(Engine::start(4).await);
    let kubelet = tokio::spawn(run_everything(engine.clone()));
    for i in 0..JOBS {
        let spec = json!({"command": ["train"], "workers": 1 + i % 2, "gpus": 1 + i % 2, "cpus": "10m", "memory": {"limit": "1Gi"}});
        engine.submit(&format!("job-{i}"), spec).await;
    }
    for i in 0..JOBS {
        let job = engine.phase(&format!("job-{i}"), Phase::Complete).await;
        let status = job.status.expect("a status");
        assert_eq!((status.attempt, status.failures), (1, 0), "job-{i}");
    }
    assert!(
        !kubelet.is_finished(),
        "it saw more given out than there is: {:?}",
        kubelet.await
    );
    kubelet.abort();
}

async fn run_everything(engine: Arc<Engine>) {
    let mut pods = watcher(engine.pods(), watcher::Config::default()).boxed();
    while let Some(event) = pods.next().await {
        let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else {
            continue;
        };
        check_gpus(&engine).await;
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        let bound = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        match phase.as_deref() {
            Some("Pending") if bound => engine.pod_goes(&pod.name_any(), "Running", None).await,
            Some("Running") => engine.pod_goes(&pod.name_any(), "Succeeded", Some(0)).await,
            _ => {}
        }
    }
}

async fn check_gpus(engine: &Engine) {
    let pods = engine
        .pods()
        .list(&ListParams::default())
        .await
        .expect("pods");
    let alive = pods.items.iter().filter(|pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
    });
    let gpus = alive.filter_map(|pod| {
        let resources = pod.spec.as_ref()?.containers.first()?.resources.as_ref()?;
        resources
            .requests
            .as_ref()?
            .get("nvidia.com/gpu")?
            .0
            .parse::<u32>()
            .ok()
    });
    let gpus: u32 = gpus.sum();
    assert!(gpus <= 4, "{gpus} of 4 GPUs are given out");
}
