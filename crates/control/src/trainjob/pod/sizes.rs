//! What a worker asks for, written into its container.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use stoke_api::names::GPU_RESOURCE;
use stoke_api::trainjob::{Attempt, Priority, Qos, Sizing};
use stoke_api::{Bytes, CpuMilli, TrainJob};
use stoke_sched::Resources;

use super::worker;
use crate::cluster;
use crate::config::Home;
use crate::trainjob::template;

/// What is chosen for each worker of an attempt.
#[derive(Debug, Clone, Default)]
pub struct Size {
    pub cpus: CpuMilli,
    pub memory: Sizing,
    /// Local disk it may use at most, where its template does not say.
    pub storage: Option<Bytes>,
}

/// Local disk that is promised to a worker whose template does not say: enough for logs and a cache to begin with.
const STORAGE_PROMISED: Bytes = Bytes(1 << 30);
const STORAGE: &str = "ephemeral-storage";

impl Size {
    pub fn of(attempt: &Attempt) -> Self {
        Self {
            cpus: attempt.cpus.unwrap_or_default(),
            memory: attempt.memory.clone().unwrap_or_default(),
            storage: attempt.storage,
        }
    }

    /// Puts it into the worker of a pod.
    pub fn fill(&self, spec: &mut PodSpec, job: &TrainJob, home: Home) {
        let resources = worker(spec).resources.get_or_insert_default();
        if home == Home::Cluster {
            ask_as_limited(resources);
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
        let gpus = job.spec.gpus.whole();
        if gpus > 0 {
            let gpus = Quantity(gpus.to_string());
            limits.insert(GPU_RESOURCE.to_owned(), gpus.clone());
            requests.insert(GPU_RESOURCE.to_owned(), gpus);
        }
    }

    fn limit_storage(&self, resources: &mut ResourceRequirements) {
        let mut said = resources.requests.iter().chain(&resources.limits);
        let Some(limit) = self.storage else { return };
        if said.any(|amounts| amounts.contains_key(STORAGE)) {
            return;
        }
        let promised = Quantity(limit.min(STORAGE_PROMISED).to_string());
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
    Resources {
        cpu: size.cpus,
        memory: size.memory.request,
        storage: size
            .storage
            .map_or(Bytes(0), |limit| limit.min(STORAGE_PROMISED)),
        gpus: job.spec.gpus.whole(),
        pods: 1,
        ..Resources::default()
    }
}
