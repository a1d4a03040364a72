//! A command that needs no one: it runs as it is.

use super::{Gang, Start};

pub fn start(gang: &Gang<'_>) -> Start {
    Start {
        command: gang.command.to_vec(),
        env: Vec::new(),
    }
}
