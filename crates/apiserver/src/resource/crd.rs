//! From a CustomResourceDefinition to resources.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::cells::{flag, list, text};
use super::{Cell, Column, Origin, Resource, SelectableField, Subresources, columns};
use crate::jsonpath::JsonPath;
use crate::names;
use crate::schema::{CelRules, FieldError, Schema};

/// Our own kinds: their CEL rules are checked by typed code.
pub(super) const OWN_GROUP: &str = stoke_api::names::GROUP;
const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
const SELECTABLE_MAX: usize = 8;

/// The served versions of a definition as resources, or everything that is wrong with it.
pub(super) fn resources(definition: &Value) -> Result<Vec<Resource>, Vec<FieldError>> {
    let mut errors = check_head(definition);
    let mut served = Vec::new();
    let mut storage = None;
    for (index, version) in list(definition, "/spec/versions").iter().enumerate() {
        match resource(definition, version, &format!("spec.versions[{index}]")) {
            Ok(resource) => {
                if flag(version, "/storage") {
                    storage = Some(resource.schema().clone());
                }
                served.extend(flag(version, "/served").then_some(resource));
            }
            Err(found) => errors.extend(found),
        }
    }
    let mut seen = HashSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    if !errors.is_empty() {
        return Err(errors);
    }
    for resource in &mut served {
        let is_stored = resource.api_version() == resource.storage_api_version;
        if let Origin::Crd { storage: kept, .. } = &mut resource.origin {
            *kept = storage.clone().filter(|_| !is_stored);
        }
    }
    Ok(served)
}

/// Where a part of a version is looked for: what all versions have in common is said once for all.
fn place(definition: &Value, field: &str, once: &str, path: &str) -> String {
    let mut versions = list(definition, "/spec/versions").iter();
    let first = versions.next().and_then(|version| version.get(field));
    if first.is_some() && versions.all(|version| version.get(field) == first) {
        format!("spec.{once}")
    } else {
        format!("{path}.{field}")
    }
}

