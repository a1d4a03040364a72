//! A pod's task against a server that keeps its object and can be made to refuse every write.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::Value;
use stoke_api::contract::{STATUS, STATUS_VOLUME};
use stoke_api::names::{LAST_CHECKPOINT_ANNOTATION, MEMORY_TERMS_ANNOTATION};
use stoke_api::risk::{MemoryRisk, Stage};
use stoke_memory::guard::{Danger, Kind, Shortage};
use tempfile::TempDir;
use tokio::sync::watch;

use super::*;
use crate::cgroup::{Cgroups, MemorySample};
use crate::commons::Commons;
use crate::events::Recorder;
use crate::gpu::Machine;
use crate::ledger::Ledger;
use crate::pod::{Intent, Shared};
use crate::pod_dir::{LAYOUT_VERSION, Record};
use crate::resources::Amounts;
use crate::shim::protocol::ContainerUsage;
use crate::spec::tests_support;
use crate::volumes::claims::Bound;

const MIB: u64 = 1 << 20;

struct Scene {
    worker: Worker,
    /// As the server has it.
    pod: Arc<Mutex<Value>>,
    refuses: Arc<AtomicBool>,
    _root: TempDir,
    _intent: watch::Sender<Intent>,
}

/// The worker of a job with a limit of 160 MiB, all of it promised, on a machine where 100 MiB are nobody's.
fn scene(annotations: &Value) -> Scene {
    let amount = json!({"memory": "160Mi"});
    let object = json!({
        "metadata": {"name": "gpt-1-0", "namespace": "ml", "uid": "u", "annotations": annotations,
            "labels": {JOB_LABEL: "gpt"}},
        "spec": {"volumes": [{"name": STATUS_VOLUME}],
            "containers": [{"name": "worker", "resources": {"limits": amount, "requests": amount}}]},
    });
    let pod = Arc::new(Mutex::new(object.clone()));
    let refuses = Arc::new(AtomicBool::new(false));
    let (kept, refusing) = (Arc::clone(&pod), Arc::clone(&refuses));
    let server = Router::new().fallback(move |uri: Uri, body: String| {
        let (kept, refusing) = (Arc::clone(&kept), Arc::clone(&refusing));
        async move {
            if refusing.load(Ordering::Relaxed) {
                return (StatusCode::INTERNAL_SERVER_ERROR, "{}".to_owned()).into_response();
            }
            let mut kept = kept.lock().unwrap();
            let mut patch: Value = serde_json::from_str(&body).unwrap_or_default();
            if uri.path().ends_with("/resize") {
                let resources = patch["spec"]["containers"][0]["resources"].take();
                merge(&mut kept["spec"]["containers"][0]["resources"], &resources);
            } else {
                merge(&mut kept, &patch);
            }
            kept.to_string().into_response()
        }
    });
    let client = Client::new(server, "ml");
    let root = tempfile::tempdir().unwrap();
    let amounts = |mib: u64| Amounts::from([(MEMORY.to_owned(), mib * MIB)]);
    let mut ledger = Ledger::new(amounts(1260), Vec::new());
    ledger.admit("u", &amounts(160), None).unwrap();
    ledger.admit("other", &amounts(1000), None).unwrap();
    let shared = Arc::new(Shared {
        events: Recorder::start(client.clone(), "node").0,
        client,
        facts: tests_support::facts(),
        cgroups: Cgroups::Unusable {
            reason: String::new(),
        },
        pods_dir: root.path().to_owned(),
        secrets_dir: None,
        stoke_exe: "stoke".into(),
        stager: crate::staging::Stager::new(root.path().join("data"), None),
        claims: watch::channel(Bound::new()).1,
        gpu_source: Arc::new(Machine::detect(0)),
        ledger: Mutex::new(ledger),
        commons: Arc::new(Commons::new(1260 * MIB, 1260 * MIB)),
        released: watch::channel(0).0,
    });
    fs::create_dir_all(root.path().join("u/volumes").join(STATUS_VOLUME)).unwrap();
    let object: Arc<Pod> = Arc::new(serde_json::from_value(object).unwrap());
    let (intent_to, intent) = watch::channel(Intent::Wanted(Arc::clone(&object)));
    let mut worker = Worker::new(shared, "u".to_owned(), Arc::clone(&object), intent);
    worker.record = Some(Record {
        version: LAYOUT_VERSION,
        accepted_at: Timestamp::now(),
        gpus: Vec::new(),
        granted: resources::asked(&object),
        fate: None,
        secrets: None,
    });
    Scene {
        worker,
        pod,
        refuses,
        _root: root,
        _intent: intent_to,
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            into.as_object_mut().map(|object| object.remove(key));
        } else {
            merge(&mut into[key], value);
        }
    }
}

