//! The driver behind a real socket, with a dataset that a real server has, shown by a real mount where that is allowed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::{Value, json};
use stoke_api::names::{STAGED_REASON, STAGING_ANNOTATION, STAGING_FAILED_REASON};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;

const BYTES: &[u8] = b"one two three";

/// What the API server has and what the store was asked for.
#[derive(Default)]
struct World {
    dataset: Mutex<Value>,
    annotation: Mutex<Option<String>>,
    /// How often a write of the dataset is refused because another came first.
    conflicts: AtomicUsize,
    fetched: AtomicUsize,
    refuses: std::sync::atomic::AtomicBool,
}

struct Scene {
    world: Arc<World>,
    shared: Arc<Shared>,
    dir: tempfile::TempDir,
}

fn api(world: Arc<World>) -> Router {
    Router::new().fallback(move |method: Method, uri: Uri, body: String| {
        let world = Arc::clone(&world);
        async move { answer(&world, &method, uri.path(), &body) }
    })
}

fn answer(world: &World, method: &Method, path: &str, body: &str) -> Response {
    let status = |code: u16| {
        let reason = if code == 404 { "NotFound" } else { "Conflict" };
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no", "reason": reason});
        let code = StatusCode::from_u16(code).expect("a code");
        (code, status.to_string()).into_response()
    };
    let patch: Value = serde_json::from_str(body).unwrap_or_default();
    if path.contains("/pods/") {
        let text = patch["metadata"]["annotations"][STAGING_ANNOTATION].as_str();
        *world.annotation.lock().expect("a lock") = text.map(str::to_owned);
        return json!({"metadata": {"name": "pod"}})
            .to_string()
            .into_response();
    }
    let mut dataset = world.dataset.lock().expect("a lock");
    if dataset.is_null() || path.contains("elsewhere") {
        return status(404);
    }
    if method == Method::PATCH {
        if world.conflicts.load(Ordering::Relaxed) > 0 {
            world.conflicts.fetch_sub(1, Ordering::Relaxed);
            // The other one wrote itself.
            dataset["status"]["warmNodes"] = json!(["another"]);
            dataset["metadata"]["resourceVersion"] = json!("2");
            return status(409);
        }
        if patch["metadata"]["resourceVersion"] != dataset["metadata"]["resourceVersion"] {
            return status(409);
        }
        for (field, value) in patch["status"].as_object().into_iter().flatten() {
            dataset["status"][field] = value.clone();
        }
    }
    dataset.to_string().into_response()
}

async fn store(world: Arc<World>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().fallback(move |method: Method| {
        if method == Method::GET {
            world.fetched.fetch_add(1, Ordering::Relaxed);
        }
        let refuses = world.refuses.load(Ordering::Relaxed);
        async move {
            if refuses {
                return StatusCode::FORBIDDEN.into_response();
            }
            (
                [
                    ("etag", "\"1\""),
                    ("last-modified", "Tue, 01 Jan 2030 00:00:00 GMT"),
                ],
                BYTES,
            )
                .into_response()
        }
    });
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/words.txt")
}

impl Scene {
    async fn new() -> Self {
        let world = Arc::new(World::default());
        let uri = store(Arc::clone(&world)).await;
        *world.dataset.lock().expect("a lock") = json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "Dataset",
            "metadata": {"name": "words", "namespace": "ml", "resourceVersion": "1"},
            "spec": {"uri": uri}, "status": {},
        });
        let dir = tempfile::tempdir().expect("a directory");
        let shared = Self::open(&world, dir.path());
        Self { world, shared, dir }
    }

    fn open(world: &Arc<World>, dir: &Path) -> Arc<Shared> {
        let options = DriverOptions {
            node: "box".to_owned(),
            dir: dir.join("kept"),
            bytes_max: None,
            socket_dir: dir.join("socket"),
            registry: dir.join("registry"),
            listen: ([127, 0, 0, 1], 0).into(),
        };
        let shared = Shared::open(Client::new(api(Arc::clone(world)), "ml"), &options);
        let shared = shared.expect("a driver");
        shared.sweep().expect("swept");
        shared
    }

    /// Serves, and the socket it is served on.
    fn serve(&self) -> PathBuf {
        let path = self.dir.path().join("socket/csi.sock");
        let door = Door::open(&path).expect("a socket");
        let router = services(Arc::clone(&self.shared));
        tokio::spawn(async move { axum::serve(door, router).await });
        path
    }

    fn request(&self, id: &str) -> PublishRequest {
        let context = [
            (POD_NAMESPACE, "ml"),
            (POD_NAME, "pod"),
            (DATA_DRIVER_DATASET, "words"),
        ];
        let context = context.map(|(key, value)| (key.to_owned(), value.to_owned()));
        PublishRequest {
            volume_id: id.to_owned(),
            target_path: self.target(id).display().to_string(),
            secrets: HashMap::new(),
            volume_context: HashMap::from(context),
        }
    }

    fn target(&self, id: &str) -> PathBuf {
        self.dir.path().join("pods").join(id).join("mount")
    }

    fn pins(&self) -> usize {
        let pins = self.dir.path().join("kept/cache/pins");
        let versions = std::fs::read_dir(pins).expect("pins").flatten();
        let count = |dir: PathBuf| std::fs::read_dir(dir).map_or(0, Iterator::count);
        versions.map(|version| count(version.path())).sum()
    }

    fn status(&self) -> Value {
        self.world.dataset.lock().expect("a lock")["status"].clone()
    }

    /// It is said while the pod starts.
    async fn says(&self, status: &Value) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.status() != *status {
            let now = tokio::time::Instant::now();
            assert!(now < deadline, "{:#}", self.status());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn told(&self) -> Option<String> {
        let annotation = self.world.annotation.lock().expect("a lock");
        let text = annotation.as_deref()?;
        Some(stoke_api::dataset::Staging::parse(text)?.reason)
    }
}

