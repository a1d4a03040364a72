//! `kill -9` at a random moment, again and again, on the same store: what was acknowledged is there.
//!
//! The test starts itself as the victim: with `STOKE_STORE_VICTIM` set it only writes, and prints every key once
//! the store has acknowledged it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use stoke_store::{Error, Key, Options, Revision, Scan, Store};

const VICTIM: &str = "STOKE_STORE_VICTIM";
const ROUNDS: u64 = 12;

#[test]
fn nothing_acknowledged_is_lost() {
    if let Ok(path) = std::env::var(VICTIM) {
        write_until_killed(Path::new(&path));
    }
    let mut random: u64 = match std::env::var("STOKE_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => std::process::id().into(),
    };
    println!("STOKE_SEED={random}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.db");
    let mut acknowledged = BTreeMap::new();
    let mut revision = Revision::FIRST;
    for round in 0..ROUNDS {
        // Knuth's linear congruence: enough to choose moments.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let life = Duration::from_millis((random >> 33) % 150);
        acknowledged.extend(run_victim(&path, life));
        let (found, latest) = contents(&path);
        for (name, revision) in &acknowledged {
            assert_eq!(
                found.get(name),
                Some(revision),
                "{name} in round {round}, killed after {life:?}"
            );
        }
        assert!(latest >= revision, "revisions only grow");
        revision = latest;
    }
    assert!(!acknowledged.is_empty());
}

/// Starts the victim, lets it live for `life` after its first word, kills it, and returns what it said.
fn run_victim(path: &Path, life: Duration) -> Vec<(String, u64)> {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nothing_acknowledged_is_lost", "--nocapture"])
        .env(VICTIM, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let first = lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.starts_with("acknowledged "))
        .expect("the victim writes");
    // Not waiting for an event: the moment of death is the point of the test.
    std::thread::sleep(life);
    victim.kill().unwrap();
    victim.wait().unwrap();
    std::iter::once(first)
        .chain(lines.map_while(Result::ok))
        .filter_map(|line| {
            // The last line may be cut; then its key was not said either.
            let rest = line.strip_prefix("acknowledged ")?.strip_suffix(" .")?;
            let (name, revision) = rest.split_once(' ')?;
            Some((name.to_owned(), revision.parse().ok()?))
        })
        .collect()
}

fn contents(path: &Path) -> (BTreeMap<String, u64>, Revision) {
    let store = Store::open(path, &Options::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let found = runtime
        .block_on(store.read(|read| {
            let mut found = BTreeMap::new();
            read.scan(&Scan::all("things"), |item| {
                let object: Value = serde_json::from_slice(item.document).unwrap();
                let revision = object["metadata"]["resourceVersion"].as_str().unwrap();
                found.insert(item.name.to_owned(), revision.parse().unwrap());
                ControlFlow::Continue(())
            })?;
            Ok::<_, Error>(found)
        }))
        .unwrap();
    let latest = store.revision();
    (found, latest)
}

fn write_until_killed(path: &Path) -> ! {
    let store = Store::open(path, &Options::default()).unwrap();
    let start = store.revision().0;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for writer in 0..4 {
        let store = store.clone();
        runtime.spawn(async move {
            for number in 0.. {
                let name = format!("thing-{start}-{writer}-{number}");
                let key = Key::new("things", "", &name);
                let object = json!({"metadata": {"name": name}, "data": "x".repeat(number % 5000)});
                let stored = store
                    .write(move |write| write.create(&key, object))
                    .await
                    .unwrap();
                let line = format!("acknowledged {name} {} .\n", stored.revision);
                std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
            }
        });
    }
    loop {
        std::thread::park();
    }
}
