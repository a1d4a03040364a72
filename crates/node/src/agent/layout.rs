//! Where a kubelet and its runtime put the cgroups of containers.
//!
//! A kubelet names cgroups by pod and QoS class, in one of two spellings (its cgroup driver), below a root that may have a
//! prefix; the runtime names the container's own in its way. All of that is decided by names alone, so that finding a
//! container needs neither the runtime's socket nor the host's process ids.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::CgroupVersion;

/// How deep below the controller's root a kubelet may have been told to put its own: a node in a container in a machine.
const DEPTH_MAX: usize = 5;
/// A tree with more directories above the pods than this is none that a kubelet made.
const VISITED_MAX: usize = 10_000;
/// Kubelets on one machine; each has its own root.
const ROOTS_MAX: usize = 16;

/// Why no layout could be made out.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has no memory controller, neither of cgroup v1 nor of v2", path.display())]
    NoMemory { path: PathBuf },
}

/// Where the memory controller is, and every place below it where a kubelet keeps pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub version: CgroupVersion,
    pub roots: Vec<Root>,
}

/// The parent of a kubelet's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    pub path: PathBuf,
    pub driver: Driver,
}

/// How a kubelet spells a cgroup's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// `kubepods/burstable/pod<uid>`
    Cgroupfs,
    /// `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`; the stem is `kubepods`, or what a prefix
    /// makes of it.
    Systemd { stem: String },
}

/// What the API says of a container that decides its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The kubelet's uid of the pod.
    pub pod_uid: String,
    pub qos: Option<Qos>,
    /// As the runtime names it, without its scheme.
    pub id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    const ALL: [Self; 3] = [Self::Burstable, Self::Guaranteed, Self::BestEffort];

    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "Guaranteed" => Some(Self::Guaranteed),
            "Burstable" => Some(Self::Burstable),
            "BestEffort" => Some(Self::BestEffort),
            _ => None,
        }
    }

    /// Guaranteed pods stand beside the classes, not in one.
    fn directory(self) -> Option<&'static str> {
        match self {
            Self::Guaranteed => None,
            Self::Burstable => Some("burstable"),
            Self::BestEffort => Some("besteffort"),
        }
    }
}

/// What runtimes call a container's cgroup: containerd, CRI-O, and Docker behind its CRI.
const SCOPES: [&str; 3] = ["cri-containerd", "crio", "docker"];

