//! TensorFlow: every worker listens, and `TF_CONFIG` tells each of all and of itself.

use serde_json::json;

use super::{Gang, Start, var};

pub fn start(gang: &Gang<'_>, rank: u32) -> Start {
    let hosts = gang.rendezvous.hosts().iter();
    let workers: Vec<String> = hosts
        .map(|host| format!("{}:{}", host.address, host.port))
        .collect();
    let config = json!({
        "cluster": {"worker": workers},
        "task": {"type": "worker", "index": rank},
    });
    Start {
        command: gang.command.to_vec(),
        env: vec![var("TF_CONFIG", config)],
    }
}