/// What is said once for all versions, in the order in which Kubernetes says it.
fn check_head(definition: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (name, group, plural) = (
        text(definition, "/metadata/name"),
        text(definition, "/spec/group"),
        text(definition, "/spec/names/plural"),
    );
    if !name.is_empty() && name != format!("{plural}.{group}") {
        errors.push(FieldError::invalid_text(
            "metadata.name",
            name,
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else {
        invalid(
            &mut errors,
            "spec.group",
            group,
            names::dns_subdomain(group),
        );
        if !group.contains('.') {
            let why = "should be a domain with at least one dot";
            errors.push(FieldError::invalid_text("spec.group", group, why));
        }
    }
    match text(definition, "/spec/scope") {
        "Namespaced" | "Cluster" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        other => {
            let supported = ["\"Cluster\"".to_owned(), "\"Namespaced\"".to_owned()];
            errors.push(FieldError::not_supported(
                "spec.scope",
                &Value::from(other),
                &supported,
            ));
        }
    }
    check_versions(definition, &mut errors);
    check_names(definition, &mut errors);
    let mut versions = list(definition, "/spec/versions").iter();
    if !versions.any(|version| flag(version, "/storage")) {
        errors.push(FieldError::invalid(
            "status.storedVersions",
            &Value::Null,
            "must have at least one stored version",
        ));
    }
    if text(definition, "/spec/conversion/strategy") == "Webhook" {
        errors.push(FieldError::forbidden(
            "spec.conversion.strategy",
            "this server does not call conversion webhooks",
        ));
    }
    if flag(definition, "/spec/preserveUnknownFields") {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            &Value::Bool(true),
            "must be false",
        ));
    }
    let is_protected = [".k8s.io", ".kubernetes.io"]
        .iter()
        .any(|suffix| group.ends_with(suffix));
    if is_protected
        && definition["metadata"]["annotations"]
            .get(APPROVAL)
            .is_none()
    {
        errors.push(FieldError::required(
            &format!("metadata.annotations[{APPROVAL}]"),
            &format!(
                "protected groups must have approval annotation \"{APPROVAL}\", see \
                 https://github.com/kubernetes/enhancements/pull/1111"
            ),
        ));
    }
    errors
}

/// Groups of Kubernetes itself are for what its reviewers have seen.
const APPROVAL: &str = "api-approved.kubernetes.io";

fn check_names(definition: &Value, errors: &mut Vec<FieldError>) {
    let has_kind = !text(definition, "/spec/names/kind").is_empty();
    for field in ["plural", "singular", "kind", "listKind"] {
        let path = format!("spec.names.{field}");
        match text(definition, &format!("/spec/names/{field}")) {
            // These follow from the kind.
            "" if has_kind && matches!(field, "singular" | "listKind") => {}
            "" => errors.push(FieldError::required(&path, "")),
            name => {
                let is_kind = matches!(field, "kind" | "listKind");
                let label = if is_kind { &name.to_lowercase() } else { name };
                invalid(errors, &path, name, names::dns_1035_label(label));
            }
        }
    }
    let short = list(definition, "/spec/names/shortNames").iter();
    for (index, short) in short.filter_map(Value::as_str).enumerate() {
        let path = format!("spec.names.shortNames[{index}]");
        invalid(errors, &path, short, names::dns_1035_label(short));
    }
}

fn invalid(errors: &mut Vec<FieldError>, path: &str, value: &str, wrong: Vec<String>) {
    for why in wrong {
        errors.push(FieldError::invalid_text(path, value, &why));
    }
}

fn check_versions(definition: &Value, errors: &mut Vec<FieldError>) {
    let versions = list(definition, "/spec/versions");
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}].name");
        let name = text(version, "/name");
        for why in names::dns_1035_label(name) {
            errors.push(FieldError::invalid_text(&path, name, &why));
        }
        seen.insert(name);
    }
    let shown = || match versions {
        [] => definition
            .pointer("/spec/versions")
            .cloned()
            .unwrap_or_default(),
        _ => versions
            .iter()
            .map(|version| text(version, "/name"))
            .collect(),
    };
    if seen.len() < versions.len() {
        let why = "must contain unique version names";
        errors.push(FieldError::invalid("spec.versions", &shown(), why));
    }
    if versions
        .iter()
        .filter(|version| flag(version, "/storage"))
        .count()
        != 1
    {
        errors.push(FieldError::invalid(
            "spec.versions",
            &shown(),
            "must have exactly one version marked as storage version",
        ));
    }
}

fn resource(definition: &Value, version: &Value, path: &str) -> Result<Resource, Vec<FieldError>> {
    let mut errors = Vec::new();
    let group = text(definition, "/spec/group");
    let schema_path = place(definition, "schema", "validation", path);
    let schema = schema(group, version, (path, &schema_path), &mut errors);
    let subresources = subresources(version, path, &mut errors);
    let columns = {
        let field = "additionalPrinterColumns";
        printer_columns(version, &place(definition, field, field, path), &mut errors)
    };
    let selectable = selectable(version, path, &mut errors);
    let Some((schema, document)) = schema.filter(|_| errors.is_empty()) else {
        return Err(errors);
    };
    let owned = |pointer: &str| -> Vec<String> {
        list(definition, pointer)
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let named = |pointer: &str, otherwise: String| match text(definition, pointer) {
        "" => otherwise,
        name => name.to_owned(),
    };
    let kind = text(definition, "/spec/names/kind").to_owned();
    let storage = list(definition, "/spec/versions")
        .iter()
        .find(|version| flag(version, "/storage"));
    Ok(Resource {
        group: group.to_owned(),
        version: text(version, "/name").to_owned(),
        list_kind: named("/spec/names/listKind", format!("{kind}List")),
        plural: text(definition, "/spec/names/plural").to_owned(),
        singular: named("/spec/names/singular", kind.to_lowercase()),
        kind,
        short_names: owned("/spec/names/shortNames"),
        categories: owned("/spec/names/categories"),
        namespaced: text(definition, "/spec/scope") == "Namespaced",
        subresources,
        columns,
        selectable,
        storage_api_version: format!(
            "{group}/{}",
            storage.map_or("", |storage| text(storage, "/name"))
        ),
        origin: Origin::Crd {
            schema,
            storage: None,
            document: Arc::new(document.clone()),
        },
    })
}

fn schema<'a>(
    group: &str,
    version: &'a Value,
    (own_path, path): (&str, &str),
    errors: &mut Vec<FieldError>,
) -> Option<(Schema, &'a Value)> {
    let Some(document) = version.pointer("/schema/openAPIV3Schema") else {
        errors.push(FieldError::required(
            &format!("{own_path}.schema.openAPIV3Schema"),
            "",
        ));
        return None;
    };
    let rules = if group == OWN_GROUP {
        CelRules::CheckedElsewhere
    } else {
        CelRules::Refuse
    };
    match Schema::from_crd(document, rules) {
        Ok(schema) => Some((schema, document)),
        Err(error) => {
            errors.extend(error.0.into_iter().map(|error| error.under(path)));
            None
        }
    }
}

