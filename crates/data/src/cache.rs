//! A node's cache of datasets: each version of each is staged once and shared by all that read it.
//!
//! ```text
//! <cache>/lock                     held for moments: while pins are made and versions come and go
//! <cache>/locks/<version>          held while somebody stages or mends it
//! <cache>/pins/<version>/...       who uses it
//! <cache>/<version>.part/          being staged: about.json listing digests data/
//! <cache>/<version>/               whole
//! <cache>/trash/                   on its way out
//! ```
//!
//! A version is a checksum of the uri and of what was listed there, so what changed upstream is another version.
//! Invariant: a version without `.part` has every file of its listing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::blocks::Sum;
use crate::disk;
use crate::error::{DataError, OnDisk};
use crate::fill::{self, Fill, Tree};
use crate::listing::{self, Listed, Summary};
use crate::pins::{self, Guard, Pin, Pins};
use crate::progress::{Progress, Stage};
use crate::retry::Patience;
use crate::room::{Kept, make_room};
use crate::source::Remote;

/// How long a store may be silent before staging is given up for now.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often a dataset that changes while it is read is begun anew.
const RESTARTS_MAX: u32 = 3;
const PART: &str = ".part";
const MAX_BYTES: &str = "max_bytes";
/// Where no limit is set, this part of the disk stays free.
const DISK_FREE: u64 = 20;

#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    bytes_max: Option<u64>,
    patience: Duration,
    folds_case: bool,
    scope: String,
    pins: Pins,
}

/// A dataset that lies whole on this disk, for as long as its pin says.
#[derive(Debug)]
pub struct Staged {
    pub path: PathBuf,
    pub version: String,
    pub files: u64,
    pub bytes: u64,
    pub mended: Mended,
    _pin: Option<Guard>,
}

/// Files that were not as they were left, and were fetched again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mended {
    pub files: u64,
}

/// What a cache holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub version: String,
    pub name: String,
    pub uri: String,
    pub scope: String,
    pub files: u64,
    pub bytes: u64,
    pub is_whole: bool,
    pub in_use: bool,
    /// Seconds since 1970.
    pub used: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct About {
    name: String,
    uri: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    scope: String,
    #[serde(flatten)]
    summary: Summary,
    /// The start of the machine during which it was written.
    boot: String,
}

impl Cache {
    pub fn open(root: &Path, bytes_max: Option<u64>) -> Result<Self, DataError> {
        for dir in ["", "locks", "pins", "tmp", "trash"] {
            disk::make_dirs(&root.join(dir))?;
        }
        let cache = Self {
            root: root.to_owned(),
            bytes_max,
            patience: PATIENCE,
            folds_case: folds_case(&root.join("tmp"))?,
            scope: String::new(),
            pins: Pins::new(root.join("pins")),
        };
        empty(pins::entries(&cache.root.join("trash"))?);
        let (path, said) = (root.join(MAX_BYTES), said(bytes_max));
        if fs::read_to_string(&path).ok().as_deref() != Some(&said) {
            disk::write_whole(&path, said.as_bytes())?;
        }
        Ok(cache)
    }

    /// The same, with the limit that whoever opened it last has set.
    pub fn open_as_it_is(root: &Path) -> Result<Self, DataError> {
        let said = fs::read_to_string(root.join(MAX_BYTES)).unwrap_or_default();
        Self::open(root, said.trim().parse().ok())
    }

    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// For those only who trust each other. A listing is told by whoever owns the store it is asked of: with it alone, one could read what
    /// another has copied, or have another read what one has put there.
    pub fn within(mut self, scope: &str) -> Self {
        scope.clone_into(&mut self.scope);
        self
    }

    /// Makes a dataset lie whole on this disk, pinned. Whoever comes while another stages it waits and finds it there. `verify` reads all of it
    /// and not only the files' sizes and times.
    pub async fn stage(
        &self,
        remote: &Remote,
        name: &str,
        pin: Pin<'_>,
        verify: bool,
        progress: &Arc<Progress>,
    ) -> Result<Staged, DataError> {
        let mut restarts = 0;
        loop {
            progress.enter(Stage::Listing);
            let patience = Patience::new(self.patience);
            let mut listed = listing::list(
                remote,
                &self.root.join("tmp"),
                self.folds_case,
                &patience,
                progress,
            )
            .await?;
            listed.summary = listed.summary.within(&self.scope);
            progress.listed(listed.summary.files, listed.summary.bytes);
            let version = listed.summary.version.clone();
            match self
                .settle(remote, name, pin, verify, listed, progress)
                .await
            {
                Err(DataError::Changed { uri, what }) => {
                    self.discard(&version)?;
                    restarts += 1;
                    if restarts == RESTARTS_MAX {
                        return Err(DataError::Changed { uri, what });
                    }
                    tracing::warn!(uri, what, "changed while it was staged; beginning anew");
                }
                settled => return settled,
            }
        }
    }

