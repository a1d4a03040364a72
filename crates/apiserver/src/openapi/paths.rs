//! The operations of a document.

use serde_json::{Map, Value, json};

use super::components::{list_name, point_to_definitions, reference};
use crate::resource::Resource;

const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const PATCH_BODY: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// `/api/v1`, `/apis/G/V`.
pub(super) fn prefix(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

pub(super) fn of(resources: &[&Resource]) -> Map<String, Value> {
    let mut paths = Map::new();
    for resource in resources {
        let prefix = prefix(&resource.group, &resource.version);
        let plural = &resource.plural;
        let collection = if resource.namespaced {
            let everywhere = json!({ "get": Operation::List.of(resource) });
            paths.insert(format!("{prefix}/{plural}"), everywhere);
            format!("{prefix}/namespaces/{{namespace}}/{plural}")
        } else {
            format!("{prefix}/{plural}")
        };
        let mut many = json!({
            "parameters": path_parameters(resource.namespaced, false),
            "get": Operation::List.of(resource),
            "post": Operation::Create.of(resource),
        });
        if resource.verbs().contains(&"deletecollection") {
            many["delete"] = Operation::DeleteMany.of(resource);
        }
        let one = format!("{collection}/{{name}}");
        paths.insert(collection, many);
        let parameters = path_parameters(resource.namespaced, true);
        let mut change = json!({
            "parameters": parameters,
            "get": Operation::Read.of(resource),
            "put": Operation::Replace.of(resource),
            "patch": Operation::Patch.of(resource),
        });
        if resource.subresources.status {
            paths.insert(format!("{one}/status"), change.clone());
        }
        if resource.subresources.resize {
            paths.insert(format!("{one}/resize"), change.clone());
        }
        change["delete"] = Operation::Delete.of(resource);
        paths.insert(one, change);
    }
    paths
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    List,
    Read,
    Create,
    Replace,
    Patch,
    Delete,
    DeleteMany,
}

impl Operation {
    fn of(self, resource: &Resource) -> Value {
        let kind = &resource.kind;
        let (action, verb, about) = match self {
            Operation::List => (
                "list",
                "list",
                format!("List or watch objects of kind {kind}."),
            ),
            Operation::Read => ("get", "read", format!("Read one {kind}.")),
            Operation::Create => ("post", "create", format!("Create a {kind}.")),
            Operation::Replace => ("put", "replace", format!("Replace a {kind}.")),
            Operation::Patch => ("patch", "patch", format!("Change a {kind} by a patch.")),
            Operation::Delete => ("delete", "delete", format!("Delete a {kind}.")),
            Operation::DeleteMany => (
                "deletecollection",
                "deleteCollection",
                format!("Delete a selection of objects of kind {kind}."),
            ),
        };
        let answer = match self {
            Operation::List => list_name(resource),
            _ => resource.definition_name(),
        };
        let mut operation = json!({
            "description": about,
            "operationId": format!("{verb}{}{}{kind}", camel(&resource.group), camel(&resource.version)),
            "parameters": self.parameters(),
            "responses": {"200": {"description": "OK", "content": {JSON: {"schema": reference(&answer)}}}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind":
                {"group": resource.group, "version": resource.version, "kind": resource.kind},
        });
        match self {
            Operation::Create | Operation::Replace => {
                operation["requestBody"] = json!({"required": true, "content": {JSON: {"schema": reference(&resource.definition_name())}}});
            }
            Operation::Patch => {
                let mut content = json!({JSON_PATCH: {"schema": patch_body()}, MERGE_PATCH: {"schema": patch_body()}});
                if resource.is_builtin() {
                    content[STRATEGIC_PATCH] = json!({"schema": patch_body()});
                }
                operation["requestBody"] = json!({"required": true, "content": content});
            }
            Operation::List | Operation::Read | Operation::Delete | Operation::DeleteMany => {}
        }
        operation
    }

    fn parameters(self) -> Vec<Value> {
        const SELECT: &[(&str, &str)] = &[
            ("labelSelector", "string"),
            ("fieldSelector", "string"),
            ("limit", "integer"),
            ("continue", "string"),
            ("resourceVersion", "string"),
            ("resourceVersionMatch", "string"),
        ];
        const WATCH: &[(&str, &str)] = &[
            ("watch", "boolean"),
            ("allowWatchBookmarks", "boolean"),
            ("timeoutSeconds", "integer"),
        ];
        const WRITE: &[(&str, &str)] = &[
            ("dryRun", "string"),
            ("fieldManager", "string"),
            ("fieldValidation", "string"),
        ];
        const DELETE: &[(&str, &str)] = &[
            ("dryRun", "string"),
            ("gracePeriodSeconds", "integer"),
            ("propagationPolicy", "string"),
        ];
        let names: Vec<&[(&str, &str)]> = match self {
            Operation::List => vec![SELECT, WATCH],
            Operation::Read => vec![],
            Operation::Create | Operation::Replace | Operation::Patch => vec![WRITE],
            Operation::Delete => vec![DELETE],
            Operation::DeleteMany => vec![SELECT, DELETE],
        };
        names
            .into_iter()
            .flatten()
            .map(|(name, kind)| json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}}))
            .collect()
    }
}

