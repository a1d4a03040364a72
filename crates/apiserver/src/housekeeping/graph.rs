//! Who owns whom, kept in memory from what the log says. Pure.
//!
//! Invariant: the graph holds every object of the store as of some revision, so an owner that is not in it is gone for
//! good: uids are given once.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stoke_store::Key;

use crate::object::{FOREGROUND_FINALIZER, Light, ORPHAN_FINALIZER, Owner};
use crate::registry::DEFINITIONS;

/// Something to do. Each can be done again without harm, and decides anew, inside its write, whether it still applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Some owner of this object is gone.
    CheckOwners(String),
    /// This object waits for the objects it owns to go first.
    Foreground(String),
    /// This object leaves the objects it owns behind.
    Orphan(String),
    EndNamespace(String),
    /// The default service account of this namespace is gone; without it no pod can be made there.
    RestoreAccount(String),
    EndDefinition(String),
    /// Something that a quota of this namespace counts may have gone.
    CountObjects(String),
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) key: Key,
    pub(super) owners: Vec<Owner>,
    deleting: bool,
    foreground: bool,
    orphan: bool,
}

#[derive(Default)]
pub(super) struct Graph {
    nodes: HashMap<String, Node>,
    uids: HashMap<Key, String>,
    dependents: HashMap<String, BTreeSet<String>>,
    /// Definitions that wait for their objects to go, by the resource they define.
    ending: BTreeMap<String, String>,
}

impl Graph {
    /// Takes note of an object as it is now.
    pub(super) fn observe(&mut self, key: &Key, light: Light) -> Vec<Task> {
        let mut tasks = Vec::new();
        if key.resource == DEFINITIONS && light.is_deleting() {
            // A definition is named after the resource it defines.
            self.ending.insert(key.name.clone(), key.name.clone());
        }
        let uid = light.uid.clone();
        // The name may have passed to another object between two looks.
        if self.uids.get(key).is_some_and(|other| *other != uid) {
            tasks.extend(self.forget(key));
        }
        let node = Node {
            key: key.clone(),
            deleting: light.is_deleting(),
            foreground: light.is_deleting() && light.has_finalizer(FOREGROUND_FINALIZER),
            orphan: light.is_deleting() && light.has_finalizer(ORPHAN_FINALIZER),
            owners: light.owner_references,
        };
        if node.foreground {
            tasks.push(Task::Foreground(uid.clone()));
        }
        if node.orphan {
            tasks.push(Task::Orphan(uid.clone()));
        }
        let old_owners = self.nodes.get(&uid).map(|old| old.owners.clone());
        if old_owners.as_ref() != Some(&node.owners) {
            for owner in old_owners.iter().flatten() {
                self.unlink(&owner.uid, &uid);
                tasks.extend(self.waiting(&owner.uid));
            }
            for owner in &node.owners {
                self.dependents
                    .entry(owner.uid.clone())
                    .or_default()
                    .insert(uid.clone());
                tasks.extend(self.waiting(&owner.uid));
            }
            if node.owners.iter().any(|owner| !self.is_alive(owner, key)) {
                tasks.push(Task::CheckOwners(uid.clone()));
            }
        }
        self.uids.insert(key.clone(), uid.clone());
        self.nodes.insert(uid, node);
        tasks
    }

    /// Takes note that an object is gone.
    pub(super) fn forget(&mut self, key: &Key) -> Vec<Task> {
        if key.resource == DEFINITIONS {
            self.ending.remove(&key.name);
        }
        let Some(uid) = self.uids.remove(key) else {
            return Vec::new();
        };
        let Some(node) = self.nodes.remove(&uid) else {
            return Vec::new();
        };
        let mut tasks: Vec<Task> = self
            .dependents
            .get(&uid)
            .into_iter()
            .flatten()
            .map(|dependent| Task::CheckOwners(dependent.clone()))
            .collect();
        for owner in &node.owners {
            self.unlink(&owner.uid, &uid);
            tasks.extend(self.waiting(&owner.uid));
        }
        tasks
    }

    /// Every object with an owner that is gone.
    pub(super) fn all_orphans(&self) -> Vec<Task> {
        self.nodes
            .iter()
            .filter(|(_, node)| {
                node.owners
                    .iter()
                    .any(|owner| !self.is_alive(owner, &node.key))
            })
            .map(|(uid, _)| Task::CheckOwners(uid.clone()))
            .collect()
    }

