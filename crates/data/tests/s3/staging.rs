//! Objects into a cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stoke_data::{Cache, Credentials, DataError, Pin, Progress, Remote, Staged};

use crate::support::{BUCKET, SECRET, Server, Wire, keys, noise};

const MIB: usize = 1 << 20;

async fn stage(cache: &Cache, remote: &Remote) -> Result<Staged, DataError> {
    cache
        .stage(remote, "d", Pin::Held, false, &Arc::default())
        .await
}

fn cache(dir: &Path) -> Cache {
    Cache::open(&dir.join("cache"), None)
        .expect("a cache")
        .with_patience(Duration::from_secs(20))
}

fn is(path: &Path, bytes: &[u8]) {
    // Not assert_eq: nobody wants to read megabytes.
    assert!(
        fs::read(path).expect("a file") == bytes,
        "{} has other bytes",
        path.display()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_small_files_arrive_whole_and_are_found_the_next_time() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let large = noise(1, 20 * MIB + 3);
    server.put("d/large.bin", large.clone()).await;
    server.put("d/a/b/small", b"small".to_vec()).await;
    server.put("d/empty", Vec::new()).await;
    server.put("d/ü n%20/x=1", b"odd".to_vec()).await;
    server.put("other", b"not ours".to_vec()).await;
    let (cache, progress) = (cache(tmp.path()), Arc::new(Progress::default()));
    let staged = cache
        .stage(&server.remote("d"), "d", Pin::Held, false, &progress)
        .await
        .expect("staged");
    is(&staged.path.join("large.bin"), &large);
    is(&staged.path.join("a/b/small"), b"small");
    is(&staged.path.join("empty"), b"");
    is(&staged.path.join("ü n%20/x=1"), b"odd");
    assert!(!staged.path.join("other").exists());
    assert_eq!((staged.files, staged.bytes), (4, large.len() as u64 + 8));
    assert_eq!(progress.done_bytes(), staged.bytes);

    let again = Arc::new(Progress::default());
    let found = cache
        .stage(&server.remote("d/"), "d", Pin::Held, false, &again)
        .await
        .expect("found");
    assert_eq!((&found.path, again.fetched_bytes()), (&staged.path, 0));

    let one = stage(&cache, &server.remote("d/large.bin"))
        .await
        .expect("one object");
    assert_eq!(one.files, 1);
    is(&one.path.join("large.bin"), &large);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_upstream_is_told_without_a_key() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    server.put("d/a", b"a".to_vec()).await;
    let cache = cache(tmp.path()).with_patience(Duration::from_millis(300));
    let endpoint = format!("http://127.0.0.1:{}", server.port());
    let uri = format!("s3://{BUCKET}/d");
    let told = |error: DataError| {
        let (text, debug) = (error.to_string(), format!("{error:?}"));
        assert!(
            !debug.contains(SECRET)
                && !debug.contains("another-wrong-key")
                && !debug.contains("AKIDFORTESTS"),
            "{debug}"
        );
        text
    };
    let wrong = Remote::open(&uri, Some(&endpoint), &keys("another-wrong-key")).expect("a remote");
    let refused = stage(&cache, &wrong).await.expect_err("wrong keys");
    assert!(matches!(refused, DataError::Refused { .. }), "{refused:?}");
    insta::assert_snapshot!(told(refused), @"s3://bucket/d: the server answers 403 (SignatureDoesNotMatch); check the keys in its Secret and what they allow");
    let unsigned = Remote::open(&uri, Some(&endpoint), &Credentials::default()).expect("a remote");
    insta::assert_snapshot!(told(stage(&cache, &unsigned).await.expect_err("no keys")), @"s3://bucket/d: the server answers 403 (AccessDenied); check the keys in its Secret and what they allow");
    insta::assert_snapshot!(told(stage(&cache, &server.remote("none")).await.expect_err("nothing")), @"s3://bucket/none: there is nothing there (the server answers 404)");
    let no_bucket =
        Remote::open("s3://no-such-bucket/d", Some(&endpoint), &keys(SECRET)).expect("a remote");
    insta::assert_snapshot!(told(stage(&cache, &no_bucket).await.expect_err("no bucket")), @"s3://no-such-bucket/d: there is nothing there (the server answers 404 (NoSuchBucket))");
    let nobody = Remote::open(&uri, Some("http://127.0.0.1:1"), &keys(SECRET)).expect("a remote");
    let gave_up = stage(&cache, &nobody).await.expect_err("nobody");
    assert!(gave_up.may_pass(), "{gave_up:?}");
    assert!(told(gave_up).contains("Connection refused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_under_a_slow_download_and_comes_back_costs_nothing_but_time() {
    let Some(mut server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let large = noise(2, 30 * MIB);
    server.put("d/large", large.clone()).await;
    server
        .put_all((0..40).map(|i| (format!("d/small/{i}"), noise(i, 10_000))))
        .await;
    let wire = Wire::to(&server, 20 << 20).await;
    let (cache, remote) = (cache(tmp.path()), Server::at(wire.port, "d"));
    let staging = tokio::spawn(async move { stage(&cache, &remote).await });
    wire.until(&wire.down, 5 << 20).await;
    server.kill();
    assert!(!staging.is_finished());
    server.revive().await;
    let staged = staging.await.expect("no panic").expect("staged");
    is(&staged.path.join("large"), &large);
    for i in 0..40 {
        is(&staged.path.join(format!("small/{i}")), &noise(i, 10_000));
    }
}

/// What the next test starts and kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by another test"]
async fn stages_until_it_is_killed() {
    let port = std::env::var("STOKE_TEST_PORT")
        .expect("a port")
        .parse()
        .expect("a number");
    let dir = std::env::var("STOKE_TEST_DIR").expect("a directory");
    stage(&cache(Path::new(&dir)), &Server::at(port, "d"))
        .await
        .expect("staged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_stager_is_gone_on_from_without_fetching_anything_twice() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let large = noise(3, 48 * MIB);
    server.put("d/large", large.clone()).await;
    server
        .put_all((0..200).map(|i| (format!("d/small/{i}"), noise(i, 40_000))))
        .await;
    let total = large.len() as u64 + 200 * 40_000;
    let wire = Wire::to(&server, 40 << 20).await;
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "staging::stages_until_it_is_killed", "--ignored"])
        .env("STOKE_TEST_PORT", wire.port.to_string())
        .env("STOKE_TEST_DIR", tmp.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    wire.until(&wire.down, total * 3 / 4).await;
    child.kill().expect("killed");
    child.wait().expect("ended");
    let cache = cache(tmp.path());
    let [held] = cache.held().expect("held").try_into().expect("one version");
    assert!(!held.is_whole && !held.in_use, "{held:?}");
    wire.unlimited();
    let before = wire.down.load(Ordering::Relaxed);
    let progress = Arc::new(Progress::default());
    let staged = cache
        .stage(
            &Server::at(wire.port, "d"),
            "d",
            Pin::Held,
            false,
            &progress,
        )
        .await
        .expect("staged");
    is(&staged.path.join("large"), &large);
    for i in 0..200 {
        is(&staged.path.join(format!("small/{i}")), &noise(i, 40_000));
    }
    let (came, kept) = (
        wire.down.load(Ordering::Relaxed) - before,
        total - progress.fetched_bytes(),
    );
    // What was on its way when it was killed is all that is lost: a block for each request at most.
    assert!(kept > 0, "nothing was kept");
    assert!(
        came < progress.fetched_bytes() + 2 * MIB as u64,
        "{came} bytes came for {} that were missing",
        progress.fetched_bytes()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_noticed_and_it_alone_is_fetched_again() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let large = noise(4, 20 * MIB);
    server.put("d/large", large.clone()).await;
    server
        .put_all((0..20).map(|i| (format!("d/{i}"), noise(i, 1000))))
        .await;
    let (cache, remote) = (cache(tmp.path()), server.remote("d"));
    let staged = stage(&cache, &remote).await.expect("staged");
    let mended = async |verify| {
        let progress = Arc::new(Progress::default());
        let staged = cache
            .stage(&remote, "d", Pin::Held, verify, &progress)
            .await
            .expect("staged");
        is(&staged.path.join("large"), &large);
        (0..20).for_each(|i| is(&staged.path.join(i.to_string()), &noise(i, 1000)));
        (staged.mended.files, progress.fetched_bytes())
    };
    assert_eq!(mended(true).await, (0, 0));
    fs::write(staged.path.join("7"), b"short").expect("written");
    assert_eq!(mended(false).await, (1, 1000));
    fs::remove_file(staged.path.join("8")).expect("removed");
    assert_eq!(mended(false).await, (1, 1000));
    // As a bad disk does it: neither size nor time tell.
    let path = staged.path.join("large");
    let modified = fs::metadata(&path)
        .expect("a file")
        .modified()
        .expect("a time");
    let mut bytes = large.clone();
    bytes[9 * MIB] ^= 1;
    fs::write(&path, bytes).expect("written");
    fs::File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_modified(modified))
        .expect("a time");
    assert_eq!(mended(true).await, (1, 8 * MIB as u64));
    assert_eq!(mended(false).await, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_upstream_is_another_version_also_while_it_is_staged() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    server
        .put_all((0..6).map(|i| (format!("d/{i}"), noise(i, 3 * MIB))))
        .await;
    server.put("d/last", noise(99, 20 * MIB)).await;
    let wire = Wire::to(&server, 20 << 20).await;
    let cache = cache(tmp.path());
    let staging = {
        let (cache, remote) = (cache.clone(), Server::at(wire.port, "d"));
        tokio::spawn(async move { stage(&cache, &remote).await })
    };
    wire.until(&wire.down, 4 << 20).await;
    server.put("d/last", noise(100, 20 * MIB)).await;
    server.put("d/0", noise(101, 3 * MIB)).await;
    wire.unlimited();
    let staged = staging.await.expect("no panic").expect("staged");
    let later = stage(&cache, &server.remote("d")).await.expect("staged");
    is(&later.path.join("last"), &noise(100, 20 * MIB));
    // Either it was done before the change, or it began anew; never a mixture.
    let first = if staged.version == later.version {
        (101, 100)
    } else {
        (0, 99)
    };
    is(&staged.path.join("0"), &noise(first.0, 3 * MIB));
    is(&staged.path.join("last"), &noise(first.1, 20 * MIB));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_at_once_download_it_once() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    server.put("d/large", noise(5, 20 * MIB)).await;
    server
        .put_all((0..50).map(|i| (format!("d/{i}"), noise(i, 20_000))))
        .await;
    let total = 20 * MIB as u64 + 50 * 20_000;
    let wire = Wire::to(&server, 0).await;
    let stagers = (0..10).map(|_| {
        let (cache, remote) = (cache(tmp.path()), Server::at(wire.port, "d"));
        tokio::spawn(async move { stage(&cache, &remote).await.expect("staged") })
    });
    let mut paths = Vec::new();
    for stager in stagers.collect::<Vec<_>>() {
        paths.push(stager.await.expect("no panic").path.clone());
    }
    assert!(paths.iter().all(|path| *path == paths[0]));
    is(&paths[0].join("large"), &noise(5, 20 * MIB));
    let came = wire.down.load(Ordering::Relaxed);
    assert!(
        came < total + 2 * MIB as u64,
        "{came} bytes came for {total}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_made_by_what_was_used_longest_ago_and_never_by_what_is_in_use() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    for name in ["a", "b", "c"] {
        server.put(&format!("{name}/x"), noise(6, 4 * MIB)).await;
    }
    let open = || Cache::open(&tmp.path().join("cache"), Some(9 * MIB as u64)).expect("a cache");
    let cache = open();
    let pinned = cache
        .stage(
            &server.remote("a"),
            "a",
            Pin::Kept("pod-1"),
            false,
            &Arc::default(),
        )
        .await
        .expect("a");
    drop(stage(&cache, &server.remote("b")).await.expect("b"));
    let held = stage(&cache, &server.remote("c")).await.expect("c");
    let names = |cache: &Cache| {
        let mut held: Vec<String> = cache
            .held()
            .expect("held")
            .into_iter()
            .map(|held| format!("{}{}", held.uri, if held.in_use { " in use" } else { "" }))
            .collect();
        held.sort();
        held
    };
    assert_eq!(
        names(&cache),
        ["s3://bucket/a in use", "s3://bucket/c in use"]
    );
    let no_room = stage(&cache, &server.remote("b"))
        .await
        .expect_err("no room");
    insta::assert_snapshot!(no_room, @"no room for 4.0 MiB: the cache may hold 9.0 MiB (what was set, or what the disk has to spare), and 8.0 MiB of it are in use; give the cache more (stoke up --data-cache SIZE; on a cluster the chart's data.cache.size), or free some: stoke data evict NAME");
    drop(held);
    // A kept pin is there for whoever comes after a crash.
    let cache = open();
    assert_eq!(names(&cache), ["s3://bucket/a in use", "s3://bucket/c"]);
    assert_eq!(cache.evict("s3://bucket/a").expect("looked"), (0, 1));
    assert_eq!(
        cache.evict("s3://bucket/c/").expect("gone"),
        (4 * MIB as u64, 0)
    );
    assert!(pinned.path.join("x").is_file());
    cache.unpin("pod-1").expect("unpinned");
    assert_eq!(
        cache.evict("s3://bucket/a").expect("gone"),
        (4 * MIB as u64, 0)
    );
    assert_eq!(names(&cache), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_small_files_are_ordinary() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    server
        .put_all((0..10_000).map(|i| (format!("d/{:02}/{i}", i % 100), noise(i, 100))))
        .await;
    let staged = stage(&cache(tmp.path()), &server.remote("d"))
        .await
        .expect("staged");
    assert_eq!(staged.files, 10_000);
    for i in (0..10_000).step_by(97) {
        is(
            &staged.path.join(format!("{:02}/{i}", i % 100)),
            &noise(i, 100),
        );
    }
}
