//! Directories to a bucket and back.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use stoke_data::{
    Credentials, DataError, MANIFEST, Progress, Remote, Shipment, Shipped, abandon_upload,
    complete_uploads, find_damage, remove_upload, restore, upload,
};

use crate::support::{Server, Wire, noise};

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn journal(dir: &Path) -> std::path::PathBuf {
    dir.with_extension("journal")
}

async fn send(dir: &Path, to: Remote) -> Result<Shipped, DataError> {
    let journal = journal(dir);
    upload(
        Shipment {
            dir: dir.to_owned(),
            to,
            journal,
            patience: PATIENCE,
        },
        &Arc::default(),
    )
    .await
}

async fn bring(from: &Remote, dir: &Path) -> Result<(), DataError> {
    restore(from, dir, PATIENCE, &Arc::default()).await
}

fn checkpoint(dir: &Path, seed: u64, large: usize) {
    fs::create_dir_all(dir.join("shards")).expect("a directory");
    fs::write(dir.join("model.pt"), noise(seed, large)).expect("written");
    fs::write(dir.join("empty"), b"").expect("written");
    for i in 0..10 {
        fs::write(dir.join(format!("shards/{i}")), noise(seed + i, 5000)).expect("written");
    }
}

fn same(a: &Path, b: &Path) {
    let diff = Command::new("diff")
        .arg("-rq")
        .args([a, b])
        .output()
        .expect("diff");
    assert!(
        diff.status.success(),
        "{}",
        String::from_utf8_lossy(&diff.stdout)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_comes_back_as_it_went_and_is_not_sent_twice() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("step-1");
    checkpoint(&local, 1, 20 * MIB + 1);
    let to = server.remote("job/step-1");
    let sent = send(&local, to.clone()).await.expect("sent");
    assert_eq!((sent.files, sent.sent_bytes), (12, sent.bytes));
    assert_eq!(send(&local, to.clone()).await.expect("sent").sent_bytes, 0);
    bring(&to, &tmp.path().join("back"))
        .await
        .expect("restored");
    same(&local, &tmp.path().join("back"));
    let exists = bring(&to, &tmp.path().join("back"))
        .await
        .expect_err("it exists");
    assert!(matches!(exists, DataError::Exists { .. }), "{exists}");

    server.put("job/step-2/model.pt", vec![1]).await;
    let all = complete_uploads(&server.remote("job"), PATIENCE)
        .await
        .expect("listed");
    assert_eq!(all, ["step-1"]);
    remove_upload(&to, PATIENCE).await.expect("removed");
    assert!(matches!(
        bring(&to, &tmp.path().join("gone")).await,
        Err(DataError::Incomplete { .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_in_mid_upload_delays_it_and_nothing_half_is_restored() {
    let Some(mut server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("step-1");
    checkpoint(&local, 2, 40 * MIB);
    let wire = Wire::to(&server, 30 << 20).await;
    let to = Server::at(wire.port, "step-1");
    let sending = {
        let (local, to) = (local.clone(), to.clone());
        tokio::spawn(async move { send(&local, to).await })
    };
    wire.until(&wire.up, 12 << 20).await;
    assert!(matches!(
        bring(&server.remote("step-1"), &tmp.path().join("early")).await,
        Err(DataError::Incomplete { .. })
    ));
    server.kill();
    assert!(!sending.is_finished());
    server.revive().await;
    sending.await.expect("no panic").expect("sent");
    bring(&to, &tmp.path().join("back"))
        .await
        .expect("restored");
    same(&local, &tmp.path().join("back"));
}

/// What the next test starts and kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by another test"]
async fn sends_until_it_is_killed() {
    let port = std::env::var("STOKE_TEST_PORT")
        .expect("a port")
        .parse()
        .expect("a number");
    let dir = std::env::var("STOKE_TEST_DIR").expect("a directory");
    let dir = Path::new(&dir);
    let prefix = dir.file_name().expect("a name").to_string_lossy();
    send(dir, Server::at(port, &prefix)).await.expect("sent");
}

fn sender(dir: &Path, port: u16) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "uploads::sends_until_it_is_killed", "--ignored"])
        .env("STOKE_TEST_PORT", port.to_string())
        .env("STOKE_TEST_DIR", dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("a child")
}

const PART: u64 = 8 << 20;

/// How many parts the journal of a directory tells of.
fn parts_on_record(dir: &Path) -> u64 {
    let text = fs::read_to_string(journal(dir)).unwrap_or_default();
    let parts = text.lines().filter(|line| line.contains(r#""part":"#));
    parts.count() as u64
}

/// A file of many parts, of which some have arrived when its sender is killed.
async fn half_sent(dir: &Path, server: &Server) -> u64 {
    fs::create_dir(dir).expect("a directory");
    let size = 96 * MIB + 1;
    fs::write(dir.join("model.pt"), noise(5, size)).expect("written");
    let wire = Wire::to(server, 40 << 20).await;
    let mut child = sender(dir, wire.port);
    while parts_on_record(dir) < 4 {
        assert!(child.try_wait().expect("a child").is_none(), "it goes on");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    size as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_large_file_a_killed_upload_sends_only_the_rest() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("large");
    let size = half_sent(&local, &server).await;
    assert!(matches!(
        bring(&server.remote("large"), &tmp.path().join("early")).await,
        Err(DataError::Incomplete { .. })
    ));
    let rest = size - parts_on_record(&local) * PART;
    let wire = Wire::to(&server, 0).await;
    let to = Server::at(wire.port, "large");
    let sent = send(&local, to.clone()).await.expect("sent");
    assert_eq!(sent.sent_bytes, rest);
    let up = wire.up.load(std::sync::atomic::Ordering::Relaxed);
    assert!(up >= rest && up < rest + MIB as u64, "{up} of {rest}");
    bring(&to, &tmp.path().join("back"))
        .await
        .expect("restored");
    same(&local, &tmp.path().join("back"));
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_the_server_no_longer_has_are_sent_anew() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("large");
    let size = half_sent(&local, &server).await;
    let known = fs::read(journal(&local)).expect("a journal");
    let to = server.remote("large");
    // Nobody wants it any more: the server is told, and then somebody does all the same.
    abandon_upload(&to, &journal(&local), PATIENCE)
        .await
        .expect("abandoned");
    fs::write(journal(&local), known).expect("put back");
    let sent = send(&local, to.clone()).await.expect("sent");
    assert_eq!(sent.bytes, size);
    assert!(sent.sent_bytes >= size, "all of it: {}", sent.sent_bytes);
    bring(&to, &tmp.path().join("back"))
        .await
        .expect("restored");
    same(&local, &tmp.path().join("back"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_is_not_what_was_sent_is_sent_again() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("large");
    let size = half_sent(&local, &server).await;
    // Its time is the same, and its first part is another.
    let path = local.join("model.pt");
    let modified = fs::metadata(&path).expect("a file").modified();
    let mut bytes = noise(5, size as usize);
    bytes[7] ^= 1;
    fs::write(&path, bytes).expect("written");
    let file = fs::File::options().write(true).open(&path);
    let file = file.expect("a file");
    file.set_modified(modified.expect("a time")).expect("set");
    let to = server.remote("large");
    let known = fs::read_to_string(journal(&local)).expect("a journal");
    let had_first = known.contains(r#""part":0,"#);
    let rest = size - parts_on_record(&local) * PART;
    let sent = send(&local, to.clone()).await.expect("sent");
    assert_eq!(sent.sent_bytes, rest + u64::from(had_first) * PART);
    bring(&to, &tmp.path().join("back"))
        .await
        .expect("restored");
    same(&local, &tmp.path().join("back"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_not_what_was_sent_is_found_out() {
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("step-1");
    checkpoint(&local, 6, 20 * MIB);
    let store = tmp.path().join("store");
    let uri = format!("file://{}", store.display());
    let at = Remote::open_for_upload(&uri, None, &Credentials::default()).expect("a directory");
    let receipt = send(&local, at.clone()).await.expect("sent").receipt;
    let damage = async |at: &Remote| find_damage(at, &receipt, PATIENCE).await.expect("looked");
    assert_eq!(damage(&at).await, None);
    let mut bytes = noise(6, 20 * MIB);
    bytes[19 * MIB] ^= 1;
    fs::write(store.join("model.pt"), &bytes).expect("damaged");
    assert_eq!(damage(&at).await.as_deref(), Some("model.pt"));

    let Some(server) = Server::start().await else {
        return;
    };
    let at = server.remote("job/step-1");
    let receipt = send(&local, at.clone()).await.expect("sent").receipt;
    let damage = async || find_damage(&at, &receipt, PATIENCE).await.expect("looked");
    assert_eq!(damage().await, None);
    server.put("job/step-1/shards/3", noise(99, 5000)).await;
    assert_eq!(damage().await.as_deref(), Some("shards/3"));
    server.put("job/step-1/shards/3", noise(9, 5000)).await;
    assert_eq!(damage().await, None, "the same bytes are the same");
    server.put("job/step-1/model.pt", bytes).await;
    assert_eq!(damage().await.as_deref(), Some("model.pt"));
    remove_upload(&at, PATIENCE).await.expect("removed");
    assert_eq!(damage().await.as_deref(), Some(MANIFEST));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_upload_goes_on_with_what_is_missing() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("many");
    fs::create_dir(&local).expect("a directory");
    (0..60).for_each(|i| fs::write(local.join(i.to_string()), noise(i, 400_000)).expect("written"));
    let wire = Wire::to(&server, 20 << 20).await;
    let mut child = sender(&local, wire.port);
    wire.until(&wire.up, 12_000_000).await;
    child.kill().expect("killed");
    child.wait().expect("ended");
    let to = server.remote("many");
    assert!(matches!(
        bring(&to, &tmp.path().join("early")).await,
        Err(DataError::Incomplete { .. })
    ));
    let sent = send(&local, to.clone()).await.expect("sent");
    // Twelve megabytes were through, but for the few files on their way.
    assert!(sent.sent_bytes < sent.bytes * 3 / 4, "{sent:?}");
    bring(&to, &tmp.path().join("back"))
        .await
        .expect("restored");
    same(&local, &tmp.path().join("back"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_what_was_uploaded_is_never_restored() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("step-1");
    checkpoint(&local, 3, 10 * MIB);
    let to = server.remote("step-1");
    send(&local, to.clone()).await.expect("sent");
    let mut bytes = noise(3, 10 * MIB);
    bytes[9 * MIB] ^= 1;
    server.put("step-1/model.pt", bytes).await;
    let back = tmp.path().join("back");
    let error = bring(&to, &back).await.expect_err("corrupt");
    assert!(
        matches!(&error, DataError::Corrupt { what, .. } if what == "model.pt"),
        "{error}"
    );
    assert!(!back.exists());
    server.put("step-1/model.pt", noise(3, 10 * MIB)).await;
    let progress = Arc::new(Progress::default());
    restore(&to, &back, PATIENCE, &progress)
        .await
        .expect("restored");
    assert_eq!(
        progress.fetched_bytes(),
        10 * MIB as u64,
        "only what was wrong is fetched again"
    );
    same(&local, &back);
    // Whoever overwrites an upload takes its manifest away first.
    server
        .put(
            &format!("step-1/{MANIFEST}"),
            br#"{"format":1,"files":[{"path":"../x","size":1,"modifiedMs":0,"sha256":"00"}]}"#
                .to_vec(),
        )
        .await;
    let error = bring(&to, &tmp.path().join("out"))
        .await
        .expect_err("it leads out");
    assert!(matches!(error, DataError::Key { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_a_file_is_told() {
    let tmp = tempfile::tempdir().expect("a directory");
    let local = tmp.path().join("step-1");
    checkpoint(&local, 4, 9 * MIB);
    let open = |path: &Path| {
        Remote::open_for_upload(
            &format!("file://{}", path.display()),
            None,
            &Credentials::default(),
        )
    };
    let file = tmp.path().join("file");
    fs::write(&file, b"x").expect("written");
    for target in [&file, &file.join("below")] {
        let error = open(target).expect_err("a file");
        assert!(matches!(error, DataError::TargetIsFile { .. }), "{error}");
    }
    let to = open(&tmp.path().join("made/step-1")).expect("a directory");
    send(&local, to.clone()).await.expect("sent");
    bring(&to, &tmp.path().join("back"))
        .await
        .expect("restored");
    same(&local, &tmp.path().join("back"));

    let Some(server) = Server::start().await else {
        return;
    };
    server.put("taken", b"x".to_vec()).await;
    let error = send(&local, server.remote("taken"))
        .await
        .expect_err("an object");
    insta::assert_snapshot!(error, @"s3://bucket/taken: cannot upload to it, because it is a file and not a place for files; name another place");
}
