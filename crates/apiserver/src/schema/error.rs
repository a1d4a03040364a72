//! What is wrong with a field, as Kubernetes says it: the causes of a 422.

use std::fmt;

use serde_json::Value;

/// How much of an offending value is repeated in a message.
const SHOWN_MAX: usize = 512;

/// One cause. `Display` is `path: detail`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldError {
    pub path: String,
    pub reason: FieldReason,
    /// The message without the path, for `causes[].message`: `Invalid value: "x": must be ...`.
    pub detail: String,
}

/// `causes[].reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldReason {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    TooLong,
    TooMany,
    Duplicate,
    Forbidden,
    NotFound,
}

impl FieldReason {
    /// The name Kubernetes uses on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            FieldReason::Required => "FieldValueRequired",
            FieldReason::Invalid => "FieldValueInvalid",
            FieldReason::TypeInvalid => "FieldValueTypeInvalid",
            FieldReason::NotSupported => "FieldValueNotSupported",
            FieldReason::TooLong => "FieldValueTooLong",
            FieldReason::TooMany => "FieldValueTooMany",
            FieldReason::Duplicate => "FieldValueDuplicate",
            FieldReason::Forbidden => "FieldValueForbidden",
            FieldReason::NotFound => "FieldValueNotFound",
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.detail)
    }
}

impl FieldError {
    fn new(path: &str, reason: FieldReason, detail: String) -> FieldError {
        let path = if path.is_empty() { "<nil>" } else { path };
        FieldError {
            path: path.to_owned(),
            reason,
            detail,
        }
    }

    pub fn required(path: &str, detail: &str) -> FieldError {
        let separator = if detail.is_empty() { "" } else { ": " };
        FieldError::new(
            path,
            FieldReason::Required,
            format!("Required value{separator}{detail}"),
        )
    }

    pub fn invalid(path: &str, value: &Value, detail: &str) -> FieldError {
        FieldError::new(
            path,
            FieldReason::Invalid,
            format!("Invalid value: {}: {detail}", shown(value)),
        )
    }

    /// Like [`FieldError::invalid`], for a value that is shown otherwise than as its JSON.
    pub fn invalid_shown(path: &str, value: &str, detail: &str) -> FieldError {
        FieldError::new(
            path,
            FieldReason::Invalid,
            format!("Invalid value: {value}: {detail}"),
        )
    }

    pub fn invalid_text(path: &str, value: &str, detail: &str) -> FieldError {
        FieldError::invalid(path, &Value::String(value.to_owned()), detail)
    }

    pub fn type_invalid(path: &str, value: &Value, expected: &str) -> FieldError {
        let found = type_name(value);
        FieldError::new(
            path,
            FieldReason::TypeInvalid,
            format!(
                "Invalid value: \"{found}\": {} in body must be of type {expected}: \"{found}\"",
                body(path)
            ),
        )
    }

    /// A text or number that is not of the format its type promises; it cannot be decoded.
    pub(super) fn format_invalid(path: &str, value: &Value, format: &str) -> FieldError {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let detail = format!("{} in body must be of type {format}: {text:?}", body(path));
        FieldError {
            reason: FieldReason::TypeInvalid,
            ..FieldError::invalid(path, value, &detail)
        }
    }

    pub fn not_supported(path: &str, value: &Value, supported: &[String]) -> FieldError {
        FieldError::new(
            path,
            FieldReason::NotSupported,
            format!(
                "Unsupported value: {}: supported values: {}",
                shown(value),
                supported.join(", ")
            ),
        )
    }

    pub fn too_long(path: &str, bytes_max: usize) -> FieldError {
        FieldError::new(
            path,
            FieldReason::TooLong,
            format!("Too long: may not be more than {bytes_max} bytes"),
        )
    }

    pub fn too_many(path: &str, count: usize, count_max: usize) -> FieldError {
        FieldError::new(
            path,
            FieldReason::TooMany,
            format!("Too many: {count}: must have at most {count_max} items"),
        )
    }

    pub fn duplicate(path: &str, value: &Value) -> FieldError {
        FieldError::new(
            path,
            FieldReason::Duplicate,
            format!("Duplicate value: {}", shown(value)),
        )
    }

    pub fn forbidden(path: &str, detail: &str) -> FieldError {
        FieldError::new(path, FieldReason::Forbidden, format!("Forbidden: {detail}"))
    }

    pub fn not_found(path: &str, value: &str) -> FieldError {
        FieldError::new(path, FieldReason::NotFound, format!("Not found: {value:?}"))
    }

    /// The same error seen from an enclosing object.
    pub fn under(mut self, prefix: &str) -> FieldError {
        self.path = format!("{prefix}.{}", self.path);
        self
    }
}

/// How a message of the OpenAPI checks names the field.
pub(super) fn body(path: &str) -> &str {
    if path.is_empty() { "<root>" } else { path }
}

pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > SHOWN_MAX {
        let end = (0..=SHOWN_MAX)
            .rev()
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Why a CRD's schema was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
pub struct SchemaError(pub Vec<FieldError>);
