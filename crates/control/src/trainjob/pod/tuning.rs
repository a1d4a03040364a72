//! What a worker has that its spec does not say, because attempts before it died for want of it. It wins over what the spec says: that was
//! tried.

use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, EnvVar, EphemeralVolumeSource, PersistentVolumeClaimSpec,
    PersistentVolumeClaimTemplate, PodSpec, Volume, VolumeMount, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use stoke_api::Bytes;
use stoke_api::trainjob::{TORCH_ALLOCATOR, Tuning};

use super::{Size, worker};
use crate::config::Home;

const SCRATCH: &str = "stokehold-scratch";
/// Where temporary files go that would else fill the node's disk.
const SCRATCH_DIR: &str = "/run/stokehold/scratch";

/// Puts it into a pod that is complete but for this.
pub fn apply(spec: &mut PodSpec, size: &Size, home: Home) {
    if let Some(shm) = size.shm {
        enlarge_shm(spec, shm);
    }
    if let Some(storage) = size.tuning.storage {
        enlarge_volumes(spec, storage);
    }
    if let Some(scratch) = size.tuning.scratch {
        add_scratch(spec, scratch, home);
    }
    let variables = worker(spec).env.get_or_insert_default();
    for (name, value) in told(&size.tuning) {
        set(variables, name, value);
    }
}

fn told(tuning: &Tuning) -> Vec<(&'static str, String)> {
    let mut told = tuning.env();
    if tuning.scratch.is_some() {
        told.push(("TMPDIR", SCRATCH_DIR.to_owned()));
    }
    told
}

/// Of the allocator's options the job's own stay, for they may be what makes it fit at all.
fn set(variables: &mut Vec<EnvVar>, name: &str, value: String) {
    let known = variables.iter_mut().find(|known| known.name == name);
    let Some(known) = known else {
        variables.push(EnvVar {
            name: name.to_owned(),
            value: Some(value),
            value_from: None,
        });
        return;
    };
    let own = known.value.as_deref().unwrap_or_default();
    let option = value.split(':').next().unwrap_or_default();
    let value = if name == TORCH_ALLOCATOR {
        let others = own.split(',').filter(|own| {
            let is_same = own
                .split(':')
                .next()
                .is_some_and(|own| own.trim() == option);
            !own.trim().is_empty() && !is_same
        });
        let all: Vec<&str> = others.chain([value.as_str()]).collect();
        all.join(",")
    } else {
        value
    };
    known.value = Some(value);
    known.value_from = None;
}

/// The volume at /dev/shm, ours or the template's, is as large as that.
fn enlarge_shm(spec: &mut PodSpec, shm: Bytes) {
    let mounts = worker(spec).volume_mounts.iter().flatten();
    let at_shm = mounts
        .filter(|mount| mount.mount_path.trim_end_matches('/') == "/dev/shm")
        .map(|mount| mount.name.clone())
        .next_back();
    let volumes = spec.volumes.iter_mut().flatten();
    let volume = volumes
        .filter(|volume| Some(&volume.name) == at_shm.as_ref())
        .last();
    let source = volume.and_then(|volume| volume.empty_dir.as_mut());
    if let Some(source) = source.filter(|it| it.medium.as_deref() == Some("Memory")) {
        source.size_limit = Some(Quantity(shm.to_string()));
    }
}

/// Volumes on the node's disk whose own limit is less than what the worker may fill now.
fn enlarge_volumes(spec: &mut PodSpec, storage: Bytes) {
    let sources = spec.volumes.iter_mut().flatten();
    let sources = sources.filter_map(|volume| volume.empty_dir.as_mut());
    for source in sources.filter(|source| source.medium.as_deref() != Some("Memory")) {
        let limit = source.size_limit.as_ref();
        let limit = limit.and_then(|limit| Bytes::try_from(limit).ok());
        if limit.is_some_and(|limit| limit < storage) {
            source.size_limit = Some(Quantity(storage.to_string()));
        }
    }
}

