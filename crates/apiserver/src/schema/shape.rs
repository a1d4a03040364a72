//! Changing a value to fit its schema: dropping what is unknown, filling in what is absent.

use serde_json::{Map, Value};

use super::DEPTH_MAX;
use super::format::Format;
use super::node::{Node, NodeId, Types, Unknown};
use stoke_api::quantity::Exact;

/// How many unknown fields are named in warnings; all of them are dropped.
const UNKNOWN_MAX: usize = 100;

pub(super) fn prune(nodes: &[Node], root: NodeId, value: &mut Value) -> Vec<String> {
    let mut pruner = Pruner {
        nodes,
        path: Vec::new(),
        unknown: Vec::new(),
    };
    pruner.value(root, value);
    pruner.unknown
}

struct Pruner<'a> {
    nodes: &'a [Node],
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
            Value::Object(fields) if node.types.has(Types::OBJECT) => self.object(node, fields),
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
            fields.retain(|_, value| !value.is_null());
        }
        if node.unknown == Unknown::Prune {
            fields.retain(|name, _| {
                let known = node.property(name).is_some();
                if !known && self.unknown.len() < UNKNOWN_MAX {
                    self.unknown.push(joined(&self.path, name));
                }
                known
            });
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
            }
        }
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
        Value::String(_) | Value::Number(_) if is_quantity(node) => {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            if let Some(quantity) = Exact::parse(&text) {
                *value = Value::String(quantity.canonical());
            }
        }
        _ => {}
    }
}

fn is_quantity(node: &Node) -> bool {
    node.checks
        .as_ref()
        .is_some_and(|checks| checks.format == Some(Format::Quantity))
}
