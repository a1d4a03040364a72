//! Who may write checkpoints: one attempt of one job at a time.
//!
//! Two things keep another out. A lock, which is held for as long as any process is alive that inherited it, and which reaches as far as the
//! machine does, or its network file system's locks. And a record of who has it, which reaches as far as the volume: who finds a later
//! attempt there does not begin, or ends what it watches over.
//!
//! Invariant: nothing in the directory is changed without the lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use stoke_api::contract::checkpoints::{
    EXIT_FENCED, EXIT_NO_COPIES, EXIT_NO_KEYS, EXIT_NO_VOLUME, EXIT_NOT_READY, HOLDER, Holder,
    LOCK, OWN_DIR, RESTORED, Stage, newest,
};

use super::copies::{self, Upload};
use super::outbox::Outbox;
use super::shelf;

/// How long the processes of an earlier attempt are waited for: longer than any grace period that leaves them time for a checkpoint.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(600);
/// How long the first worker is waited for by the others, or for as long as it gets on with a copy that it brings back. Its node may have an
/// image to pull.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(1_800);
/// When it is said that one waits.
const SAY_AFTER: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(100);
/// What a watcher on another machine needs at most to see that it was superseded and to end its program.
const SETTLES_IN: Duration = Duration::from_secs(4);
const HOLDER_LENGTH_MAX: u64 = 4096;

/// A worker's place among those that write checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub directory: PathBuf,
    /// The job's uid.
    pub job: String,
    pub attempt: u32,
    pub rank: u32,
    /// How many checkpoints are kept; all where absent.
    pub keep: Option<u32>,
    /// Where copies of them go, if anywhere.
    pub upload: Option<Upload>,
}

/// Why a worker may not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(
        "attempt {attempt} does not begin: attempt {by} has the checkpoints in {} already",
        directory.display()
    )]
    Superseded {
        attempt: u32,
        by: u32,
        directory: PathBuf,
    },
    #[error(
        "attempt {attempt} does not begin: processes of {of} still hold the checkpoints in {} after {} s",
        directory.display(),
        LOCK_WAIT_MAX.as_secs()
    )]
    Held {
        attempt: u32,
        of: String,
        directory: PathBuf,
    },
    #[error(
        "attempt {attempt} does not begin: its first worker has not said for {} s which checkpoint in {} to go on from",
        FIRST_WAIT_MAX.as_secs(),
        directory.display()
    )]
    Alone { attempt: u32, directory: PathBuf },
    #[error(
        "attempt {attempt} does not begin: there is no checkpoint in {}, and whether there is a copy of one could not be learned for {seconds} s: {why}",
        directory.display()
    )]
    NoCopies {
        attempt: u32,
        directory: PathBuf,
        seconds: u64,
        why: String,
        /// It is for the job to put that right.
        is_for_keys: bool,
    },
    #[error("there is no directory {}, where checkpoints are kept: is its volume mounted there?", .0.display())]
    Missing(PathBuf),
    #[error("cannot {what} {}, where checkpoints are kept: {source}{}", directory.display(), hint(source))]
    Volume {
        what: &'static str,
        directory: PathBuf,
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ROFS) => "; the volume is read-only: mend it, or give the job another",
        Some(Errno::NOSPC | Errno::DQUOT) => {
            "; the volume is full: remove what is not needed, keep fewer (checkpoint.keep), or give it more (checkpoint.size)"
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "; the worker's user may not write there: set template.spec.securityContext.fsGroup, or change the owner"
        }
        _ => "",
    }
}

impl Refusal {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Superseded { .. } => EXIT_FENCED,
            Self::Held { .. } | Self::Alone { .. } => EXIT_NOT_READY,
            Self::NoCopies { is_for_keys, .. } => {
                if *is_for_keys {
                    EXIT_NO_KEYS
                } else {
                    EXIT_NO_COPIES
                }
            }
            Self::Missing(_) | Self::Volume { .. } => EXIT_NO_VOLUME,
        }
    }
}

