//! The metadata of a stored object, read without building the rest of it.

use serde::Deserialize;

/// What housekeeping needs to know of an object.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Light {
    pub(crate) uid: String,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) owner_references: Vec<Owner>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) block_owner_deletion: bool,
}

impl Light {
    /// An object that cannot be read has no owners and is not being deleted: housekeeping leaves it alone.
    pub(crate) fn read(document: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Object {
            metadata: Light,
        }
        serde_json::from_slice::<Object>(document)
            .unwrap_or_default()
            .metadata
    }

    pub(crate) fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub(crate) fn has_finalizer(&self, wanted: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == wanted)
    }
}
