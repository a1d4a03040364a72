//! What is known of a job and of the cluster it wants to run on, as plain values. Only reads.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use stoke_api::{DatasetSpec, TrainJob};
use stoke_sched::Snapshot;

use super::workers;
use crate::mirror::Key;
use crate::world::World;

/// Everything that [`super::plan::plan`] decides by, beside the configuration and the time.
#[derive(Debug, Clone)]
pub struct Observed {
    pub job: Arc<TrainJob>,
    /// All pods that carry the job's label, those of an earlier job of the same name included.
    pub pods: Vec<Arc<Pod>>,
    /// The datasets the job names, as far as they exist.
    pub datasets: BTreeMap<String, DatasetSpec>,
    pub cluster: Arc<Snapshot>,
    /// Addresses of nodes, by name.
    pub addresses: Arc<BTreeMap<String, String>>,
    /// Ports that other jobs have.
    pub leased: Vec<RangeInclusive<u16>>,
    /// What the API server refused when the last plan was carried out.
    pub refused: Option<String>,
}

/// Reads a job and its surroundings; none where there is no such job.
pub fn observe(world: &mut World, key: &Key, refused: Option<String>) -> Option<Observed> {
    let job = world.jobs.get(key)?.clone();
    let scene = world.scene();
    let prefix = format!("{}-", key.name);
    let pods = world.pods.with_prefix(&key.namespace, &prefix);
    let pods = pods.filter(|pod| workers::job_name(pod) == Some(key.name.as_str()));
    let datasets = job.spec.datasets.iter().filter_map(|mount| {
        let dataset = world.datasets.get(&Key::new(&key.namespace, &mount.name))?;
        Some((mount.name.clone(), dataset.spec.clone()))
    });
    let leased = scene.leased.iter().filter(|(owner, _)| owner != key);
    Some(Observed {
        pods: pods.cloned().collect(),
        datasets: datasets.collect(),
        cluster: scene.snapshot.clone(),
        addresses: scene.addresses.clone(),
        leased: leased.map(|(_, ports)| ports.clone()).collect(),
        refused,
        job,
    })
}
