//! A pod's volumes on this machine: made before its first container starts, refreshed while it runs.
//!
//! Invariant: a kind of volume this module does not know is an error, never an empty directory.

pub(crate) mod claims;
pub(crate) mod content;
mod host_path;
mod publish;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume};
use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Uid, fchown, mkdirat, open, openat2};
use rustix::io::Errno;
use stoke_api::names::{DATA_DRIVER, DATA_DRIVER_DATASET};

use crate::pod_dir::{self, Durable, PodDir, PodDirError};
use crate::quantity;
use crate::resources::{self, MEMORY};
use crate::shim::protocol::{Mount, Tmpfs};
use crate::spec::{self, NodeFacts, Prepared, Sources, SpecError, VolumePlace};

use publish::Owner;

/// Why a pod's volumes are not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("volume {volume:?}: {error}")]
    Spec { volume: String, error: SpecError },
    #[error("volume {volume:?}: {problem}")]
    HostPath { volume: String, problem: String },
    #[error("volume {volume:?}: persistentvolumeclaim {claim:?} {problem}")]
    Claim {
        volume: String,
        claim: String,
        problem: String,
    },
    #[error("volume {volume:?}: cannot make {}", path.display())]
    Make {
        volume: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error("volume {volume:?}: subPath {sub_path:?} leads out of the volume")]
    Escapes { volume: String, sub_path: String },
    #[error("cannot write the pod's own files")]
    OwnFiles(#[from] PodDirError),
}

impl VolumeError {
    /// Whether the pod itself would have to change; otherwise what is missing may still appear.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Spec { error, .. } => error.is_final(),
            Self::Escapes { .. } => true,
            _ => false,
        }
    }
}

/// Directories of the claims a pod uses, by claim name.
pub(crate) type ClaimPaths = BTreeMap<String, PathBuf>;

/// Directories that hold the datasets a pod uses, by dataset name.
pub(crate) type DataPaths = BTreeMap<String, PathBuf>;

/// The dataset that a volume shows, if it is one that nodes fill.
pub(crate) fn dataset(volume: &Volume) -> Option<&str> {
    let source = volume
        .csi
        .as_ref()
        .filter(|source| source.driver == DATA_DRIVER)?;
    let attributes = source.volume_attributes.as_ref()?;
    attributes.get(DATA_DRIVER_DATASET).map(String::as_str)
}

/// What a pod's volumes are made of.
#[derive(Clone, Copy)]
pub(crate) struct Ingredients<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) dir: &'a PodDir,
    pub(crate) node: &'a NodeFacts,
    pub(crate) sources: &'a Sources,
    pub(crate) claims: &'a ClaimPaths,
    pub(crate) data: &'a DataPaths,
}

/// Makes everything a pod's containers will be shown.
pub(crate) fn prepare(of: Ingredients<'_>) -> Result<Prepared, VolumeError> {
    let mut prepared = Prepared::default();
    for volume in of
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
    {
        let place = make(of, volume, &mut prepared.tmpfs)?;
        prepared.volumes.insert(volume.name.clone(), place);
    }
    prepared.own_files = own_files(of.pod, of.dir, of.node)?;
    Ok(prepared)
}

/// Creates the directories that `subPath` mounts name, and makes sure that no link on the way leads out of the volume.
pub(crate) fn prepare_sub_paths(
    pod: &Pod,
    prepared: &Prepared,
    spec: &crate::shim::protocol::ShimSpec,
) -> Result<(), VolumeError> {
    let volumes: BTreeMap<&Path, &str> = prepared
        .volumes
        .iter()
        .map(|(name, place)| (place.path.as_path(), name.as_str()))
        .collect();
    let in_memory = |path: &Path| {
        prepared
            .tmpfs
            .iter()
            .any(|tmpfs| path.starts_with(&tmpfs.path))
    };
    for mount in spec
        .init
        .iter()
        .chain(&spec.containers)
        .flat_map(|container| &container.mounts)
    {
        let Some((root, name)) = volumes
            .iter()
            .find(|(root, _)| mount.source.starts_with(root) && mount.source != **root)
        else {
            continue;
        };
        let sub_path = mount.source.strip_prefix(root).unwrap_or(&mount.source);
        if in_memory(&mount.source) {
            let problem = format!("subPath {} of a volume in memory", sub_path.display());
            return Err(VolumeError::Spec {
                volume: (*name).to_owned(),
                error: SpecError::Unsupported(problem),
            });
        }
        make_beneath(root, sub_path, new_owner(pod)).map_err(|error| match error {
            Errno::XDEV => VolumeError::Escapes {
                volume: (*name).to_owned(),
                sub_path: sub_path.to_string_lossy().into_owned(),
            },
            error => VolumeError::Make {
                volume: (*name).to_owned(),
                path: mount.source.clone(),
                source: error.into(),
            },
        })?;
    }
    Ok(())
}

