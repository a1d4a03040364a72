//! Brings a checkpoint back from an object store where the volume has none, or an older one.
//!
//! Invariant: nothing that is not complete there, or that arrives with other bytes than were sent, gets a name that is gone on from.
//! Invariant: a training whose checkpoints may lie in the store does not begin anew because the store could not be asked.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use stoke_api::contract::checkpoints::Checkpoint;
use stoke_api::contract::copies::{Asking, Duplicate, ahead, asking};
use stoke_data::{Credentials, DataError, Meter, Progress, Remote, complete_uploads, restore};

use super::fence::{Place, Refusal};
use super::shelf;

/// How long a store may take to say what there is: all in all where that hardly matters, else before it is said that one waits.
const BRIEFLY: Duration = Duration::from_secs(10);
/// And how long it is asked again and again, where it does.
const UNTIL_ANSWERED: Duration = Duration::from_secs(600);
/// How long a store may be silent before a try is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(15);
const TELL_EVERY: Duration = Duration::from_secs(10);
/// What is being brought back has a hidden name that ends like this.
const RESTORING: &str = ".restoring";

/// Where copies of checkpoints go, and come back from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub uri: String,
    /// Of this job below it.
    pub place: String,
    pub endpoint: Option<String>,
    /// A directory that has each key in a file of its name; none where requests are not signed.
    pub keys: Option<PathBuf>,
    /// Other jobs may have copies in the same place.
    pub is_shared: bool,
}

/// Why there is no talking to a store.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("cannot read the keys in {}: {why}; they come from the Secret in checkpoint.upload.secret", path.display())]
    Keys { path: PathBuf, why: String },
    #[error("{uri}: no answer within {} s", BRIEFLY.as_secs())]
    Silent { uri: String },
    #[error("cannot keep a checkpoint where nobody changes it until it is sent: {0}")]
    Outbox(std::io::Error),
}

impl Trouble {
    /// Whether other keys would help, which the job gives.
    fn is_for_keys(&self) -> bool {
        let is_data = |error: &DataError| {
            matches!(
                error,
                DataError::Refused { .. } | DataError::Uri { .. } | DataError::TargetIsFile { .. }
            )
        };
        match self {
            Self::Keys { .. } => true,
            Self::Data(error) => is_data(error),
            Self::Silent { .. } | Self::Outbox(_) => false,
        }
    }
}

impl Upload {
    /// Keys are read anew each time, for whoever has wrong ones puts right ones there.
    pub(super) fn open(&self) -> Result<Remote, Trouble> {
        let keys = self.keys().map_err(|why| Trouble::Keys {
            path: self.keys.clone().unwrap_or_default(),
            why,
        })?;
        let root = Remote::open_for_upload(&self.uri, self.endpoint.as_deref(), &keys)?;
        Ok(root.below(&self.place)?)
    }

    /// The keys as they are now, or why there are none.
    pub(super) fn keys(&self) -> Result<Credentials, String> {
        match &self.keys {
            Some(path) => read_keys(path),
            None => Ok(Credentials::default()),
        }
    }
}

/// A Secret's volume has links to files in it, and hidden names of its own.
fn read_keys(directory: &Path) -> Result<Credentials, String> {
    let mut keys = Vec::new();
    let entries = fs::read_dir(directory).map_err(|error| error.to_string())?;
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') {
            continue;
        }
        let text = fs::read_to_string(entry.path()).map_err(|error| format!("{name}: {error}"))?;
        keys.push((name, text));
    }
    if keys.is_empty() {
        return Err("there are none".to_owned());
    }
    Ok(Credentials::new(keys))
}

pub(super) async fn list(remote: &Remote, patience: Duration) -> Result<Vec<Duplicate>, Trouble> {
    let names = complete_uploads(remote, patience).await?;
    let parse = |name: &String| Duplicate::parse(name);
    Ok(names.iter().filter_map(parse).collect())
}

pub(super) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    // One thread: the processors are the program's.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Brings the newest copy back that is ahead of what is here, if there is one. Gives the name that it has here.
pub(super) fn bring_back(
    place: &Place,
    upload: &Upload,
    here: Option<&Checkpoint>,
    is_same_volume: bool,
    say: &mut dyn FnMut(String),
) -> Result<Option<String>, Refusal> {
    let asking = asking(
        place.attempt,
        upload.is_shared,
        is_same_volume,
        here.is_some(),
    );
    let brought = match asking {
        Asking::No => Ok(None),
        _ => ask(place, upload, here, asking, say),
    };
    if matches!(brought, Ok(None)) {
        // A part of a copy that nobody waits for only takes room.
        forget_others(&place.directory, "");
    }
    brought
}

