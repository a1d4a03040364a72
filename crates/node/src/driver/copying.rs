//! A dataset on its way to this node for one volume, which goes on while nobody asks.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use stoke_api::names::{STAGED_REASON, STAGING_FAILED_REASON, STAGING_REASON};
use stoke_data::{DataError, Meter, Progress, Staged};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::Instant;

use super::Shared;
use super::ledger::{Known, Volume};
use super::tell::Change;
use crate::causes::chain;
use crate::staging::Begun;

/// What is there already is found within this time, and that needs no telling.
const TELL_FIRST: Duration = Duration::from_secs(1);
/// How often the pod is told how far it is: each time costs a write, and there may be a thousand pods. So the longer it takes, the less often.
const TELL_EVERY: Duration = Duration::from_secs(10);
const TELL_EVERY_MAX: Duration = Duration::from_secs(60);

/// Where it lies in the end, or why it does not.
type Ended = Result<PathBuf, String>;

pub(super) struct Copying {
    ended: watch::Receiver<Option<Ended>>,
    progress: Arc<Progress>,
    uri: String,
    began: Instant,
    meter: Mutex<Meter>,
    asked: Mutex<Instant>,
    work: AbortHandle,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Copying {
    /// Follows what was begun to its end, and tells of it.
    pub(super) fn follow(
        shared: Arc<Shared>,
        volume: Volume,
        uri: String,
        begun: Begun,
    ) -> Arc<Self> {
        let (tell, ended) = watch::channel(None);
        let Begun { progress, work } = begun;
        let copying = Arc::new(Self {
            ended,
            progress,
            uri,
            began: Instant::now(),
            meter: Mutex::default(),
            asked: Mutex::new(Instant::now()),
            work: work.abort_handle(),
        });
        let own = Arc::clone(&copying);
        tokio::spawn(async move {
            let end = own.attend(&shared, &volume, work).await;
            let _ = tell.send(Some(end));
        });
        copying
    }

    async fn attend(
        &self,
        shared: &Arc<Shared>,
        volume: &Volume,
        mut work: JoinHandle<Result<Staged, DataError>>,
    ) -> Ended {
        let mut next = self.began + TELL_FIRST;
        let mut is_told = false;
        let worked = loop {
            tokio::select! {
                worked = &mut work => break worked,
                () = tokio::time::sleep_until(next) => {
                    let message = format!("copying {}: {}", volume.dataset, self.far(shared));
                    shared.teller.pod(volume, STAGING_REASON, &message).await;
                    is_told = true;
                    let every = self.began.elapsed() / 10;
                    next = Instant::now() + every.clamp(TELL_EVERY, TELL_EVERY_MAX);
                }
            }
        };
        match worked {
            Ok(Ok(staged)) => {
                let path = staged.path.clone();
                let (shared, volume) = (Arc::clone(shared), volume.clone());
                let uri = self.uri.clone();
                // Many nodes may have it at the same moment and wait for each other to say so; their pods need not.
                tokio::spawn(async move {
                    if is_told {
                        shared.teller.pod(&volume, STAGED_REASON, "").await;
                    }
                    arrived(&shared, &volume, uri, &staged).await;
                });
                Ok(path)
            }
            Ok(Err(error)) => {
                let why = chain(&error);
                failed(shared, volume, &why).await;
                Err(why)
            }
            Err(error) => Err(interrupted(&error)),
        }
    }

    /// `3.1 of 12.0 GiB, 240.0 MiB/s, 38 s left`
    pub(super) fn far(&self, shared: &Shared) -> String {
        let shown = shared.stager.shown(&self.uri, &self.progress);
        locked(&self.meter).told(self.began.elapsed(), &shown)
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> Ended {
        *locked(&self.asked) = Instant::now();
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await;
        let end = end.ok().and_then(|end| end.clone());
        end.unwrap_or_else(|| Err("copying was interrupted".to_owned()))
    }

    /// Nobody has asked for it for this long.
    pub(super) fn unasked(&self) -> Duration {
        locked(&self.asked).elapsed()
    }

    /// Gives it up. What was copied is kept, for whoever wants it next; nothing is done any more when this returns.
    pub(super) async fn stop(&self) {
        self.work.abort();
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(Option::is_some).await;
    }
}

async fn arrived(shared: &Shared, volume: &Volume, uri: String, staged: &Staged) {
    if staged.mended.files > 0 {
        let files = staged.mended.files;
        tracing::warn!(
            dataset = volume.dataset,
            files,
            "damaged files were fetched again"
        );
    }
    let mut known = Known {
        namespace: volume.namespace.clone(),
        name: volume.dataset.clone(),
        uri,
        is_told: false,
    };
    // On record first: whoever is killed now says it when it is back.
    shared.know(&known);
    let change = Change::Here {
        bytes: staged.bytes,
        files: staged.files,
    };
    let told = shared.teller.dataset(&known.namespace, &known.name, change);
    if told.await {
        known.is_told = true;
        shared.know(&known);
    }
    // What made room for it is here no more.
    shared.tell_gone().await;
}

/// Why there is no data, where its owner looks for it.
pub(super) async fn failed(shared: &Shared, volume: &Volume, why: &str) {
    let (namespace, name) = (&volume.namespace, &volume.dataset);
    tracing::warn!(
        dataset = name,
        namespace,
        why,
        "a dataset could not be copied"
    );
    let message = format!("dataset {name}: {why}");
    let pod = shared.teller.pod(volume, STAGING_FAILED_REASON, &message);
    pod.await;
    let dataset = shared.teller.dataset(namespace, name, Change::Failed(why));
    dataset.await;
}

fn interrupted(error: &JoinError) -> String {
    format!("copying was interrupted: {error}")
}
