//! The rules a CRD's schema must obey to be structural, and what this server does not evaluate.
//!
//! A schema that passes can be compiled without failing.

use serde_json::{Map, Value};

use super::node::{Pattern, Types};
use super::{CelRules, DEPTH_MAX, ERRORS_MAX, FieldError};

pub(super) const ROOT: &str = "openAPIV3Schema";

/// Keywords of JSON schema that structural schemas exclude.
const FORBIDDEN: &[&str] = &[
    "$ref",
    "$schema",
    "id",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
];

/// Keywords that describe a field and so may not stand in a mere restriction of it.
const STRUCTURAL_ONLY: &[&str] = &[
    "additionalProperties",
    "default",
    "description",
    "nullable",
    "title",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
];

pub(super) fn check(document: &Value, rules: CelRules) -> Vec<FieldError> {
    let mut checker = Checker {
        rules,
        errors: Vec::new(),
    };
    let Some(root) = document.as_object() else {
        return vec![FieldError::type_invalid(ROOT, document, "object")];
    };
    match root.get("type").and_then(Value::as_str) {
        Some("object") => {}
        Some(other) => {
            checker.errors.push(FieldError::invalid_text(
                &format!("{ROOT}.type"),
                other,
                "must be object at the root",
            ));
        }
        None => checker.errors.push(FieldError::required(
            &format!("{ROOT}.type"),
            "must not be empty at the root",
        )),
    }
    checker.metadata(root);
    checker.structural(root, ROOT, 0);
    checker.errors.truncate(ERRORS_MAX);
    checker.errors
}

struct Checker {
    rules: CelRules,
    errors: Vec<FieldError>,
}

impl Checker {
    /// The server owns `metadata`; a definition may only restrict the name.
    fn metadata(&mut self, root: &Map<String, Value>) {
        let Some(metadata) = root
            .get("properties")
            .and_then(|properties| properties.get("metadata"))
        else {
            return;
        };
        let properties = metadata.get("properties").and_then(Value::as_object);
        for name in properties.into_iter().flat_map(Map::keys) {
            if !matches!(name.as_str(), "name" | "generateName") {
                self.errors.push(FieldError::forbidden(
                    &format!("{ROOT}.properties[metadata].properties[{name}]"),
                    "only name and generateName may be restricted; the rest of metadata is the server's",
                ));
            }
        }
    }

