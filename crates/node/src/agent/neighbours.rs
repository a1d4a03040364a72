//! The node as a whole: what it has left, and what those use that are not measured one by one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use stoke_memory::guard::{Neighbour, Node};

use super::layout::{Layout, Qos};
use crate::cgroup::CgroupSpec;
use crate::machine;

/// What a kubelet keeps free unless it was told otherwise: below it, it evicts.
const EVICTION_DEFAULT: u64 = 100 << 20;
/// Kept free beyond that, so that what is lent does not bring the node to that point: a fiftieth of it.
const SPARE_SHARE: u64 = 50;

/// Where a pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) uid: String,
    pub(super) cgroup_uid: String,
    pub(super) qos: Option<Qos>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeLook {
    pub(super) total: u64,
    pub(super) available: u64,
    pub(super) reserve: u64,
    /// What all pods of a kubelet may have together, by where it keeps them, and what is left of it.
    pub(super) roots: Vec<(PathBuf, u64, u64)>,
    /// Of pods that are not measured, by uid.
    pub(super) used: HashMap<String, u64>,
}

impl NodeLook {
    /// Reads what the kernel says. Blocks on its file system.
    pub(super) fn take(layout: &Layout, strangers: &[Place]) -> Self {
        let (total, available) = machine::memory_bytes();
        let mut roots = Vec::new();
        for root in &layout.roots {
            let group = CgroupSpec::foreign(layout.version, root.path.clone());
            if let Ok(sample) = group.memory()
                && let Some(limit) = sample.limit_bytes
            {
                let left = limit.saturating_sub(sample.working_set_bytes);
                roots.push((root.path.clone(), limit, left));
            }
        }
        let used = strangers.iter().filter_map(|place| {
            let path = layout.find_pod(&place.cgroup_uid, place.qos)?;
            let sample = CgroupSpec::foreign(layout.version, path).memory().ok()?;
            Some((place.uid.clone(), sample.working_set_bytes))
        });
        Self {
            total,
            available,
            reserve: EVICTION_DEFAULT.saturating_add(total / SPARE_SHARE),
            roots,
            used: used.collect(),
        }
    }

    /// The node as a container of it sees it.
    pub(super) fn node(&self, cgroup: &Path, neighbours: Vec<Neighbour>) -> Node {
        let mut own = self
            .roots
            .iter()
            .filter(|(root, ..)| cgroup.starts_with(root));
        let (limit, left) = own
            .next()
            .map_or((self.total, self.available), |(_, limit, left)| {
                (*limit, *left)
            });
        Node {
            available: self.available.min(left),
            reserve: self.reserve,
            allocatable: limit.min(self.total),
            neighbours,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pods_that_are_not_measured_have_their_part_too() {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, files: &[(&str, &str)]| {
            let directory = tree.path().join(path);
            fs::create_dir_all(&directory).unwrap();
            for (name, text) in files {
                fs::write(directory.join(name), text).unwrap();
            }
        };
        write("", &[("cgroup.controllers", "memory")]);
        write(
            "kubepods",
            &[
                ("memory.current", "700"),
                ("memory.max", "1000"),
                ("memory.stat", "inactive_file 100"),
            ],
        );
        write(
            "kubepods/podu1",
            &[
                ("memory.current", "250"),
                ("memory.stat", "inactive_file 50"),
            ],
        );
        let layout = Layout::detect(tree.path()).unwrap();
        let place = |uid: &str| Place {
            uid: format!("api-{uid}"),
            cgroup_uid: uid.to_owned(),
            qos: Some(Qos::Guaranteed),
        };
        let look = NodeLook::take(&layout, &[place("u1"), place("gone")]);
        assert_eq!(look.used, HashMap::from([("api-u1".to_owned(), 200)]));
        assert!(look.total > 0 && look.available <= look.total);
        let node = look.node(&tree.path().join("kubepods/burstable/podu2/x"), vec![]);
        assert_eq!(
            (node.available, node.allocatable),
            (400, 1000),
            "what its kubelet allows"
        );
        let elsewhere = look.node(Path::new("/elsewhere"), vec![]);
        assert_eq!(elsewhere.allocatable, look.total);
    }
}
