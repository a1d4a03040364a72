//! A local copy of all objects of one kind, fed by a watch and by our own writes, that never goes back in time.
//!
//! What we have just written is in the copy at once: a controller that decided by the state before its own last write would do things
//! twice. The watch tells of the same write later, and of everything else in order.
//!
//! Invariant: once the watch has told of a version, no response of an older one is believed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use kube::api::ObjectMeta;
use kube::runtime::watcher::Event;

use crate::seen;

/// The name of an object within its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub fn of(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a mirror can hold.
pub trait Mirrored {
    fn key(&self) -> Key;
    fn uid(&self) -> Option<&str>;
    /// Versions grow with every write; Kubernetes lets clients compare them as numbers.
    fn version(&self) -> Option<u64>;
}

impl<K: kube::Resource> Mirrored for K {
    fn key(&self) -> Key {
        Key::of(self.meta())
    }

    fn uid(&self) -> Option<&str> {
        self.meta().uid.as_deref()
    }

    fn version(&self) -> Option<u64> {
        self.meta().resource_version.as_ref()?.parse().ok()
    }
}

impl Mirrored for seen::Pod {
    fn key(&self) -> Key {
        Key::new(&self.metadata.namespace, &self.metadata.name)
    }

    fn uid(&self) -> Option<&str> {
        self.metadata.uid.as_deref()
    }

    fn version(&self) -> Option<u64> {
        self.metadata.resource_version
    }
}

/// What became of an object.
#[derive(Debug, Clone)]
pub struct Change<K> {
    pub before: Option<Arc<K>>,
    pub after: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The object, as it is or as it last was.
    pub fn latest(&self) -> Option<&Arc<K>> {
        self.after.as_ref().or(self.before.as_ref())
    }
}

#[derive(Debug)]
pub struct Mirror<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// The newest version that the watch has told of.
    told: u64,
    relisting: Option<Relisting>,
    complete: bool,
}

/// A list that is being read, from the beginning or because the watch was lost.
#[derive(Debug, Default)]
struct Relisting {
    listed: BTreeSet<Key>,
    /// Written by us since it began: the list may be from before.
    written: BTreeSet<Key>,
    newest: u64,
}

impl<K> Default for Mirror<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            told: 0,
            relisting: None,
            complete: false,
        }
    }
}

impl<K: Mirrored> Mirror<K> {
    /// The first list has been read whole.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Arc<K>)> {
        self.objects.iter()
    }

    /// Takes what the watch tells.
    pub fn watched(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.relisting = Some(Relisting::default());
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some(relisting) = &mut self.relisting {
                    relisting.listed.insert(object.key());
                    relisting.newest = relisting.newest.max(object.version().unwrap_or(0));
                }
                self.put_newer(object).into_iter().collect()
            }
            Event::InitDone => self.listed(),
            Event::Apply(object) => {
                self.told = self.told.max(object.version().unwrap_or(0));
                self.put_newer(object).into_iter().collect()
            }
            Event::Delete(object) => {
                self.told = self.told.max(object.version().unwrap_or(0));
                self.forget(&object.key(), object.uid())
                    .into_iter()
                    .collect()
            }
        }
    }

    /// Takes an object as the API server answered one of our writes.
    pub fn wrote(&mut self, object: K) -> Option<Change<K>> {
        if object.version().is_some_and(|version| version <= self.told) {
            return None;
        }
        if let Some(relisting) = &mut self.relisting {
            relisting.written.insert(object.key());
        }
        self.put_newer(object)
    }

    /// Takes it that the object with this uid is no more, as the API server has said.
    pub fn forget(&mut self, key: &Key, uid: Option<&str>) -> Option<Change<K>> {
        let known = self.objects.get(key)?;
        if known.uid() != uid {
            return None;
        }
        let before = self.objects.remove(key);
        Some(Change {
            before,
            after: None,
        })
    }

    fn put_newer(&mut self, object: K) -> Option<Change<K>> {
        let key = object.key();
        let known = self.objects.get(&key).and_then(|known| known.version());
        if known
            .zip(object.version())
            .is_some_and(|(known, new)| new <= known)
        {
            return None;
        }
        let after = Arc::new(object);
        let before = self.objects.insert(key, after.clone());
        Some(Change {
            before,
            after: Some(after),
        })
    }

    /// Whatever a whole list does not hold is gone.
    fn listed(&mut self) -> Vec<Change<K>> {
        let Some(relisting) = self.relisting.take() else {
            return Vec::new();
        };
        self.complete = true;
        self.told = self.told.max(relisting.newest);
        let is_known =
            |key: &Key| relisting.listed.contains(key) || relisting.written.contains(key);
        let gone: Vec<Key> = self
            .objects
            .keys()
            .filter(|key| !is_known(key))
            .cloned()
            .collect();
        gone.iter()
            .filter_map(|key| self.objects.remove(key))
            .map(|before| Change {
                before: Some(before),
                after: None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(name: &str, uid: &str, version: u64) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some("ns".to_owned()),
                uid: Some(uid.to_owned()),
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn versions(mirror: &Mirror<ConfigMap>) -> Vec<String> {
        let show = |(key, object): (&Key, &Arc<ConfigMap>)| {
            format!("{}@{}", key.name, object.version().unwrap_or(0))
        };
        mirror.iter().map(show).collect()
    }

    fn listed(objects: &[ConfigMap]) -> Mirror<ConfigMap> {
        let mut mirror = Mirror::default();
        mirror.watched(Event::Init);
        for object in objects {
            mirror.watched(Event::InitApply(object.clone()));
        }
        mirror.watched(Event::InitDone);
        mirror
    }

    #[test]
    fn our_own_writes_are_seen_at_once_and_told_once() {
        let mut mirror = listed(&[object("a", "1", 5)]);
        assert!(mirror.wrote(object("a", "1", 7)).is_some());
        assert!(
            mirror.watched(Event::Apply(object("a", "1", 6))).is_empty(),
            "older than what we wrote"
        );
        assert!(
            mirror.watched(Event::Apply(object("a", "1", 7))).is_empty(),
            "known already"
        );
        assert_eq!(mirror.watched(Event::Apply(object("a", "1", 8))).len(), 1);
        assert_eq!(versions(&mirror), ["a@8"]);
    }

    #[test]
    fn a_late_answer_does_not_bring_back_the_dead() {
        let mut mirror = listed(&[]);
        mirror.watched(Event::Apply(object("a", "1", 5)));
        mirror.watched(Event::Delete(object("a", "1", 6)));
        assert!(mirror.wrote(object("a", "1", 5)).is_none());
        assert!(versions(&mirror).is_empty());
    }

    #[test]
    fn the_end_of_one_is_not_the_end_of_the_next_of_its_name() {
        let mut mirror = listed(&[object("a", "1", 5)]);
        mirror.wrote(object("a", "2", 9));
        assert!(
            mirror
                .watched(Event::Delete(object("a", "1", 6)))
                .is_empty()
        );
        assert_eq!(versions(&mirror), ["a@9"]);
    }

    #[test]
    fn a_list_drops_what_it_lacks_but_not_what_was_written_meanwhile() {
        let mut mirror = listed(&[object("a", "1", 5), object("b", "2", 6)]);
        assert!(mirror.is_complete());
        mirror.watched(Event::Init);
        mirror.watched(Event::InitApply(object("b", "2", 6)));
        mirror.wrote(object("c", "3", 9));
        let gone = mirror.watched(Event::InitDone);
        assert_eq!(gone.len(), 1);
        assert!(gone[0].after.is_none());
        assert_eq!(versions(&mirror), ["b@6", "c@9"]);
    }
}
