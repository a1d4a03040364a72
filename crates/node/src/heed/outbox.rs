//! Checkpoints that are on their way to an object store, where neither the program nor whoever prunes can change or remove them.
//!
//! They lie on the same volume as second names of the same files, and so cost no room while the first are there. Beside each is a journal
//! of what has arrived.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stoke_api::contract::checkpoints::{MARKER, OWN_DIR};
use stoke_api::contract::copies::{Duplicate, OUTBOX};

use super::shelf;

const JOURNAL: &str = ".journal";
/// The name of what is sent from where the program wrote it, so that it is not removed meanwhile.
const SENDING: &str = "sending";
const NAME_LENGTH_MAX: u64 = 255;
/// How often a checkpoint is linked that is replaced by another of its name meanwhile.
const TRIES_MAX: u32 = 3;
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

    /// What was begun to be sent, whether or not it is still in it.
    pub(super) fn begun(&self) -> Vec<Duplicate> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let copies =
            names.filter_map(|name| Duplicate::parse(name.strip_suffix(JOURNAL).unwrap_or(&name)));
        let mut copies: Vec<Duplicate> = copies.collect();
        copies.sort();
        copies.dedup();
        copies
    }

    pub(super) fn journal(&self, copy: &Duplicate) -> PathBuf {
        self.path.join(format!("{copy}{JOURNAL}"))
    }

    /// Puts a checkpoint into it, and gives where it is to be sent from. That is where the program wrote it, if the volume knows no second
    /// names; then whoever prunes spares it, and if the program itself removes it, another is sent.
    pub(super) fn put(&self, copy: &Duplicate) -> io::Result<PathBuf> {
        let (source, target) = (
            self.directory.join(&copy.name),
            self.path.join(copy.to_string()),
        );
        if target.is_dir() {
            return Ok(target);
        }
        fs::create_dir_all(&self.path)?;
        let draft = self.path.join(format!(".{copy}"));
        let linked = link_whole(&source, &draft, || {});
        let linked = match linked {
            Err(error) if knows_no_links(&error) => {
                let _ = fs::remove_dir_all(&draft);
                shelf::write(&self.path.join(SENDING), &copy.name)?;
                return Ok(source);
            }
            // It may have been removed while it was linked.
            Ok(()) => shelf::look(&draft, &copy.name).map(|_| ()).map_err(|torn| {
                let why = format!("{} is no checkpoint any more: {torn}", copy.name);
                io::Error::new(io::ErrorKind::NotFound, why)
            }),
            Err(error) => Err(error),
        };
        let put = linked.and_then(|()| fs::rename(&draft, &target));
        if put.is_err() {
            let _ = fs::remove_dir_all(&draft);
        }
        put.map(|()| target)
    }

    /// The name of what is sent from where the program wrote it.
    pub(super) fn sending(&self) -> Option<String> {
        shelf::text(&self.path.join(SENDING), NAME_LENGTH_MAX)
    }

    /// Gives the room back of what the program's directory has no more: nobody knows when the store answers again, and by then there is a
    /// newer one. What was sent of it stays on record, to be removed there.
    pub(super) fn give_room_back(&self) {
        for copy in self.names() {
            if !self.directory.join(&copy.name).is_dir() {
                let _ = File::options()
                    .create(true)
                    .append(true)
                    .open(self.journal(&copy));
                let _ = fs::remove_dir_all(self.path.join(copy.to_string()));
            }
        }
    }

    /// Nothing is sent any more, and it takes no room.
    pub(super) fn close(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }

    /// It is there, or is not to be sent any more.
    pub(super) fn drop(&self, copy: &Duplicate) {
        let _ = fs::remove_dir_all(self.path.join(copy.to_string()));
        let _ = fs::remove_file(self.journal(copy));
        if self.sending().as_ref() == Some(&copy.name) {
            let _ = fs::remove_file(self.path.join(SENDING));
        }
    }
}

/// Links all of one checkpoint, and nothing of another that takes its name meanwhile. `between` is for tests.
fn link_whole(from: &Path, to: &Path, mut between: impl FnMut()) -> io::Result<()> {
    for _ in 0..TRIES_MAX {
        let _ = fs::remove_dir_all(to);
        let before = identity(from)?;
        let linked = link_all(from, to, DEPTH_MAX, &mut between);
        if identity(from).is_ok_and(|after| after == before) {
            return linked;
        }
        if linked.as_ref().is_err_and(knows_no_links) {
            return linked;
        }
    }
    let why = "it is replaced by another again and again while it is put aside";
    Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
}

/// What differs between two checkpoints that have the same name in turn: the directory, or the marker that is written last.
fn identity(path: &Path) -> io::Result<[i64; 5]> {
    let (dir, marker) = (fs::metadata(path)?, fs::metadata(path.join(MARKER))?);
    Ok([
        dir.ino().cast_signed(),
        marker.ino().cast_signed(),
        marker.mtime(),
        marker.mtime_nsec(),
        marker.size().cast_signed(),
    ])
}

fn knows_no_links(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::PERM | Errno::NOTSUP | Errno::NOSYS | Errno::MLINK | Errno::XDEV)
    )
}

fn link_all(from: &Path, to: &Path, depth: u32, between: &mut dyn FnMut()) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        between();
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() && depth > 1 {
            link_all(&entry.path(), &target, depth - 1, between)?;
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

    #[test]
    fn a_checkpoint_that_is_replaced_while_it_is_linked_is_linked_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a directory");
        let (last, draft) = (dir.path().join("last"), dir.path().join("draft"));
        let write = |to: &Path, step: u32| {
            fs::create_dir(to).expect("a directory");
            for file in ["a", "b", MARKER] {
                fs::write(to.join(file), step.to_string()).expect("a file");
            }
        };
        let mut step = 0;
        let mut replace = || {
            step += 1;
            let (new, old) = (
                dir.path().join("new"),
                dir.path().join(format!("old-{step}")),
            );
            write(&new, step);
            fs::rename(&last, old).expect("moved");
            fs::rename(&new, &last).expect("moved");
        };
        write(&last, 0);
        let always = link_whole(&last, &draft, &mut replace);
        assert!(always.is_err(), "it never stands still");
        let mut left = 2;
        let linked = link_whole(&last, &draft, || {
            if left > 0 {
                left -= 1;
                replace();
            }
        });
        linked.expect("it stands still then");
        let text = |name: &str| fs::read_to_string(draft.join(name)).expect("a file");
        assert_eq!([text("a"), text("b")], [text(MARKER), text(MARKER)]);
    }

    #[test]
    fn what_the_store_does_not_take_gives_its_room_back_when_its_original_goes() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let outbox = Outbox::of(root);
        let copies = ["s5.a1.j.step-5", "s6.a1.j.step-6"].map(|name| {
            let copy = Duplicate::parse(name).expect("a copy");
            fs::create_dir(root.join(&copy.name)).expect("a directory");
            fs::write(root.join(&copy.name).join("state"), "").expect("a file");
            fs::write(root.join(&copy.name).join(MARKER), "{}").expect("a marker");
            outbox.put(&copy).expect("put");
            copy
        });
        shelf::remove(root, "step-5").expect("removed");
        outbox.give_room_back();
        assert_eq!(outbox.names(), copies[1..]);
        assert_eq!(outbox.begun(), copies, "what was sent of it is known");
        outbox.drop(&copies[0]);
        assert_eq!(outbox.begun(), copies[1..]);
        outbox.close();
        assert!(!root.join(OWN_DIR).join(OUTBOX).exists());
    }
}
