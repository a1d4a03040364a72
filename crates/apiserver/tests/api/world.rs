//! A server on a store of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::{Stream, StreamExt};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use stoke_apiserver::{ApiServer, NoLogs, Options, housekeeping};
use stoke_store::Store;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct World {
    pub server: ApiServer,
    _directory: tempfile::TempDir,
    shutdown: CancellationToken,
}

/// An answer, with its body as JSON if it is that.
#[derive(Debug)]
pub struct Answer {
    pub code: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
    pub text: String,
}

impl Answer {
    /// `code reason: message`, and a line for each cause: what a person would see.
    pub fn shown(&self) -> String {
        let mut shown = format!(
            "{} {}: {}",
            self.code.as_u16(),
            self.body["reason"].as_str().unwrap_or("-"),
            self.body["message"].as_str().unwrap_or("-"),
        );
        for cause in self.body["details"]["causes"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let text = |field: &str| cause[field].as_str().unwrap_or("-");
            shown.extend(["\n  ", text("field"), " ", text("reason")]);
        }
        shown
    }

    #[track_caller]
    pub fn ok(self) -> Value {
        assert!(self.code.is_success(), "{}", self.shown());
        self.body
    }

    #[track_caller]
    pub fn refused(self, code: u16, reason: &str) -> Value {
        assert_eq!(
            (self.code.as_u16(), self.body["reason"].as_str()),
            (code, Some(reason)),
            "{}",
            self.shown()
        );
        self.body
    }
}

impl World {
    pub async fn new() -> Self {
        Self::with_store_options(&stoke_store::Options::default()).await
    }

    pub async fn with_store_options(options: &stoke_store::Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store.db"), options).unwrap();
        let server = ApiServer::new(store, Arc::new(NoLogs), Options::default())
            .await
            .map_err(|status| status.message().to_owned())
            .unwrap();
        Self {
            server,
            _directory: directory,
            shutdown: CancellationToken::new(),
        }
    }

    /// With garbage collection and the rest of housekeeping.
    pub async fn kept() -> Self {
        let world = Self::new().await;
        tokio::spawn(housekeeping::run(
            world.server.clone(),
            housekeeping::Options::default(),
            world.shutdown.clone(),
        ));
        world
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.server.router().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            code: parts.status,
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(request("POST", path, "application/json", &body))
            .await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(request("PUT", path, "application/json", &body))
            .await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Request::delete(path).body(Body::empty()).unwrap())
            .await
    }

    pub async fn delete_with(&self, path: &str, options: Value) -> Answer {
        self.send(request("DELETE", path, "application/json", &options))
            .await
    }

    /// `kind` is `json`, `merge` or `strategic-merge`.
    pub async fn patch(&self, path: &str, kind: &str, body: Value) -> Answer {
        let media = format!("application/{kind}-patch+json");
        self.send(request("PATCH", path, &media, &body)).await
    }

    /// The events of a watch, as they come.
    pub async fn watch(&self, path: &str) -> impl Stream<Item = Value> + Unpin + use<> {
        self.watch_as(path, "application/json").await
    }

    pub async fn watch_as(
        &self,
        path: &str,
        accept: &str,
    ) -> impl Stream<Item = Value> + Unpin + use<> {
        let request = Request::get(path)
            .header(header::ACCEPT, accept)
            .body(Body::empty())
            .unwrap();
        let response = self.server.router().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut rest = Vec::new();
        let lines = response
            .into_body()
            .into_data_stream()
            .map(move |chunk| {
                rest.extend_from_slice(&chunk.unwrap());
                let end = rest
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(0, |at| at + 1);
                let whole: Vec<u8> = rest.drain(..end).collect();
                let events: Vec<Value> = serde_json::Deserializer::from_slice(&whole)
                    .into_iter()
                    .map(Result::unwrap)
                    .collect();
                futures::stream::iter(events)
            })
            .flatten();
        Box::pin(lines)
    }

    pub async fn create_pod(&self, name: &str) -> Value {
        self.post(PODS, pod(name)).await.ok()
    }

    pub async fn create_config(&self, name: &str) -> Value {
        self.post(CONFIGS, config(name)).await.ok()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const CONFIGS: &str = "/api/v1/namespaces/default/configmaps";

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "host"}]},
    })
}

pub fn config(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

pub fn request(method: &str, path: &str, media: &str, body: &Value) -> Request<Body> {
    raw_request(method, path, media, body.to_string())
}

pub fn raw_request(method: &str, path: &str, media: &str, body: impl Into<Body>) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, media)
        .body(body.into())
        .unwrap()
}

/// The next event, as `TYPE name`.
pub async fn next_event(events: &mut (impl Stream<Item = Value> + Unpin)) -> String {
    let event = next(events).await;
    let name = event["object"]["metadata"]["name"].as_str();
    format!(
        "{} {}",
        event["type"].as_str().unwrap(),
        name.or(event["object"]["message"].as_str()).unwrap_or("-")
    )
}

pub async fn next(events: &mut (impl Stream<Item = Value> + Unpin)) -> Value {
    tokio::time::timeout(PATIENCE, events.next())
        .await
        .expect("an event in time")
        .expect("a watch that goes on")
}
