//! Staging beside a plain parallel copy of the same objects from the same S3 server, and beside the `aws` client and `s5cmd` where they are.
//! One JSON line per figure. `STOKE_BENCH_FILES` sets how many small files there are.

#[allow(dead_code, reason = "tests use more of it")]
#[path = "../tests/s3/support.rs"]
mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use serde_json::{Value, json};
use stoke_data::{Cache, Pin};

use support::{ACCESS, BUCKET, SECRET, Server, noise};

const LARGE_BYTES: usize = 512 << 20;
const SMALL_BYTES: usize = 4 << 10;
const REPEATS: usize = 3;

fn figure(name: &str, unit: &str, value: f64, more: Value) {
    let mut line = json!({"figure": name, "unit": unit, "value": (value * 100.0).round() / 100.0});
    if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
        line.extend(more.clone());
    }
    println!("{line}");
}

fn small_files() -> usize {
    let asked = std::env::var("STOKE_BENCH_FILES").ok();
    asked
        .and_then(|asked| asked.parse().ok())
        .unwrap_or(100_000)
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != "stage-alone")
        .skip(1);
    if let (Some(port), Some(prefix), Some(dir)) =
        (arguments.next(), arguments.next(), arguments.next())
    {
        runtime.block_on(alone(
            port.parse().expect("a port"),
            &prefix,
            Path::new(&dir),
        ));
        return;
    }
    runtime.block_on(all());
}

async fn all() {
    let Some(server) = Server::start().await else {
        return;
    };
    let large = noise(1, LARGE_BYTES / 4);
    server
        .put_all((0..4).map(|i| (format!("large/{i}"), large.clone())))
        .await;
    drop(large);
    let files = small_files();
    server
        .put_all((0..files).map(|i| {
            (
                format!("small/{:03}/{i}", i % 1000),
                noise(i as u64, SMALL_BYTES),
            )
        }))
        .await;
    compare(&server, "large", LARGE_BYTES as u64, 4).await;
    if files > 0 {
        compare(&server, "small", (files * SMALL_BYTES) as u64, files).await;
    }
}

/// The best of some runs each, in turn, so that both meet the same machine.
async fn compare(server: &Server, prefix: &str, bytes: u64, files: usize) {
    let (mut ours, mut plain) = (f64::MAX, f64::MAX);
    let mut rss = 0;
    for _ in 0..REPEATS {
        let tmp = tempfile::tempdir().expect("a directory");
        plain = plain.min(copy_plainly(server, prefix, tmp.path()).await);
        let tmp = tempfile::tempdir().expect("a directory");
        let (seconds, peak) = stage_alone(server, prefix, tmp.path());
        ours = ours.min(seconds);
        rss = rss.max(peak);
    }
    let mib = |seconds: f64| bytes as f64 / seconds / f64::from(1 << 20);
    let more = json!({"files": files, "staged_mib_per_s": mib(ours).round(), "plain_mib_per_s": mib(plain).round()});
    figure(
        &format!("staging_{prefix}_of_plain_copy"),
        "ratio",
        plain / ours,
        more,
    );
    figure(
        &format!("staging_{prefix}_peak_rss"),
        "MiB",
        rss as f64 / 1024.0,
        json!({"files": files}),
    );
    for (name, arguments) in [
        ("aws", vec!["s3", "cp", "--recursive", "--only-show-errors"]),
        ("s5cmd", vec!["cp"]),
    ] {
        if let Some(seconds) = copy_with(server, prefix, name, &arguments) {
            figure(
                &format!("staging_{prefix}_of_{name}"),
                "ratio",
                seconds / ours,
                json!({"files": files, "mib_per_s": mib(seconds).round()}),
            );
        }
    }
}

/// What a short program would do: many requests at once, each object into its file, nothing checked and nothing remembered.
async fn copy_plainly(server: &Server, prefix: &str, to: &Path) -> f64 {
    let began = Instant::now();
    let store = server.store();
    let objects: Vec<_> = store
        .list(Some(&object_store::path::Path::from(prefix)))
        .try_collect()
        .await
        .expect("a listing");
    let part = 8 << 20;
    let ranges = objects.into_iter().flat_map(|object| {
        let parts = object.size.div_ceil(part).max(1);
        (0..parts).map(move |i| {
            (
                object.location.clone(),
                object.size,
                i * part..object.size.min((i + 1) * part),
            )
        })
    });
    let copies = futures::stream::iter(ranges).map(|(key, size, range)| {
        let (store, to) = (store.clone(), to.to_owned());
        tokio::spawn(async move {
            use std::os::unix::fs::FileExt;
            let path = to.join(key.as_ref());
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            let is_whole = range.end - range.start == size;
            let bytes = if is_whole {
                store.get(&key).await.expect("an object").bytes().await
            } else {
                store.get_range(&key, range.clone()).await
            };
            let file = std::fs::File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)
                .expect("a file");
            file.write_all_at(&bytes.expect("bytes"), range.start)
                .expect("written");
        })
    });
    copies
        .buffer_unordered(64)
        .for_each(|copied| async { copied.expect("a copy") })
        .await;
    began.elapsed().as_secs_f64()
}

/// In a process of its own, whose memory is its own.
fn stage_alone(server: &Server, prefix: &str, dir: &Path) -> (f64, u64) {
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["stage-alone", &server.port().to_string(), prefix])
        .arg(dir)
        .stderr(Stdio::inherit())
        .output()
        .expect("a child");
    assert!(output.status.success());
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    (
        told["seconds"].as_f64().expect("seconds"),
        told["rss_kib"].as_u64().expect("memory"),
    )
}

async fn alone(port: u16, prefix: &str, dir: &Path) {
    let began = Instant::now();
    let cache = Cache::open(&dir.join("cache"), None).expect("a cache");
    let staged = cache
        .stage(
            &Server::at(port, prefix),
            "bench",
            Pin::Held,
            false,
            &Arc::default(),
        )
        .await
        .expect("staged");
    let seconds = began.elapsed().as_secs_f64();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap_or_default();
    let kib: u64 = peak
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .unwrap_or_default();
    println!(
        "{}",
        json!({"seconds": seconds, "rss_kib": kib, "files": staged.files})
    );
}

fn copy_with(server: &Server, prefix: &str, program: &str, arguments: &[&str]) -> Option<f64> {
    let tmp = tempfile::tempdir().expect("a directory");
    let endpoint = format!("http://127.0.0.1:{}", server.port());
    let from = if program == "s5cmd" {
        format!("s3://{BUCKET}/{prefix}/*")
    } else {
        format!("s3://{BUCKET}/{prefix}/")
    };
    let began = Instant::now();
    let status = Command::new(program)
        .args(["--endpoint-url", &endpoint])
        .args(arguments)
        .arg(from)
        .arg(format!("{}/", tmp.path().display()))
        .env("AWS_ACCESS_KEY_ID", ACCESS)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_REGION", "us-east-1")
        .stdout(Stdio::null())
        .status();
    status
        .is_ok_and(|status| status.success())
        .then(|| began.elapsed().as_secs_f64())
}
