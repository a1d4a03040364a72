//! What a schema cannot say. Each rule stands once, as CEL for a real API server and as Rust for ours, in one row,
//! and one table of bad inputs is run through both.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::names::{ANY_GPU_TYPE, JOB_NAME_LENGTH_MAX};
use crate::quantity::{Bytes, GpuRequest, Span};
use crate::trainjob::{Memory, Qos, Spot, Upload};
use crate::{Dataset, Queue, TrainJob};

/// A rule that an object broke, at the field a person should change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `spec.elastic.min`
    pub path: String,
    pub message: String,
}

/// One rule about a kind.
pub struct Rule<T> {
    /// The field it is about.
    pub path: &'static str,
    /// For a real API server; `self` is the whole object.
    pub cel: &'static str,
    pub message: &'static str,
    /// For ours. The second argument is the object before the change.
    holds: fn(&T, Option<&T>) -> bool,
}

/// Rules that compare with the object as it was speak only of changes.
impl<T> Rule<T> {
    pub fn is_transition(&self) -> bool {
        self.cel.contains("oldSelf")
    }
}

/// The rules that `new` breaks. Kinds that are not ours have none here.
pub fn violations(kind: &str, new: &Value, old: Option<&Value>) -> Vec<Violation> {
    match kind {
        "TrainJob" => broken(TRAIN_JOB, new, old),
        "Queue" => broken(QUEUE, new, old),
        "Dataset" => broken(DATASET, new, old),
        _ => Vec::new(),
    }
}

fn broken<T: DeserializeOwned>(
    rules: &[Rule<T>],
    new: &Value,
    old: Option<&Value>,
) -> Vec<Violation> {
    let new: T = match T::deserialize(new) {
        Ok(new) => new,
        Err(error) => {
            return vec![Violation {
                path: "spec".to_owned(),
                message: error.to_string(),
            }];
        }
    };
    let old = old.and_then(|old| T::deserialize(old).ok());
    rules
        .iter()
        .filter(|rule| !(rule.holds)(&new, old.as_ref()))
        .map(|rule| Violation {
            path: rule.path.to_owned(),
            message: rule.message.to_owned(),
        })
        .collect()
}

/// Fields that other operators spell otherwise. A manifest that has one is told ours.
pub fn misspelling(field: &str) -> Option<&'static str> {
    Some(match field {
        "ttlSecondsAfterFinished" => "ttl (a duration: 24h)",
        "activeDeadlineSeconds" => "maxDuration (a duration: 48h)",
        "backoffLimit" => "retries",
        "replicas" | "nnodes" | "numNodes" => "workers",
        "nprocPerNode" | "nproc_per_node" | "slotsPerWorker" => "processesPerWorker",
        "priorityClassName" => "priority (production, standard or experiment)",
        "gpu" => "gpus",
        "gpuType" => "gpuTypes (a list)",
        "cpu" => "cpus",
        "args" => "command (one list, arguments included)",
        "workdir" | "workingDirectory" | "cwd" => "workingDir",
        "hostNetwork" => "network: host",
        "queueName" => "queue",
        "topologyKey" | "topologyConstraint" => "topology (required or preferred: a level)",
        "resources" => "gpus, cpus and memory",
        _ => return None,
    })
}