/// Makes what is missing of `path` below `root`. `EXDEV` if a link on the way leads out: the kernel resolves each step
/// beneath `root`, so that nothing is made outside even while somebody changes the links.
fn make_beneath(root: &Path, path: &Path, owner: Owner) -> Result<(), Errno> {
    let root = open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let at = |path: &Path, flags: OFlags| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(&root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    };
    match at(path, OFlags::PATH) {
        Err(Errno::NOENT) => {}
        found => return found.map(drop),
    }
    let mut made = PathBuf::from(".");
    for component in path.components() {
        let parent = at(&made, OFlags::PATH | OFlags::DIRECTORY)?;
        made.push(component);
        match at(&made, OFlags::PATH) {
            Err(Errno::NOENT) => {
                mkdirat(&parent, component.as_os_str(), Mode::from_raw_mode(0o777))?;
                let new = at(&made, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
                let (uid, gid) = (owner.uid.map(Uid::from_raw), owner.gid.map(Gid::from_raw));
                fchown(&new, uid, gid)?;
            }
            found => drop(found?),
        }
    }
    Ok(())
}

/// A directory made for a container belongs to the user that runs it.
fn new_owner(pod: &Pod) -> Owner {
    if !rustix::process::geteuid().is_root() {
        return Owner::default();
    }
    let context = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let id = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok());
    let uid = id(context.and_then(|context| context.run_as_user));
    let gid = id(context.and_then(|context| context.fs_group.or(context.run_as_group)));
    Owner { uid, gid }
}

/// Brings the files of configMap, secret and projected volumes up to date. Returns whether any changed.
pub(crate) fn refresh(
    pod: &Pod,
    dir: &PodDir,
    node: &NodeFacts,
    sources: &Sources,
) -> Result<bool, VolumeError> {
    let mut changed = false;
    for volume in pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
    {
        let files = content::files(pod, volume, node, sources);
        let files = files.map_err(|error| VolumeError::Spec {
            volume: volume.name.clone(),
            error,
        })?;
        if let Some(files) = files {
            changed |= publish_files(volume, dir, &files, owner(pod, node))?;
        }
    }
    Ok(changed)
}

/// Whether any volume follows API objects that may change.
pub(crate) fn has_refreshable(pod: &Pod) -> bool {
    let mut volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.projected.is_some()
            || volume.downward_api.is_some()
    })
}

/// Whom the files of a pod's volumes belong to: the user that runs it, and its `fsGroup`.
fn owner(pod: &Pod, node: &NodeFacts) -> Owner {
    if node.engine_uid != 0 {
        return Owner::default();
    }
    let Some(spec) = &pod.spec else {
        return Owner::default();
    };
    let context = spec.security_context.as_ref();
    let first = spec
        .containers
        .first()
        .and_then(|container| container.security_context.as_ref());
    let uid = first
        .and_then(|context| context.run_as_user)
        .or_else(|| context.and_then(|context| context.run_as_user));
    let gid = context.and_then(|context| context.fs_group);
    Owner {
        uid: uid.and_then(|id| u32::try_from(id).ok()),
        gid: gid.and_then(|id| u32::try_from(id).ok()),
    }
}

