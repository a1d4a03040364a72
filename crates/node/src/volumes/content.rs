//! Which files a configMap, secret, downwardAPI or projected volume holds.
//!
//! Pure. Invariant: a file's path never leaves its volume; a path that tries is an error, not a clean-up.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, Volume};

use crate::spec::{NodeFacts, Sources, SpecError, downward};

/// Kubernetes' default for everything but secrets.
const PUBLIC_MODE: u32 = 0o644;
/// Secrets are for their owner, unless the volume says otherwise.
const SECRET_MODE: u32 = 0o400;

/// One file to be. Its bytes may be a secret, so it does not print them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, mode {:04o}", self.bytes.len(), self.mode)
    }
}

/// Files by path below the volume.
pub(crate) type Files = BTreeMap<String, File>;

/// The files of a volume that is made of API objects, or `None` for any other kind of volume.
pub(crate) fn files(
    pod: &Pod,
    volume: &Volume,
    node: &NodeFacts,
    sources: &Sources,
) -> Result<Option<Files>, SpecError> {
    let mut files = Files::new();
    if let Some(source) = &volume.config_map {
        let optional = source.optional.unwrap_or(false);
        let mode = mode(source.default_mode, PUBLIC_MODE);
        add_config_map(
            &mut files,
            sources,
            &source.name,
            source.items.as_deref(),
            optional,
            mode,
        )?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let optional = source.optional.unwrap_or(false);
        add_secret(
            &mut files,
            sources,
            name,
            source.items.as_deref(),
            optional,
            mode(source.default_mode, SECRET_MODE),
        )?;
    } else if let Some(source) = &volume.downward_api {
        let mode = mode(source.default_mode, PUBLIC_MODE);
        add_downward(&mut files, pod, node, source.items.iter().flatten(), mode)?;
    } else if let Some(projected) = &volume.projected {
        for source in projected.sources.iter().flatten() {
            let public = mode(projected.default_mode, PUBLIC_MODE);
            if let Some(map) = &source.config_map {
                let optional = map.optional.unwrap_or(false);
                add_config_map(
                    &mut files,
                    sources,
                    &map.name,
                    map.items.as_deref(),
                    optional,
                    public,
                )?;
            } else if let Some(secret) = &source.secret {
                let optional = secret.optional.unwrap_or(false);
                let mode = mode(projected.default_mode, SECRET_MODE);
                add_secret(
                    &mut files,
                    sources,
                    &secret.name,
                    secret.items.as_deref(),
                    optional,
                    mode,
                )?;
            } else if let Some(downward) = &source.downward_api {
                add_downward(
                    &mut files,
                    pod,
                    node,
                    downward.items.iter().flatten(),
                    public,
                )?;
            } else {
                return Err(SpecError::Unsupported(format!(
                    "volume {}: a projection other than configMap, secret and downwardAPI",
                    volume.name
                )));
            }
        }
    } else {
        return Ok(None);
    }
    Ok(Some(files))
}

fn mode(asked: Option<i32>, default: u32) -> u32 {
    asked
        .and_then(|mode| u32::try_from(mode).ok())
        .unwrap_or(default)
        & 0o777
}

fn add(files: &mut Files, path: &str, bytes: Vec<u8>, mode: u32) -> Result<(), SpecError> {
    if !stays_inside(path) {
        return Err(SpecError::PathEscapes(path.to_owned()));
    }
    files.insert(path.to_owned(), File { bytes, mode });
    Ok(())
}

/// Whether a relative path names something strictly below where it starts.
pub(crate) fn stays_inside(path: &str) -> bool {
    let mut components = Path::new(path).components().peekable();
    // Names that begin with two dots are the volume's own book-keeping.
    components.peek().is_some()
        && !path.starts_with("..")
        && !path.contains('\0')
        && components.all(|component| matches!(component, Component::Normal(_)))
}

/// The chosen keys, or all of them, as (path, key, mode).
fn chosen<'a>(
    items: Option<&'a [KeyToPath]>,
    keys: impl Iterator<Item = &'a String>,
    default: u32,
) -> Vec<(&'a str, &'a str, u32)> {
    match items {
        Some(items) if !items.is_empty() => items
            .iter()
            .map(|item| {
                (
                    item.path.as_str(),
                    item.key.as_str(),
                    mode(item.mode, default),
                )
            })
            .collect(),
        _ => keys
            .map(|key| (key.as_str(), key.as_str(), default))
            .collect(),
    }
}