    async fn settle(
        &self,
        remote: &Remote,
        name: &str,
        pin: Pin<'_>,
        verify: bool,
        listed: Listed,
        progress: &Arc<Progress>,
    ) -> Result<Staged, DataError> {
        let summary = listed.summary.clone();
        let version = &summary.version;
        if let Some(staged) = self.take(&summary, pin)? {
            return self.mend(remote, staged, verify, progress).await;
        }
        let _lock =
            disk::wait_for_lock(&self.lock_of(version), || progress.enter(Stage::Waiting)).await?;
        if let Some(staged) = self.take(&summary, pin)? {
            return Ok(staged);
        }
        let part = self.reserve(remote, name, listed)?;
        progress.begin(summary.files, summary.bytes);
        let how = Fill {
            sum: Sum::Crc64,
            only: None,
            strict: false,
            patience: Patience::new(self.patience),
        };
        fill::fill(remote, &part, how, progress).await?;
        let _moment = disk::lock(&self.root.join("lock"))?;
        let guard = self.pins.add(version, pin)?;
        let whole = self.root.join(version);
        fs::rename(&part.dir, &whole).on_disk("rename", &part.dir)?;
        self.touch(version)?;
        self.sync_later(version);
        Ok(staged(&whole, &summary, guard))
    }

    /// A version that is here, pinned and marked as used.
    fn take(&self, summary: &Summary, pin: Pin<'_>) -> Result<Option<Staged>, DataError> {
        let whole = self.root.join(&summary.version);
        let _moment = disk::lock(&self.root.join("lock"))?;
        if !whole.is_dir() {
            return Ok(None);
        }
        let guard = self.pins.add(&summary.version, pin)?;
        self.touch(&summary.version)?;
        Ok(Some(staged(&whole, summary, guard)))
    }

    /// Looks at every file and fetches those again that are not as they were left.
    async fn mend(
        &self,
        remote: &Remote,
        mut staged: Staged,
        verify: bool,
        progress: &Arc<Progress>,
    ) -> Result<Staged, DataError> {
        progress.enter(Stage::Checking);
        let tree = Tree {
            dir: self.root.join(&staged.version),
        };
        let verify = verify || self.may_have_lost_writes(&staged.version);
        let changed = if verify {
            None
        } else {
            Some(fill::changed(&tree)?)
        };
        if changed
            .as_ref()
            .is_some_and(std::collections::BTreeSet::is_empty)
        {
            return Ok(staged);
        }
        let _lock = disk::wait_for_lock(&self.lock_of(&staged.version), || {
            progress.enter(Stage::Waiting);
        })
        .await?;
        progress.begin(
            changed
                .as_ref()
                .map_or(staged.files, |changed| changed.len() as u64),
            staged.bytes,
        );
        let how = Fill {
            sum: Sum::Crc64,
            only: changed,
            strict: true,
            patience: Patience::new(self.patience),
        };
        let mended = fill::fill(remote, &tree, how, progress).await?;
        staged.mended = Mended {
            files: mended.len() as u64,
        };
        if !mended.is_empty() {
            tracing::warn!(
                uri = remote.uri(),
                files = mended.len(),
                "files in the cache were damaged and have been fetched again"
            );
        }
        if verify {
            self.sync_later(&staged.version);
        }
        Ok(staged)
    }

