//! Persistent volume claims as directories: a provisioner small enough for one machine.
//!
//! A claim without a volume gets a directory `volumes/<namespace>/<claim>/` and a `PersistentVolume` that points to it. When
//! the claim goes, the volume's reclaim policy decides: `Delete` removes directory and volume, `Retain` keeps both. Sizes
//! are recorded but not enforced: it is the host's disk.
//!
//! Invariant: only directories this module made, below its own root, are ever removed, and not while a pod uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{
    HostPathVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
    PersistentVolumeSpec, Pod,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::causes::chain;
use crate::events::Recorder;
use crate::remove::remove_tree;
use crate::spec;
use crate::status;
use crate::sweep;

const PROVISIONER: &str = "stokehold.dev/directory";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// How soon a claim that could not be handled, or is still in use, is looked at again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How often it is looked for what claims left behind.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// (namespace, claim name).
type ClaimKey = (String, String);

/// Directories of bound claims.
pub(crate) type Bound = BTreeMap<ClaimKey, PathBuf>;

/// What could not be done for a claim.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("the API server refused")]
    Api(#[from] kube::Error),
    #[error("cannot make the directory {}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot remove the directory {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Unsupported(String),
}

/// How the names of directories that are being removed begin; no claim's name does.
const ASIDE: &str = ".removed-";

/// Provisions claims until told to stop, and publishes where the bound ones are.
pub(crate) struct Provisioner {
    pub(crate) client: Client,
    /// `volumes/` in the data directory.
    pub(crate) root: PathBuf,
    pub(crate) bound: watch::Sender<Bound>,
    pub(crate) events: Recorder,
}

