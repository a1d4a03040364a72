//! Answers: from what a verb found to an HTTP response in the shape the client asked for.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::request::Shape;
use crate::resource::Resource;
use crate::status::Status;
use crate::table;

/// One object, as stored bytes or as a value.
pub(crate) enum Document {
    /// As it is in the store.
    Stored(Bytes),
    /// In the shape of the served version.
    Served(Value),
}

impl Document {
    /// The object in the shape of the served version.
    pub(crate) fn into_value(self, resource: &Resource) -> Result<Value, Status> {
        match self {
            Self::Served(value) => Ok(value),
            Self::Stored(bytes) => {
                let mut value = parse(&bytes)?;
                resource.from_stored(&mut value);
                Ok(value)
            }
        }
    }
}

pub(crate) fn parse(document: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(document)
        .map_err(|error| Status::internal(format!("a stored object is not JSON: {error}")))
}

/// A successful answer, before it takes the client's shape.
pub(crate) struct Reply {
    pub(crate) code: StatusCode,
    pub(crate) document: Document,
    pub(crate) warnings: Vec<String>,
}

impl Reply {
    pub(crate) fn ok(document: Document) -> Self {
        Self {
            code: StatusCode::OK,
            document,
            warnings: Vec::new(),
        }
    }

    /// An object of `resource` in the client's shape.
    pub(crate) fn render(self, resource: &Resource, shape: Shape) -> Result<Response, Status> {
        let body = match (shape, self.document) {
            (Shape::Whole, Document::Stored(bytes)) if is_stored_shape(resource) => bytes,
            (Shape::Whole, document) => encode(&document.into_value(resource)?)?,
            (Shape::Metadata, document) => encode(&Partial::of(&document.into_value(resource)?))?,
            (Shape::Table(include), document) => {
                let object = document.into_value(resource)?;
                encode(&table::table(resource, &object, include, Timestamp::now()))?
            }
        };
        let mut response = json_response(self.code, body);
        warn(&mut response, &self.warnings);
        Ok(response)
    }
}

/// Says what the author of a request should hear beside the answer.
pub(crate) fn warn(response: &mut Response, warnings: &[String]) {
    for warning in warnings {
        let text = format!("299 - {}", quoted(warning));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// Whether the stored bytes are the served bytes.
pub(crate) fn is_stored_shape(resource: &Resource) -> bool {
    resource.api_version() == resource.storage_api_version
}

/// An object reduced to its metadata.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Partial<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Option<&'a Value>,
}

impl<'a> Partial<'a> {
    pub(crate) fn of(object: &'a Value) -> Self {
        Self {
            kind: "PartialObjectMetadata",
            api_version: "meta.k8s.io/v1",
            metadata: object.get("metadata"),
        }
    }
}

pub(crate) fn encode(value: &impl Serialize) -> Result<Bytes, Status> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(Status::internal)
}

pub(crate) fn json_response(code: StatusCode, body: impl Into<Body>) -> Response {
    (
        code,
        [
            (header::CONTENT_TYPE, "application/json"),
            (header::CACHE_CONTROL, "no-cache, private"),
        ],
        body.into(),
    )
        .into_response()
}

/// A quoted-string as HTTP headers know it: printable ASCII, with quotes and backslashes escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars().take(1000) {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}
