//! A plain HTTP client: what a server says, as it says it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long anything may take before the test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a server may be silent before what it has said is taken for all it says.
const SILENCE: Duration = Duration::from_secs(10);

/// How to reach a server.
#[derive(Clone)]
pub struct Endpoint {
    pub name: &'static str,
    pub port: u16,
    pub token: String,
    pub tls: Arc<ClientConfig>,
}

impl Endpoint {
    pub fn new(
        name: &'static str,
        port: u16,
        token: &str,
        authority: CertificateDer<'static>,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            name,
            port,
            token: token.to_owned(),
            tls: Arc::new(tls),
        }
    }

    pub async fn connect(&self) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(name, stream)
            .await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Connection { sender })
    }
}

/// One request at a time; the server may close it after any of them.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    pub async fn is_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<http::Response<Incoming>> {
        self.sender.send_request(request).await
    }
}

/// What the comparison looks at.
#[derive(Debug)]
pub struct Answer {
    pub code: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Of a watch.
    pub events: Option<Vec<Value>>,
}

impl Answer {
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The whole answer as one document, which is what is normalised and compared.
    pub fn document(&self) -> Value {
        let mut document = serde_json::json!({"code": self.code.as_u16()});
        if let Some(media) = self.headers.get(header::CONTENT_TYPE) {
            document["contentType"] = media.to_str().unwrap_or("?").into();
        }
        let warnings: Vec<Value> = self
            .headers
            .get_all(header::WARNING)
            .iter()
            .map(|warning| warning.to_str().unwrap_or("?").into())
            .collect();
        if !warnings.is_empty() {
            document["warnings"] = warnings.into();
        }
        for (header, field) in [
            (header::RETRY_AFTER, "retryAfter"),
            (header::ALLOW, "allow"),
            (header::LOCATION, "location"),
        ] {
            if let Some(value) = self.headers.get(header) {
                document[field] = value.to_str().unwrap_or("?").into();
            }
        }
        match (&self.events, self.json()) {
            (Some(events), _) => document["events"] = events.clone().into(),
            (None, Some(body)) => document["body"] = body,
            (None, None) if self.body.is_empty() => {}
            (None, None) => document["text"] = String::from_utf8_lossy(&self.body).into(),
        }
        document
    }
}

/// Reads a whole body.
pub async fn whole(response: http::Response<Incoming>) -> Result<Answer, hyper::Error> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Answer {
        code: parts.status,
        headers: parts.headers,
        body: body.to_vec(),
        events: None,
    })
}

/// Reads the lines of a watch until there are enough or the server ends it.
pub async fn lines(
    response: http::Response<Incoming>,
    is_enough: impl Fn(&[Value]) -> bool,
) -> Result<Answer, hyper::Error> {
    let (parts, mut body) = response.into_parts();
    let mut rest: Vec<u8> = Vec::new();
    let mut events = Vec::new();
    while !is_enough(&events) {
        let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(_) => {
                events.push("silence".into());
                break;
            }
        };
        if let Ok(data) = frame?.into_data() {
            rest.extend_from_slice(&data);
        }
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n')
            && !is_enough(&events)
        {
            let line: Vec<u8> = rest.drain(..=end).collect();
            events.push(serde_json::from_slice(&line).unwrap_or_else(|error| {
                Value::from(format!("{error}: {}", String::from_utf8_lossy(&line)))
            }));
        }
    }
    Ok(Answer {
        code: parts.status,
        headers: parts.headers,
        body: Vec::new(),
        events: Some(events),
    })
}
