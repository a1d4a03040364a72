//! The map of ARCHITECTURE.md, held against what the crates really use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Each crate and the crates of ours it may use. An arrow that is not here is wrong.
const MAY_USE: &[(&str, &[&str])] = &[
    ("stoke-api", &[]),
    ("stoke-sched", &["stoke-api"]),
    ("stoke-memory", &["stoke-api"]),
    ("stoke-store", &[]),
    ("stoke-apiserver", &["stoke-api", "stoke-store"]),
    ("stoke-data", &[]),
    ("stoke-node", &["stoke-api", "stoke-memory", "stoke-data"]),
    (
        "stoke-control",
        &["stoke-api", "stoke-sched", "stoke-memory"],
    ),
    (
        "stoke-cli",
        &[
            "stoke-api",
            "stoke-sched",
            "stoke-memory",
            "stoke-store",
            "stoke-apiserver",
            "stoke-data",
            "stoke-node",
            "stoke-control",
        ],
    ),
];

/// Crates that decide, and so must not be able to do anything else.
const PURE: &[&str] = &["api", "sched", "memory"];
const IMPURE: &[&str] = &[
    "tokio",
    "kube-client",
    "kube-runtime",
    "hyper",
    "rustix",
    "libc",
    "rand",
];

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn arrows() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = cargo(&["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    let mut arrows = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name").to_owned();
        let used = package["dependencies"]
            .as_array()
            .expect("dependencies")
            .iter();
        let used = used.filter(|dependency| dependency["kind"].is_null());
        let used = used.filter_map(|dependency| dependency["name"].as_str());
        arrows.insert(
            name,
            used.filter(|name| name.starts_with("stoke-"))
                .map(str::to_owned)
                .collect(),
        );
    }
    arrows
}

#[test]
fn arrows_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for (name, used) in arrows() {
        let allowed = allowed
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} is not on the map"));
        for target in used {
            assert!(
                allowed.contains(&target.as_str()),
                "{name} must not use {target}"
            );
        }
    }
}

#[test]
fn crates_that_decide_can_do_nothing_else() {
    for name in PURE {
        let package = format!("stoke-{name}");
        let tree = cargo(&[
            "tree",
            "--offline",
            "-p",
            &package,
            "-e",
            "normal",
            "--prefix",
            "none",
            "-f",
            "{p}",
        ]);
        let used: BTreeSet<&str> = tree
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        for impure in IMPURE {
            assert!(
                !used.contains(impure),
                "{package} must not be able to reach {impure}"
            );
        }
    }
}

/// A clock is an argument of a decision, never something it looks at.
#[test]
fn crates_that_decide_read_no_clock() {
    for name in PURE {
        let mut folders = vec![root().join("crates").join(name).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                for clock in [
                    "Timestamp::now",
                    "SystemTime::now",
                    "Instant::now",
                    "Zoned::now",
                ] {
                    assert!(
                        !text.contains(clock),
                        "{} reads a clock: {clock}",
                        path.display()
                    );
                }
            }
        }
    }
}
