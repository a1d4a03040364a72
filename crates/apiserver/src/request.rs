//! From bytes to a request that means something, or to the refusal Kubernetes would give.
//!
//! Pure: it knows no registry and no store. Whether a resource exists is found out later, by the dispatcher.
//! Invariant: no input makes it panic, recurse without bound, or allocate much more than the input's size.

mod accept;
mod body;
mod path;
mod protobuf;
mod query;

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use serde_json::Value;

use crate::status::Status;

pub use accept::{Accept, Shape};
pub use body::{Body, DEPTH_MAX};
pub use path::{ResourcePath, Target};
pub use query::{
    DeleteOptions, FieldValidation, ListOptions, LogOptions, Preconditions, Propagation,
    RevisionMatch, RevisionOption, Since, WatchOptions, WriteOptions,
};

/// The largest body that is read, as in kube-apiserver.
pub const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;

/// A request, understood as far as it can be without knowing what is served.
#[derive(Clone, Debug)]
pub struct Request {
    pub accept: Accept,
    pub call: Call,
}

#[derive(Clone, Debug)]
pub enum Call {
    /// A document about the server itself.
    Document(Target),
    Resource {
        path: ResourcePath,
        verb: Verb,
    },
}

/// What is to be done with the resource the path names.
#[derive(Clone, Debug)]
pub enum Verb {
    Get(ListOptions),
    /// `pods/log`
    Log(LogOptions),
    List(ListOptions),
    Watch(ListOptions, WatchOptions),
    Create(Body, WriteOptions),
    Update(Body, WriteOptions),
    Patch(Patch, WriteOptions),
    Delete(DeleteOptions),
    DeleteCollection(DeleteOptions, ListOptions),
}

/// A patch whose body is well-formed; whether it fits is known when it meets the object.
#[derive(Clone, Debug)]
pub struct Patch {
    pub kind: PatchKind,
    pub body: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    Json,
    Merge,
    Strategic,
}

/// What a request consists of, borrowed from the HTTP layer.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    pub method: &'a Method,
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub body: &'a Bytes,
}

/// What a path names, so that what is not served can be refused before its body is looked at.
pub fn target(path: &str) -> Result<Target, Status> {
    path::parse(path)
}

/// Decodes a whole request.
pub fn decode(parts: &Parts<'_>) -> Result<Request, Status> {
    let target = path::parse(parts.path)?;
    let query = query::Query::parse(parts.query.unwrap_or_default())?;
    let is_text = match &target {
        Target::Health => true,
        Target::Resource(path) => path.subresource.as_deref() == Some("log"),
        _ => false,
    };
    let accept = Accept::parse(parts.headers, &query, is_text)?;
    let call = match target {
        Target::Resource(path) => {
            let verb = verb(parts, &path, &query)?;
            if !matches!(verb, Verb::Watch(..)) {
                accept.fits(matches!(verb, Verb::List(_) | Verb::DeleteCollection(..)))?;
            }
            Call::Resource { path, verb }
        }
        document => {
            if parts.method != Method::GET {
                return Err(Status::method_not_allowed());
            }
            Call::Document(document)
        }
    };
    Ok(Request { accept, call })
}

fn verb(parts: &Parts<'_>, path: &ResourcePath, query: &query::Query) -> Result<Verb, Status> {
    let named = path.name.is_some();
    match *parts.method {
        Method::GET if path.subresource.as_deref() == Some("log") => {
            let pod = path.name.as_deref().unwrap_or_default();
            Ok(Verb::Log(query.log_options(pod)?))
        }
        // Of one object there is no watch but by its name as a field.
        Method::GET if query.flag("watch") && !named => {
            Ok(Verb::Watch(query.list_options()?, query.watch_options()?))
        }
        Method::GET if named => Ok(Verb::Get(query.list_options()?)),
        Method::GET => Ok(Verb::List(query.list_options()?)),
        Method::POST if !named || path.subresource.is_some() => {
            Ok(Verb::Create(object(parts)?, query.write_options()?))
        }
        Method::PUT if named => Ok(Verb::Update(object(parts)?, query.write_options()?)),
        Method::PATCH if named => Ok(Verb::Patch(patch(parts)?, query.write_options()?)),
        Method::DELETE => {
            let body = if parts.body.is_empty() {
                None
            } else {
                Some(object(parts)?.value)
            };
            let delete = query.delete_options(body.as_ref())?;
            if named {
                Ok(Verb::Delete(delete))
            } else {
                Ok(Verb::DeleteCollection(delete, query.list_options()?))
            }
        }
        _ => Err(Status::method_not_allowed()),
    }
}

const OBJECT_TYPES: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";

fn object(parts: &Parts<'_>) -> Result<Body, Status> {
    check_length(parts.body)?;
    match content_type(parts.headers)?.as_str() {
        "" | "application/json" => body::json(parts.body),
        "application/yaml" => body::yaml(parts.body),
        protobuf::MEDIA_TYPE => protobuf::decode(parts.body),
        _ => Err(Status::unsupported_media_type(OBJECT_TYPES)),
    }
}

const PATCH_TYPES: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";

fn patch(parts: &Parts<'_>) -> Result<Patch, Status> {
    let kind = match content_type(parts.headers)?.as_str() {
        "application/json-patch+json" => PatchKind::Json,
        "application/merge-patch+json" => PatchKind::Merge,
        "application/strategic-merge-patch+json" => PatchKind::Strategic,
        // Server-side apply is refused whole rather than done by half.
        _ => return Err(Status::unsupported_media_type(PATCH_TYPES)),
    };
    check_length(parts.body)?;
    let body = body::json_value(parts.body)?;
    if kind != PatchKind::Json && !body.is_object() {
        return Err(Status::bad_request(
            "error decoding patch: a merge patch must be a JSON object",
        ));
    }
    Ok(Patch { kind, body })
}

fn check_length(body: &Bytes) -> Result<(), Status> {
    if body.len() > BODY_BYTES_MAX {
        return Err(Status::too_large(BODY_BYTES_MAX));
    }
    Ok(())
}

/// The media type without its parameters, in lower case; empty if there is none.
fn content_type(headers: &HeaderMap) -> Result<String, Status> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(String::new());
    };
    let text = value
        .to_str()
        .map_err(|_| Status::bad_request("the Content-Type header is not text"))?;
    let media = text.split(';').next().unwrap_or_default();
    Ok(media.trim().to_ascii_lowercase())
}
