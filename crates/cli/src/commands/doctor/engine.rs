//! The data directory and the engine on it.

use std::time::Duration;

use stoke_api::Bytes;

use super::Finding;
use crate::data_dir::DataDir;
use crate::engine::shims;
use crate::failure;
use crate::render;
use crate::session::Session;
use crate::world::Place;

/// Checkpoints and logs fill a disk; below this the next one may.
const FREE_MIN: u64 = 5 << 30;
const PATIENCE: Duration = Duration::from_secs(5);

pub async fn findings(session: &Session, data_dir: &DataDir) -> Vec<Finding> {
    vec![
        disk(data_dir),
        locks(data_dir),
        engine(session, data_dir).await,
    ]
}

fn disk(data_dir: &DataDir) -> Finding {
    const SUBJECT: &str = "data directory";
    let path = data_dir.path();
    // Where it does not exist yet, its nearest parent says on which disk it will be.
    let Some(nearest) = path.ancestors().find(|parent| parent.exists()) else {
        return Finding::missing(
            SUBJECT,
            format!("{} cannot be made", path.display()),
            "choose another: --data-dir DIR",
        );
    };
    if rustix::fs::access(nearest, rustix::fs::Access::WRITE_OK).is_err() {
        return Finding::missing(
            SUBJECT,
            format!("{} cannot be written", nearest.display()),
            "choose another: --data-dir DIR",
        );
    }
    let Ok(stat) = rustix::fs::statvfs(nearest) else {
        return Finding::warn(
            SUBJECT,
            format!("{} does not tell its free space", path.display()),
            "look with df",
        );
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let found = format!("{}, {} free", path.display(), Bytes(free).human());
    if free < FREE_MIN {
        Finding::warn(
            SUBJECT,
            found,
            "checkpoints and logs need room: free some, or choose another disk with --data-dir DIR",
        )
    } else {
        Finding::ok(SUBJECT, found)
    }
}

/// Some network file systems only pretend to lock; two engines on one store would destroy it.
fn locks(data_dir: &DataDir) -> Finding {
    const SUBJECT: &str = "file locks";
    match data_dir.try_lock() {
        None => Finding::ok(SUBJECT, "will be tried when the data directory is made"),
        Some(Ok(())) => Finding::ok(SUBJECT, "work in the data directory"),
        Some(Err(error)) => Finding::missing(
            SUBJECT,
            format!("do not work in the data directory: {error}"),
            "choose a local disk: --data-dir DIR",
        ),
    }
}

async fn engine(session: &Session, data_dir: &DataDir) -> Finding {
    const SUBJECT: &str = "engine";
    let pid = match data_dir.holder() {
        Ok(pid) => pid,
        Err(error) => {
            return Finding::warn(
                SUBJECT,
                format!("cannot be seen: {error}"),
                "use it as the user who started it",
            );
        }
    };
    let Some(pid) = pid else {
        let orphans = shims::alive(data_dir).len();
        return if orphans == 0 {
            Finding::ok(SUBJECT, "not running (start it: stoke up --detach)")
        } else {
            let pods = render::count(orphans as u32, "pod runs", "pods run");
            Finding::warn(
                SUBJECT,
                format!("not running, but {pods} on without it"),
                "pick them up: stoke up --detach; or stop them: stoke down",
            )
        };
    };
    let version = async {
        let client = session.client().await?;
        anyhow::Ok(client.apiserver_version().await?)
    };
    let url = data_dir
        .record()
        .map(|record| record.url)
        .unwrap_or_default();
    match tokio::time::timeout(PATIENCE, version).await {
        Ok(Ok(version)) => Finding::ok(
            SUBJECT,
            format!("pid {pid} at {url}, Kubernetes {}", version.git_version),
        ),
        Ok(Err(error)) => Finding::warn(
            SUBJECT,
            format!(
                "pid {pid} does not answer: {}",
                failure::sentence(&error, &Place::Engine)
            ),
            restart(data_dir),
        ),
        Err(_) => Finding::warn(
            SUBJECT,
            format!("pid {pid} does not answer in time"),
            restart(data_dir),
        ),
    }
}

fn restart(data_dir: &DataDir) -> String {
    let log = data_dir.log();
    format!(
        "look into {}; restart it under its jobs: stoke down --keep-jobs && stoke up --detach",
        log.display()
    )
}