pub const TRAIN_JOB: &[Rule<TrainJob>] = &[
    Rule {
        path: "metadata.name",
        cel: "size(self.metadata.name) <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        message: "a job's name becomes host names: at most 50 of a-z, 0-9 and -, starting with a letter",
        holds: |job, _| is_host_name(job.name()),
    },
    Rule {
        path: "spec.command",
        cel: "(has(self.spec.command) && size(self.spec.command) > 0) || has(self.spec.template)",
        message: "a job needs a command, or a template whose container has one",
        holds: |job, _| !job.spec.command.is_empty() || job.spec.template.is_some(),
    },
    Rule {
        path: "spec.elastic",
        cel: "!has(self.spec.elastic) || (self.spec.elastic.min <= self.spec.workers && self.spec.workers <= self.spec.elastic.max)",
        message: "workers must lie between elastic.min and elastic.max",
        holds: |job, _| {
            job.spec
                .elastic
                .is_none_or(|elastic| (elastic.min..=elastic.max).contains(&job.spec.workers))
        },
    },
    Rule {
        path: "spec.spotInterruptions",
        cel: "!has(self.spec.spotInterruptions) || self.spec.spot == 'allowed'",
        message: "spotInterruptions is for jobs that may run on both kinds of machines; it needs spot: allowed",
        holds: |job, _| job.spec.spot_interruptions.is_none() || job.spec.spot == Spot::Allowed,
    },
    Rule {
        path: "spec.retryLimits",
        cel: "!has(self.spec.retryLimits) || ((!has(self.spec.retryLimits.memory) || self.spec.retryLimits.memory <= self.spec.retries) && \
              (!has(self.spec.retryLimits.gpuMemory) || self.spec.retryLimits.gpuMemory <= self.spec.retries) && \
              (!has(self.spec.retryLimits.storage) || self.spec.retryLimits.storage <= self.spec.retries) && \
              (!has(self.spec.retryLimits.start) || self.spec.retryLimits.start <= self.spec.retries) && \
              (!has(self.spec.retryLimits.program) || self.spec.retryLimits.program <= self.spec.retries) && \
              (!has(self.spec.retryLimits.hung) || self.spec.retryLimits.hung <= self.spec.retries))",
        message: "retries bounds all causes together, so a limit of one must not be more: raise retries, or lower it",
        holds: |job, _| {
            let limits = job.spec.retry_limits.unwrap_or_default();
            limits.said().all(|(_, limit)| limit <= job.spec.retries)
        },
    },
    Rule {
        path: "spec.gpuTypes",
        cel: "!has(self.spec.gpuTypes) || size(self.spec.gpuTypes) == 0 || string(self.spec.gpus) != '0'",
        message: "gpuTypes says which GPUs, but the job asks for none: set gpus",
        holds: |job, _| job.spec.gpu_types.is_empty() || job.spec.gpus != GpuRequest::None,
    },
    Rule {
        path: "spec.topology",
        cel: "!has(self.spec.topology) || has(self.spec.topology.required) || has(self.spec.topology.preferred)",
        message: "topology names a level: set required or preferred",
        holds: |job, _| levels(job).is_none_or(|levels| levels.iter().any(Option::is_some)),
    },
    Rule {
        path: "spec.topology",
        cel: "!has(self.spec.topology) || ((!has(self.spec.topology.required) || self.spec.topology.required.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')) && \
              (!has(self.spec.topology.preferred) || self.spec.topology.preferred.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')))",
        message: "a level is the key of a node label, such as topology.kubernetes.io/zone",
        holds: |job, _| {
            levels(job).is_none_or(|levels| levels.into_iter().flatten().all(is_label_key))
        },
    },
    Rule {
        path: "spec.memory",
        cel: "!has(self.spec.memory) || ((!has(self.spec.memory.request) || quantity(string(self.spec.memory.request)).isGreaterThan(quantity('0'))) && \
              (!has(self.spec.memory.limit) || quantity(string(self.spec.memory.limit)).isGreaterThan(quantity('0'))) && \
              (!has(self.spec.memory.max) || quantity(string(self.spec.memory.max)).isGreaterThan(quantity('0'))))",
        message: "memory must be more than nothing: leave a field out to have it chosen",
        holds: |job, _| {
            memory(job).is_none_or(|m| {
                [m.request, m.limit, m.max]
                    .iter()
                    .flatten()
                    .all(|b| *b > Bytes(0))
            })
        },
    },
    Rule {
        path: "spec.memory.request",
        cel: "!has(self.spec.memory) || !has(self.spec.memory.request) || !has(self.spec.memory.limit) || \
              quantity(string(self.spec.memory.request)).compareTo(quantity(string(self.spec.memory.limit))) <= 0",
        message: "request must not be more than limit",
        holds: |job, _| memory(job).is_none_or(|m| at_most(m.request, m.limit)),
    },
    Rule {
        path: "spec.memory.limit",
        cel: "!has(self.spec.memory) || !has(self.spec.memory.limit) || !has(self.spec.memory.max) || \
              quantity(string(self.spec.memory.limit)).compareTo(quantity(string(self.spec.memory.max))) <= 0",
        message: "limit must not be more than max",
        holds: |job, _| memory(job).is_none_or(|m| at_most(m.limit, m.max)),
    },
    Rule {
        path: "spec.memory.max",
        cel: "!has(self.spec.memory) || !has(self.spec.memory.request) || !has(self.spec.memory.max) || \
              quantity(string(self.spec.memory.request)).compareTo(quantity(string(self.spec.memory.max))) <= 0",
        message: "request must not be more than max",
        holds: |job, _| memory(job).is_none_or(|m| at_most(m.request, m.max)),
    },
    Rule {
        path: "spec.memory.qos",
        cel: "!has(self.spec.memory) || self.spec.memory.qos != 'guaranteed' || !has(self.spec.memory.request) || !has(self.spec.memory.limit) || \
              quantity(string(self.spec.memory.request)).compareTo(quantity(string(self.spec.memory.limit))) == 0",
        message: "guaranteed promises the whole limit: make request equal to limit, or leave one out",
        holds: |job, _| {
            memory(job).is_none_or(|m| {
                m.qos != Qos::Guaranteed
                    || m.request
                        .zip(m.limit)
                        .is_none_or(|(request, limit)| request == limit)
            })
        },
    },
    Rule {
        path: "spec.model",
        cel: "!has(self.spec.model) || has(self.spec.model.params) || (has(self.spec.model.layers) && has(self.spec.model.hidden))",
        message: "a model needs its size: set params, or layers and hidden",
        holds: |job, _| {
            job.spec.model.as_ref().is_none_or(|model| {
                model.params.is_some() || (model.layers.is_some() && model.hidden.is_some())
            })
        },
    },
    Rule {
        path: "spec.model",
        cel: "!has(self.spec.model) || string(self.spec.gpus) != '0'",
        message: "model says what GPUs must hold, but the job asks for none: set gpus",
        holds: |job, _| job.spec.model.is_none() || job.spec.gpus != GpuRequest::None,
    },
    Rule {
        path: "spec.model.heads",
        cel: "!has(self.spec.model) || !has(self.spec.model.heads) || !has(self.spec.model.hidden) || has(self.spec.model.headDim) || \
              self.spec.model.hidden % self.spec.model.heads == 0",
        message: "hidden must be a multiple of heads, or headDim said",
        holds: |job, _| {
            job.spec.model.as_ref().is_none_or(|model| {
                model.head_dim.is_some() || is_multiple(model.hidden, model.heads)
            })
        },
    },
    Rule {
        path: "spec.model.kvHeads",
        cel: "!has(self.spec.model) || !has(self.spec.model.kvHeads) || !has(self.spec.model.heads) || self.spec.model.heads % self.spec.model.kvHeads == 0",
        message: "heads must be a multiple of kvHeads",
        holds: |job, _| {
            job.spec
                .model
                .as_ref()
                .is_none_or(|model| is_multiple(model.heads, model.kv_heads))
        },
    },
    Rule {
        path: "spec.datasets",
        cel: "!has(self.spec.datasets) || self.spec.datasets.all(d, self.spec.datasets.exists_one(e, e.path == d.path))",
        message: "two datasets have the same path",
        holds: |job, _| {
            let paths = job.spec.datasets.iter().map(|dataset| &dataset.path);
            paths
                .clone()
                .collect::<std::collections::BTreeSet<_>>()
                .len()
                == paths.count()
        },
    },
    Rule {
        path: "spec.datasets",
        cel: "!has(self.spec.datasets) || self.spec.datasets.all(d, !d.path.matches('(^|/)[.][.](/|$)'))",
        message: "a path must not contain '..'",
        holds: |job, _| {
            job.spec
                .datasets
                .iter()
                .all(|dataset| !climbs(&dataset.path))
        },
    },
    Rule {
        path: "spec.checkpoint.path",
        cel: "!has(self.spec.checkpoint) || !self.spec.checkpoint.path.matches('(^|/)[.][.](/|$)')",
        message: "a path must not contain '..'",
        holds: |job, _| {
            job.spec
                .checkpoint
                .as_ref()
                .is_none_or(|checkpoint| !climbs(&checkpoint.path))
        },
    },
    Rule {
        path: "spec.checkpoint.path",
        cel: "!has(self.spec.checkpoint) || !has(self.spec.datasets) || self.spec.datasets.all(d, d.path != self.spec.checkpoint.path)",
        message: "checkpoints and a dataset have the same path",
        holds: |job, _| {
            job.spec.checkpoint.as_ref().is_none_or(|checkpoint| {
                job.spec.datasets.iter().all(|d| d.path != checkpoint.path)
            })
        },
    },
    Rule {
        path: "spec.checkpoint.upload.uri",
        cel: "!has(self.spec.checkpoint) || !has(self.spec.checkpoint.upload) || !self.spec.checkpoint.upload.uri.matches('(^|/)[.][.]?(/|$)')",
        message: "a uri must not contain a part '.' or '..'",
        holds: |job, _| {
            upload(job)
                .is_none_or(|upload| !upload.uri.split('/').any(|part| matches!(part, "." | "..")))
        },
    },
    Rule {
        path: "spec.checkpoint.upload.endpoint",
        cel: "!has(self.spec.checkpoint) || !has(self.spec.checkpoint.upload) || !has(self.spec.checkpoint.upload.endpoint) || !self.spec.checkpoint.upload.uri.startsWith('file:')",
        message: "a directory has no server: leave endpoint out, or give uri another scheme",
        holds: |job, _| {
            upload(job)
                .is_none_or(|upload| upload.endpoint.is_none() || !upload.uri.starts_with("file:"))
        },
    },
    Rule {
        path: "spec.maxDuration",
        cel: "!has(self.spec.maxDuration) || self.spec.maxDuration.matches('[1-9]')",
        message: "maxDuration must be longer than nothing",
        holds: |job, _| {
            job.spec
                .max_duration
                .is_none_or(|span| span > Span::seconds(0))
        },
    },
    Rule {
        path: "spec.env",
        cel: "!has(self.spec.env) || self.spec.env.all(e, !has(e.valueFrom) || !has(e.value) || e.value == '')",
        message: "a variable has value or valueFrom, not both",
        holds: |job, _| {
            job.spec
                .env
                .iter()
                .all(|variable| variable.value_from.is_none() || variable.value.is_empty())
        },
    },
    Rule {
        path: "spec.framework",
        cel: "self.spec.framework == oldSelf.spec.framework",
        message: "framework cannot be changed: delete the job and run a new one",
        holds: |job, old| old.is_none_or(|old| old.spec.framework == job.spec.framework),
    },
    Rule {
        path: "spec.managedBy",
        cel: "has(self.spec.managedBy) == has(oldSelf.spec.managedBy) && (!has(self.spec.managedBy) || self.spec.managedBy == oldSelf.spec.managedBy)",
        message: "managedBy cannot be changed",
        holds: |job, old| old.is_none_or(|old| old.spec.managed_by == job.spec.managed_by),
    },
];

