//! Small things about local files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;

use crate::blocks::{DIGEST_BYTES, Digest, Hasher, Sum};
use crate::error::{DataError, OnDisk};

/// Takes the lock of a file and keeps it as long as the file is open; none if another has it.
pub(crate) fn try_lock(path: &Path) -> Result<Option<File>, DataError> {
    let file = open_lock(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(DataError::disk("lock", path, &error.into())),
    }
}

/// For locks that are held for moments only.
pub(crate) fn lock(path: &Path) -> Result<File, DataError> {
    let file = open_lock(path)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).on_disk("lock", path)?;
    Ok(file)
}

fn open_lock(path: &Path) -> Result<File, DataError> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .on_disk("open", path)
}

/// Waits for a lock without holding up a thread.
pub(crate) async fn wait_for_lock(
    path: &Path,
    mut waiting: impl FnMut(),
) -> Result<File, DataError> {
    loop {
        if let Some(file) = try_lock(path)? {
            return Ok(file);
        }
        waiting();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whole or not at all, also after a crash.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let write = || -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    write().on_disk("write", path)
}

pub(crate) fn make_dirs(path: &Path) -> Result<(), DataError> {
    fs::create_dir_all(path).on_disk("make", path)
}

/// The checksum of a part of a file; none if the file ends before.
pub(crate) fn block_digest(
    file: &File,
    range: std::ops::Range<u64>,
    sum: Sum,
) -> io::Result<Option<Digest>> {
    let mut hasher = Hasher::new(sum);
    let mut buffer = vec![0; 128 << 10];
    let mut at = range.start;
    while at < range.end {
        let most = buffer.len().min((range.end - at) as usize);
        let read = match file.read_at(&mut buffer[..most], at) {
            Ok(0) => return Ok(None),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&buffer[..read]);
        at += read as u64;
    }
    Ok(Some(hasher.finish()))
}

/// The checksums of blocks that somebody has seen whole on this disk, each at its place. A block without one reads as zeros.
#[derive(Debug)]
pub(crate) struct Digests(File);

impl Digests {
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path);
        Ok(Self(file.on_disk("open", path)?))
    }

    pub(crate) fn get(&self, slot: u64) -> Option<Digest> {
        let mut bytes = [0; DIGEST_BYTES as usize];
        self.0.read_exact_at(&mut bytes, slot * DIGEST_BYTES).ok()?;
        (bytes != [0; DIGEST_BYTES as usize]).then_some(Digest(bytes))
    }

    pub(crate) fn set(&self, slot: u64, digest: Option<Digest>) -> io::Result<()> {
        let bytes = digest.map_or([0; DIGEST_BYTES as usize], |digest| digest.0);
        self.0.write_all_at(&bytes, slot * DIGEST_BYTES)
    }
}

pub(crate) fn modified_ms(metadata: &fs::Metadata) -> i64 {
    use std::os::unix::fs::MetadataExt;
    metadata.mtime() * 1000 + metadata.mtime_nsec() / 1_000_000
}

pub(crate) fn set_modified_ms(file: &File, ms: i64) -> io::Result<()> {
    let at = Duration::from_millis(ms.unsigned_abs());
    let time = if ms >= 0 {
        SystemTime::UNIX_EPOCH.checked_add(at)
    } else {
        SystemTime::UNIX_EPOCH.checked_sub(at)
    };
    file.set_modified(time.unwrap_or(SystemTime::UNIX_EPOCH))
}

/// Which start of the machine this is: what was written before another one may never have reached the disk.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}
