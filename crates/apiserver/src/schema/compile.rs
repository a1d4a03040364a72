//! From schema documents to nodes.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

use super::format::Format;
use super::node::{Bound, Checks, List, Node, NodeId, Pattern, Types, Unknown};
use super::{DEPTH_MAX, Schema};

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const JSON: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";

/// Compiles the schema of a built-in kind.
pub(super) fn typed<T: JsonSchema>() -> Schema {
    let mut generator = SchemaGenerator::default();
    let root = generator.subschema_for::<T>().to_value();
    let mut compiler = Compiler::new(generator.take_definitions(false));
    let root = compiler.typed(&root, Demand::Root);
    compiler.finish(root, false)
}

/// Compiles a CRD's schema, which `structural::check` has accepted. Its `metadata`, and that of
/// embedded resources, is the typed one, whatever the document says of it.
pub(super) fn custom(document: &Value) -> Schema {
    let mut generator = SchemaGenerator::default();
    let metadata = generator.subschema_for::<ObjectMeta>().to_value();
    let mut compiler = Compiler::new(generator.take_definitions(false));
    compiler.metadata = Some(compiler.typed(&metadata, Demand::Nothing));
    let mut root = compiler.custom_body(document, Mode::Structural, 0);
    compiler.add_object_fields(&mut root);
    let root = compiler.add(root);
    compiler.finish(root, true)
}

/// Where in a built-in object we are. Kubernetes demands fields of what users write, the `spec`;
/// metadata and the kinds without a spec have rules of their own, and status is taken as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Demand {
    Root,
    Required,
    Nothing,
}

/// Inside `allOf` and its kin a schema only restricts values: it names no types and prunes nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Structural,
    Restriction,
}

struct Compiler {
    definitions: Map<String, Value>,
    nodes: Vec<Node>,
    by_name: HashMap<(String, Demand), NodeId>,
    /// Plain scalars are the same node wherever they occur; they are most of any schema.
    leaves: HashMap<(Types, Option<Format>), NodeId>,
    metadata: Option<NodeId>,
}

impl Compiler {
    fn new(definitions: Map<String, Value>) -> Compiler {
        Compiler {
            definitions,
            nodes: Vec::new(),
            by_name: HashMap::new(),
            leaves: HashMap::new(),
            metadata: None,
        }
    }

