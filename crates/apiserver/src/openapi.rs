//! OpenAPI documents from the registry: `/openapi/v3`, one document per group and version below it,
//! and `/openapi/v2`.
//!
//! `kubectl explain` reads the descriptions; `kubectl apply` and `create` look for the
//! `fieldValidation` parameter of a kind's PATCH to know that the server validates, and take the
//! merge keys of lists from the schemas. The documents are large and asked for rarely, so they are made
//! anew each time and nothing is kept.
//!
//! Invariant: a document's hash changes whenever the document does.

mod components;
mod paths;

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use serde_json::{Value, json};

use crate::resource::Resource;

/// `GET /openapi/v3`: where the documents are.
pub fn index(resources: &[Resource]) -> Value {
    let mut paths = BTreeMap::new();
    for resource in resources {
        let prefix = paths::prefix(&resource.group, &resource.version);
        let path = prefix.trim_start_matches('/').to_owned();
        paths.entry(path).or_insert_with(|| {
            let hash = hash(resources, &resource.group, &resource.version);
            json!({ "serverRelativeURL": format!("/openapi/v3{prefix}?hash={hash:016X}") })
        });
    }
    json!({ "paths": paths })
}

/// `GET /openapi/v3/api/v1` (group `""`), `GET /openapi/v3/apis/G/V`; `None` if nothing of it is served.
pub fn group_version(resources: &[Resource], group: &str, version: &str) -> Option<Value> {
    let served: Vec<&Resource> = resources
        .iter()
        .filter(|resource| resource.group == group && resource.version == version)
        .collect();
    if served.is_empty() {
        return None;
    }
    let schemas = components::of(&served);
    let paths = paths::of(&served);
    Some(json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// `GET /openapi/v2`: the same schemas and operations in the older form.
pub fn v2(resources: &[Resource]) -> Value {
    let served: Vec<&Resource> = resources.iter().collect();
    let mut schemas = Value::Object(components::of(&served));
    let mut paths = Value::Object(paths::of(&served));
    components::point_to_definitions(&mut schemas);
    paths::to_v2(&mut paths);
    json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": schemas})
}

fn info() -> Value {
    json!({"title": "Stokehold", "version": env!("CARGO_PKG_VERSION")})
}

/// Identifies a document by what it is made from: the build, and the schemas of custom kinds.
fn hash(resources: &[Resource], group: &str, version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    for resource in resources
        .iter()
        .filter(|resource| resource.group == group && resource.version == version)
    {
        (
            &resource.kind,
            &resource.list_kind,
            &resource.plural,
            resource.namespaced,
        )
            .hash(&mut hasher);
        resource.subresources.hash(&mut hasher);
        if let Some(document) = resource.document() {
            document.to_string().hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(description: &str) -> Resource {
        let definition = json!({
            "metadata": {"name": "jobs.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "jobs", "kind": "Job"},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "description": description, "properties": {
                        "spec": {"type": "object", "properties": {"command": {"type": "string", "description": "What runs."}}}}}}}]}});
        Resource::from_crd(&definition).unwrap().remove(0)
    }

    fn document(resources: &[Resource], group: &str) -> Value {
        group_version(resources, group, "v1").unwrap()
    }

    #[test]
    fn the_index_names_every_group_once_and_its_hash_follows_the_schema() {
        let with = |description: &str| {
            let mut resources = Resource::builtins().to_vec();
            resources.push(custom(description));
            index(&resources)["paths"].clone()
        };
        let (one, same, other) = (with("A job."), with("A job."), with("A task."));
        assert_eq!(one, same);
        assert_eq!(one["api/v1"], other["api/v1"]);
        assert_ne!(one["apis/example.com/v1"], other["apis/example.com/v1"]);
        let paths: Vec<&String> = one.as_object().unwrap().keys().collect();
        assert_eq!(
            paths,
            [
                "api/v1",
                "apis/apiextensions.k8s.io/v1",
                "apis/coordination.k8s.io/v1",
                "apis/discovery.k8s.io/v1",
                "apis/events.k8s.io/v1",
                "apis/example.com/v1",
                "apis/scheduling.k8s.io/v1"
            ]
        );
    }

    #[test]
    fn kubectl_finds_server_side_validation() {
        for (group, path, strategic) in [
            ("", "/api/v1/namespaces/{namespace}/pods/{name}", true),
            ("", "/api/v1/nodes/{name}", true),
            (
                "example.com",
                "/apis/example.com/v1/namespaces/{namespace}/jobs/{name}",
                false,
            ),
        ] {
            let mut resources = Resource::builtins().to_vec();
            resources.push(custom("A job."));
            let document = document(&resources, group);
            let patch = &document["paths"][path]["patch"];
            let parameters = patch["parameters"].as_array().unwrap();
            assert!(
                parameters
                    .iter()
                    .any(|parameter| parameter["name"] == "fieldValidation"
                        && parameter["in"] == "query")
            );
            assert!(patch["x-kubernetes-group-version-kind"]["kind"].is_string());
            let content = patch["requestBody"]["content"].as_object().unwrap();
            assert_eq!(
                content.contains_key("application/strategic-merge-patch+json"),
                strategic
            );
        }
    }

    #[test]
    fn every_reference_resolves() {
        let mut resources = Resource::builtins().to_vec();
        resources.push(custom("A job."));
        for (group, version) in resources
            .iter()
            .map(|resource| (&resource.group, &resource.version))
        {
            let document = group_version(&resources, group, version).unwrap();
            check_references(
                &document,
                &document,
                "#/components/schemas/",
                "/components/schemas",
            );
        }
        let document = v2(&resources);
        check_references(&document, &document, "#/definitions/", "/definitions");
    }

    fn check_references(value: &Value, document: &Value, prefix: &str, pointer: &str) {
        match value {
            Value::Array(items) => {
                for item in items {
                    check_references(item, document, prefix, pointer);
                }
            }
            Value::Object(fields) => {
                if let Some(Value::String(reference)) = fields.get("$ref") {
                    assert_eq!(fields.len(), 1, "nothing beside {reference}");
                    let name = reference.strip_prefix(prefix).unwrap();
                    assert!(
                        document.pointer(pointer).unwrap().get(name).is_some(),
                        "{reference}"
                    );
                }
                for value in fields.values() {
                    check_references(value, document, prefix, pointer);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn schemas_carry_merge_keys_and_kinds() {
        let document = document(Resource::builtins(), "");
        let schemas = &document["components"]["schemas"];
        let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
        assert_eq!(spec["containers"]["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(
            spec["volumes"]["x-kubernetes-patch-strategy"],
            "merge,retainKeys"
        );
        let pod = &schemas["io.k8s.api.core.v1.Pod"];
        assert_eq!(
            pod["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "Pod"}])
        );
        assert!(
            pod.get("required").is_none(),
            "nobody has to write metadata"
        );
    }
}
