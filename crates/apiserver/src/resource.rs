//! The registry of what is served: one [`Resource`] per group, version and plural name.
//!
//! A resource knows everything the server has to know about a kind without knowing the kind: its
//! names, its subresources, how to default, prune and validate its objects, which fields a field
//! selector may name, what `kubectl get` prints, and how the served shape maps to the stored one.
//!
//! Invariant: nothing here reads a clock, the store or the network. Schemas of built-in kinds are
//! built on first use, because most kinds are never written on one machine.

mod builtin;
mod cells;
mod columns;
mod crd;
mod defaults;
mod event;
mod fields;
mod metadata;
mod pod_status;
mod rules;

use std::sync::{Arc, LazyLock, OnceLock};

use jiff::Timestamp;
use schemars::SchemaGenerator;
use serde_json::Value;

use crate::jsonpath::JsonPath;
use crate::schema::{FieldError, FieldReason, Schema};
use crate::selector::{FieldSelector, SelectorError};

pub(crate) use cells::human_duration;
pub use fields::SelectableField;

/// One served resource. Cheap to clone: what is large is shared.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub subresources: Subresources,
    pub columns: Vec<Column>,
    /// Fields that a field selector may name, beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<SelectableField>,
    /// The `apiVersion` in which objects are stored; it differs from [`Resource::api_version`]
    /// for some versions of CRDs and for the second face of events.
    pub storage_api_version: String,
    origin: Origin,
}

/// Where the definition of a resource comes from.
#[derive(Clone, Debug)]
enum Origin {
    Builtin(&'static builtin::Builtin, Arc<OnceLock<Schema>>),
    Crd {
        schema: Schema,
        /// Of the version that is stored, where this is another: what that does not know is not kept.
        storage: Option<Schema>,
        /// The `openAPIV3Schema` of the version, kept for the OpenAPI document.
        document: Arc<Value>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subresources {
    pub status: bool,
    pub log: bool,
    pub binding: bool,
    pub eviction: bool,
    pub resize: bool,
    pub finalize: bool,
}

/// A printer column.
#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`, as in OpenAPI.
    pub r#type: String,
    pub format: String,
    pub description: String,
    /// Columns above 0 are shown only with `-o wide`.
    pub priority: i32,
    pub cell: Cell,
}

/// How the value of a column is found.
#[derive(Clone, Debug)]
pub enum Cell {
    Path(JsonPath),
    Compute(fn(&Value, Timestamp) -> Value),
}

impl Resource {
    /// Every built-in resource, in discovery order.
    pub fn builtins() -> &'static [Resource] {
        static BUILTINS: LazyLock<Vec<Resource>> = LazyLock::new(builtin::resources);
        &BUILTINS
    }

    /// One resource per served version of a CustomResourceDefinition, or everything that is wrong
    /// with the definition (the causes of a 422).
    pub fn from_crd(definition: &Value) -> Result<Vec<Resource>, Vec<FieldError>> {
        crd::resources(definition)
    }

    /// What the store is keyed by: `pods`, `trainjobs.stokehold.dev`. The same for every version
    /// of a resource, and for both faces of events.
    pub fn key(&self) -> String {
        if self.is_event() {
            self.plural.clone()
        } else {
            self.group_resource()
        }
    }

    /// `v1`, `stokehold.dev/v1alpha1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `pods`, `trainjobs.stokehold.dev`: how messages name the resource.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// What can be done with the resource, as discovery lists it.
    pub fn verbs(&self) -> &'static [&'static str] {
        const ALL: &[&str] = &[
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ];
        const ONE_BY_ONE: &[&str] = &[
            "create", "delete", "get", "list", "patch", "update", "watch",
        ];
        // In the order in which Kubernetes lists them.
        const CUSTOM: &[&str] = &[
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "create",
            "update",
            "watch",
        ];
        // Deleting all namespaces in one request is too easily a mistake.
        if self.key() == "namespaces" {
            ONE_BY_ONE
        } else if self.is_builtin() {
            ALL
        } else {
            CUSTOM
        }
    }

    /// Whether the kind is compiled in. Only built-in kinds have strategic merge, as in Kubernetes.
    pub fn is_builtin(&self) -> bool {
        matches!(self.origin, Origin::Builtin(..))
    }

