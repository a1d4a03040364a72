//! gRPC as far as a kubelet needs it: one message there, one back, and a status, over HTTP/2.

use std::fmt::Write;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use http_body_util::{BodyExt, Full};
use prost::Message;

/// A Secret may be a mebibyte, and everything else is short.
const MESSAGE_MAX: usize = 2 << 20;
/// A flag and a length come before each message.
const HEAD: usize = 5;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument = 3,
    /// Not yet; the same again is in order.
    Aborted = 10,
    Unimplemented = 12,
    Internal = 13,
    /// It did not work, and may the next time.
    Unavailable = 14,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message }
    }
}

impl IntoResponse for Status {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, GRPC);
        headers.insert("grpc-status", HeaderValue::from(self.code as u16));
        if let Ok(message) = HeaderValue::from_str(&escaped(&self.message)) {
            headers.insert("grpc-message", message);
        }
        response
    }
}

/// Headers are ASCII.
fn escaped(message: &str) -> String {
    let mut text = String::new();
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "%{byte:02X}");
            }
        }
    }
    text
}

/// Reads the one message of a call, has it served, and answers with one message or a status.
pub(crate) async fn call<Q, A, F>(request: Request, serve: impl FnOnce(Q) -> F) -> Response
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<A, Status>>,
{
    let served = match read(request).await {
        Ok(message) => serve(message).await,
        Err(status) => Err(status),
    };
    match served {
        Ok(answer) => told(&answer),
        Err(status) => status.into_response(),
    }
}

async fn read<Q: Message + Default>(request: Request) -> Result<Q, Status> {
    let broken = |why: String| Status::new(Code::Internal, format!("not a gRPC call: {why}"));
    let body = to_bytes(request.into_body(), MESSAGE_MAX).await;
    let body = body.map_err(|error| broken(error.to_string()))?;
    let (head, message) = body
        .split_at_checked(HEAD)
        .ok_or_else(|| broken("it is too short".to_owned()))?;
    if head[0] != 0 {
        let why = "messages are not compressed here";
        return Err(Status::new(Code::Unimplemented, why));
    }
    let said = head[1..]
        .iter()
        .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
    if said != message.len() {
        return Err(broken(
            "it is not one message of the length it says".to_owned(),
        ));
    }
    Q::decode(message).map_err(|error| broken(error.to_string()))
}

fn told(answer: &impl Message) -> Response {
    let mut body = BytesMut::with_capacity(HEAD + answer.encoded_len());
    body.put_u8(0);
    body.put_u32(answer.encoded_len() as u32);
    // A buffer that grows takes whatever it is given.
    let _ = answer.encode(&mut body);
    let trailers = async {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Some(Ok(trailers))
    };
    let mut response = Response::new(Body::new(Full::new(body.freeze()).with_trailers(trailers)));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_a_status_is_ascii() {
        assert_eq!(escaped("copying: 3% of ü\n"), "copying: 3%25 of %C3%BC%0A");
    }
}