fn subresources(version: &Value, path: &str, errors: &mut Vec<FieldError>) -> Subresources {
    if version.pointer("/subresources/scale").is_some() {
        errors.push(FieldError::forbidden(
            &format!("{path}.subresources.scale"),
            "the scale subresource is not served here",
        ));
    }
    Subresources {
        status: version
            .pointer("/subresources/status")
            .is_some_and(Value::is_object),
        ..Subresources::default()
    }
}

fn printer_columns(version: &Value, path: &str, errors: &mut Vec<FieldError>) -> Vec<Column> {
    let declared = list(version, "/additionalPrinterColumns");
    if declared.is_empty() {
        return columns::of_custom();
    }
    let mut printed = vec![columns::name()];
    for (index, column) in declared.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (name, kind, json_path) = (
            text(column, "/name"),
            text(column, "/type"),
            text(column, "/jsonPath"),
        );
        for (field, value) in [("name", name), ("type", kind), ("jsonPath", json_path)] {
            if value.is_empty() {
                errors.push(FieldError::required(&format!("{path}.{field}"), ""));
            }
        }
        if !kind.is_empty() && !COLUMN_TYPES.contains(&kind) {
            errors.push(FieldError::invalid_text(
                &format!("{path}.type"),
                kind,
                &format!("must be one of {}", COLUMN_TYPES.join(",")),
            ));
        }
        match JsonPath::parse(json_path) {
            Ok(parsed) => printed.push(Column {
                name: name.to_owned(),
                r#type: kind.to_owned(),
                format: text(column, "/format").to_owned(),
                description: text(column, "/description").to_owned(),
                priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0) as i32,
                cell: Cell::Path(parsed),
            }),
            Err(error) => {
                errors.push(FieldError::invalid_text(
                    &format!("{path}.jsonPath"),
                    json_path,
                    &error.to_string(),
                ));
            }
        }
    }
    printed
}

fn selectable(version: &Value, path: &str, errors: &mut Vec<FieldError>) -> Vec<SelectableField> {
    let declared = list(version, "/selectableFields");
    if declared.len() > SELECTABLE_MAX {
        errors.push(FieldError::too_many(
            &format!("{path}.selectableFields"),
            declared.len(),
            SELECTABLE_MAX,
        ));
    }
    let mut fields = Vec::new();
    for (index, field) in declared.iter().enumerate() {
        let json_path = text(field, "/jsonPath");
        let parsed = JsonPath::parse(json_path).ok();
        match parsed.as_ref().and_then(JsonPath::as_fields) {
            Some(names) if !names.is_empty() && json_path.starts_with('.') => {
                fields.push(SelectableField::plain(&names.join(".")));
            }
            _ => errors.push(FieldError::invalid_text(
                &format!("{path}.selectableFields[{index}].jsonPath"),
                json_path,
                "must be a simple json path of field names",
            )),
        }
    }
    fields
}
