//! Validating a value, with the paths and messages Kubernetes gives.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::error::body;
use super::node::{Bound, Checks, List, Node, NodeId, Unknown};
use super::{DEPTH_MAX, ERRORS_MAX, FieldError};

/// Everything wrong with `value`, which is found at `path`.
pub(super) fn validate(nodes: &[Node], root: NodeId, value: &Value, path: &str) -> Vec<FieldError> {
    let mut validator = Validator {
        nodes,
        path: path.to_owned(),
        depth: 0,
        errors: Vec::new(),
    };
    validator.value(root, value);
    validator.errors.truncate(ERRORS_MAX);
    validator.errors
}

struct Validator<'a> {
    nodes: &'a [Node],
    /// `spec.containers[0].name`, grown and cut back as the walk goes.
    path: String,
    depth: usize,
    errors: Vec<FieldError>,
}

impl Validator<'_> {
    fn value(&mut self, id: NodeId, value: &Value) {
        if self.errors.len() >= ERRORS_MAX {
            return;
        }
        if self.depth > DEPTH_MAX {
            self.errors
                .push(FieldError::forbidden(&self.path, "nested too deeply"));
            return;
        }
        let node = &self.nodes[id.index()];
        if value.is_null() && node.nullable {
            return;
        }
        if !node.types.accept(value) {
            self.errors.push(FieldError::type_invalid(
                &self.path,
                value,
                &node.types.expected(),
            ));
            return;
        }
        match value {
            Value::Object(fields) => self.object(node, fields),
            Value::Array(items) => {
                if let Some(item) = node.items {
                    for (index, value) in items.iter().enumerate() {
                        self.below(&format!("[{index}]"), |this| this.value(item, value));
                    }
                }
            }
            _ => {}
        }
        if let Some(checks) = &node.checks {
            self.checks(checks, value);
        }
    }

    fn below(&mut self, part: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if !part.starts_with('[') && length > 0 {
            self.path.push('.');
        }
        self.path.push_str(part);
        self.depth += 1;
        visit(self);
        self.depth -= 1;
        self.path.truncate(length);
    }

    fn object(&mut self, node: &Node, fields: &Map<String, Value>) {
        for name in &node.required {
            // What is null and may not be is not there.
            let is_absent = |value: &Value| {
                let below = node.property(name).map(|below| &self.nodes[below.index()]);
                value.is_null() && below.is_some_and(|below| !below.nullable)
            };
            if fields.get(name.as_ref()).is_none_or(is_absent) {
                self.below(name, |this| {
                    this.errors.push(FieldError::required(&this.path, ""));
                });
            }
        }
        for (name, value) in fields {
            if let Some(below) = node.property(name) {
                let is_required = || node.required.iter().any(|field| **field == **name);
                let is_nullable = self.nodes[below.index()].nullable;
                if value.is_null() && (node.null_is_absent || (!is_nullable && is_required())) {
                    continue;
                }
                self.below(name, |this| this.value(below, value));
            } else if let Unknown::Map(values) = node.unknown {
                self.below(name, |this| this.value(values, value));
            }
        }
    }

    fn checks(&mut self, checks: &Checks, value: &Value) {
        if !checks.one_of_values.is_empty()
            && !checks
                .one_of_values
                .iter()
                .any(|allowed| same(allowed, value))
        {
            let supported: Vec<String> = checks
                .one_of_values
                .iter()
                .filter(|value| !value.is_null())
                .map(ToString::to_string)
                .collect();
            self.errors
                .push(FieldError::not_supported(&self.path, value, &supported));
        }
        if let Some(format) = checks.format
            && !format.accepts(value)
        {
            self.errors
                .push(FieldError::format_invalid(&self.path, value, format.name()));
        }
        match value {
            Value::Number(number) => {
                self.number(checks, number.as_f64().unwrap_or_default(), value);
            }
            Value::String(text) => self.text(checks, text, value),
            Value::Array(items) => self.list(checks, items),
            Value::Object(fields) => self.map(checks, fields),
            Value::Null | Value::Bool(_) => {}
        }
        self.branches(checks, value);
    }

    /// An error in the manner of the OpenAPI checks, which repeat the path in the text.
    fn invalid(&mut self, value: &Value, what: &str) {
        let detail = format!("{} {what}", body(&self.path));
        self.errors
            .push(FieldError::invalid(&self.path, value, &detail));
    }

    fn number(&mut self, checks: &Checks, number: f64, value: &Value) {
        if let Some(Bound {
            value: bound,
            exclusive,
        }) = checks.minimum
            && (number < bound || (exclusive && number <= bound))
        {
            let or_equal = if exclusive { "" } else { "or equal to " };
            self.invalid(
                value,
                &format!("in body should be greater than {or_equal}{bound}"),
            );
        }
        if let Some(Bound {
            value: bound,
            exclusive,
        }) = checks.maximum
            && (number > bound || (exclusive && number >= bound))
        {
            let or_equal = if exclusive { "" } else { "or equal to " };
            self.invalid(
                value,
                &format!("in body should be less than {or_equal}{bound}"),
            );
        }
        if let Some(factor) = checks.multiple_of {
            let times = number / factor;
            if (times - times.round()).abs() > 1e-9 {
                self.invalid(value, &format!("in body should be a multiple of {factor}"));
            }
        }
    }

    fn text(&mut self, checks: &Checks, text: &str, value: &Value) {
        let length = text.chars().count();
        if let Some(min) = checks.length_min
            && length < min
        {
            self.invalid(
                value,
                &format!("in body should be at least {min} chars long"),
            );
        }
        if let Some(max) = checks.length_max
            && length > max
        {
            self.errors.push(FieldError::too_long(&self.path, max));
        }
        if let Some(pattern) = &checks.pattern
            && !pattern.is_match(text)
        {
            self.invalid(value, &format!("in body should match '{}'", pattern.text));
        }
    }

    fn list(&mut self, checks: &Checks, items: &[Value]) {
        if let Some(min) = checks.items_min
            && items.len() < min
        {
            self.invalid(
                &Value::from(items.len()),
                &format!("in body should have at least {min} items"),
            );
        }
        if let Some(max) = checks.items_max
            && items.len() > max
        {
            self.errors
                .push(FieldError::too_many(&self.path, items.len(), max));
        }
        let identity = |item: &Value| match &checks.list {
            List::Atomic => None,
            List::Set => Some(item.clone()),
            List::Map(keys) => Some(Value::Object(
                keys.iter()
                    .filter_map(|key| {
                        item.get(key.as_ref())
                            .map(|value| (key.to_string(), value.clone()))
                    })
                    .collect(),
            )),
        };
        if checks.list == List::Atomic {
            return;
        }
        let mut seen = HashSet::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let Some(identity) = identity(item) else {
                continue;
            };
            if !seen.insert(identity.to_string()) {
                self.below(&format!("[{index}]"), |this| {
                    this.errors
                        .push(FieldError::duplicate(&this.path, &identity));
                });
            }
        }
    }

    fn map(&mut self, checks: &Checks, fields: &Map<String, Value>) {
        if let Some(min) = checks.properties_min
            && fields.len() < min
        {
            self.invalid(
                &Value::from(fields.len()),
                &format!("in body should have at least {min} properties"),
            );
        }
        if let Some(max) = checks.properties_max
            && fields.len() > max
        {
            self.errors
                .push(FieldError::too_many(&self.path, fields.len(), max));
        }
        if checks.embedded {
            for name in ["apiVersion", "kind"] {
                if fields
                    .get(name)
                    .and_then(Value::as_str)
                    .is_none_or(str::is_empty)
                {
                    self.below(name, |this| {
                        this.errors
                            .push(FieldError::required(&this.path, "must not be empty"));
                    });
                }
            }
        }
    }

    fn branches(&mut self, checks: &Checks, value: &Value) {
        for &branch in &checks.all_of {
            self.value(branch, value);
        }
        if !checks.any_of.is_empty()
            && !checks
                .any_of
                .iter()
                .any(|&branch| self.holds(branch, value))
        {
            self.no_branch("must validate at least one schema (anyOf)");
            self.branch_errors(checks.any_of.first(), value);
        }
        if !checks.one_of.is_empty() {
            let valid = checks
                .one_of
                .iter()
                .filter(|&&branch| self.holds(branch, value))
                .count();
            if valid != 1 {
                let mut found =
                    String::from("must validate one and only one schema (oneOf). Found ");
                let _ = if valid == 0 {
                    write!(found, "none valid")
                } else {
                    write!(found, "{valid} valid alternatives")
                };
                self.no_branch(&found);
                if valid == 0 {
                    self.branch_errors(checks.one_of.first(), value);
                }
            }
        }
        if checks.not.is_some_and(|branch| self.holds(branch, value)) {
            self.no_branch("must not validate the schema (not)");
        }
    }

    /// That alternatives do not fit is said of the object as a whole.
    fn no_branch(&mut self, what: &str) {
        let detail = format!("{:?} {what}", self.path);
        self.errors.push(FieldError::invalid_text("", "", &detail));
    }

    /// What the first alternative has against a value that fits none.
    fn branch_errors(&mut self, branch: Option<&NodeId>, value: &Value) {
        if let Some(&branch) = branch {
            let errors = self.tried(branch, value);
            self.errors.extend(errors);
        }
    }

    fn holds(&self, branch: NodeId, value: &Value) -> bool {
        self.tried(branch, value).is_empty()
    }

    fn tried(&self, branch: NodeId, value: &Value) -> Vec<FieldError> {
        let mut trial = Validator {
            nodes: self.nodes,
            path: self.path.clone(),
            depth: self.depth,
            errors: Vec::new(),
        };
        trial.value(branch, value);
        trial.errors
    }
}

/// Equality in the eyes of JSON: `1` and `1.0` are the same number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        _ => one == other,
    }
}