    /// Makes room and a place to stage into; what an earlier try left there is gone on with.
    fn reserve(&self, remote: &Remote, name: &str, listed: Listed) -> Result<Tree, DataError> {
        let summary = listed.summary;
        let part = Tree {
            dir: self.root.join(format!("{}{PART}", summary.version)),
        };
        let moment = disk::lock(&self.root.join("lock"))?;
        let goes_on = part.listing().is_file();
        let others: Vec<Kept> = self
            .kept()?
            .into_iter()
            .filter(|kept| kept.id != part_name(&part))
            .collect();
        let limit = self.limit(&others, goes_on)?;
        let gone = make_room(&others, summary.footprint, limit).map_err(|shortfall| {
            DataError::NoRoom {
                needed: summary.footprint,
                shortfall,
            }
        })?;
        let mut trash = Vec::new();
        for kept in gone {
            tracing::info!(
                version = kept.id,
                bytes = kept.bytes,
                "making room in the data cache"
            );
            trash.push(self.put_in_trash(&kept.id)?);
        }
        if !goes_on {
            disk::make_dirs(&part.dir)?;
            let about = About {
                name: name.to_owned(),
                uri: remote.uri().to_owned(),
                scope: self.scope.clone(),
                summary,
                boot: disk::boot_id(),
            };
            let text = serde_json::to_vec(&about).unwrap_or_default();
            disk::write_whole(&part.dir.join("about.json"), &text)?;
            // Last, because it is what a next try goes on from.
            listed
                .file
                .persist(part.listing())
                .map_err(|error| DataError::disk("write", &part.listing(), &error.error))?;
        }
        // Removing takes its time, and nobody who only wants a pin should wait for it.
        drop(moment);
        empty(trash);
        Ok(part)
    }

    /// What all of it may take: what was said, and what the disk has.
    fn limit(&self, others: &[Kept], goes_on: bool) -> Result<u64, DataError> {
        let said = self.bytes_max.unwrap_or(u64::MAX);
        if goes_on {
            return Ok(said);
        }
        let disk = rustix::fs::statvfs(&self.root).on_disk("look at", &self.root)?;
        let stays_free = match self.bytes_max {
            Some(_) => 0,
            None => disk.f_blocks / DISK_FREE,
        };
        let free = disk
            .f_bavail
            .saturating_sub(stays_free)
            .saturating_mul(disk.f_frsize);
        let here: u64 = others.iter().map(|kept| kept.bytes).sum();
        Ok(said.min(here.saturating_add(free)))
    }

    /// Under the lock.
    fn kept(&self) -> Result<Vec<Kept>, DataError> {
        let mut kept = Vec::new();
        for (id, about) in self.versions()? {
            let version = id.trim_end_matches(PART);
            let is_part = id.ends_with(PART);
            let pinned = if is_part {
                disk::try_lock(&self.lock_of(version))?.is_none()
            } else {
                self.pins.any(version)?
            };
            kept.push(Kept {
                bytes: about.summary.footprint,
                used: self.used(&id),
                id,
                pinned,
            });
        }
        Ok(kept)
    }

    fn versions(&self) -> Result<Vec<(String, About)>, DataError> {
        let mut versions = Vec::new();
        for dir in pins::entries(&self.root)? {
            let Ok(text) = fs::read(dir.join("about.json")) else {
                continue;
            };
            if let (Ok(about), Some(id)) = (serde_json::from_slice(&text), dir.file_name()) {
                versions.push((id.to_string_lossy().into_owned(), about));
            }
        }
        Ok(versions)
    }

    /// What is here, the last used first.
    pub fn held(&self) -> Result<Vec<Held>, DataError> {
        let _moment = disk::lock(&self.root.join("lock"))?;
        let pinned: std::collections::BTreeMap<_, _> = self
            .kept()?
            .into_iter()
            .map(|kept| (kept.id, (kept.pinned, kept.used)))
            .collect();
        let held = self.versions()?.into_iter().map(|(id, about)| {
            let (in_use, used) = pinned.get(&id).copied().unwrap_or_default();
            Held {
                version: about.summary.version,
                name: about.name,
                uri: about.uri,
                scope: about.scope,
                files: about.summary.files,
                bytes: about.summary.bytes,
                is_whole: !id.ends_with(PART),
                in_use,
                used,
            }
        });
        let mut held: Vec<Held> = held.collect();
        held.sort_by(|a, b| (b.used, &a.version).cmp(&(a.used, &b.version)));
        Ok(held)
    }

    /// Removes every version of what comes from `uri` that nobody uses. Returns the bytes that are gone and how many versions are in use.
    pub fn evict(&self, uri: &str) -> Result<(u64, usize), DataError> {
        let uri = uri.trim_end_matches('/');
        let mut trash = Vec::new();
        let (mut bytes, mut in_use) = (0, 0);
        {
            let _moment = disk::lock(&self.root.join("lock"))?;
            let kept = self.kept()?;
            for (id, about) in self
                .versions()?
                .into_iter()
                .filter(|(_, about)| about.uri == uri)
            {
                if kept.iter().any(|kept| kept.id == id && kept.pinned) {
                    in_use += 1;
                } else {
                    bytes += about.summary.bytes;
                    trash.push(self.put_in_trash(&id)?);
                }
            }
        }
        empty(trash);
        Ok((bytes, in_use))
    }

