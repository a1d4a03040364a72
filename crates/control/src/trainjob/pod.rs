//! What a job's pods look like: the template underneath, and on top what must be ours.
//!
//! Invariant: a pod is a function of the job's spec and of what its attempt recorded, so that a gang whose creation was cut short is
//! finished alike. No pod is without memory and CPU requests.

mod security;
mod sizes;
mod tuning;
mod volumes;
mod whereabouts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec, PodTemplateSpec};
use kube::Resource as _;
use kube::api::ObjectMeta;
use stoke_api::contract::{self, MemoryTerms, copies};
use stoke_api::names::{
    ATTEMPT_LABEL, GPU_DEVICES_ANNOTATION, HOST_IMAGE, HUNG_AFTER_ANNOTATION, JOB_LABEL,
    MEMORY_TERMS_ANNOTATION, RANK_LABEL, env, host_name, pod_name, priority_class,
};
use stoke_api::trainjob::{Attempt, Framework, Network, Spot, Tuning, Upload};
use stoke_api::{Bytes, DatasetSpec, GpuRequest, TrainJob};
use stoke_sched::{Snapshot, Topology};

use super::frameworks::{self, Gang, Start};
use super::rendezvous::{Place, Rendezvous};
use super::template::{self, Misconfigured};
use crate::cluster;
use crate::config::{Config, Home};

pub use sizes::{Gpus, Size, promised};

/// Everything that a job's pods are made of, checked.
pub struct Blueprint<'a> {
    job: &'a TrainJob,
    datasets: &'a BTreeMap<String, DatasetSpec>,
    config: &'a Config,
    template: PodTemplateSpec,
    /// On what kind of machines its workers may run.
    spot: Spot,
}

