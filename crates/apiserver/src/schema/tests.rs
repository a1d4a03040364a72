//! Behaviour of whole schemas: custom, built-in, and on arbitrary values.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn custom(spec: Value) -> Schema {
    Schema::from_crd(
        &json!({"type": "object", "properties": {"spec": spec}}),
        CelRules::Refuse,
    )
    .unwrap()
}

fn errors(schema: &Schema, object: &Value) -> Vec<String> {
    schema
        .validate(object)
        .iter()
        .map(|error| format!("{error} [{}]", error.reason.as_str()))
        .collect()
}

fn job_schema() -> Schema {
    custom(json!({
        "type": "object",
        "required": ["command"],
        "properties": {
            "command": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "minLength": 1}},
            "framework": {"type": "string", "enum": ["torch", "plain"], "default": "plain"},
            "workers": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 9, "default": 1},
            "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": true, "multipleOf": 0.5},
            "gpus": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9.]+$"},
            "name": {"type": "string", "maxLength": 3, "pattern": "^[a-z]+$", "nullable": true},
            "since": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "data": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "path": {"type": "string", "default": "/data"}}}},
            "env": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "string"}},
            "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "object", "properties": {}}}},
            "memory": {"type": "object", "default": {}, "properties": {"qos": {"type": "string", "default": "auto"}}},
            "embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
            "either": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["a", "b"]}},
        }
    }))
}

