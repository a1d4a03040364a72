//! What a job's pods look like: the template underneath, and on top what must be ours.
//!
//! Invariant: a pod is a function of the job's spec and of what its attempt recorded, so that a gang whose creation was cut short is
//! finished alike. No pod is without memory and CPU requests.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolumeClaimVolumeSource, Pod, PodSpec,
    PodTemplateSpec, Toleration, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Resource as _;
use kube::api::ObjectMeta;
use stoke_api::names::{
    ATTEMPT_LABEL, GPU_RESOURCE, HOST_IMAGE, JOB_LABEL, RANK_LABEL, checkpoint_claim, env,
    host_name, pod_name,
};
use stoke_api::trainjob::{Attempt, Network, Priority, Qos, Sizing};
use stoke_api::{CpuMilli, DatasetSpec, TrainJob};
use stoke_sched::Resources;

use super::frameworks::{self, Gang, Start};
use super::rendezvous::{Place, Rendezvous};
use super::template::{self, Misconfigured};
use crate::cluster;
use crate::config::{Config, Home};

/// Everything that a job's pods are made of, checked.
pub struct Blueprint<'a> {
    job: &'a TrainJob,
    datasets: &'a BTreeMap<String, DatasetSpec>,
    config: &'a Config,
    template: PodTemplateSpec,
}

/// Where an attempt's workers run, as pods need to know it.
pub struct Site<'a> {
    pub attempt: &'a Attempt,
    /// Addresses of nodes, by name.
    pub addresses: &'a BTreeMap<String, String>,
}

impl<'a> Blueprint<'a> {
    /// Reads the job. `datasets` holds all that it names.
    pub fn new(
        job: &'a TrainJob,
        datasets: &'a BTreeMap<String, DatasetSpec>,
        config: &'a Config,
    ) -> Result<Self, Misconfigured> {
        let blueprint = Self {
            job,
            datasets,
            config,
            template: template::parse(job)?,
        };
        // Whatever is wrong with a pod is wrong with all; better known before a place is taken.
        let nodes = vec![String::new(); job.spec.workers.max(1) as usize];
        let attempt = Attempt {
            number: 1,
            nodes,
            ..Attempt::default()
        };
        let site = Site {
            attempt: &attempt,
            addresses: &BTreeMap::new(),
        };
        blueprint.pods(&site, [0, job.spec.workers.saturating_sub(1)])?;
        Ok(blueprint)
    }

    pub fn network(&self) -> Network {
        self.job.spec.network.unwrap_or(self.config.network)
    }

    /// What placement is asked for, with so much memory and CPU a worker.
    pub fn gang(
        &self,
        sizing: &Sizing,
        cpus: CpuMilli,
    ) -> Result<stoke_sched::Gang, Misconfigured> {
        let spec = self.sized(sizing, cpus);
        let terms = cluster::terms(&spec).map_err(|problem| {
            Misconfigured::new("template.spec.affinity.nodeAffinity", problem)
        })?;
        let job = &self.job.spec;
        Ok(stoke_sched::Gang {
            workers: job.workers,
            ask: cluster::requests(&spec),
            gpus: job.gpus.clone(),
            gpu_types: job.gpu_types.clone(),
            selector: spec.node_selector.clone().unwrap_or_default(),
            terms,
            tolerations: cluster::tolerations(&spec),
            spot: job.spot,
        })
    }

    /// The pods of these ranks.
    pub fn pods(
        &self,
        site: &Site<'_>,
        ranks: impl IntoIterator<Item = u32>,
    ) -> Result<Vec<Pod>, Misconfigured> {
        let rendezvous = self.rendezvous(site);
        let variables = self.own_variables()?;
        ranks
            .into_iter()
            .map(|rank| self.pod(site, &rendezvous, &variables, rank))
            .collect()
    }

    fn rendezvous(&self, site: &Site<'_>) -> Rendezvous {
        let nodes = &site.attempt.nodes;
        let address = |node: &String| site.addresses.get(node).unwrap_or(node).clone();
        Rendezvous::of(&Place {
            job: self.job.name(),
            namespace: self.job.namespace(),
            network: self.network(),
            framework: self.job.spec.framework,
            node_addresses: &nodes.iter().map(address).collect::<Vec<_>>(),
            one_node: nodes.windows(2).all(|pair| pair[0] == pair[1]),
            port: site.attempt.port,
        })
    }

