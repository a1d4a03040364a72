//! What is forgotten with time: events, and old entries of the log.

use std::ops::ControlFlow;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use stoke_store::{Error as StoreError, Key, Scan};
use tokio::time::MissedTickBehavior;

use super::Options;
use crate::server::ApiServer;

/// Events removed per write.
const CHUNK: usize = 200;

pub(super) async fn run(server: &ApiServer, options: &Options) {
    let mut ticks = tokio::time::interval(options.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = expire_events(server, options).await {
            tracing::warn!(%error, "old events could not be removed");
        }
        if let Err(error) = server.store().compact(options.retention).await {
            tracing::warn!(%error, "the log could not be compacted");
        }
    }
}

async fn expire_events(server: &ApiServer, options: &Options) -> Result<(), StoreError> {
    let ttl = SignedDuration::try_from(options.event_ttl).unwrap_or(SignedDuration::MAX);
    let Ok(cutoff) = Timestamp::now().checked_sub(ttl) else {
        return Ok(());
    };
    let old = server
        .store()
        .read(move |read| {
            let mut old = Vec::new();
            read.scan(&Scan::all("events"), |item| {
                if last_seen(item.document).is_some_and(|seen| seen < cutoff) {
                    old.push(Key::new("events", item.namespace, item.name));
                }
                ControlFlow::Continue(())
            })?;
            Ok::<_, StoreError>(old)
        })
        .await?;
    for chunk in old.chunks(CHUNK) {
        let chunk = chunk.to_vec();
        server
            .store()
            .write(move |write| {
                for key in &chunk {
                    // It may have been seen again since, or be gone.
                    let stored = write.get(key)?;
                    if stored.is_some_and(|event| {
                        last_seen(&event.document).is_some_and(|seen| seen < cutoff)
                    }) {
                        write.delete(key)?;
                    }
                }
                Ok::<_, StoreError>(())
            })
            .await?;
    }
    Ok(())
}

/// The latest of the times an event bears.
fn last_seen(document: &[u8]) -> Option<Timestamp> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Event {
        metadata: Metadata,
        event_time: Option<String>,
        first_timestamp: Option<String>,
        last_timestamp: Option<String>,
        series: Option<Series>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata {
        creation_timestamp: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Series {
        last_observed_time: Option<String>,
    }
    let event: Event = serde_json::from_slice(document).ok()?;
    [
        event.metadata.creation_timestamp,
        event.event_time,
        event.first_timestamp,
        event.last_timestamp,
        event.series.and_then(|series| series.last_observed_time),
    ]
    .into_iter()
    .flatten()
    .filter_map(|text| text.parse().ok())
    .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_as_old_as_its_latest_time() {
        let seen = |document: &str| last_seen(document.as_bytes()).map(|at| at.to_string());
        assert_eq!(
            seen(
                r#"{"metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"},"lastTimestamp":"2026-01-01T02:00:00Z","eventTime":null}"#
            ),
            Some("2026-01-01T02:00:00Z".into())
        );
        assert_eq!(
            seen(
                r#"{"series":{"lastObservedTime":"2026-01-03T00:00:00.5Z"},"eventTime":"2026-01-01T00:00:00Z"}"#
            ),
            Some("2026-01-03T00:00:00.5Z".into())
        );
        assert_eq!(seen("{}"), None);
        assert_eq!(seen("nonsense"), None);
    }
}