    pub(super) fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub(super) fn dependents(&self, uid: &str) -> impl Iterator<Item = (&str, &Node)> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| Some((uid.as_str(), self.nodes.get(uid)?)))
    }

    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents(uid).next().is_some()
    }

    /// Whether `owner` exists where an owner of `dependent` may be: in its namespace, or in none.
    pub(super) fn is_alive(&self, owner: &Owner, dependent: &Key) -> bool {
        self.nodes.get(&owner.uid).is_some_and(|node| {
            node.key.namespace.is_empty() || node.key.namespace == dependent.namespace
        })
    }

    /// Whether an owner waits for its dependents, and so will not keep them.
    pub(super) fn is_waiting(&self, uid: &str) -> bool {
        self.nodes.get(uid).is_some_and(|node| node.foreground)
    }

    /// The definition of `resource`, if it waits for its objects to go.
    pub(super) fn ending_definition(&self, resource: &str) -> Option<String> {
        self.ending.get(resource).cloned()
    }

    fn waiting(&self, owner: &str) -> Option<Task> {
        self.is_waiting(owner)
            .then(|| Task::Foreground(owner.to_owned()))
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}

impl Node {
    pub(super) fn is_deleting(&self) -> bool {
        self.deleting
    }

    pub(super) fn is_foreground(&self) -> bool {
        self.foreground
    }

    pub(super) fn is_orphaning(&self) -> bool {
        self.orphan
    }

    /// Whether the deletion of `owner` in the foreground waits for this object.
    pub(super) fn blocks(&self, owner: &str) -> bool {
        self.owners
            .iter()
            .any(|reference| reference.uid == owner && reference.block_owner_deletion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("things", "ns", name)
    }

    fn owned(uid: &str, owners: &[&str]) -> Light {
        Light {
            uid: uid.to_owned(),
            owner_references: owners
                .iter()
                .map(|uid| Owner {
                    uid: (*uid).to_owned(),
                    block_owner_deletion: true,
                    ..Owner::default()
                })
                .collect(),
            ..Light::default()
        }
    }

    fn ending(uid: &str, finalizer: &str) -> Light {
        Light {
            deletion_timestamp: Some("now".into()),
            finalizers: vec![finalizer.into()],
            ..owned(uid, &[])
        }
    }

    #[test]
    fn what_loses_an_owner_is_checked() {
        let mut graph = Graph::default();
        assert!(graph.observe(&key("a"), owned("a", &[])).is_empty());
        assert!(graph.observe(&key("b"), owned("b", &["a"])).is_empty());
        assert_eq!(graph.forget(&key("a")), [Task::CheckOwners("b".into())]);
        assert_eq!(
            graph.observe(&key("c"), owned("c", &["a"])),
            [Task::CheckOwners("c".into())]
        );
        assert_eq!(graph.all_orphans().len(), 2);
    }

    #[test]
    fn an_owner_in_another_namespace_is_none() {
        let mut graph = Graph::default();
        graph.observe(&Key::new("things", "other", "a"), owned("a", &[]));
        assert_eq!(
            graph.observe(&key("b"), owned("b", &["a"])),
            [Task::CheckOwners("b".into())]
        );
        graph.observe(&Key::new("nodes", "", "n"), owned("n", &[]));
        assert!(graph.observe(&key("c"), owned("c", &["n"])).is_empty());
    }

    #[test]
    fn an_owner_that_waits_is_asked_again_whenever_a_dependent_goes() {
        let mut graph = Graph::default();
        graph.observe(&key("a"), owned("a", &[]));
        graph.observe(&key("b"), owned("b", &["a"]));
        let waits = [Task::Foreground("a".into())];
        assert_eq!(
            graph.observe(&key("a"), ending("a", FOREGROUND_FINALIZER)),
            waits
        );
        assert_eq!(graph.forget(&key("b")), waits);
        assert!(!graph.has_dependents("a"));
        assert_eq!(
            graph.observe(&key("d"), ending("d", ORPHAN_FINALIZER)),
            [Task::Orphan("d".into())]
        );
    }

    #[test]
    fn a_name_that_changed_hands_is_another_object() {
        let mut graph = Graph::default();
        graph.observe(&key("a"), owned("old", &[]));
        graph.observe(&key("b"), owned("b", &["old"]));
        let tasks = graph.observe(&key("a"), owned("new", &[]));
        assert_eq!(tasks, [Task::CheckOwners("b".into())]);
    }
}