    fn pod(
        &self,
        site: &Site<'_>,
        rendezvous: &Rendezvous,
        variables: &[EnvVar],
        rank: u32,
    ) -> Result<Pod, Misconfigured> {
        let job = self.job;
        let attempt = site.attempt;
        let command = self.command();
        let gang = Gang {
            job: job.name(),
            attempt: attempt.number,
            workers: attempt.nodes.len() as u32,
            processes_said: job.spec.processes_per_worker,
            processes: job.spec.processes_per_worker(),
            gpus: job.spec.gpus.whole(),
            command: &command,
            rendezvous,
            stoke_exe: &self.config.stoke_exe,
        };
        let start = frameworks::start(job.spec.framework, &gang, rank)?;
        let sizing = attempt.memory.clone().unwrap_or_default();
        let mut spec = self.sized(&sizing, attempt.cpus.unwrap_or_default());
        self.fill_worker(worker(&mut spec), start, variables, attempt, rank)?;
        self.add_volumes(&mut spec, &sizing);
        self.fill_spec(&mut spec, rank);
        if let Some(node) = attempt.nodes.get(rank as usize) {
            pin(&mut spec, node);
        }
        Ok(Pod {
            metadata: self.metadata(attempt.number, rank),
            spec: Some(spec),
            status: None,
        })
    }

