//! Removes what jobs leave behind, whatever permissions they left it with.
//!
//! Invariant: no link is followed, so nothing outside of the tree is touched.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const OWNER_ALL: u32 = 0o700;

/// Removes a directory with all that is in it. One that is already gone is no error.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        // A directory without the right to write keeps its entries from anyone but root, also from its owner.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_up(path)?;
            gone(fs::remove_dir_all(path))
        }
        removed => gone(removed),
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Lets the owner of every directory of the tree do everything in it.
fn open_up(path: &Path) -> io::Result<()> {
    let mut left = vec![path.to_owned()];
    while let Some(dir) = left.pop() {
        let mode = fs::symlink_metadata(&dir)?.permissions().mode();
        if mode & OWNER_ALL != OWNER_ALL {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode | OWNER_ALL))?;
        }
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            // The kind of the entry itself: a link to a directory is not a directory.
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o777
    }

    #[test]
    fn a_tree_its_owner_may_not_write_to_is_removed_and_nothing_beyond_its_links() {
        let root = tempfile::tempdir().expect("a directory");
        let (tree, outside) = (root.path().join("tree"), root.path().join("outside"));
        let deep = tree.join("a/b");
        fs::create_dir_all(&deep).expect("made");
        fs::create_dir(&outside).expect("made");
        fs::write(deep.join("file"), b"x").expect("written");
        std::os::unix::fs::symlink(&outside, deep.join("link")).expect("linked");
        for dir in [&outside, &deep, &tree.join("a")] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o555)).expect("changed");
        }
        // Root is refused nothing, so this step is also looked at by itself.
        open_up(&tree).expect("opened up");
        assert_eq!((mode(&tree.join("a")), mode(&deep)), (0o755, 0o755));
        assert_eq!(mode(&outside), 0o555, "a link is not followed");

        fs::set_permissions(&deep, fs::Permissions::from_mode(0o555)).expect("changed");
        remove_tree(&tree).expect("removed");
        assert!(!tree.exists() && outside.exists());
        remove_tree(&tree).expect("twice is fine");
    }
}
