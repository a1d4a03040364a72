//! Datasets in an object store: copied once, shared, kept while they are used, told while they come. The store is a real S3 server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Engine, eventually, said};
use crate::wire::Wire;

const SECRET: &str = "a-key-that-must-not-be-told";

/// An S3 server with one bucket, whose objects are files of a directory.
struct Server {
    child: Child,
    objects: PathBuf,
    endpoint: String,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// None where it cannot be had; the test is skipped then.
    fn start() -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/s3/build.sh");
        let built = Command::new(script)
            .stderr(Stdio::inherit())
            .output()
            .expect("tests/s3/build.sh");
        if built.status.code() == Some(3) {
            assert!(
                std::env::var_os("STOKE_S3_REQUIRED").is_none(),
                "no S3 server, and STOKE_S3_REQUIRED is set"
            );
            eprintln!("skipped: no S3 server to test with");
            return None;
        }
        let program = String::from_utf8_lossy(&built.stdout).trim().to_owned();
        let folder = tempfile::tempdir().expect("a folder");
        let objects = folder.path().join("bucket");
        std::fs::create_dir(&objects).expect("a bucket");
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("an address").to_string();
        drop(socket);
        let child = Command::new(program)
            .args(["--port", &address, "--quiet", "--keep-alive", "posix"])
            .arg(folder.path())
            .env("ROOT_ACCESS_KEY", "AKIDFORTESTS")
            .env("ROOT_SECRET_KEY", SECRET)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("versitygw");
        eventually("the S3 server", || {
            std::net::TcpStream::connect(&address).ok()
        });
        Some(Self {
            child,
            objects,
            endpoint: format!("http://{address}"),
            _folder: folder,
        })
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let path = self.objects.join(key);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, bytes).expect("an object");
    }
}

fn keys(engine: &Engine, name: &str, secret: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "stringData": {"AWS_ACCESS_KEY_ID": "AKIDFORTESTS", "AWS_SECRET_ACCESS_KEY": secret}});
    let file = engine.write(&format!("{name}.json"), &object.to_string());
    let made = engine.kubectl(&["apply", "-f", &file]).output();
    let made = made.expect("kubectl");
    assert!(made.status.success(), "{}", said(&made));
}

fn dataset(engine: &Engine, name: &str) -> Value {
    let text = engine.stoke(&["data", "get", name, "-o", "json"]);
    let list: Value = serde_json::from_str(&text).expect("JSON");
    list["items"][0].clone()
}

#[test]
fn jobs_read_a_bucket_that_was_copied_once_and_stays_while_they_run() {
    let Some(server) = Server::start() else {
        return;
    };
    if !crate::support::is_root() {
        eprintln!("skipped: volumes at paths of their own need root here");
        return;
    }
    let engine = Engine::start();
    keys(&engine, "keys", SECRET);
    server.put("words/a/1.txt", b"one");
    server.put("words/2.txt", &vec![b'x'; 20 << 20]);
    engine.stoke(&[
        "data",
        "add",
        "words",
        "s3://bucket/words",
        "--secret",
        "keys",
        "--endpoint",
        &server.endpoint,
    ]);
    let spec = |script: &str| json!({"command": ["sh", "-c", script], "datasets": [{"name": "words", "path": "/data"}], "retries": 0});
    let script = "test \"$(cat /data/a/1.txt)\" = one && test \"$(wc -c < /data/2.txt)\" = 20971520 && ! touch /data/new";
    let job = engine.run("first", &spec(script));
    assert_eq!(job["status"]["phase"], "Complete", "{:#}", job["status"]);
    let told = dataset(&engine, "words");
    assert_eq!(told["status"]["files"], 2, "{told:#}");
    assert_eq!(
        told["status"]["warmNodes"].as_array().map(Vec::len),
        Some(1)
    );

    // The copy is enough while nothing changes: a damaged file is seen and fetched again.
    let copy = only(&engine.data_dir().join("data"), |path| {
        path.join("data/a/1.txt").is_file()
    });
    std::fs::write(copy.join("data/a/1.txt"), b"damaged").expect("damaged");
    let again = engine.run("again", &spec(script));
    assert_eq!(
        again["status"]["phase"], "Complete",
        "{:#}",
        again["status"]
    );

    // A job that runs keeps it, over the death of its engine.
    let reader =
        "while ! test -e \"$STOP\"; do cat /data/a/1.txt > /dev/null || exit 3; sleep 0.1; done";
    let stop = engine.folder().join("stop");
    let mut long = spec(reader);
    long["env"] = json!([{"name": "STOP", "value": stop.to_str()}]);
    let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "reader"}, "spec": long});
    let file = engine.write("reader.json", &object.to_string());
    engine.stoke(&["run", "--detach", &file]);
    engine.wait_for_phase("reader", "Running");
    engine.kill();
    engine.up();
    let kept = engine.try_stoke(&["data", "evict", "words"]);
    assert!(
        said(&kept).contains("in use and not removed: words"),
        "{}",
        said(&kept)
    );
    std::fs::write(&stop, b"").expect("stopped");
    engine.wait_for_phase("reader", "Complete");
    eventually("the copy to be free", || {
        engine
            .try_stoke(&["data", "evict", "words"])
            .status
            .success()
            .then_some(())
    });
    assert!(!copy.exists());
    assert_eq!(
        dataset(&engine, "words")["status"]["warmNodes"],
        Value::Null
    );
    engine.stoke(&["data", "warm", "words"]);
    engine.stoke(&["data", "get", "words", "--verify"]);
    assert!(copy.exists());
}

