//! Many writers, many watchers, one order.

use serde_json::json;
use stoke_store::{ChangeType, Error, Key, OpenError, Options, Retention, Revision, Scan, Store};

fn open(directory: &tempfile::TempDir) -> Store {
    Store::open(&directory.path().join("store.db"), &Options::default()).unwrap()
}

fn key(name: &str) -> Key {
    Key::new("things", "default", name)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_watcher_sees_every_change_in_order_exactly_once() {
    const WRITERS: usize = 16;
    const OBJECTS: usize = 5_000;
    const WATCHERS: usize = 8;
    let directory = tempfile::tempdir().unwrap();
    // A ring much smaller than the traffic, so that watchers fall behind it and catch up from disk.
    let options = Options {
        recent_changes_max: 64,
        ..Options::default()
    };
    let store = Store::open(&directory.path().join("store.db"), &options).unwrap();
    let start = store.revision();

    let mut watching = Vec::new();
    for _ in 0..WATCHERS {
        let mut watcher = store.watch(Some("things"), start);
        watching.push(tokio::spawn(async move {
            let mut seen = Vec::with_capacity(OBJECTS);
            while seen.len() < OBJECTS {
                for change in watcher.next().await.unwrap() {
                    seen.push((change.revision, change.key.name.clone()));
                }
            }
            seen
        }));
    }
    let mut writing = Vec::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writing.push(tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            for number in (writer..OBJECTS).step_by(WRITERS) {
                let name = format!("thing-{number}");
                let stored = store
                    .write(move |write| {
                        write.create(&key(&name), json!({"metadata": {"name": name}}))
                    })
                    .await
                    .unwrap();
                acknowledged.push((stored.revision, format!("thing-{number}")));
            }
            acknowledged
        }));
    }
    let mut acknowledged = Vec::new();
    for task in writing {
        acknowledged.extend(task.await.unwrap());
    }
    acknowledged.sort();
    assert_eq!(acknowledged.len(), OBJECTS);
    for task in watching {
        assert_eq!(task.await.unwrap(), acknowledged);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_write_does_not_harm_its_neighbours() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let writes = (0..200).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let done: Result<_, Error> = store
                .write(move |write| {
                    let name = format!("thing-{number}");
                    write.create(&key(&name), json!({"metadata": {"name": name}}))?;
                    match number % 4 {
                        1 => Err(Error::Closed),
                        2 => panic!("a bug in a request"),
                        _ => Ok(()),
                    }
                })
                .await;
            (number, done)
        })
    });
    let writes: Vec<_> = writes.collect();
    for write in writes {
        let (number, done) = write.await.unwrap();
        match number % 4 {
            1 => assert!(matches!(done, Err(Error::Closed))),
            2 => assert!(matches!(done, Err(Error::Panicked))),
            _ => done.unwrap(),
        }
    }
    let count = store
        .read(|read| read.count(&Scan::all("things")))
        .await
        .unwrap();
    assert_eq!(count, 100);
    assert_eq!(
        store.revision().0,
        Revision::FIRST.0 + 100,
        "revisions stay dense"
    );
}

#[tokio::test]
async fn a_watcher_behind_the_log_is_told_so_and_one_at_its_edge_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let options = Options {
        recent_changes_max: 2,
        ..Options::default()
    };
    let store = Store::open(&path, &options).unwrap();
    for number in 0..10 {
        store
            .write(move |write| write.create(&key(&number.to_string()), json!({"metadata": {}})))
            .await
            .unwrap();
    }
    let retention = Retention {
        changes_max: 4,
        ..Retention::default()
    };
    let oldest = store.compact(retention).await.unwrap();
    assert_eq!(oldest, Revision(7));
    let early = store.watch(None, Revision(6)).next().await;
    assert!(matches!(
        early,
        Err(Error::Gone {
            oldest: Revision(7),
            ..
        })
    ));
    let mut edge = store.watch(None, oldest);
    let changes = edge.next().await.unwrap();
    assert_eq!(changes.len(), 4);
    assert_eq!(changes[0].change, ChangeType::Added);

    let by_bytes = Retention {
        bytes_max: 0,
        ..Retention::default()
    };
    assert_eq!(store.compact(by_bytes).await.unwrap(), Revision(10));
    drop(edge);
    drop(store);
    let store = Store::open(&path, &options).unwrap();
    assert_eq!(
        store.revision(),
        Revision(11),
        "the counter survives compaction"
    );
}

#[tokio::test]
async fn one_engine_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let second = Store::open(store.path(), &Options::default());
    assert!(matches!(second, Err(OpenError::InUse(_))));
    drop(store);
    open(&directory);
}