    fn finish(self, root: NodeId, is_custom: bool) -> Schema {
        Schema {
            nodes: self.nodes.into(),
            root,
            is_custom,
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId::new(self.nodes.len() - 1)
    }

    fn leaf(&mut self, types: Types, format: Option<Format>) -> NodeId {
        if let Some(&id) = self.leaves.get(&(types, format)) {
            return id;
        }
        let checks = format.map(|format| {
            Box::new(Checks {
                format: Some(format),
                ..Checks::default()
            })
        });
        let id = self.add(Node {
            checks,
            ..Node::of(types)
        });
        self.leaves.insert((types, format), id);
        id
    }

    fn typed(&mut self, schema: &Value, demand: Demand) -> NodeId {
        let Some(name) = definition_name(schema) else {
            if let (Some(kind), None) = (
                schema.get("type").and_then(Value::as_str),
                schema.get("properties"),
            ) {
                let types = Types::named(kind).unwrap_or(Types::ANY);
                if !types.has(Types::OBJECT.union(Types::ARRAY)) {
                    let format = schema
                        .get("format")
                        .and_then(Value::as_str)
                        .and_then(Format::named);
                    return self.leaf(types, format);
                }
            }
            let body = self.typed_body(schema, demand);
            return self.add(body);
        };
        let key = (name.to_owned(), demand);
        if let Some(&id) = self.by_name.get(&key) {
            return id;
        }
        // The place is taken before the body is compiled: the body may refer to itself.
        let id = self.add(Node::any());
        self.by_name.insert(key, id);
        self.nodes[id.index()] = self.typed_definition(name, demand);
        id
    }

    fn typed_definition(&mut self, name: &str, demand: Demand) -> Node {
        match name {
            JSON => Node::any(),
            QUANTITY => Node {
                checks: Some(Box::new(Checks {
                    format: Some(Format::Quantity),
                    ..Checks::default()
                })),
                ..Node::of(Types::QUANTITY)
            },
            TIME | MICRO_TIME => {
                let format = if name == TIME {
                    Format::DateTime
                } else {
                    Format::MicroTime
                };
                Node {
                    checks: Some(Box::new(Checks {
                        format: Some(format),
                        ..Checks::default()
                    })),
                    null_is_absent: true,
                    ..Node::of(Types::STRING)
                }
            }
            _ => match self.definitions.get(name).cloned() {
                Some(body) => self.typed_body(&body, demand),
                None => Node::any(),
            },
        }
    }

    fn typed_body(&mut self, schema: &Value, demand: Demand) -> Node {
        if let Some(name) = definition_name(schema) {
            return self.typed_definition(name, demand);
        }
        if let Some(alternatives) = schema.get("oneOf").and_then(Value::as_array) {
            let alternatives: Vec<Node> = alternatives
                .iter()
                .map(|alternative| self.typed_body(alternative, demand))
                .collect();
            return alternatives
                .into_iter()
                .reduce(merged)
                .unwrap_or_else(Node::any);
        }
        let types = if schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
            Types::INT_OR_STRING
        } else {
            schema
                .get("type")
                .and_then(Value::as_str)
                .and_then(Types::named)
                .unwrap_or(Types::ANY)
        };
        let mut node = Node {
            null_is_absent: true,
            ..Node::of(types)
        };
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            node.properties = properties
                .iter()
                .map(|(name, property)| {
                    let below = match demand {
                        Demand::Root if name == "spec" => Demand::Required,
                        Demand::Root => Demand::Nothing,
                        other => other,
                    };
                    (name.as_str().into(), self.typed(property, below))
                })
                .collect();
            node.properties.sort();
            if demand == Demand::Required {
                node.required = texts(schema, "required");
            }
        } else if let Some(values) = schema.get("additionalProperties") {
            node.unknown = Unknown::Map(self.typed(values, demand));
        } else {
            // Free-form objects (`RawExtension`, `FieldsV1`) and empty structures.
            node.unknown = Unknown::Preserve;
        }
        node.items = schema.get("items").map(|items| self.typed(items, demand));
        node
    }

    fn custom(&mut self, schema: &Value, mode: Mode, depth: usize) -> NodeId {
        let node = self.custom_body(schema, mode, depth);
        let plain = node.default.is_none()
            && !node.nullable
            && !node.types.has(Types::OBJECT.union(Types::ARRAY))
            && node.checks.is_none();
        if plain {
            self.leaf(node.types, None)
        } else {
            self.add(node)
        }
    }

    fn custom_body(&mut self, schema: &Value, mode: Mode, depth: usize) -> Node {
        if depth > DEPTH_MAX {
            return Node::any();
        }
        let flag = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        let named = schema
            .get("type")
            .and_then(Value::as_str)
            .and_then(Types::named);
        let types = match named {
            _ if flag("x-kubernetes-int-or-string") => Types::INT_OR_STRING,
            Some(types) => types,
            None => Types::ANY,
        };
        let restriction = mode == Mode::Restriction;
        let mut node = Node::of(types);
        node.nullable = flag("nullable") || restriction || (named.is_none() && types == Types::ANY);
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            node.properties = properties
                .iter()
                .map(|(name, property)| {
                    (name.as_str().into(), self.custom(property, mode, depth + 1))
                })
                .collect();
            node.properties.sort();
        }
        node.required = texts(schema, "required");
        node.unknown = match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => Unknown::Map(self.custom(values, mode, depth + 1)),
            Some(Value::Bool(true)) => Unknown::Preserve,
            _ if restriction || flag("x-kubernetes-preserve-unknown-fields") => Unknown::Preserve,
            _ => Unknown::Prune,
        };
        node.items = schema
            .get("items")
            .map(|items| self.custom(items, mode, depth + 1));
        node.default = schema
            .get("default")
            .filter(|default| !default.is_null())
            .cloned()
            .map(Box::new);
        node.checks = self.checks(schema, depth);
        if flag("x-kubernetes-embedded-resource") {
            self.add_object_fields(&mut node);
            node.checks.get_or_insert_default().embedded = true;
        }
        node
    }

    fn checks(&mut self, schema: &Value, depth: usize) -> Option<Box<Checks>> {
        const CHECKS: &[&str] = &[
            "format",
            "enum",
            "minimum",
            "maximum",
            "multipleOf",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "pattern",
            "x-kubernetes-list-type",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
        ];
        if !CHECKS.iter().any(|check| schema.get(check).is_some()) {
            return None;
        }
        let count = |name: &str| {
            schema
                .get(name)
                .and_then(Value::as_u64)
                .map(|count| count as usize)
        };
        let bound = |name: &str, exclusive: &str| {
            schema.get(name).and_then(Value::as_f64).map(|value| Bound {
                value,
                exclusive: schema.get(exclusive) == Some(&Value::Bool(true)),
            })
        };
        let mut branches = |name: &str| -> Box<[NodeId]> {
            let schemas = schema
                .get(name)
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            schemas
                .map(|schema| self.custom(schema, Mode::Restriction, depth + 1))
                .collect()
        };
        let (all_of, any_of, one_of) = (branches("allOf"), branches("anyOf"), branches("oneOf"));
        Some(Box::new(Checks {
            format: schema
                .get("format")
                .and_then(Value::as_str)
                .and_then(Format::named)
                // Of custom kinds the size of an integer is not checked: minimum and maximum are for that.
                .filter(|format| !matches!(format, Format::Int32 | Format::Int64)),
            one_of_values: schema
                .get("enum")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
                .into(),
            minimum: bound("minimum", "exclusiveMinimum"),
            maximum: bound("maximum", "exclusiveMaximum"),
            multiple_of: schema
                .get("multipleOf")
                .and_then(Value::as_f64)
                .filter(|factor| *factor > 0.0),
            length_min: count("minLength"),
            length_max: count("maxLength"),
            items_min: count("minItems"),
            items_max: count("maxItems"),
            properties_min: count("minProperties"),
            properties_max: count("maxProperties"),
            pattern: schema
                .get("pattern")
                .and_then(Value::as_str)
                .map(Pattern::new),
            list: match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => List::Set,
                Some("map") => List::Map(texts(schema, "x-kubernetes-list-map-keys")),
                _ => List::Atomic,
            },
            embedded: false,
            all_of,
            any_of,
            one_of,
            not: schema
                .get("not")
                .map(|not| self.custom(not, Mode::Restriction, depth + 1)),
        }))
    }

    /// `apiVersion`, `kind` and `metadata` are known in every object.
    fn add_object_fields(&mut self, node: &mut Node) {
        let text = self.leaf(Types::STRING, None);
        let mut properties: Vec<_> = std::mem::take(&mut node.properties)
            .into_iter()
            .filter(|(name, _)| !matches!(name.as_ref(), "apiVersion" | "kind" | "metadata"))
            .collect();
        properties.push(("apiVersion".into(), text));
        properties.push(("kind".into(), text));
        properties.extend(self.metadata.map(|metadata| ("metadata".into(), metadata)));
        properties.sort();
        node.properties = properties.into();
    }
}

/// One node that accepts what either accepts. Only the schema of schemas has such unions, and
/// there at most one side is an object and at most one an array.
fn merged(one: Node, other: Node) -> Node {
    let (object, mut rest) = if one.types.has(Types::OBJECT) {
        (one, other)
    } else {
        (other, one)
    };
    Node {
        types: object.types.union(rest.types),
        items: object.items.or(rest.items.take()),
        ..object
    }
}

fn definition_name(schema: &Value) -> Option<&str> {
    schema
        .get("$ref")
        .and_then(Value::as_str)?
        .strip_prefix("#/$defs/")
}

fn texts(schema: &Value, name: &str) -> Box<[Box<str>]> {
    let values = schema
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    values.filter_map(Value::as_str).map(Into::into).collect()
}
