//! The server on a socket: TLS, and a bearer token without which nothing is answered.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
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
/// How long a peer may hold a connection before it has shown the token.
const TRUST_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/1: how long the head of a request may take, and so how long a connection may idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// HTTP/2: how often a peer is asked whether it is still there, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
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
            end: shutdown.child_token(),
            trust_timeout: TRUST_TIMEOUT,
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
    /// Lets the requests in progress finish, and no more begin.
    end: CancellationToken,
    trust_timeout: Duration,
}

impl Connection {
    async fn run(self, acceptor: TlsAcceptor, stream: TcpStream) {
        // Events are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
        if let Ok(Ok(stream)) = handshake.await {
            self.converse(stream).await;
        }
    }

    async fn converse(self, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let trusted = Arc::new(AtomicBool::new(false));
        let gate = Gate {
            router: self.router,
            token: self.token,
            trusted: Arc::clone(&trusted),
            end: self.end.clone(),
        };
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            gate.clone().answer(request)
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let distrust = async {
            tokio::time::sleep(self.trust_timeout).await;
            if trusted.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::pin!(distrust);
        let mut ending = false;
        let done = loop {
            tokio::select! {
                done = connection.as_mut() => break done,
                () = self.end.cancelled(), if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = distrust.as_mut() => {
                    tracing::debug!("a connection was dropped: it never showed the token");
                    return;
                }
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Between a connection and the API: nothing passes without the token.
#[derive(Clone)]
struct Gate {
    router: Router,
    token: Token,
    /// Whether the peer has shown the token on this connection.
    trusted: Arc<AtomicBool>,
    end: CancellationToken,
}

impl Gate {
    async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response, std::convert::Infallible> {
        if self.token.admits(request.headers()) {
            self.trusted.store(true, Ordering::Relaxed);
            return self.router.oneshot(request.map(Body::new)).await;
        }
        // Who guesses has to shake hands anew for each guess.
        self.end.cancel();
        let mut refusal = Status::unauthorized().into_response();
        if request.version() < Version::HTTP_2 {
            let close = HeaderValue::from_static("close");
            refusal.headers_mut().insert(header::CONNECTION, close);
        }
        Ok(refusal)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use bytes::Bytes;
    use futures::{StreamExt, stream};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::Notify;

    use super::*;

    /// Far longer than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn connect(router: &Router, trust_timeout: Duration) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(4096);
        let connection = Connection {
            router: router.clone(),
            token: Token("0123".into()),
            end: CancellationToken::new(),
            trust_timeout,
        };
        tokio::spawn(connection.converse(theirs));
        ours
    }

    async fn rest(peer: &mut DuplexStream) -> String {
        let mut text = String::new();
        tokio::time::timeout(PATIENCE, peer.read_to_string(&mut text))
            .await
            .expect("the server closes the connection")
            .unwrap();
        text
    }

    async fn until(peer: &mut DuplexStream, wanted: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            let read = tokio::time::timeout(PATIENCE, peer.read_buf(&mut seen));
            assert_ne!(read.await.unwrap().unwrap(), 0, "cut before {wanted}");
        }
    }

    #[tokio::test]
    async fn who_never_shows_the_token_is_dropped_and_a_watch_goes_on() {
        let more = Arc::new(Notify::new());
        let told = Arc::clone(&more);
        let watch = get(async move || {
            let first = stream::once(async { Ok::<_, io::Error>(Bytes::from("first")) });
            let second = stream::once(async move {
                told.notified().await;
                Ok(Bytes::from("second"))
            });
            Body::from_stream(first.chain(second))
        });
        let router = Router::new().route("/watch", watch);
        let trust_timeout = Duration::from_millis(500);
        let mut watcher = connect(&router, trust_timeout);
        let request = "GET /watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer 0123\r\n\r\n";
        watcher.write_all(request.as_bytes()).await.unwrap();
        until(&mut watcher, "first").await;

        let mut silent = connect(&router, trust_timeout);
        let mut slow = connect(&router, trust_timeout);
        slow.write_all(b"GET /watch HTTP/1.1\r\nhost:")
            .await
            .unwrap();
        assert_eq!(rest(&mut silent).await, "");
        assert_eq!(rest(&mut slow).await, "");

        // The watch began before the others, so its time is over too.
        more.notify_one();
        until(&mut watcher, "second").await;
    }

    #[tokio::test]
    async fn a_refusal_closes_the_connection() {
        let mut peer = connect(&Router::new(), PATIENCE * 2);
        let request = "GET / HTTP/1.1\r\nhost: x\r\nauthorization: Bearer no\r\n\r\n";
        peer.write_all(request.as_bytes()).await.unwrap();
        let answer = rest(&mut peer).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }

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
