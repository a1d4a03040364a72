//! An object of a list or a watch, so that one that cannot be read hides none beside it.
//!
//! kube has the like of it, which makes two trees of every object before it reads it; with ten thousand pods that is most of what an
//! operator does and needs.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

#[derive(Debug, Clone)]
pub(super) struct Object<K>(pub(super) Result<K, Unreadable>);

#[derive(Debug, Clone)]
pub(super) struct Unreadable {
    pub(super) error: String,
    pub(super) metadata: Box<ObjectMeta>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Object<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Named {
            metadata: Box<ObjectMeta>,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let error = match serde_json::from_str(text.get()) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error.to_string(),
        };
        // What has not even a name is no object.
        let Named { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self(Err(Unreadable { error, metadata })))
    }
}

impl<K: Resource> Resource for Object<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|it| &*it.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|it| &mut *it.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::api::{ObjectList, WatchEvent};

    use super::*;

    #[test]
    fn one_that_cannot_be_read_is_named_and_hides_no_other() {
        let list = r#"{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [
            {"metadata": {"name": "bad"}, "spec": {"containers": "none"}},
            {"metadata": {"name": "good"}, "spec": {"containers": []}}]}"#;
        let list: ObjectList<Object<Pod>> = serde_json::from_str(list).expect("a list");
        let named: Vec<(&str, bool)> = list
            .items
            .iter()
            .map(|item| (item.meta().name.as_deref().unwrap_or(""), item.0.is_ok()))
            .collect();
        assert_eq!(named, [("bad", false), ("good", true)]);
        let why = &list.items[0].0.as_ref().expect_err("no list").error;
        assert!(why.contains("expected a sequence"), "{why}");
    }

    #[test]
    fn a_watch_is_read_as_servers_write_it() {
        let line = r#"{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"name":"p"}}}"#;
        let event: WatchEvent<Object<Pod>> = serde_json::from_str(line).expect("an event");
        let WatchEvent::Modified(Object(Ok(pod))) = event else {
            panic!("{event:?}");
        };
        assert_eq!(pod.metadata.name.as_deref(), Some("p"));
        let nameless = r#"{"type":"MODIFIED","object":7}"#;
        assert!(serde_json::from_str::<WatchEvent<Object<Pod>>>(nameless).is_err());
    }
}
