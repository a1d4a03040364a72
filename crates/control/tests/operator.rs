//! Operators against the real API server, in one process, on bad days: what lies between them and the server fails on purpose.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::{Value, json};
use stoke_api::TrainJob;
use stoke_apiserver::{ApiServer, NoLogs, Options, housekeeping};
use stoke_control::{Config, ControlError, LeaseOptions, Vitals, lead};
use stoke_store::Store;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(30);

/// What comes back instead of the server's answer.
enum Bad {
    Says(u16, &'static str),
    /// Nothing, ever.
    Nothing,
}

type Fault = Box<dyn Fn(&Method, &str) -> Option<Bad> + Send>;

struct Cluster {
    server: ApiServer,
    housekeeping: CancellationToken,
    _directory: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(
            &directory.path().join("store.db"),
            &stoke_store::Options::default(),
        );
        let server = ApiServer::new(
            store.expect("a store"),
            Arc::new(NoLogs),
            Options::default(),
        );
        let server = server.await.map_err(|status| status.message().to_owned());
        let server = server.expect("a server");
        let housekeeping = CancellationToken::new();
        tokio::spawn(housekeeping::run(
            server.clone(),
            housekeeping::Options::default(),
            housekeeping.clone(),
        ));
        let cluster = Self {
            server,
            housekeeping,
            _directory: directory,
        };
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "machine"}});
        let nodes: Api<Node> = Api::all(cluster.client());
        let node = serde_json::from_value(node).expect("a node");
        let created = nodes.create(&PostParams::default(), &node).await;
        created.expect("the node is created");
        let status = json!({"status": {
            "allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        let patched = nodes
            .patch_status("machine", &PatchParams::default(), &Patch::Merge(status))
            .await;
        patched.expect("the node is ready");
        cluster
    }

    fn client(&self) -> Client {
        self.server.client()
    }

    fn operator(&self, name: &str) -> Operator {
        Operator::start(&self.server, name)
    }

    fn jobs(&self) -> Api<TrainJob> {
        Api::namespaced(self.client(), "default")
    }

    async fn submit(&self, name: &str, spec: Value) {
        let job = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec});
        let job = serde_json::from_value(job).expect("a job");
        let created = self.jobs().create(&PostParams::default(), &job).await;
        created.expect("the job is created");
    }

    /// `phase (reason) attempt: message`
    async fn told(&self, job: &str) -> String {
        let job = self.jobs().get(job).await.expect("the job");
        let status = job.status.unwrap_or_default();
        format!(
            "{:?} ({}) {}: {}",
            status.phase, status.reason, status.attempt, status.message
        )
    }

    async fn pods(&self) -> Vec<String> {
        let pods: Api<Pod> = Api::namespaced(self.client(), "default");
        let pods = pods.list(&ListParams::default()).await.expect("pods");
        let alive = pods
            .items
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        alive.map(kube::ResourceExt::name_any).collect()
    }

    async fn holder(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.client(), "default");
        let lease = leases.get_opt("operator").await.expect("an answer");
        let spec = lease.and_then(|lease| lease.spec);
        spec.and_then(|spec| spec.holder_identity)
            .unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.housekeeping.cancel();
    }
}

struct Operator {
    vitals: Arc<Vitals>,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), ControlError>>,
    fault: Arc<Mutex<Option<Fault>>>,
    /// Requests that have reached the server, and those of them that would change something.
    asked: Arc<AtomicUsize>,
    wrote: Arc<AtomicUsize>,
}

impl Operator {
    fn start(server: &ApiServer, name: &str) -> Self {
        let fault: Arc<Mutex<Option<Fault>>> = Arc::default();
        let (asked, wrote) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let client = faulty(server, fault.clone(), asked.clone(), wrote.clone());
        let lease = LeaseOptions {
            namespace: "default".to_owned(),
            name: "operator".to_owned(),
            identity: LeaseOptions::identity(name),
            lease_duration: Duration::from_secs(2),
            renew_deadline: Duration::from_millis(1200),
            retry_period: Duration::from_millis(200),
        };
        let mut config = Config::machine("/usr/bin/stoke".into());
        // What is deleted before it has a node goes at once: there is no kubelet here to end it.
        config.binder = false;
        config.retry.first = Duration::from_millis(500);
        config.retry.base = Duration::from_millis(500);
        let vitals = Arc::<Vitals>::default();
        let shutdown = CancellationToken::new();
        let leading = lead(client, lease, config, vitals.clone(), shutdown.clone());
        Self {
            vitals,
            shutdown,
            running: tokio::spawn(leading),
            fault,
            asked,
            wrote,
        }
    }

