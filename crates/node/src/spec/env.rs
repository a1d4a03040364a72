//! A container's environment.
//!
//! Three layers, each over the one before: the host's own (`PATH`, `HOME`, ...: there is no image to bring them), what
//! `envFrom` brings, what `env` says. What the node itself must decide (which GPUs are visible) comes last.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVarSource, Pod};

use super::{NodeFacts, Sources, SpecError, downward, expand::expand};

/// Variables by name.
pub(super) type Environment = BTreeMap<String, String>;

/// What the pod itself says: the names here are those that `$(NAME)` in commands and arguments may use.
pub(super) fn declared(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    sources: &Sources,
) -> Result<Environment, SpecError> {
    let mut all = Environment::new();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &from.config_map_ref {
            let optional = reference.optional.unwrap_or(false);
            if let Some(map) = sources.config_map(&reference.name, optional)? {
                add_all(
                    &mut all,
                    prefix,
                    map.data
                        .iter()
                        .flatten()
                        .map(|(key, value)| (key, value.clone())),
                );
            }
        }
        if let Some(reference) = &from.secret_ref {
            let optional = reference.optional.unwrap_or(false);
            if let Some(secret) = sources.secret(&reference.name, optional)? {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                add_all(
                    &mut all,
                    prefix,
                    secret
                        .data
                        .iter()
                        .flatten()
                        .map(|(key, value)| (key, text(&value.0))),
                );
            }
        }
    }
    // References see only the variables above them in `env`, as with a kubelet; `envFrom` is not among them.
    let mut earlier = Environment::new();
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            Some(source) => match from_source(pod, container, node, sources, source)? {
                Some(value) => value,
                None => continue,
            },
            None => expand(variable.value.as_deref().unwrap_or_default(), |name| {
                earlier.get(name).cloned()
            }),
        };
        if !is_name(&variable.name) {
            return Err(SpecError::BadVariable(variable.name.clone()));
        }
        earlier.insert(variable.name.clone(), value.clone());
        all.insert(variable.name.clone(), value);
    }
    Ok(all)
}

/// A name that can be set at all. Kubernetes allows any printable text without `=`.
fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| (0x20..0x7f).contains(&byte) && byte != b'=')
}

/// Keys that cannot be names are passed over, as a kubelet does.
fn add_all<'a>(
    all: &mut Environment,
    prefix: &str,
    pairs: impl Iterator<Item = (&'a String, String)>,
) {
    for (key, value) in pairs {
        let name = format!("{prefix}{key}");
        if is_name(&name) {
            all.insert(name, value);
        }
    }
}

fn from_source(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    sources: &Sources,
    source: &EnvVarSource,
) -> Result<Option<String>, SpecError> {
    if let Some(reference) = &source.field_ref {
        return downward::field(pod, node, &reference.field_path).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return downward::resource(pod, node, Some(&container.name), selector).map(Some);
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(selector) = &source.config_map_key_ref {
        let optional = selector.optional.unwrap_or(false);
        let Some(map) = sources.config_map(&selector.name, optional)? else {
            return Ok(None);
        };
        return match map.data.as_ref().and_then(|data| data.get(&selector.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(SpecError::no_key(
                &selector.key,
                "ConfigMap",
                namespace,
                &selector.name,
            )),
        };
    }
    if let Some(selector) = &source.secret_key_ref {
        let optional = selector.optional.unwrap_or(false);
        let Some(secret) = sources.secret(&selector.name, optional)? else {
            return Ok(None);
        };
        return match secret
            .data
            .as_ref()
            .and_then(|data| data.get(&selector.key))
        {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None if optional => Ok(None),
            None => Err(SpecError::no_key(
                &selector.key,
                "Secret",
                namespace,
                &selector.name,
            )),
        };
    }
    Err(SpecError::Unsupported(
        "an environment variable from a file (fileKeyRef)".to_owned(),
    ))
}
