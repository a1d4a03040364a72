//! The controllers. They know the Kubernetes API, through `kube::Client`, and nothing of what is behind it.
//!
//! Each kind has a directory with three verbs: `observe` only reads, `plan` is pure and total, `apply` only writes. What may be decided
//! without the API is decided in `stoke-sched` and `stoke-memory`.
//!
//! Invariant: nothing is kept here that is not on record in the API server, but for caches and waits. Every step may be the last before a
//! crash, and the next start carries on.

mod binder;
mod cluster;
mod config;
mod forecast;
mod gate;
mod guard;
mod hub;
mod lead;
mod lease;
mod mirror;
mod outlived;
mod outlook;
mod queue;
mod queue_status;
mod seen;
mod trainjob;
mod trouble;
mod vitals;
mod watch;
mod world;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Client;
use stoke_api::{Dataset, JobProfile, TrainJob};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use config::{Backoff, Config, Home};
pub use forecast::{Listed, NextRun};
pub use lead::lead;
pub use lease::{LeaseOptions, LeaseOptionsError};
pub use outlook::{Outlook, Start, Supposed, Verdict, Yield};
pub use trainjob::fingerprint::Fingerprint;
pub use vitals::Vitals;

use hub::Hub;
use mirror::Key;
use queue::{Done, Queue};

/// How long turns that are under way may take to end after a shutdown was asked for. They may be cut off: see the invariant above.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("a part of the controllers has ended by itself")]
    Ended(#[source] Option<tokio::task::JoinError>),
}

/// Runs all controllers until `shutdown` is cancelled. Lost connections do not end it.
///
/// For whoever is sure to be alone, as on one machine; where there may be others, see [`lead`].
pub async fn run(
    client: Client,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), ControlError> {
    controllers(client, config, Arc::default(), shutdown).await
}

/// Everything it starts ends with it, also where it is dropped half-way.
async fn controllers(
    client: Client,
    config: Config,
    vitals: Arc<Vitals>,
    shutdown: CancellationToken,
) -> Result<(), ControlError> {
    let hub = Arc::new(Hub::new(client, config, vitals));
    hub.vitals.shows(&hub);
    let (ready_sender, mut ready) = tokio::sync::watch::channel(false);
    let mut parts = JoinSet::new();
    parts.spawn(watch::keep::<TrainJob>(hub.clone(), ready_sender.clone()));
    parts.spawn(watch::keep::<Pod>(hub.clone(), ready_sender.clone()));
    parts.spawn(watch::keep::<Node>(hub.clone(), ready_sender.clone()));
    parts.spawn(watch::keep::<Dataset>(hub.clone(), ready_sender.clone()));
    parts.spawn(watch::keep::<JobProfile>(hub.clone(), ready_sender.clone()));
    parts.spawn(watch::keep::<stoke_api::Queue>(
        hub.clone(),
        ready_sender.clone(),
    ));
    parts.spawn(watch::keep::<PersistentVolumeClaim>(
        hub.clone(),
        ready_sender.clone(),
    ));
    parts.spawn(watch::keep::<PersistentVolume>(hub.clone(), ready_sender));
    let work = async {
        // Half a picture is none: a pod that is not listed yet would be created again.
        tokio::select! {
            _ = ready.wait_for(|ready| *ready) => {}
            () = shutdown.cancelled() => return,
        }
        let reconcile = |hub: Arc<Hub>, key| async move { trainjob::reconcile(&hub, &key).await };
        let tell = |hub: Arc<Hub>, key| async move { queue_status::tell(&hub, &key).await };
        let bind = |hub: Arc<Hub>, key| async move { binder::bind(&hub, &key).await };
        let jobs = work(&hub, &hub.jobs, reconcile, &shutdown);
        let queues = work(&hub, &hub.queues, tell, &shutdown);
        let pods = work(&hub, &hub.unbound, bind, &shutdown);
        tokio::select! {
            () = trainjob::admission::serve_as_room_comes_free(&hub) => {}
            () = outlived::clear_away(&hub) => {}
            _ = futures::future::join3(jobs, queues, pods) => {}
        }
    };
    tokio::select! {
        () = work => Ok(()),
        ended = parts.join_next() => Err(ControlError::Ended(ended.and_then(Result::err))),
    }
}

/// Takes names from a queue and works on several at once, until shutdown.
async fn work<F>(
    hub: &Arc<Hub>,
    queue: &Queue<Key>,
    turn: impl Fn(Arc<Hub>, Key) -> F,
    shutdown: &CancellationToken,
) where
    F: Future<Output = Done> + Send + 'static,
{
    let mut turns = JoinSet::new();
    let mut keys: HashMap<Id, (Key, Instant)> = HashMap::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            key = queue.next(), if turns.len() < hub.config.concurrency.max(1) => {
                let task = turns.spawn(turn(hub.clone(), key.clone()));
                keys.insert(task.id(), (key, Instant::now()));
            }
            Some(ended) = turns.join_next_with_id(), if !turns.is_empty() => {
                let (id, done) = match ended {
                    Ok((id, done)) => (id, Some(done)),
                    // One job that trips us must not stop the others.
                    Err(error) => {
                        tracing::error!(error = &error as &dyn std::error::Error, "a turn broke off");
                        (error.id(), None)
                    }
                };
                if let Some((key, began)) = keys.remove(&id) {
                    hub.vitals.turned(done, began.elapsed());
                    queue.done(&key, done.unwrap_or(Done::Error));
                }
            }
        }
    }
    let ending = async { while turns.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_PATIENCE, ending)
        .await
        .is_err()
    {
        tracing::warn!("turns were cut off by shutdown; the next start carries on");
    }
}
