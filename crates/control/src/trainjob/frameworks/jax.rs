//! JAX: one process a worker, which meet at the coordinator, rank 0.

use super::{Gang, Start, var};

pub fn start(gang: &Gang<'_>, rank: u32) -> Start {
    let leader = gang.rendezvous.leader();
    let endpoint = format!("{}:{}", leader.address, leader.port);
    Start {
        command: gang.command.to_vec(),
        env: vec![
            // What JAX itself reads,
            var("JAX_COORDINATOR_ADDRESS", endpoint),
            // and what scripts written for Kubeflow's operator read.
            var("COORDINATOR_ADDRESS", &leader.address),
            var("COORDINATOR_PORT", leader.port),
            var("NUM_PROCESSES", gang.workers),
            var("PROCESS_ID", rank),
        ],
    }
}
