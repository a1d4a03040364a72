//! A dataset shown at a place of the host, and the host's own word on what is mounted where.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

/// Where anything is mounted, by the text of `/proc/self/mountinfo`.
pub(super) fn points(mountinfo: &str) -> BTreeSet<PathBuf> {
    let fields = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    fields
        .map(|field| PathBuf::from(unescaped(field)))
        .collect()
}

/// Blanks and the like are written as `\040`.
fn unescaped(field: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        let octal = others.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = &others[if code.is_some() { 3 } else { 0 }..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn now() -> io::Result<BTreeSet<PathBuf>> {
    Ok(points(&fs::read_to_string("/proc/self/mountinfo")?))
}

pub(super) fn is_mounted(mounted: &BTreeSet<PathBuf>, target: &Path) -> bool {
    // The kernel tells paths without links; one that is not there is nobody's.
    fs::canonicalize(target).is_ok_and(|path| mounted.contains(&path))
}

/// Shows `source` at `target`, so that nobody can write there. What is there already stays and is made so.
pub(super) fn show(source: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(target)?;
    if !is_mounted(&now()?, target) {
        mount_bind(source, target)?;
    }
    close(target)
}

/// A bind takes no other flag, so that is a second step.
pub(super) fn close(target: &Path) -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount_remount(target, flags, c"")?)
}

/// Takes away whatever is shown at `target`, and the directory with it. Nothing there is what was wanted.
pub(super) fn hide(target: &Path) -> io::Result<()> {
    while is_mounted(&now()?, target) {
        match unmount(target, UnmountFlags::empty()) {
            // Someone looks into it: it is out of sight at once, and goes when they have looked.
            Err(Errno::BUSY) => unmount(target, UnmountFlags::DETACH)?,
            done => done?,
        }
    }
    match fs::remove_dir(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
                    37 35 0:5 / /proc rw shared:2 - proc proc rw\nbroken\n";
        let expected = ["/mnt 2", "/proc"].map(PathBuf::from);
        assert_eq!(points(text), BTreeSet::from(expected));
        assert_eq!(unescaped("a\\"), "a\\");
        assert_eq!(unescaped("\\9x"), "\\9x");
    }
}
