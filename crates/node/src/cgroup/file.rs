//! The few shapes in which the kernel writes cgroup files.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::pread;

use super::CgroupError;

/// Nearly all are shorter; `memory.stat` of v2 is the longest.
const FILE_LENGTH: usize = 4096;

/// One write, as the kernel wants it. Never creates the file: a missing one means a missing controller.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|source| CgroupError::Write {
            path: path.to_owned(),
            value: value.to_owned(),
            source,
        })
}

/// Like [`write`], but a file that this kernel does not have is passed over.
pub(super) fn write_if_present(path: &Path, value: &str) -> Result<(), CgroupError> {
    match write(path, value) {
        Err(CgroupError::Write { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(())
        }
        other => other,
    }
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(|source| CgroupError::Read {
        path: path.to_owned(),
        source,
    })
}

/// A group's directory and those of its files that were read, which stay open: finding a file costs the kernel more than writing it.
#[derive(Debug)]
pub(super) struct Group {
    path: PathBuf,
    directory: Option<OwnedFd>,
    files: Vec<(&'static str, OwnedFd)>,
}

impl Group {
    pub(super) fn open(path: &Path) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self {
            path: path.to_owned(),
            directory: open(path, flags, Mode::empty()).ok(),
            files: Vec::new(),
        }
    }

    pub(super) fn read(&mut self, name: &'static str) -> Result<String, CgroupError> {
        self.try_read(name).map_err(|source| CgroupError::Read {
            path: self.path.join(name),
            source,
        })
    }

    /// Empty where there is no such file.
    pub(super) fn text(&mut self, name: &'static str) -> String {
        self.try_read(name).unwrap_or_default()
    }

    /// As [`number`].
    pub(super) fn number(&mut self, name: &'static str) -> Option<u64> {
        self.try_read(name).ok()?.trim().parse().ok()
    }

    fn try_read(&mut self, name: &'static str) -> io::Result<String> {
        let Some(directory) = &self.directory else {
            return fs::read_to_string(self.path.join(name));
        };
        let known = self.files.iter().position(|(known, _)| *known == name);
        let index = if let Some(index) = known {
            index
        } else {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = openat(directory, name, flags, Mode::empty())?;
            self.files.push((name, file));
            self.files.len() - 1
        };
        read_whole(&self.files[index].1)
    }
}

/// From its beginning, which makes the kernel write it anew.
fn read_whole(file: &OwnedFd) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(FILE_LENGTH);
    loop {
        let read = bytes.len() as u64;
        // What the kernel has more of fills what it is given.
        if pread(file, spare_capacity(&mut bytes), read)? == 0 || bytes.len() < bytes.capacity() {
            break;
        }
        bytes.reserve(bytes.len());
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// A file with one number; `None` for `max`, for a file that is not there and for anything else.
pub(super) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The value of `key` in a file of `key value` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok()).flatten()
    })
}

/// The values of several keys, at one reading of the text.
pub(super) fn keyed_all<const N: usize>(text: &str, keys: [&str; N]) -> [Option<u64>; N] {
    let mut found = [None; N];
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some(at) = keys.iter().position(|key| *key == name) {
            found[at] = value.trim().parse().ok();
        }
    }
    found
}