    fn fails(&self, fault: impl Fn(&Method, &str) -> Option<Bad> + Send + 'static) {
        *self.fault.lock().expect("no panic") = Some(Box::new(fault));
    }

    fn recovers(&self) {
        *self.fault.lock().expect("no panic") = None;
    }

    /// Waits until readiness is told so.
    async fn says(&self, part: &str) -> String {
        eventually(part, async || {
            let (Ok(told) | Err(told)) = self.vitals.ready();
            told.contains(part).then_some(told)
        })
        .await
    }

    async fn leads(&self) {
        eventually("one that leads", async || {
            (self.vitals.ready().as_deref() == Ok("leads")).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.running).await;
        let ended = ended.expect("it ends in time").expect("it does not panic");
        ended.expect("it ends well");
    }
}

/// A client of the server with whatever goes wrong on the way.
fn faulty(
    server: &ApiServer,
    fault: Arc<Mutex<Option<Fault>>>,
    asked: Arc<AtomicUsize>,
    wrote: Arc<AtomicUsize>,
) -> Client {
    let router = server.router();
    let service = tower::service_fn(move |request: Request<Body>| {
        let router = router.clone();
        asked.fetch_add(1, Ordering::Relaxed);
        if request.method() != Method::GET {
            wrote.fetch_add(1, Ordering::Relaxed);
        }
        let fault = fault.lock().expect("no panic");
        let path = request.uri().path();
        let bad = fault
            .as_ref()
            .and_then(|fault| fault(request.method(), path));
        async move {
            match bad {
                Some(Bad::Nothing) => std::future::pending().await,
                Some(Bad::Says(code, message)) => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message});
                    let body = Body::from(status.to_string().into_bytes());
                    let answer = Response::builder().status(code);
                    Ok::<_, tower::BoxError>(answer.body(body.boxed_unsync())?)
                }
                None => {
                    let answer = router.oneshot(request).await?;
                    Ok(answer.map(|body| body.map_err(kube_error).boxed_unsync()))
                }
            }
        }
    });
    Client::new(service, "default")
}

fn kube_error(error: impl Into<tower::BoxError>) -> kube::Error {
    kube::Error::Service(error.into())
}

