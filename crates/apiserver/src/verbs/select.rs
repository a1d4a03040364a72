//! Which objects of a collection a list or watch is about.

use serde_json::Value;

use crate::request::ListOptions;
use crate::resource::Resource;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::Status;

#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// Empty means all.
    pub(crate) namespace: Option<String>,
    labels: LabelSelector,
    fields: FieldSelector,
    /// The one name that can match, so that others need not be parsed.
    name: Option<String>,
}

impl Selection {
    pub(crate) fn new(
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Self, Status> {
        let fields = resource
            .field_selector(&options.fields)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            labels: options.labels.clone(),
            name: fields.exact("metadata.name").map(str::to_owned),
            fields,
        })
    }

    /// Whether every object of the namespace is wanted, so that none needs to be parsed.
    pub(crate) fn takes_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// What can be told from an object's place alone.
    pub(crate) fn may_match(&self, namespace: &str, name: &str) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|wanted| wanted == namespace)
            && self.name.as_deref().is_none_or(|wanted| wanted == name)
    }

    /// `object` is in the shape of the served version.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}
