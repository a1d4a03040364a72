//! The end of a failed worker's log, and where that leaves open who ended it, the Events about it. Both are read once, while the attempt's
//! end is being judged; of what is read, only what says something is kept, and only until the end is on record.
//!
//! Invariant: what cannot be read, or not in time, holds nothing up. What it would have said is not known then, and that is all.

mod events;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures::io::AsyncReadExt as _;
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
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
/// Any will do to know that there are some.
const BYTES_OF_LIFE: i64 = 16;
/// For all of them.
const PATIENCE: Duration = Duration::from_secs(10);

/// Workers of one attempt whose Events are read, and their nodes': those that ended first.
pub const EVENTS_MAX: usize = 2;

/// What is wanted of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Log {
        rank: u32,
        pod: String,
        container: String,
    },
    /// Whether its log has anything of the last so many seconds, by its node's clock.
    Silence {
        rank: u32,
        pod: String,
        container: String,
        seconds: u64,
    },
    Events {
        rank: u32,
        pod_uid: String,
        node: String,
        ended: Timestamp,
    },
}

/// What one of them gave; none where it could not be read.
#[derive(Debug, Clone)]
pub enum Read {
    Log(u32, Option<LogDigest>),
    /// It has nothing; none where that could not be asked.
    Silence(u32, Option<bool>),
    /// Reasons and messages.
    Events(u32, Vec<(String, String)>),
}

/// What the logs of an attempt say, and the Events.
#[derive(Debug, Clone, Default)]
pub struct Tails {
    attempt: u32,
    /// By rank; none where it could not be read.
    logs: BTreeMap<u32, Option<LogDigest>>,
    events: BTreeMap<u32, Vec<(String, String)>>,
    /// By rank: whether it was silent.
    silences: BTreeMap<u32, Option<bool>>,
}

impl Tails {
    pub fn of(attempt: u32, read: impl IntoIterator<Item = Read>) -> Self {
        let mut tails = Self {
            attempt,
            ..Self::default()
        };
        for read in read {
            match read {
                Read::Log(rank, log) => drop(tails.logs.insert(rank, log)),
                Read::Silence(rank, is_silent) => drop(tails.silences.insert(rank, is_silent)),
                Read::Events(rank, events) => drop(tails.events.insert(rank, events)),
            }
        }
        tails
    }

    /// With what was read later of the same attempt. Workers that fail a moment apart are read one after the other.
    #[must_use]
    pub fn and(mut self, later: Self) -> Self {
        if self.attempt != later.attempt {
            return later;
        }
        self.logs.extend(later.logs);
        self.events.extend(later.events);
        self.silences.extend(later.silences);
        self
    }

    /// Was its log read, or at least tried?
    pub fn has(&self, attempt: u32, rank: u32) -> bool {
        self.attempt == attempt && self.logs.contains_key(&rank)
    }

    pub fn get(&self, attempt: u32, rank: u32) -> Option<&LogDigest> {
        let read = (self.attempt == attempt).then(|| self.logs.get(&rank));
        read.flatten()?.as_ref()
    }

    /// Was it asked whether its log is silent?
    pub fn has_silence(&self, attempt: u32, rank: u32) -> bool {
        self.attempt == attempt && self.silences.contains_key(&rank)
    }

    /// Is its log known to be silent? What could not be asked is not.
    pub fn is_silent(&self, attempt: u32, rank: u32) -> bool {
        self.attempt == attempt && self.silences.get(&rank) == Some(&Some(true))
    }

    /// Were its Events read, or at least tried?
    pub fn has_events(&self, attempt: u32, rank: u32) -> bool {
        self.attempt == attempt && self.events.contains_key(&rank)
    }

    pub fn events(&self, attempt: u32, rank: u32) -> &[(String, String)] {
        let read = self.events.get(&rank).filter(|_| self.attempt == attempt);
        read.map_or(&[], Vec::as_slice)
    }
}

/// Reads all at once.
pub async fn read(hub: &Hub, job: &TrainJob, attempt: u32, wanted: Vec<Wanted>) -> Tails {
    let deadline = Instant::now() + PATIENCE;
    let readings = wanted
        .into_iter()
        .map(|wanted| try_one(hub, job, wanted, deadline));
    let readings = stream::iter(readings).buffer_unordered(WORKERS_MAX);
    Tails::of(attempt, readings.collect::<Vec<_>>().await)
}