const GPU_TYPE_MESSAGE: &str = "a GPU type is a word such as h100 or a100-80g, or any";

pub const QUEUE: &[Rule<Queue>] = &[
    Rule {
        path: "spec.guaranteed",
        cel: "!has(self.spec.guaranteed) || !has(self.spec.ceiling) || \
              self.spec.guaranteed.all(t, (!(t in self.spec.ceiling) || self.spec.guaranteed[t] <= self.spec.ceiling[t]) && \
              (!('any' in self.spec.ceiling) || self.spec.guaranteed[t] <= self.spec.ceiling['any']))",
        message: "guaranteed must not be more than ceiling",
        holds: |queue, _| {
            let ceiling = &queue.spec.ceiling;
            let within = |count, gpu: &str| ceiling.get(gpu).is_none_or(|most| count <= most);
            let mut guaranteed = queue.spec.guaranteed.iter();
            guaranteed.all(|(gpu, count)| within(count, gpu) && within(count, ANY_GPU_TYPE))
        },
    },
    Rule {
        path: "spec.guaranteed",
        cel: "!has(self.spec.guaranteed) || self.spec.guaranteed.all(t, t.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",
        message: GPU_TYPE_MESSAGE,
        holds: |queue, _| queue.spec.guaranteed.keys().all(|gpu| is_word(gpu)),
    },
    Rule {
        path: "spec.ceiling",
        cel: "!has(self.spec.ceiling) || self.spec.ceiling.all(t, t.matches('^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",
        message: GPU_TYPE_MESSAGE,
        holds: |queue, _| queue.spec.ceiling.keys().all(|gpu| is_word(gpu)),
    },
    Rule {
        path: "spec.parent",
        cel: "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
        message: "a queue cannot be its own parent",
        holds: |queue, _| queue.spec.parent.is_none() || queue.spec.parent != queue.metadata.name,
    },
];

