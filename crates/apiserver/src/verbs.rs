//! What can be done with a resource, one file per verb.
//!
//! Reads run on snapshots, writes inside the store's writer; both see objects as the served version has them.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod pod;
pub(crate) mod select;
pub(crate) mod update;
pub(crate) mod watch;