impl Scene {
    fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    fn annotation(&self, name: &str) -> Option<String> {
        let pod = self.pod.lock().unwrap();
        pod["metadata"]["annotations"][name]
            .as_str()
            .map(str::to_owned)
    }

    fn risk(&self) -> Option<Stage> {
        MemoryRisk::parse(&self.annotation(MEMORY_RISK_ANNOTATION)?).map(|risk| risk.stage)
    }

    fn look(&self, used: u64) -> Vec<Deed> {
        self.worker.watched.look(&[ContainerUsage {
            name: "worker".to_owned(),
            memory: MemorySample {
                anon_bytes: used * MIB,
                limit_bytes: Some(160 * MIB),
                ..MemorySample::default()
            },
            cpu_usec: None,
        }])
    }

    fn says(&self, step: u64) {
        let volume = self.worker.dir.volume(STATUS_VOLUME);
        write(&volume, &json!({"saved_step": step}).to_string());
    }
}

fn write(volume: &Path, text: &str) {
    fs::write(volume.join(STATUS), text).unwrap();
}

fn short() -> Shortage {
    Shortage {
        available: 1,
        reserve: 2,
        per_second: 0,
    }
}

fn annotated_with(stage: Stage) -> Value {
    let risk = MemoryRisk {
        stage,
        ..MemoryRisk::default()
    };
    json!({MEMORY_RISK_ANNOTATION: serde_json::to_string(&risk).unwrap()})
}

#[tokio::test]
async fn what_is_not_given_now_is_asked_for_no_more() {
    let mut scene = scene(&json!({}));
    scene.look(100);
    let danger = Danger {
        used: 100 * MIB,
        limit: 160 * MIB,
        kind: Kind::Near,
    };
    let raise = Deed {
        container: "worker".to_owned(),
        action: Action::Raise {
            to: 512 * MIB,
            danger,
        },
    };
    scene.worker.act(raise).await;
    let limit = {
        let pod = scene.pod.lock().unwrap();
        pod["spec"]["containers"][0]["resources"].clone()
    };
    let first = json!({"memory": "160Mi"});
    assert_eq!(limit, json!({"limits": first, "requests": first}));
    assert_eq!(scene.worker.resize, None, "nothing waits to be given later");
}

#[tokio::test]
async fn what_could_not_be_said_is_said_again() {
    let mut scene = scene(&json!({}));
    scene.refuse(true);
    scene.worker.risk = Some(MemoryRisk::default());
    assert!(!scene.worker.tell_risk().await);
    scene.refuse(false);
    assert!(scene.worker.tell_risk().await);
    assert_eq!(scene.risk(), Some(Stage::Raised));
}

