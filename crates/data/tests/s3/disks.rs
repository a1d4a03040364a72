//! Disks that are full, here and at the server. Needs root, for a file system of its own; skipped without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stoke_data::{Cache, DataError, Pin, Shipment, restore, upload};

use crate::support::{Server, Wire, noise};

const MIB: usize = 1 << 20;

/// A small file system, for as long as it is there.
struct Small(PathBuf);

impl Small {
    fn mount(at: &Path, bytes: usize) -> Option<Self> {
        fs::create_dir_all(at).expect("a directory");
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(at)
            .output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("skipped: no file system can be mounted here");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_is_told_and_staging_goes_on_when_there_is_room() {
    let Some(server) = Server::start().await else {
        return;
    };
    let tmp = tempfile::tempdir().expect("a directory");
    let Some(_small) = Small::mount(&tmp.path().join("cache"), 24 * MIB) else {
        return;
    };
    server
        .put_all((0..8).map(|i| (format!("d/{i}"), noise(i, 2 * MIB))))
        .await;
    server.put("large/x", noise(9, 30 * MIB)).await;
    let cache = Cache::open(&tmp.path().join("cache"), None).expect("a cache");
    let stage = async |port, prefix: &str| {
        cache
            .stage(
                &Server::at(port, prefix),
                "d",
                Pin::Held,
                false,
                &Arc::default(),
            )
            .await
    };
    let never = stage(server.port(), "large").await.expect_err("no room");
    assert!(matches!(never, DataError::NoRoom { .. }), "{never}");

    let wire = Wire::to(&server, 8 << 20).await;
    let filler = tmp.path().join("cache/tmp/filler");
    let fill = async {
        wire.until(&wire.down, 3 << 20).await;
        // Until nothing more fits.
        let _ = fs::write(&filler, vec![1; 24 * MIB]);
        wire.unlimited();
    };
    let (staged, ()) = tokio::join!(stage(wire.port, "d"), fill);
    let full = staged.expect_err("a full disk");
    assert!(
        matches!(full, DataError::DiskFull { .. }) && full.may_pass(),
        "{full}"
    );
    fs::remove_file(filler).expect("room");
    let staged = stage(server.port(), "d").await.expect("staged");
    for i in 0..8 {
        assert!(fs::read(staged.path.join(i.to_string())).expect("a file") == noise(i, 2 * MIB));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_bucket_delays_an_upload_and_it_catches_up() {
    let tmp = tempfile::tempdir().expect("a directory");
    let (dir, local) = (
        tmp.path().join("server"),
        tempfile::tempdir().expect("a directory"),
    );
    let Some(_small) = Small::mount(&dir, 24 * MIB) else {
        return;
    };
    let Some(server) = Server::start_in(tmp, dir.clone()).await else {
        return;
    };
    let checkpoint = local.path().join("step-1");
    fs::create_dir(&checkpoint).expect("a directory");
    (0..6).for_each(|i| fs::write(checkpoint.join(i.to_string()), noise(i, MIB)).expect("written"));
    let filler = dir.join("filler");
    let _ = fs::write(&filler, vec![1; 24 * MIB]);
    let send = async |patience| {
        let (dir, to, journal) = (
            checkpoint.clone(),
            server.remote("step-1"),
            local.path().join("journal"),
        );
        upload(
            Shipment {
                dir,
                to,
                journal,
                patience: Duration::from_secs(patience),
            },
            &Arc::default(),
        )
        .await
    };
    let full = send(1).await.expect_err("a full bucket");
    let back = local.path().join("back");
    let early = restore(
        &server.remote("step-1"),
        &back,
        Duration::from_secs(5),
        &Arc::default(),
    )
    .await;
    assert!(
        matches!(early, Err(DataError::Incomplete { .. })),
        "{early:?} after {full}"
    );
    fs::remove_file(filler).expect("room");
    send(20).await.expect("sent");
    restore(
        &server.remote("step-1"),
        &back,
        Duration::from_secs(5),
        &Arc::default(),
    )
    .await
    .expect("restored");
    (0..6).for_each(|i| {
        assert!(fs::read(back.join(i.to_string())).expect("a file") == noise(i, MIB));
    });
}
