//! Keeps a mirror filled: one list, then a watch, for as long as the controllers run. Lost connections are taken up where they were
//! lost, lost history (410) is made good by a new list; an object that cannot be read is told of and passed over.
//!
//! A connection that is dead without having said so is noticed by the operator's read timeout: the API server sends a bookmark a minute.
//! Lists are read from the server's quorum, never from its cache, so that a new leader sees all that the one before it wrote.

mod object;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Api, Client};
use stoke_api::names::GROUP;
use tokio::sync::watch;
use tokio::time::Instant;

use self::object::Object;
use crate::hub::Hub;
use crate::trouble::Trouble;
use crate::world::Kind;

/// Objects that are read at once. What a page takes in memory is many times what is kept of it.
const PAGE: u32 = 100;

/// Never returns. Says through `ready` when all mirrors have been filled.
pub async fn keep<K: Kind>(hub: Arc<Hub>, ready: watch::Sender<bool>) {
    let (kind, plural) = (K::kind(&()), K::plural(&()));
    let api: Api<Object<K>> = Api::all(hub.client.clone());
    let config = Config::default().page_size(PAGE);
    let mut events = watcher(api, config).boxed();
    let mut errors = Errors::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                match event {
                    // That it begins says nothing yet, nor does half a list.
                    Event::Init => hub.vitals.watch_began(&kind),
                    Event::InitApply(_) => {}
                    _ => {
                        hub.vitals.recovered(&plural);
                        errors.reset();
                    }
                }
                if let Some(event) = readable(event, &kind)
                    && hub.watched(event)
                {
                    ready.send_replace(true);
                }
            }
            Err(error) => {
                hub.vitals.watch_broke(&kind);
                if let Some((about, told)) = told::<K>(&hub.client, error).await {
                    hub.vitals.troubled(&about, told);
                }
                tokio::time::sleep(errors.wait()).await;
            }
        }
    }
}

/// What an operator's owner has to know of it, and what it is about; none for what is part of every day.
async fn told<K: Kind>(client: &Client, error: Error) -> Option<(String, String)> {
    let plural = K::plural(&()).into_owned();
    let error = match error {
        // History that is gone, and connections that end: both are taken up at once.
        Error::WatchError(status) if matches!(status.code, 410 | 504) => return None,
        Error::WatchFailed(error) => {
            tracing::debug!(%plural, error = &error as &dyn std::error::Error, "a watch broke off");
            return None;
        }
        Error::WatchError(status) => kube::Error::Api(status),
        // A list that took longer than history is kept is begun anew.
        Error::InitialListFailed(kube::Error::Api(status)) if status.code == 410 => return None,
        Error::InitialListFailed(error) | Error::WatchStartFailed(error) => error,
        Error::NoResourceVersion => {
            let told = format!("{plural}: the API server sends no resourceVersion");
            return Some((plural, told));
        }
    };
    let missing = matches!(&error, kube::Error::Api(status) if status.code == 404);
    if missing && K::group(&()) == GROUP {
        return Some((plural, missing_definition::<K>(client).await));
    }
    let trouble = Trouble::from(error);
    Some((trouble.about(&plural).to_owned(), trouble.told(&plural)))
}

/// The API server does not serve our kind: not installed, or not in the version we speak.
async fn missing_definition<K: Kind>(client: &Client) -> String {
    let (plural, version) = (K::plural(&()), K::version(&()));
    let groups = client.list_api_groups().await.map(|list| list.groups);
    let group = groups
        .unwrap_or_default()
        .into_iter()
        .find(|group| group.name == GROUP);
    let served: Vec<String> = group
        .map(|group| group.versions)
        .unwrap_or_default()
        .into_iter()
        .map(|served| served.version)
        .collect();
    if served.is_empty() || served.iter().any(|served| *served == version) {
        format!(
            "the CRD {plural}.{GROUP} is missing; install it: stoke crds | kubectl apply -f - (it is looked for again by itself)"
        )
    } else {
        format!(
            "the CRD {plural}.{GROUP} serves {}, and this version of stoke speaks {version}; install its own: stoke crds | kubectl apply -f -",
            served.join(", ")
        )
    }
}

fn readable<K: Kind>(event: Event<Object<K>>, kind: &str) -> Option<Event<K>> {
    let read = |object: Object<K>| match object.0 {
        Ok(mut object) => {
            // Half of an object's size, and nobody here reads it.
            object.meta_mut().managed_fields = None;
            Some(object)
        }
        Err(unreadable) => {
            let name = unreadable.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(%kind, name, error = %unreadable.error, "an object cannot be read and is passed over");
            None
        }
    };
    Some(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(read(object)?),
        Event::Apply(object) => Event::Apply(read(object)?),
        Event::Delete(object) => Event::Delete(read(object)?),
    })
}

/// How long to wait after an error: twice as long after each, until something comes. (kube's own way to wait begins anew with every
/// list that is tried, and so asks a server that refuses it twenty times a second.)
#[derive(Debug, Default)]
struct Errors {
    in_a_row: u32,
    last: Option<Instant>,
}

impl Errors {
    /// On one machine the API server is in the same process, and comes back at once or not at all.
    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(30);
    /// A watch on which nothing happens says nothing when it goes well again.
    const FORGET_AFTER: Duration = Duration::from_secs(90);

    fn wait(&mut self) -> Duration {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now > last + Self::FORGET_AFTER)
        {
            self.reset();
        }
        let factor = 1_u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.last = Some(now);
        Self::FIRST.saturating_mul(factor).min(Self::MAX)
    }

    fn reset(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stoke_api::TrainJob;

    use super::*;

    /// What is told where the API server serves these versions of our group.
    async fn told_of(versions: &'static [&'static str]) -> String {
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
            let served = versions.iter().map(
                |version| json!({"groupVersion": format!("{GROUP}/{version}"), "version": version}),
            );
            let served: Vec<_> = served.collect();
            let ours =
                json!({"name": GROUP, "versions": served, "preferredVersion": served.first()});
            let groups = if served.is_empty() {
                vec![]
            } else {
                vec![ours]
            };
            let list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
            let body = kube::client::Body::from(list.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        });
        missing_definition::<TrainJob>(&Client::new(service, "default")).await
    }

    #[tokio::test]
    async fn a_definition_that_is_missing_or_another_is_named() {
        insta::assert_snapshot!(told_of(&[]).await, @"the CRD trainjobs.stokehold.dev is missing; install it: stoke crds | kubectl apply -f - (it is looked for again by itself)");
        insta::assert_snapshot!(told_of(&["v1", "v1beta1"]).await, @"the CRD trainjobs.stokehold.dev serves v1, v1beta1, and this version of stoke speaks v1alpha1; install its own: stoke crds | kubectl apply -f -");
        // Served for others of our kinds, and so only this one is missing.
        assert_eq!(told_of(&["v1alpha1"]).await, told_of(&[]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_in_a_row_wait_longer_and_are_forgotten_in_time() {
        let mut errors = Errors::default();
        let waits: Vec<u128> = (0..12).map(|_| errors.wait().as_millis()).collect();
        assert_eq!(waits[..4], [50, 100, 200, 400]);
        assert_eq!(waits[11], 30_000);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(errors.wait(), Errors::MAX);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(errors.wait(), Errors::FIRST);
        errors.wait();
        errors.reset();
        assert_eq!(errors.wait(), Errors::FIRST);
    }
}
