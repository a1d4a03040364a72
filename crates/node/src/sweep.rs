//! What an engine that died at the wrong moment left behind, and nothing else would find.
//!
//! Directories of pods, their processes and cgroups are found by the pods' directories (`node.rs`), and data that was moved aside by its
//! name (`volumes/claims.rs`). What is left is here: secrets in memory of a pod whose directory is gone, and directories that were made for
//! a claim whose volume never came to be.
//!
//! Invariant: nothing is removed that has anything in it that may be somebody's data.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::remove::remove_tree;

/// Removes secrets of pods that are no more: `known` are the uids of all others. A pod's own directory goes before they do.
pub(crate) fn secrets(dir: &Path, known: &BTreeSet<String>) {
    for uid in children(dir) {
        let Some(name) = uid.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        if known.contains(name) {
            continue;
        }
        match remove_tree(&uid) {
            Ok(()) => tracing::info!(uid = name, "secrets of a pod that is no more were removed"),
            Err(error) => {
                tracing::warn!(uid = name, %error, "secrets of a pod that is no more could not be removed");
            }
        }
    }
}

/// Removes empty directories of claims that no volume names. Those with something in them stay: someone may have taken the volume's object
/// away and kept its data. These are given.
pub(crate) fn volumes(root: &Path, named: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    // A data directory may be known by several names.
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let named: BTreeSet<PathBuf> = named.iter().map(|path| real(path)).collect();
    let namespaces = children(root);
    let claims = namespaces.iter().flat_map(|namespace| children(namespace));
    let unnamed = claims.filter(|path| !is_hidden(path) && !named.contains(&real(path)));
    unnamed
        .filter(|path| {
            // Refused where there is anything in it.
            let removed = fs::remove_dir(path).is_ok();
            if removed {
                tracing::info!(path = %path.display(), "an empty directory that no volume names was removed");
            }
            !removed
        })
        .collect()
}

fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with('.')
}

/// Directories in a directory; a link to one is none.
fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let mut found: Vec<PathBuf> = entries.filter(is_dir).map(|entry| entry.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(path: &Path, content: Option<&str>) {
        fs::create_dir_all(path).expect("made");
        if let Some(content) = content {
            fs::write(path.join("file"), content).expect("written");
        }
    }

    #[test]
    fn secrets_of_a_pod_without_a_directory_go_and_others_stay() {
        let root = tempfile::tempdir().expect("a directory");
        make(&root.path().join("lost/token"), Some("hunter2"));
        make(&root.path().join("alive/token"), Some("hunter2"));
        secrets(root.path(), &BTreeSet::from(["alive".to_owned()]));
        assert!(!root.path().join("lost").exists());
        assert!(root.path().join("alive/token/file").exists());
        secrets(&root.path().join("none"), &BTreeSet::new());
    }

    #[test]
    fn an_empty_directory_that_nothing_names_goes_and_data_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |path: &str| root.path().join(path);
        make(&at("ns/half-made"), None);
        make(&at("ns/bound"), None);
        make(&at("ns/kept"), Some("weights"));
        make(&at("ns/.removed-1"), None);
        make(&at("elsewhere"), None);
        std::os::unix::fs::symlink(at("elsewhere"), at("ns/link")).expect("linked");
        let alias = root.path().join("alias");
        std::os::unix::fs::symlink(root.path(), &alias).expect("linked");
        let named = BTreeSet::from([alias.join("ns/bound")]);
        assert_eq!(volumes(root.path(), &named), [at("ns/kept")]);
        assert!(!at("ns/half-made").exists());
        for stays in ["ns/bound", "ns/kept/file", "ns/.removed-1", "ns/link"] {
            assert!(at(stays).exists(), "{stays}");
        }
    }
}
