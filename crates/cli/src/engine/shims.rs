//! The pods of a data directory whose engine is not there: how many live, and how they are stopped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stoke_api::Span;
use stoke_node::shim::protocol::{Request, SHUTDOWN, ShimStatus};
use stoke_node::shim::{self, Connection, Life};
use tokio::task::JoinSet;

use crate::data_dir::DataDir;

/// How long past the grace period the last processes may take to be gone.
const SLACK: Duration = Duration::from_secs(10);

/// Pods that have a living shim.
pub fn alive(data_dir: &DataDir) -> Vec<PathBuf> {
    let Ok(pods) = std::fs::read_dir(data_dir.path().join("pods")) else {
        return Vec::new();
    };
    pods.filter_map(Result::ok)
        .map(|pod| pod.path())
        .filter(|pod| matches!(shim::life(pod), Ok(Life::Running)))
        .collect()
}

/// Stops all pods, all at once, and gives how many could not be.
pub async fn stop(pods: Vec<PathBuf>, grace: Span) -> usize {
    let patience = Duration::from_secs(grace.seconds) + SLACK;
    let mut stopping = JoinSet::new();
    for pod in pods {
        stopping.spawn(async move {
            match tokio::time::timeout(patience, stop_one(&pod, grace)).await {
                Ok(Ok(())) => true,
                // Whatever was said: is it gone?
                Ok(Err(_)) | Err(_) => !matches!(shim::life(&pod), Ok(Life::Running)),
            }
        });
    }
    let mut left = 0;
    while let Some(stopped) = stopping.join_next().await {
        left += usize::from(!stopped.unwrap_or(false));
    }
    left
}

async fn stop_one(pod: &Path, grace: Span) -> Result<(), shim::ConnectionError> {
    let stop = Request::Stop {
        grace_seconds: grace.seconds,
        reason: SHUTDOWN.to_owned(),
    };
    Connection::open(pod).await?.request(&stop).await?;
    let (status, mut watch) = Connection::open(pod).await?.watch().await?;
    let mut is_over = is_over(&status);
    while !is_over {
        is_over = match watch.next().await? {
            Some(status) => self::is_over(&status),
            None => true,
        };
    }
    Ok(())
}

fn is_over(status: &ShimStatus) -> bool {
    status.finished
}
