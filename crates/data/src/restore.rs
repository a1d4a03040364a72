//! A complete upload back into a directory.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::blocks::{self, Sum};
use crate::disk::{self, Digests};
use crate::error::{DataError, OnDisk};
use crate::fill::{Fill, Tree, fill};
use crate::keys::Keys;
use crate::listing::{ANY_STATE, Entry, write_line};
use crate::progress::Progress;
use crate::retry::Patience;
use crate::ship::{Manifest, manifest};
use crate::source::Remote;

/// Brings a complete upload to `dir`, which must not exist and appears when every file has the checksum that was recorded. What arrives before is kept
/// beside it, so that another try goes on.
pub async fn restore(
    from: &Remote,
    dir: &Path,
    patience: Duration,
    progress: &Arc<Progress>,
) -> Result<(), DataError> {
    if fs::symlink_metadata(dir).is_ok() {
        return Err(DataError::Exists {
            path: dir.to_owned(),
        });
    }
    let Some(manifest) = manifest(from, &Patience::new(patience)).await? else {
        return Err(DataError::Incomplete {
            uri: from.uri().to_owned(),
        });
    };
    let mut keys = Keys::new(false);
    for item in &manifest.files {
        keys.add(&item.path, item.size)
            .map_err(|error| DataError::Key {
                uri: from.uri().to_owned(),
                error,
            })?;
    }
    let (parent, name) = (
        dir.parent().unwrap_or(Path::new("/")),
        dir.file_name().unwrap_or_default().to_string_lossy(),
    );
    let tree = Tree {
        dir: parent.join(format!(".{name}.restoring")),
    };
    disk::make_dirs(&tree.dir)?;
    // One at a time; the lock goes with the directory.
    let _lock = disk::wait_for_lock(&tree.dir.join("lock"), || {}).await?;
    if fs::symlink_metadata(dir).is_ok() {
        return Err(DataError::Exists {
            path: dir.to_owned(),
        });
    }
    begin(&tree, &manifest)?;
    progress.begin(
        manifest.files.len() as u64,
        manifest.files.iter().map(|item| item.size).sum(),
    );
    for tries in 0.. {
        let how = Fill {
            // What the manifest has.
            sum: Sum::Sha256,
            only: None,
            strict: false,
            patience: Patience::new(patience),
        };
        fill(from, &tree, how, progress).await?;
        let Some(wrong) = forget_wrong(&tree, &manifest)? else {
            break;
        };
        if tries == 1 {
            return Err(DataError::Corrupt {
                uri: from.uri().to_owned(),
                what: wrong,
            });
        }
        progress.begin(
            manifest.files.len() as u64,
            manifest.files.iter().map(|item| item.size).sum(),
        );
    }
    let data = File::open(tree.data()).on_disk("open", &tree.data())?;
    rustix::fs::syncfs(&data).on_disk("write", &tree.data())?;
    fs::rename(tree.data(), dir).on_disk("rename", &tree.data())?;
    if let Ok(parent) = File::open(parent) {
        let _ = parent.sync_all();
    }
    let _ = fs::remove_dir_all(&tree.dir);
    Ok(())
}

/// Writes down what is to come. What an earlier try brought of another upload is put away.
fn begin(tree: &Tree, manifest: &Manifest) -> Result<(), DataError> {
    let path = tree.dir.join("manifest.json");
    let text = serde_json::to_vec(manifest).unwrap_or_default();
    if fs::read(&path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    for old in [tree.data(), tree.digests()] {
        let removed = if old.is_dir() {
            fs::remove_dir_all(&old)
        } else {
            fs::remove_file(&old)
        };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(DataError::disk("remove", &old, &error));
            }
            _ => {}
        }
    }
    let listing = tree.listing();
    let mut out = BufWriter::new(File::create(&listing).on_disk("write", &listing)?);
    for item in &manifest.files {
        let entry = Entry {
            path: item.path.clone(),
            size: item.size,
            modified_ms: item.modified_ms,
            etag: Some(ANY_STATE.to_owned()),
            key: None,
        };
        write_line(&mut out, &entry).on_disk("write", &listing)?;
    }
    out.flush().on_disk("write", &listing)?;
    disk::write_whole(&path, &text)
}

/// Holds what arrived against the manifest. Of a file that is not what was uploaded nothing stays on record; the first of them is named.
fn forget_wrong(tree: &Tree, manifest: &Manifest) -> Result<Option<String>, DataError> {
    let digests = Digests::open(&tree.digests())?;
    let (mut slot, mut wrong) = (0, None);
    for item in &manifest.files {
        let slots = slot..slot + blocks::count(item.size);
        slot = slots.end;
        let found: Option<Vec<_>> = slots.clone().map(|slot| digests.get(slot)).collect();
        if found.is_some_and(|found| blocks::whole(&found) == item.sha256) {
            continue;
        }
        for slot in slots {
            digests.set(slot, None).on_disk("write", &tree.digests())?;
        }
        wrong.get_or_insert_with(|| item.path.clone());
    }
    Ok(wrong)
}