/// A patch may be a list of operations or an object, so its schema promises nothing.
fn patch_body() -> Value {
    json!({"description": PATCH_BODY, "type": "object"})
}

fn path_parameters(namespaced: bool, named: bool) -> Vec<Value> {
    let parameter = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let mut parameters = Vec::new();
    if namespaced {
        parameters.push(parameter("namespace"));
    }
    if named {
        parameters.push(parameter("name"));
    }
    parameters
}

/// `stokehold.dev` -> `StokeholdDev`.
fn camel(text: &str) -> String {
    text.split(['.', '-'])
        .map(|part| {
            let mut chars = part.chars();
            chars.next().map_or_else(String::new, |first| {
                first.to_uppercase().chain(chars).collect()
            })
        })
        .collect()
}

/// Turns the operations into those of version 2: bodies are parameters, content types are lists.
pub(super) fn to_v2(paths: &mut Value) {
    point_to_definitions(paths);
    let paths = paths.as_object_mut().into_iter().flat_map(Map::values_mut);
    for path in paths.filter_map(Value::as_object_mut) {
        for (method, operation) in path.iter_mut() {
            if method == "parameters" {
                flatten_parameters(operation);
            } else if let Some(fields) = operation.as_object_mut() {
                operation_to_v2(fields);
            }
        }
    }
}

fn operation_to_v2(operation: &mut Map<String, Value>) {
    operation.insert("produces".into(), json!([JSON]));
    let mut parameters = operation.remove("parameters").unwrap_or_else(|| json!([]));
    flatten_parameters(&mut parameters);
    if let Some(Value::Object(body)) = operation
        .remove("requestBody")
        .and_then(|mut body| body.get_mut("content").map(Value::take))
    {
        let schema = body
            .values()
            .next()
            .and_then(|content| content.get("schema"))
            .cloned();
        operation.insert(
            "consumes".into(),
            body.keys().cloned().collect::<Vec<_>>().into(),
        );
        if let Some(parameters) = parameters.as_array_mut() {
            parameters
                .push(json!({"name": "body", "in": "body", "required": true, "schema": schema}));
        }
    }
    operation.insert("parameters".into(), parameters);
    let answers = operation
        .get_mut("responses")
        .and_then(Value::as_object_mut);
    for answer in answers
        .into_iter()
        .flat_map(Map::values_mut)
        .filter_map(Value::as_object_mut)
    {
        if let Some(content) = answer.remove("content") {
            answer.insert("schema".into(), content[JSON]["schema"].clone());
        }
    }
}

fn flatten_parameters(parameters: &mut Value) {
    for parameter in parameters
        .as_array_mut()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        if let Some(Value::Object(schema)) = parameter.remove("schema") {
            parameter.extend(schema);
        }
    }
}
