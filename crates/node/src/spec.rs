//! A Pod and what it refers to, turned into what a shim runs.
//!
//! Pure: objects are fetched and volumes are made elsewhere, and come in as values. Invariant: what cannot be honoured is
//! refused with its name; nothing in a pod's spec that changes what its process may see or do is passed over in silence.

pub(crate) mod downward;
mod env;
mod expand;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, VolumeMount};

use crate::cgroup::CgroupSpec;
use crate::gpu::{self, Gpu};
use crate::quantity::ResourceList;
use crate::resources::{self, CPU, MEMORY};
use crate::shim::protocol::{self, Backoff, ContainerSpec, Mount, RestartPolicy, ShimSpec, Tmpfs};
use crate::vigil;
use crate::volumes::content::stays_inside;

pub(crate) use support::unsupported;

/// What a pod may learn or need of its node.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    pub name: String,
    /// The node's address, which is also the pods': they share the host's network.
    pub address: String,
    pub allocatable: ResourceList,
    /// What stands in for an image's environment: `PATH`, `HOME` and the like.
    pub base_env: BTreeMap<String, String>,
    /// The engine's own user, which an ordinary user's processes cannot leave.
    pub engine_uid: u32,
    pub has_gpus: bool,
    /// A mount namespace costs nothing here (we are root and may make one), so every container gets its own files in
    /// `/etc`. Elsewhere only those that need a namespace anyway.
    pub free_mounts: bool,
    /// Log files are rotated at this size.
    pub log_max_bytes: u64,
    pub log_max_files: u32,
    pub pids_max: Option<u64>,
}

/// Why a container cannot be made of a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        key: String,
        kind: &'static str,
        namespace: String,
        name: String,
    },
    #[error("unsupported field reference {0:?}")]
    UnknownField(String),
    #[error("container {0:?} is not part of the pod")]
    UnknownContainer(String),
    #[error("{0:?} cannot be the name of an environment variable")]
    BadVariable(String),
    #[error("path {0:?} leaves its volume")]
    PathEscapes(String),
    #[error("mount path {0:?} must be absolute and without `..`")]
    BadMountPath(String),
    #[error("volume {0:?} is not part of the pod")]
    UnknownVolume(String),
    #[error("container {0} has no command, and there is no image to take one from")]
    NoCommand(String),
    #[error("container {container} has runAsNonRoot and would run as root")]
    RunsAsRoot { container: String },
    #[error(
        "container {container} wants user {wanted}, but the engine is run by user {engine} and cannot change to it"
    )]
    OtherUser {
        container: String,
        wanted: i64,
        engine: u32,
    },
    #[error("this node does not support {0}")]
    Unsupported(String),
}

impl SpecError {
    pub(crate) fn no_key(key: &str, kind: &'static str, namespace: &str, name: &str) -> Self {
        Self::NoKey {
            key: key.to_owned(),
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Whether the pod itself would have to change; otherwise an object may still appear.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(
            self,
            Self::NoConfigMap(_) | Self::NoSecret(_) | Self::NoKey { .. }
        )
    }
}

/// The configMaps and secrets a pod refers to, as found in its namespace.
#[derive(Clone, Default, PartialEq)]
pub struct Sources {
    namespace: String,
    config_maps: BTreeMap<String, ConfigMap>,
    secrets: BTreeMap<String, Secret>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

impl Sources {
    pub(crate) fn new(namespace: &str, config_maps: Vec<ConfigMap>, secrets: Vec<Secret>) -> Self {
        let named = |name: &Option<String>| name.clone().unwrap_or_default();
        Self {
            namespace: namespace.to_owned(),
            config_maps: config_maps
                .into_iter()
                .map(|map| (named(&map.metadata.name), map))
                .collect(),
            secrets: secrets
                .into_iter()
                .map(|secret| (named(&secret.metadata.name), secret))
                .collect(),
        }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn config_map(
        &self,
        name: &str,
        optional: bool,
    ) -> Result<Option<&ConfigMap>, SpecError> {
        match self.config_maps.get(name) {
            None if !optional => Err(SpecError::NoConfigMap(name.to_owned())),
            found => Ok(found),
        }
    }

    pub(crate) fn secret(&self, name: &str, optional: bool) -> Result<Option<&Secret>, SpecError> {
        match self.secrets.get(name) {
            None if !optional => Err(SpecError::NoSecret(name.to_owned())),
            found => Ok(found),
        }
    }
}

/// The names of the objects a pod refers to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct References {
    pub(crate) config_maps: BTreeSet<String>,
    pub(crate) secrets: BTreeSet<String>,
    pub(crate) claims: BTreeSet<String>,
}

pub(crate) fn references(pod: &Pod) -> References {
    let mut found = References::default();
    let Some(spec) = &pod.spec else { return found };
    for container in spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
    {
        for from in container.env_from.iter().flatten() {
            found.config_maps.extend(
                from.config_map_ref
                    .as_ref()
                    .map(|reference| reference.name.clone()),
            );
            found.secrets.extend(
                from.secret_ref
                    .as_ref()
                    .map(|reference| reference.name.clone()),
            );
        }
        for source in container
            .env
            .iter()
            .flatten()
            .filter_map(|variable| variable.value_from.as_ref())
        {
            found.config_maps.extend(
                source
                    .config_map_key_ref
                    .as_ref()
                    .map(|reference| reference.name.clone()),
            );
            found.secrets.extend(
                source
                    .secret_key_ref
                    .as_ref()
                    .map(|reference| reference.name.clone()),
            );
        }
    }
    for volume in spec.volumes.iter().flatten() {
        found
            .config_maps
            .extend(volume.config_map.as_ref().map(|source| source.name.clone()));
        found.secrets.extend(
            volume
                .secret
                .as_ref()
                .and_then(|source| source.secret_name.clone()),
        );
        found.claims.extend(
            volume
                .persistent_volume_claim
                .as_ref()
                .map(|source| source.claim_name.clone()),
        );
        for source in volume
            .projected
            .iter()
            .flat_map(|projected| projected.sources.iter().flatten())
        {
            found
                .config_maps
                .extend(source.config_map.as_ref().map(|source| source.name.clone()));
            found
                .secrets
                .extend(source.secret.as_ref().map(|source| source.name.clone()));
        }
    }
    found
}

/// Where a volume is on the host, and whether all of it is read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumePlace {
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
}

/// What the IO side prepared for a pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prepared {
    pub(crate) volumes: BTreeMap<String, VolumePlace>,
    pub(crate) tmpfs: Vec<Tmpfs>,
    pub(crate) cgroup: Option<CgroupSpec>,
    pub(crate) gpus: Vec<Gpu>,
    /// The pod's own `/etc/hosts` and `/etc/hostname`.
    pub(crate) own_files: Vec<Mount>,
}