    /// Takes away the pins that were kept for this name.
    pub fn unpin(&self, holder: &str) -> Result<(), DataError> {
        self.unpin_where(|name| name == holder)
    }

    /// Takes away the kept pins of everybody of whom that is said.
    pub fn unpin_where(&self, is_gone: impl Fn(&str) -> bool) -> Result<(), DataError> {
        let _moment = disk::lock(&self.root.join("lock"))?;
        self.pins.remove(is_gone)
    }

    /// What was staged of a version that no longer exists upstream.
    fn discard(&self, version: &str) -> Result<(), DataError> {
        let Some(_lock) = disk::try_lock(&self.lock_of(version))? else {
            return Ok(());
        };
        let part = format!("{version}{PART}");
        let moment = disk::lock(&self.root.join("lock"))?;
        if self.root.join(&part).is_dir() {
            let trash = self.put_in_trash(&part)?;
            drop(moment);
            empty(vec![trash]);
        }
        Ok(())
    }

    fn put_in_trash(&self, id: &str) -> Result<PathBuf, DataError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let (from, to) = (
            self.root.join(id),
            self.root
                .join("trash")
                .join(format!("{id}-{}-{next}", std::process::id())),
        );
        fs::rename(&from, &to).on_disk("remove", &from)?;
        Ok(to)
    }

    fn lock_of(&self, version: &str) -> PathBuf {
        self.root.join("locks").join(version)
    }

    fn touch(&self, version: &str) -> Result<(), DataError> {
        let path = self.root.join(version).join("used");
        let file = File::create(&path).on_disk("write", &path)?;
        file.set_modified(SystemTime::now()).on_disk("write", &path)
    }

    fn used(&self, id: &str) -> u64 {
        let dir = self.root.join(id);
        let marks = [
            dir.join("used"),
            dir.join("digests"),
            dir.join("about.json"),
        ];
        let used = marks
            .iter()
            .find_map(|path| fs::metadata(path).ok()?.modified().ok());
        used.and_then(|used| used.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |since| since.as_secs())
    }

    /// Files are not forced to the disk one by one, which would take longer than to fetch them. Where the machine went down before all
    /// of them were there, all are read once.
    fn may_have_lost_writes(&self, version: &str) -> bool {
        let dir = self.root.join(version);
        if dir.join("synced").is_file() {
            return false;
        }
        let about = fs::read(dir.join("about.json"))
            .ok()
            .and_then(|text| serde_json::from_slice::<About>(&text).ok());
        about.is_none_or(|about| about.boot != disk::boot_id())
    }

    fn sync_later(&self, version: &str) {
        let dir = self.root.join(version);
        // Nobody waits for it: it ends with the process at the latest, and says nothing if it failed.
        std::thread::spawn(move || {
            if File::open(&dir).is_ok_and(|tree| rustix::fs::syncfs(&tree).is_ok()) {
                let _ = File::create(dir.join("synced")).and_then(|mark| mark.sync_all());
            }
        });
    }
}

/// What cannot be removed now is, by whoever opens the cache next.
fn empty(trash: Vec<PathBuf>) {
    for dir in trash {
        if let Err(error) = fs::remove_dir_all(&dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %dir.display(), %error, "what left the data cache could not be removed yet");
        }
    }
}

fn said(bytes_max: Option<u64>) -> String {
    bytes_max.map_or_else(
        || "all but what should stay free".to_owned(),
        |bytes| bytes.to_string(),
    )
}

fn part_name(part: &Tree) -> String {
    part.dir
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn staged(whole: &Path, summary: &Summary, pin: Option<Guard>) -> Staged {
    Staged {
        path: whole.join("data"),
        version: summary.version.clone(),
        files: summary.files,
        bytes: summary.bytes,
        mended: Mended::default(),
        _pin: pin,
    }
}

/// Whether the cache lies where capitals and small letters are one.
fn folds_case(tmp: &Path) -> Result<bool, DataError> {
    let probe = tempfile::Builder::new()
        .prefix("case-")
        .suffix("-PROBE")
        .tempfile_in(tmp)
        .on_disk("write in", tmp)?;
    let name = probe
        .path()
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .replace("PROBE", "probe");
    Ok(tmp.join(name).exists())
}
