//! The directory that a job keeps its checkpoints in, as it is on the disk.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stoke_api::contract::checkpoints::{
    Checkpoint, Contents, MARKER, MARKER_LENGTH_MAX, Torn, is_litter, judge, name_while_going,
    step_of,
};

/// Directories looked into, at most: nobody keeps so many, and whoever does must not keep a core busy. Those that are called by the most steps
/// are: the newest must be among them.
const DIRECTORIES_MAX: usize = 2_000;
/// Files of one checkpoint that are counted where its marker lists none.
const FILES_MAX: u64 = 100_000;
const DEPTH_MAX: u32 = 8;

/// A directory in it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) found: Result<Checkpoint, Torn>,
}

/// What there is, in no order; what is already known as complete is not looked into again.
pub(super) fn entries(directory: &Path, known: impl Fn(&str) -> bool) -> io::Result<Vec<Entry>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Neither links: what they lead to is not what is written here.
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if let Ok(name) = entry.file_name().into_string()
            && !known(&name)
        {
            names.push(name);
        }
    }
    if names.len() > DIRECTORIES_MAX {
        names.sort_by_cached_key(|name| Reverse(step_of(name)));
        names.truncate(DIRECTORIES_MAX);
    }
    let look = |name: String| Entry {
        found: look(&directory.join(&name), &name),
        name,
    };
    Ok(names.into_iter().map(look).collect())
}

/// Whether the directory at `path`, which is called `name` where checkpoints are, is one.
pub(super) fn look(path: &Path, name: &str) -> Result<Checkpoint, Torn> {
    let marker = text(&path.join(MARKER), MARKER_LENGTH_MAX);
    let size_of = |file: &str| {
        let found = fs::metadata(path.join(file)).ok()?;
        found.is_file().then_some(found.len())
    };
    let contents = || {
        let mut contents = Contents::default();
        count(path, DEPTH_MAX, &mut contents);
        // The marker is one of them.
        contents.files = contents.files.saturating_sub(1);
        contents
    };
    judge(name, marker.as_deref(), size_of, contents)
}

fn count(directory: &Path, depth: u32, contents: &mut Contents) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if contents.files >= FILES_MAX {
            return;
        }
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if metadata.is_dir() && depth > 1 {
            count(&entry.path(), depth - 1, contents);
        } else if metadata.is_file() {
            contents.files += 1;
            contents.bytes = contents.bytes.saturating_add(metadata.len());
        }
    }
}

/// The text of a small file; `None` where there is none.
pub(super) fn text(path: &Path, length_max: u64) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(length_max).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// When the marker of a checkpoint was written, by whoever's clock.
pub(super) fn marked_at(directory: &Path, name: &str) -> Option<SystemTime> {
    let marker = directory.join(name).join(MARKER);
    fs::metadata(marker).ok()?.modified().ok()
}

/// Removes a checkpoint. What is left of it if that is cut short has a name that nobody goes on from.
pub(super) fn remove(directory: &Path, name: &str) -> io::Result<()> {
    let going = directory.join(name_while_going(name));
    let _ = fs::remove_dir_all(&going);
    fs::rename(directory.join(name), &going)?;
    fs::remove_dir_all(&going)
}

/// Removes what attempts that are over have left half done. Only for whoever holds the lock. Gives what was removed.
pub(super) fn tidy(directory: &Path, entries: &[Entry]) -> Vec<String> {
    let complete = || entries.iter().filter_map(|entry| entry.found.as_ref().ok());
    let litter = entries.iter().filter(|entry| {
        let torn = entry.found.as_ref().err();
        torn.is_some_and(|torn| is_litter(&entry.name, torn, complete()))
    });
    let removed = litter.filter(|entry| fs::remove_dir_all(directory.join(&entry.name)).is_ok());
    removed.map(|entry| entry.name.clone()).collect()
}

/// Writes a small file whole or not at all.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    let draft = draft_of(path);
    let written = fs::write(&draft, text)
        .and_then(|()| File::open(&draft)?.sync_all())
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_looked_at_however_many_there_are() {
        let dir = tempfile::tempdir().expect("a directory");
        let steps = 3 * DIRECTORIES_MAX;
        for step in 1..=steps {
            fs::create_dir(dir.path().join(format!("step-{step}"))).expect("a directory");
        }
        let mut found: Vec<_> = entries(dir.path(), |_| false)
            .expect("entries")
            .into_iter()
            .filter_map(|entry| step_of(&entry.name))
            .collect();
        found.sort_unstable();
        let newest: Vec<u64> = (steps - DIRECTORIES_MAX + 1..=steps)
            .map(|step| step as u64)
            .collect();
        assert_eq!(found, newest);
    }
}