/// The pod's host name: what it asks for, else its own name, cut to what the kernel takes.
pub(crate) fn hostname(pod: &Pod) -> String {
    let asked = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.hostname.clone())
        .filter(|name| !name.is_empty());
    let name = asked
        .or_else(|| pod.metadata.name.clone())
        .unwrap_or_default();
    name.chars()
        .take(63)
        .collect::<String>()
        .trim_end_matches(['-', '.'])
        .to_owned()
}

/// The whole pod for its shim.
pub(crate) fn shim_spec(
    pod: &Pod,
    node: &NodeFacts,
    sources: &Sources,
    prepared: &Prepared,
) -> Result<ShimSpec, SpecError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let container = |container: &Container| container_spec(pod, container, node, sources, prepared);
    Ok(ShimSpec {
        version: protocol::VERSION,
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        hostname: hostname(pod),
        restart_policy: match spec.restart_policy.as_deref() {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        },
        cgroup: prepared.cgroup.clone(),
        tmpfs: prepared.tmpfs.clone(),
        init: spec
            .init_containers
            .iter()
            .flatten()
            .map(container)
            .collect::<Result<_, _>>()?,
        containers: spec
            .containers
            .iter()
            .map(container)
            .collect::<Result<_, _>>()?,
        log_max_bytes: node.log_max_bytes,
        log_max_files: node.log_max_files,
        backoff: Backoff::default(),
    })
}

fn container_spec(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    sources: &Sources,
    prepared: &Prepared,
) -> Result<ContainerSpec, SpecError> {
    let declared = env::declared(pod, container, node, sources)?;
    let argv: Vec<String> = container
        .command
        .iter()
        .flatten()
        .chain(container.args.iter().flatten())
        .map(|word| expand::expand(word, |name| declared.get(name).cloned()))
        .collect();
    if container.command.as_ref().is_none_or(Vec::is_empty) {
        return Err(SpecError::NoCommand(container.name.clone()));
    }
    let needs_mounts = container
        .volume_mounts
        .as_ref()
        .is_some_and(|mounts| !mounts.is_empty());
    let mut mounts = if needs_mounts || node.free_mounts {
        prepared.own_files.clone()
    } else {
        Vec::new()
    };
    for mount in container.volume_mounts.iter().flatten() {
        mounts.push(bind(mount, &prepared.volumes, &declared)?);
    }
    // Outer mounts before the ones inside them.
    mounts.sort_by_key(|mount| mount.target.components().count());

    let user = user(pod, container, node)?;
    let mut env = node.base_env.clone();
    env.insert("HOSTNAME".to_owned(), hostname(pod));
    env.extend(declared);
    env.extend(
        gpu::environment(node.has_gpus, &prepared.gpus)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value)),
    );
    let escalation = container
        .security_context
        .as_ref()
        .and_then(|context| context.allow_privilege_escalation);
    Ok(ContainerSpec {
        name: container.name.clone(),
        argv,
        env: env.into_iter().collect(),
        cwd: container
            .working_dir
            .as_ref()
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from),
        mounts,
        memory_limit_bytes: resources::memory_limit(container),
        memory_max_bytes: memory_max(pod, container),
        cpu_request_millis: resources::request(container, CPU).filter(|millis| *millis > 0),
        cpu_limit_millis: resources::limit(container, CPU),
        pids_max: node.pids_max,
        uid: user.uid,
        gid: user.gid,
        groups: user.groups,
        no_new_privileges: escalation == Some(false),
        oom_score_adj: Some(oom_score_adj(pod, container, node)),
        stop_signal: None,
    })
}

