//! Checkpoints that are on their way to an object store, where neither the program nor whoever prunes can change or remove them.
//!
//! They lie on the same volume as second names of the same files, and so cost no room while the first are there. Beside each is a journal
//! of what has arrived.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stoke_api::contract::checkpoints::OWN_DIR;
use stoke_api::contract::copies::{Duplicate, OUTBOX};

use super::shelf;

const JOURNAL: &str = ".journal";
/// Deeper than any program puts its files.
const DEPTH_MAX: u32 = 32;

#[derive(Debug)]
pub(super) struct Outbox<'a> {
    directory: &'a Path,
    path: PathBuf,
}

impl<'a> Outbox<'a> {
    /// Of the checkpoint directory.
    pub(super) fn of(directory: &'a Path) -> Self {
        Self {
            directory,
            path: directory.join(OWN_DIR).join(OUTBOX),
        }
    }

    /// What is in it.
    pub(super) fn names(&self) -> Vec<Duplicate> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names = dirs.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| Duplicate::parse(&name)).collect()
    }

    pub(super) fn journal(&self, copy: &Duplicate) -> PathBuf {
        self.path.join(format!("{copy}{JOURNAL}"))
    }

    /// Puts a checkpoint into it, and gives where it is to be sent from. That is where the program wrote it, if the volume knows no second
    /// names; then it may go before it is sent, and another is.
    pub(super) fn put(&self, copy: &Duplicate) -> io::Result<PathBuf> {
        let (source, target) = (
            self.directory.join(&copy.name),
            self.path.join(copy.to_string()),
        );
        if target.is_dir() {
            return Ok(target);
        }
        let draft = self.path.join(format!(".{copy}"));
        let _ = fs::remove_dir_all(&draft);
        fs::create_dir_all(&self.path)?;
        match link_all(&source, &draft, DEPTH_MAX) {
            Ok(()) => {}
            Err(error) if knows_no_links(&error) => {
                let _ = fs::remove_dir_all(&draft);
                return Ok(source);
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&draft);
                return Err(error);
            }
        }
        // It may have been removed while it was linked.
        if let Err(torn) = shelf::look(&draft, &copy.name) {
            let _ = fs::remove_dir_all(&draft);
            let why = format!("{} is no checkpoint any more: {torn}", copy.name);
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        fs::rename(&draft, &target)?;
        Ok(target)
    }

    /// It is there, or is not to be sent any more.
    pub(super) fn drop(&self, copy: &Duplicate) {
        let _ = fs::remove_dir_all(self.path.join(copy.to_string()));
        let _ = fs::remove_file(self.journal(copy));
    }
}

fn knows_no_links(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::PERM | Errno::NOTSUP | Errno::NOSYS | Errno::MLINK | Errno::XDEV)
    )
}

fn link_all(from: &Path, to: &Path, depth: u32) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() && depth > 1 {
            link_all(&entry.path(), &target, depth - 1)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, target)?;
        } else {
            fs::hard_link(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_api::contract::checkpoints::MARKER;

    #[test]
    fn what_is_in_it_stays_whatever_becomes_of_the_first_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let copy = Duplicate::parse("s5.a1.j.step-5").expect("a copy");
        let outbox = Outbox::of(root);
        assert!(outbox.put(&copy).is_err(), "there is no such checkpoint");
        fs::create_dir_all(root.join("step-5/rank-0")).expect("directories");
        fs::write(root.join("step-5/rank-0/state"), "5").expect("a file");
        assert!(outbox.put(&copy).is_err(), "nor is that one");
        fs::write(root.join("step-5").join(MARKER), "{}").expect("a marker");
        let path = outbox.put(&copy).expect("put");
        assert_eq!(path, outbox.put(&copy).expect("it is there"));
        assert_eq!(outbox.names(), std::slice::from_ref(&copy));
        shelf::remove(root, "step-5").expect("removed");
        let state = fs::read_to_string(path.join("rank-0/state"));
        assert_eq!(state.expect("its state"), "5");
        fs::write(outbox.journal(&copy), "").expect("a journal");
        outbox.drop(&copy);
        assert_eq!(outbox.names(), []);
        let left = fs::read_dir(root.join(OWN_DIR).join(OUTBOX)).expect("a directory");
        assert_eq!(left.count(), 0);
    }
}