    fn metadata(&self, attempt: u32, rank: u32) -> ObjectMeta {
        let given = self.template.metadata.clone().unwrap_or_default();
        let mut labels = given.labels.unwrap_or_default();
        labels.insert(JOB_LABEL.to_owned(), self.job.name().to_owned());
        labels.insert(ATTEMPT_LABEL.to_owned(), attempt.to_string());
        labels.insert(RANK_LABEL.to_owned(), rank.to_string());
        ObjectMeta {
            name: Some(pod_name(self.job.name(), attempt, rank)),
            namespace: Some(self.job.namespace().to_owned()),
            labels: Some(labels),
            annotations: given.annotations,
            owner_references: self.job.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    /// The template's spec with the worker's resources in it.
    fn sized(&self, sizing: &Sizing, cpus: CpuMilli) -> PodSpec {
        let mut spec = self.template.spec.clone().unwrap_or_default();
        let job = &self.job.spec;
        let gpus = job.gpus.whole();
        let resources = worker(&mut spec).resources.get_or_insert_default();
        let requests = resources.requests.get_or_insert_default();
        requests.insert("cpu".to_owned(), cpus.into());
        requests.insert("memory".to_owned(), Quantity(sizing.request.to_string()));
        let limits = resources.limits.get_or_insert_default();
        limits.insert("memory".to_owned(), Quantity(sizing.limit.to_string()));
        // A CPU limit only throttles; it is set where the class Guaranteed asks for one, and then only to what was said.
        let guaranteed = job
            .memory
            .as_ref()
            .is_some_and(|memory| memory.qos == Qos::Guaranteed)
            || job.priority == Priority::Production;
        if guaranteed && job.cpus.is_some() {
            limits.insert("cpu".to_owned(), cpus.into());
        }
        if gpus > 0 {
            let gpus = Quantity(gpus.to_string());
            limits.insert(GPU_RESOURCE.to_owned(), gpus.clone());
            requests.insert(GPU_RESOURCE.to_owned(), gpus);
            tolerate_gpu_taint(&mut spec);
        }
        spec
    }

    /// What the author wants run: the job's own command, else the template's.
    fn command(&self) -> Vec<String> {
        if !self.job.spec.command.is_empty() {
            return self.job.spec.command.clone();
        }
        let spec = self.template.spec.as_ref();
        let worker = spec.and_then(|spec| spec.containers.first());
        let parts = worker.map(|worker| (worker.command.clone(), worker.args.clone()));
        match parts {
            // Arguments alone are for the image's own entrypoint, which we do not know.
            Some((Some(command), args)) => command
                .into_iter()
                .chain(args.into_iter().flatten())
                .collect(),
            _ => Vec::new(),
        }
    }

    fn fill_worker(
        &self,
        worker: &mut Container,
        start: Start,
        variables: &[EnvVar],
        attempt: &Attempt,
        rank: u32,
    ) -> Result<(), Misconfigured> {
        let job = &self.job.spec;
        if !start.command.is_empty() {
            worker.command = Some(start.command);
            worker.args = None;
        } else if self.config.home == Home::Machine {
            let problem = "on one machine there is no image to run: say what to run";
            return Err(Misconfigured::new("command", problem));
        }
        worker.image = match (job.image.clone().or(worker.image.take()), self.config.home) {
            (Some(image), _) => Some(image),
            (None, Home::Machine) => Some(HOST_IMAGE.to_owned()),
            (None, Home::Cluster) => {
                return Err(Misconfigured::new(
                    "image",
                    "a job on a cluster needs an image",
                ));
            }
        };
        if job.working_dir.is_some() {
            worker.working_dir.clone_from(&job.working_dir);
        }
        let ours = self
            .our_variables(attempt, rank)
            .into_iter()
            .chain(start.env);
        worker.env = Some(layered([
            ours.collect(),
            worker.env.take().unwrap_or_default(),
            variables.to_vec(),
        ]));
        Ok(())
    }

    fn our_variables(&self, attempt: &Attempt, rank: u32) -> Vec<EnvVar> {
        let mut variables = vec![
            (env::JOB, self.job.name().to_owned()),
            (env::ATTEMPT, attempt.number.to_string()),
            (env::RANK, rank.to_string()),
            (env::WORKERS, attempt.nodes.len().to_string()),
        ];
        if let Some(checkpoint) = &self.job.spec.checkpoint {
            variables.push((env::CHECKPOINT_DIR, checkpoint.path.clone()));
            if let Some(every) = checkpoint.every {
                variables.push((env::CHECKPOINT_EVERY, every.seconds.to_string()));
            }
            if let Some(keep) = checkpoint.keep {
                variables.push((env::CHECKPOINT_KEEP, keep.to_string()));
            }
        }
        let variable = |(name, value): (&str, String)| EnvVar {
            name: name.to_owned(),
            value: Some(value),
            value_from: None,
        };
        variables.into_iter().map(variable).collect()
    }

    /// The job's own `env`, as Kubernetes has it.
    fn own_variables(&self) -> Result<Vec<EnvVar>, Misconfigured> {
        let convert = |(i, given): (usize, &stoke_api::trainjob::EnvVar)| {
            let source = given.value_from.as_ref().map(|source| {
                let source = serde_json::to_value(source).unwrap_or_default();
                serde_path_to_error::deserialize(source).map_err(|error| {
                    let path = format!("env[{i}].valueFrom.{}", error.path());
                    Misconfigured::new(path, error.inner().to_string())
                })
            });
            Ok(EnvVar {
                name: given.name.clone(),
                value: given.value_from.is_none().then(|| given.value.clone()),
                value_from: source.transpose()?,
            })
        };
        self.job.spec.env.iter().enumerate().map(convert).collect()
    }

    fn add_volumes(&self, spec: &mut PodSpec, sizing: &Sizing) {
        let mut add = |volume: Volume, path: &str, read_only: bool| {
            let mount = VolumeMount {
                name: volume.name.clone(),
                mount_path: path.to_owned(),
                read_only: read_only.then_some(true),
                ..VolumeMount::default()
            };
            worker(spec)
                .volume_mounts
                .get_or_insert_default()
                .push(mount);
            spec.volumes.get_or_insert_default().push(volume);
        };
        if let Some(checkpoint) = &self.job.spec.checkpoint {
            add(
                claim("checkpoint", &checkpoint_claim(self.job.name()), false),
                &checkpoint.path,
                false,
            );
        }
        for (i, mount) in self.job.spec.datasets.iter().enumerate() {
            let name = format!("dataset-{i}");
            if let Some(dataset) = self.datasets.get(&mount.name) {
                add(dataset_volume(&name, dataset), &mount.path, true);
            }
        }
        let mounted = worker(spec).volume_mounts.iter().flatten();
        let has_shm = mounted
            .into_iter()
            .any(|mount| mount.mount_path.trim_end_matches('/') == "/dev/shm");
        if !has_shm {
            let shm = Volume {
                name: "shm".to_owned(),
                empty_dir: Some(EmptyDirVolumeSource {
                    medium: Some("Memory".to_owned()),
                    // What is there counts as the container's memory, so more could not be used.
                    size_limit: Some(Quantity(sizing.limit.to_string())),
                }),
                ..Volume::default()
            };
            let mount = VolumeMount {
                name: "shm".to_owned(),
                mount_path: "/dev/shm".to_owned(),
                ..VolumeMount::default()
            };
            worker(spec)
                .volume_mounts
                .get_or_insert_default()
                .push(mount);
            spec.volumes.get_or_insert_default().push(shm);
        }
    }

    fn fill_spec(&self, spec: &mut PodSpec, rank: u32) {
        spec.hostname = Some(host_name(self.job.name(), rank));
        spec.subdomain = Some(self.job.name().to_owned());
        spec.restart_policy = Some("Never".to_owned());
        let grace = i64::try_from(self.config.grace.as_secs()).unwrap_or(i64::MAX);
        spec.termination_grace_period_seconds.get_or_insert(grace);
        spec.enable_service_links.get_or_insert(false);
        if self.network() == Network::Host {
            spec.host_network = Some(true);
            spec.dns_policy
                .get_or_insert_with(|| "ClusterFirstWithHostNet".to_owned());
        }
        if self.config.home == Home::Cluster {
            let class = match self.job.spec.priority {
                Priority::Production => "stokehold-production",
                Priority::Standard => "stokehold-standard",
                Priority::Experiment => "stokehold-experiment",
            };
            spec.priority_class_name = Some(class.to_owned());
        }
    }
}

/// [`template::parse`] put it first.
fn worker(spec: &mut PodSpec) -> &mut Container {
    if spec.containers.is_empty() {
        spec.containers.push(Container::default());
    }
    &mut spec.containers[0]
}

/// Each layer wins over the one before; a name stands once.
fn layered(layers: [Vec<EnvVar>; 3]) -> Vec<EnvVar> {
    let mut taken = BTreeSet::new();
    let mut variables: Vec<EnvVar> = layers
        .into_iter()
        .rev()
        // Within a layer too, the last of a name is the one that holds.
        .flat_map(|layer| layer.into_iter().rev())
        .filter(|variable| taken.insert(variable.name.clone()))
        .collect();
    // Ours first, so that `$(STOKE_RANK)` in a job's own variables is known when it is read.
    variables.reverse();
    variables
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

fn dataset_volume(name: &str, dataset: &DatasetSpec) -> Volume {
    if let Some(found) = &dataset.claim {
        return claim(name, found, true);
    }
    let uri = dataset.uri.as_deref().unwrap_or_default();
    Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource {
            path: uri.strip_prefix("file://").unwrap_or(uri).to_owned(),
            type_: Some("Directory".to_owned()),
        }),
        ..Volume::default()
    }
}

/// GPU nodes are commonly tainted so that only pods with GPUs come there. These do.
fn tolerate_gpu_taint(spec: &mut PodSpec) {
    spec.tolerations.get_or_insert_default().push(Toleration {
        key: Some(GPU_RESOURCE.to_owned()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    });
}

/// Leaves a pod no other node than this, and every other constraint as it is.
fn pin(spec: &mut PodSpec, node: &str) {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required
            .node_selector_terms
            .push(NodeSelectorTerm::default());
    }
    // Terms are alternatives, so each must say it.
    for term in &mut required.node_selector_terms {
        term.match_fields
            .get_or_insert_default()
            .push(field.clone());
    }
}

/// What a worker asks for that is promised to it before its pod is there.
pub fn promised(job: &TrainJob, attempt: &Attempt) -> Resources {
    Resources {
        cpu: attempt.cpus.unwrap_or_default(),
        memory: attempt
            .memory
            .as_ref()
            .map(|sizing| sizing.request)
            .unwrap_or_default(),
        gpus: job.spec.gpus.whole(),
        pods: 1,
    }
}