/// What the limit of a job's worker may be raised to.
fn memory_max(pod: &Pod, container: &Container) -> Option<u64> {
    let (worker, terms) = vigil::terms(pod, Duration::ZERO)?;
    (worker == container.name && terms.max > terms.first).then_some(terms.max)
}

fn bind(
    mount: &VolumeMount,
    volumes: &BTreeMap<String, VolumePlace>,
    env: &env::Environment,
) -> Result<Mount, SpecError> {
    let volume = volumes
        .get(&mount.name)
        .ok_or_else(|| SpecError::UnknownVolume(mount.name.clone()))?;
    let target = Path::new(&mount.mount_path);
    let plain =
        |component: Component<'_>| matches!(component, Component::RootDir | Component::Normal(_));
    if !target.is_absolute() || target.parent().is_none() || !target.components().all(plain) {
        return Err(SpecError::BadMountPath(mount.mount_path.clone()));
    }
    let sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
        (_, Some(expression)) if !expression.is_empty() => {
            Some(expand::expand(expression, |name| env.get(name).cloned()))
        }
        (Some(path), _) if !path.is_empty() => Some(path.clone()),
        _ => None,
    };
    let source = match sub_path {
        Some(path) if !stays_inside(&path) => return Err(SpecError::PathEscapes(path)),
        Some(path) => volume.path.join(path),
        None => volume.path.clone(),
    };
    Ok(Mount {
        source,
        target: target.to_owned(),
        read_only: volume.read_only || mount.read_only.unwrap_or(false),
    })
}

struct User {
    uid: Option<u32>,
    gid: Option<u32>,
    groups: Vec<u32>,
}

fn user(pod: &Pod, container: &Container, node: &NodeFacts) -> Result<User, SpecError> {
    let for_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref();
    let uid = own
        .and_then(|context| context.run_as_user)
        .or_else(|| for_pod.and_then(|context| context.run_as_user));
    let gid = own
        .and_then(|context| context.run_as_group)
        .or_else(|| for_pod.and_then(|context| context.run_as_group));
    let non_root = own
        .and_then(|context| context.run_as_non_root)
        .or_else(|| for_pod.and_then(|context| context.run_as_non_root));
    if non_root == Some(true) && uid.unwrap_or(i64::from(node.engine_uid)) == 0 {
        return Err(SpecError::RunsAsRoot {
            container: container.name.clone(),
        });
    }
    if let Some(wanted) = uid
        && node.engine_uid != 0
        && wanted != i64::from(node.engine_uid)
    {
        return Err(SpecError::OtherUser {
            container: container.name.clone(),
            wanted,
            engine: node.engine_uid,
        });
    }
    let id = |id: i64| {
        u32::try_from(id).map_err(|_| SpecError::Unsupported(format!("the user or group id {id}")))
    };
    let supplemental = for_pod
        .and_then(|context| context.supplemental_groups.clone())
        .unwrap_or_default();
    let fs_group = for_pod.and_then(|context| context.fs_group);
    // An ordinary user can change neither user nor groups, and asking for its own is asking for nothing.
    if node.engine_uid != 0 {
        return Ok(User {
            uid: None,
            gid: None,
            groups: Vec::new(),
        });
    }
    Ok(User {
        uid: uid.map(id).transpose()?,
        gid: gid.map(id).transpose()?,
        groups: supplemental
            .into_iter()
            .chain(fs_group)
            .map(id)
            .collect::<Result<_, _>>()?,
    })
}

/// How early the kernel takes this container when the whole machine runs out of memory, by the kubelet's rule.
fn oom_score_adj(pod: &Pod, container: &Container, node: &NodeFacts) -> i32 {
    match resources::qos_class(pod) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let capacity = node
                .allocatable
                .get(MEMORY)
                .and_then(crate::quantity::whole)
                .unwrap_or(0)
                .max(1);
            let request = resources::request(container, MEMORY)
                .unwrap_or(0)
                .min(capacity);
            let share = u128::from(request) * 1000 / u128::from(capacity);
            (1000 - share as i32).clamp(3, 999)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests_support;

#[cfg(test)]
mod tests;