#[test]
fn validates_like_kubernetes() {
    let schema = job_schema();
    assert_eq!(
        errors(
            &schema,
            &json!({"spec": {"command": ["a"], "gpus": "0.5", "name": null, "ratio": 1.5}})
        ),
        [""; 0]
    );
    let bad = json!({"kind": 4, "metadata": {"labels": [], "name": "a"}, "spec": {
        "command": [], "framework": "tf", "workers": 0, "ratio": 0, "gpus": "x", "name": "Abcd", "since": "now",
        "tags": ["a", "b", "a"], "data": [{"name": "a"}, {"name": "a"}, {"path": 3}],
        "env": {"a": "1", "b": 2, "c": "3"}, "template": {"known": 3}, "memory": null,
        "embedded": {"metadata": {"name": 3}}, "either": {"a": "", "b": ""}}});
    insta::assert_snapshot!(errors(&schema, &bad).join("\n"));
    insta::assert_snapshot!(errors(&schema, &json!({"spec": {"workers": 2_147_483_648_i64, "ratio": 0.7, "gpus": 1.5, "command": ["a", "b", ""],
        "either": {}, "name": 3}})).join("\n"));
    insta::assert_snapshot!(errors(&schema, &json!([])).join("\n"), @r#"<nil>: Invalid value: "array": <root> in body must be of type object: "array" [FieldValueTypeInvalid]"#);
}

#[test]
fn fills_in_defaults() {
    let schema = job_schema();
    let mut object = json!({"spec": {"workers": null, "name": null, "data": [{"name": "x"}]}});
    schema.default(&mut object);
    assert_eq!(
        object,
        json!({"spec": {"workers": 1, "name": null, "framework": "plain", "memory": {"qos": "auto"}, "data": [{"name": "x", "path": "/data"}]}})
    );
    let mut empty = json!({});
    schema.default(&mut empty);
    assert_eq!(
        empty,
        json!({}),
        "an absent parent without a default stays absent"
    );
}

#[test]
fn prunes_unknown_fields() {
    let schema = job_schema();
    let mut object = json!({
        "apiVersion": "a/v1", "kind": "Job", "metadata": {"name": "a", "nope": 1, "labels": {"x": "y"}}, "extra": 1,
        "spec": {"data": [{"name": "a", "x": 1}], "env": {"any": "thing"},
            "template": {"free": {"as": "air"}, "known": {"gone": 1}},
            "embedded": {"apiVersion": "v1", "kind": "X", "metadata": {"bad": 1, "name": "n"}, "spec": {"kept": 1}}}});
    let mut unknown = schema.prune(&mut object);
    unknown.sort();
    assert_eq!(
        unknown,
        [
            "extra",
            "metadata.nope",
            "spec.data[0].x",
            "spec.embedded.metadata.bad",
            "spec.template.known.gone"
        ]
    );
    assert_eq!(
        object,
        json!({
            "apiVersion": "a/v1", "kind": "Job", "metadata": {"name": "a", "labels": {"x": "y"}},
            "spec": {"data": [{"name": "a"}], "env": {"any": "thing"}, "template": {"free": {"as": "air"}, "known": {}},
                "embedded": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": {"kept": 1}}}})
    );
    assert!(schema.prune(&mut object).is_empty());
}

#[test]
fn refuses_what_is_not_structural() {
    let table: Vec<String> = [
        json!([]),
        json!({"type": "string"}),
        json!({"type": "object", "properties": {"a": {}}}),
        json!({"type": "object", "properties": {"a": {"type": "text"}}}),
        json!({"type": "object", "properties": {"a": {"type": "array"}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
        json!({"type": "object", "properties": {"a": {"type": "object", "additionalProperties": false}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#/x", "type": "string"}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}}),
        json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}}}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "anyOf": [{"type": "integer"}]}}}),
        json!({"type": "object", "anyOf": [{"properties": {"b": {"minimum": 3}}}]}),
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "true"}]}),
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
        json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
        json!({"type": "object", "properties": {"a": {"type": "object", "default": {"b": 1}}}}),
        json!({"type": "object", "properties": {"a": {"type": "string", "x-kubernetes-int-or-string": true}}}),
    ]
    .iter()
    .map(|document| match Schema::from_crd(document, CelRules::Refuse) {
        Ok(_) => format!("accepted {document}"),
        Err(error) => error.to_string(),
    })
    .collect();
    insta::assert_snapshot!(table.join("\n"), @r#"
openAPIV3Schema: Invalid value: "array": openAPIV3Schema in body must be of type object: "array"
openAPIV3Schema.type: Invalid value: "string": must be object at the root
openAPIV3Schema.properties[a].type: Required value: must not be empty for specified object fields
openAPIV3Schema.properties[a].type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string"
openAPIV3Schema.properties[a].items: Required value: must be specified
openAPIV3Schema.properties[a].items: Forbidden: must be one schema
openAPIV3Schema.properties[a].pattern: Invalid value: "(": must be a valid regular expression, but isn't: unclosed group
openAPIV3Schema.properties[a].additionalProperties: Forbidden: must not be false: unknown fields are dropped anyway
openAPIV3Schema.properties[a].$ref: Forbidden: $ref is not supported in a structural schema
openAPIV3Schema.properties[a].uniqueItems: Forbidden: use `x-kubernetes-list-type: set` instead
openAPIV3Schema.properties[a].x-kubernetes-list-map-keys[0]: Invalid value: "k": must be a property of the items
openAPIV3Schema.properties[a].anyOf[0].type: Forbidden: must be empty to be structural
openAPIV3Schema.anyOf[0].properties[b]: Required value: must also be defined outside of the junctor
openAPIV3Schema.x-kubernetes-validations: Forbidden: this server does not evaluate CEL rules; remove them to store objects without these checks
openAPIV3Schema.properties[metadata].properties[labels]: Forbidden: only name and generateName may be restricted; the rest of metadata is the server's
openAPIV3Schema.properties[a].default: Invalid value: "string": openAPIV3Schema.properties[a].default in body must be of type integer: "string"
openAPIV3Schema.properties[a].default.b: Forbidden: unknown field
openAPIV3Schema.properties[a].type: Invalid value: "string": must be empty if x-kubernetes-int-or-string is true
"#);
    let ours = json!({"type": "object", "x-kubernetes-validations": [{"rule": "true"}]});
    assert!(Schema::from_crd(&ours, CelRules::CheckedElsewhere).is_ok());
}

