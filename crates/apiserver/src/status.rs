//! Refusals, in the form every Kubernetes client reads: `metav1.Status`.
//!
//! Clients act on `reason` and `code` and show `message`, so all three are those of kube-apiserver.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use stoke_store::Error as StoreError;

use crate::resource::Resource;
use crate::schema::FieldError;

/// Why a request was refused. Boxed inside, because it travels in nearly every `Result`.
#[derive(Clone, Debug, PartialEq)]
pub struct Status(Box<Inner>);

#[derive(Clone, Debug, PartialEq)]
struct Inner {
    code: StatusCode,
    reason: &'static str,
    message: String,
    /// Shown if there is something in it, and always where the request as a whole was not understood.
    details: Option<Map<String, Value>>,
    /// Said as plain text, because no part of the API was asked.
    plain: bool,
    /// What else the author of the request should hear.
    warnings: Vec<String>,
}

impl Status {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            reason,
            message: message.into(),
            details: None,
            plain: false,
            warnings: Vec::new(),
        }))
    }

    fn details(&mut self) -> &mut Map<String, Value> {
        self.0.details.get_or_insert_default()
    }

    /// A refusal does not make warnings pointless.
    #[must_use]
    pub fn with_warnings(mut self, warnings: &[String]) -> Self {
        self.0.warnings = warnings.to_vec();
        self
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        let details = self.details();
        if !name.is_empty() {
            details.insert("name".into(), name.into());
        }
        if !resource.group.is_empty() {
            details.insert("group".into(), resource.group.clone().into());
        }
        details.insert("kind".into(), resource.plural.clone().into());
        self
    }

    fn cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        let mut cause = json!({"reason": reason, "message": message.into()});
        if !field.is_empty() {
            cause["field"] = field.into();
        }
        self.details().insert("causes".into(), json!([cause]));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "{} \"{name}\" is forbidden: {why}",
            resource.group_resource()
        );
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(resource, name)
    }

    /// Nothing new may begin in a namespace that is going away.
    pub fn terminating(resource: &Resource, name: &str, namespace: &str) -> Self {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        Self::forbidden(resource, name, &why).cause(
            "NamespaceTerminating",
            format!("namespace {namespace} is being terminated"),
            "metadata.namespace",
        )
    }

    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.group_resource());
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(resource, name)
    }

    /// The path names nothing that is served in a group that is.
    pub fn no_such_resource() -> Self {
        let mut status = Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource",
        );
        status.details();
        status
    }

    /// The path is none of the API's.
    pub fn no_such_page() -> Self {
        let mut status = Self::new(StatusCode::NOT_FOUND, "NotFound", "404 page not found");
        status.0.plain = true;
        status
    }

    pub fn method_not_allowed() -> Self {
        let mut status = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        status.details();
        status
    }

    pub fn not_acceptable(accepted: &str) -> Self {
        Self::unacceptable(format!(
            "only the following media types are accepted: {accepted}"
        ))
    }

    /// 406: the answer cannot take the shape that was asked for.
    pub fn unacceptable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", resource.group_resource());
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(resource, name)
    }

    /// The name is taken by an object that is on its way out.
    pub fn still_exists(resource: &Resource, name: &str) -> Self {
        let mut status = Self::already_exists(resource, name);
        status.0.message = format!("object is being deleted: {}", status.0.message);
        status
    }

    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            resource.group_resource()
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(resource, name)
    }

    /// The pod is not to be given to a node any more.
    pub fn binding_conflict(pod: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods/binding \"{pod}\": {why}");
        let mut status = Self::new(StatusCode::CONFLICT, "Conflict", message);
        let details = status.details();
        details.insert("name".into(), pod.into());
        details.insert("kind".into(), "pods/binding".into());
        status
    }

    /// Like [`Status::conflict`], but about a kind rather than a resource.
    pub fn other_object(resource: &Resource, name: &str, why: &str) -> Self {
        let subject = if resource.group.is_empty() {
            resource.kind.clone()
        } else {
            format!("{}.{}", resource.kind, resource.group)
        };
        let message = format!("Operation cannot be fulfilled on {subject} \"{name}\": {why}");
        let mut status = Self::new(StatusCode::CONFLICT, "Conflict", message).about(resource, name);
        let kind = resource.kind.clone().into();
        status.details().insert("kind".into(), kind);
        status
    }

    /// The caller wrote on top of a state that is no longer the latest.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 410: the past that was asked for is compacted away. Clients list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    pub fn patch_too_large(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
        )
    }

    pub fn future_revision(requested: u64, latest: u64) -> Self {
        let message = format!("Too large resource version: {requested}, current: {latest}");
        let mut status = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: {message}"),
        )
        .cause("ResourceVersionTooLarge", "Too large resource version", "");
        status
            .details()
            .insert("retryAfterSeconds".into(), 1.into());
        status
    }

    pub fn too_many_requests() -> Self {
        let mut status = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            "too many requests, please try again later",
        );
        status
            .details()
            .insert("retryAfterSeconds".into(), 1.into());
        status
    }

    pub fn internal(why: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {why}"),
        )
    }

    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", why)
    }

    /// 422 with one cause per field. `name` may be empty, for objects that have none yet.
    pub fn invalid(kind: &str, group: &str, name: &str, errors: &[FieldError]) -> Self {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let text = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let subject = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let mut status = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{subject} \"{name}\" is invalid: {text}"),
        );
        let details = status.details();
        if !name.is_empty() {
            details.insert("name".into(), name.into());
        }
        if !group.is_empty() {
            details.insert("group".into(), group.into());
        }
        if !kind.is_empty() {
            details.insert("kind".into(), kind.into());
        }
        let causes = errors.iter().map(|error| {
            json!({
                "reason": error.reason.as_str(),
                "message": error.detail,
                "field": error.path,
            })
        });
        details.insert("causes".into(), causes.collect());
        status
    }

    /// Like [`Status::invalid`], for an object of `resource`.
    pub fn invalid_object(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        // Both faces of events are checked as the older one.
        let is_event = resource.is_builtin() && resource.kind == "Event";
        let group = if is_event { "" } else { &resource.group };
        Self::invalid(&resource.kind, group, name, errors)
    }

    /// 422 for something wrong with the request itself, such as a patch that does not fit.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        let mut status = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message);
        status.details();
        status
    }

    pub fn code(&self) -> StatusCode {
        self.0.code
    }

    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn to_value(&self) -> Value {
        let inner = &self.0;
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": inner.message,
            "reason": inner.reason,
            "code": inner.code.as_u16(),
        });
        if let Some(details) = &inner.details {
            status["details"] = Value::Object(details.clone());
        }
        status
    }
}

