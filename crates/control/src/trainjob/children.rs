//! What a job needs beside its pods: a claim for checkpoints, a name for its workers and a fence around them, a secret for MPI.
//!
//! No PodDisruptionBudget: a gang that loses one worker begins anew anyway, and one that may lose none would keep its nodes from being
//! drained for as long as it trains.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, Secret, Service, ServiceSpec,
    VolumeResourceRequirements,
};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource as _;
use kube::api::ObjectMeta;
use stoke_api::TrainJob;
use stoke_api::names::{ATTEMPT_LABEL, JOB_LABEL, MPI_TOKEN_KEY, checkpoint_claim, mpi_secret};
use stoke_api::trainjob::AccessMode;

use crate::config::{Config, Home};

fn metadata(job: &TrainJob, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(job.namespace().to_owned()),
        labels: Some(BTreeMap::from([(
            JOB_LABEL.to_owned(),
            job.name().to_owned(),
        )])),
        owner_references: job.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// The volume of a job's checkpoints, if it keeps any.
pub fn checkpoint(job: &TrainJob, config: &Config) -> Option<PersistentVolumeClaim> {
    let checkpoint = job.spec.checkpoint.as_ref()?;
    // All workers mount it, unless the job says that one does. On one machine they share a node; elsewhere they may not.
    let workers = job.spec.workers_max();
    let one_node = config.home == Home::Machine
        || checkpoint.is_for_first_only(workers)
        || (workers == 1 && checkpoint.access_mode != Some(AccessMode::ReadWriteMany));
    let mode = if one_node {
        "ReadWriteOnce"
    } else {
        "ReadWriteMany"
    };
    let size = BTreeMap::from([("storage".to_owned(), Quantity(checkpoint.size.to_string()))]);
    let owned = metadata(job, checkpoint_claim(job.name()));
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            // What nobody owns is deleted with nobody.
            owner_references: owned.owner_references.filter(|_| !checkpoint.is_kept()),
            ..owned
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![mode.to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(size),
                limits: None,
            }),
            storage_class_name: checkpoint.storage_class.clone(),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}

/// The headless Service that gives workers their names. It selects one attempt: a pod of an earlier one that will not die has no
/// name any more.
pub fn service(job: &TrainJob, attempt: u32) -> Service {
    Service {
        metadata: metadata(job, job.name().to_owned()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(BTreeMap::from([
                (JOB_LABEL.to_owned(), job.name().to_owned()),
                (ATTEMPT_LABEL.to_owned(), attempt.to_string()),
            ])),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Lets nothing but the job's own workers reach them. It is of the job and not of an attempt, so it is written once; and it has to be of
/// the job, for a policy of the namespace can only name labels, not say "with the same value as mine".
///
/// What workers reach is left alone: they read data, write checkpoints and report their metrics wherever their author wants. Policies
/// add up, so whoever wants to let something else in (a scraper, a debugger) writes one more.
pub fn policy(job: &TrainJob) -> NetworkPolicy {
    let workers = || LabelSelector {
        match_labels: Some(BTreeMap::from([(
            JOB_LABEL.to_owned(),
            job.name().to_owned(),
        )])),
        ..LabelSelector::default()
    };
    NetworkPolicy {
        metadata: metadata(job, job.name().to_owned()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(workers()),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![NetworkPolicyPeer {
                    pod_selector: Some(workers()),
                    ..NetworkPolicyPeer::default()
                }]),
                ports: None,
            }]),
            egress: None,
        }),
    }
}

pub fn secret_name(job: &TrainJob) -> String {
    mpi_secret(job.name(), job.metadata.uid.as_deref().unwrap_or_default())
}

/// The secret that an MPI gang knows itself by.
pub fn secret(job: &TrainJob, token: String) -> Secret {
    Secret {
        metadata: metadata(job, secret_name(job)),
        data: Some(BTreeMap::from([(
            MPI_TOKEN_KEY.to_owned(),
            ByteString(token.into_bytes()),
        )])),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}
