//! MPI on real kubelets: our binary comes out of the operator's image, and mpirun starts its daemons on the other node without ssh.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::release::{self, succeed};
use crate::support;
use crate::workers::{Jobs, host_programs};

/// All add up their numbers, and say so with one voice: what ranks print for themselves may meet within a line.
const SUM: &str = "\
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
said = f'rank {world.rank} of {world.size} on {os.uname().nodename} sum {world.allreduce(world.rank)}'
said = world.gather(said)
if world.rank == 0: print('\\n'.join(said))";

#[test]
fn an_mpi_gang_on_two_nodes_finds_itself_and_needs_no_ssh() {
    let Some(testbed) = support::testbed_with_nodes() else {
        return;
    };
    let has = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !has("mpirun", &["--version"]) || !has("/usr/bin/python3", &["-c", "import mpi4py"]) {
        eprintln!("skipped: no Open MPI with mpi4py (scripts/setup.sh mpi)");
        return;
    }
    let Some(_release) = release::shared(&testbed) else {
        return;
    };
    let jobs = Jobs::new(&testbed, "launching");
    jobs.create(
        "ring",
        &json!({
            "framework": "mpi", "workers": 2, "gpus": 3, "processesPerWorker": 2, "retries": 0,
            "command": ["/usr/bin/python3", "-c", SUM],
            "memory": {"request": "64Mi", "limit": "512Mi"},
            "template": host_programs(&[(Path::new("/etc/openmpi"), "/etc/openmpi")]),
        }),
    );
    let status = jobs.wait_until("ring", "to have ended", |status| {
        status["phase"] == "Complete" || status["phase"] == "Failed"
    });
    let log = succeed(&mut testbed.kubectl(&[
        "logs",
        "ring-1-0",
        "-n",
        jobs.namespace(),
        "-c",
        "worker",
    ]));
    assert_eq!(status["phase"], "Complete", "{status:#}\n{log}");
    let nodes = status["attempts"][0]["nodes"].as_array().expect("nodes");
    assert_ne!(nodes[0], nodes[1], "{status:#}");
    let mut said: Vec<&str> = log.lines().filter(|line| line.contains("sum")).collect();
    said.sort_unstable();
    let expected = [
        "rank 0 of 4 on ring-0 sum 6",
        "rank 1 of 4 on ring-0 sum 6",
        "rank 2 of 4 on ring-1 sum 6",
        "rank 3 of 4 on ring-1 sum 6",
    ];
    assert_eq!(said, expected, "{log}");
}
