//! Where the workers of an attempt find each other: names, addresses and ports.

use std::ops::RangeInclusive;

use stoke_api::names::host_name;
use stoke_api::trainjob::{Framework, Network};

/// The loopback address: right where all workers share one machine's network, and never blocked by a firewall.
const LOOPBACK: &str = "127.0.0.1";

/// Where the workers of one attempt are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    hosts: Vec<Host>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// What the worker's pod is called by others.
    pub name: String,
    pub address: String,
    pub port: u16,
    /// What to listen on to be reached there.
    pub listen: String,
}

/// What decides where workers are.
pub struct Place<'a> {
    pub job: &'a str,
    pub namespace: &'a str,
    pub network: Network,
    pub framework: Framework,
    /// The address of each worker's node, by rank.
    pub node_addresses: &'a [String],
    /// All workers are on one node.
    pub one_node: bool,
    /// The first leased port, on the host's network.
    pub port: Option<u16>,
}

impl Rendezvous {
    pub fn of(place: &Place<'_>) -> Self {
        let count = place.node_addresses.len();
        let hosts = place.node_addresses.iter().zip(0_u32..);
        let hosts = hosts.map(|(node_address, rank)| {
            let name = host_name(place.job, rank);
            let host = |address: &str, port, listen: &str| Host {
                name: name.clone(),
                address: address.to_owned(),
                port,
                listen: listen.to_owned(),
            };
            match (place.network, place.port) {
                (Network::Host, Some(first)) => {
                    let own = u16::from(needs_port_each(place.framework)) * rank as u16;
                    let port = first.saturating_add(own);
                    if place.one_node {
                        host(LOOPBACK, port, LOOPBACK)
                    } else {
                        host(node_address, port, "0.0.0.0")
                    }
                }
                // A pod has its own address, and so every port; one alone needs no name for it.
                _ if count == 1 => host(LOOPBACK, usual_port(place.framework), LOOPBACK),
                _ => {
                    let address = format!("{name}.{}.{}.svc", place.job, place.namespace);
                    host(&address, usual_port(place.framework), "0.0.0.0")
                }
            }
        });
        Self {
            hosts: hosts.collect(),
        }
    }

    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Where all meet: the worker of rank 0.
    pub fn leader(&self) -> &Host {
        self.hosts.first().expect("a gang has at least one worker")
    }
}

/// Do all workers listen, or only the first?
fn needs_port_each(framework: Framework) -> bool {
    matches!(framework, Framework::Tensorflow | Framework::Mpi)
}

/// The port that people who know the framework expect, where every pod has all ports.
fn usual_port(framework: Framework) -> u16 {
    match framework {
        Framework::Torch => 29_500,
        Framework::Jax => 6_666,
        Framework::Tensorflow | Framework::Mpi | Framework::Plain => 2_222,
    }
}

/// Ports an attempt needs on its nodes' own network.
pub fn port_count(framework: Framework, workers: u32) -> u16 {
    match framework {
        Framework::Plain => 0,
        _ if needs_port_each(framework) => u16::try_from(workers).unwrap_or(u16::MAX),
        _ => 1,
    }
}

/// Finds `count` neighbouring ports that nobody else has leased, or none. The search begins at a place that depends on the
/// job and its attempt: two engines on one machine, or a port that another program holds, then seldom clash twice.
pub fn lease(
    ports: &RangeInclusive<u16>,
    leased: &[RangeInclusive<u16>],
    count: u16,
    job_uid: &str,
    attempt: u32,
) -> Option<u16> {
    if count == 0 {
        return None;
    }
    let (low, high) = (u32::from(*ports.start()), u32::from(*ports.end()));
    let starts = (high + 1).checked_sub(low + u32::from(count))? + 1;
    let begin =
        (fnv(job_uid).wrapping_add(attempt.wrapping_mul(u32::from(count.max(1)) + 6))) % starts;
    // Past each lease that is in the way, once around.
    let mut offset = 0;
    while offset < starts {
        let first = low + (begin + offset) % starts;
        let last = first + u32::from(count) - 1;
        let in_way = leased
            .iter()
            .find(|taken| u32::from(*taken.start()) <= last && first <= u32::from(*taken.end()));
        match in_way {
            None => return u16::try_from(first).ok(),
            Some(taken) => {
                let skip = (u32::from(*taken.end()) + 1).saturating_sub(first);
                // At the end of the range the search goes on at its beginning.
                offset += skip.min(starts - (begin + offset) % starts).max(1);
            }
        }
    }
    None
}

/// Spreads texts over all numbers, the same everywhere and for ever.
pub fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_attempt_has_another_port() {
        let ports = 23_000..=27_999;
        let first = lease(&ports, &[], 1, "uid", 1).expect("a port");
        let second = lease(&ports, &[], 1, "uid", 2).expect("a port");
        assert_ne!(first, second);
        let full = [23_000..=27_999];
        assert_eq!(lease(&ports, &full, 1, "uid", 1), None);
        assert_eq!(
            lease(&(1..=3), &[], 4, "uid", 1),
            None,
            "more than there are"
        );
        assert_eq!(lease(&(1..=3), &[], 3, "uid", 7), Some(1));
    }

    proptest! {
        #[test]
        fn leases_do_not_overlap_and_none_is_missed(
            taken in prop::collection::vec((100_u16..160, 0_u16..9), 0..8), count in 1_u16..6, uid in "[a-f]{4}", attempt: u32,
        ) {
            let ports = 100..=150;
            let leased: Vec<_> = taken.iter().map(|(start, more)| *start..=start + more).collect();
            let free = |port: u16| !leased.iter().any(|range| range.contains(&port));
            let fits = |first: u16| (first..first + count).all(free) && first + count - 1 <= 150;
            match lease(&ports, &leased, count, &uid, attempt) {
                Some(first) => prop_assert!(first >= 100 && fits(first), "{first}"),
                None => prop_assert!((100..=150).all(|first| !fits(first)), "there was one"),
            }
        }
    }
}
