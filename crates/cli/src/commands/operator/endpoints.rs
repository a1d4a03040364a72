//! What an operator answers to those who look after it: the kubelet and Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use stoke_control::Vitals;
use tokio::net::TcpListener;

/// As the text format's own description calls it.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
struct Shown {
    vitals: Arc<Vitals>,
    /// Alive is who has done something within this time.
    still_max: Duration,
}

/// Serves until it is dropped.
pub async fn serve(listener: TcpListener, vitals: Arc<Vitals>, still_max: Duration) {
    let router = router(vitals, still_max);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "health and metrics are not served any more");
    }
}

fn router(vitals: Arc<Vitals>, still_max: Duration) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Shown { vitals, still_max })
}

async fn healthz(State(shown): State<Shown>) -> impl IntoResponse {
    word(shown.vitals.live(shown.still_max))
}

async fn readyz(State(shown): State<Shown>) -> impl IntoResponse {
    word(shown.vitals.ready())
}

async fn metrics(State(shown): State<Shown>) -> impl IntoResponse {
    ([(CONTENT_TYPE, METRICS_TYPE)], shown.vitals.figures())
}

fn word(word: Result<String, String>) -> (StatusCode, String) {
    match word {
        Ok(well) => (StatusCode::OK, format!("{well}\n")),
        Err(ill) => (StatusCode::SERVICE_UNAVAILABLE, format!("{ill}\n")),
    }
}
