//! What the controllers are told at start.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stoke_api::names::WORKER_BIN_DIR;
use stoke_api::trainjob::Network;

/// Where Stokehold is at home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// One machine: no images, one node, volumes are directories.
    Machine,
    /// A Kubernetes cluster.
    Cluster,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    pub home: Home,
    /// The network of a job that names none.
    pub network: Network,
    /// The `stoke` binary as workers see it; MPI gangs, and workers that heed a signal, are started with it.
    pub stoke_exe: PathBuf,
    /// The image that this operator runs from. On a cluster, workers that need the binary get it out of it.
    pub image: Option<String>,
    /// Write a NetworkPolicy for each gang on the pods' own network, so that nothing but the gang itself reaches its workers.
    pub network_policies: bool,
    /// The nodes of the cluster have the driver that copies datasets.
    pub data_driver: bool,
    /// Bind pods to their node ourselves, where there is no kube-scheduler.
    pub binder: bool,
    /// The levels of the network, as keys of node labels, outermost first. One node is the innermost, said or not.
    pub topology: Vec<String>,
    /// The wait before the next attempt.
    pub retry: Backoff,
    /// How long a placed gang may take until all its workers run.
    pub start_deadline: Duration,
    /// How long a node on which a worker did not start is kept off, where there are others.
    pub avoid_for: Duration,
    /// How long past its grace period a stopping worker is waited for. Its node may be gone for good.
    pub stop_slack: Duration,
    /// How long a worker may take to end after SIGTERM; and one that writes checkpoints.
    pub grace: Duration,
    pub checkpoint_grace: Duration,
    /// How long a job that gives way is waited for until it has saved its work; and the longest that one on a node that goes away is, however
    /// much time the node has.
    pub save_wait: Duration,
    pub notice_wait_max: Duration,
    /// Make pods without a node for gangs that no node has room for, so that an autoscaler brings some; and wait for them so long.
    pub autoscaling: Option<Duration>,
    /// Ports leased to jobs that use the nodes' own network.
    pub ports: RangeInclusive<u16>,
    /// Jobs worked on at once.
    pub concurrency: usize,
    /// Requests of an operator under way at once, at most. The API server's word makes it fewer.
    pub requests: u32,
}

/// Waits between attempts: `first`, then `base`, doubling up to `cap`, and up to half as much again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Most failures that pass do so at once, so the first wait is short.
    pub first: Duration,
    pub base: Duration,
    pub cap: Duration,
    /// An attempt that ran this long was no failed start: the waits begin anew.
    pub forget_after: Duration,
}

impl Backoff {
    /// The wait after the `failures`th failed attempt in a row, from 1. `chance` differs from job to job:
    /// two gangs that each take half of a quota would else be refused together for ever.
    pub fn delay(&self, failures: u32, chance: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            1 => self.first,
            n => {
                let factor = 1_u32.checked_shl(n - 2).unwrap_or(u32::MAX);
                let wait = self.base.saturating_mul(factor).min(self.cap);
                let more = (wait / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX));
                // Times on record have no parts of seconds.
                wait + Duration::from_secs(more.as_secs())
            }
        }
    }
}

impl Config {
    /// For one machine, with the binary that is running there.
    pub fn machine(stoke_exe: PathBuf) -> Self {
        Self {
            home: Home::Machine,
            network: Network::Host,
            stoke_exe,
            image: None,
            network_policies: false,
            data_driver: false,
            binder: true,
            topology: Vec::new(),
            retry: Backoff {
                first: Duration::from_secs(1),
                base: Duration::from_secs(10),
                cap: Duration::from_secs(300),
                forget_after: Duration::from_secs(600),
            },
            start_deadline: Duration::from_secs(600),
            avoid_for: Duration::from_secs(1800),
            stop_slack: Duration::from_secs(60),
            grace: Duration::from_secs(30),
            checkpoint_grace: Duration::from_secs(60),
            save_wait: Duration::from_secs(30),
            notice_wait_max: Duration::from_secs(90),
            autoscaling: None,
            // Below what Linux hands out by itself.
            ports: 23_000..=27_999,
            concurrency: 16,
            requests: 64,
        }
    }

    /// For a cluster, where pods have addresses and kube-scheduler binds them.
    pub fn cluster() -> Self {
        Self {
            home: Home::Cluster,
            network: Network::Pod,
            network_policies: true,
            binder: false,
            // Images of many gigabytes are pulled meanwhile.
            start_deadline: Duration::from_secs(900),
            // Most of them wait for a server that is far away; what it bears the gate finds out.
            concurrency: 32,
            ..Self::machine(Path::new(WORKER_BIN_DIR).join("stoke"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_short_at_first_and_bounded() {
        let retry = Config::machine(PathBuf::from("stoke")).retry;
        let seconds =
            |chance| -> Vec<u64> { (0..9).map(|n| retry.delay(n, chance).as_secs()).collect() };
        assert_eq!(seconds(0), [0, 1, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(seconds(u32::MAX), [0, 1, 15, 30, 60, 120, 240, 450, 450]);
        assert_eq!(retry.delay(u32::MAX, 0), retry.cap);
    }
}