impl Provisioner {
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        // Found before anything new can be moved aside; how long it takes to remove them is nobody's concern.
        let left = leftovers(&self.root);
        tokio::task::spawn_blocking(move || {
            for path in left {
                if let Err(error) = remove_tree(&path) {
                    tracing::warn!(path = %path.display(), %error, "data of a deleted claim could not be removed");
                }
            }
        });
        let claims: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let mut stream = pin!(watcher(claims, watcher::Config::default()).default_backoff());
        let mut known: BTreeMap<ClaimKey, PersistentVolumeClaim> = BTreeMap::new();
        let mut again: BTreeSet<ClaimKey> = BTreeSet::new();
        // Whether all claims are known: without that, none can be told to be gone.
        let mut is_whole = false;
        let mut told = BTreeSet::new();
        let mut sweeps = tokio::time::interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                event = stream.next() => event,
                _ = sweeps.tick(), if is_whole => {
                    self.sweep(&known, &mut told).await;
                    continue;
                }
                () = tokio::time::sleep(AGAIN_AFTER), if !again.is_empty() => {
                    for key in std::mem::take(&mut again) {
                        if let Some(claim) = known.get(&key)
                            && !self.handle(claim).await
                        {
                            again.insert(key);
                        }
                    }
                    continue;
                }
            };
            match event {
                None => return,
                Some(Err(error)) => tracing::debug!(%error, "the watch on claims was interrupted"),
                Some(Ok(watcher::Event::Init)) => {
                    is_whole = false;
                    known.clear();
                }
                Some(Ok(watcher::Event::InitApply(claim) | watcher::Event::Apply(claim))) => {
                    let key = key(&claim);
                    if !self.handle(&claim).await {
                        again.insert(key.clone());
                    }
                    known.insert(key, claim);
                }
                Some(Ok(watcher::Event::InitDone)) => {
                    is_whole = true;
                    self.sweep(&known, &mut told).await;
                }
                Some(Ok(watcher::Event::Delete(claim))) => {
                    known.remove(&key(&claim));
                    self.forget(&claim).await;
                }
            }
        }
    }

    /// Whether the claim needs no further attention.
    async fn handle(&self, claim: &PersistentVolumeClaim) -> bool {
        let done = if claim.metadata.deletion_timestamp.is_some() {
            self.let_go(claim).await
        } else {
            self.bind(claim).await
        };
        match done {
            Ok(done) => done,
            Err(ClaimError::Unsupported(problem)) => {
                self.events
                    .warning(&claim.object_ref(&()), "ProvisioningFailed", problem);
                true
            }
            // Somebody changed it meanwhile, so that the next event is on its way.
            Err(ClaimError::Api(kube::Error::Api(status))) if status.is_conflict() => true,
            Err(error) => {
                tracing::warn!(claim = claim.name_any(), error = %chain(&error), "a claim could not be handled yet");
                self.events
                    .warning(&claim.object_ref(&()), "ProvisioningFailed", chain(&error));
                false
            }
        }
    }

    async fn bind(&self, claim: &PersistentVolumeClaim) -> Result<bool, ClaimError> {
        let spec = claim.spec.clone().unwrap_or_default();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = match spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
            // Somebody chose the volume; without it the claim waits, as on a cluster.
            Some(name) => match volumes.get_opt(name).await? {
                Some(volume) => volume,
                None => return Ok(false),
            },
            None => self.provision(claim, &volumes).await?,
        };
        let path = directory(&volume).ok_or_else(|| {
            ClaimError::Unsupported(format!(
                "volume {} is neither hostPath nor local",
                volume.name_any()
            ))
        })?;
        // Our own writes come back as events, the first of them before the last is done.
        let by_us =
            spec.volume_name.is_some() && self.bound.borrow().get(&key(claim)) == Some(&path);
        if !is_bound(claim) && !by_us {
            self.write_binding(claim, &volume, &volumes).await?;
            self.events.normal(
                &claim.object_ref(&()),
                "ProvisioningSucceeded",
                format!("Successfully provisioned volume {}", volume.name_any()),
            );
        }
        self.bound
            .send_if_modified(|bound| bound.insert(key(claim), path.clone()) != Some(path));
        Ok(true)
    }

    /// Makes the directory and its volume, or finds those of an earlier, interrupted try.
    async fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        volumes: &Api<PersistentVolume>,
    ) -> Result<PersistentVolume, ClaimError> {
        let spec = claim.spec.clone().unwrap_or_default();
        if spec.volume_mode.as_deref() == Some("Block") {
            return Err(ClaimError::Unsupported(
                "block volumes are not supported: volumes are directories here".to_owned(),
            ));
        }
        if spec.selector.is_some() || spec.data_source.is_some() || spec.data_source_ref.is_some() {
            return Err(ClaimError::Unsupported(
                "claims with a selector or a data source are not supported".to_owned(),
            ));
        }
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        if let Some(volume) = volumes.get_opt(&name).await? {
            return Ok(volume);
        }
        let path = self.make_directory(claim)?;
        let volume = volume(claim, &name, &path);
        match volumes.create(&PostParams::default(), &volume).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                Ok(volumes.get(&name).await?)
            }
            created => Ok(created?),
        }
    }

    /// A new directory for the claim. One that is already there belongs to a retained volume of an earlier claim of that
    /// name, whose data must neither be lost nor be found by the new claim.
    fn make_directory(&self, claim: &PersistentVolumeClaim) -> Result<PathBuf, ClaimError> {
        let (namespace, name) = key(claim);
        let is_name =
            |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
        if !is_name(&namespace) || !is_name(&name) {
            return Err(ClaimError::Unsupported(format!(
                "{namespace}/{name} cannot be a directory"
            )));
        }
        let parent = self.root.join(&namespace);
        let make = |path: &Path| -> io::Result<()> {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&parent)?;
            fs::DirBuilder::new().mode(0o777).create(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o777))
        };
        let plain = parent.join(&name);
        match make(&plain) {
            Ok(()) => return Ok(plain),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_empty(&plain) => {
                return Ok(plain);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                return Err(ClaimError::Make {
                    path: plain,
                    source,
                });
            }
        }
        let unique = parent.join(format!("{name}-{}", claim.uid().unwrap_or_default()));
        match make(&unique) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(ClaimError::Make {
                path: unique,
                source,
            }),
            _ => Ok(unique),
        }
    }

    async fn write_binding(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        volumes: &Api<PersistentVolume>,
    ) -> Result<(), ClaimError> {
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let volume_spec = volume.spec.clone().unwrap_or_default();
        let params = PatchParams::default();
        if volume_spec
            .claim_ref
            .as_ref()
            .and_then(|reference| reference.uid.clone())
            != claim.uid()
        {
            if volume_spec
                .claim_ref
                .as_ref()
                .is_some_and(|reference| reference.uid.is_some())
            {
                return Err(ClaimError::Unsupported(format!(
                    "volume {} belongs to another claim",
                    volume.name_any()
                )));
            }
            let patch = json!({"metadata": {"resourceVersion": volume.resource_version()}, "spec": {"claimRef": claim.object_ref(&())}});
            volumes
                .patch(&volume.name_any(), &params, &Patch::Merge(patch))
                .await?;
        }
        let mut finalizers = claim.finalizers().to_vec();
        if !finalizers.iter().any(|name| name == PROTECTION) {
            finalizers.push(PROTECTION.to_owned());
        }
        let patch = json!({
            "metadata": {
                "resourceVersion": claim.resource_version(),
                "finalizers": finalizers,
                "annotations": {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"},
            },
            "spec": {"volumeName": volume.name_any()},
        });
        claims
            .patch(&claim.name_any(), &params, &Patch::Merge(patch))
            .await?;
        let status = json!({"status": {"phase": "Bound", "accessModes": volume_spec.access_modes, "capacity": volume_spec.capacity}});
        claims
            .patch_status(&claim.name_any(), &params, &Patch::Merge(status))
            .await?;
        volumes
            .patch_status(
                &volume.name_any(),
                &params,
                &Patch::Merge(json!({"status": {"phase": "Bound"}})),
            )
            .await?;
        Ok(())
    }

    /// Lets a claim that is being deleted go, once no pod that may still run uses it.
    async fn let_go(&self, claim: &PersistentVolumeClaim) -> Result<bool, ClaimError> {
        if !claim.finalizers().iter().any(|name| name == PROTECTION) {
            return Ok(true);
        }
        let namespace = claim.namespace().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let pods = pods.list(&ListParams::default()).await?;
        let uses = |pod: &Pod| {
            spec::references(pod).claims.contains(&claim.name_any())
                && !status::recorded_phase(pod).is_some_and(status::Phase::is_terminal)
        };
        if pods.items.iter().any(uses) {
            return Ok(false);
        }
        let left: Vec<&String> = claim
            .finalizers()
            .iter()
            .filter(|name| *name != PROTECTION)
            .collect();
        let patch =
            json!({"metadata": {"resourceVersion": claim.resource_version(), "finalizers": left}});
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        match claims
            .patch(
                &claim.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await
        {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(true),
            patched => patched.map(|_| true).map_err(ClaimError::from),
        }
    }

    /// A claim is gone: so is its place in the map, and its volume is reclaimed.
    async fn forget(&self, claim: &PersistentVolumeClaim) {
        self.bound
            .send_if_modified(|bound| bound.remove(&key(claim)).is_some());
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let Some(name) = claim
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_name.clone())
        else {
            return;
        };
        let reclaimed = async {
            match volumes.get_opt(&name).await? {
                Some(volume) if owner_uid(&volume) == claim.uid() => {
                    self.reclaim(&volume, &volumes).await
                }
                _ => Ok(()),
            }
        };
        if let Err(error) = reclaimed.await {
            tracing::warn!(volume = name, error = %chain(&error), "a volume could not be reclaimed; it is tried again at the next start");
        }
    }

    /// What claims left behind that went while nobody looked, or could not be reclaimed then. `told` are directories that were spoken of.
    async fn sweep(
        &self,
        known: &BTreeMap<ClaimKey, PersistentVolumeClaim>,
        told: &mut BTreeSet<PathBuf>,
    ) {
        let swept = async {
            self.reclaim_lost(known).await?;
            let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
            let volumes = volumes.list(&ListParams::default()).await?;
            let named = volumes.iter().filter_map(directory).collect();
            Ok::<_, ClaimError>(sweep::volumes(&self.root, &named))
        };
        match swept.await {
            Ok(kept) => {
                for path in kept.into_iter().filter(|path| told.insert(path.clone())) {
                    tracing::info!(path = %path.display(), "no volume names this directory; there is data in it, and it is kept");
                }
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "volumes of vanished claims were not looked at");
            }
        }
    }

    /// Reclaims volumes whose claims went while nobody looked.
    async fn reclaim_lost(
        &self,
        known: &BTreeMap<ClaimKey, PersistentVolumeClaim>,
    ) -> Result<(), ClaimError> {
        let living: BTreeSet<String> = known.values().filter_map(ResourceExt::uid).collect();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        for volume in volumes.list(&ListParams::default()).await? {
            let lost = owner_uid(&volume).is_some_and(|uid| !living.contains(&uid));
            if lost
                && volume.annotations().get(PROVISIONED_BY).map(String::as_str) == Some(PROVISIONER)
            {
                self.reclaim(&volume, &volumes).await?;
            }
        }
        let gone = |key: &ClaimKey| !known.contains_key(key);
        self.bound.send_if_modified(|bound| {
            let before = bound.len();
            bound.retain(|key, _| !gone(key));
            bound.len() != before
        });
        Ok(())
    }

    async fn reclaim(
        &self,
        volume: &PersistentVolume,
        volumes: &Api<PersistentVolume>,
    ) -> Result<(), ClaimError> {
        let spec = volume.spec.clone().unwrap_or_default();
        let ours =
            volume.annotations().get(PROVISIONED_BY).map(String::as_str) == Some(PROVISIONER);
        if !ours || spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete") {
            let released = json!({"status": {"phase": "Released"}});
            volumes
                .patch_status(
                    &volume.name_any(),
                    &PatchParams::default(),
                    &Patch::Merge(released),
                )
                .await?;
            return Ok(());
        }
        if let Some(path) = directory(volume).filter(|path| is_below(path, &self.root)) {
            let doomed = path.clone();
            let removed = tokio::task::spawn_blocking(move || remove(&doomed)).await;
            match removed {
                Ok(Err(source)) => return Err(ClaimError::Remove { path, source }),
                Err(source) => {
                    return Err(ClaimError::Remove {
                        path,
                        source: io::Error::other(source),
                    });
                }
                Ok(Ok(())) => {}
            }
        }
        match volumes
            .delete(&volume.name_any(), &DeleteParams::default())
            .await
        {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            deleted => deleted.map(|_| ()).map_err(ClaimError::from),
        }
    }
}