/// As a kubelet calls: the code, the message, and the answer where there is one.
async fn ask(socket: &Path, path: &str, message: &impl Message) -> (String, String, Bytes) {
    let stream = UnixStream::connect(socket).await.expect("a connection");
    let io = TokioIo::new(stream);
    let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
    let (mut sender, connection) = made.expect("HTTP/2");
    tokio::spawn(connection);
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(message.encoded_len() as u32);
    message.encode(&mut body).expect("encoded");
    let request = hyper::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .body(Full::new(body.freeze()))
        .expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    let (parts, body) = response.into_parts();
    let body = body.collect().await.expect("a body");
    let trailers = body.trailers().cloned().unwrap_or_default();
    let text = |name: &str| {
        let value = parts.headers.get(name).or(trailers.get(name));
        value
            .map_or("", |value| value.to_str().expect("ASCII"))
            .to_owned()
    };
    let (code, message) = (text("grpc-status"), text("grpc-message"));
    (code, message, body.to_bytes())
}

async fn publish(socket: &Path, request: &PublishRequest) -> (String, String) {
    let (code, message, _) = ask(socket, "/csi.v1.Node/NodePublishVolume", request).await;
    (code, message)
}

async fn unpublish(scene: &Scene, socket: &Path, id: &str) {
    let request = UnpublishRequest {
        volume_id: id.to_owned(),
        target_path: scene.target(id).display().to_string(),
    };
    let (code, message, _) = ask(socket, "/csi.v1.Node/NodeUnpublishVolume", &request).await;
    assert_eq!(code, "0", "{message}");
}

/// Whether this process may mount anything; where it may not, that is said and nothing is shown.
fn may_mount(dir: &Path) -> bool {
    let (from, to) = (dir.join("from"), dir.join("to"));
    std::fs::create_dir_all(&from).expect("a directory");
    let may = mounts::show(&from, &to).is_ok();
    if !may {
        eprintln!("skipped: nothing can be mounted here");
    }
    mounts::hide(&to).expect("hidden");
    may
}

