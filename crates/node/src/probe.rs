//! Startup, liveness and readiness probes of one run of a container.
//!
//! The task knows nothing of pods' statuses or restarts: it says what it found, and whoever started it decides. It ends
//! with the run of the container it was started for.

mod check;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::sync::mpsc;

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// The startup probe has succeeded.
    Started,
    Ready(bool),
    /// One failed check, for the record.
    Failed {
        kind: Kind,
        message: String,
    },
    /// The container must be restarted. `grace_seconds` is the probe's own, if it has one.
    Dead {
        kind: Kind,
        grace_seconds: Option<u64>,
    },
}

/// A finding and the run of the container it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) container: String,
    pub(crate) restart_count: u32,
    pub(crate) finding: Finding,
}

/// One run of a container to be probed.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) pod_dir: PathBuf,
    /// The pod's address, which probes without a host of their own go to.
    pub(crate) address: String,
    pub(crate) container: Container,
    pub(crate) restart_count: u32,
    pub(crate) started_at: Timestamp,
}

/// Whether a container has any probe that says when it is ready or alive.
pub(crate) fn has_probes(container: &Container) -> bool {
    container.startup_probe.is_some()
        || container.liveness_probe.is_some()
        || container.readiness_probe.is_some()
}

/// Probes until nobody listens any more.
pub(crate) async fn run(target: Target, reports: mpsc::Sender<Report>) {
    let container = target.container.clone();
    if let Some(startup) = &container.startup_probe
        && !watch(&target, Kind::Startup, startup, &reports).await
    {
        return;
    }
    let liveness = async {
        if let Some(probe) = &container.liveness_probe {
            watch(&target, Kind::Liveness, probe, &reports).await;
        }
    };
    let readiness = async {
        if let Some(probe) = &container.readiness_probe {
            watch(&target, Kind::Readiness, probe, &reports).await;
        }
    };
    tokio::join!(liveness, readiness);
}

/// Checks again and again. Returns true once a startup probe has succeeded, false when there is nothing more to say.
async fn watch(target: &Target, kind: Kind, probe: &Probe, reports: &mpsc::Sender<Report>) -> bool {
    let seconds = |value: Option<i32>, default: u64| {
        value
            .and_then(|value| u64::try_from(value).ok())
            .unwrap_or(default)
    };
    let period = Duration::from_secs(seconds(probe.period_seconds, 10).max(1));
    let timeout = Duration::from_secs(seconds(probe.timeout_seconds, 1).max(1));
    let mut thresholds = Thresholds::new(
        seconds(probe.success_threshold, 1),
        seconds(probe.failure_threshold, 3),
    );
    let report = async |finding: Finding| {
        let report = Report {
            container: target.container.name.clone(),
            restart_count: target.restart_count,
            finding,
        };
        reports.send(report).await.is_ok()
    };
    tokio::time::sleep(until_due(
        target.started_at,
        seconds(probe.initial_delay_seconds, 0),
        Timestamp::now(),
    ))
    .await;
    loop {
        let outcome = check::check(target, probe, timeout).await;
        if let Err(message) = &outcome
            && !report(Finding::Failed {
                kind,
                message: message.clone(),
            })
            .await
        {
            return false;
        }
        let go_on = match (kind, thresholds.observe(outcome.is_ok())) {
            (_, None) | (Kind::Liveness, Some(true)) => true,
            (Kind::Startup, Some(true)) => return report(Finding::Started).await,
            (Kind::Readiness, Some(ready)) => report(Finding::Ready(ready)).await,
            (Kind::Startup | Kind::Liveness, Some(false)) => {
                let grace_seconds = probe
                    .termination_grace_period_seconds
                    .and_then(|grace| u64::try_from(grace).ok());
                report(Finding::Dead {
                    kind,
                    grace_seconds,
                })
                .await;
                return false;
            }
        };
        if !go_on {
            return false;
        }
        tokio::time::sleep(period).await;
    }
}

/// How long the first check has to wait: the delay counts from the container's start, also for an engine that came later.
fn until_due(started_at: Timestamp, delay_seconds: u64, now: Timestamp) -> Duration {
    let age = now.duration_since(started_at);
    let delay = Duration::from_secs(delay_seconds);
    delay.saturating_sub(Duration::try_from(age).unwrap_or(Duration::ZERO))
}

