//! Label and field selectors: what `?labelSelector=` and `?fieldSelector=` say.
//!
//! Both are parsed once per request and then matched against every object of a list or watch.
//!
//! Invariant: parsing never panics and takes linear time on any input, and a selector that was
//! parsed prints as a selector that parses to itself.

mod field;
mod label;

pub use field::{FieldSelector, FieldTerm};
pub use label::LabelSelector;

/// The longest selector that is looked at; a request line is shorter anyway.
const LENGTH_MAX: usize = 64 * 1024;

/// Why a selector was refused (400).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    #[error("{0}")]
    Syntax(String),
    #[error("field label not supported: {0}")]
    UnsupportedField(String),
    #[error("{0:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")]
    UnknownField(String),
    #[error("selector is longer than {LENGTH_MAX} bytes")]
    TooLong,
}