fn make(
    of: Ingredients<'_>,
    volume: &Volume,
    tmpfs: &mut Vec<Tmpfs>,
) -> Result<VolumePlace, VolumeError> {
    let Ingredients {
        pod,
        dir,
        node,
        sources,
        claims,
        data,
    } = of;
    let owner = owner(pod, node);
    let name = &volume.name;
    let spec_error = |error| VolumeError::Spec {
        volume: name.clone(),
        error,
    };
    if let Some(files) = content::files(pod, volume, node, sources).map_err(spec_error)? {
        publish_files(volume, dir, &files, owner)?;
        // Kubelets show these read-only: what is written there would be lost at the next change.
        return Ok(VolumePlace {
            path: files_dir(volume, dir),
            read_only: true,
        });
    }
    if let Some(source) = &volume.empty_dir {
        let path = dir.volume(name);
        shared_dir(&path, owner).map_err(|source| VolumeError::Make {
            volume: name.clone(),
            path: path.clone(),
            source,
        })?;
        if source.medium.as_deref() == Some("Memory") {
            let asked = source
                .size_limit
                .as_ref()
                .and_then(quantity::whole)
                .filter(|bytes| *bytes > 0);
            tmpfs.push(Tmpfs {
                path: path.clone(),
                size_bytes: memory_size(pod, node, asked),
            });
        }
        return Ok(VolumePlace {
            path,
            read_only: false,
        });
    }
    if let Some(source) = &volume.host_path {
        host_path::check(source).map_err(|problem| VolumeError::HostPath {
            volume: name.clone(),
            problem,
        })?;
        return Ok(VolumePlace {
            path: PathBuf::from(&source.path),
            read_only: false,
        });
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let claim_error = |problem: &str| VolumeError::Claim {
            volume: name.clone(),
            claim: source.claim_name.clone(),
            problem: problem.to_owned(),
        };
        let path = claims
            .get(&source.claim_name)
            .ok_or_else(|| claim_error("is not bound yet"))?;
        if !path.is_dir() {
            return Err(claim_error("has lost its directory"));
        }
        if owner.gid.is_some() {
            shared_group(path, owner).map_err(|source| VolumeError::Make {
                volume: name.clone(),
                path: path.clone(),
                source,
            })?;
        }
        return Ok(VolumePlace {
            path: path.clone(),
            read_only: source.read_only.unwrap_or(false),
        });
    }
    if let Some(path) = dataset(volume).and_then(|name| data.get(name)) {
        return Ok(VolumePlace {
            path: path.clone(),
            read_only: true,
        });
    }
    Err(spec_error(SpecError::Unsupported(
        "this kind of volume".to_owned(),
    )))
}

/// The size of a memory-backed volume: what it asks for, but no more than the pod may use, or the node has.
fn memory_size(pod: &Pod, node: &NodeFacts, asked: Option<u64>) -> Option<u64> {
    let most = resources::total_limit(pod, MEMORY)
        .or_else(|| node.allocatable.get(MEMORY).and_then(quantity::whole));
    match (asked, most) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, most) => asked.or(most),
    }
}

/// Whether any volume of the pod holds files of a secret.
pub(crate) fn has_secrets(pod: &Pod) -> bool {
    let mut volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(holds_secret)
}

fn holds_secret(volume: &Volume) -> bool {
    let projects_secret = |sources: &Vec<k8s_openapi::api::core::v1::VolumeProjection>| {
        sources.iter().any(|source| source.secret.is_some())
    };
    let projected = volume
        .projected
        .as_ref()
        .and_then(|projected| projected.sources.as_ref());
    volume.secret.is_some() || projected.is_some_and(projects_secret)
}

/// Where a volume of files lives: in memory, if there is some, for anything that may hold a secret.
fn files_dir(volume: &Volume, dir: &PodDir) -> PathBuf {
    if holds_secret(volume) {
        dir.secret_volume(&volume.name)
    } else {
        dir.volume(&volume.name)
    }
}

fn publish_files(
    volume: &Volume,
    dir: &PodDir,
    files: &content::Files,
    owner: Owner,
) -> Result<bool, VolumeError> {
    let path = files_dir(volume, dir);
    publish::publish(&path, files, owner).map_err(|source| VolumeError::Make {
        volume: volume.name.clone(),
        path,
        source,
    })
}

/// A directory that any user of the pod may write to; the pod's own directory above it keeps everybody else out.
fn shared_dir(path: &Path, owner: Owner) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o777)
        .create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))?;
    if owner.gid.is_some() {
        shared_group(path, owner)
    } else {
        Ok(())
    }
}

