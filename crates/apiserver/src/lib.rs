//! The Kubernetes API over the store.
//!
//! Small, and honest: what is not implemented is refused with the status Kubernetes uses, never answered with a
//! guess. A request is decoded ([`request`]), dispatched ([`server`]), admitted ([`admission`]), done ([`verbs`]) and
//! answered ([`reply`]); the pure modules beside them ([`resource`], [`schema`], [`selector`], [`patch`], [`table`],
//! [`discovery`], [`openapi`]) know no store and no clock. [`housekeeping`] is what a controller manager would do.

pub mod discovery;
pub mod housekeeping;
pub mod jsonpath;
pub mod kubeconfig;
pub mod logs;
pub mod names;
pub mod openapi;
pub mod patch;
pub mod pki;
pub mod request;
pub mod resource;
pub mod schema;
pub mod selector;
pub mod serve;
pub mod server;
pub mod status;
pub mod table;

mod admission;
mod bootstrap;
mod object;
mod private_file;
mod quota;
mod registry;
mod reply;
mod verbs;

pub use logs::{LogError, LogSource, LogStream, NoLogs};
pub use registry::Registry;
pub use request::LogOptions;
pub use serve::serve;
pub use server::{ApiServer, Options};
pub use status::Status;
