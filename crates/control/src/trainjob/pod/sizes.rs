//! What a worker asks for, written into its container.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use stoke_api::names::{GPU_MILLI_RESOURCE, GPU_RESOURCE};
use stoke_api::trainjob::{Attempt, GpuResource, Priority, Qos, Sizing, Tuning};
use stoke_api::{Bytes, CpuMilli, GpuMilli, GpuRequest, TrainJob};
use stoke_sched::{Other, Plan, Resources};

use super::worker;
use crate::cluster;
use crate::config::Home;
use crate::trainjob::template;

/// What is chosen for each worker of an attempt.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Size {
    pub cpus: CpuMilli,
    pub memory: Sizing,
    /// What its memory limit may be raised to while it runs.
    pub memory_max: Option<Bytes>,
    /// What runs like it needed at most.
    pub memory_expected: Option<Bytes>,
    /// Local disk it may use at most, where its template does not say.
    pub storage: Option<Bytes>,
    /// Of that, what is promised to it.
    pub storage_promised: Option<Bytes>,
    /// /dev/shm, where that is more or less than its memory.
    pub shm: Option<Bytes>,
    /// What it runs with since attempts before it failed.
    pub tuning: Tuning,
    /// What it asks for in place of whole GPUs.
    pub gpu_resource: Option<GpuResource>,
}

/// Which GPUs the workers of an attempt have, as it is put on record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gpus {
    /// By rank; empty where the nodes pick.
    pub devices: Vec<String>,
    pub resource: Option<GpuResource>,
}

impl Gpus {
    /// What a plan gives to workers that ask for so many.
    pub fn of(plan: &Plan, asked: &GpuRequest) -> Self {
        let chosen = plan.devices.iter().any(|devices| !devices.is_empty());
        let named = plan.resource.as_ref().map(|(name, count)| GpuResource {
            name: name.clone(),
            count: u32::try_from(*count).unwrap_or(u32::MAX),
        });
        let part = || match asked {
            GpuRequest::Fraction(GpuMilli(milli)) if chosen => Some(GpuResource {
                name: GPU_MILLI_RESOURCE.to_owned(),
                count: *milli,
            }),
            _ => None,
        };
        let listed = |devices: &Vec<u32>| {
            let devices: Vec<String> = devices.iter().map(ToString::to_string).collect();
            devices.join(",")
        };
        Self {
            resource: named.or_else(part),
            devices: if chosen {
                plan.devices.iter().map(listed).collect()
            } else {
                Vec::new()
            },
        }
    }
}

/// Local disk that is promised to a worker whose template does not say: enough for logs and a cache to begin with.
const STORAGE_PROMISED: Bytes = Bytes(1 << 30);
const STORAGE: &str = "ephemeral-storage";

impl Size {
    pub fn of(attempt: &Attempt) -> Self {
        Self {
            cpus: attempt.cpus.unwrap_or_default(),
            memory: attempt.memory.clone().unwrap_or_default(),
            memory_max: attempt.memory_max,
            memory_expected: attempt.memory_expected,
            storage: attempt.storage,
            storage_promised: attempt.storage_promised,
            shm: attempt.shm,
            tuning: attempt.tuning.clone(),
            gpu_resource: attempt.gpu_resource.clone(),
        }
    }

    /// Puts it into the worker of a pod.
    pub fn fill(&self, spec: &mut PodSpec, job: &TrainJob, home: Home) {
        let resources = worker(spec).resources.get_or_insert_default();
        if home == Home::Cluster {
            ask_as_limited(resources);
        }
        if home == Home::Cluster || self.tuning.storage.is_some() {
            self.limit_storage(resources);
        }
        let requests = resources.requests.get_or_insert_default();
        requests.insert("cpu".to_owned(), self.cpus.into());
        let memory = |bytes: Bytes| Quantity(bytes.to_string());
        requests.insert("memory".to_owned(), memory(self.memory.request));
        let limits = resources.limits.get_or_insert_default();
        limits.insert("memory".to_owned(), memory(self.memory.limit));
        // A CPU limit only throttles; it is set where the class Guaranteed asks for one, and then only to what was said.
        let memory = job.spec.memory.as_ref();
        let guaranteed = memory.is_some_and(|memory| memory.qos == Qos::Guaranteed)
            || job.spec.priority == Priority::Production;
        if guaranteed && job.spec.cpus.is_some() {
            limits.insert("cpu".to_owned(), self.cpus.into());
        }
        if let Some((resource, count)) = self.gpus(job) {
            let count = Quantity(count.to_string());
            limits.insert(resource.to_owned(), count.clone());
            requests.insert(resource.to_owned(), count);
        }
    }

    /// What it asks of GPUs, by the name that its node counts them under.
    fn gpus(&self, job: &TrainJob) -> Option<(&str, u32)> {
        let parts = self.gpu_resource.as_ref();
        let parts = parts.map(|parts| (parts.name.as_str(), parts.count));
        parts
            .or_else(|| Some((GPU_RESOURCE, job.spec.gpus.whole())).filter(|(_, count)| *count > 0))
    }

    fn storage_promised(&self, limit: Bytes) -> Bytes {
        let promised = self.storage_promised.unwrap_or(STORAGE_PROMISED);
        promised.min(limit)
    }

    fn limit_storage(&self, resources: &mut ResourceRequirements) {
        let mut said = resources.requests.iter().chain(&resources.limits);
        let Some(limit) = self.storage else { return };
        // What was said was not enough, where it is part of what was changed.
        if said.any(|amounts| amounts.contains_key(STORAGE)) && self.tuning.storage.is_none() {
            return;
        }
        let promised = Quantity(self.storage_promised(limit).to_string());
        let limits = resources.limits.get_or_insert_default();
        limits.insert(STORAGE.to_owned(), Quantity(limit.to_string()));
        let requests = resources.requests.get_or_insert_default();
        requests.insert(STORAGE.to_owned(), promised);
    }
}

/// Of devices and huge pages a pod must ask for exactly what it is limited to; whoever said one of the two meant both.
fn ask_as_limited(resources: &mut ResourceRequirements) {
    let counted = |name: &str| !matches!(name, "cpu" | "memory" | STORAGE);
    let requests = resources.requests.get_or_insert_default();
    let limits = resources.limits.get_or_insert_default();
    for (name, amount) in limits.iter().filter(|(name, _)| counted(name)) {
        requests.entry(name.clone()).or_insert(amount.clone());
    }
    for (name, amount) in requests.iter().filter(|(name, _)| counted(name)) {
        limits.entry(name.clone()).or_insert(amount.clone());
    }
}

/// What a worker asks for that is promised to it before its pod is there.
pub fn promised(job: &TrainJob, attempt: &Attempt) -> Resources {
    let size = Size::of(attempt);
    let template = job.spec.template.as_ref().map(|_| template::parse(job));
    if let Some(Ok(template)) = template {
        let mut spec = template.spec.unwrap_or_default();
        size.fill(&mut spec, job, Home::Cluster);
        return cluster::requests(&spec);
    }
    let mut ask = Resources {
        cpu: size.cpus,
        memory: size.memory.request,
        storage: size
            .storage
            .map_or(Bytes(0), |limit| size.storage_promised(limit)),
        pods: 1,
        ..Resources::default()
    };
    match size.gpus(job) {
        Some((GPU_RESOURCE, count)) => ask.gpus = count,
        Some((parts, count)) => {
            ask.others.insert(Other::Named(parts.into()), count.into());
        }
        None => {}
    }
    ask
}
