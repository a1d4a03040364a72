//! Changing a value to fit its schema: dropping what is unknown, filling in what is absent.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::DEPTH_MAX;
use super::format::Format;
use super::node::{Node, NodeId, Types, Unknown};
use stoke_api::quantity::Exact;

/// How many unknown fields are named in warnings; all of them are dropped.
const UNKNOWN_MAX: usize = 100;

pub(super) fn prune(
    nodes: &[Node],
    root: NodeId,
    is_custom: bool,
    value: &mut Value,
) -> Vec<String> {
    let mut pruner = Pruner {
        nodes,
        is_custom,
        path: Vec::new(),
        unknown: Vec::new(),
    };
    pruner.value(root, value);
    pruner.unknown
}

struct Pruner<'a> {
    nodes: &'a [Node],
    /// Custom kinds know no field of an object that should be none; built-in ones cannot even read it.
    is_custom: bool,
    path: Vec<String>,
    unknown: Vec<String>,
}

impl Pruner<'_> {
    fn value(&mut self, id: NodeId, value: &mut Value) {
        if self.path.len() > DEPTH_MAX {
            return;
        }
        let node = &self.nodes[id.index()];
        match value {
            Value::Object(fields) if node.types.has(Types::OBJECT) || self.is_custom => {
                self.object(node, fields);
            }
            Value::Array(items) => {
                let Some(item) = node.items else { return };
                for (index, value) in items.iter_mut().enumerate() {
                    self.path.push(format!("[{index}]"));
                    self.value(item, value);
                    self.path.pop();
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, node: &Node, fields: &mut Map<String, Value>) {
        if node.null_is_absent {
            self.drop_nulls(node, fields);
        }
        for (name, value) in fields.iter_mut() {
            let below = node.property(name).or(match node.unknown {
                Unknown::Map(values) => Some(values),
                Unknown::Prune | Unknown::Preserve => None,
            });
            if let Some(below) = below {
                self.path.push(name.clone());
                self.value(below, value);
                self.path.pop();
            } else if node.unknown == Unknown::Prune && self.unknown.len() < UNKNOWN_MAX {
                self.unknown.push(joined(&self.path, name));
            }
        }
        if node.unknown == Unknown::Prune {
            fields.retain(|name, _| node.property(name).is_some());
        }
        if node.null_is_absent {
            self.drop_empty(node, fields);
        }
    }

    /// Go reads null as nothing, and so as the empty text where a map must have one.
    fn drop_nulls(&self, node: &Node, fields: &mut Map<String, Value>) {
        if let Unknown::Map(values) = node.unknown
            && self.nodes[values.index()].types == Types::STRING
        {
            for value in fields.values_mut().filter(|value| value.is_null()) {
                *value = Value::String(String::new());
            }
        }
        fields.retain(|_, value| !value.is_null());
    }

    /// Lists and maps that may be absent are, when they are empty.
    fn drop_empty(&self, node: &Node, fields: &mut Map<String, Value>) {
        fields.retain(|name, value| {
            let is_empty = match (&*value, node.property(name)) {
                (Value::Array(items), Some(below)) => {
                    items.is_empty() && self.nodes[below.index()].types.has(Types::ARRAY)
                }
                (Value::Object(entries), Some(below)) => {
                    let is_map = matches!(self.nodes[below.index()].unknown, Unknown::Map(_));
                    is_map && entries.is_empty()
                }
                _ => false,
            };
            let is_required = || node.required.iter().any(|field| **field == **name);
            !is_empty || is_required()
        });
    }
}

fn joined(path: &[String], last: &str) -> String {
    let mut text = String::new();
    for part in path.iter().map(String::as_str).chain([last]) {
        if !text.is_empty() && !part.starts_with('[') {
            text.push('.');
        }
        text.push_str(part);
    }
    text
}

pub(super) fn default(nodes: &[Node], root: NodeId, value: &mut Value) {
    default_at(nodes, root, value, 0);
}

fn default_at(nodes: &[Node], id: NodeId, value: &mut Value, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    let node = &nodes[id.index()];
    match value {
        Value::Object(fields) if node.types.has(Types::OBJECT) => {
            for (name, below) in &node.properties {
                let Some(default) = &nodes[below.index()].default else {
                    continue;
                };
                let absent = match fields.get(name.as_ref()) {
                    None => true,
                    Some(Value::Null) => !nodes[below.index()].nullable,
                    Some(_) => false,
                };
                if absent {
                    fields.insert(name.to_string(), default.as_ref().clone());
                }
            }
            for (name, value) in fields.iter_mut() {
                let below = node.property(name).or(match node.unknown {
                    Unknown::Map(values) => Some(values),
                    Unknown::Prune | Unknown::Preserve => None,
                });
                if let Some(below) = below {
                    default_at(nodes, below, value, depth + 1);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item) = node.items {
                for value in items {
                    default_at(nodes, item, value, depth + 1);
                }
            }
        }
        Value::String(_) | Value::Number(_) => {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            let format = node.checks.as_ref().and_then(|checks| checks.format);
            if let Some(canonical) = format.and_then(|format| canonical(format, node, &text)) {
                *value = Value::String(canonical);
            }
        }
        _ => {}
    }
}

/// The one spelling that a built-in kind has for a quantity or a time. What custom kinds say is theirs.
fn canonical(format: Format, node: &Node, text: &str) -> Option<String> {
    match format {
        Format::Quantity => Some(Exact::parse(text)?.canonical()),
        Format::DateTime if node.null_is_absent => Some(
            text.parse::<Timestamp>()
                .ok()?
                .strftime("%Y-%m-%dT%H:%M:%SZ")
                .to_string(),
        ),
        Format::MicroTime => Some(
            text.parse::<Timestamp>()
                .ok()?
                .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
                .to_string(),
        ),
        _ => None,
    }
}
