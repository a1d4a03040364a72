//! Keys of objects as paths of files.
//!
//! Invariant: no path leads out of the directory it is put in, and no two keys become one file.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Why an object cannot be a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error(
        "the key {key:?} would lead out of its mount ({why}); rename the object or narrow the uri"
    )]
    Escapes { key: String, why: &'static str },
    #[error("the key {key:?} cannot be a file: {why}")]
    Unusable { key: String, why: &'static str },
    #[error(
        "{key:?} is an object, and other keys go on after it as if it were a directory; rename one of them"
    )]
    FileAndDirectory { key: String },
    #[error(
        "two keys become the same file {key:?} where the cache lies, which does not tell capitals from small letters; rename one of them"
    )]
    SameButForCase { key: String },
    #[error(
        "there are more than {OBJECTS_MAX} objects; pack them into larger ones (tar, WebDataset, Parquet)"
    )]
    TooMany,
}

/// So that the memory a listing takes has an end: two words an object.
pub(crate) const OBJECTS_MAX: u64 = 20_000_000;
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 3_500;

/// The path of a key below its prefix, as it is.
pub(crate) fn path(key: &str) -> Result<&str, KeyError> {
    let unusable = |why| KeyError::Unusable {
        key: key.to_owned(),
        why,
    };
    let escapes = |why| KeyError::Escapes {
        key: key.to_owned(),
        why,
    };
    if key.is_empty() {
        return Err(unusable("it is empty"));
    }
    if key.len() > PATH_MAX {
        return Err(unusable("it is longer than a path may be"));
    }
    if key.contains('\0') {
        return Err(unusable("it holds a zero byte"));
    }
    for part in key.split('/') {
        match part {
            "" => {
                return Err(unusable(
                    "it has an empty part: two slashes in a row, or one at an end",
                ));
            }
            "." | ".." => return Err(escapes("it has a part . or ..")),
            part if part.len() > NAME_MAX => {
                return Err(unusable("a part is longer than 255 bytes"));
            }
            _ => {}
        }
    }
    Ok(key)
}

/// Sees every key of a listing once and tells those that get in each other's way. It keeps eight bytes a name, not the names.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    folds_case: bool,
    files: HashSet<u64>,
    dirs: HashSet<u64>,
    /// Objects without bytes: consoles make one called `dir/` for every directory, and it is read as `dir`.
    hollow: HashSet<u64>,
    seen: u64,
    markers: bool,
}

impl Keys {
    pub(crate) fn new(folds_case: bool) -> Self {
        Self {
            folds_case,
            ..Self::default()
        }
    }

    fn name(&self, path: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        if self.folds_case {
            path.to_lowercase().hash(&mut hasher);
        } else {
            path.hash(&mut hasher);
        }
        hasher.finish()
    }

    pub(crate) fn add(&mut self, key: &str, size: u64) -> Result<(), KeyError> {
        path(key)?;
        self.seen += 1;
        if self.seen > OBJECTS_MAX {
            return Err(KeyError::TooMany);
        }
        let clash = || KeyError::FileAndDirectory {
            key: key.to_owned(),
        };
        let name = self.name(key);
        if !self.files.insert(name) {
            return Err(KeyError::SameButForCase {
                key: key.to_owned(),
            });
        }
        if size == 0 {
            self.hollow.insert(name);
        }
        if self.dirs.contains(&name) {
            if size > 0 {
                return Err(clash());
            }
            self.markers = true;
        }
        for (end, _) in key.match_indices('/').collect::<Vec<_>>().into_iter().rev() {
            let dir = &key[..end];
            let name = self.name(dir);
            if self.files.contains(&name) {
                if !self.hollow.contains(&name) {
                    return Err(KeyError::FileAndDirectory {
                        key: dir.to_owned(),
                    });
                }
                self.markers = true;
            }
            if !self.dirs.insert(name) {
                break;
            }
        }
        Ok(())
    }

    /// Whether any object stands for a directory only.
    pub(crate) fn has_markers(&self) -> bool {
        self.markers
    }

    pub(crate) fn is_marker(&self, key: &str, size: u64) -> bool {
        size == 0 && self.dirs.contains(&self.name(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(folds_case: bool, keys: &[(&str, u64)]) -> String {
        let mut all = Keys::new(folds_case);
        match keys.iter().try_for_each(|(key, size)| all.add(key, *size)) {
            Ok(()) => "fine".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn keys_that_cannot_be_files_are_named() {
        for key in [
            "..",
            "a/../b",
            "../x",
            "./a",
            "a/.",
            "/etc/passwd",
            "a//b",
            "a/",
            "",
            "a\0b",
        ] {
            assert!(path(key).is_err(), "{key:?}");
        }
        for key in ["a", "a b", "ü/…", "..a", "a..", "...", "a/b/c.jpg", "C:\\x"] {
            assert_eq!(path(key), Ok(key));
        }
        insta::assert_snapshot!(verdict(false, &[("a/../../etc", 1)]), @r#"the key "a/../../etc" would lead out of its mount (it has a part . or ..); rename the object or narrow the uri"#);
        insta::assert_snapshot!(verdict(false, &[("a", 1), ("a.x", 1), ("a/b", 1)]), @r#""a" is an object, and other keys go on after it as if it were a directory; rename one of them"#);
        insta::assert_snapshot!(verdict(false, &[("a/b/c", 1), ("a/b", 1)]), @r#""a/b" is an object, and other keys go on after it as if it were a directory; rename one of them"#);
        insta::assert_snapshot!(verdict(true, &[("A.jpg", 1), ("a.jpg", 1)]), @r#"two keys become the same file "a.jpg" where the cache lies, which does not tell capitals from small letters; rename one of them"#);
        assert_eq!(verdict(false, &[("A.jpg", 1), ("a.jpg", 1)]), "fine");
    }

    #[test]
    fn an_empty_object_named_like_a_directory_only_stands_for_it() {
        let mut keys = Keys::new(false);
        keys.add("train", 0).expect("an empty object");
        keys.add("empty.txt", 0).expect("an empty file");
        assert!(!keys.has_markers());
        keys.add("train/1.jpg", 7).expect("a file");
        assert!(keys.has_markers());
        assert!(keys.is_marker("train", 0));
        assert!(!keys.is_marker("empty.txt", 0));
    }

    proptest! {
        #[test]
        fn no_key_leaves_its_directory(key in r"[a./]{0,12}") {
            if let Ok(path) = path(&key) {
                let parts: Vec<_> = std::path::Path::new(path).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, std::path::Component::Normal(_))));
                prop_assert_eq!(parts.len(), path.split('/').count());
            }
        }
    }
}
