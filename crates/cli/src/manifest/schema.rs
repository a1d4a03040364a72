//! Unknown fields of our own kinds, found before anything is sent: a person gets all of them at once, with our spelling.

use serde_json::Value;

use super::mistake::{Mistake, unknown_field};
use super::tree::Node;
use super::{Document, suggest};

/// Fields that every object has and no CRD describes.
const EVERYWHERE: [&str; 3] = ["apiVersion", "kind", "metadata"];

pub fn unknown_fields(document: &Document) -> Vec<Mistake> {
    let crds = stoke_api::crds();
    let Some(crd) = crds
        .iter()
        .find(|crd| crd.spec.names.kind.eq_ignore_ascii_case(&document.kind))
    else {
        return Vec::new();
    };
    let api_version = format!("{}/{}", crd.spec.group, stoke_api::names::VERSION);
    if document.kind != crd.spec.names.kind || document.api_version != api_version {
        let is_ours = document.api_version.starts_with(&crd.spec.group);
        // Other projects have kinds of such names too; theirs is the server's business.
        return if is_ours {
            vec![other_version(document, &api_version, &crd.spec.names.kind)]
        } else {
            Vec::new()
        };
    }
    let schema = crd
        .spec
        .versions
        .first()
        .and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref())
        .and_then(|schema| serde_json::to_value(schema).ok())
        .unwrap_or_default();
    let mut found = Vec::new();
    walk(document, &document.root, &schema, "", &mut found);
    found
}

fn other_version(document: &Document, api_version: &str, kind: &str) -> Mistake {
    Mistake {
        position: document.root.locate("apiVersion").position(),
        message: format!("no kind {:?} in {:?}", document.kind, document.api_version),
        hint: Some(format!("write apiVersion: {api_version}, kind: {kind}")),
    }
}

fn walk(document: &Document, node: &Node, schema: &Value, path: &str, found: &mut Vec<Mistake>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true) {
        return;
    }
    for (index, item) in node.items().iter().enumerate() {
        walk(
            document,
            item,
            &schema["items"],
            &format!("{path}[{index}]"),
            found,
        );
    }
    let Some(properties) = schema["properties"].as_object() else {
        for entry in node.entries() {
            let inner = format!("{path}[{}]", entry.key);
            walk(
                document,
                &entry.node,
                &schema["additionalProperties"],
                &inner,
                found,
            );
        }
        return;
    };
    let is_root = path.is_empty();
    for entry in node.entries() {
        if is_root && EVERYWHERE.contains(&entry.key.as_str()) {
            continue;
        }
        let inner = if is_root {
            entry.key.clone()
        } else {
            format!("{path}.{}", entry.key)
        };
        if let Some(schema) = properties.get(&entry.key) {
            walk(document, &entry.node, schema, &inner, found);
            continue;
        }
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        found.push(misplaced(document, &inner, is_root, &known));
    }
}

/// A field of `spec` written beside it is told where it belongs.
fn misplaced(document: &Document, path: &str, is_root: bool, known: &[&str]) -> Mistake {
    let mut mistake = unknown_field(document, path, known);
    if is_root && mistake.hint.is_none() && suggest::nearest(path, known).is_none() {
        mistake.hint = Some("fields of the job stand under spec:".to_owned());
    }
    mistake
}
