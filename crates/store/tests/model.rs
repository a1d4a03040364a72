//! The store against the simplest thing that could be right: a map and a list of what happened to it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use stoke_store::{Error, Key, Options, Retention, Revision, Scan, Store};

type Place = (String, String);

#[derive(Clone, Debug)]
enum Step {
    Create(Place, u32),
    Update(Place, u32),
    Delete(Place),
    /// Several changes in one write; the whole write fails if the flag says so.
    Many(Vec<(Place, u32)>, bool),
    Compact(u64),
    Reopen,
}

fn place() -> impl Strategy<Value = Place> {
    ("[ab]", "[a-d]")
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (place(), any::<u32>()).prop_map(|(place, value)| Step::Create(place, value)),
        6 => (place(), any::<u32>()).prop_map(|(place, value)| Step::Update(place, value)),
        4 => place().prop_map(Step::Delete),
        3 => (prop::collection::vec((place(), any::<u32>()), 1..4), any::<bool>())
            .prop_map(|(changes, fails)| Step::Many(changes, fails)),
        1 => (1..6_u64).prop_map(Step::Compact),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    objects: BTreeMap<Place, u32>,
    /// What the objects were after each revision, and the change that made them so.
    history: Vec<(u64, BTreeMap<Place, u32>, String)>,
    revision: u64,
}

impl Model {
    fn change(&mut self, place: &Place, value: Option<u32>) {
        self.revision += 1;
        let change = match (self.objects.get(place), value) {
            (None, Some(_)) => "ADDED",
            (Some(_), Some(_)) => "MODIFIED",
            _ => "DELETED",
        };
        match value {
            Some(value) => self.objects.insert(place.clone(), value),
            None => self.objects.remove(place),
        };
        self.history.push((
            self.revision,
            self.objects.clone(),
            format!("{change} {}/{}", place.0, place.1),
        ));
    }
}

fn key(place: &Place) -> Key {
    Key::new("things", &place.0, &place.1)
}

fn object(place: &Place, value: u32) -> Value {
    json!({"metadata": {"namespace": place.0, "name": place.1}, "spec": value})
}

async fn list(store: &Store, at: Option<Revision>) -> Result<BTreeMap<Place, u32>, Error> {
    store
        .read(move |read| {
            let mut found = Vec::new();
            let scan = Scan {
                at,
                ..Scan::all("things")
            };
            read.scan(&scan, |item| {
                let object: Value = serde_json::from_slice(item.document).unwrap();
                let place = (item.namespace.to_owned(), item.name.to_owned());
                found.push((place, object["spec"].as_u64().unwrap() as u32));
                ControlFlow::Continue(())
            })?;
            assert!(found.is_sorted(), "scans are ordered: {found:?}");
            Ok(found.into_iter().collect())
        })
        .await
}

async fn run(steps: Vec<Step>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    // A tiny ring, so that watchers meet the disk as often as the memory.
    let options = Options {
        recent_changes_max: 3,
        ..Options::default()
    };
    let mut store = Store::open(&path, &options).unwrap();
    let mut model = Model {
        revision: Revision::FIRST.0,
        ..Model::default()
    };
    let mut oldest = Revision::FIRST.0;
    for step in steps {
        match step {
            Step::Create(place, value) => {
                let at = place.clone();
                let done = store
                    .write(move |write| write.create(&key(&at), object(&at, value)))
                    .await;
                if model.objects.contains_key(&place) {
                    assert!(matches!(done, Err(Error::Exists(_))));
                } else {
                    model.change(&place, Some(value));
                    assert_eq!(done.unwrap().revision.0, model.revision);
                }
            }
            Step::Update(place, value) => {
                let at = place.clone();
                let done = store
                    .write(move |write| write.update(&key(&at), object(&at, value)))
                    .await;
                if model.objects.contains_key(&place) {
                    model.change(&place, Some(value));
                    assert_eq!(done.unwrap().revision.0, model.revision);
                } else {
                    assert!(matches!(done, Err(Error::Missing(_))));
                }
            }
            Step::Delete(place) => {
                let at = place.clone();
                let done = store.write(move |write| write.delete(&key(&at))).await;
                if model.objects.contains_key(&place) {
                    model.change(&place, None);
                    let last = done.unwrap().value(&key(&place)).unwrap();
                    assert_eq!(
                        last["metadata"]["resourceVersion"],
                        model.revision.to_string()
                    );
                } else {
                    assert!(matches!(done, Err(Error::Missing(_))));
                }
            }
            Step::Many(changes, fails) => {
                let todo = changes.clone();
                let done = store
                    .write(move |write| {
                        for (place, value) in &todo {
                            if write.get(&key(place))?.is_some() {
                                write.update(&key(place), object(place, *value))?;
                            } else {
                                write.create(&key(place), object(place, *value))?;
                            }
                        }
                        if fails { Err(Error::Closed) } else { Ok(()) }
                    })
                    .await;
                assert_eq!(done.is_err(), fails);
                if !fails {
                    for (place, value) in &changes {
                        model.change(place, Some(*value));
                    }
                }
            }
            Step::Compact(changes_max) => {
                let retention = Retention {
                    changes_max,
                    age_max: Duration::from_secs(3600),
                    ..Retention::default()
                };
                oldest = store.compact(retention).await.unwrap().0;
            }
            Step::Reopen => {
                drop(store);
                store = Store::open(&path, &options).unwrap();
            }
        }
        assert_eq!(store.revision().0, model.revision);
    }
    assert_eq!(list(&store, None).await.unwrap(), model.objects);
    for (revision, objects, _) in &model.history {
        let past = list(&store, Some(Revision(*revision))).await;
        if *revision < oldest {
            assert!(matches!(past, Err(Error::Gone { .. })));
        } else {
            assert_eq!(past.unwrap(), *objects, "as of {revision}");
        }
    }
    for from in Revision::FIRST.0..=model.revision {
        check_watch(&store, &model, from, oldest).await;
    }
}

async fn check_watch(store: &Store, model: &Model, from: u64, oldest: u64) {
    let expected: Vec<_> = model
        .history
        .iter()
        .filter(|(revision, ..)| *revision > from)
        .map(|(revision, _, change)| format!("{revision} {change}"))
        .collect();
    let mut watcher = store.watch(Some("things"), Revision(from));
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        match watcher.next().await {
            Ok(changes) => seen.extend(changes.iter().map(|change| {
                let kind = change.change.as_str();
                format!(
                    "{} {kind} {}/{}",
                    change.revision, change.key.namespace, change.key.name
                )
            })),
            Err(Error::Gone { .. }) => {
                assert!(from < oldest && seen.is_empty());
                return;
            }
            Err(error) => panic!("watch from {from}: {error}"),
        }
    }
    assert_eq!(seen, expected, "watch from {from}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn behaves_as_the_model(steps in prop::collection::vec(step(), 1..40)) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap()
            .block_on(run(steps));
    }
}
