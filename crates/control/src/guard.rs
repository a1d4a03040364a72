//! The client that the controllers of an operator have. Everything they ask of the API server goes through here, so that it is fenced,
//! bounded, patient and counted in one place.
//!
//! - A write goes only while the lease is ours: see [`crate::lease::Fence`].
//! - No more requests are under way than the API server takes: see [`Gate`]. A 429 is asked again, when the server said, for as long as there
//!   is patience: it was not carried out. Nothing else is asked again here: whoever asked knows better whether it still wants to.
//!   (kube's own retries do the same without counting, and know no fence; the operator's connection leaves them off.)
//! - Every answer but a watch's is waited for only so long, to its last byte.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::header::RETRY_AFTER;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::gate::{Gate, Verdict};
use crate::lease::{Fence, Fenced};
use crate::trouble::CREDENTIALS;
use crate::vitals::Vitals;

/// For one request with all its repetitions. More than any admission webhook may take.
const PATIENCE: Duration = Duration::from_secs(35);
/// Where a 429 does not say when to come back.
const PAUSE: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    #[error("the API server did not answer within {0:?}")]
    Silence(Duration),
    #[error(transparent)]
    Fenced(#[from] Fenced),
}

/// Was the write held back because another may lead?
pub fn is_fenced(error: &kube::Error) -> bool {
    let kube::Error::Service(source) = error else {
        return false;
    };
    matches!(source.downcast_ref(), Some(Unanswered::Fenced(_)))
}

/// The client, guarded.
pub fn guarded(client: &Client, fence: Arc<Fence>, gate: Arc<Gate>, vitals: Arc<Vitals>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let guard = Guard {
        client: client.clone(),
        fence,
        gate,
        vitals,
    };
    Client::new(guard, namespace)
}

#[derive(Clone)]
struct Guard {
    client: Client,
    fence: Arc<Fence>,
    gate: Arc<Gate>,
    vitals: Arc<Vitals>,
}

impl Service<Request<Body>> for Guard {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Whoever has to wait does so in its own request, and holds nobody up.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let guard = self.clone();
        async move { guard.send(request).await }.boxed()
    }
}

impl Guard {
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let call = Call::of(&request);
        if call.verb == "watch" {
            let answer = self.once(&call, request, Instant::now() + PATIENCE).await?;
            self.learn(&answer);
            return Ok(answer);
        }
        let deadline = Instant::now() + PATIENCE;
        let mut request = Some(request);
        while let Some(next) = request.take() {
            let again = copy(&next);
            let answer = self.wait_and_send(&call, next, deadline).await?;
            request = again.filter(|_| answer.status() == StatusCode::TOO_MANY_REQUESTS);
            let paused = self.learn(&answer);
            // The last word of a server that wants longer than we wait.
            if request.is_none() || Instant::now() + paused >= deadline {
                return Ok(answer);
            }
        }
        Err(Unanswered::Silence(PATIENCE).into())
    }

    async fn wait_and_send(
        &self,
        call: &Call,
        request: Request<Body>,
        deadline: Instant,
    ) -> Result<Response<Body>, BoxError> {
        let sent = async {
            let entered = tokio::time::timeout_at(deadline, self.gate.enter()).await;
            let _pass = entered.map_err(|_| Unanswered::Silence(PATIENCE))?;
            if call.is_write() {
                self.fence.check().map_err(Unanswered::from)?;
            }
            let answer = self.once(call, request, deadline).await;
            answer.inspect_err(|_| self.gate.learn(Verdict::Strained))
        };
        if call.is_write() {
            self.fence.within(sent).await.map_err(Unanswered::from)?
        } else {
            sent.await
        }
    }

    async fn once(
        &self,
        call: &Call,
        request: Request<Body>,
        deadline: Instant,
    ) -> Result<Response<Body>, BoxError> {
        let began = Instant::now();
        let streams = call.verb == "watch";
        let answer = async {
            let answer = self.client.send(request).await?;
            // Nobody keeps a whole log, and whoever reads one knows when to stop.
            if streams || call.resource == "pods/log" {
                return Ok(answer);
            }
            let (head, body) = answer.into_parts();
            let body = body.collect_bytes().await?;
            Ok::<_, kube::Error>(Response::from_parts(head, Body::from(body)))
        };
        let answer = match tokio::time::timeout_at(deadline, answer).await {
            Ok(answer) => answer.map_err(BoxError::from),
            Err(_) => Err(Unanswered::Silence(PATIENCE).into()),
        };
        let code = answer.as_ref().ok().map(Response::status);
        self.vitals.asked(call, code, began.elapsed());
        if code.is_some_and(|code| code != StatusCode::UNAUTHORIZED) {
            self.vitals.recovered(CREDENTIALS);
        }
        // A watch that begins tells nothing more until something happens.
        if streams && code.is_some_and(|code| code.is_success()) {
            self.vitals.recovered(&call.resource);
        }
        answer
    }

    /// Tells the gate how the server is, and gives the pause that it asked for.
    fn learn(&self, answer: &Response<Body>) -> Duration {
        let verdict = verdict(answer);
        self.gate.learn(verdict);
        self.vitals.crowd(self.gate.limit());
        match verdict {
            Verdict::Pause(pause) => pause,
            Verdict::Fine | Verdict::Strained => Duration::ZERO,
        }
    }
}

fn verdict(answer: &Response<Body>) -> Verdict {
    match answer.status() {
        StatusCode::TOO_MANY_REQUESTS => {
            let said = answer.headers().get(RETRY_AFTER);
            let seconds = said.and_then(|value| value.to_str().ok()?.trim().parse().ok());
            Verdict::Pause(seconds.map_or(PAUSE, Duration::from_secs))
        }
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Verdict::Strained,
        _ => Verdict::Fine,
    }
}

/// The same once more; none for a body that can be sent only once, as none of ours is.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// What is asked for, in few words: they are labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call {
    pub verb: &'static str,
    /// In the plural, with its subresource.
    pub resource: String,
}

impl Call {
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    fn of<B>(request: &Request<B>) -> Self {
        let mut parts = request
            .uri()
            .path()
            .split('/')
            .filter(|part| !part.is_empty());
        // `/api/v1/...` or `/apis/group/version/...`
        let skipped = match parts.next() {
            Some("api") => parts.next().is_some(),
            Some("apis") => parts.next().is_some() && parts.next().is_some(),
            _ => false,
        };
        let rest: Vec<&str> = if skipped { parts.collect() } else { Vec::new() };
        let (resource, name, subresource) = match rest.as_slice() {
            ["namespaces", _, resource, name, sub] => (*resource, Some(*name), Some(*sub)),
            ["namespaces", _, resource] | [resource] => (*resource, None, None),
            ["namespaces", _, resource, name] | [resource, name, ..] => {
                (*resource, Some(*name), None)
            }
            _ => ("other", None, None),
        };
        let watches = request.uri().query().unwrap_or_default().split('&');
        let watches = watches
            .into_iter()
            .any(|pair| matches!(pair, "watch=true" | "watch=1"));
        let verb = match *request.method() {
            Method::GET | Method::HEAD if watches => "watch",
            Method::GET | Method::HEAD if name.is_none() && resource != "other" => "list",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => "other",
        };
        Self {
            verb,
            resource: subresource.map_or(resource.to_owned(), |sub| format!("{resource}/{sub}")),
        }
    }
}

#[cfg(test)]
mod tests;
