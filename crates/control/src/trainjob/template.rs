//! A job's `template`, read strictly: what cannot be honoured is refused with its path, not dropped.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Volume};
use serde_json::Value;
use stoke_api::names::{GPU_RESOURCE, WORKER_CONTAINER};
use stoke_api::{Bytes, TrainJob};

/// Why no pods can be made of a job. A person reads it in the job's status and changes the field it names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misconfigured {
    #[error("spec.{path}: {problem}")]
    Field { path: String, problem: String },
}

impl Misconfigured {
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Field {
            path: path.into(),
            problem: problem.into(),
        }
    }
}

/// The template, with metadata and spec present and a worker container in the first place.
pub fn parse(job: &TrainJob) -> Result<PodTemplateSpec, Misconfigured> {
    let given = job.spec.template.as_ref();
    let given = given.map_or_else(
        || Value::Object(serde_json::Map::new()),
        |template| Value::Object(template.0.clone().into_iter().collect()),
    );
    let mut given = given;
    allow_no_containers(&mut given);
    let mut template: PodTemplateSpec =
        serde_path_to_error::deserialize(&given).map_err(|error| {
            Misconfigured::new(
                format!("template.{}", error.path()),
                error.inner().to_string(),
            )
        })?;
    let kept = serde_json::to_value(&template).unwrap_or_default();
    if let Some(path) = lost(&given, &kept) {
        return Err(Misconfigured::new(
            format!("template{path}"),
            "unknown field",
        ));
    }
    let spec = template.spec.get_or_insert_default();
    put_worker_first(spec);
    let asks_gpus = |container: &Container| {
        let resources = container.resources.iter();
        resources
            .flat_map(|r| r.limits.iter().chain(&r.requests))
            .any(|all| all.contains_key(GPU_RESOURCE))
    };
    if spec.containers.first().is_some_and(asks_gpus) {
        let path = format!("template.spec.containers[worker].resources[{GPU_RESOURCE}]");
        return Err(Misconfigured::new(path, "ask for GPUs with spec.gpus"));
    }
    Ok(template)
}

/// The claims that a template's volumes name, with where they do. Of a template that cannot be read, as many as can.
pub fn claims(job: &TrainJob) -> Vec<(String, String)> {
    let spec = job.spec.template.as_ref().and_then(|t| t.0.get("spec"));
    let volumes = spec.and_then(|spec| spec.get("volumes")?.as_array());
    let volumes = volumes.into_iter().flatten().enumerate();
    let claims = volumes.filter_map(|(i, volume)| {
        let claim = volume.get("persistentVolumeClaim")?.get("claimName")?;
        let path = format!("template.spec.volumes[{i}]");
        Some((path, claim.as_str()?.to_owned()))
    });
    claims.collect()
}

/// What a template itself says of amounts that are chosen where it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Of the memory at /dev/shm.
    pub shm: Option<Bytes>,
    /// The least local disk that a worker is limited to, in all or in one volume.
    pub storage: Option<Bytes>,
}

/// Of a template that cannot be read, nothing.
pub fn sizes(job: &TrainJob) -> Sizes {
    let Ok(PodTemplateSpec {
        spec: Some(spec), ..
    }) = parse(job)
    else {
        return Sizes::default();
    };
    let Some(worker) = spec.containers.first() else {
        return Sizes::default();
    };
    let mounts = || worker.volume_mounts.iter().flatten();
    let volumes = || spec.volumes.iter().flatten();
    let limit = |volume: &Volume, in_memory: bool| {
        let source = volume.empty_dir.as_ref()?;
        let is_memory = source.medium.as_deref() == Some("Memory");
        let limit = source
            .size_limit
            .as_ref()
            .filter(|_| is_memory == in_memory);
        limit.and_then(|limit| Bytes::try_from(limit).ok())
    };
    let at_shm = mounts().find(|mount| mount.mount_path.trim_end_matches('/') == "/dev/shm");
    let at_shm = at_shm.and_then(|mount| volumes().find(|volume| volume.name == mount.name));
    let limits = worker.resources.as_ref().and_then(|it| it.limits.as_ref());
    let own = limits.and_then(|limits| Bytes::try_from(limits.get("ephemeral-storage")?).ok());
    let of_volumes = volumes().filter_map(|volume| limit(volume, false)).min();
    Sizes {
        shm: at_shm.and_then(|volume| limit(volume, true)),
        storage: own.into_iter().chain(of_volumes).min(),
    }
}

/// A template may speak of everything but the container, which Kubernetes' own type does not allow.
fn allow_no_containers(template: &mut Value) {
    if let Some(Value::Object(spec)) = template.get_mut("spec") {
        spec.entry("containers")
            .or_insert_with(|| Value::Array(Vec::new()));
    }
}

/// The worker is the container of that name, else the first, else a new one.
fn put_worker_first(spec: &mut PodSpec) {
    let named = spec
        .containers
        .iter()
        .position(|c| c.name == WORKER_CONTAINER);
    match named {
        Some(at) => spec.containers[..=at].rotate_right(1),
        None if spec.containers.is_empty() => spec.containers.push(Container {
            name: WORKER_CONTAINER.to_owned(),
            ..Container::default()
        }),
        None => {}
    }
}

/// The path of the first value that reading and writing again has lost, and so that nobody would have honoured.
fn lost(given: &Value, kept: &Value) -> Option<String> {
    match (given, kept) {
        (Value::Object(given), _) => given.iter().find_map(|(key, value)| {
            let found = match kept.get(key) {
                Some(kept) => lost(value, kept),
                None => (!is_empty(value)).then(String::new),
            };
            found.map(|path| format!(".{key}{path}"))
        }),
        (Value::Array(given), Value::Array(kept)) => {
            let mut pairs = given.iter().zip(kept).enumerate();
            pairs.find_map(|(i, (given, kept))| Some(format!("[{i}]{}", lost(given, kept)?)))
        }
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(template: Value) -> Result<PodTemplateSpec, String> {
        let job =
            json!({"metadata": {"name": "x"}, "spec": {"command": ["a"], "template": template}});
        let job: TrainJob = serde_json::from_value(job).expect("a job");
        parse(&job).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn the_worker_is_found_or_made() {
        let names = |template| -> Vec<String> {
            let spec = parsed(template).expect("a template").spec.expect("a spec");
            spec.containers.into_iter().map(|c| c.name).collect()
        };
        assert_eq!(names(json!({})), ["worker"]);
        assert_eq!(
            names(json!({"spec": {"nodeSelector": {"a": "b"}}})),
            ["worker"]
        );
        assert_eq!(
            names(json!({"spec": {"containers": [{"name": "main"}, {"name": "log"}]}})),
            ["main", "log"]
        );
        assert_eq!(
            names(
                json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "worker"}]}})
            ),
            ["worker", "a", "b"]
        );
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let wrong = |template| parsed(template).expect_err("refused");
        insta::assert_snapshot!(wrong(json!({"spec": {"containers": "none"}})), @r#"spec.template.spec.containers: invalid type: string "none", expected a sequence"#);
        insta::assert_snapshot!(wrong(json!({"spec": {"containers": [{"name": "a", "imagee": "x"}]}})), @"spec.template.spec.containers[0].imagee: unknown field");
        insta::assert_snapshot!(wrong(json!({"spec": {"nodeSelektor": {"a": "b"}}})), @"spec.template.spec.nodeSelektor: unknown field");
        insta::assert_snapshot!(wrong(json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}})), @"spec.template.spec.containers[worker].resources[nvidia.com/gpu]: ask for GPUs with spec.gpus");
    }
}
