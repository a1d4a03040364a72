//! Data that jobs read, and checkpoints that leave the machine: object stores on one side, directories on the other.
//!
//! What is decided is pure and in files of its own: which key becomes which path (`keys`), which bytes are asked for together
//! (`blocks`), who makes room (`room`), how far it is (`progress`). The rest is IO around it.
//!
//! Invariant: a directory with a name that a caller may use is whole. What is being made has another name until it is.
//! Invariant: no error, log line or file of this crate holds a credential.

mod blocks;
mod cache;
mod disk;
mod error;
mod fetch;
mod fill;
mod keys;
mod listing;
mod pins;
mod progress;
mod proof;
mod restore;
mod retry;
mod room;
mod secret;
mod ship;
mod source;
mod stores;

pub use cache::{Cache, Held, Mended, Staged};
pub use error::DataError;
pub use pins::Pin;
pub use progress::{Meter, Progress, Stage};
pub use proof::{Receipt, find_damage};
pub use restore::restore;
pub use room::{Kept, Shortfall, make_room};
pub use secret::Credentials;
pub use ship::{
    MANIFEST, Shipment, Shipped, abandon_upload, complete_uploads, remove_upload, upload,
};
pub use source::{Remote, Scheme, check_uri};