#[tokio::test]
async fn a_request_that_got_lost_is_made_again() {
    let mut scene = scene(&json!({}));
    scene.look(100);
    let mut asked = scene.look(157);
    scene.refuse(true);
    scene
        .worker
        .act(asked.pop().expect("it is at its end"))
        .await;
    scene.refuse(false);
    assert_eq!(scene.worker.risk, None, "it was not asked");
    let again = scene.look(158).pop().expect("asked again");
    scene.worker.watched.left_out(again);
    let again = scene.look(158).pop().expect("and again");
    scene.worker.act(again).await;
    assert!(scene.annotation(CHECKPOINT_REQUEST_ANNOTATION).is_some());
    assert!(scene.worker.risk.is_some());
    assert!(scene.look(158).is_empty(), "once");
}

#[tokio::test]
async fn a_leak_that_has_done_its_steps_is_asked_to_save() {
    let terms = r#"{"limit": "160Mi", "restartSteps": 20}"#;
    let mut scene = scene(&json!({MEMORY_TERMS_ANNOTATION: terms}));
    let volume = scene.worker.dir.volume(STATUS_VOLUME);
    let mut asked = Vec::new();
    for step in [100, 119, 120, 121] {
        write(&volume, &json!({"step": step}).to_string());
        asked.extend(scene.look(50));
    }
    assert_eq!(asked.len(), 1, "{asked:?}");
    scene.worker.act(asked.remove(0)).await;
    scene.worker.tell_risk().await;
    assert_eq!(scene.risk(), Some(Stage::AtTheEnd));
    let request = scene.annotation(CHECKPOINT_REQUEST_ANNOTATION);
    assert!(
        request.is_some_and(|it| it.contains("begins anew every 20")),
        "the program is asked"
    );
}

#[tokio::test]
async fn a_shortage_is_told_for_as_long_as_it_lasts() {
    let mut late = scene(&json!({}));
    late.worker.shared.commons.find(Some(short()));
    late.worker.tell_risk().await;
    assert_eq!(late.risk(), Some(Stage::NodeShort), "it began before");
    late.worker.risk = Some(MemoryRisk::default());
    late.worker.tell_risk().await;
    assert_eq!(late.risk(), Some(Stage::NodeShort), "whatever else is told");
    late.worker.shared.commons.find(None);
    late.worker.tell_risk().await;
    assert_eq!(late.risk(), Some(Stage::Raised));

    let mut stale = scene(&annotated_with(Stage::NodeShort));
    stale.worker.tell_risk().await;
    assert_eq!(stale.risk(), None, "it was over while no engine ran");
}

#[tokio::test]
async fn a_danger_of_an_earlier_engine_is_taken_back() {
    let scene = scene(&annotated_with(Stage::AtTheEnd));
    assert!(scene.look(50).is_empty());
    scene.worker.watched.age(Duration::from_secs(20));
    let calm = scene.look(50).pop().expect("there is none");
    assert_eq!(calm.action, Action::Calm);
}

#[tokio::test]
async fn what_a_program_saved_is_told_at_once_and_kept() {
    let mut scene = scene(&json!({}));
    let begun = Timestamp::now();
    scene.says(1);
    scene.look(50);
    scene.worker.publish_checkpoint(true).await;
    let last = |scene: &Scene| scene.annotation(LAST_CHECKPOINT_ANNOTATION);
    assert_eq!(last(&scene), None, "nobody knows how old it is");
    scene.says(2);
    scene.look(50);
    scene.worker.publish_checkpoint(true).await;
    let first = last(&scene).expect("a new one");
    assert!(first.parse::<Timestamp>().unwrap() >= begun);
    scene.worker.publish_checkpoint(true).await;
    assert_eq!(last(&scene), Some(first.clone()), "once");
    // Its last word, after the last look.
    scene.says(3);
    let exit = Exit {
        exit_code: 0,
        signal: None,
        oom_killed: false,
        reason: "Completed".to_owned(),
        message: None,
        started_at: None,
        finished_at: begun,
        peak_memory_bytes: None,
        oom_kills: 0,
    };
    scene.worker.watched.end("worker", "id", &exit);
    scene.worker.publish_checkpoint(false).await;
    assert!(last(&scene) > Some(first));
}