/// What a worker begins with.
#[derive(Debug)]
pub(super) struct Entered {
    /// The checkpoint to go on from.
    pub(super) resume: Option<PathBuf>,
    /// Held for as long as it, or what inherited it, is open.
    pub(super) lock: Option<File>,
}

/// Waits until this worker may begin. All workers of an attempt go on from the same checkpoint: the first has the lock and says which.
pub(super) fn enter(place: &Place, say: &mut dyn FnMut(String)) -> Result<Entered, Refusal> {
    if !place.directory.is_dir() {
        return Err(Refusal::Missing(place.directory.clone()));
    }
    if place.rank == 0 {
        lead(place, say)
    } else {
        follow(place, say)
    }
}

fn lead(place: &Place, say: &mut dyn FnMut(String)) -> Result<Entered, Refusal> {
    let directory = &place.directory;
    let volume = |what| {
        let directory = directory.clone();
        move |source| Refusal::Volume {
            what,
            directory,
            source,
        }
    };
    let own = directory.join(OWN_DIR);
    fs::create_dir_all(&own).map_err(volume("write to"))?;
    place.check()?;
    let lock = place.lock(&own, say)?;
    // Whoever had it may have been a later attempt.
    let before = place.check()?;
    let is_same_volume = before
        .as_ref()
        .is_some_and(|before| place.holder().knows_volume(before));
    let record = |holder: &Holder| {
        let text = serde_json::to_string(holder).unwrap_or_default();
        shelf::write(&own.join(HOLDER), &text).map_err(volume("write to"))
    };
    // Whoever the lock does not keep out reads this, and is gone before anything here is chosen or removed.
    let taking_over = Holder {
        stage: if is_same_volume {
            Stage::TakesOver
        } else {
            Stage::Enters
        },
        ..place.holder()
    };
    record(&taking_over)?;
    if before.is_some_and(|before| before.boot != taking_over.boot) {
        thread::sleep(SETTLES_IN);
    }

    let entries = shelf::entries(directory, |_| false).map_err(volume("read"))?;
    for name in shelf::tidy(directory, &entries) {
        say(format!(
            "removed {name}, which an earlier attempt had not finished"
        ));
    }
    for entry in &entries {
        if let Err(torn) = &entry.found
            && torn.is_worth_telling()
        {
            say(format!("{} is no checkpoint: {torn}", entry.name));
        }
    }
    let complete = entries.iter().filter_map(|entry| entry.found.as_ref().ok());
    let mut resume = newest(complete).map(|it| it.name.clone());
    if let Some(upload) = &place.upload {
        let complete = entries.iter().filter_map(|entry| entry.found.as_ref().ok());
        let brought = copies::bring_back(place, upload, newest(complete), is_same_volume, say)?;
        // It is ahead of all that is here.
        resume = brought.or(resume);
        let _ = fs::remove_file(own.join(RESTORED));
    } else {
        // What an earlier attempt had to send, before its author thought better of it.
        Outbox::of(directory).close();
    }
    // That may have taken long.
    place.check()?;
    record(&Holder {
        resume: resume.clone(),
        ..place.holder()
    })?;
    Ok(Entered {
        resume: resume.map(|name| directory.join(name)),
        lock: Some(lock),
    })
}

fn follow(place: &Place, say: &mut dyn FnMut(String)) -> Result<Entered, Refusal> {
    let mut patience = Patience::of(FIRST_WAIT_MAX);
    let mut restored = None;
    loop {
        let recorded = place.check()?;
        let own = recorded.filter(|it| it.job == place.job && it.attempt == place.attempt);
        if let Some(own) = own.filter(|own| own.stage == Stage::Chosen) {
            return Ok(Entered {
                resume: own.resume.map(|name| place.directory.join(name)),
                lock: None,
            });
        }
        if patience.is_over() && place.gets_on(&mut restored) {
            patience = Patience::of(FIRST_WAIT_MAX);
        }
        if patience.is_over() {
            return Err(Refusal::Alone {
                attempt: place.attempt,
                directory: place.directory.clone(),
            });
        }
        if patience.is_to_be_told() {
            say("waits for the first worker to say which checkpoint to go on from".to_owned());
        }
        thread::sleep(POLL_EVERY);
    }
}

