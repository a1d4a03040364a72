//! `meta.k8s.io/v1` Table: what `kubectl get` prints, computed by the server.
//!
//! Invariant: ages are told from the `now` that is given; no clock is read.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use crate::reply::Partial;
use crate::resource::{Cell, Column, Resource, human_duration};

pub(crate) const KIND: &str = "Table";
pub(crate) const API_VERSION: &str = "meta.k8s.io/v1";

/// How much of each object a row carries (`?includeObject=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// The value of the query parameter; `None` if there is no such policy (400).
    pub fn parse(text: &str) -> Option<IncludeObject> {
        match text {
            "" | "Metadata" => Some(IncludeObject::Metadata),
            "None" => Some(IncludeObject::None),
            "Object" => Some(IncludeObject::Object),
            _ => None,
        }
    }
}

/// A Table; `None` for its columns says that they were told before, as in all events of a watch but the first.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Table<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Value,
    pub(crate) column_definitions: Option<Vec<Definition<'a>>>,
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
pub(crate) struct Definition<'a> {
    name: &'a str,
    r#type: &'a str,
    format: &'a str,
    description: &'a str,
    priority: i32,
}

/// What is shown of one object. It borrows the object: of a long list no row outlives its turn.
#[derive(Serialize)]
pub(crate) struct Row<'a> {
    cells: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conditions: Option<Value>,
    object: Carried<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Carried<'a> {
    Nothing,
    Metadata(Partial<'a>),
    Object(&'a Value),
}

/// A Table of one object, in the served shape.
pub(crate) fn table<'a>(
    resource: &'a Resource,
    object: &'a Value,
    include: IncludeObject,
    now: Timestamp,
) -> Table<'a> {
    Table {
        kind: KIND,
        api_version: API_VERSION,
        metadata: json!({"resourceVersion": object["metadata"]["resourceVersion"]}),
        column_definitions: Some(definitions(resource)),
        rows: vec![row(resource, object, include, now)],
    }
}

pub(crate) fn definitions(resource: &Resource) -> Vec<Definition<'_>> {
    let columns = resource.columns.iter();
    columns
        .map(|column| Definition {
            name: &column.name,
            r#type: &column.r#type,
            format: &column.format,
            description: &column.description,
            priority: column.priority,
        })
        .collect()
}

pub(crate) fn row<'a>(
    resource: &Resource,
    object: &'a Value,
    include: IncludeObject,
    now: Timestamp,
) -> Row<'a> {
    let cells = resource.columns.iter();
    Row {
        cells: cells.map(|column| cell(column, object, now)).collect(),
        conditions: conditions(resource, object),
        object: match include {
            IncludeObject::None => Carried::Nothing,
            IncludeObject::Metadata => Carried::Metadata(Partial::of(object)),
            IncludeObject::Object => Carried::Object(object),
        },
    }
}

fn conditions(resource: &Resource, object: &Value) -> Option<Value> {
    if !resource.is_builtin() || resource.kind != "Pod" {
        return None;
    }
    let (reason, message) = match object.pointer("/status/phase").and_then(Value::as_str) {
        Some("Succeeded") => ("Succeeded", "The pod has completed successfully."),
        Some("Failed") => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!([
        {"type": "Completed", "status": "True", "reason": reason, "message": message}
    ]))
}

fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    match &column.cell {
        Cell::Compute(compute) => compute(object, now),
        Cell::Path(path) => match path.first(object) {
            None | Some(Value::Null) => Value::Null,
            Some(value) => of_type(&column.r#type, value, now),
        },
    }
}

