//! What a worker finds in its file system beside its image: checkpoints, data, shared memory, and the binary that starts an MPI gang and
//! watches over checkpoints.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, Container, DownwardAPIVolumeFile, DownwardAPIVolumeSource,
    EmptyDirVolumeSource, HostPathVolumeSource, LocalObjectReference, NFSVolumeSource,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSpec, ResourceRequirements,
    SecretVolumeSource, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use stoke_api::contract::copies::{KEYS_DIR, KEYS_VOLUME};
use stoke_api::contract::{
    CHECKPOINT_REQUEST, REQUEST_DIR, REQUEST_VOLUME, STATUS_DIR, STATUS_VOLUME,
};
use stoke_api::names::{
    CHECKPOINT_REQUEST_ANNOTATION, DATA_DRIVER, DATA_DRIVER_DATASET, WORKER_BIN_DIR,
    checkpoint_claim,
};
use stoke_api::{Bytes, DatasetSpec, TrainJob};

use super::worker;
use crate::config::Home;

/// A program that says more of itself than this says something else. One that adds a line for each step of a long training does not.
const STATUS_SIZE: Bytes = Bytes(256 << 20);

/// The job's own volumes, where its workers expect them.
pub fn add(
    spec: &mut PodSpec,
    job: &TrainJob,
    datasets: &BTreeMap<String, DatasetSpec>,
    has_checkpoints: bool,
    memory_limit: Bytes,
) {
    if let Some(checkpoint) = job.spec.checkpoint.as_ref().filter(|_| has_checkpoints) {
        let volume = claim("checkpoint", &checkpoint_claim(job.name()), false);
        mount(spec, volume, &checkpoint.path, false);
    }
    for (i, wanted) in job.spec.datasets.iter().enumerate() {
        if let Some(found) = datasets.get(&wanted.name) {
            let volume = dataset(&format!("dataset-{i}"), &wanted.name, found);
            mount(spec, volume, &wanted.path, true);
        }
    }
    let requests = showing(
        REQUEST_VOLUME,
        CHECKPOINT_REQUEST,
        CHECKPOINT_REQUEST_ANNOTATION,
    );
    mount(spec, requests, REQUEST_DIR, true);
    mount(spec, on_disk(STATUS_VOLUME, STATUS_SIZE), STATUS_DIR, false);
    let mounted = worker(spec).volume_mounts.iter().flatten();
    let has_shm = mounted
        .into_iter()
        .any(|mount| mount.mount_path.trim_end_matches('/') == "/dev/shm");
    if !has_shm {
        // What is there counts as the container's memory, so more could not be used.
        mount(spec, in_memory("shm", memory_limit), "/dev/shm", false);
    }
}

/// The keys to where copies of checkpoints go, as files for the first worker alone: what is in a variable or an argument is seen by whoever
/// lists processes.
pub fn add_keys(spec: &mut PodSpec, secret: &str, home: Home) {
    // Nobody but the worker sees this volume. Of which user it is, its image may say, and on a cluster the files are root's.
    let mode = match home {
        Home::Machine => 0o400,
        Home::Cluster => 0o444,
    };
    let volume = Volume {
        name: KEYS_VOLUME.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(mode),
            // Who has no keys trains on, and says that nothing is copied.
            optional: Some(true),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    mount(spec, volume, KEYS_DIR, true);
}

/// Has an init container copy our binary to where the worker finds it: the worker's image is the job's own and does not have it.
pub fn add_binary(spec: &mut PodSpec, image: &str) {
    const NAME: &str = "stokehold-bin";
    let volume = Volume {
        name: NAME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    // Equal, so that a pod of the class Guaranteed stays one; and no more than the worker that follows has anyway.
    let amounts = || {
        let amounts = [("cpu", "100m"), ("memory", "64Mi")];
        let amounts = amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
        Some(BTreeMap::from(amounts))
    };
    let copying = Container {
        name: NAME.to_owned(),
        image: Some(image.to_owned()),
        // The image's entrypoint is the binary.
        args: Some(vec![
            "mpi".to_owned(),
            "install".to_owned(),
            format!("{WORKER_BIN_DIR}/stoke"),
        ]),
        resources: Some(ResourceRequirements {
            requests: amounts(),
            limits: amounts(),
            claims: None,
        }),
        volume_mounts: Some(vec![VolumeMount {
            name: NAME.to_owned(),
            mount_path: WORKER_BIN_DIR.to_owned(),
            ..VolumeMount::default()
        }]),
        ..Container::default()
    };
    spec.init_containers
        .get_or_insert_default()
        .insert(0, copying);
    mount(spec, volume, WORKER_BIN_DIR, true);
}

fn mount(spec: &mut PodSpec, volume: Volume, path: &str, read_only: bool) {
    let mount = VolumeMount {
        name: volume.name.clone(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let mounts = worker(spec).volume_mounts.get_or_insert_default();
    mounts.push(mount);
    spec.volumes.get_or_insert_default().push(volume);
}

/// Shows an annotation of the pod as a file, which changes with it.
fn showing(name: &str, file: &str, annotation: &str) -> Volume {
    let field = ObjectFieldSelector {
        api_version: None,
        field_path: format!("metadata.annotations['{annotation}']"),
    };
    let file = DownwardAPIVolumeFile {
        path: file.to_owned(),
        field_ref: Some(field),
        ..DownwardAPIVolumeFile::default()
    };
    Volume {
        name: name.to_owned(),
        downward_api: Some(DownwardAPIVolumeSource {
            items: Some(vec![file]),
            default_mode: None,
        }),
        ..Volume::default()
    }
}

fn on_disk(name: &str, limit: Bytes) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: None,
            size_limit: Some(Quantity(limit.to_string())),
        }),
        ..Volume::default()
    }
}

fn in_memory(name: &str, limit: Bytes) -> Volume {
    Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity(limit.to_string())),
        }),
        ..Volume::default()
    }
}

fn claim(name: &str, claim: &str, read_only: bool) -> Volume {
    Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            read_only: read_only.then_some(true),
        }),
        ..Volume::default()
    }
}

fn dataset(name: &str, of: &str, dataset: &DatasetSpec) -> Volume {
    let volume = Volume {
        name: name.to_owned(),
        ..Volume::default()
    };
    if let Some(found) = &dataset.claim {
        return claim(name, found, true);
    }
    if let Some(nfs) = &dataset.nfs {
        return Volume {
            nfs: Some(NFSVolumeSource {
                server: nfs.server.clone(),
                path: nfs.path.clone(),
                read_only: Some(true),
            }),
            ..volume
        };
    }
    if dataset.staged_uri().is_some() {
        return Volume {
            csi: Some(CSIVolumeSource {
                driver: DATA_DRIVER.to_owned(),
                read_only: Some(true),
                // On a cluster the kubelet hands the keys over, so that nobody else needs the right to read them.
                node_publish_secret_ref: dataset
                    .secret
                    .as_ref()
                    .map(|name| LocalObjectReference { name: name.clone() }),
                volume_attributes: Some(BTreeMap::from([(
                    DATA_DRIVER_DATASET.to_owned(),
                    of.to_owned(),
                )])),
                ..CSIVolumeSource::default()
            }),
            ..volume
        };
    }
    let uri = dataset.uri.as_deref().unwrap_or_default();
    Volume {
        host_path: Some(HostPathVolumeSource {
            path: uri.strip_prefix("file://").unwrap_or(uri).to_owned(),
            type_: Some("Directory".to_owned()),
        }),
        ..volume
    }
}
