//! Keeps a mirror filled: one list, then a watch, for as long as the controllers run. Lost connections and lost history (410) are made
//! good by a new list; an object that cannot be read is told of and passed over.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{Config, Event, watcher};
use tokio::sync::watch;

use crate::hub::Hub;
use crate::world::Kind;

/// Never returns. Says through `ready` when all mirrors have been filled.
pub async fn keep<K: Kind>(hub: Arc<Hub>, ready: watch::Sender<bool>) {
    let kind = K::kind(&());
    let backoff = ResetTimerBackoff::new(Doubling::default(), Duration::from_secs(60));
    let api: Api<DeserializeGuard<K>> = Api::all(hub.client.clone());
    let mut events = watcher(api, Config::default()).backoff(backoff).boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if let Some(event) = readable(event, &kind)
                    && hub.watched(event)
                {
                    ready.send_replace(true);
                }
            }
            Err(error) => {
                tracing::warn!(%kind, error = &error as &dyn std::error::Error, "watch interrupted; trying again");
            }
        }
    }
}

fn readable<K: Kind>(event: Event<DeserializeGuard<K>>, kind: &str) -> Option<Event<K>> {
    let read = |guard: DeserializeGuard<K>| match guard.0 {
        Ok(mut object) => {
            // Half of an object's size, and nobody here reads it.
            object.meta_mut().managed_fields = None;
            Some(object)
        }
        Err(invalid) => {
            let name = invalid.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(%kind, name, error = %invalid.error, "an object cannot be read and is passed over");
            None
        }
    };
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(guard) => Event::InitApply(read(guard)?),
        Event::Apply(guard) => Event::Apply(read(guard)?),
        Event::Delete(guard) => Event::Delete(read(guard)?),
    })
}

/// Quick at first: on one machine the API server is in the same process, and comes back at once or not at all.
#[derive(Debug, Default)]
struct Doubling {
    errors: u32,
}

impl Doubling {
    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(30);
}

impl Iterator for Doubling {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let factor = 1_u32.checked_shl(self.errors).unwrap_or(u32::MAX);
        self.errors = self.errors.saturating_add(1);
        Some(Self::FIRST.saturating_mul(factor).min(Self::MAX))
    }
}

impl Backoff for Doubling {
    fn reset(&mut self) {
        self.errors = 0;
    }
}