#[test]
fn ten_jobs_that_want_the_same_data_at_once_download_it_once() {
    let Some(server) = Server::start() else {
        return;
    };
    if !crate::support::is_root() {
        eprintln!("skipped: volumes at paths of their own need root here");
        return;
    }
    let engine = Engine::start();
    keys(&engine, "keys", SECRET);
    let (files, size) = (3, 10 << 20);
    for file in 0..files {
        server.put(&format!("words/{file}"), &vec![b'x'; size]);
    }
    let wire = Wire::to(&server.endpoint);
    // Nothing is there before all of them want it.
    wire.limit(1 << 20);
    engine.stoke(&[
        "data",
        "add",
        "words",
        "s3://bucket/words",
        "--secret",
        "keys",
        "--endpoint",
        &wire.endpoint(),
    ]);
    let names: Vec<String> = (0..10).map(|job| format!("reader-{job}")).collect();
    for name in &names {
        let spec = json!({"command": ["sh", "-c", "test \"$(cat /data/* | wc -c)\" = 31457280"], "cpus": "10m",
            "memory": {"limit": "32Mi"}, "datasets": [{"name": "words", "path": "/data"}], "retries": 0});
        let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": name}, "spec": spec});
        let file = engine.write(&format!("{name}.json"), &object.to_string());
        engine.stoke(&["run", "--detach", &file]);
    }
    for name in &names {
        eventually(&format!("{name} to wait for its data"), || {
            let message = engine.job(name)["status"]["message"].clone();
            message
                .as_str()
                .is_some_and(|message| message.contains("words"))
                .then_some(())
        });
    }
    let bytes = (files * size) as u64;
    assert!(wire.down() < bytes, "all ten wait while it comes");
    wire.limit(0);
    for name in &names {
        engine.wait_for_phase(name, "Complete");
    }
    let down = wire.down();
    assert!(
        down >= bytes && down < bytes + bytes / 10,
        "{down} of {bytes}"
    );
}

#[test]
fn what_is_wrong_with_a_dataset_is_told_on_the_job_and_nowhere_with_a_key() {
    let Some(server) = Server::start() else {
        return;
    };
    if !crate::support::is_root() {
        eprintln!("skipped: volumes at paths of their own need root here");
        return;
    }
    let engine = Engine::start();
    server.put("words/1", b"one");
    keys(&engine, "keys", "another-key-that-is-wrong");
    engine.stoke(&[
        "data",
        "add",
        "words",
        "s3://bucket/words",
        "--secret",
        "keys",
        "--endpoint",
        &server.endpoint,
    ]);
    let warmed = engine.try_stoke(&["data", "warm", "words"]);
    let refused = "the server answers 403";
    assert!(
        !warmed.status.success() && said(&warmed).contains(refused),
        "{}",
        said(&warmed)
    );
    let spec =
        json!({"command": ["cat", "/data/1"], "datasets": [{"name": "words", "path": "/data"}]});
    let object = json!({"apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "reader"}, "spec": spec});
    let file = engine.write("reader.json", &object.to_string());
    engine.stoke(&["run", "--detach", &file]);
    eventually("the job to say what is wrong", || {
        let message = engine.job("reader")["status"]["message"].clone();
        message
            .as_str()
            .is_some_and(|message| message.contains(refused))
            .then_some(())
    });
    assert!(
        dataset(&engine, "words")["status"]["message"]
            .as_str()
            .is_some_and(|message| message.contains(refused))
    );
    keys(&engine, "keys", SECRET);
    engine.wait_for_phase("reader", "Complete");
    assert_eq!(dataset(&engine, "words")["status"]["message"], Value::Null);

    let events = engine
        .kubectl(&["get", "events,pods,datasets,trainjobs", "-o", "yaml"])
        .output();
    let log = std::fs::read_to_string(engine.data_dir().join("engine.log")).expect("a log");
    let told = format!("{}{log}", said(&events.expect("kubectl")));
    for key in [SECRET, "another-key-that-is-wrong", "AKIDFORTESTS"] {
        assert!(!told.contains(key), "{key} is told");
    }
}

fn only(dir: &Path, is_it: impl Fn(&Path) -> bool) -> PathBuf {
    let found = std::fs::read_dir(dir).expect("a directory");
    let mut found = found
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| is_it(path));
    let one = found.next().expect("one");
    assert!(found.next().is_none(), "more than one");
    one
}