/// Every place where a container's cgroup may be under a root, the likeliest first. None for names that could lead elsewhere.
pub fn candidates(root: &Root, container: &Container) -> Vec<PathBuf> {
    let is_name = |text: &str| {
        !text.is_empty()
            && text.len() <= 128
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if !is_name(&container.pod_uid) || !is_name(&container.id) {
        return Vec::new();
    }
    let classes = match container.qos {
        Some(qos) => vec![qos],
        None => Qos::ALL.to_vec(),
    };
    let id = &container.id;
    classes
        .into_iter()
        .flat_map(|qos| {
            let (pod, names) = match &root.driver {
                Driver::Cgroupfs => {
                    let class = qos.directory().unwrap_or_default();
                    let pod = root
                        .path
                        .join(class)
                        .join(format!("pod{}", container.pod_uid));
                    let own = vec![id.clone(), format!("crio-{id}")];
                    (pod, own)
                }
                Driver::Systemd { stem } => {
                    // systemd nests by dashes, so those of the uid are written otherwise.
                    let uid = container.pod_uid.replace('-', "_");
                    let (parent, stem) = match qos.directory() {
                        Some(class) => {
                            let stem = format!("{stem}-{class}");
                            (root.path.join(format!("{stem}.slice")), stem)
                        }
                        None => (root.path.clone(), stem.clone()),
                    };
                    let scopes = SCOPES.map(|scope| format!("{scope}-{id}.scope"));
                    (
                        parent.join(format!("{stem}-pod{uid}.slice")),
                        scopes.to_vec(),
                    )
                }
            };
            names.into_iter().map(move |name| pod.join(name))
        })
        .collect()
}

impl Layout {
    /// Reads the tree below `/sys/fs/cgroup`, or wherever the host's is mounted. Roots may come later: a kubelet makes its
    /// own when it starts.
    pub fn detect(mount: &Path) -> Result<Self, LayoutError> {
        let (version, base) = controller(mount)?;
        let mut roots = Vec::new();
        let mut visited = 0;
        let mut level = vec![base];
        for _ in 0..DEPTH_MAX {
            let mut next = Vec::new();
            for directory in level {
                // A directory may vanish while we look, or be closed to us: then nothing of ours is in it.
                for child in children(&directory) {
                    visited += 1;
                    if visited > VISITED_MAX || roots.len() == ROOTS_MAX {
                        return Ok(Self { version, roots });
                    }
                    match driver(&child) {
                        Some(driver) => roots.push(Root {
                            path: child,
                            driver,
                        }),
                        None => next.push(child),
                    }
                }
            }
            level = next;
        }
        roots.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { version, roots })
    }

    /// The cgroup of a pod, if it is there and can be looked at.
    pub fn find_pod(&self, uid: &str, qos: Option<Qos>) -> Option<PathBuf> {
        let any = Container {
            pod_uid: uid.to_owned(),
            qos,
            id: "any".to_owned(),
        };
        let places = self.roots.iter().flat_map(|root| candidates(root, &any));
        let mut pods = places.filter_map(|path| path.parent().map(Path::to_owned));
        pods.find(|path| path.is_dir())
    }

    /// The cgroup of a container, if it is there. Where it is not found, and a place could not be looked at, that place is told.
    pub fn find(&self, container: &Container) -> Result<Option<PathBuf>, LayoutError> {
        let places = self
            .roots
            .iter()
            .flat_map(|root| candidates(root, container));
        let mut closed = None;
        for path in places {
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => return Ok(Some(path)),
                Ok(_) => {}
                Err(error) if is_nowhere(&error) => {}
                Err(source) => closed = closed.or(Some(LayoutError::Read { path, source })),
            }
        }
        closed.map_or(Ok(None), Err)
    }
}

/// The path, or a part of it, is not there.
fn is_nowhere(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::NotFound || kind == io::ErrorKind::NotADirectory
}

/// The memory controller's version and root. On a hybrid machine v2 is mounted too, but memory is with v1.
fn controller(mount: &Path) -> Result<(CgroupVersion, PathBuf), LayoutError> {
    let read = |path: &Path| match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(LayoutError::Read {
            path: path.to_owned(),
            source,
        }),
    };
    let v2 = read(&mount.join("cgroup.controllers"))?;
    if v2.is_some_and(|list| list.split_whitespace().any(|name| name == "memory")) {
        return Ok((CgroupVersion::V2, mount.to_owned()));
    }
    for v1 in [mount.join("memory"), mount.to_owned()] {
        if v1.join("memory.usage_in_bytes").exists() {
            return Ok((CgroupVersion::V1, v1));
        }
    }
    Err(LayoutError::NoMemory {
        path: mount.to_owned(),
    })
}

