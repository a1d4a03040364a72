//! Publishes a set of files into a volume so that a reader sees all of the old ones or all of the new ones.
//!
//! The files live in a fresh hidden directory; `..data` points to it and each visible name points through `..data`. A new
//! version is written beside the old one and `..data` is renamed over, in one step. Kubelets use the same layout, so tools
//! that watch `..data` for changes work.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::content::{File, Files};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// Who the files belong to; `None` leaves them to the engine's own user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl Owner {
    pub(crate) fn own(self, path: &Path) -> io::Result<()> {
        if self == Self::default() {
            return Ok(());
        }
        std::os::unix::fs::lchown(path, self.uid, self.gid)
    }
}

/// Makes `volume` hold exactly `files`. Returns whether anything changed.
pub(crate) fn publish(volume: &Path, files: &Files, owner: Owner) -> io::Result<bool> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(volume)?;
    let current = fs::read_link(volume.join(DATA)).ok();
    if let Some(current) = &current
        && holds(&volume.join(current), files)
    {
        return Ok(false);
    }
    let version = format!("..{}", uuid::Uuid::new_v4().simple());
    let directory = volume.join(&version);
    fs::DirBuilder::new().mode(0o755).create(&directory)?;
    owner.own(&directory)?;
    for (path, file) in files {
        write(&directory, path, file, owner)?;
    }
    let _ = fs::remove_file(volume.join(DATA_NEW));
    symlink(&version, volume.join(DATA_NEW))?;
    fs::rename(volume.join(DATA_NEW), volume.join(DATA))?;
    show(volume, files)?;
    sweep(volume, &version)?;
    Ok(true)
}

fn write(directory: &Path, path: &str, file: &File, owner: Owner) -> io::Result<()> {
    let target = directory.join(path);
    let mut parent = PathBuf::from(directory);
    for component in Path::new(path)
        .parent()
        .into_iter()
        .flat_map(Path::components)
    {
        parent.push(component);
        if !parent.is_dir() {
            fs::DirBuilder::new().mode(0o755).create(&parent)?;
            owner.own(&parent)?;
        }
    }
    let mut out = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&target)?;
    out.write_all(&file.bytes)?;
    // Set after the fact, as the process's umask has its say in `open`. A group that was asked for can always read.
    let mode = if owner.gid.is_some() {
        file.mode | 0o040
    } else {
        file.mode
    };
    out.set_permissions(fs::Permissions::from_mode(mode))?;
    owner.own(&target)
}

/// Whether a version already holds these files, byte for byte.
fn holds(version: &Path, files: &Files) -> bool {
    let same = |(path, file): (&String, &File)| {
        fs::read(version.join(path)).is_ok_and(|bytes| bytes == file.bytes)
    };
    files.iter().all(same) && count_files(version) == files.len()
}

fn count_files(directory: &Path) -> usize {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let count = |entry: io::Result<fs::DirEntry>| {
        entry.map_or(0, |entry| {
            if entry.path().is_dir() {
                count_files(&entry.path())
            } else {
                1
            }
        })
    };
    entries.map(count).sum()
}

/// Links each top-level name through `..data` and removes links to what is no more.
fn show(volume: &Path, files: &Files) -> io::Result<()> {
    let top = |path: &String| path.split('/').next().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = files.keys().map(top).collect();
    for name in &names {
        let link = volume.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type()?.is_symlink()
            && !name.starts_with("..")
            && !names.contains(name.as_ref())
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes every version but `keep`.
fn sweep(volume: &Path, keep: &str) -> io::Result<()> {
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("..") && name != keep && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str, u32)]) -> Files {
        let file = |text: &str, mode| File {
            bytes: text.as_bytes().to_vec(),
            mode,
        };
        list.iter()
            .map(|(path, text, mode)| ((*path).to_owned(), file(text, *mode)))
            .collect()
    }

    fn visible(volume: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(volume)
            .expect("a directory")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .filter(|name| !name.starts_with(".."))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_version_replaces_the_old_one_whole() {
        let root = tempfile::tempdir().expect("a directory");
        let volume = root.path().join("settings");
        let first = files(&[("a", "1", 0o644), ("deep/b", "2", 0o400)]);
        assert!(publish(&volume, &first, Owner::default()).expect("written"));
        assert_eq!(visible(&volume), ["a", "deep"]);
        assert_eq!(
            fs::read_to_string(volume.join("deep/b")).expect("readable"),
            "2"
        );
        let mode = fs::metadata(volume.join("deep/b"))
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o400);

        assert!(
            !publish(&volume, &first, Owner::default()).expect("nothing to do"),
            "the same again changes nothing"
        );

        let mut open = fs::File::open(volume.join("a")).expect("open");
        let second = files(&[("a", "one", 0o644), ("c", "3", 0o644)]);
        assert!(publish(&volume, &second, Owner::default()).expect("written"));
        assert_eq!(visible(&volume), ["a", "c"]);
        assert_eq!(
            fs::read_to_string(volume.join("a")).expect("readable"),
            "one"
        );
        let mut old = String::new();
        io::Read::read_to_string(&mut open, &mut old).expect("readable");
        assert_eq!(old, "1", "who had the old version open still reads it");
        let versions = fs::read_dir(&volume).expect("a directory").filter(|entry| {
            entry
                .as_ref()
                .is_ok_and(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        });
        assert_eq!(versions.count(), 1, "old versions are swept");
    }

    #[test]
    fn an_interrupted_publish_is_finished_by_the_next() {
        let root = tempfile::tempdir().expect("a directory");
        let volume = root.path().join("v");
        fs::create_dir_all(volume.join("..half")).expect("made");
        symlink("..half", volume.join(DATA_NEW)).expect("linked");
        assert!(publish(&volume, &files(&[("a", "1", 0o644)]), Owner::default()).expect("written"));
        assert_eq!(fs::read_to_string(volume.join("a")).expect("readable"), "1");
        assert!(!volume.join("..half").exists());
    }
}