/// Gives a directory to the pod's `fsGroup`, for new files as well.
fn shared_group(path: &Path, owner: Owner) -> io::Result<()> {
    Owner {
        uid: None,
        gid: owner.gid,
    }
    .own(path)?;
    let mode = fs::metadata(path)?.permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o2770))
}

/// `/etc/hosts` and `/etc/hostname` with the pod's own name in them; programs look themselves up.
fn own_files(pod: &Pod, dir: &PodDir, node: &NodeFacts) -> Result<Vec<Mount>, PodDirError> {
    let of_host =
        fs::read_to_string("/etc/hosts").unwrap_or_else(|_| "127.0.0.1\tlocalhost\n".to_owned());
    let text = hosts(pod, node, &of_host);
    pod_dir::replace(&dir.hosts(), text.as_bytes(), Durable::No)?;
    let text = format!("{}\n", spec::hostname(pod));
    pod_dir::replace(&dir.hostname(), text.as_bytes(), Durable::No)?;
    let readable = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).map_err(|source| {
            PodDirError::Write {
                path: path.to_owned(),
                source,
            }
        })
    };
    readable(&dir.hosts())?;
    readable(&dir.hostname())?;
    let mount = |source: PathBuf, target: &str| Mount {
        source,
        target: PathBuf::from(target),
        read_only: false,
    };
    let targets = [
        (dir.hosts(), "/etc/hosts"),
        (dir.hostname(), "/etc/hostname"),
    ];
    // What the host does not have is not shown: there would be nothing to put it over.
    Ok(targets
        .into_iter()
        .filter(|(_, target)| Path::new(target).is_file())
        .map(|(source, target)| mount(source, target))
        .collect())
}