impl Place {
    pub(super) fn holder(&self) -> Holder {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Holder {
            job: self.job.clone(),
            attempt: self.attempt,
            boot: boot.trim().to_owned(),
            ..Holder::default()
        }
    }

    /// Who is on record.
    pub(super) fn recorded(&self) -> Option<Holder> {
        let path = self.directory.join(OWN_DIR).join(HOLDER);
        serde_json::from_str(&shelf::text(&path, HOLDER_LENGTH_MAX)?).ok()
    }

    /// Says how far a copy is that is brought back.
    pub(super) fn tell_restored(&self, bytes: u64) {
        let path = self.directory.join(OWN_DIR).join(RESTORED);
        // Who is not told of this is told of the next.
        let _ = shelf::write(&path, &format!("{} {bytes}", self.attempt));
    }

    /// Whether more of a copy has been brought back since the last time.
    fn gets_on(&self, before: &mut Option<u64>) -> bool {
        let path = self.directory.join(OWN_DIR).join(RESTORED);
        let text = shelf::text(&path, HOLDER_LENGTH_MAX).unwrap_or_default();
        let (attempt, bytes) = text.split_once(' ').unwrap_or_default();
        let is_own = attempt.parse() == Ok(self.attempt);
        let now = bytes.parse().ok().filter(|_| is_own);
        now.is_some() && std::mem::replace(before, now) != now
    }

    /// Whether it has been superseded while it runs, and by whom.
    pub(super) fn superseded_by(&self) -> Option<Holder> {
        let recorded = self.recorded()?;
        self.holder().gives_way_to(&recorded).then_some(recorded)
    }

    /// Who is on record, if that lets this one begin.
    fn check(&self) -> Result<Option<Holder>, Refusal> {
        match self.recorded() {
            Some(recorded) if self.holder().comes_too_late_for(&recorded) => {
                Err(Refusal::Superseded {
                    attempt: self.attempt,
                    by: recorded.attempt,
                    directory: self.directory.clone(),
                })
            }
            recorded => Ok(recorded),
        }
    }

    /// One that programs inherit, so that it is held until the last of them is gone.
    fn lock(&self, own: &Path, say: &mut dyn FnMut(String)) -> Result<File, Refusal> {
        let volume = |source| Refusal::Volume {
            what: "lock",
            directory: self.directory.clone(),
            source,
        };
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).read(true).write(true);
        let lock = options.open(own.join(LOCK)).map_err(volume)?;
        let mut patience = Patience::of(LOCK_WAIT_MAX);
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                // There are file systems without; the record is what is left.
                Err(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => {
                    say(format!(
                        "{} cannot be locked; that one attempt writes at a time rests on {OWN_DIR}/{HOLDER} alone",
                        self.directory.display()
                    ));
                    break;
                }
                Err(error) => return Err(volume(error.into())),
            }
            let recorded = self.check()?;
            let of = recorded.map_or_else(
                || "an earlier attempt".to_owned(),
                |recorded| format!("attempt {}", recorded.attempt),
            );
            if patience.is_over() {
                return Err(Refusal::Held {
                    attempt: self.attempt,
                    of,
                    directory: self.directory.clone(),
                });
            }
            if patience.is_to_be_told() {
                say(format!(
                    "waits: processes of {of} still run and may write checkpoints to {}",
                    self.directory.display()
                ));
            }
            thread::sleep(POLL_EVERY);
        }
        fcntl_setfd(&lock, FdFlags::empty()).map_err(|error| volume(error.into()))?;
        Ok(lock)
    }
}

struct Patience {
    begun: Instant,
    max: Duration,
    is_told: bool,
}

impl Patience {
    fn of(max: Duration) -> Self {
        Self {
            begun: Instant::now(),
            max,
            is_told: false,
        }
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.max
    }

