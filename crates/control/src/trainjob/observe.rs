//! What is known of a job and of the cluster it wants to run on, as plain values. Only reads.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use stoke_api::names::checkpoint_claim;
use stoke_api::{Bytes, DatasetSpec, JobProfile, TrainJob};
use stoke_sched::Snapshot;

use super::refusal::Refusal;
use super::tail::Tails;
use super::template;
use crate::cluster::{Claim, Notice};
use crate::mirror::Key;
use crate::seen::Pod;
use crate::world::{Demand, Room, Shortage, World};

/// Everything that [`super::plan::plan`] decides by, beside the configuration and the time.
#[derive(Debug, Clone)]
pub struct Observed {
    pub job: Arc<TrainJob>,
    /// All pods that carry the job's label, those of an earlier job of the same name included.
    pub pods: Vec<Arc<Pod>>,
    /// The datasets the job names, as far as they exist.
    pub datasets: BTreeMap<String, DatasetSpec>,
    /// The claims that its workers mount, as far as they exist; by where the job names them.
    pub claims: BTreeMap<String, (String, Claim)>,
    /// The nodes, with what is used of them.
    pub cluster: Snapshot,
    /// How it stands with room for the next attempt.
    pub room: Room,
    /// What the attempt that is on was asked to do.
    pub demand: Option<Demand>,
    /// Addresses of nodes, by name.
    pub addresses: Arc<BTreeMap<String, String>>,
    /// Ports that other jobs have.
    pub leased: Vec<RangeInclusive<u16>>,
    /// What is said of those of its attempt's nodes that go away, or may.
    pub notices: BTreeMap<String, Notice>,
    /// Its node is short of memory, and it is the one to leave.
    pub shortage: Option<Shortage>,
    /// How much its datasets hold, where that is known of all.
    pub input: Option<Bytes>,
    /// What runs like it used.
    pub profile: Option<Arc<JobProfile>>,
    /// What the API server refused when the last plan was carried out.
    pub refused: Option<Refusal>,
    /// What the logs of its failed workers say, as far as they were read.
    pub tails: Tails,
}

/// What is known of a job and stands in no object.
#[derive(Debug, Clone, Default)]
pub struct Aside {
    pub refused: Option<Refusal>,
    pub tails: Tails,
}

/// Reads a job and its surroundings; none where there is no such job.
pub fn observe(world: &World, key: &Key, aside: Aside) -> Option<Observed> {
    let job = world.jobs.get(key)?.clone();
    let dataset = |name: &str| world.datasets.get(&Key::new(&key.namespace, name));
    let datasets = job.spec.datasets.iter().filter_map(|mount| {
        let dataset = dataset(&mount.name)?;
        Some((mount.name.clone(), dataset.spec.clone()))
    });
    let sizes = job.spec.datasets.iter().map(|mount| {
        let size = dataset(&mount.name)?.status.as_ref()?.size?;
        Some(size.0)
    });
    let input = sizes.sum::<Option<u64>>().filter(|sum| *sum > 0);
    let datasets: BTreeMap<String, DatasetSpec> = datasets.collect();
    Some(Observed {
        pods: world.workers_of(key).cloned().collect(),
        claims: claims(world, &job, &datasets),
        datasets,
        cluster: world.snapshot(),
        room: world.room_of(key),
        demand: world.demand_on(key),
        addresses: world.addresses(),
        leased: world.ports_of_others(key),
        notices: world.notices_for(&job),
        shortage: world.shortage_for(key),
        input: input.map(Bytes),
        profile: world.profile_of(&job).cloned(),
        refused: aside.refused,
        tails: aside.tails,
        job,
    })
}

fn claims(
    world: &World,
    job: &TrainJob,
    datasets: &BTreeMap<String, DatasetSpec>,
) -> BTreeMap<String, (String, Claim)> {
    let checkpoint = job.spec.checkpoint.as_ref();
    let checkpoint = checkpoint.map(|_| ("checkpoint".to_owned(), checkpoint_claim(job.name())));
    let data = job.spec.datasets.iter().enumerate();
    let data = data.filter_map(|(i, mount)| {
        let claim = datasets.get(&mount.name)?.claim.clone()?;
        Some((format!("datasets[{i}]"), claim))
    });
    let named = checkpoint
        .into_iter()
        .chain(data)
        .chain(template::claims(job));
    let found = named.filter_map(|(path, name)| {
        let claim = world.claim(&Key::new(job.namespace(), &name))?;
        Some((path, (name, claim)))
    });
    found.collect()
}