async fn try_one(hub: &Hub, job: &TrainJob, wanted: Wanted, deadline: Instant) -> Read {
    match wanted {
        Wanted::Log {
            rank,
            pod,
            container,
        } => {
            let read = in_time(deadline, log(hub, job, &pod, container)).await;
            let read = read.inspect_err(|why| {
                let job = job.name();
                tracing::warn!(
                    job,
                    pod,
                    why,
                    "its log could not be read, and its end is judged without"
                );
            });
            Read::Log(rank, read.ok())
        }
        Wanted::Silence {
            rank,
            pod,
            container,
            seconds,
        } => {
            let read = in_time(deadline, is_silent(hub, job, &pod, container, seconds)).await;
            let read = read.inspect_err(|why| {
                let job = job.name();
                tracing::warn!(
                    job,
                    pod,
                    why,
                    "its log could not be read, so it is not known whether it hangs"
                );
            });
            Read::Silence(rank, read.ok())
        }
        Wanted::Events {
            rank,
            pod_uid,
            node,
            ended,
        } => {
            let reading = events::read(&hub.client, job.namespace(), &pod_uid, &node, ended);
            let read = in_time(deadline, reading).await;
            let read = read.inspect_err(|why| {
                let job = job.name();
                tracing::warn!(
                    job,
                    node,
                    why,
                    "Events could not be read, and its end is judged without"
                );
            });
            Read::Events(rank, read.unwrap_or_default())
        }
    }
}

async fn in_time<T>(
    deadline: Instant,
    reading: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let read = tokio::time::timeout_at(deadline, reading).await;
    read.unwrap_or_else(|_| Err(format!("it took more than {PATIENCE:?}")))
}

async fn log(hub: &Hub, job: &TrainJob, pod: &str, container: String) -> Result<LogDigest, String> {
    let api: Api<Pod> = Api::namespaced(hub.client.clone(), job.namespace());
    let parameters = LogParams {
        container: Some(container),
        tail_lines: Some(LINES_MAX),
        ..LogParams::default()
    };
    let log = api.log_stream(pod, &parameters).await;
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
}

async fn is_silent(
    hub: &Hub,
    job: &TrainJob,
    pod: &str,
    container: String,
    seconds: u64,
) -> Result<bool, String> {
    let api: Api<Pod> = Api::namespaced(hub.client.clone(), job.namespace());
    let parameters = LogParams {
        container: Some(container),
        since_seconds: Some(i64::try_from(seconds).unwrap_or(i64::MAX)),
        limit_bytes: Some(BYTES_OF_LIFE),
        ..LogParams::default()
    };
    let log = api.logs(pod, &parameters).await;
    log.map(|log| log.is_empty())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_later_is_added_to_what_was_read_of_the_attempt() {
        let first = Tails::of(1, [Read::Log(0, Some(LogDigest::default()))]);
        let both = first.and(Tails::of(1, [Read::Log(1, None)]));
        assert!(both.has(1, 0) && both.has(1, 1));
        assert!(both.get(1, 0).is_some() && both.get(1, 1).is_none());
        let silent = (both.clone()).and(Tails::of(1, [Read::Silence(0, Some(true))]));
        let silent = silent.and(Tails::of(1, [Read::Silence(1, None)]));
        assert!(silent.has_silence(1, 0) && silent.has_silence(1, 1));
        assert!(silent.is_silent(1, 0), "it was asked, and had nothing");
        assert!(
            !silent.is_silent(1, 1),
            "what could not be asked is not known"
        );
        assert!(!silent.is_silent(2, 0), "of another attempt");
        let event = ("SystemOOM".to_owned(), String::new());
        let told = both.and(Tails::of(1, [Read::Events(0, vec![event])]));
        assert!(told.has(1, 0) && told.has_events(1, 0) && !told.has_events(1, 1));
        assert_eq!((told.events(1, 0).len(), told.events(2, 0).len()), (1, 0));
        let next = told.and(Tails::of(2, [Read::Log(1, None)]));
        assert!(next.has(2, 1) && !next.has(2, 0) && !next.has(1, 0) && !next.has_events(1, 0));
    }
}