/// `status: Success`, for requests whose answer is that they were done.
pub fn success(code: StatusCode, details: Option<Value>) -> Value {
    let mut status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
    });
    if code == StatusCode::CREATED {
        status["code"] = code.as_u16().into();
    }
    if let Some(details) = details {
        status["details"] = details;
    }
    status
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Status {}

impl IntoResponse for Status {
    fn into_response(self) -> Response {
        if self.0.plain {
            return (self.code(), format!("{}\n", self.0.message)).into_response();
        }
        let body = self.to_value().to_string();
        let mut response = (
            self.code(),
            [(header::CONTENT_TYPE, "application/json")],
            body,
        )
            .into_response();
        crate::reply::warn(&mut response, &self.0.warnings);
        let details = self.0.details.as_ref();
        if details.is_some_and(|details| details.contains_key("retryAfterSeconds")) {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Gone { requested, oldest } => Self::expired(format!(
                "too old resource version: {requested} ({})",
                oldest.0 + 1
            )),
            StoreError::Future { requested, latest } => {
                Self::future_revision(requested.0, latest.0)
            }
            StoreError::DiskFull(_) | StoreError::Busy(_) | StoreError::Closed => {
                tracing::warn!(%error, "the store refused a request");
                Self::unavailable(error.to_string())
            }
            _ => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "the store failed a request");
                Self::internal(&error)
            }
        }
    }
}