/// The host's own table, the pod's name, and the aliases it asks for.
fn hosts(pod: &Pod, node: &NodeFacts, of_host: &str) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    let name = spec::hostname(pod);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let long = spec
        .subdomain
        .filter(|name| !name.is_empty())
        .map(|subdomain| {
            format!("{name}.{subdomain}.{namespace}.svc.cluster.local\t{name}.{subdomain}\t")
        });
    let own = format!("{}\t{}{name}", node.address, long.unwrap_or_default());
    let aliases = spec.host_aliases.iter().flatten();
    let aliases = aliases.map(|alias| {
        format!(
            "{}\t{}",
            alias.ip,
            alias.hostnames.clone().unwrap_or_default().join("\t")
        )
    });
    let lines: Vec<String> = [of_host.trim_end().to_owned(), own]
        .into_iter()
        .chain(aliases)
        .collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests_support::{facts, pod, sources};
    use serde_json::{Value, json};

    fn prepare_in(
        root: &Path,
        volumes: Value,
        mounts: Value,
        claims: &ClaimPaths,
    ) -> Result<Prepared, VolumeError> {
        let pod = pod(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u-1"},
            "spec": {"volumes": volumes, "containers": [
                {"name": "c", "command": ["x"], "volumeMounts": mounts, "resources": {"limits": {"memory": "1Gi"}}},
            ]},
        }));
        let dir = PodDir::new(root, "u-1");
        dir.create()?;
        let prepared = prepare(Ingredients {
            pod: &pod,
            dir: &dir,
            node: &facts(),
            sources: &sources(),
            claims,
            data: &DataPaths::from([("words".to_owned(), root.join("words"))]),
        })?;
        let spec = spec::shim_spec(&pod, &facts(), &sources(), &prepared).expect("a spec");
        prepare_sub_paths(&pod, &prepared, &spec)?;
        Ok(prepared)
    }

    #[test]
    fn makes_what_the_pod_names() {
        let root = tempfile::tempdir().expect("a directory");
        let claim = root.path().join("claim");
        fs::create_dir_all(&claim).expect("made");
        let claims = ClaimPaths::from([("ckpt".to_owned(), claim.clone())]);
        let prepared = prepare_in(
            root.path(),
            json!([
                {"name": "scratch", "emptyDir": {}},
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "login", "secret": {"secretName": "login"}},
                {"name": "ckpt", "persistentVolumeClaim": {"claimName": "ckpt"}},
                {"name": "made", "hostPath": {"path": root.path().join("made"), "type": "DirectoryOrCreate"}},
            ]),
            json!([{"name": "ckpt", "mountPath": "/ckpt", "subPath": "a/b"}]),
            &claims,
        )
        .expect("prepared");
        assert!(prepared.volumes["scratch"].path.is_dir());
        assert_eq!(prepared.tmpfs.len(), 1);
        assert_eq!(
            prepared.tmpfs[0].size_bytes,
            Some(1 << 30),
            "no more than the pod's memory"
        );
        let read = |volume: &str, file: &str| {
            fs::read_to_string(prepared.volumes[volume].path.join(file)).expect("readable")
        };
        assert_eq!(read("settings", "lr"), "0.1");
        assert_eq!(read("login", "token"), "hush!");
        assert!(prepared.volumes["settings"].read_only);
        assert_eq!(prepared.volumes["ckpt"].path, claim);
        assert!(claim.join("a/b").is_dir(), "the subPath is made");
        assert!(root.path().join("made").is_dir());
    }

    #[test]
    fn a_sub_path_cannot_leave_through_a_link() {
        let root = tempfile::tempdir().expect("a directory");
        let (claim, outside) = (root.path().join("claim"), root.path().join("outside"));
        fs::create_dir_all(claim.join("in")).expect("made");
        fs::create_dir_all(&outside).expect("made");
        std::os::unix::fs::symlink(&outside, claim.join("out")).expect("linked");
        std::os::unix::fs::symlink("../outside", claim.join("up")).expect("linked");
        std::os::unix::fs::symlink("in", claim.join("link")).expect("linked");
        let claims = ClaimPaths::from([("ckpt".to_owned(), claim.clone())]);
        let prepare = |sub_path: &str| {
            let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "ckpt"}}]);
            let mounts = json!([{"name": "v", "mountPath": "/x", "subPath": sub_path}]);
            prepare_in(root.path(), volumes, mounts, &claims)
        };
        for sub_path in ["out", "out/new", "up", "up/new/deep"] {
            let error = prepare(sub_path).expect_err("refused");
            assert!(
                matches!(error, VolumeError::Escapes { .. }),
                "{sub_path}: {error}"
            );
        }
        assert!(is_empty(&outside), "nothing is made outside");
        prepare("link/new/deep").expect("a link within the volume is fine");
        assert!(claim.join("in/new/deep").is_dir());
    }

    fn is_empty(dir: &Path) -> bool {
        fs::read_dir(dir).expect("readable").next().is_none()
    }

    #[test]
    fn what_is_missing_is_said() {
        let root = tempfile::tempdir().expect("a directory");
        let table = [
            (
                json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
                r#"volume "v": persistentvolumeclaim "c" is not bound yet"#,
                false,
            ),
            (
                json!([{"name": "v", "secret": {"secretName": "none"}}]),
                r#"volume "v": secret "none" not found"#,
                false,
            ),
            (
                json!([{"name": "v", "nfs": {"server": "s", "path": "/"}}]),
                r#"volume "v": this node does not support this kind of volume"#,
                true,
            ),
            (
                json!([{"name": "v", "hostPath": {"path": "/no/such", "type": "Directory"}}]),
                r#"volume "v": hostPath type check failed: /no/such is not a directory"#,
                false,
            ),
        ];
        for (volumes, expected, is_final) in table {
            let error = prepare_in(root.path(), volumes, json!([]), &ClaimPaths::new())
                .expect_err(expected);
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.is_final(), is_final, "{expected}");
        }
    }

    #[test]
    fn a_pod_finds_its_own_name() {
        let pod = pod(json!({
            "metadata": {"name": "job-1-0", "namespace": "ns"},
            "spec": {"containers": [], "hostname": "job-0", "subdomain": "job", "hostAliases": [{"ip": "10.1.1.1", "hostnames": ["a", "b"]}]},
        }));
        insta::assert_snapshot!(hosts(&pod, &facts(), "127.0.0.1 localhost\n\n"), @r"
        127.0.0.1 localhost
        10.0.0.7	job-0.job.ns.svc.cluster.local	job-0.job	job-0
        10.1.1.1	a	b
        ");
    }
}