/// Counts outcomes in a row.
#[derive(Debug)]
struct Thresholds {
    success: u64,
    failure: u64,
    last: Option<bool>,
    in_a_row: u64,
}

impl Thresholds {
    fn new(success: u64, failure: u64) -> Self {
        Self {
            success: success.max(1),
            failure: failure.max(1),
            last: None,
            in_a_row: 0,
        }
    }

    /// The verdict, if enough outcomes in a row now agree. It is given once for each row.
    fn observe(&mut self, success: bool) -> Option<bool> {
        if self.last == Some(success) {
            self.in_a_row += 1;
        } else {
            self.last = Some(success);
            self.in_a_row = 1;
        }
        let needed = if success { self.success } else { self.failure };
        (self.in_a_row == needed).then_some(success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_verdict_needs_enough_in_a_row() {
        let run = |success, failure, outcomes: &[bool]| {
            let mut thresholds = Thresholds::new(success, failure);
            outcomes
                .iter()
                .map(|outcome| thresholds.observe(*outcome))
                .collect::<Vec<_>>()
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(
            run(
                1,
                3,
                &[true, true, false, false, true, false, false, false, false]
            ),
            [yes, None, None, None, yes, None, None, no, None]
        );
        assert_eq!(run(2, 1, &[true, false, true, true]), [None, no, None, yes]);
        assert_eq!(run(0, 0, &[false, true]), [no, yes], "zero counts as one");
    }

    #[test]
    fn the_delay_counts_from_the_containers_start() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        assert_eq!(until_due(at(100), 10, at(104)), Duration::from_secs(6));
        assert_eq!(until_due(at(100), 10, at(200)), Duration::ZERO);
        assert_eq!(
            until_due(at(100), 10, at(90)),
            Duration::from_secs(10),
            "a clock that went back"
        );
    }

    /// Starts a server that answers each connection with `answer`, and gives its port.
    async fn server(answer: &'static str) -> u16 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    fn target(container: serde_json::Value) -> Target {
        Target {
            pod_dir: PathBuf::from("/nowhere"),
            address: "127.0.0.1".to_owned(),
            container: serde_json::from_value(container).expect("a container"),
            restart_count: 2,
            started_at: Timestamp::now(),
        }
    }

    #[tokio::test]
    async fn startup_comes_before_readiness() {
        let port = server("HTTP/1.1 204 No Content\r\n\r\n").await;
        let container = json!({
            "name": "c",
            "ports": [{"name": "web", "containerPort": port}],
            "startupProbe": {"tcpSocket": {"port": "web"}},
            "readinessProbe": {"httpGet": {"port": port, "path": "/ready"}},
        });
        let (reports, mut found) = mpsc::channel(8);
        let task = tokio::spawn(run(target(container), reports));
        let first = found.recv().await.expect("a report");
        assert_eq!(
            first,
            Report {
                container: "c".to_owned(),
                restart_count: 2,
                finding: Finding::Started
            }
        );
        assert_eq!(
            found.recv().await.expect("a report").finding,
            Finding::Ready(true)
        );
        task.abort();
    }

    #[tokio::test]
    async fn a_failing_liveness_probe_condemns() {
        let port = server("HTTP/1.1 500 Internal Server Error\r\n\r\n").await;
        let container = json!({"name": "c", "livenessProbe": {
            "httpGet": {"port": port}, "failureThreshold": 1, "terminationGracePeriodSeconds": 5,
        }});
        let (reports, mut found) = mpsc::channel(8);
        run(target(container), reports).await;
        let message = "HTTP probe failed with statuscode: 500".to_owned();
        assert_eq!(
            found.recv().await.expect("a report").finding,
            Finding::Failed {
                kind: Kind::Liveness,
                message
            }
        );
        let dead = Finding::Dead {
            kind: Kind::Liveness,
            grace_seconds: Some(5),
        };
        assert_eq!(found.recv().await.expect("a report").finding, dead);
        assert!(found.recv().await.is_none(), "and ends");
    }
}
