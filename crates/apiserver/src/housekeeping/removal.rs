//! The end of namespaces and definitions: first what is in them, then they themselves.

use std::ops::ControlFlow;

use jiff::Timestamp;
use serde_json::Value;
use stoke_store::{Key, Scan, Write};

use crate::admission::definition::CLEANUP_FINALIZER;
use crate::admission::kinds::{NAMESPACE_FINALIZER, add_default_service_account};
use crate::object::{self, Light};
use crate::registry::{DEFINITIONS, Registry};
use crate::request::{DeleteOptions, Preconditions, Propagation};
use crate::server::Core;
use crate::status::Status;
use crate::verbs::delete::delete_in;
use crate::verbs::update::save;

/// Objects deleted per write.
const CHUNK: usize = 100;

/// Deletes what is in a namespace that is being deleted; once it is empty, lets it go.
pub(super) async fn end_namespace(core: &Core, name: &str) -> Result<(), Status> {
    let namespace = name.to_owned();
    let inside = core
        .store
        .read(move |read| {
            let mut inside = Vec::new();
            for resource in read.resources()? {
                let scan = Scan::namespace(&resource, &namespace);
                read.scan(&scan, |item| {
                    inside.push(Found::new(
                        &resource,
                        item.namespace,
                        item.name,
                        item.document,
                    ));
                    ControlFlow::Continue(())
                })?;
            }
            Ok::<_, Status>(inside)
        })
        .await?;
    delete_all(core, inside).await?;
    let name = name.to_owned();
    core.store
        .write(move |write| {
            let key = Key::new("namespaces", "", &name);
            let Some(stored) = write.get(&key)? else {
                return Ok(());
            };
            let mut namespace = stored.value(&key)?;
            if !object::is_deleting(&namespace) || !is_empty(write, &name)? {
                return Ok(());
            }
            if let Some(finalizers) = namespace["spec"]["finalizers"].as_array_mut() {
                finalizers.retain(|finalizer| finalizer != NAMESPACE_FINALIZER);
            }
            save(write, Registry::builtin("namespaces"), &key, namespace)?;
            Ok(())
        })
        .await
}

/// Gives a namespace that stays its default service account back.
pub(super) async fn restore_account(core: &Core, namespace: &str) -> Result<(), Status> {
    let namespace = namespace.to_owned();
    core.store
        .write(move |write| {
            let found = write.get(&Key::new("namespaces", "", &namespace))?;
            let stays = found.is_some_and(|found| !Light::read(&found.document).is_deleting());
            if stays {
                add_default_service_account(write, &namespace, Timestamp::now())?;
            }
            Ok(())
        })
        .await
}

fn is_empty(write: &Write<'_>, namespace: &str) -> Result<bool, Status> {
    let mut empty = true;
    for resource in write.resources()? {
        write.scan(&Scan::namespace(&resource, namespace), |_| {
            empty = false;
            ControlFlow::Break(())
        })?;
    }
    Ok(empty)
}

/// Deletes the objects of a definition that is being deleted; once there are none, lets it go.
pub(super) async fn end_definition(core: &Core, name: &str) -> Result<(), Status> {
    let resource = name.to_owned();
    let objects = core
        .store
        .read(move |read| {
            let mut objects = Vec::new();
            read.scan(&Scan::all(&resource), |item| {
                objects.push(Found::new(
                    &resource,
                    item.namespace,
                    item.name,
                    item.document,
                ));
                ControlFlow::Continue(())
            })?;
            Ok::<_, Status>(objects)
        })
        .await?;
    delete_all(core, objects).await?;
    let name = name.to_owned();
    core.store
        .write(move |write| {
            let key = Key::new(DEFINITIONS, "", &name);
            let Some(stored) = write.get(&key)? else {
                return Ok(());
            };
            let mut definition: Value = stored.value(&key)?;
            let mut left = false;
            write.scan(&Scan::all(&name), |_| {
                left = true;
                ControlFlow::Break(())
            })?;
            if left || !object::has_finalizer(&definition, CLEANUP_FINALIZER) {
                return Ok::<_, Status>(());
            }
            object::remove_finalizer(&mut definition, CLEANUP_FINALIZER);
            save(write, Registry::builtin(DEFINITIONS), &key, definition)?;
            Ok(())
        })
        .await?;
    core.registry.reload(&core.store).await
}

struct Found {
    key: Key,
    uid: String,
    deleting: bool,
}

impl Found {
    fn new(resource: &str, namespace: &str, name: &str, document: &[u8]) -> Self {
        let light = Light::read(document);
        Self {
            key: Key::new(resource, namespace, name),
            deleting: light.is_deleting(),
            uid: light.uid,
        }
    }
}

async fn delete_all(core: &Core, objects: Vec<Found>) -> Result<(), Status> {
    let registry = core.registry.get();
    let mut todo: Vec<Found> = objects
        .into_iter()
        .filter(|found| !found.deleting)
        .collect();
    while !todo.is_empty() {
        let rest = todo.split_off(todo.len().min(CHUNK));
        let registry = registry.clone();
        core.store
            .write(move |write| {
                for found in &todo {
                    delete_one(write, &registry, found)?;
                }
                Ok::<_, Status>(())
            })
            .await?;
        todo = rest;
    }
    Ok(())
}

fn delete_one(write: &mut Write<'_>, registry: &Registry, found: &Found) -> Result<(), Status> {
    let Some(resource) = registry.find_key(&found.key.resource) else {
        // Nobody serves it any more, so nobody can miss it.
        if write.get(&found.key)?.is_some() {
            write.delete(&found.key)?;
        }
        return Ok(());
    };
    let options = DeleteOptions {
        propagation: Some(Propagation::Background),
        preconditions: Preconditions {
            uid: Some(found.uid.clone()),
            resource_version: None,
        },
        ..DeleteOptions::default()
    };
    match delete_in(write, resource, &found.key, &options, Timestamp::now()) {
        Err(status) if !matches!(status.code().as_u16(), 404 | 409) => Err(status),
        _ => Ok(()),
    }
}