fn add_config_map(
    files: &mut Files,
    sources: &Sources,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
) -> Result<(), SpecError> {
    let Some(map) = sources.config_map(name, optional)? else {
        return Ok(());
    };
    let keys = map
        .data
        .iter()
        .flatten()
        .map(|(key, _)| key)
        .chain(map.binary_data.iter().flatten().map(|(key, _)| key));
    for (path, key, mode) in chosen(items, keys, mode) {
        let text = map
            .data
            .as_ref()
            .and_then(|data| data.get(key))
            .map(|text| text.clone().into_bytes());
        let binary = || {
            map.binary_data
                .as_ref()
                .and_then(|data| data.get(key))
                .map(|bytes| bytes.0.clone())
        };
        match text.or_else(binary) {
            Some(bytes) => add(files, path, bytes, mode)?,
            None if optional => {}
            None => {
                return Err(SpecError::no_key(
                    key,
                    "ConfigMap",
                    sources.namespace(),
                    name,
                ));
            }
        }
    }
    Ok(())
}

fn add_secret(
    files: &mut Files,
    sources: &Sources,
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: u32,
) -> Result<(), SpecError> {
    let Some(secret) = sources.secret(name, optional)? else {
        return Ok(());
    };
    let keys = secret.data.iter().flatten().map(|(key, _)| key);
    for (path, key, mode) in chosen(items, keys, mode) {
        match secret.data.as_ref().and_then(|data| data.get(key)) {
            Some(bytes) => add(files, path, bytes.0.clone(), mode)?,
            None if optional => {}
            None => return Err(SpecError::no_key(key, "Secret", sources.namespace(), name)),
        }
    }
    Ok(())
}

fn add_downward<'a>(
    files: &mut Files,
    pod: &Pod,
    node: &NodeFacts,
    items: impl Iterator<Item = &'a DownwardAPIVolumeFile>,
    default: u32,
) -> Result<(), SpecError> {
    for item in items {
        let text = if let Some(reference) = &item.field_ref {
            downward::field(pod, node, &reference.field_path)?
        } else if let Some(selector) = &item.resource_field_ref {
            downward::resource(pod, node, None, selector)?
        } else {
            return Err(SpecError::UnknownField(item.path.clone()));
        };
        add(
            files,
            &item.path,
            text.into_bytes(),
            mode(item.mode, default),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests_support::{facts, pod, sources};
    use serde_json::json;

    fn of(volume: serde_json::Value) -> Result<Option<Files>, SpecError> {
        let pod = pod(
            json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"a": "1"}}, "spec": {"containers": []}}),
        );
        let volume: Volume = serde_json::from_value(volume).expect("a volume");
        files(&pod, &volume, &facts(), &sources())
    }

    #[test]
    fn files_come_from_objects_with_their_modes() {
        insta::assert_debug_snapshot!(of(json!({"name": "v", "projected": {"sources": [
            {"configMap": {"name": "settings", "items": [{"key": "lr", "path": "conf/lr.txt", "mode": 256}]}},
            {"secret": {"name": "login"}},
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"secret": {"name": "nowhere", "optional": true}},
        ]}})).expect("readable").expect("files"), @r#"
        {
            "conf/lr.txt": 3 bytes, mode 0400,
            "labels": 5 bytes, mode 0644,
            "token": 5 bytes, mode 0400,
        }
        "#);
        let all = of(json!({"name": "v", "configMap": {"name": "settings"}}))
            .expect("readable")
            .expect("files");
        assert_eq!(all.keys().collect::<Vec<_>>(), ["epochs", "lr"]);
        assert_eq!(of(json!({"name": "v", "emptyDir": {}})), Ok(None));
    }

    #[test]
    fn what_is_missing_or_escapes_is_named() {
        let table = [
            (
                json!({"name": "v", "configMap": {"name": "nowhere"}}),
                r#"configmap "nowhere" not found"#,
            ),
            (
                json!({"name": "v", "secret": {"secretName": "nowhere"}}),
                r#"secret "nowhere" not found"#,
            ),
            (
                json!({"name": "v", "configMap": {"name": "settings", "items": [{"key": "x", "path": "x"}]}}),
                "couldn't find key x in ConfigMap ns/settings",
            ),
            (
                json!({"name": "v", "configMap": {"name": "settings", "items": [{"key": "lr", "path": "../lr"}]}}),
                r#"path "../lr" leaves its volume"#,
            ),
            (
                json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}),
                "this node does not support volume v: a projection other than configMap, secret and downwardAPI",
            ),
        ];
        for (volume, expected) in table {
            assert_eq!(of(volume).expect_err(expected).to_string(), expected);
        }
    }

    #[test]
    fn paths_stay_inside() {
        for path in ["a", "a/b", "a..b", "a/..b", ".hidden"] {
            assert!(stays_inside(path), "{path}");
        }
        for path in [
            "",
            "/a",
            "..",
            "../a",
            "a/../../b",
            "a/..",
            "..data",
            "a/./../b",
            ".",
            "a\0b",
        ] {
            assert!(!stays_inside(path), "{path}");
        }
    }
}