/// Where an attempt's workers run, as pods need to know it.
pub struct Site<'a> {
    pub attempt: &'a Attempt,
    /// Addresses of nodes, by name.
    pub addresses: &'a BTreeMap<String, String>,
    pub cluster: &'a Snapshot,
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
            spot: job.spec.spot,
        };
        blueprint.check()?;
        // Whatever is wrong with a pod is wrong with all; better known before a place is taken.
        let workers = job.spec.workers_max().max(1);
        let nodes = vec![String::new(); workers as usize];
        let attempt = Attempt {
            number: 1,
            nodes,
            ..Attempt::default()
        };
        let site = Site {
            attempt: &attempt,
            addresses: &BTreeMap::new(),
            cluster: &Snapshot::default(),
        };
        blueprint.pods(&site, [0, workers - 1])?;
        Ok(blueprint)
    }

    /// The same for machines of this kind, whatever the job says.
    pub fn on(self, spot: Spot) -> Self {
        Self { spot, ..self }
    }

    /// Of a job whose attempt is on record: it was checked then.
    fn of_record(
        job: &'a TrainJob,
        datasets: &'a BTreeMap<String, DatasetSpec>,
        config: &'a Config,
    ) -> Result<Self, Misconfigured> {
        Ok(Self {
            job,
            datasets,
            config,
            template: template::parse(job)?,
            spot: job.spec.spot,
        })
    }

    pub fn network(&self) -> Network {
        self.job.spec.network.unwrap_or(self.config.network)
    }

    /// What a template may ask of Kubernetes, but not of us.
    fn check(&self) -> Result<(), Misconfigured> {
        let spec = self.template.spec.as_ref();
        let ours = spec.and_then(set_by_us);
        if let Some((field, problem)) = ours {
            let path = format!("template.spec.{field}");
            return Err(Misconfigured::new(path, problem));
        }
        let on_host = spec.is_some_and(|spec| spec.host_network == Some(true));
        if on_host && self.network() == Network::Pod {
            let problem = "set network: host, so that workers are told the ports they have there";
            return Err(Misconfigured::new("template.spec.hostNetwork", problem));
        }
        if self.copies_binary() && self.config.image.is_none() {
            let (field, problem) = if self.job.spec.framework == Framework::Mpi {
                let problem = "MPI workers get their launcher from the operator's own image, and it was started without --image";
                ("framework", problem)
            } else if self.upload().is_some() {
                let problem = "workers get what sends copies from the operator's own image, and it was started without --image";
                ("checkpoint.upload", problem)
            } else {
                let problem = "workers get what signals them from the operator's own image, and it was started without --image";
                ("checkpoint.signal", problem)
            };
            return Err(Misconfigured::new(field, problem));
        }
        self.check_data()
    }

    /// Where a dataset can be had differs between the worlds, and nothing starts that would wait for one for ever.
    fn check_data(&self) -> Result<(), Misconfigured> {
        for (i, mount) in self.job.spec.datasets.iter().enumerate() {
            let Some(dataset) = self.datasets.get(&mount.name) else {
                continue;
            };
            let (name, path) = (&mount.name, format!("datasets[{i}]"));
            match (self.config.home, dataset.staged_uri(), &dataset.nfs) {
                (Home::Cluster, Some(uri), _) if !self.config.data_driver => {
                    let problem = format!(
                        "Dataset {name} is {uri}, and no node of this cluster has the driver that copies it; install it with the chart's data.enabled=true (helm upgrade stokehold charts/stokehold --namespace stokehold-system --reset-then-reuse-values --set data.enabled=true), or put the data on a claim or an NFS export that the nodes reach"
                    );
                    return Err(Misconfigured::new(path, problem));
                }
                (Home::Machine, _, Some(nfs)) => {
                    let problem = format!(
                        "Dataset {name} is an NFS export, and nothing is mounted on this machine for a job; mount {}:{} yourself and set uri: file:///WHERE",
                        nfs.server, nfs.path
                    );
                    return Err(Misconfigured::new(path, problem));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// On a cluster our binary is not in the image of the job.
    fn copies_binary(&self) -> bool {
        let needs_it = self.job.spec.framework == Framework::Mpi || self.is_heeded();
        self.config.home == Home::Cluster && needs_it
    }

    /// Whether something stands beside its programs for the sake of its checkpoints. On a cluster it comes from the operator's image, and it
    /// has to know the command: without either, checkpoints are the program's own affair, and only a signal cannot be sent.
    fn is_heeded(&self) -> bool {
        let Some(checkpoint) = &self.job.spec.checkpoint else {
            return false;
        };
        let can_be = self.config.home == Home::Machine
            || (self.config.image.is_some() && !self.command().is_empty());
        can_be || checkpoint.signal.is_some() || checkpoint.upload.is_some()
    }

    fn upload(&self) -> Option<&'a Upload> {
        self.job.spec.checkpoint.as_ref()?.upload.as_ref()
    }

    /// What the first worker is told of where copies go. Of the keys, where they lie.
    fn copying(&self, upload: &Upload) -> Vec<String> {
        let job = self.job;
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        let name = upload.name.as_deref();
        let place = copies::place(job.namespace(), job.name(), uid, name);
        let mut words = vec![
            format!("--upload={}", upload.uri),
            format!("--upload-place={place}"),
        ];
        words.extend(name.map(|_| "--upload-shared".to_owned()));
        let endpoint = upload.endpoint.iter();
        words.extend(endpoint.map(|endpoint| format!("--upload-endpoint={endpoint}")));
        let secret = upload.secret.iter();
        words.extend(secret.map(|_| format!("--upload-keys={}", copies::KEYS_DIR)));
        words.push(format!(
            "--grace={}",
            grace(self.job, self.config).as_secs()
        ));
        words
    }

    /// Whether this worker has the volume that checkpoints are kept in.
    fn has_checkpoints(&self, rank: u32) -> bool {
        let on_one_node = self.config.home == Home::Machine;
        let workers = self.job.spec.workers_max();
        let checkpoint = self.job.spec.checkpoint.as_ref();
        checkpoint.is_some_and(|it| rank == 0 || on_one_node || !it.is_for_first_only(workers))
    }

    /// The command with someone beside it who watches over its checkpoints: in every worker, for launchers pass signals on to whoever is
    /// there, with a handler or without, and who writes may be any of them.
    fn heeding(
        &self,
        command: Vec<String>,
        attempt: &Attempt,
        rank: u32,
    ) -> Result<Vec<String>, Misconfigured> {
        let Some(checkpoint) = self
            .job
            .spec
            .checkpoint
            .as_ref()
            .filter(|_| self.is_heeded())
        else {
            return Ok(command);
        };
        if command.is_empty() && checkpoint.upload.is_some() {
            let problem = "say what to run: nobody here knows the image's own command, and copies are sent from beside it";
            return Err(Misconfigured::new("command", problem));
        }
        if command.is_empty() && checkpoint.signal.is_none() {
            return Ok(command);
        }
        if command.is_empty() {
            let problem = "say what to run: nobody here knows the image's own command, and a signal is for what was started";
            return Err(Misconfigured::new("command", problem));
        }
        let mut heed = vec![
            self.config.stoke_exe.to_string_lossy().into_owned(),
            "heed".to_owned(),
        ];
        if self.has_checkpoints(rank) {
            let uid = self.job.metadata.uid.as_deref().unwrap_or_default();
            heed.extend([
                format!("--checkpoints={}", checkpoint.path),
                format!("--job={uid}"),
                format!("--attempt={}", attempt.number),
                format!("--rank={rank}"),
            ]);
            heed.extend(checkpoint.keep.map(|keep| format!("--keep={keep}")));
            if let Some(upload) = self.upload().filter(|_| rank == 0) {
                heed.extend(self.copying(upload));
            }
        } else if checkpoint.signal.is_none() {
            return Ok(command);
        }
        heed.extend(checkpoint.signal.map(|signal| signal.name().to_owned()));
        heed.push("--".to_owned());
        heed.extend(command);
        Ok(heed)
    }

    /// What placement is asked for, with workers of this size.
    pub fn gang(&self, size: &Size) -> Result<stoke_sched::Gang, Misconfigured> {
        let size = Size {
            // What stands for a part of a GPU is known when a place was found.
            gpu_resource: None,
            ..size.clone()
        };
        let spec = self.sized(&size);
        let terms = cluster::terms(&spec).map_err(|problem| {
            Misconfigured::new("template.spec.affinity.nodeAffinity", problem)
        })?;
        let job = &self.job.spec;
        let mut ask = cluster::requests(&spec);
        if self.config.home == Home::Machine {
            // A job that is meant for a cluster asks for devices that this machine gives to all, or to none.
            ask.others.clear();
            ask.storage = Bytes(0);
        }
        Ok(stoke_sched::Gang {
            workers: job.workers_max(),
            min_workers: job.elastic.map(|elastic| elastic.min),
            topology: self.topology(),
            ask,
            gpus: job.gpus.clone(),
            gpu_types: gpu_types(self.job, &size.tuning).to_vec(),
            selector: spec.node_selector.clone().unwrap_or_default(),
            terms,
            tolerations: cluster::tolerations(&spec),
            spot: job.spot,
            ..stoke_sched::Gang::default()
        })
    }

    /// How near to each other the workers must be. One machine is one node, and as near as can be.
    fn topology(&self) -> Option<Topology> {
        if self.config.home == Home::Machine {
            return None;
        }
        let asked = self.job.spec.topology.as_ref();
        let required = asked.and_then(|asked| asked.required.clone());
        match required {
            Some(level) => Some(Topology::Required { level }),
            None => {
                (asked.is_some() || !self.config.topology.is_empty()).then_some(Topology::Preferred)
            }
        }
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
            job_uid: job.metadata.uid.as_deref().unwrap_or_default(),
            attempt: attempt.number,
            workers: attempt.nodes.len() as u32,
            processes_said: job.spec.processes_per_worker,
            processes: job.spec.processes_per_worker(),
            gpus: job.spec.gpus.whole(),
            command: &command,
            rendezvous,
            stoke_exe: &self.config.stoke_exe,
        };
        let mut start = frameworks::start(job.spec.framework, &gang, rank)?;
        start.command = self.heeding(start.command, attempt, rank)?;
        let size = Size::of(attempt);
        let mut spec = self.sized(&size);
        self.fill_worker(worker(&mut spec), start, variables, attempt, rank)?;
        let has_checkpoints = self.has_checkpoints(rank);
        volumes::add(
            &mut spec,
            job,
            self.datasets,
            has_checkpoints,
            size.memory.limit,
        );
        if let Some(secret) = self.upload().and_then(|upload| upload.secret.as_deref())
            && rank == 0
        {
            volumes::add_keys(&mut spec, secret, self.config.home);
        }
        tuning::apply(&mut spec, &size, self.config.home);
        self.fill_spec(&mut spec, rank);
        match attempt.nodes.get(rank as usize) {
            Some(node) if !node.is_empty() => self.pin(&mut spec, node, site.cluster),
            _ => {
                let types = gpu_types(job, &size.tuning);
                whereabouts::constrain(&mut spec, types, site.cluster);
                whereabouts::avoid(&mut spec, &size.tuning.avoid_nodes);
                // Whoever brings or chooses its node knows of no other word of the job's.
                if self.config.home == Home::Cluster && self.spot == Spot::Never {
                    whereabouts::avoid_spot(&mut spec);
                }
            }
        }
        Ok(Pod {
            metadata: self.metadata(attempt, rank),
            spec: Some(spec),
            status: None,
        })
    }

    fn pin(&self, spec: &mut PodSpec, node: &str, cluster: &Snapshot) {
        whereabouts::pin(spec, node);
        let gpu = cluster.node(node).and_then(|node| node.gpu.as_ref());
        let chosen = !self.job.spec.gpu_types.is_empty() && self.config.home == Home::Cluster;
        if let Some(gpu) = gpu.filter(|_| chosen) {
            whereabouts::pin_gpu(spec, &gpu.product);
        }
    }

    fn metadata(&self, attempt: &Attempt, rank: u32) -> ObjectMeta {
        let given = self.template.metadata.clone().unwrap_or_default();
        let mut annotations = given.annotations;
        if let Some(devices) = attempt
            .devices
            .get(rank as usize)
            .filter(|it| !it.is_empty())
        {
            let annotations = annotations.get_or_insert_default();
            annotations.insert(GPU_DEVICES_ANNOTATION.to_owned(), devices.clone());
        }
        let limit = attempt.memory.as_ref().map(|sizing| sizing.limit);
        let terms = MemoryTerms {
            limit: limit.unwrap_or_default(),
            max: attempt.memory_max.filter(|max| Some(*max) > limit),
            expected: attempt.memory_expected,
            restart_steps: restart_steps(self.job, attempt),
        };
        if let Ok(terms) = serde_json::to_string(&terms) {
            let annotations = annotations.get_or_insert_default();
            annotations.insert(MEMORY_TERMS_ANNOTATION.to_owned(), terms);
        }
        if let Some(after) = self.job.spec.hung_after {
            let annotations = annotations.get_or_insert_default();
            annotations.insert(HUNG_AFTER_ANNOTATION.to_owned(), after.seconds.to_string());
        }
        let attempt = attempt.number;
        let mut labels = given.labels.unwrap_or_default();
        labels.insert(JOB_LABEL.to_owned(), self.job.name().to_owned());
        labels.insert(ATTEMPT_LABEL.to_owned(), attempt.to_string());
        labels.insert(RANK_LABEL.to_owned(), rank.to_string());
        ObjectMeta {
            name: Some(pod_name(self.job.name(), attempt, rank)),
            namespace: Some(self.job.namespace().to_owned()),
            labels: Some(labels),
            annotations,
            owner_references: self.job.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    /// The template's spec with the worker's resources in it, and the taints it does not mind.
    fn sized(&self, size: &Size) -> PodSpec {
        let mut spec = self.template.spec.clone().unwrap_or_default();
        let job = self.job;
        size.fill(&mut spec, job, self.config.home);
        if job.spec.gpus != GpuRequest::None {
            whereabouts::tolerate_gpu_taints(&mut spec);
        }
        if self.config.home == Home::Cluster && self.spot != Spot::Never {
            whereabouts::tolerate_spot_taints(&mut spec);
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
        if let GpuRequest::Fraction(_) = self.job.spec.gpus {
            variables.push((env::GPU_SHARE, self.job.spec.gpus.to_string()));
        }
        let request = format!("{}/{}", contract::REQUEST_DIR, contract::CHECKPOINT_REQUEST);
        variables.push((env::CHECKPOINT_REQUEST, request));
        let status = format!("{}/{}", contract::STATUS_DIR, contract::STATUS);
        variables.push((env::STATUS_FILE, status));
        if let Some(checkpoint) = &self.job.spec.checkpoint {
            if self.has_checkpoints(rank) {
                variables.push((env::CHECKPOINT_DIR, checkpoint.path.clone()));
            }
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

    fn fill_spec(&self, spec: &mut PodSpec, rank: u32) {
        spec.hostname = Some(host_name(self.job.name(), rank));
        spec.subdomain = Some(self.job.name().to_owned());
        spec.restart_policy = Some("Never".to_owned());
        let grace = i64::try_from(grace(self.job, self.config).as_secs()).unwrap_or(i64::MAX);
        spec.termination_grace_period_seconds.get_or_insert(grace);
        spec.enable_service_links.get_or_insert(false);
        if self.network() == Network::Host {
            spec.host_network = Some(true);
            spec.dns_policy
                .get_or_insert_with(|| "ClusterFirstWithHostNet".to_owned());
        }
        if self.config.home == Home::Cluster {
            let class = priority_class(self.job.spec.priority);
            spec.priority_class_name = Some(class.to_owned());
            if let Some(image) = self
                .config
                .image
                .as_deref()
                .filter(|_| self.copies_binary())
            {
                volumes::add_binary(spec, image);
            }
            security::harden(spec);
        }
    }
}

/// What an attempt asks of placement, read from its record. The spec may have been changed since; what it held then it holds still.
pub fn gang_of(job: &TrainJob, attempt: &Attempt, config: &Config) -> stoke_sched::Gang {
    let datasets = BTreeMap::new();
    let read = Blueprint::of_record(job, &datasets, config);
    let gang = read.and_then(|blueprint| blueprint.gang(&Size::of(attempt)));
    gang.unwrap_or_else(|_| stoke_sched::Gang {
        workers: attempt.nodes.len() as u32,
        ask: promised(job, attempt),
        gpus: job.spec.gpus.clone(),
        ..stoke_sched::Gang::default()
    })
}

/// The GPU types it may run on, of which some may have turned out to be too small.
fn gpu_types<'a>(job: &'a TrainJob, tuning: &'a Tuning) -> &'a [String] {
    let said = &job.spec.gpu_types;
    // Its author may have changed them since.
    let is_still_said = tuning.gpu_types.iter().all(|name| said.contains(name));
    if tuning.gpu_types.is_empty() || !is_still_said {
        said
    } else {
        &tuning.gpu_types
    }
}

/// After how many steps its nodes ask it for a checkpoint, to begin anew from.
fn restart_steps(job: &TrainJob, attempt: &Attempt) -> Option<u64> {
    job.spec.checkpoint.as_ref()?;
    attempt.tuning.restart_every?.steps
}

/// How long a worker has between SIGTERM and SIGKILL: time for a checkpoint, if it writes any.
pub fn grace(job: &TrainJob, config: &Config) -> Duration {
    let said = job.spec.template.as_ref().and_then(|template| {
        let seconds = template.0.get("spec")?.get("terminationGracePeriodSeconds");
        seconds?.as_u64().map(Duration::from_secs)
    });
    said.unwrap_or(match job.spec.checkpoint {
        Some(_) => config.checkpoint_grace,
        None => config.grace,
    })
}

/// The first field of a template that every pod of ours has a value of its own for, and how to say what it was meant to.
fn set_by_us(spec: &PodSpec) -> Option<(&'static str, &'static str)> {
    let said = |value: &Option<String>| value.as_deref().is_some_and(|value| !value.is_empty());
    let otherwise =
        |value: &Option<String>, ours: &str| said(value) && value.as_deref() != Some(ours);
    let fields = [
        (
            said(&spec.node_name),
            "nodeName",
            "workers are placed together: use nodeSelector or affinity to say where",
        ),
        (
            said(&spec.priority_class_name),
            "priorityClassName",
            "set spec.priority: production, standard or experiment",
        ),
        (
            otherwise(&spec.restart_policy, "Never"),
            "restartPolicy",
            "a gang is started anew as a whole: say how often with spec.retries",
        ),
        (
            said(&spec.hostname),
            "hostname",
            "workers find each other by their host names, which are <job>-<rank>: leave it out",
        ),
        (
            said(&spec.subdomain),
            "subdomain",
            "workers find each other under the job's own name: leave it out",
        ),
    ];
    let found = fields.into_iter().find(|(is_set, ..)| *is_set);
    found.map(|(_, field, problem)| (field, problem))
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