#[test]
fn knows_built_in_kinds() {
    let schema = Schema::of::<Pod>();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "creationTimestamp": null},
        "spec": {"containers": [{"name": "c", "imagee": "x", "resources": {"limits": {"cpu": 1.5, "memory": "1.5Gi"}},
            "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "http"}}}], "nodeSelector": {"a": "b"}},
        "status": {"containerStatuses": [{"name": "c"}]}});
    assert_eq!(schema.prune(&mut pod), ["spec.containers[0].imagee"]);
    assert!(pod["metadata"].get("creationTimestamp").is_none());
    assert_eq!(errors(&schema, &pod), [""; 0]);
    schema.default(&mut pod);
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["limits"],
        json!({"cpu": "1500m", "memory": "1536Mi"})
    );
    let bad = json!({"spec": {"containers": [{"ports": [{"containerPort": "x"}], "args": [1], "resources": {"limits": {"cpu": "many"}},
        "livenessProbe": {"httpGet": {"port": []}}}], "nodeSelector": {"a": 3}, "terminationGracePeriodSeconds": 1.5}});
    insta::assert_snapshot!(errors(&schema, &bad).join("\n"));
}

#[test]
fn the_schema_of_schemas_is_recursive() {
    let schema = Schema::of::<CustomResourceDefinition>();
    let definition = json!({"spec": {"group": "g", "scope": "Cluster", "names": {"plural": "a", "kind": "A"}, "versions": [
        {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "a": {"type": "object", "additionalProperties": true, "default": {"x": [1]}},
            "b": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "string", "enum": ["x", 1, null]}}}}}}}}]}});
    assert_eq!(errors(&schema, &definition), [""; 0]);
    let mut pruned = definition.clone();
    assert_eq!(schema.prune(&mut pruned), [""; 0]);
    assert_eq!(pruned, definition);
    let mut typo = definition;
    typo["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["b"]["items"]["typ"] =
        json!("x");
    assert_eq!(
        schema.prune(&mut typo),
        ["spec.versions[0].schema.openAPIV3Schema.properties.b.items.typ"]
    );
}

#[test]
fn scalars_are_shared() {
    assert!(
        Schema::of::<Pod>().nodes.len() < 1200,
        "{}",
        Schema::of::<Pod>().nodes.len()
    );
    assert!(
        Schema::of::<Node>().nodes.len() < 200,
        "{}",
        Schema::of::<Node>().nodes.len()
    );
}

#[test]
fn deep_values_are_refused_not_followed() {
    let schema = Schema::of::<CustomResourceDefinition>();
    let mut value = json!({"type": "object"});
    for _ in 0..200 {
        value = json!({"items": value});
    }
    let object = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": value}}]}});
    assert!(
        schema
            .validate(&object)
            .iter()
            .any(|error| error.detail.contains("too deeply"))
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "spec",
        "metadata",
        "command",
        "workers",
        "gpus",
        "name",
        "data",
        "env",
        "template",
        "known",
        "memory",
        "qos",
        "embedded",
        "either",
        "a",
        "b",
        "containers",
        "resources",
        "limits",
        "labels",
        "kind",
        "path",
        "tags",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,5}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(String::from), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_is_handled(value in any_json()) {
        for schema in [job_schema(), Schema::of::<Pod>()] {
            let mut object = value.clone();
            schema.prune(&mut object);
            prop_assert!(schema.prune(&mut object.clone()).is_empty());
            schema.default(&mut object);
            let mut again = object.clone();
            schema.default(&mut again);
            prop_assert_eq!(&again, &object);
            schema.validate(&object);
        }
    }

    #[test]
    fn any_document_is_a_schema_or_refused(document in any_json()) {
        let _ = Schema::from_crd(&document, CelRules::Refuse);
    }
}