/// The value as the column's type says; what does not fit is left empty.
fn of_type(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        ("integer", Value::Number(number)) => number.as_i64().map_or_else(
            || json!(number.as_f64().unwrap_or_default() as i64),
            Value::from,
        ),
        ("number", Value::Number(_))
        | ("boolean", Value::Bool(_))
        | ("string", Value::String(_)) => value.clone(),
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(then) => human_duration(now.as_second() - then.as_second()).into(),
            Err(_) => "<invalid>".into(),
        },
        ("string", other) => other.to_string().into(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builtin(kind: &str) -> &'static Resource {
        Resource::builtins()
            .iter()
            .find(|resource| resource.kind == kind)
            .unwrap()
    }

    /// The table as kubectl would lay it out, wide columns after a bar.
    fn printed(resource: &Resource, objects: &[Value]) -> String {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let definitions = definitions(resource);
        let line = |cells: Vec<String>| {
            let priorities = definitions.iter().map(|column| column.priority == 0);
            let (shown, wide): (Vec<_>, Vec<_>) = cells
                .into_iter()
                .zip(priorities)
                .partition(|(_, shown)| *shown);
            let text = |cells: Vec<(String, bool)>| {
                cells
                    .into_iter()
                    .map(|(cell, _)| cell)
                    .collect::<Vec<_>>()
                    .join(" ; ")
            };
            format!("{} | {}", text(shown), text(wide))
                .trim_end_matches(" | ")
                .to_owned()
        };
        let mut lines = vec![line(
            definitions
                .iter()
                .map(|column| column.name.to_uppercase())
                .collect(),
        )];
        for object in objects {
            let row = row(resource, object, IncludeObject::None, now);
            lines.push(line(
                row.cells
                    .iter()
                    .map(|cell| {
                        cell.as_str()
                            .map_or_else(|| cell.to_string(), str::to_owned)
                    })
                    .collect(),
            ));
        }
        lines.join("\n")
    }

    #[test]
    fn built_in_kinds_print_as_kubectl_prints_them() {
        let meta =
            json!({"name": "a", "namespace": "n", "creationTimestamp": "2026-01-01T00:55:00Z"});
        let with = |rest: Value| {
            let mut object = rest;
            object["metadata"] = meta.clone();
            vec![object]
        };
        let tables = [
            printed(
                builtin("Pod"),
                &with(
                    json!({"spec": {"containers": [{}], "nodeName": "w"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}),
                ),
            ),
            printed(
                builtin("Node"),
                &[
                    json!({"metadata": {"name": "w", "labels": {"node-role.kubernetes.io/worker": ""}}, "spec": {"unschedulable": true}, "status": {
                "conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1", "osImage": "Debian", "kernelVersion": "6", "containerRuntimeVersion": "stoke://0.1"}}}),
                ],
            ),
            printed(
                builtin("Namespace"),
                &with(json!({"status": {"phase": "Active"}})),
            ),
            printed(
                builtin("Service"),
                &with(
                    json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 80}, {"port": 81, "protocol": "UDP", "nodePort": 3}], "selector": {"a": "b"}}}),
                ),
            ),
            printed(
                builtin("Endpoints"),
                &with(
                    json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.2"}], "ports": [{"port": 1}, {"port": 2}]}]}),
                ),
            ),
            printed(
                builtin("EndpointSlice"),
                &with(
                    json!({"addressType": "IPv4", "ports": [{"port": 1}], "endpoints": [{"addresses": ["1.1.1.1"]}]}),
                ),
            ),
            printed(
                builtin("ConfigMap"),
                &with(json!({"data": {"a": "b"}, "binaryData": {"c": ""}})),
            ),
            printed(
                builtin("Secret"),
                &with(json!({"type": "Opaque", "data": {"a": "b"}})),
            ),
            printed(builtin("ServiceAccount"), &with(json!({}))),
            printed(
                builtin("ResourceQuota"),
                &with(
                    json!({"status": {"hard": {"pods": "5", "count/secrets": "2"}, "used": {"pods": "1", "count/secrets": "2"}}}),
                ),
            ),
            printed(
                builtin("PersistentVolume"),
                &with(
                    json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "n", "name": "c"}, "storageClassName": "local", "volumeMode": "Filesystem"}, "status": {"phase": "Bound"}}),
                ),
            ),
            printed(
                builtin("PersistentVolumeClaim"),
                &with(
                    json!({"spec": {"volumeName": "v", "storageClassName": "local"}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"]}}),
                ),
            ),
            printed(
                builtin("Lease"),
                &with(json!({"spec": {"holderIdentity": "me"}})),
            ),
            printed(
                builtin("PriorityClass"),
                &with(json!({"value": 5, "preemptionPolicy": "Never"})),
            ),
            printed(builtin("CustomResourceDefinition"), &with(json!({}))),
            printed(
                builtin("Event"),
                &with(
                    json!({"type": "Normal", "reason": "Started", "message": "It runs.\n", "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{a}"},
                "source": {"component": "kubelet", "host": "w"}, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:59:00Z", "count": 3}),
                ),
            ),
        ];
        insta::assert_snapshot!(tables.join("\n\n"));
    }

    #[test]
    fn custom_columns_follow_their_types() {
        let columns = json!([
            {"name": "Text", "type": "string", "jsonPath": ".spec.text"},
            {"name": "Object", "type": "string", "jsonPath": ".spec.object"},
            {"name": "Count", "type": "integer", "jsonPath": ".spec.count"},
            {"name": "Share", "type": "number", "jsonPath": ".spec.share"},
            {"name": "Flag", "type": "boolean", "jsonPath": ".spec.flag"},
            {"name": "Wrong", "type": "integer", "jsonPath": ".spec.text"},
            {"name": "Gone", "type": "string", "jsonPath": ".spec.gone"},
            {"name": "Done", "type": "date", "jsonPath": ".status.done", "priority": 1},
        ]);
        let definition = json!({"metadata": {"name": "xs.example.com"}, "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "xs", "kind": "X"},
            "versions": [{"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        let resource = &Resource::from_crd(&definition).unwrap()[0];
        let object = json!({"metadata": {"name": "x"}, "spec": {"text": "t", "object": {"a": 1}, "count": 3.0, "share": 0.5, "flag": true},
            "status": {"done": "2026-01-01T00:58:00Z"}});
        insta::assert_snapshot!(printed(resource, &[object]), @r#"
NAME ; TEXT ; OBJECT ; COUNT ; SHARE ; FLAG ; WRONG ; GONE | DONE
x ; t ; {"a":1} ; 3 ; 0.5 ; true ; null ; null | 2m
"#);
    }

    #[test]
    fn rows_carry_as_much_of_the_object_as_asked() {
        let pod = json!({"kind": "Pod", "metadata": {"name": "a"}, "status": {"phase": "Failed"}});
        for (text, expected) in [
            ("None", json!(null)),
            (
                "",
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "a"}}),
            ),
            ("Object", pod.clone()),
        ] {
            let include = IncludeObject::parse(text).unwrap();
            let table = table(builtin("Pod"), &pod, include, Timestamp::UNIX_EPOCH);
            let table = serde_json::to_value(&table).unwrap();
            assert_eq!(table["rows"][0]["object"], expected);
            assert_eq!(table["rows"][0]["conditions"][0]["reason"], "Failed");
        }
        assert_eq!(IncludeObject::parse("All"), None);
    }
}
