//! Files that only their owner may read. The store holds Secrets, whatever the umask and the directory allow.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

const OWNER_ONLY: u32 = 0o600;

/// Opens `path` for reading and writing, creating it if it is not there; takes away access that others had to it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(OWNER_ONLY)
        .open(path)?;
    if file.metadata()?.permissions().mode() & 0o777 != OWNER_ONLY {
        file.set_permissions(Permissions::from_mode(OWNER_ONLY))?;
    }
    Ok(file)
}

/// Like [`open`], for a file that need not be there.
pub(crate) fn tighten(path: &Path) -> io::Result<()> {
    match std::fs::set_permissions(path, Permissions::from_mode(OWNER_ONLY)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
