//! The schemas of a document.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::patch::strategy_of_type;
use crate::resource::Resource;

const PREFIX: &str = "#/components/schemas/";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// The schemas of the kinds, of their lists, and of everything they are made of.
pub(super) fn of(resources: &[&Resource]) -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.meta_schema = None;
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = SchemaGenerator::new(settings);
    generator.subschema_for::<ObjectMeta>();
    generator.subschema_for::<ListMeta>();
    let mut custom = Vec::new();
    for resource in resources {
        resource.define(&mut generator);
        if let Some(document) = resource.document() {
            custom.push((resource.definition_name(), object(document)));
        }
    }
    let mut schemas = generator.take_definitions(false);
    for (name, schema) in &mut schemas {
        add_merge_keys(name, schema);
    }
    schemas.extend(custom);
    for schema in schemas.values_mut() {
        wrap_references(schema);
    }
    for resource in resources {
        if let Some(schema) = schemas.get_mut(&resource.definition_name()) {
            add_kind(schema, resource, &resource.kind);
        }
        let mut list = list(resource);
        add_kind(&mut list, resource, &resource.list_kind);
        schemas.insert(list_name(resource), list);
    }
    schemas
}

pub(super) fn list_name(resource: &Resource) -> String {
    let name = resource.definition_name();
    let package = name.rsplit_once('.').map_or("", |(package, _)| package);
    format!("{package}.{}", resource.list_kind)
}

pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("{PREFIX}{name}") })
}

/// The schema of a custom kind as an object: with the fields every object has.
fn object(document: &Value) -> Value {
    let mut schema = document.clone();
    if let Some(fields) = schema.as_object_mut() {
        let properties = fields.entry("properties").or_insert_with(|| json!({}));
        add_object_fields(properties, OBJECT_META, "Standard metadata of an object.");
    }
    schema
}

fn list(resource: &Resource) -> Value {
    let mut properties = json!({
        "items": {"description": "The objects.", "type": "array", "items": reference(&resource.definition_name())},
    });
    add_object_fields(&mut properties, LIST_META, "Standard metadata of a list.");
    json!({
        "description": format!("{} is a list of {}.", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": properties,
    })
}

fn add_object_fields(properties: &mut Value, metadata: &str, about: &str) {
    properties["apiVersion"] = json!({"type": "string", "description": "The group and version of this representation of the object."});
    properties["kind"] =
        json!({"type": "string", "description": "What the object is, in CamelCase."});
    properties["metadata"] = json!({"description": about, "allOf": [reference(metadata)]});
}

fn add_kind(schema: &mut Value, resource: &Resource, kind: &str) {
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": resource.group, "version": resource.version, "kind": kind}]);
    // The generated types hold metadata by value; nobody has to write it.
    let required = schema.get_mut("required").and_then(Value::as_array_mut);
    let is_empty = required.is_some_and(|required| {
        required.retain(|name| name != "metadata");
        required.is_empty()
    });
    if is_empty && let Some(fields) = schema.as_object_mut() {
        fields.remove("required");
    }
}

fn add_merge_keys(name: &str, schema: &mut Value) {
    let Some(strategy) = strategy_of_type(name) else {
        return;
    };
    for field in strategy.fields {
        let Some((how, key)) = field.list.extensions() else {
            continue;
        };
        if let Some(property) = schema.pointer_mut(&format!("/properties/{}", field.name)) {
            property["x-kubernetes-patch-strategy"] = how.into();
            if let Some(key) = key {
                property["x-kubernetes-patch-merge-key"] = key.into();
            }
        }
    }
}

/// In OpenAPI 3.0 nothing may stand beside a `$ref`: `{$ref, description}` becomes
/// `{description, allOf: [{$ref}]}`.
fn wrap_references(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        Value::Object(fields) => {
            if fields.len() > 1
                && fields.get("$ref").is_some_and(Value::is_string)
                && let Some(reference) = fields.remove("$ref")
            {
                fields.insert("allOf".into(), json!([{ "$ref": reference }]));
            }
            fields.values_mut().for_each(wrap_references);
        }
        _ => {}
    }
}

/// Rewrites references for a document of version 2.
pub(super) fn point_to_definitions(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(point_to_definitions),
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(PREFIX)
            {
                *reference = format!("#/definitions/{name}");
            }
            fields.values_mut().for_each(point_to_definitions);
        }
        _ => {}
    }
}