/// On one machine it lies in the pod's own directory, beside the volumes that are not counted as its local disk; on a cluster it is a
/// volume of the default class that lives as long as the pod.
fn add_scratch(spec: &mut PodSpec, size: Bytes, home: Home) {
    let mut volume = Volume {
        name: SCRATCH.to_owned(),
        ..Volume::default()
    };
    match home {
        Home::Machine => {
            volume.empty_dir = Some(EmptyDirVolumeSource {
                medium: None,
                size_limit: Some(Quantity(size.to_string())),
            });
        }
        Home::Cluster => {
            let requests = [("storage".to_owned(), Quantity(size.to_string()))];
            volume.ephemeral = Some(EphemeralVolumeSource {
                volume_claim_template: Some(PersistentVolumeClaimTemplate {
                    metadata: None,
                    spec: PersistentVolumeClaimSpec {
                        access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                        resources: Some(VolumeResourceRequirements {
                            requests: Some(requests.into()),
                            limits: None,
                        }),
                        ..PersistentVolumeClaimSpec::default()
                    },
                }),
            });
        }
    }
    spec.volumes.get_or_insert_default().push(volume);
    let mounts = worker(spec).volume_mounts.get_or_insert_default();
    mounts.push(VolumeMount {
        name: SCRATCH.to_owned(),
        mount_path: SCRATCH_DIR.to_owned(),
        ..VolumeMount::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tuned(spec: Value, size: &Size, home: Home) -> Value {
        let mut spec: PodSpec = serde_json::from_value(spec).expect("a spec");
        apply(&mut spec, size, home);
        serde_json::to_value(&spec).expect("JSON")
    }

    fn variables(own: Value, tuning: Tuning) -> Vec<(String, String)> {
        let spec = json!({"containers": [{"name": "worker", "env": own}]});
        let size = Size {
            tuning,
            ..Size::default()
        };
        let spec = tuned(spec, &size, Home::Machine);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let all = spec["containers"][0]["env"].as_array().cloned();
        let all = all.unwrap_or_default();
        all.iter()
            .map(|it| (text(&it["name"]), text(&it["value"])))
            .collect()
    }

    #[test]
    fn smaller_parts_are_told_and_win_over_what_was_tried() {
        let tuning = || Tuning {
            micro_batch_divisor: Some(4),
            expandable_segments: true,
            ..Tuning::default()
        };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let scale = pair("STOKE_MICRO_BATCH_SCALE", "0.25");
        let accumulation = pair("STOKE_GRAD_ACCUM_SCALE", "4");
        let alloc = |value: &str| pair("PYTORCH_CUDA_ALLOC_CONF", value);
        assert_eq!(
            variables(json!([]), tuning()),
            [
                scale.clone(),
                accumulation.clone(),
                alloc("expandable_segments:True")
            ]
        );
        let own = json!([
            {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "max_split_size_mb:128, expandable_segments:False"},
            {"name": "STOKE_MICRO_BATCH_SCALE", "value": "1"},
        ]);
        assert_eq!(
            variables(own, tuning()),
            [
                alloc("max_split_size_mb:128,expandable_segments:True"),
                scale,
                accumulation
            ]
        );
        assert_eq!(variables(json!([]), Tuning::default()), []);
    }

    #[test]
    fn shared_memory_grows_where_it_is_memory() {
        let size = Size {
            shm: Some(Bytes::gib(2)),
            ..Size::default()
        };
        let spec = |source: Value| {
            let mounts = json!([{"name": "v", "mountPath": "/dev/shm/"}]);
            let spec = json!({"containers": [{"name": "worker", "volumeMounts": mounts}], "volumes": [{"name": "v", "emptyDir": source}]});
            tuned(spec, &size, Home::Cluster)["volumes"][0]["emptyDir"].clone()
        };
        assert_eq!(
            spec(json!({"medium": "Memory", "sizeLimit": "64Mi"})),
            json!({"medium": "Memory", "sizeLimit": "2Gi"})
        );
        assert_eq!(spec(json!({})), json!({}), "it is on disk");
    }

    #[test]
    fn temporary_files_go_to_a_volume() {
        let size = Size {
            tuning: Tuning {
                scratch: Some(Bytes::gib(50)),
                ..Tuning::default()
            },
            ..Size::default()
        };
        for (home, source) in [(Home::Machine, "emptyDir"), (Home::Cluster, "ephemeral")] {
            let spec = tuned(json!({"containers": [{"name": "worker"}]}), &size, home);
            let worker = &spec["containers"][0];
            assert!(spec["volumes"][0][source].is_object(), "{spec}");
            assert_eq!(
                worker["env"][0],
                json!({"name": "TMPDIR", "value": SCRATCH_DIR})
            );
            assert_eq!(worker["volumeMounts"][0]["mountPath"], SCRATCH_DIR);
        }
    }
}
