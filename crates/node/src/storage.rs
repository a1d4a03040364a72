//! How much of the node's disk a pod uses, and whether that is more than it may.
//!
//! What counts is what the node made for the pod: its disk-backed `emptyDir` volumes and its logs. Processes of the host
//! write to the host's own file systems as well, and that cannot be told apart.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod_dir::PodDir;
use crate::quantity;
use crate::resources::{self, EPHEMERAL_STORAGE};

/// The kubelet's own rhythm.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// Measuring may take this share of one core, however large the trees are.
const COST_SHARE: u32 = 20;
/// Directories deeper than this are counted as far as this.
const DEPTH_MAX: u32 = 128;

/// What a pod uses, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DiskUse {
    /// By name of the emptyDir volume.
    pub(crate) volumes: BTreeMap<String, u64>,
    /// Logs by container.
    pub(crate) logs: BTreeMap<String, u64>,
}

impl DiskUse {
    pub(crate) fn total(&self) -> u64 {
        self.volumes
            .values()
            .chain(self.logs.values())
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Whether there is any limit to hold the pod to.
pub(crate) fn is_limited(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.containers
        .iter()
        .any(|container| resources::limit(container, EPHEMERAL_STORAGE).is_some())
        || spec.volumes.iter().flatten().any(|volume| {
            volume.empty_dir.as_ref().is_some_and(|source| {
                source.size_limit.is_some() && source.medium.as_deref() != Some("Memory")
            })
        })
}

/// Walks the pod's directories. Blocks for as long as they are large; the second value is when to look again.
pub(crate) fn measure(pod: &Pod, dir: &PodDir) -> (DiskUse, Duration) {
    let begun = Instant::now();
    let mut usage = DiskUse::default();
    for volume in pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
    {
        let on_disk = volume
            .empty_dir
            .as_ref()
            .is_some_and(|source| source.medium.as_deref() != Some("Memory"));
        if on_disk {
            usage.volumes.insert(
                volume.name.clone(),
                tree_bytes(&dir.volume(&volume.name), 0),
            );
        }
    }
    for container in pod.spec.iter().flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    }) {
        usage.logs.insert(
            container.name.clone(),
            tree_bytes(&dir.logs().join(&container.name), 0),
        );
    }
    (usage, MEASURE_EVERY.max(begun.elapsed() * COST_SHARE))
}

/// Blocks in use below a path, as `du` counts them. What vanishes meanwhile counts as nothing; links are not followed.
fn tree_bytes(path: &Path, depth: u32) -> u64 {
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    let mut total = 0_u64;
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        // A file with several names is counted once for each, split between them.
        let bytes = metadata.blocks().saturating_mul(512) / metadata.nlink().max(1);
        if metadata.is_dir() {
            total = total.saturating_add(metadata.blocks().saturating_mul(512));
            if depth < DEPTH_MAX {
                total = total.saturating_add(tree_bytes(&entry.path(), depth + 1));
            }
        } else {
            total = total.saturating_add(bytes);
        }
    }
    total
}

/// The kubelet's message if the pod must be evicted: a volume's own limit first, then the pod's, then a container's.
pub(crate) fn excess(pod: &Pod, usage: &DiskUse) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    for volume in spec.volumes.iter().flatten() {
        let limit = volume
            .empty_dir
            .as_ref()
            .and_then(|source| source.size_limit.as_ref());
        let bytes = limit.and_then(quantity::whole).filter(|bytes| *bytes > 0);
        if let (Some(limit), Some(bytes), Some(used)) =
            (limit, bytes, usage.volumes.get(&volume.name))
            && *used > bytes
        {
            return Some(format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, limit.0
            ));
        }
    }
    if let Some(limit) = resources::total_limit(pod, EPHEMERAL_STORAGE)
        && usage.total() > limit
    {
        let limit = quantity::bytes(limit).0;
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        ));
    }
    spec.containers.iter().find_map(|container| {
        let limit = resources::limit(container, EPHEMERAL_STORAGE)?;
        let used = usage.logs.get(&container.name)?;
        let spelled = |container: &k8s_openapi::api::core::v1::Container| -> Option<Quantity> {
            container
                .resources
                .as_ref()?
                .limits
                .as_ref()?
                .get(EPHEMERAL_STORAGE)
                .cloned()
        };
        let text =
            spelled(container).map_or_else(|| quantity::bytes(limit).0, |quantity| quantity.0);
        (*used > limit).then(|| {
            format!(
                "Container {} exceeded its local ephemeral storage limit {text:?}. ",
                container.name
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests_support::pod;
    use serde_json::json;

    fn limited() -> Pod {
        pod(json!({"spec": {
            "containers": [
                {"name": "a", "resources": {"limits": {"ephemeral-storage": "1Mi"}}},
                {"name": "b", "resources": {"limits": {"ephemeral-storage": "3Mi"}}},
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": "2Mi"}},
                {"name": "free", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            ],
        }}))
    }

    fn usage(volumes: &[(&str, u64)], logs: &[(&str, u64)]) -> DiskUse {
        let map = |list: &[(&str, u64)]| {
            list.iter()
                .map(|(name, bytes)| ((*name).to_owned(), *bytes))
                .collect()
        };
        DiskUse {
            volumes: map(volumes),
            logs: map(logs),
        }
    }

    #[test]
    fn what_exceeds_is_named_as_a_kubelet_names_it() {
        let mib = 1 << 20;
        let table = [
            (
                usage(&[("tmp", mib), ("free", mib)], &[("a", mib), ("b", mib)]),
                None,
            ),
            (
                usage(&[("tmp", 2 * mib + 1)], &[]),
                Some(r#"Usage of EmptyDir volume "tmp" exceeds the limit "2Mi". "#),
            ),
            (
                usage(&[("free", 5 * mib)], &[]),
                Some(
                    "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. ",
                ),
            ),
            (
                usage(&[], &[("a", mib + 1)]),
                Some(r#"Container a exceeded its local ephemeral storage limit "1Mi". "#),
            ),
        ];
        for (usage, expected) in table {
            assert_eq!(excess(&limited(), &usage).as_deref(), expected, "{usage:?}");
        }
    }

    #[test]
    fn only_limits_are_worth_measuring() {
        assert!(is_limited(&limited()));
        let shm = json!({"spec": {"containers": [{"name": "a"}], "volumes": [{"name": "s", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]}});
        assert!(!is_limited(&pod(shm)));
    }

    #[test]
    fn measures_volumes_and_logs() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = PodDir::new(root.path(), "u-1");
        let deep = dir.volume("tmp").join("a/b");
        fs::create_dir_all(&deep).expect("made");
        fs::write(deep.join("file"), vec![1; 1 << 20]).expect("written");
        std::os::unix::fs::symlink("/usr", deep.join("link")).expect("linked");
        fs::create_dir_all(dir.logs().join("a")).expect("made");
        fs::write(dir.logs().join("a/0.log"), vec![1; 64 << 10]).expect("written");
        let (found, again) = measure(&limited(), &dir);
        let tmp = found.volumes["tmp"];
        assert!((1 << 20..2 << 20).contains(&tmp), "{tmp}");
        assert!(found.logs["a"] >= 64 << 10);
        assert_eq!(found.volumes["free"], 0);
        assert!(!found.volumes.contains_key("shm"), "memory is not disk");
        assert!(again >= MEASURE_EVERY);
    }
}
