//! Garbage collection: what the graph finds, done.

use jiff::Timestamp;
use serde_json::Value;
use stoke_store::{Key, Write};

use super::graph::{Graph, Node};
use super::settled;
use crate::object::{self, FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use crate::registry::Registry;
use crate::request::{DeleteOptions, Preconditions, Propagation};
use crate::resource::Resource;
use crate::server::Core;
use crate::status::Status;
use crate::verbs::delete::delete_in;
use crate::verbs::update::save;

/// An object some of whose owners are gone: without any owner left it goes too, else it forgets the dead ones.
pub(super) async fn check_owners(core: &Core, graph: &Graph, uid: &str) -> Result<(), Status> {
    let Some(node) = graph.node(uid) else {
        return Ok(());
    };
    let registry = core.registry.get();
    let Some(resource) = registry.find_key(&node.key.resource).cloned() else {
        return Ok(());
    };
    let dead: Vec<String> = node
        .owners
        .iter()
        .filter(|owner| !graph.is_alive(owner, &node.key))
        // An owner of a kind that is not served here cannot be known to be gone.
        .filter(|owner| {
            registry
                .find_kind(&owner.api_version, &owner.kind)
                .is_some()
        })
        .map(|owner| owner.uid.clone())
        .collect();
    if dead.is_empty() {
        return Ok(());
    }
    let options = deletion(uid, node, Propagation::Background);
    let key = node.key.clone();
    let uid = uid.to_owned();
    core.store
        .write(move |write| {
            let Some(mut object) = current(write, &key, &uid)? else {
                return Ok(());
            };
            let left = drop_owners(&mut object, &dead);
            if left == 0 && !object::is_deleting(&object) {
                delete_in(write, &resource, &key, &options, Timestamp::now())?;
            } else if left > 0 {
                store(write, &resource, &key, object)?;
            }
            Ok(())
        })
        .await
}

/// An owner that goes last: its dependents that block it are deleted, and when there are none it may go.
pub(super) async fn foreground(core: &Core, graph: &Graph, uid: &str) -> Result<(), Status> {
    let Some(owner) = graph.node(uid).filter(|node| node.is_foreground()) else {
        return Ok(());
    };
    let registry = core.registry.get();
    let mut blocked = false;
    for (dependent, node) in graph.dependents(uid).filter(|(_, node)| node.blocks(uid)) {
        blocked = true;
        if !node.is_deleting() {
            // One that may not be deleted blocks its owner, but not the others.
            settled(delete_dependent(core, &registry, graph, uid, dependent, node).await)?;
        }
    }
    if blocked {
        return Ok(());
    }
    remove_finalizer(core, &registry, &owner.key, uid, FOREGROUND_FINALIZER).await
}

async fn delete_dependent(
    core: &Core,
    registry: &Registry,
    graph: &Graph,
    owner: &str,
    uid: &str,
    node: &Node,
) -> Result<(), Status> {
    let Some(resource) = registry.find_key(&node.key.resource).cloned() else {
        return Ok(());
    };
    let kept_by_another = node.owners.iter().any(|other| {
        other.uid != owner && graph.is_alive(other, &node.key) && !graph.is_waiting(&other.uid)
    });
    let propagation = if graph.has_dependents(uid) {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    let options = deletion(uid, node, propagation);
    let key = node.key.clone();
    let owner = owner.to_owned();
    let uid = uid.to_owned();
    core.store
        .write(move |write| {
            let Some(mut object) = current(write, &key, &uid)? else {
                return Ok(());
            };
            if kept_by_another {
                drop_owners(&mut object, &[owner]);
                store(write, &resource, &key, object)?;
            } else {
                delete_in(write, &resource, &key, &options, Timestamp::now())?;
            }
            Ok(())
        })
        .await
}

/// An owner that leaves its dependents behind: they forget it, then it may go.
pub(super) async fn orphan(core: &Core, graph: &Graph, uid: &str) -> Result<(), Status> {
    let Some(owner) = graph.node(uid).filter(|node| node.is_orphaning()) else {
        return Ok(());
    };
    let registry = core.registry.get();
    for (dependent, node) in graph.dependents(uid) {
        let Some(resource) = registry.find_key(&node.key.resource).cloned() else {
            continue;
        };
        let key = node.key.clone();
        let dependent = dependent.to_owned();
        let owner = uid.to_owned();
        core.store
            .write(move |write| {
                if let Some(mut object) = current(write, &key, &dependent)? {
                    drop_owners(&mut object, &[owner]);
                    store(write, &resource, &key, object)?;
                }
                Ok::<_, Status>(())
            })
            .await?;
    }
    remove_finalizer(core, &registry, &owner.key, uid, ORPHAN_FINALIZER).await
}

async fn remove_finalizer(
    core: &Core,
    registry: &Registry,
    key: &Key,
    uid: &str,
    finalizer: &'static str,
) -> Result<(), Status> {
    let Some(resource) = registry.find_key(&key.resource).cloned() else {
        return Ok(());
    };
    let key = key.clone();
    let uid = uid.to_owned();
    core.store
        .write(move |write| {
            if let Some(mut object) = current(write, &key, &uid)?
                && object::has_finalizer(&object, finalizer)
            {
                object::remove_finalizer(&mut object, finalizer);
                store(write, &resource, &key, object)?;
            }
            Ok(())
        })
        .await
}

/// How a dependent is deleted: as was asked for it, if anyone did.
fn deletion(uid: &str, node: &Node, otherwise: Propagation) -> DeleteOptions {
    let propagation = if node.is_orphaning() {
        Propagation::Orphan
    } else if node.is_foreground() {
        Propagation::Foreground
    } else {
        otherwise
    };
    DeleteOptions {
        propagation: Some(propagation),
        preconditions: Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        },
        ..DeleteOptions::default()
    }
}

/// The object, if it is still the one that was meant.
fn current(write: &Write<'_>, key: &Key, uid: &str) -> Result<Option<Value>, Status> {
    let Some(stored) = write.get(key)? else {
        return Ok(None);
    };
    let object = stored.value(key)?;
    Ok((object::uid(&object) == uid).then_some(object))
}

/// Removes references to `owners`; says how many are left.
fn drop_owners(object: &mut Value, owners: &[String]) -> usize {
    let metadata = object::metadata_mut(object);
    let Some(references) = metadata
        .get_mut("ownerReferences")
        .and_then(Value::as_array_mut)
    else {
        return 0;
    };
    references.retain(|reference| {
        !owners
            .iter()
            .any(|uid| reference["uid"].as_str() == Some(uid))
    });
    let left = references.len();
    if left == 0 {
        metadata.remove("ownerReferences");
    }
    left
}

fn store(
    write: &mut Write<'_>,
    resource: &Resource,
    key: &Key,
    mut object: Value,
) -> Result<(), Status> {
    resource.from_stored(&mut object);
    save(write, resource, key, object)?;
    Ok(())
}
