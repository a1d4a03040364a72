//! The container's view of the filesystem: the host's, with the mounts of the pod where its YAML says.
//!
//! A mount path need not exist on the host, and the host must not be changed to have it. So the root is a small tmpfs in a
//! mount namespace of the container's own, with the host's top-level entries bound into it; a path that is missing deeper
//! down gets the nearest directory that exists covered by a tmpfs with the same entries, and the missing rest made there.
//!
//! A covered directory is read-only: what a job wrote there would vanish with the container, and an error is better than a
//! lost file. The root itself can be written, and is thrown away, as every container's is.
//!
//! Invariant: runs in a process of its own, after it got its own mount namespace; no mount leaves that namespace.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags, openat2};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::{chdir, pivot_root};

use super::protocol::Mount;

/// A directory with more entries is not covered: each costs a mount.
const COVERED_ENTRIES_MAX: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub(super) enum RootError {
    #[error("mount path {} must be absolute, without `..`, and not `/`", .0.display())]
    Target(PathBuf),
    #[error("cannot mount {} at {}: {source}", what.display(), at.display())]
    Bind {
        what: PathBuf,
        at: PathBuf,
        source: io::Error,
    },
    #[error("{} is a directory and {} is not; one cannot be mounted on the other", directory.display(), file.display())]
    Kind { directory: PathBuf, file: PathBuf },
    #[error("{} is missing inside the read-only mount {}", target.display(), volume.display())]
    InsideReadOnly { target: PathBuf, volume: PathBuf },
    #[error(
        "{} has {entries} entries, too many to show {} beside them; create that directory on the host",
        dir.display(), target.display()
    )]
    TooManyEntries {
        dir: PathBuf,
        target: PathBuf,
        entries: usize,
    },
    #[error("cannot {doing} {}: {source}", path.display())]
    Path {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// For `map_err`: what was being done, and where.
fn doing(doing: &'static str, path: &Path) -> impl Fn(io::Error) -> RootError {
    move |source| RootError::Path {
        doing,
        path: path.to_owned(),
        source,
    }
}

/// Builds the root at `at`, an empty directory of the host, and makes it the root of this process.
pub(super) fn enter(at: &Path, mounts: &[Mount]) -> Result<(), RootError> {
    let mut mounts: Vec<&Mount> = mounts.iter().collect();
    for mount in &mounts {
        check_target(&mount.target)?;
    }
    // Outer paths first, so that a mount inside another's lies on it and not under it.
    mounts.sort_by_key(|mount| mount.target.components().count());

    // From here on nothing we mount is seen by others, while what the host mounts or unmounts later is seen here.
    let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", downstream)
        .map_err(|error| doing("detach the mounts below", Path::new("/"))(error.into()))?;

    let at = fs::canonicalize(at).map_err(doing("find", at))?;
    let mut root = Root::cover_all(&at)?;
    for mount in mounts {
        root.place(mount)?;
    }
    root.seal()?;
    pivot(&at).map_err(|error| doing("change the root to", &at)(error))
}

pub(super) fn check_target(target: &Path) -> Result<(), RootError> {
    let plain = target
        .components()
        .skip(1)
        .all(|part| matches!(part, Component::Normal(_)));
    if target.is_absolute() && plain && target.components().count() > 1 {
        Ok(())
    } else {
        Err(RootError::Target(target.to_owned()))
    }
}

/// The new root while it is built.
struct Root {
    at: PathBuf,
    /// Device numbers of our own tmpfs instances: in these, missing directories may be made.
    own_devices: BTreeSet<u64>,
    /// Directories covered by a tmpfs, as seen from the new root; the first is `/` itself.
    covered: Vec<PathBuf>,
    /// Where pod volumes were placed, and whether read-only, as seen from the new root.
    placed: Vec<(PathBuf, bool)>,
}

/// Where a path leads inside the new root: the part that exists, links resolved, and what is missing below it.
struct Found {
    real: PathBuf,
    metadata: fs::Metadata,
    missing: PathBuf,
}

impl Root {
    fn cover_all(at: &Path) -> Result<Self, RootError> {
        let mut root = Self {
            at: at.to_owned(),
            own_devices: BTreeSet::new(),
            covered: Vec::new(),
            placed: Vec::new(),
        };
        root.cover(Path::new("/"), Path::new("/"), "16m")?;
        Ok(root)
    }

    /// The path in the new root, as seen from the old one.
    fn inside(&self, path: &Path) -> PathBuf {
        self.at.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A tmpfs over `dir` of the new root with what the host has there.
    fn cover(&mut self, dir: &Path, target: &Path, size: &str) -> Result<(), RootError> {
        let entries = fs::read_dir(dir)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(doing("list", dir))?;
        if entries.len() > COVERED_ENTRIES_MAX {
            return Err(RootError::TooManyEntries {
                dir: dir.to_owned(),
                target: target.to_owned(),
                entries: entries.len(),
            });
        }
        let original = fs::metadata(dir).map_err(doing("look at", dir))?;
        let cover = self.inside(dir);
        let options = format!(
            "mode={:o},size={size},nr_inodes=16384\0",
            original.mode() & 0o7777
        );
        let options =
            std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap_or(c"mode=755");
        mount(
            c"stokehold",
            &cover,
            c"tmpfs",
            MountFlags::empty(),
            Some(options),
        )
        .map_err(|error| doing("cover with a tmpfs", dir)(error.into()))?;
        // Without this, binding the directory that holds `at` would drag the half-built root into itself.
        mount_change(&cover, MountPropagationFlags::UNBINDABLE)
            .map_err(|error| doing("keep for ourselves", &cover)(error.into()))?;
        // Foreign owners cannot be shown inside a user namespace that does not know them.
        let _ = std::os::unix::fs::chown(&cover, Some(original.uid()), Some(original.gid()));
        let device = fs::metadata(&cover)
            .map_err(doing("look at", &cover))?
            .dev();
        self.own_devices.insert(device);
        self.covered.push(dir.to_owned());
        for entry in entries {
            show(&entry.path(), &cover.join(entry.file_name()))?;
        }
        Ok(())
    }

    fn place(&mut self, mount: &Mount) -> Result<(), RootError> {
        let source = fs::metadata(&mount.source).map_err(|error| RootError::Bind {
            what: mount.source.clone(),
            at: mount.target.clone(),
            source: error,
        })?;
        let mut found = self.find(&mount.target)?;
        if !found.missing.as_os_str().is_empty() {
            self.make_room(&found, mount)?;
            let target = found.real.join(&found.missing);
            make_mount_point(&self.inside(&target), source.is_dir())?;
            found = self.find(&mount.target)?;
        }
        if found.metadata.is_dir() != source.is_dir() {
            let (directory, file) = if source.is_dir() {
                (mount.source.clone(), found.real)
            } else {
                (found.real, mount.source.clone())
            };
            return Err(RootError::Kind { directory, file });
        }
        bind(&mount.source, &self.inside(&found.real))?;
        self.placed.push((found.real, mount.read_only));
        Ok(())
    }

    /// Sees to it that the missing part of a mount's path can be made without changing the host.
    fn make_room(&mut self, found: &Found, mount: &Mount) -> Result<(), RootError> {
        if self.own_devices.contains(&found.metadata.dev()) {
            return Ok(());
        }
        if let Some((volume, read_only)) = self
            .placed
            .iter()
            .rfind(|(volume, _)| found.real.starts_with(volume))
        {
            // The pod's own volume: it gets the directory, as it would from any container runtime.
            return if *read_only {
                Err(RootError::InsideReadOnly {
                    target: mount.target.clone(),
                    volume: volume.clone(),
                })
            } else {
                Ok(())
            };
        }
        self.cover(&found.real, &mount.target, "1m")
    }

    fn find(&self, target: &Path) -> Result<Found, RootError> {
        let root = File::open(&self.at).map_err(doing("open", &self.at))?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for existing in target.ancestors() {
            let opened = match openat2(&root, existing, flags, Mode::empty(), resolve) {
                Ok(opened) => opened,
                Err(rustix::io::Errno::NOENT) => continue,
                Err(error) => return Err(doing("find", existing)(error.into())),
            };
            let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
            let shown = fs::read_link(&link).map_err(doing("find", existing))?;
            let real = Path::new("/").join(shown.strip_prefix(&self.at).unwrap_or(&shown));
            let metadata = File::from(opened)
                .metadata()
                .map_err(doing("look at", existing))?;
            let missing = target
                .strip_prefix(existing)
                .unwrap_or(Path::new(""))
                .to_owned();
            if !missing.as_os_str().is_empty() && !metadata.is_dir() {
                return Err(doing("look into", existing)(
                    io::ErrorKind::NotADirectory.into(),
                ));
            }
            return Ok(Found {
                real,
                metadata,
                missing,
            });
        }
        Err(doing("find", target)(io::ErrorKind::NotFound.into()))
    }

    /// Read-only at last, when nothing has to be made any more.
    fn seal(&self) -> Result<(), RootError> {
        for path in &self.covered {
            // From now on the job may bind it elsewhere, as it may any other directory.
            mount_change(self.inside(path), MountPropagationFlags::PRIVATE)
                .map_err(|error| doing("give away", path)(error.into()))?;
        }
        let read_only = self.placed.iter().filter(|(_, read_only)| *read_only);
        let read_only = read_only.map(|(path, _)| path);
        for path in read_only.chain(self.covered.iter().skip(1)) {
            make_read_only(&self.inside(path)).map_err(doing("make read-only", path))?;
        }
        Ok(())
    }
}

/// Shows one entry of the host at `at`: links as links, everything else bound.
fn show(entry: &Path, at: &Path) -> Result<(), RootError> {
    let Ok(metadata) = fs::symlink_metadata(entry) else {
        // Removed since it was listed, or a dead mount: it would be of no use to the job either.
        return Ok(());
    };
    if metadata.is_symlink() {
        let leads = fs::read_link(entry).map_err(doing("read", entry))?;
        return symlink(leads, at).map_err(doing("make", at));
    }
    make_mount_point(at, metadata.is_dir())?;
    bind(entry, at)
}

fn make_mount_point(at: &Path, directory: bool) -> Result<(), RootError> {
    if directory {
        let mut builder = fs::DirBuilder::new();
        return builder
            .recursive(true)
            .mode(0o755)
            .create(at)
            .map_err(doing("make", at));
    }
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent).map_err(doing("make", parent))?;
    }
    let file = File::create_new(at).map_err(doing("make", at))?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
        .map_err(doing("make", at))
}

