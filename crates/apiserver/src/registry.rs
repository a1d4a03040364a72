//! What is served now: the built-in resources and those of every established CustomResourceDefinition.
//!
//! A registry is a value; changing it means putting a new one in its place, so that a request sees one registry
//! from its beginning to its end.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;
use stoke_store::{Revision, Scan, Store};

use crate::resource::Resource;
use crate::status::Status;

/// Where definitions are stored.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

pub struct Registry {
    resources: Vec<Resource>,
    by_path: HashMap<(String, String, String), usize>,
    /// As of which revision of the store.
    revision: Revision,
}

impl Registry {
    fn new(custom: Vec<Resource>, revision: Revision) -> Self {
        let mut resources = Resource::builtins().to_vec();
        resources.extend(custom);
        let by_path = resources
            .iter()
            .enumerate()
            .map(|(place, resource)| {
                let path = (
                    resource.group.clone(),
                    resource.version.clone(),
                    resource.plural.clone(),
                );
                (path, place)
            })
            .collect();
        Self {
            resources,
            by_path,
            revision,
        }
    }

    /// Everything that is served, in discovery order.
    pub fn resources(&self) -> &[Resource] {
        &self.resources
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Resource> {
        let path = (group.to_owned(), version.to_owned(), plural.to_owned());
        self.by_path.get(&path).map(|place| &self.resources[*place])
    }

    /// By `apiVersion` and `kind`, as an owner reference names its owner.
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        self.resources
            .iter()
            .find(|resource| resource.kind == kind && resource.api_version() == api_version)
    }

    /// By the key of the store: any version will do to reach the objects.
    pub fn find_key(&self, key: &str) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.key() == key)
    }

    /// A built-in resource that is always there.
    pub fn builtin(key: &str) -> &'static Resource {
        Resource::builtins()
            .iter()
            .find(|resource| resource.key() == key)
            .expect("asked only for kinds this crate itself serves")
    }
}

/// The registry in use.
pub(crate) struct Current {
    registry: RwLock<Arc<Registry>>,
}

impl Current {
    pub(crate) fn builtins_only() -> Self {
        Self {
            registry: RwLock::new(Arc::new(Registry::new(Vec::new(), Revision(0)))),
        }
    }

    pub(crate) fn get(&self) -> Arc<Registry> {
        Arc::clone(&self.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the definitions anew. Called after every change of one, before the change is answered, so that a
    /// client that created a definition can use it at once.
    pub(crate) async fn reload(&self, store: &Store) -> Result<(), Status> {
        let registry = store
            .read(|read| {
                let mut custom = Vec::new();
                read.scan(&Scan::all(DEFINITIONS), |item| {
                    custom.extend(served(item.name, item.document));
                    ControlFlow::Continue(())
                })?;
                Ok::<_, Status>(Registry::new(custom, read.revision()?))
            })
            .await?;
        let mut current = self
            .registry
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // Two reloads may cross; the one that saw more wins.
        if registry.revision >= current.revision {
            *current = Arc::new(registry);
        }
        Ok(())
    }
}

fn served(name: &str, document: &[u8]) -> Vec<Resource> {
    let Ok(definition) = serde_json::from_slice::<Value>(document) else {
        tracing::error!(name, "a stored CustomResourceDefinition is not JSON");
        return Vec::new();
    };
    if !crate::admission::definition::is_established(&definition) {
        return Vec::new();
    }
    Resource::from_crd(&definition).unwrap_or_else(|errors| {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        tracing::error!(
            name,
            errors = errors.join("; "),
            "a stored CustomResourceDefinition is not served"
        );
        Vec::new()
    })
}
