//! What the store holds is its owner's alone: no file of it can be read by anyone else.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;
use stoke_store::{Error, Key, Options, Store};

fn modes(directory: &Path) -> BTreeMap<String, u32> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            (entry.file_name().into_string().unwrap(), mode)
        })
        .collect()
}

async fn write(store: &Store, name: &str) {
    let key = Key::new("secrets", "default", name);
    store
        .write(move |write| {
            write.create(&key, json!({"metadata": {}}))?;
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn only_the_owner_reads_any_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let private: BTreeMap<String, u32> = ["store.db", "store.db-shm", "store.db-wal", "store.lock"]
        .map(|name| (name.to_owned(), 0o600))
        .into();

    let store = Store::open(&path, &Options::default()).unwrap();
    write(&store, "a").await;
    assert_eq!(modes(directory.path()), private, "a new store");

    // A copy of the files of an open store is what a crash leaves; here, by a version that let others read.
    let crashed = tempfile::tempdir().unwrap();
    for name in private.keys() {
        let copy = crashed.path().join(name);
        std::fs::copy(directory.path().join(name), &copy).unwrap();
        std::fs::set_permissions(&copy, Permissions::from_mode(0o644)).unwrap();
    }
    let store = Store::open(&crashed.path().join("store.db"), &Options::default()).unwrap();
    write(&store, "b").await;
    assert_eq!(
        modes(crashed.path()),
        private,
        "a store that was open to all"
    );
}