    /// The schema of the served version; of a built-in kind it is built on first use.
    pub fn schema(&self) -> &Schema {
        match &self.origin {
            Origin::Builtin(builtin, schema) => schema.get_or_init(builtin.schema),
            Origin::Crd { schema, .. } => schema,
        }
    }

    /// Under which name the OpenAPI documents have the kind; custom groups are written backwards,
    /// as in Kubernetes.
    pub(crate) fn definition_name(&self) -> String {
        match &self.origin {
            Origin::Builtin(builtin, _) => (builtin.definition_name)().into_owned(),
            Origin::Crd { .. } => {
                let group: Vec<&str> = self.group.rsplit('.').collect();
                format!("{}.{}.{}", group.join("."), self.version, self.kind)
            }
        }
    }

    /// Adds the schema of a built-in kind, and those it is made of, to `generator`.
    pub(crate) fn define(&self, generator: &mut SchemaGenerator) {
        if let Origin::Builtin(builtin, _) = &self.origin {
            (builtin.define)(generator);
        }
    }

    /// The `openAPIV3Schema` of a custom kind.
    pub(crate) fn document(&self) -> Option<&Value> {
        match &self.origin {
            Origin::Builtin(..) => None,
            Origin::Crd { document, .. } => Some(document),
        }
    }

    /// Removes fields the schema does not know and returns their paths (`spec.foo`), for
    /// `fieldValidation`.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        self.schema().prune(object)
    }

    /// Fills in what the schema of a CRD or Kubernetes' own defaulting of a built-in kind would.
    /// Doing it twice changes nothing more.
    pub fn default(&self, object: &mut Value) {
        self.schema().default(object);
        if self.is_builtin() {
            defaults::fill(&self.kind, object);
        }
    }

    /// Everything wrong with `new`, which is to be created, or to replace `old` (in the served
    /// shape): metadata, schema, and the typed rules of the kind. In a built-in kind an error
    /// of the reason `TypeInvalid` is a body that cannot be decoded (400).
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = metadata::check(self, new, old);
        let of_schema = self.schema().validate(new);
        let fits = of_schema.is_empty();
        errors.extend(of_schema);
        // Typed rules read fields by their types; they would only repeat what is said already. Those of our own kinds stand for
        // CEL rules, which Kubernetes asks only about an object that its schema has nothing against.
        let is_own = self.group == crd::OWN_GROUP;
        let is_blocking = |error: &FieldError| match error.reason {
            FieldReason::TypeInvalid => true,
            FieldReason::NotSupported
            | FieldReason::Required
            | FieldReason::TooLong
            | FieldReason::TooMany => is_own,
            _ => false,
        };
        if !errors.iter().any(is_blocking) {
            // Rules of ours read an object by its type, which one that breaks its schema need not have.
            if fits || !is_own || rules::is_readable(&self.kind, new) {
                errors.extend(rules::check(self, new, old));
            }
        } else if is_own {
            errors.push(FieldError::invalid(
                "",
                &Value::Null,
                "some validation rules were not checked because the object was invalid; correct the existing errors \
                 to complete validation",
            ));
        }
        let mut seen = std::collections::HashSet::new();
        errors.retain(|error| seen.insert(error.clone()));
        errors
    }

    /// Parses a field selector and refuses fields this resource cannot be selected by (400).
    pub fn field_selector(&self, selector: &str) -> Result<FieldSelector, SelectorError> {
        fields::parse(self, selector)
    }

    /// Turns an object of this version into the stored shape.
    pub fn to_stored(&self, object: &mut Value) {
        if self.is_event() && !self.group.is_empty() {
            event::to_core(object);
        }
        set_api_version(object, &self.storage_api_version, &self.kind);
        if let Origin::Crd {
            storage: Some(storage),
            ..
        } = &self.origin
        {
            storage.prune(object);
            storage.default(object);
        }
    }

    /// Turns a stored object into the shape of this version.
    pub fn from_stored(&self, object: &mut Value) {
        if self.is_event() && !self.group.is_empty() {
            event::from_core(object);
        }
        set_api_version(object, &self.api_version(), &self.kind);
    }

    fn is_event(&self) -> bool {
        self.is_builtin() && self.kind == "Event"
    }
}

fn set_api_version(object: &mut Value, api_version: &str, kind: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("apiVersion".into(), api_version.into());
        fields.insert("kind".into(), kind.into());
    }
}

#[cfg(test)]
mod tests;