fn key(claim: &PersistentVolumeClaim) -> ClaimKey {
    (claim.namespace().unwrap_or_default(), claim.name_any())
}

fn owner_uid(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.clone()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let named = claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.volume_name.is_some());
    named
        && claim
            .status
            .as_ref()
            .is_some_and(|status| status.phase.as_deref() == Some("Bound"))
}

/// Where a volume's data is.
fn directory(volume: &PersistentVolume) -> Option<PathBuf> {
    let spec = volume.spec.as_ref()?;
    let of_host = spec.host_path.as_ref().map(|source| &source.path);
    of_host
        .or(spec.local.as_ref().map(|source| &source.path))
        .map(PathBuf::from)
}

/// The volume for a claim, as a cluster's provisioner would write it.
fn volume(claim: &PersistentVolumeClaim, name: &str, path: &Path) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let asked = spec.resources.and_then(|resources| resources.requests);
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(BTreeMap::from([(
                PROVISIONED_BY.to_owned(),
                PROVISIONER.to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: asked.map(|asked| {
                asked
                    .into_iter()
                    .filter(|(name, _)| name == "storage")
                    .collect()
            }),
            claim_ref: Some(ObjectReference {
                resource_version: None,
                ..claim.object_ref(&())
            }),
            host_path: Some(HostPathVolumeSource {
                path: path.display().to_string(),
                type_: Some("Directory".to_owned()),
            }),
            persistent_volume_reclaim_policy: Some("Delete".to_owned()),
            storage_class_name: spec.storage_class_name,
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn is_below(path: &Path, root: &Path) -> bool {
    let plain = |part: std::path::Component<'_>| !matches!(part, std::path::Component::ParentDir);
    path.starts_with(root) && path != root && path.components().all(plain)
}

fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Moves the directory aside first, so that a new claim of the same name never meets half-removed data.
fn remove(path: &Path) -> io::Result<()> {
    let aside = path.with_file_name(format!("{ASIDE}{}", uuid::Uuid::new_v4().simple()));
    match fs::rename(path, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => remove_tree(&aside),
    }
}

/// What [`remove`] moved aside and an earlier engine did not live to remove.
fn leftovers(root: &Path) -> Vec<PathBuf> {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    entries(root)
        .flat_map(|namespace| entries(&namespace.path()))
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(ASIDE))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_half_removed_is_found_again() {
        let root = tempfile::tempdir().expect("a directory");
        let claim = root.path().join("ns/ckpt");
        let left = root.path().join("ns").join(format!("{ASIDE}1"));
        fs::create_dir_all(&claim).expect("made");
        fs::create_dir_all(&left).expect("made");
        assert_eq!(leftovers(root.path()), [left]);
        remove(&claim).expect("removed");
        assert!(!claim.exists());
        assert!(leftovers(&root.path().join("none")).is_empty());
    }
}