async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_another_takes_over_when_it_goes() {
    let cluster = Cluster::start().await;
    let first = cluster.operator("first");
    first.leads().await;
    let second = cluster.operator("second");
    second.says("stands by; first_").await;
    cluster.submit("one", json!({"command": ["train"]})).await;
    eventually("a pod", async || {
        (cluster.pods().await == ["one-1-0"]).then_some(())
    })
    .await;
    let idle = second.wrote.load(Ordering::Relaxed);
    assert_eq!(idle, 0, "who stands by writes nothing");

    first.stop().await;
    assert_ne!(
        cluster.holder().await.split('_').next(),
        Some("first"),
        "it gave the lease back"
    );
    second.leads().await;
    cluster.submit("two", json!({"command": ["train"]})).await;
    eventually("the second's pod", async || {
        cluster
            .pods()
            .await
            .contains(&"two-1-0".to_owned())
            .then_some(())
    })
    .await;
    assert!(second.vitals.figures().contains("stoke_is_leader 1"));
    second.stop().await;
    assert_eq!(cluster.holder().await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_renew_its_lease_stops_before_another_starts() {
    let cluster = Cluster::start().await;
    let first = cluster.operator("first");
    first.leads().await;
    let second = cluster.operator("second");
    second.says("stands by; first_").await;
    // Its renewals go nowhere; everything else would still work.
    first.fails(|_, path| path.contains("/leases").then_some(Bad::Nothing));
    let began = Instant::now();
    eventually("the first to stop", async || {
        (first.vitals.figures().contains("stoke_is_leader 0")).then_some(())
    })
    .await;
    assert!(
        second.vitals.figures().contains("stoke_is_leader 0"),
        "nobody leads for a while"
    );
    let written = first.wrote.load(Ordering::Relaxed);
    second.leads().await;
    assert!(began.elapsed() < PATIENCE / 2);
    cluster.submit("job", json!({"command": ["train"]})).await;
    eventually("a pod", async || {
        (cluster.pods().await == ["job-1-0"]).then_some(())
    })
    .await;
    let since = first.wrote.load(Ordering::Relaxed) - written;
    assert_eq!(since, 0, "a loser writes nothing");

    first.recovers();
    first.says("stands by; second_").await;
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_for_a_while_is_waited_for() {
    let cluster = Cluster::start().await;
    let operator = cluster.operator("only");
    operator.leads().await;
    operator.fails(|_, _| Some(Bad::Nothing));
    operator
        .says("lease operator: the API server did not answer within 400ms")
        .await;
    eventually("it to stop", async || {
        (operator.vitals.figures().contains("stoke_is_leader 0")).then_some(())
    })
    .await;
    operator
        .vitals
        .live(Duration::from_secs(4))
        .expect("it lives");
    cluster.submit("job", json!({"command": ["train"]})).await;
    operator.recovers();
    eventually("a pod", async || {
        (cluster.pods().await == ["job-1-0"]).then_some(())
    })
    .await;
    operator.leads().await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_is_told_and_a_new_one_is_enough() {
    let cluster = Cluster::start().await;
    let operator = cluster.operator("only");
    operator.leads().await;
    operator.fails(|_, _| Some(Bad::Says(401, "Unauthorized")));
    operator.says("does not accept our credentials (401)").await;
    operator.recovers();
    operator.leads().await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_definition_is_named_and_waited_for_without_haste() {
    let cluster = Cluster::start().await;
    let operator = Operator::start(&cluster.server, "only");
    operator.fails(|_, path| {
        let missing = path.contains("/trainjobs") || path.contains("/datasets");
        missing.then_some(Bad::Says(404, "404 page not found"))
    });
    let told = operator
        .says("the CRD trainjobs.stokehold.dev is missing")
        .await;
    assert!(told.contains("stoke crds | kubectl apply -f -"), "{told}");
    let before = operator.asked.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = operator.asked.load(Ordering::Relaxed) - before;
    // The lease is renewed fifteen times meanwhile.
    assert!(asked < 60, "{asked} requests in three seconds");
    operator.recovers();
    operator.leads().await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_lacks_something_is_named() {
    let cluster = Cluster::start().await;
    let operator = cluster.operator("only");
    operator.fails(|_, path| {
        let message = r#"pods is forbidden: User "operator" cannot list resource "pods" in API group "" at the cluster scope"#;
        (path == "/api/v1/pods").then_some(Bad::Says(403, message))
    });
    let told = operator.says("cannot list resource").await;
    assert!(told.contains("helm upgrade"), "{told}");
    operator.recovers();
    operator.leads().await;
    operator.stop().await;
}

/// A gang of two, of which the server refuses the second worker with this; gives what the job says.
async fn refused(code: u16, message: &'static str) -> String {
    let cluster = Cluster::start().await;
    let operator = cluster.operator("only");
    operator.leads().await;
    let seen = Mutex::new(0);
    operator.fails(move |method, path| {
        if method != Method::POST || !path.ends_with("/pods") {
            return None;
        }
        let mut seen = seen.lock().expect("no panic");
        *seen += 1;
        (*seen > 1).then_some(Bad::Says(code, message))
    });
    cluster
        .submit("gang", json!({"command": ["train"], "workers": 2}))
        .await;
    let told = eventually("the refusal", async || {
        let told = cluster.told("gang").await;
        told.contains("could not create").then_some(told)
    })
    .await;
    eventually("the rest to go", async || {
        cluster.pods().await.is_empty().then_some(())
    })
    .await;
    operator.recovers();
    let pods = eventually("the gang", async || {
        let pods = cluster.pods().await;
        (pods.len() == 2).then_some(pods)
    })
    .await;
    assert!(
        !pods.contains(&"gang-1-0".to_owned()),
        "of a new attempt: {pods:?}"
    );
    let job = cluster.jobs().get("gang").await.expect("the job");
    assert_eq!(job.status.map(|status| status.failures), Some(0));
    operator.stop().await;
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exceeds_a_quota_is_given_back_told_and_tried_again() {
    let told = refused(
        403,
        r#"pods "gang" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1"#,
    )
    .await;
    assert!(
        told.contains("(WaitingForQuota)") && told.contains("exceeded quota: team"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_webhook_denies_is_told_in_its_words() {
    let told = refused(
        403,
        r#"admission webhook "images.example.com" denied the request: image is not signed"#,
    )
    .await;
    assert!(
        told.contains("(ApplyFailed)") && told.contains("image is not signed"),
        "{told}"
    );
}
