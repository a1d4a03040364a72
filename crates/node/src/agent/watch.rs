//! Follows the pods of this node. Every error is waited out: the server may be away, the token may be renewed.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Shared;
use super::roster::Report;

/// Never returns.
pub(super) async fn keep(
    client: Client,
    node: &str,
    shared: &Shared,
    reports: mpsc::Sender<Report>,
) {
    let pods: Api<Pod> = Api::all(client);
    let config = watcher::Config::default()
        .fields(&format!("spec.nodeName={node}"))
        // What the server has in memory is new enough, and a thousand agents that start together cost it little.
        .any_semantic();
    let mut events = watcher(pods, config).boxed();
    let mut errors = Errors::of(node);
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                if errors.is_first() {
                    let causes = crate::causes::chain(&error);
                    tracing::warn!(error = causes, "cannot follow the node's pods; trying on");
                }
                tokio::time::sleep(errors.wait()).await;
                continue;
            }
        };
        // That it begins says nothing yet.
        if !matches!(event, Event::Init) && !errors.is_first() {
            tracing::info!("following the node's pods again");
            errors.reset();
        }
        let report = match event {
            Event::Init => {
                listed.clear();
                None
            }
            Event::InitApply(pod) => {
                listed.extend(pod.metadata.uid.clone());
                shared.roster().observe(&pod)
            }
            Event::InitDone => {
                shared.roster().keep_only(&listed);
                None
            }
            Event::Apply(pod) => shared.roster().observe(&pod),
            Event::Delete(pod) => {
                shared.roster().forget(&pod);
                None
            }
        };
        if let Some(report) = report
            && let Err(error) = reports.try_send(report)
        {
            shared.own().digests_failed += 1;
            tracing::warn!(%error, "a digest is dropped");
        }
    }
}

/// How long to wait after an error: twice as long after each, until something comes, and on each node a little differently, for what
/// is wrong is wrong for all of them at once. (kube's own way to wait begins anew with every list that is tried, and so asks a server
/// that refuses it several times a second.)
#[derive(Debug)]
struct Errors<'a> {
    node: &'a str,
    in_a_row: u32,
    last: Option<Instant>,
}

impl<'a> Errors<'a> {
    const FIRST: Duration = Duration::from_millis(500);
    /// A thousand agents that are refused ask a server twenty times a second then.
    const MAX: Duration = Duration::from_secs(60);
    /// A watch on which nothing happens says nothing when it goes well again.
    const FORGET_AFTER: Duration = Duration::from_secs(180);

    fn of(node: &'a str) -> Self {
        Self {
            node,
            in_a_row: 0,
            last: None,
        }
    }

    fn is_first(&self) -> bool {
        self.in_a_row == 0
    }

    fn wait(&mut self) -> Duration {
        let now = Instant::now();
        if self
            .last
            .is_some_and(|last| now > last + Self::FORGET_AFTER)
        {
            self.reset();
        }
        let factor = 1_u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX);
        let wait = Self::FIRST.saturating_mul(factor).min(Self::MAX);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.last = Some(now);
        wait.mul_f64(1.0 - 0.5 * self.share())
    }

    fn reset(&mut self) {
        self.in_a_row = 0;
    }

    /// From 0 to 1, by node and by error.
    fn share(&self) -> f64 {
        let mut hasher = DefaultHasher::new();
        (self.node, self.in_a_row).hash(&mut hasher);
        f64::from(hasher.finish() as u32) / f64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::http::StatusCode;
    use axum::response::IntoResponse as _;

    use super::super::metrics::Own;
    use super::super::roster::{Roster, Scope};
    use super::*;

    #[test]
    fn waits_double_and_differ_between_nodes() {
        let mut errors = Errors::of("gpu-7");
        let waits: Vec<Duration> = (0..12).map(|_| errors.wait()).collect();
        for (n, wait) in waits.iter().enumerate() {
            let most = Errors::FIRST.saturating_mul(1 << n).min(Errors::MAX);
            assert!(*wait <= most && *wait >= most / 2, "{n}: {wait:?}");
        }
        errors.reset();
        assert_eq!(errors.wait(), waits[0]);
        assert_ne!(Errors::of("gpu-8").wait(), waits[0]);
    }

    /// Ten minutes of a server that answers every list so, and how often it was asked.
    async fn asked(code: StatusCode, body: &'static str) -> u32 {
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let server = Router::new().fallback(move || {
            count.fetch_add(1, Ordering::Relaxed);
            async move { (code, body).into_response() }
        });
        let shared = Shared {
            roster: Mutex::new(Roster::new(Scope::Jobs)),
            own: Mutex::new(Own::default()),
            last_pass: Mutex::new(std::time::Instant::now()),
        };
        let (reports, _waiting) = mpsc::channel(1);
        let client = Client::new(server, "default");
        let kept = keep(client, "gpu-7", &shared, reports);
        let _ = tokio::time::timeout(Duration::from_secs(600), kept).await;
        asked.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_is_not_asked_again_at_once() {
        let forbidden = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}"#;
        for (code, body) in [
            (StatusCode::FORBIDDEN, forbidden),
            (StatusCode::SERVICE_UNAVAILABLE, "down"),
            // Neither a list nor an error.
            (StatusCode::OK, "{}"),
        ] {
            let asked = asked(code, body).await;
            assert!((10..40).contains(&asked), "{code}: asked {asked} times");
        }
    }
}
