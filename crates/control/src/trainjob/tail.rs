//! The end of a failed worker's log. It is read once, while the attempt's end is being judged; of what is read, only what says something is
//! kept, and only until the end is on record.
//!
//! Invariant: a log that cannot be read, or not in time, holds nothing up. What it would have said is not known then, and that is all.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::io::AsyncReadExt as _;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use stoke_api::TrainJob;
use stoke_memory::{LogDigest, LogScan};
use tokio::time::Instant;

use crate::hub::Hub;

/// Logs of one attempt that are read: those of the workers that ended first.
pub const WORKERS_MAX: usize = 8;
/// As much of each: what a program says of its end is in its last lines. They are not cut to a length, for that would take away the end.
const LINES_MAX: i64 = 10_000;
const CHUNK: usize = 64 << 10;
/// For all of them.
const PATIENCE: Duration = Duration::from_secs(10);

/// A log that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub rank: u32,
    pub pod: String,
    pub container: String,
}

/// What the logs of an attempt say.
#[derive(Debug, Clone, Default)]
pub struct Tails {
    attempt: u32,
    /// By rank; none where it could not be read.
    read: BTreeMap<u32, Option<LogDigest>>,
}

impl Tails {
    pub fn of(attempt: u32, read: impl IntoIterator<Item = (u32, Option<LogDigest>)>) -> Self {
        Self {
            attempt,
            read: read.into_iter().collect(),
        }
    }

    /// With what was read later of the same attempt. Workers that fail a moment apart are read one after the other.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        if self.attempt != later.attempt {
            return later;
        }
        self.read.extend(later.read);
        self
    }

    /// Was it read, or at least tried?
    pub fn has(&self, attempt: u32, rank: u32) -> bool {
        self.attempt == attempt && self.read.contains_key(&rank)
    }

    pub fn get(&self, attempt: u32, rank: u32) -> Option<&LogDigest> {
        let read = (self.attempt == attempt).then(|| self.read.get(&rank));
        read.flatten()?.as_ref()
    }
}

/// Reads all at once.
pub async fn read(hub: &Hub, job: &TrainJob, attempt: u32, wanted: Vec<Wanted>) -> Tails {
    let deadline = Instant::now() + PATIENCE;
    let logs = wanted
        .into_iter()
        .map(|wanted| try_one(hub, job, wanted, deadline));
    let logs = stream::iter(logs).buffer_unordered(WORKERS_MAX);
    Tails::of(attempt, logs.collect::<Vec<_>>().await)
}

async fn try_one(
    hub: &Hub,
    job: &TrainJob,
    wanted: Wanted,
    deadline: Instant,
) -> (u32, Option<LogDigest>) {
    match one(hub, job, &wanted, deadline).await {
        Ok(digest) => (wanted.rank, Some(digest)),
        Err(why) => {
            let (job, pod) = (job.name(), wanted.pod);
            tracing::warn!(
                job,
                pod,
                why,
                "its log could not be read, and its end is judged without"
            );
            (wanted.rank, None)
        }
    }
}

async fn one(
    hub: &Hub,
    job: &TrainJob,
    wanted: &Wanted,
    deadline: Instant,
) -> Result<LogDigest, String> {
    let api: Api<Pod> = Api::namespaced(hub.client.clone(), job.namespace());
    let parameters = LogParams {
        container: Some(wanted.container.clone()),
        tail_lines: Some(LINES_MAX),
        ..LogParams::default()
    };
    let reading = async {
        let log = api.log_stream(&wanted.pod, &parameters).await;
        let mut log = std::pin::pin!(log.map_err(|error| error.to_string())?);
        let mut scan = LogScan::new();
        let mut buffer = vec![0; CHUNK];
        loop {
            // What came before it broke off is as good as it was.
            match log.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => scan.feed(&buffer[..count]),
            }
        }
        Ok(scan.finish())
    };
    let read = tokio::time::timeout_at(deadline, reading).await;
    read.unwrap_or_else(|_| Err(format!("it took more than {PATIENCE:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_later_is_added_to_what_was_read_of_the_attempt() {
        let first = Tails::of(1, [(0, Some(LogDigest::default()))]);
        let both = first.and(Tails::of(1, [(1, None)]));
        assert!(both.has(1, 0) && both.has(1, 1));
        assert!(both.get(1, 0).is_some() && both.get(1, 1).is_none());
        let next = both.and(Tails::of(2, [(1, None)]));
        assert!(next.has(2, 1) && !next.has(2, 0) && !next.has(1, 0));
    }
}