/// Always with what is mounted below: inside a user namespace the kernel insists on it, lest it uncover something.
fn bind(what: &Path, at: &Path) -> Result<(), RootError> {
    mount_bind_recursive(what, at).map_err(|error| RootError::Bind {
        what: what.to_owned(),
        at: at.to_owned(),
        source: error.into(),
    })
}

fn make_read_only(at: &Path) -> io::Result<()> {
    // A remount sets all flags anew, and inside a user namespace those that the mount came with must be kept.
    const KEPT: [(StatVfsMountFlags, MountFlags); 6] = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let now = rustix::fs::statvfs(at)?.f_flag;
    let kept = KEPT
        .into_iter()
        .filter(|(flag, _)| now.contains(*flag))
        .fold(MountFlags::empty(), |flags, (_, flag)| flags | flag);
    Ok(mount_remount(
        at,
        MountFlags::BIND | MountFlags::RDONLY | kept,
        "",
    )?)
}

/// The old root ends up mounted over the new one, and is then let go, so no directory for it is needed.
fn pivot(at: &Path) -> io::Result<()> {
    chdir(at)?;
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_absolute_paths_are_targets() {
        for good in ["/data", "/mnt/a/b", "/dev/shm", "//data/./x/"] {
            assert!(check_target(Path::new(good)).is_ok(), "{good}");
        }
        for bad in ["", "/", "data", "./data", "/data/../etc", "/..", ".."] {
            assert!(check_target(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