pub const DATASET: &[Rule<Dataset>] = &[
    Rule {
        path: "spec",
        cel: "[has(self.spec.uri), has(self.spec.claim), has(self.spec.nfs)].exists_one(it, it)",
        message: "a dataset comes from one place: set uri, claim or nfs",
        holds: |dataset, _| {
            let spec = &dataset.spec;
            let places = [spec.uri.is_some(), spec.claim.is_some(), spec.nfs.is_some()];
            places.into_iter().filter(|it| *it).count() == 1
        },
    },
    Rule {
        path: "spec.secret",
        cel: "!(has(self.spec.secret) || has(self.spec.endpoint)) || (has(self.spec.uri) && self.spec.uri.matches('^(s3|gs|az)://'))",
        message: "secret and endpoint belong to an object store: set them with a uri of s3, gs or az",
        holds: |dataset, _| {
            let spec = &dataset.spec;
            let is_store = |uri: &str| {
                ["s3://", "gs://", "az://"]
                    .iter()
                    .any(|it| uri.starts_with(it))
            };
            (spec.secret.is_none() && spec.endpoint.is_none())
                || spec.uri.as_deref().is_some_and(is_store)
        },
    },
    Rule {
        path: "spec.uri",
        cel: "!has(self.spec.uri) || !self.spec.uri.matches('(^|/)[.][.](/|$)')",
        message: "a path must not contain '..'",
        holds: |dataset, _| dataset.spec.uri.as_deref().is_none_or(|uri| !climbs(uri)),
    },
];

