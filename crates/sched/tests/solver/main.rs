//! What placement promises, on examples and on clusters drawn at random.

mod any;
mod explaining;
mod fixtures;
mod grant;
mod large;
mod parts;
mod placing;
mod properties;
mod proportion;
mod reference;
#[path = "../support/sized.rs"]
mod sized;
mod topology;
mod warm;
