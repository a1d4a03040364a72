//! One structural schema for custom and built-in kinds.
//!
//! A [`Schema`] is compiled once, from a CRD's `openAPIV3Schema` or from the typed schemas of
//! k8s-openapi, into a flat arena of nodes; it then drops unknown fields, fills in defaults and
//! validates, with the field paths and messages Kubernetes uses. Descriptions are not kept: the
//! OpenAPI documents are made from the sources when somebody asks.
//!
//! Invariants: every walk follows the value, is bounded in depth and in the number of errors, and
//! never panics, whatever the value; recursive types (`$ref` cycles) are fine because nodes refer
//! to each other by index; patterns run on an engine with linear time.

mod compile;
mod error;
mod format;
mod node;
mod shape;
mod structural;
mod validate;

use std::sync::Arc;

use serde_json::Value;

pub use error::{FieldError, FieldReason, SchemaError};
use node::{Node, NodeId, Unknown};

/// How deep a value is followed; what is deeper is an error. JSON bodies are parsed with the same
/// bound.
pub(crate) const DEPTH_MAX: usize = 128;

/// How many errors one validation reports; the first ones are what a person fixes.
const ERRORS_MAX: usize = 100;

/// A compiled schema. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Schema {
    nodes: Arc<[Node]>,
    root: NodeId,
    is_custom: bool,
}

/// What to do with `x-kubernetes-validations` in a CRD, which this server does not evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CelRules {
    /// A definition that relies on them is refused: accepting it would accept objects its author
    /// forbade.
    Refuse,
    /// The same rules are checked by typed code (our own group).
    CheckedElsewhere,
}

impl Schema {
    /// From a CRD's `openAPIV3Schema`; paths in the error start at `openAPIV3Schema`.
    pub fn from_crd(open_api_v3_schema: &Value, rules: CelRules) -> Result<Schema, SchemaError> {
        let mut errors = structural::check(open_api_v3_schema, rules);
        if errors.is_empty() {
            let schema = compile::custom(open_api_v3_schema);
            schema.check_defaults(
                open_api_v3_schema,
                schema.root,
                structural::ROOT,
                &mut errors,
            );
            errors.truncate(ERRORS_MAX);
            if errors.is_empty() {
                return Ok(schema);
            }
        }
        Err(SchemaError(errors))
    }

    /// From a typed schema, as k8s-openapi has them for built-in kinds.
    pub fn of<T: schemars::JsonSchema>() -> Schema {
        compile::typed::<T>()
    }

    /// Fills in defaults; for built-in kinds also writes quantities in their canonical form.
    /// Doing it twice changes nothing more.
    pub fn default(&self, object: &mut Value) {
        shape::default(&self.nodes, self.root, object);
    }

    /// Removes unknown fields and returns their paths (`spec.foo`, `spec.containers[0].foo`).
    /// In built-in kinds, `null` means absent and is removed silently.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        shape::prune(&self.nodes, self.root, self.is_custom, object)
    }

    /// Everything wrong with the object, at most a hundred errors.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        validate::validate(&self.nodes, self.root, object, "")
    }

    /// Every default must be a valid and fully known value of its own field. The document and the
    /// nodes that were made of it have the same shape, so they are walked side by side.
    fn check_defaults(
        &self,
        document: &Value,
        id: NodeId,
        path: &str,
        errors: &mut Vec<FieldError>,
    ) {
        let node = &self.nodes[id.index()];
        if let Some(default) = &node.default {
            let path = format!("{path}.default");
            let unknown = shape::prune(&self.nodes, id, true, &mut default.clone());
            errors.extend(
                unknown
                    .iter()
                    .map(|name| FieldError::forbidden(&format!("{path}.{name}"), "unknown field")),
            );
            errors.extend(validate::validate(&self.nodes, id, default, &path));
        }
        let properties = document.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten() {
            if let Some(below) = node.property(name) {
                self.check_defaults(
                    property,
                    below,
                    &format!("{path}.properties[{name}]"),
                    errors,
                );
            }
        }
        if let (Some(items), Some(below)) = (document.get("items"), node.items) {
            self.check_defaults(items, below, &format!("{path}.items"), errors);
        }
        if let (Some(values), Unknown::Map(below)) =
            (document.get("additionalProperties"), node.unknown)
        {
            self.check_defaults(
                values,
                below,
                &format!("{path}.additionalProperties"),
                errors,
            );
        }
    }
}

#[cfg(test)]
mod tests;