/// Is this the parent of a kubelet's pods, and how are they spelled?
fn driver(directory: &Path) -> Option<Driver> {
    let name = directory.file_name()?.to_str()?;
    if name == "kubepods" {
        return Some(Driver::Cgroupfs);
    }
    let stem = name.strip_suffix(".slice")?;
    (stem == "kubepods" || stem.ends_with("-kubepods")).then(|| Driver::Systemd {
        stem: stem.to_owned(),
    })
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let mut children: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    children.sort();
    children
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b5c3f4e-1111-2222-3333-444455556666";
    const ID: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn container(qos: Option<Qos>) -> Container {
        Container {
            pod_uid: UID.to_owned(),
            qos,
            id: ID.to_owned(),
        }
    }

    fn told(root: &str, driver: Driver, container: &Container) -> String {
        let root = Root {
            path: PathBuf::from(root),
            driver,
        };
        let paths = candidates(&root, container);
        let lines = paths.iter().map(|path| path.display().to_string());
        lines.collect::<Vec<_>>().join("\n").replace(ID, "ID")
    }

    #[test]
    fn a_kubelet_with_the_cgroupfs_driver() {
        let of = |qos| told("/kubepods", Driver::Cgroupfs, &container(Some(qos)));
        insta::assert_snapshot!(of(Qos::Guaranteed), @"
        /kubepods/pod0b5c3f4e-1111-2222-3333-444455556666/ID
        /kubepods/pod0b5c3f4e-1111-2222-3333-444455556666/crio-ID
        ");
        insta::assert_snapshot!(of(Qos::Burstable), @"
        /kubepods/burstable/pod0b5c3f4e-1111-2222-3333-444455556666/ID
        /kubepods/burstable/pod0b5c3f4e-1111-2222-3333-444455556666/crio-ID
        ");
        insta::assert_snapshot!(of(Qos::BestEffort), @"
        /kubepods/besteffort/pod0b5c3f4e-1111-2222-3333-444455556666/ID
        /kubepods/besteffort/pod0b5c3f4e-1111-2222-3333-444455556666/crio-ID
        ");
    }

    #[test]
    fn a_kubelet_with_the_systemd_driver() {
        let plain = Driver::Systemd {
            stem: "kubepods".to_owned(),
        };
        let of = |qos| told("/kubepods.slice", plain.clone(), &container(Some(qos)));
        insta::assert_snapshot!(of(Qos::Guaranteed), @"
        /kubepods.slice/kubepods-pod0b5c3f4e_1111_2222_3333_444455556666.slice/cri-containerd-ID.scope
        /kubepods.slice/kubepods-pod0b5c3f4e_1111_2222_3333_444455556666.slice/crio-ID.scope
        /kubepods.slice/kubepods-pod0b5c3f4e_1111_2222_3333_444455556666.slice/docker-ID.scope
        ");
        insta::assert_snapshot!(of(Qos::Burstable), @"
        /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5c3f4e_1111_2222_3333_444455556666.slice/cri-containerd-ID.scope
        /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5c3f4e_1111_2222_3333_444455556666.slice/crio-ID.scope
        /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5c3f4e_1111_2222_3333_444455556666.slice/docker-ID.scope
        ");
        let prefixed = Driver::Systemd {
            stem: "kubelet-kubepods".to_owned(),
        };
        let path = "/kubelet.slice/kubelet-kubepods.slice";
        let nested = told(path, prefixed, &container(Some(Qos::BestEffort)));
        insta::assert_snapshot!(nested.lines().next().unwrap_or_default(), @"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod0b5c3f4e_1111_2222_3333_444455556666.slice/cri-containerd-ID.scope");
    }

    #[test]
    fn without_a_class_all_are_tried_and_odd_names_never() {
        let all = told("/kubepods", Driver::Cgroupfs, &container(None));
        assert_eq!(all.lines().count(), 6);
        let long = "x".repeat(129);
        for odd in ["", "..", "../../x", "a/b", "a b", long.as_str()] {
            for (pod_uid, id) in [(odd, ID), (UID, odd)] {
                let container = Container {
                    pod_uid: pod_uid.to_owned(),
                    qos: None,
                    id: id.to_owned(),
                };
                assert_eq!(told("/kubepods", Driver::Cgroupfs, &container), "");
            }
        }
    }

    /// Every version, driver, prefix and runtime, as a tree of directories.
    #[test]
    fn containers_are_found_in_every_kind_of_tree() {
        let slice_uid = UID.replace('-', "_");
        let v1 = ("memory/memory.usage_in_bytes", "memory", CgroupVersion::V1);
        let hybrid = ("memory/memory.usage_in_bytes", "memory", CgroupVersion::V1);
        let v2 = ("cgroup.controllers", "", CgroupVersion::V2);
        let table = [
            (
                "containerd, cgroupfs",
                v1,
                format!("kubepods/burstable/pod{UID}/{ID}"),
            ),
            (
                "containerd, cgroupfs",
                v2,
                format!("kubepods/burstable/pod{UID}/{ID}"),
            ),
            (
                "cri-o, cgroupfs",
                v2,
                format!("kubepods/burstable/pod{UID}/crio-{ID}"),
            ),
            (
                "hybrid",
                hybrid,
                format!("kubepods/burstable/pod{UID}/{ID}"),
            ),
            (
                "containerd, systemd",
                v2,
                format!(
                    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice_uid}.slice/cri-containerd-{ID}.scope"
                ),
            ),
            (
                "containerd, systemd",
                v1,
                format!(
                    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice_uid}.slice/cri-containerd-{ID}.scope"
                ),
            ),
            (
                "cri-o, systemd",
                v2,
                format!(
                    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice_uid}.slice/crio-{ID}.scope"
                ),
            ),
            (
                "a node in a container",
                v2,
                format!(
                    "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{slice_uid}.slice/cri-containerd-{ID}.scope"
                ),
            ),
            (
                "kubelets of a testbed",
                v1,
                format!("testbed/real-0/kubepods/burstable/pod{UID}/{ID}"),
            ),
            (
                "deep in a machine",
                v2,
                format!("docker/abc/kubelet/kubepods/burstable/pod{UID}/{ID}"),
            ),
        ];
        for (what, (marker, base, version), path) in table {
            let tree = tempfile::tempdir().unwrap();
            if what == "hybrid" {
                fs::create_dir(tree.path().join("unified")).unwrap();
                fs::write(tree.path().join("unified/cgroup.controllers"), "").unwrap();
            }
            let own = tree.path().join(base).join(&path);
            fs::create_dir_all(&own).unwrap();
            fs::write(tree.path().join(marker), "cpu memory pids\n").unwrap();
            // What CRI-O keeps beside a container is not the container.
            fs::create_dir(own.with_file_name(format!("crio-conmon-{ID}.scope"))).unwrap();
            let layout = Layout::detect(tree.path()).unwrap();
            assert_eq!(layout.version, version, "{what}");
            assert_eq!(layout.roots.len(), 1, "{what}");
            for qos in [Some(Qos::Burstable), None] {
                let found = layout.find(&container(qos)).unwrap();
                assert_eq!(found.as_deref(), Some(own.as_path()), "{what}");
            }
            let elsewhere = layout.find(&container(Some(Qos::BestEffort))).unwrap();
            assert_eq!(elsewhere, None, "{what}");
        }
    }

    #[test]
    fn a_tree_without_memory_is_told_and_one_without_pods_is_empty() {
        let tree = tempfile::tempdir().unwrap();
        let error = Layout::detect(tree.path()).unwrap_err();
        assert!(matches!(error, LayoutError::NoMemory { .. }), "{error}");
        fs::write(tree.path().join("cgroup.controllers"), "cpu pids").unwrap();
        assert!(Layout::detect(tree.path()).is_err(), "v2 without memory");
        fs::write(tree.path().join("cgroup.controllers"), "memory").unwrap();
        fs::create_dir_all(tree.path().join("system.slice/sshd.service")).unwrap();
        assert_eq!(Layout::detect(tree.path()).unwrap().roots, []);
    }

    #[test]
    fn a_wide_tree_is_given_up_in_time() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("cgroup.controllers"), "memory").unwrap();
        for kubelet in 0..ROOTS_MAX + 5 {
            let root = tree
                .path()
                .join(format!("k{kubelet}/kubepods/deeper/kubepods"));
            fs::create_dir_all(root).unwrap();
        }
        let layout = Layout::detect(tree.path()).unwrap();
        assert_eq!(layout.roots.len(), ROOTS_MAX);
        assert!(
            layout
                .roots
                .iter()
                .all(|root| root.path.ends_with("kubepods"))
        );
    }
}