#[tokio::test]
async fn a_dataset_is_shown_to_many_copied_once_and_leaves_nothing() {
    let scene = Scene::new().await;
    let socket = scene.serve();
    if !may_mount(scene.dir.path()) {
        return;
    }
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let requests = ids.map(|id| scene.request(id));
    let all = requests.iter().map(|request| publish(&socket, request));
    for (code, message) in futures::future::join_all(all).await {
        assert_eq!(code, "0", "{message}");
    }
    assert_eq!(
        scene.world.fetched.load(Ordering::Relaxed),
        1,
        "ten pods, one copy"
    );
    let file = scene.target("a").join("words.txt");
    assert_eq!(std::fs::read(&file).expect("the file"), BYTES);
    let written = std::fs::write(scene.target("a").join("new"), "");
    let written = written.expect_err("it is read-only").kind();
    assert_eq!(written, io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(scene.pins(), ids.len());
    let told = json!({"size": "13", "files": 1, "message": null, "warmNodes": ["box"]});
    scene.says(&told).await;
    // The same again is nothing new.
    assert_eq!(publish(&socket, &requests[0]).await.0, "0");
    assert_eq!(scene.pins(), ids.len());

    // A driver that comes back after it was killed leaves alone what is shown, and forgets what is not.
    mounts::hide(&scene.target("j")).expect("hidden");
    let again = Scene::open(&scene.world, scene.dir.path());
    assert_eq!(scene.pins(), ids.len() - 1);
    assert_eq!(std::fs::read(&file).expect("the file"), BYTES);
    drop(again);
    for id in ids {
        unpublish(&scene, &socket, id).await;
        unpublish(&scene, &socket, id).await;
        assert!(!scene.target(id).exists(), "{id}");
    }
    assert_eq!(scene.pins(), 0);
    let left: Vec<Volume> = scene.shared.volumes.all().expect("records");
    assert_eq!(left, []);

    // What made room for others is said to be gone.
    let uri = scene.world.dataset.lock().expect("a lock")["spec"]["uri"].clone();
    let cache = scene.shared.stager.cache().expect("a cache");
    cache.evict(uri.as_str().expect("a uri")).expect("evicted");
    scene.shared.tell_gone().await;
    assert_eq!(scene.status()["warmNodes"], json!([]));
}

#[tokio::test]
async fn what_is_wrong_is_told_on_the_pod_and_the_dataset_until_it_is_mended() {
    let scene = Scene::new().await;
    let socket = scene.serve();
    scene.world.refuses.store(true, Ordering::Relaxed);
    let (code, message) = publish(&socket, &scene.request("a")).await;
    assert_eq!(code, (Code::Unavailable as u16).to_string());
    assert!(
        message.contains("dataset words: ") && message.contains("403"),
        "{message}"
    );
    assert_eq!(scene.told().as_deref(), Some(STAGING_FAILED_REASON));
    let said = scene.status()["message"].clone();
    assert!(
        said.as_str().is_some_and(|said| said.contains("403")),
        "{said}"
    );
    assert_eq!(scene.pins(), 0);

    let mut nameless = scene.request("a");
    nameless.volume_context.remove(DATA_DRIVER_DATASET);
    let (code, message) = publish(&socket, &nameless).await;
    assert_eq!(
        (code.as_str(), message.as_str()),
        ("3", "the volume says no dataset")
    );
    let mut foreign = scene.request("b");
    foreign
        .volume_context
        .insert(POD_NAMESPACE.to_owned(), "elsewhere".to_owned());
    let (_, message) = publish(&socket, &foreign).await;
    assert_eq!(
        message,
        "dataset words: there is none in namespace elsewhere"
    );

    // Others write on the dataset at the same time, and nothing of theirs is lost.
    scene.world.refuses.store(false, Ordering::Relaxed);
    scene.world.conflicts.store(2, Ordering::Relaxed);
    let (code, message) = publish(&socket, &scene.request("a")).await;
    if may_mount(scene.dir.path()) {
        assert_eq!(code, "0", "{message}");
    }
    let told = json!({"size": "13", "files": 1, "message": null, "warmNodes": ["another", "box"]});
    scene.says(&told).await;
    // It was there within the second, so its pod was told nothing more; the job goes by the pod's own status then.
    assert_ne!(scene.told().as_deref(), Some(STAGED_REASON));
    unpublish(&scene, &socket, "a").await;
    assert_eq!(scene.pins(), 0);
}

/// What a kubelet sends when a driver registers: the path of the socket as the name of the server.
#[tokio::test]
async fn a_kubelet_that_names_the_sockets_path_is_answered() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("reg.sock");
    let door = Door::open(&path).expect("a socket");
    let router = introduction(Path::new("/there/csi.sock"));
    tokio::spawn(async move { axum::serve(door, router).await });
    let mut headers = vec![0x83, 0x86];
    let mut field = |first: u8, value: &str| {
        headers.extend([first, value.len() as u8]);
        headers.extend(value.as_bytes());
    };
    field(0x44, "/pluginregistration.Registration/GetInfo");
    field(0x41, "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Freg.sock");
    field(0x5f, "application/grpc");
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend(payload);
        frame
    };
    let mut stream = UnixStream::connect(&path).await.expect("a connection");
    let said = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers),
        frame(0, 1, 1, &[0; 5]),
    ]
    .concat();
    stream.write_all(&said).await.expect("sent");
    let mut heard: Vec<u8> = Vec::new();
    let answer = b"/there/csi.sock";
    while !heard.windows(answer.len()).any(|part| part == answer) {
        let mut some = [0; 1024];
        let read = stream.read(&mut some).await.expect("an answer");
        assert!(read > 0, "it hung up: {heard:?}");
        heard.extend(&some[..read]);
    }
}
