//! Which fields a field selector may name.

use super::Resource;
use crate::selector::{FieldSelector, SelectorError};

/// A field that objects can be selected by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectableField {
    /// As a selector names it.
    pub name: String,
    /// Where the value is, in dots; the first place that has one counts.
    pub paths: Vec<String>,
    /// What an absent value counts as.
    pub absent: &'static str,
}

impl SelectableField {
    pub(super) fn plain(name: &str) -> SelectableField {
        SelectableField {
            name: name.to_owned(),
            paths: vec![name.to_owned()],
            absent: "",
        }
    }

    fn flag(name: &str) -> SelectableField {
        SelectableField {
            absent: "false",
            ..SelectableField::plain(name)
        }
    }

    fn alias(name: &str, paths: &[&str]) -> SelectableField {
        SelectableField {
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            ..SelectableField::plain(name)
        }
    }
}

pub(super) fn of_builtin(group: &str, kind: &str) -> Vec<SelectableField> {
    let plain = SelectableField::plain;
    let reference = |name: &'static str| {
        [
            "kind",
            "namespace",
            "name",
            "uid",
            "apiVersion",
            "resourceVersion",
            "fieldPath",
        ]
        .map(move |part| plain(&format!("{name}.{part}")))
    };
    match (group, kind) {
        ("", "Pod") => vec![
            plain("spec.nodeName"),
            plain("spec.restartPolicy"),
            plain("spec.schedulerName"),
            plain("spec.serviceAccountName"),
            SelectableField::flag("spec.hostNetwork"),
            plain("status.phase"),
            plain("status.podIP"),
            plain("status.nominatedNodeName"),
        ],
        ("", "Node") => vec![SelectableField::flag("spec.unschedulable")],
        ("", "Namespace") => vec![plain("status.phase")],
        ("", "Secret") => vec![plain("type")],
        ("", "Service") => vec![plain("spec.clusterIP"), plain("spec.type")],
        ("", "Event") => {
            let mut fields = reference("involvedObject").to_vec();
            fields.extend([
                plain("reason"),
                plain("reportingComponent"),
                SelectableField::alias("source", &["source.component", "reportingComponent"]),
                plain("type"),
            ]);
            fields
        }
        (_, "Event") => {
            let mut fields = reference("regarding").to_vec();
            fields.extend([plain("reason"), plain("reportingController"), plain("type")]);
            fields
        }
        _ => Vec::new(),
    }
}

pub(super) fn parse(resource: &Resource, selector: &str) -> Result<FieldSelector, SelectorError> {
    let mut selector = FieldSelector::parse(selector)?;
    for term in selector.terms_mut() {
        let name = term.field();
        if matches!(name, "metadata.name" | "metadata.namespace") {
            continue;
        }
        match resource.selectable.iter().find(|field| field.name == name) {
            Some(field) => term.resolve(field.paths.clone(), field.absent),
            // Kinds that have no fields of their own say which all kinds have.
            None if resource.selectable.is_empty() && resource.is_builtin() => {
                return Err(SelectorError::UnknownField(name.to_owned()));
            }
            None => return Err(SelectorError::UnsupportedField(name.to_owned())),
        }
    }
    Ok(selector)
}
