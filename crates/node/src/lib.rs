//! What runs on a node: the kubelet's part in one machine.
//!
//! [`run`] registers a node and runs the pods bound to it as processes of the host. Each pod has a [shim] that outlives the
//! engine; its memory is limited by a [cgroup] where the machine has one to give; its [logs] are files.
//!
//! On a cluster the kubelet does all that, and [agent] is all there is of us on a node: it measures.
//!
//! Invariant: everything this crate learns and tells goes through `kube::Client`. What it must remember beyond that is in
//! the pod's own directory.

pub mod agent;
mod causes;
pub mod cgroup;
mod checkpoint;
mod commons;
pub mod driver;
mod events;
mod gpu;
pub mod heed;
mod idle;
mod kernel_log;
mod ledger;
pub mod logs;
mod machine;
mod node;
mod options;
mod pod;
mod pod_dir;
mod probe;
mod quantity;
mod registration;
mod remove;
mod resources;
pub mod shim;
mod spec;
pub mod staging;
mod status;
mod status_file;
mod storage;
mod sweep;
pub mod usage;
mod vigil;
mod volumes;

use std::path::{Path, PathBuf};

pub use gpu::{Gpu, GpuSource, Machine as Gpus};
pub use machine::hostname;
pub use node::{NodeError, run};
pub use options::NodeOptions;

/// Where a pod's files are, for [`logs::open`]. `None` for a uid that cannot be one.
pub fn pod_dir(data_dir: &Path, uid: &str) -> Option<PathBuf> {
    let is_uid = !uid.is_empty()
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_uid.then(|| data_dir.join("pods").join(uid))
}
