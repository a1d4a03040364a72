//! The server on a socket: TLS, and a bearer token without which nothing is answered.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Request, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::server::ApiServer;
use crate::status::Status;

/// The secret that opens the server. It is never printed.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// The token kept in `path`; drawn and written there if there is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) if !text.trim().is_empty() => Ok(Self(text.trim().into())),
            Ok(_) => Self::make(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(path),
            Err(error) => Err(error),
        }
    }

    fn make(path: &Path) -> io::Result<Self> {
        let token = Self::random();
        crate::private_file::write(path, token.0.as_bytes())?;
        Ok(token)
    }

    /// 244 random bits.
    pub fn random() -> Self {
        let (a, b) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        Self(format!("{}{}", a.simple(), b.simple()).into())
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Takes the same time wherever the first difference is.
    fn is(&self, other: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other.as_bytes());
        if ours.len() != theirs.len() {
            return false;
        }
        let pairs = ours.iter().zip(theirs);
        let difference = pairs.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
        difference == 0
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let text = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        text.and_then(|text| text.split_once(' '))
            .is_some_and(|(scheme, secret)| {
                scheme.eq_ignore_ascii_case("bearer") && self.is(secret.trim())
            })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Connections at a time; further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests in progress may take to end after `shutdown`.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait when the machine is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`; then ends watches, lets requests in progress finish, and returns.
pub async fn serve(
    server: ApiServer,
    listener: TcpListener,
    tls: ServerConfig,
    token: Token,
    shutdown: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let router = server.router();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        let Some((stream, place)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let connection = Connection {
            router: router.clone(),
            token: token.clone(),
            shutdown: shutdown.clone(),
        };
        let acceptor = acceptor.clone();
        connections.spawn(async move {
            connection.run(acceptor, stream).await;
            drop(place);
        });
    }
    drop(listener);
    server.end_streams();
    let all_done = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GOODBYE_TIMEOUT, all_done)
        .await
        .is_err()
    {
        tracing::warn!("some connections were cut");
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            None
        }
    }
}

struct Connection {
    router: Router,
    token: Token,
    shutdown: CancellationToken,
}

impl Connection {
    async fn run(self, acceptor: TlsAcceptor, stream: TcpStream) {
        // Events are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
        let Ok(Ok(stream)) = handshake.await else {
            return;
        };
        let router = self.router;
        let token = self.token;
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            answer(router.clone(), token.clone(), request)
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder.http2().timer(TokioTimer::new());
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let done = tokio::select! {
            done = connection.as_mut() => done,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.as_mut().await
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

async fn answer(
    router: Router,
    token: Token,
    request: Request<Incoming>,
) -> Result<Response, std::convert::Infallible> {
    if !token.admits(request.headers()) {
        return Ok(Status::unauthorized().into_response());
    }
    router.oneshot(request.map(Body::new)).await
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_token_opens() {
        let token = Token("0123".into());
        let admits = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(text));
            token.admits(&headers)
        };
        assert!(admits("Bearer 0123"));
        assert!(admits("bearer  0123 "));
        for wrong in [
            "Bearer 0124",
            "Bearer 012",
            "Bearer 01234",
            "Basic 0123",
            "0123",
            "Bearer",
            "Bearer ",
        ] {
            assert!(!admits(wrong), "{wrong}");
        }
        assert!(!token.admits(&HeaderMap::new()));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