fn ask(
    place: &Place,
    upload: &Upload,
    here: Option<&Checkpoint>,
    asking: Asking,
    say: &mut dyn FnMut(String),
) -> Result<Option<String>, Refusal> {
    let runtime = runtime().map_err(|source| Refusal::Volume {
        what: "bring checkpoints back to",
        directory: place.directory.clone(),
        source,
    })?;
    let (mut got_on, mut pause, mut told) = (Instant::now(), PAUSE_FIRST, String::new());
    let progress = Arc::new(Progress::default());
    loop {
        let before = progress.fetched_bytes();
        let tried = try_once(place, upload, here, asking, &progress, say);
        let trouble = match runtime.block_on(tried) {
            Ok(name) => return Ok(name),
            Err(trouble) => trouble,
        };
        let why = trouble.to_string();
        if progress.fetched_bytes() > before {
            // What arrived is kept, and the next try goes on from there.
            (got_on, pause) = (Instant::now(), PAUSE_FIRST);
        }
        if asking == Asking::Briefly {
            let from = here.map_or("the beginning", |here| here.name.as_str());
            say(format!(
                "goes on from {from} without having looked for a newer copy: {why}"
            ));
            return Ok(None);
        }
        if got_on.elapsed() >= UNTIL_ANSWERED {
            if matches!(trouble, Trouble::Data(DataError::DiskFull { .. })) {
                // A part that does not fit leaves no room for whoever would mend that.
                forget_others(&place.directory, "");
            }
            return Err(Refusal::NoCopies {
                attempt: place.attempt,
                directory: place.directory.clone(),
                seconds: UNTIL_ANSWERED.as_secs(),
                why,
                is_for_keys: trouble.is_for_keys(),
            });
        }
        if why != told {
            say(format!(
                "waits: there is no checkpoint in {}, and there may be a copy of one: {why}",
                place.directory.display()
            ));
            told = why;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn try_once(
    place: &Place,
    upload: &Upload,
    here: Option<&Checkpoint>,
    asking: Asking,
    progress: &Arc<Progress>,
    say: &mut dyn FnMut(String),
) -> Result<Option<String>, Trouble> {
    let remote = upload.open()?;
    let there = if asking == Asking::Briefly {
        let listed = tokio::time::timeout(BRIEFLY, list(&remote, BRIEFLY)).await;
        listed.map_err(|_| Trouble::Silent {
            uri: remote.uri().to_owned(),
        })??
    } else {
        list(&remote, BRIEFLY).await?
    };
    let mut last = None;
    for copy in ahead(&there, here) {
        let from = remote.below(&copy.to_string())?;
        let name = free_name(&place.directory, &copy);
        let target = place.directory.join(&name);
        forget_others(&place.directory, &name);
        say(format!(
            "brings the checkpoint of step {} back from {}",
            copy.step,
            from.uri()
        ));
        match fetch(place, &from, &target, progress, say).await {
            Ok(()) => match shelf::look(&target, &name) {
                Ok(found) => {
                    say(format!("brought {} bytes back, as {name}", found.bytes));
                    return Ok(Some(name));
                }
                Err(torn) => {
                    say(format!("{} is no checkpoint: {torn}", from.uri()));
                    let _ = shelf::remove(&place.directory, &name);
                }
            },
            Err(error) if is_of_this_one(&error) => {
                say(error.to_string());
                last = Some(error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    match last {
        // It is not nothing that is there.
        Some(error) if here.is_none() => Err(error.into()),
        _ => Ok(None),
    }
}

async fn fetch(
    place: &Place,
    from: &Remote,
    target: &Path,
    progress: &Arc<Progress>,
    say: &mut dyn FnMut(String),
) -> Result<(), DataError> {
    let (mut meter, begun) = (Meter::default(), Instant::now());
    let fetching = restore(from, target, SILENCE_MAX, progress);
    tokio::pin!(fetching);
    let mut tick = tokio::time::interval(TELL_EVERY);
    tick.tick().await;
    loop {
        tokio::select! {
            done = &mut fetching => return done,
            _ = tick.tick() => {
                place.tell_restored(progress.fetched_bytes());
                say(meter.told(begun.elapsed(), progress));
            }
        }
    }
}

/// Whether an older copy may be better. An object that is gone or short, or a manifest that cannot be read, stays so however long one waits.
fn is_of_this_one(error: &DataError) -> bool {
    matches!(
        error,
        DataError::Incomplete { .. }
            | DataError::Corrupt { .. }
            | DataError::Missing { .. }
            | DataError::Changed { .. }
            | DataError::Broken { .. }
            | DataError::Key { .. }
    )
}

/// Its own, unless something that is no checkpoint has it: that is left for whoever wants to look into it.
fn free_name(directory: &Path, copy: &Duplicate) -> String {
    let is_free = |name: &String| fs::symlink_metadata(directory.join(name)).is_err();
    let again = |n: u32| format!("restored-{n}-a{}-{}", copy.attempt, copy.name);
    let names = std::iter::once(copy.name.clone()).chain((1..1000).map(again));
    let mut free = names.into_iter().filter(is_free);
    free.next().unwrap_or_else(|| copy.name.clone())
}

/// What an earlier start had begun to bring back, and nobody goes on with.
fn forget_others(directory: &Path, name: &str) {
    let own = format!(".{name}{RESTORING}");
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        if found.starts_with('.') && found.ends_with(RESTORING) && found != own {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoke_api::contract::checkpoints::{EXIT_NO_COPIES, EXIT_NO_KEYS, MARKER};

    fn place(directory: &Path, attempt: u32) -> Place {
        Place {
            directory: directory.to_owned(),
            job: "uid".to_owned(),
            attempt,
            rank: 0,
            keep: None,
            upload: None,
        }
    }

    /// Copies in a directory.
    struct Store(tempfile::TempDir);

    impl Store {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a directory"))
        }

        fn upload(&self) -> Upload {
            Upload {
                uri: format!("file://{}", self.0.path().display()),
                place: "ns/j".to_owned(),
                endpoint: None,
                keys: None,
                is_shared: false,
            }
        }

        /// Sends a checkpoint of this step, as an attempt would.
        fn put(&self, copy: &str, step: u64) {
            let dir = tempfile::tempdir().expect("a directory");
            fs::write(dir.path().join("state"), step.to_string()).expect("a file");
            fs::write(dir.path().join(MARKER), format!(r#"{{"step": {step}}}"#)).expect("a marker");
            let remote = self.upload().open().expect("a store");
            let shipment = stoke_data::Shipment {
                dir: dir.path().to_owned(),
                to: remote.below(copy).expect("a place"),
                journal: self.0.path().join("journal"),
                patience: SILENCE_MAX,
            };
            let progress = Arc::default();
            let sent = stoke_data::upload(shipment, &progress);
            runtime().expect("a runtime").block_on(sent).expect("sent");
        }

        fn file(&self, copy: &str, name: &str) -> PathBuf {
            self.0.path().join("ns/j").join(copy).join(name)
        }
    }

    fn here(step: u64) -> Checkpoint {
        Checkpoint {
            name: format!("step-{step}"),
            step: Some(step),
            attempt: 0,
            bytes: 1,
            seconds: None,
        }
    }

    #[test]
    fn the_newest_whole_copy_comes_back_and_nothing_that_is_torn() {
        let store = Store::new();
        for (copy, step) in [
            ("s5.a1.uid.step-5", 5),
            ("s7.a2.uid.step-7", 7),
            ("s8.a2.uid.step-8", 8),
            ("s9.a2.uid.step-9", 9),
        ] {
            store.put(copy, step);
        }
        // One that was never finished, and one whose bytes have changed since.
        fs::remove_file(store.file("s9.a2.uid.step-9", stoke_data::MANIFEST)).expect("removed");
        fs::write(store.file("s8.a2.uid.step-8", "state"), "X").expect("damaged");
        let dir = tempfile::tempdir().expect("a directory");
        // Something that is no checkpoint has the name.
        fs::create_dir(dir.path().join("step-7")).expect("a directory");
        let (mut told, upload) = (Vec::new(), store.upload());
        let mut say = |line| told.push(line);
        let bring = |attempt, here: Option<&Checkpoint>, say: &mut dyn FnMut(String)| {
            bring_back(&place(dir.path(), attempt), &upload, here, false, say).expect("an answer")
        };
        assert_eq!(bring(1, None, &mut say), None, "there can be none");
        assert_eq!(bring(3, Some(&here(9)), &mut say), None);
        let name = bring(3, Some(&here(6)), &mut say).expect("a checkpoint");
        assert_eq!(name, "restored-1-a2-step-7");
        let state = fs::read_to_string(dir.path().join(&name).join("state"));
        assert_eq!(state.expect("its state"), "7");
        assert_eq!(
            shelf::look(&dir.path().join(&name), &name).map(|it| it.step),
            Ok(Some(7))
        );
        assert!(
            told.iter().any(|line| line.contains("wrong bytes")),
            "{told:?}"
        );
        assert!(!dir.path().join("step-8").exists() && !dir.path().join("step-9").exists());
        let fresh = tempfile::tempdir().expect("a directory");
        let name = bring_back(&place(fresh.path(), 3), &upload, None, false, &mut |_| ());
        assert_eq!(name.expect("an answer").as_deref(), Some("step-7"));
        let names = fs::read_dir(fresh.path()).expect("a directory");
        assert_eq!(names.count(), 1, "nothing is left of what was torn");
    }

    #[test]
    fn a_copy_that_lost_something_gives_way_to_an_older_one() {
        let newest = "s9.a2.uid.step-9";
        let manifest = stoke_data::MANIFEST;
        for (what, file, text) in [
            ("an object is gone", "state", None),
            ("an object is short", "state", Some("")),
            ("its manifest is nonsense", manifest, Some("{")),
            (
                "its manifest is of another version",
                manifest,
                Some(r#"{"format": 2, "files": []}"#),
            ),
        ] {
            let store = Store::new();
            store.put("s5.a1.uid.step-5", 5);
            store.put(newest, 9);
            let file = store.file(newest, file);
            match text {
                Some(text) => fs::write(file, text).expect("damaged"),
                None => fs::remove_file(file).expect("removed"),
            }
            let dir = tempfile::tempdir().expect("a directory");
            let (place, upload) = (place(dir.path(), 3), store.upload());
            let mut told = Vec::new();
            let mut say = |line| told.push(line);
            let runtime = runtime().expect("a runtime");
            let asking = Asking::UntilAnswered;
            let progress = Arc::default();
            let tried = try_once(&place, &upload, None, asking, &progress, &mut say);
            let brought = runtime.block_on(tried);
            let brought = brought.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(brought.as_deref(), Some("step-5"), "{what}: {told:?}");
        }
    }

    #[test]
    fn a_store_that_cannot_be_asked_holds_nobody_up_who_has_a_checkpoint_or_the_same_volume() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("file"), "no directory").expect("a file");
        let upload = Upload {
            uri: format!("file://{}/file", dir.path().display()),
            ..Store::new().upload()
        };
        for (here, is_same_volume) in [(Some(here(3)), false), (None, true)] {
            let part = dir.path().join(".step-9.restoring");
            fs::create_dir(&part).expect("a directory");
            let mut told = Vec::new();
            let brought = bring_back(
                &place(dir.path(), 2),
                &upload,
                here.as_ref(),
                is_same_volume,
                &mut |line| told.push(line),
            );
            assert_eq!(brought.expect("it goes on"), None);
            assert!(!part.exists(), "it takes room for nothing");
            let from = here.map_or("the beginning", |_| "step-3");
            let expected =
                format!("goes on from {from} without having looked for a newer copy: file://");
            assert!(told[0].starts_with(&expected), "{told:?}");
        }
        let (uri, why) = ("s3://b".to_owned(), "no".to_owned());
        for (trouble, expected) in [
            (Trouble::Silent { uri: uri.clone() }, EXIT_NO_COPIES),
            (
                Trouble::Keys {
                    path: "/keys".into(),
                    why: why.clone(),
                },
                EXIT_NO_KEYS,
            ),
            (DataError::Refused { uri, why }.into(), EXIT_NO_KEYS),
        ] {
            let refusal = Refusal::NoCopies {
                attempt: 2,
                directory: "/ckpt".into(),
                seconds: 600,
                is_for_keys: trouble.is_for_keys(),
                why: trouble.to_string(),
            };
            assert_eq!(refusal.exit_code(), expected, "{refusal}");
        }
    }

    #[test]
    fn keys_are_the_files_of_a_secret() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read_keys(dir.path()), Err("there are none".to_owned()));
        fs::create_dir(dir.path().join("..data")).expect("a directory");
        fs::write(dir.path().join("AWS_ACCESS_KEY_ID"), "id\n").expect("a file");
        let expected = Credentials::new([("AWS_ACCESS_KEY_ID".to_owned(), "id".to_owned())]);
        assert_eq!(read_keys(dir.path()), Ok(expected));
        let upload = Upload {
            keys: Some(dir.path().join("gone")),
            ..Store::new().upload()
        };
        let said = upload.open().expect_err("no keys").to_string();
        assert!(said.contains("checkpoint.upload.secret"), "{said}");
    }
}
