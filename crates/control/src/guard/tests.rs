//! A server that fails on purpose, behind the client that the controllers have.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, WatchParams};
use serde_json::json;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A code and when to come back; `None` never answers.
type Answer = Option<(u16, Option<&'static str>)>;

/// Answers in this order, then with 200.
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    asked: AtomicUsize,
}

struct Stage {
    script: Arc<Script>,
    fence: Arc<Fence>,
    gate: Arc<Gate>,
    vitals: Arc<Vitals>,
    client: Client,
}

fn stage(answers: &[Answer]) -> Stage {
    let script = Arc::new(Script {
        answers: Mutex::new(answers.iter().copied().collect()),
        asked: AtomicUsize::new(0),
    });
    let server = script.clone();
    let service = tower::service_fn(move |_: Request<Body>| {
        server.asked.fetch_add(1, Ordering::Relaxed);
        let next = server.answers.lock().expect("no panic").pop_front();
        async move {
            let Some((code, retry_after)) = next.unwrap_or(Some((200, None))) else {
                return std::future::pending().await;
            };
            let mut answer = Response::builder().status(code);
            if let Some(seconds) = retry_after {
                answer = answer.header(RETRY_AFTER, seconds);
            }
            let body = if code == 200 {
                json!({"metadata": {"name": "a", "resourceVersion": "1"}, "items": []})
            } else {
                json!({"kind": "Status", "code": code, "message": "as the script says", "reason": "", "status": "Failure"})
            };
            Ok::<_, BoxError>(answer.body(Body::from(body.to_string().into_bytes()))?)
        }
    });
    let fence = Arc::new(Fence::new(Instant::now(), 15 * SECOND, 10 * SECOND));
    let gate = Arc::new(Gate::new(16));
    let vitals = Arc::<Vitals>::default();
    let client = Client::new(service, "default");
    let client = guarded(&client, fence.clone(), gate.clone(), vitals.clone());
    Stage {
        script,
        fence,
        gate,
        vitals,
        client,
    }
}

impl Stage {
    fn things(&self) -> Api<ConfigMap> {
        Api::default_namespaced(self.client.clone())
    }

    async fn create(&self) -> Result<ConfigMap, kube::Error> {
        let thing = ConfigMap::default();
        self.things().create(&PostParams::default(), &thing).await
    }

    fn asked(&self) -> usize {
        self.script.asked.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_asked_again_when_it_said() {
    let stage = stage(&[Some((429, Some("3"))), Some((429, None))]);
    let began = Instant::now();
    stage.create().await.expect("done in the end");
    assert_eq!(began.elapsed(), 4 * SECOND);
    assert_eq!(stage.asked(), 3);
    assert_eq!(stage.gate.limit(), 4);
    let figures = stage.vitals.figures();
    assert!(figures.contains("stoke_api_throttled_total 2"), "{figures}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_wants_longer_than_we_wait_has_the_last_word() {
    let stage = stage(&[Some((429, Some("3600")))]);
    let error = stage.create().await.expect_err("it is told");
    assert!(matches!(error, kube::Error::Api(status) if status.code == 429));
    let began = Instant::now();
    stage.fence.renewed(Instant::now());
    let error = stage
        .things()
        .list(&ListParams::default())
        .await
        .expect_err("all wait");
    assert!(
        error.to_string().contains("did not answer within 35s"),
        "{error}"
    );
    assert_eq!(
        (stage.asked(), began.elapsed()),
        (1, PATIENCE),
        "and nobody asks meanwhile"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_asked_twice() {
    for code in [400, 403, 409, 500, 503] {
        let stage = stage(&[Some((code, Some("1")))]);
        let error = stage.create().await.expect_err("it is told");
        assert!(matches!(error, kube::Error::Api(status) if status.code == code));
        assert_eq!(stage.asked(), 1, "{code}");
        assert_eq!(
            stage.gate.limit(),
            if code == 503 { 8 } else { 16 },
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up_on() {
    let stage = stage(&[None]);
    let began = Instant::now();
    let error = stage.things().get("a").await.expect_err("nothing comes");
    assert!(
        error.to_string().contains("did not answer within 35s"),
        "{error}"
    );
    assert_eq!(began.elapsed(), PATIENCE);
    let figures = stage.vitals.figures();
    assert!(
        figures.contains(
            r#"stoke_api_requests_total{verb="get",resource="configmaps",code="none"} 1"#
        ),
        "{figures}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_loser_reads_and_writes_nothing() {
    let stage = stage(&[]);
    stage.create().await.expect("it leads");
    tokio::time::advance(10 * SECOND).await;
    let error = stage.create().await.expect_err("its lease is in doubt");
    assert!(is_fenced(&error), "{error}");
    let deletion = DeleteParams::default();
    let error = stage
        .things()
        .delete("a", &deletion)
        .await
        .expect_err("nor this");
    assert!(is_fenced(&error), "{error}");
    assert_eq!(stage.asked(), 1, "none of it has left");
    stage.things().get("a").await.expect("reading harms nobody");
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_when_the_lease_runs_out_is_dropped() {
    let stage = stage(&[None]);
    tokio::time::advance(9 * SECOND).await;
    let began = Instant::now();
    let error = stage.create().await.expect_err("it takes too long");
    assert!(is_fenced(&error), "{error}");
    assert_eq!(
        began.elapsed(),
        5 * SECOND,
        "a second before another may lead"
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_at_the_gate_is_fenced_there() {
    let stage = stage(&[Some((429, Some("20")))]);
    let error = stage
        .create()
        .await
        .expect_err("its time is up before it is asked again");
    assert!(is_fenced(&error), "{error}");
    assert_eq!(stage.asked(), 1);
}

#[tokio::test]
async fn requests_are_known_by_verb_and_resource() {
    let request = |method: &str, uri: &str| {
        let request = Request::builder().method(method).uri(uri).body(());
        let Call { verb, resource } = Call::of(&request.expect("a request"));
        format!("{verb} {resource}")
    };
    let table = [
        ("GET", "/api/v1/pods?limit=500", "list pods"),
        (
            "GET",
            "/api/v1/pods?&watch=true&timeoutSeconds=290",
            "watch pods",
        ),
        ("GET", "/api/v1/namespaces/a/pods/b", "get pods"),
        ("POST", "/api/v1/namespaces/a/pods?", "create pods"),
        (
            "POST",
            "/api/v1/namespaces/a/pods/b/binding",
            "create pods/binding",
        ),
        (
            "PATCH",
            "/apis/stokehold.dev/v1alpha1/namespaces/a/trainjobs/b/status",
            "patch trainjobs/status",
        ),
        (
            "DELETE",
            "/apis/stokehold.dev/v1alpha1/namespaces/a/trainjobs/b",
            "delete trainjobs",
        ),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/b",
            "update leases",
        ),
        ("GET", "/apis", "get other"),
        ("GET", "/api/v1/nodes/n", "get nodes"),
    ];
    for (method, uri, expected) in table {
        assert_eq!(request(method, uri), expected, "{uri}");
    }
    // And kube asks as we think it does.
    let stage = stage(&[]);
    let pods: Api<Pod> = Api::all(stage.client.clone());
    let _ = pods.watch(&WatchParams::default(), "0").await;
    let figures = stage.vitals.figures();
    assert!(
        figures.contains(r#"verb="watch",resource="pods",code="200"}"#),
        "{figures}"
    );
}
