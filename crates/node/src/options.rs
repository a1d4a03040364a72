//! How a node is told what it is.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::machine;

/// Variables of the engine's own environment that pods start from: there is no image to bring them, and a person who
/// started the engine in a virtual environment expects that environment.
const INHERITED: [&str; 17] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "PYTHONPATH",
    "CUDA_HOME",
    "CUDA_PATH",
];
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a node needs to know to start.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The Node object's name.
    pub name: String,
    /// The engine's data directory; `pods/` and `volumes/` in it are the node's.
    pub data_dir: PathBuf,
    /// The program that is run as `stoke shim`.
    pub stoke_exe: PathBuf,
    /// How many GPUs to pretend to have, beside the real ones.
    pub simulated_gpus: u32,
    /// The node's and all its pods' address. Loopback by default: on one machine it is always there and always the same,
    /// whatever happens to the network in the middle of a training.
    pub address: IpAddr,
    /// Labels to put on the node beside its own.
    pub labels: BTreeMap<String, String>,
    /// How much datasets may take on this machine's disk; `None` for all but what should stay free.
    pub data_cache_max_bytes: Option<u64>,
    pub pods_max: u32,
    pub log_max_bytes: u64,
    pub log_max_files: u32,
    /// How many processes and threads one container may have; `None` for the machine's own limit.
    pub pids_max: Option<u64>,
    /// What containers' environments start from.
    pub base_env: BTreeMap<String, String>,
}

impl NodeOptions {
    /// The defaults, for the engine whose data is in `data_dir`.
    pub fn new(data_dir: impl Into<PathBuf>, stoke_exe: impl Into<PathBuf>) -> Self {
        Self {
            name: machine::hostname(),
            data_dir: data_dir.into(),
            stoke_exe: stoke_exe.into(),
            simulated_gpus: 0,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            labels: BTreeMap::new(),
            data_cache_max_bytes: None,
            pods_max: 500,
            // A burst must not outrun a follower: what is rotated away before it is read is gone.
            log_max_bytes: 64 << 20,
            log_max_files: 5,
            pids_max: Some(65_536),
            base_env: inherited(|name| std::env::var(name).ok()),
        }
    }
}

fn inherited(read: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = INHERITED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), read(name)?)))
        .collect();
    env.entry("PATH".to_owned())
        .or_insert_with(|| PATH_DEFAULT.to_owned());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_start_from_a_short_list() {
        let env = inherited(|name| matches!(name, "HOME" | "SECRET_TOKEN").then(|| "x".to_owned()));
        assert_eq!(env.keys().collect::<Vec<_>>(), ["HOME", "PATH"]);
    }
}