fn upload(job: &TrainJob) -> Option<&Upload> {
    job.spec.checkpoint.as_ref()?.upload.as_ref()
}

fn memory(job: &TrainJob) -> Option<&Memory> {
    job.spec.memory.as_ref()
}

fn levels(job: &TrainJob) -> Option<[Option<&str>; 2]> {
    let topology = job.spec.topology.as_ref()?;
    Some([topology.required.as_deref(), topology.preferred.as_deref()])
}

/// Could a label have this key?
pub fn is_label_key(key: &str) -> bool {
    let is_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_domain = |text: &str| {
        text.chars().all(|c| is_end(c) || c == '-' || c == '.')
            && text.starts_with(is_end)
            && text.ends_with(is_end)
    };
    match key.split_once('/') {
        Some((domain, name)) => is_domain(domain) && is_word(name),
        None => is_word(key),
    }
}

/// Letters, digits and what joins them, as in the value of a label.
fn is_word(text: &str) -> bool {
    text.bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_multiple(whole: Option<u32>, part: Option<u32>) -> bool {
    whole
        .zip(part)
        .is_none_or(|(whole, part)| part > 0 && whole.is_multiple_of(part))
}

fn at_most(less: Option<Bytes>, more: Option<Bytes>) -> bool {
    less.zip(more).is_none_or(|(less, more)| less <= more)
}

/// Does a path leave its place?
fn climbs(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

fn is_host_name(name: &str) -> bool {
    name.len() <= JOB_NAME_LENGTH_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
