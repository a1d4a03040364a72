//! How long we wait for a server, and how often we ask again.

use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::buffer::BufferLayer;
use tower::layer::layer_fn;
use tower::retry::RetryLayer;
use tower::{BoxError, Service};

/// On one machine an answer takes a millisecond; a connection that takes this long will not come.
const NEAR_CONNECT: Duration = Duration::from_secs(5);
const FAR_CONNECT: Duration = Duration::from_secs(10);
/// A server that took a request and says nothing for this long is not going to.
const ANSWER: Duration = Duration::from_secs(30);
/// A busy server is asked again this often; a person waits for it.
const RETRIES_MAX: u32 = 3;
/// Requests under way at once, of one command.
const WAITING_MAX: usize = 256;

/// A client for the engine of this machine: one that is busy is told at once, and followers retry by themselves.
pub fn near(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(NEAR_CONNECT);
    config.default_retry = false;
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&layer_fn(|inner| AnswerWithin::new(inner, ANSWER)))
        .build())
}

/// A client for a cluster, which may be busy or behind a slow line.
pub fn far(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(FAR_CONNECT);
    // kube's own retries go on for minutes, which suits a controller.
    config.default_retry = false;
    let (first, longest) = (Duration::from_millis(200), Duration::from_secs(2));
    let retries = RetryPolicy::new(first, longest, RETRIES_MAX, true).unwrap_or_default();
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&BufferLayer::new(WAITING_MAX))
        .with_layer(&RetryLayer::new(retries))
        .with_layer(&layer_fn(|inner| AnswerWithin::new(inner, ANSWER)))
        .build())
}

/// The server did not answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs())]
pub struct NoAnswer(Duration);

/// Gives up on a server that is silent. What it then sends may take as long as it likes: a watch lasts for minutes. A log is
/// exempt altogether, since a kubelet answers only once there is a first line.
struct AnswerWithin<S> {
    inner: S,
    limit: Duration,
}

impl<S> AnswerWithin<S> {
    fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit }
    }
}

impl<S, B> Service<Request<Body>> for AnswerWithin<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let may_be_silent = request.uri().path().ends_with("/log");
        let answer = self.inner.call(request);
        let limit = self.limit;
        Box::pin(async move {
            if may_be_silent {
                return answer.await.map_err(Into::into);
            }
            match tokio::time::timeout(limit, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(NoAnswer(limit).into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    async fn ask(path: &str) -> Result<(), String> {
        let slow = tower::service_fn(|_: Request<Body>| async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok::<_, Infallible>(Response::new(()))
        });
        let mut service = AnswerWithin::new(slow, Duration::from_millis(20));
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = service.call(request).await;
        answer.map(drop).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up_but_a_silent_log_is_not() {
        let told = ask("/api/v1/namespaces/a/pods").await;
        assert_eq!(told, Err("no answer within 0 s".to_owned()));
        let log = ask("/api/v1/namespaces/a/pods/b/log?follow=true").await;
        assert_eq!(log, Ok(()));
    }
}