    fn is_to_be_told(&mut self) -> bool {
        let is_time = !self.is_told && self.begun.elapsed() >= SAY_AFTER;
        self.is_told |= is_time;
        is_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_api::contract::checkpoints::{MARKER, NOT_BEGUN, SAID_BY_US};

    fn place(directory: &Path, attempt: u32, rank: u32) -> Place {
        Place {
            directory: directory.to_owned(),
            job: "uid".to_owned(),
            attempt,
            rank,
            keep: None,
            upload: None,
        }
    }

    fn save(directory: &Path, name: &str, marker: Option<&str>) {
        let path = directory.join(name);
        fs::create_dir(&path).expect("a directory");
        fs::write(path.join("state"), "0123456789").expect("a file");
        if let Some(marker) = marker {
            fs::write(path.join(MARKER), marker).expect("a marker");
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).into_string().expect("a name"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_newest_whole_one_is_gone_on_from_and_what_is_half_done_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        save(root, "step-9", Some(r#"{"step": 9}"#));
        save(
            root,
            "step-10",
            Some(r#"{"step": 10, "files": [{"path": "state", "bytes": 10}]}"#),
        );
        save(
            root,
            "step-11",
            Some(r#"{"step": 11, "files": [{"path": "state", "bytes": 11}]}"#),
        );
        save(root, "step-12", None);
        save(root, ".step-13.writing", Some("{}"));
        save(root, "logs", None);
        fs::create_dir_all(root.join(OWN_DIR).join("outbox/s1.a1.uid.step-1")).expect("an outbox");
        let mut told = Vec::new();
        let entered = enter(&place(root, 1, 0), &mut |line| told.push(line)).expect("entered");
        assert_eq!(entered.resume, Some(root.join("step-10")));
        assert_eq!(
            names(root),
            [OWN_DIR, "logs", "step-10", "step-11", "step-9"]
        );
        assert_eq!(
            names(&root.join(OWN_DIR)),
            [HOLDER, LOCK],
            "no copies are wanted any more"
        );
        told.sort();
        assert_eq!(
            told,
            [
                "removed .step-13.writing, which an earlier attempt had not finished",
                "removed step-12, which an earlier attempt had not finished",
                "step-11 is no checkpoint: state has 10 bytes of 11",
            ]
        );
        // The others are told, and do not look for themselves.
        save(root, "step-99", Some("{}"));
        let other = enter(&place(root, 1, 1), &mut |_| ()).expect("entered");
        assert_eq!(other.resume, entered.resume);
        assert!(other.lock.is_none());
    }

    #[test]
    fn a_later_attempt_waits_for_the_lock_and_an_earlier_one_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let second = enter(&place(root, 2, 0), &mut |_| ()).expect("entered");
        let mut nothing = |_| ();
        for rank in [0, 1] {
            let refused = enter(&place(root, 1, rank), &mut nothing).expect_err("too late");
            assert_eq!(refused.exit_code(), EXIT_FENCED);
            let said = refused.to_string();
            assert!(
                said.starts_with("attempt 1 does not begin: attempt 2 has"),
                "{said}"
            );
        }
        let later = place(root, 3, 0);
        let waiting = thread::spawn(move || {
            let mut told = Vec::new();
            let entered = enter(&later, &mut |line| told.push(line));
            (entered.map(|entered| entered.resume), told)
        });
        // Until it says that it waits, it has been kept out for as long.
        thread::sleep(SAY_AFTER + POLL_EVERY * 3);
        assert!(!waiting.is_finished(), "the lock is held");
        assert_eq!(place(root, 2, 0).superseded_by(), None);
        save(root, "step-5", Some("{}"));
        drop(second);
        let (entered, told) = waiting.join().expect("no panic");
        assert_eq!(
            entered.expect("entered"),
            Some(root.join("step-5")),
            "what was written meanwhile"
        );
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("attempt 2 still run"), "{told:?}");
        let by = place(root, 2, 0).superseded_by().expect("superseded");
        assert_eq!(by.attempt, 3);
    }

    #[test]
    fn whoever_the_lock_does_not_reach_is_told_before_anything_is_chosen_or_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().to_owned();
        let first = place(&root, 1, 0);
        drop(enter(&first, &mut |_| ()).expect("entered"));
        let holder = Holder {
            boot: "of another machine".to_owned(),
            ..first.holder()
        };
        let record = root.join(OWN_DIR).join(HOLDER);
        fs::write(&record, serde_json::to_string(&holder).expect("JSON")).expect("a record");
        save(&root, "step-1", Some("{}"));
        save(&root, ".step-2.writing", None);
        let second = place(&root, 2, 0);
        let taking_over = thread::spawn({
            let second = second.clone();
            move || enter(&second, &mut |_| ()).map(|entered| entered.resume)
        });
        while first.superseded_by().is_none() {
            thread::sleep(POLL_EVERY);
        }
        // The first still runs, and finishes what it writes.
        fs::write(root.join(".step-2.writing").join(MARKER), "{}").expect("nothing is removed");
        fs::rename(root.join(".step-2.writing"), root.join("step-2")).expect("moved");
        let recorded = second.recorded().expect("a record");
        assert_eq!((recorded.stage, recorded.resume), (Stage::TakesOver, None));
        let follower = enter(&place(&root, 2, 1), &mut |_| ()).expect("entered");
        assert_eq!(follower.resume, Some(root.join("step-2")));
        let entered = taking_over.join().expect("no panic").expect("entered");
        assert_eq!(entered, follower.resume);
    }

    #[test]
    fn a_first_worker_that_brings_a_copy_back_is_waited_for_while_it_gets_on() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join(OWN_DIR)).expect("a directory");
        let (first, other, mut seen) = (place(dir.path(), 3, 0), place(dir.path(), 3, 1), None);
        assert!(!other.gets_on(&mut seen), "it brings nothing back");
        place(dir.path(), 2, 0).tell_restored(9);
        assert!(!other.gets_on(&mut seen), "an earlier attempt did");
        first.tell_restored(5);
        assert!(other.gets_on(&mut seen));
        assert!(!other.gets_on(&mut seen), "nothing more has come");
        first.tell_restored(6);
        assert!(other.gets_on(&mut seen));
        let alone = Refusal::Alone {
            attempt: 3,
            directory: "/ckpt".into(),
        };
        let said = format!("stokehold: {alone}");
        assert_eq!(alone.exit_code(), EXIT_NOT_READY, "that is counted");
        assert!(said.starts_with(SAID_BY_US) && said.contains(NOT_BEGUN));
    }

    #[test]
    fn another_job_that_has_the_volume_now_counts_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = place(dir.path(), 7, 0);
        drop(enter(&first, &mut |_| ()).expect("entered"));
        let other = Place {
            job: "another".to_owned(),
            ..place(dir.path(), 1, 0)
        };
        let entered = enter(&other, &mut |_| ()).expect("entered");
        assert_eq!(first.superseded_by().map(|by| by.attempt), Some(1));
        assert_eq!(other.superseded_by(), None);
        drop(entered);
    }

    #[test]
    fn a_volume_that_cannot_be_used_is_told_with_what_helps() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = enter(&place(&dir.path().join("no"), 1, 0), &mut |_| ());
        let refused = refused.expect_err("missing");
        assert_eq!(refused.exit_code(), EXIT_NO_VOLUME);
        assert!(refused.to_string().contains("is its volume mounted there?"));
        for (code, words) in [
            (Errno::NOSPC, "the volume is full"),
            (Errno::ROFS, "the volume is read-only"),
            (Errno::ACCESS, "may not write there"),
        ] {
            let refused = Refusal::Volume {
                what: "write to",
                directory: PathBuf::from("/ckpt"),
                source: code.into(),
            };
            assert_eq!(refused.exit_code(), EXIT_NO_VOLUME);
            let said = refused.to_string();
            assert!(
                said.starts_with("cannot write to /ckpt") && said.contains(words),
                "{said}"
            );
        }
        // What cannot hold our own directory, whoever asks.
        fs::write(dir.path().join(OWN_DIR), "").expect("a file");
        let refused = enter(&place(dir.path(), 1, 0), &mut |_| ()).expect_err("in the way");
        assert_eq!(refused.exit_code(), EXIT_NO_VOLUME, "{refused}");
    }
}