    fn structural(&mut self, schema: &Map<String, Value>, path: &str, depth: usize) {
        if self.errors.len() >= ERRORS_MAX {
            return;
        }
        if depth > DEPTH_MAX {
            self.errors
                .push(FieldError::forbidden(path, "nested too deeply"));
            return;
        }
        self.keywords(schema, path);
        self.kind(schema, path);
        self.lists(schema, path);
        let below = |part: &str| format!("{path}.{part}");
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            for (name, property) in properties {
                self.sub(property, &below(&format!("properties[{name}]")), depth);
            }
        }
        match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => self.errors.push(FieldError::forbidden(
                &below("additionalProperties"),
                "must not be false: unknown fields are dropped anyway",
            )),
            Some(Value::Bool(true)) | None => {}
            Some(values) => {
                if schema.contains_key("properties") {
                    self.errors.push(FieldError::forbidden(
                        &below("additionalProperties"),
                        "must not stand beside properties",
                    ));
                }
                self.sub(values, &below("additionalProperties"), depth);
            }
        }
        if let Some(items) = schema.get("items") {
            self.sub(items, &below("items"), depth);
        }
        self.branches(schema, path, Some(schema), depth);
    }

    fn sub(&mut self, schema: &Value, path: &str, depth: usize) {
        match schema.as_object() {
            Some(schema) => self.structural(schema, path, depth + 1),
            None => self
                .errors
                .push(FieldError::forbidden(path, "must be one schema")),
        }
    }

    /// What may not be said anywhere.
    fn keywords(&mut self, schema: &Map<String, Value>, path: &str) {
        for keyword in FORBIDDEN {
            if schema.contains_key(*keyword) {
                self.errors.push(FieldError::forbidden(
                    &format!("{path}.{keyword}"),
                    &format!("{keyword} is not supported in a structural schema"),
                ));
            }
        }
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            self.errors.push(FieldError::forbidden(
                &format!("{path}.uniqueItems"),
                "use `x-kubernetes-list-type: set` instead",
            ));
        }
        if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            self.errors.push(FieldError::invalid(
                &format!("{path}.x-kubernetes-preserve-unknown-fields"),
                &Value::Bool(false),
                "must be true or undefined",
            ));
        }
        let rules = schema
            .get("x-kubernetes-validations")
            .and_then(Value::as_array);
        if self.rules == CelRules::Refuse && rules.is_some_and(|rules| !rules.is_empty()) {
            self.errors.push(FieldError::forbidden(
                &format!("{path}.x-kubernetes-validations"),
                "this server does not evaluate CEL rules; remove them to store objects without these checks",
            ));
        }
        if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && let Err(why) = Pattern::check(pattern)
        {
            self.errors.push(FieldError::invalid_text(
                &format!("{path}.pattern"),
                pattern,
                &format!("must be a valid regular expression, but isn't: {why}"),
            ));
        }
    }

    fn kind(&mut self, schema: &Map<String, Value>, path: &str) {
        let path = format!("{path}.type");
        let flag = |name: &str| schema.get(name) == Some(&Value::Bool(true));
        let kind = schema
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if flag("x-kubernetes-int-or-string") {
            if !kind.is_empty() {
                self.errors.push(FieldError::invalid_text(
                    &path,
                    kind,
                    "must be empty if x-kubernetes-int-or-string is true",
                ));
            }
        } else if kind.is_empty() {
            if !flag("x-kubernetes-preserve-unknown-fields") {
                self.errors.push(FieldError::required(
                    &path,
                    "must not be empty for specified object fields",
                ));
            }
        } else if Types::named(kind).is_none() {
            let supported = ["array", "boolean", "integer", "number", "object", "string"]
                .map(|name| format!("{name:?}"));
            self.errors.push(FieldError::not_supported(
                &path,
                &Value::from(kind),
                &supported,
            ));
        }
        if flag("x-kubernetes-embedded-resource") && kind != "object" {
            self.errors.push(FieldError::invalid_text(
                &path,
                kind,
                "must be object if x-kubernetes-embedded-resource is true",
            ));
        }
    }

    fn lists(&mut self, schema: &Map<String, Value>, path: &str) {
        let is_array = schema.get("type").and_then(Value::as_str) == Some("array");
        if is_array && !schema.contains_key("items") {
            self.errors.push(FieldError::required(
                &format!("{path}.items"),
                "must be specified",
            ));
        }
        let list_type = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
        let keys: Vec<&str> = schema
            .get("x-kubernetes-list-map-keys")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let keys_path = format!("{path}.x-kubernetes-list-map-keys");
        match list_type {
            Some("map") if keys.is_empty() => {
                self.errors.push(FieldError::required(
                    &keys_path,
                    "must not be empty if x-kubernetes-list-type is map",
                ));
            }
            Some("map") => {
                let items = schema.get("items");
                let property =
                    |key: &str| items.and_then(|items| items.get("properties")?.get(key));
                let required = items
                    .and_then(|items| items.get("required"))
                    .and_then(Value::as_array);
                for (index, key) in keys.iter().enumerate() {
                    let path = format!("{keys_path}[{index}]");
                    match property(key) {
                        None => self.errors.push(FieldError::invalid_text(
                            &path,
                            key,
                            "must be a property of the items",
                        )),
                        Some(property) => {
                            let is_required = required.is_some_and(|names| {
                                names.iter().any(|name| name.as_str() == Some(key))
                            });
                            if !is_required && property.get("default").is_none() {
                                self.errors.push(FieldError::invalid_text(
                                    &path,
                                    key,
                                    "must be required or have a default, so that every item has it",
                                ));
                            }
                        }
                    }
                }
            }
            Some("atomic" | "set") | None if !keys.is_empty() => {
                self.errors.push(FieldError::forbidden(
                    &keys_path,
                    "needs x-kubernetes-list-type to be map",
                ));
            }
            Some("atomic" | "set") | None => {}
            Some(other) => {
                let supported = ["atomic", "map", "set"].map(|name| format!("{name:?}"));
                self.errors.push(FieldError::not_supported(
                    &format!("{path}.x-kubernetes-list-type"),
                    &Value::from(other),
                    &supported,
                ));
            }
        }
    }

    fn branches(
        &mut self,
        schema: &Map<String, Value>,
        path: &str,
        structure: Option<&Map<String, Value>>,
        depth: usize,
    ) {
        // `anyOf: [{type: integer}, {type: string}]` is how int-or-string is spelled for other readers.
        let may_name_types = structure.is_some_and(|structure| {
            structure.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
        });
        for junctor in ["allOf", "anyOf", "oneOf"] {
            let branches = schema
                .get(junctor)
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            for (index, branch) in branches.enumerate() {
                self.restriction(
                    branch,
                    &format!("{path}.{junctor}[{index}]"),
                    structure,
                    may_name_types,
                    depth + 1,
                );
            }
        }
        if let Some(branch) = schema.get("not") {
            self.restriction(
                branch,
                &format!("{path}.not"),
                structure,
                may_name_types,
                depth + 1,
            );
        }
    }

    fn restriction(
        &mut self,
        schema: &Value,
        path: &str,
        structure: Option<&Map<String, Value>>,
        may_name_types: bool,
        depth: usize,
    ) {
        if self.errors.len() >= ERRORS_MAX {
            return;
        }
        let Some(schema) = schema.as_object().filter(|_| depth <= DEPTH_MAX) else {
            self.errors.push(FieldError::forbidden(
                path,
                "must be a schema that is not nested too deeply",
            ));
            return;
        };
        self.keywords(schema, path);
        for keyword in STRUCTURAL_ONLY
            .iter()
            .chain((!may_name_types).then_some(&"type"))
        {
            if schema.contains_key(*keyword) {
                self.errors.push(FieldError::forbidden(
                    &format!("{path}.{keyword}"),
                    "must be empty to be structural",
                ));
            }
        }
        let field = |name: &str| {
            structure.and_then(|structure| structure.get("properties")?.get(name)?.as_object())
        };
        for (name, property) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let path = format!("{path}.properties[{name}]");
            let free = structure.is_some_and(|structure| {
                structure.contains_key("additionalProperties")
                    || structure.contains_key("x-kubernetes-preserve-unknown-fields")
            });
            if field(name).is_none() && !free {
                self.errors.push(FieldError::required(
                    &path,
                    "must also be defined outside of the junctor",
                ));
            }
            self.restriction(property, &path, field(name), false, depth + 1);
        }
        if let Some(items) = schema.get("items") {
            let structure = structure.and_then(|structure| structure.get("items")?.as_object());
            self.restriction(items, &format!("{path}.items"), structure, false, depth + 1);
        }
        self.branches(schema, path, structure, depth);
    }
}
