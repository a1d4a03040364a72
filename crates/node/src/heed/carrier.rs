//! Sends copies of checkpoints to an object store, beside a program that never waits for it.
//!
//! A process of its own, at the lowest priority. It follows the directory by itself, sends the newest that is complete, one at a time, and
//! tries again for as long as the worker lives. What it has begun is gone on with by the next attempt.
//!
//! Invariant: no key is in its arguments, its environment, or anything that it says or writes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rustix::process::{getppid, setpriority_process};
use stoke_api::contract::checkpoints::Checkpoint;
use stoke_api::contract::copies::{
    CARRIED, Carried, Duplicate, Sender, Uploaded, excess, next, short,
};
use stoke_data::{
    Progress, Receipt, Remote, Shipment, abandon_upload, find_damage, remove_upload, upload,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::copies::{Trouble, Upload, list, runtime};
use super::fence::Place;
use super::outbox::Outbox;
use super::{say, shelf};

const LOOK_EVERY: Duration = Duration::from_secs(1);
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Once the program is over, there is no time for long pauses.
const PAUSE_MAX_AT_END: Duration = Duration::from_secs(3);
/// What it is told where somebody waits for the worker's end.
pub const HURRY: &[u8] = b"hurry";
/// So often in a row nothing at all gets through then before the end is held up no longer.
const TRIES_IN_A_HURRY: u32 = 2;
/// How long a store may be silent before a try is given up, and what is newest then is tried.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const SILENCE_MAX_IN_A_HURRY: Duration = Duration::from_secs(10);
/// As low as it gets. What is read from a disk waits behind others for it too.
const NICENESS: i32 = 19;

/// Carries copies for as long as its parent lives and no later attempt has taken over. When its input ends, the program is over: then it
/// ends when the newest is there, or where its input said [`HURRY`] when nothing gets through.
pub fn carry(place: &Place, upload: &Upload, status: &Path) -> ExitCode {
    let _ = setpriority_process(None, NICENESS);
    let parent = getppid();
    let Ok(runtime) = runtime() else {
        say("copies of checkpoints are not sent: no threads to be had".to_owned());
        return ExitCode::FAILURE;
    };
    let end = Arc::new(End::default());
    let told = end.clone();
    thread::spawn(move || {
        let mut said = Vec::new();
        let _ = io::stdin().read_to_end(&mut said);
        told.is_in_a_hurry
            .store(!said.is_empty(), Ordering::Relaxed);
        told.has_come.store(true, Ordering::Relaxed);
        told.notify.notify_one();
    });
    let is_to_stop = || getppid() != parent || place.superseded_by().is_some();
    runtime.block_on(async {
        // Whoever is to end ends the program; this one is told by its input.
        let _deaf = [
            SignalKind::terminate(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ]
        .map(signal);
        let mut carrier = Carrier::new(place, upload, status);
        tokio::select! {
            () = carrier.run(&end) => {}
            () = until(is_to_stop) => {}
        }
    });
    ExitCode::SUCCESS
}

#[derive(Debug, Default)]
struct End {
    has_come: AtomicBool,
    is_in_a_hurry: AtomicBool,
    notify: Notify,
}

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

struct Carrier<'a> {
    place: &'a Place,
    upload: &'a Upload,
    status: &'a Path,
    outbox: Outbox<'a>,
    here: BTreeMap<String, (SystemTime, Checkpoint)>,
    /// What the attempt began with.
    found: Option<BTreeSet<String>>,
    /// What is complete there; unknown until it was asked, and after anything went wrong.
    there: Option<Vec<Duplicate>>,
    /// The newest copy, until it was held against what was sent. Its files are kept so long, to be sent again.
    unproven: Option<(Duplicate, Receipt)>,
    carried: Carried,
    progress: Arc<Progress>,
    has_told_of_one: bool,
    has_told_of_unordered: bool,
}

impl<'a> Carrier<'a> {
    fn new(place: &'a Place, upload: &'a Upload, status: &'a Path) -> Self {
        Self {
            place,
            upload,
            status,
            outbox: Outbox::of(&place.directory),
            here: BTreeMap::new(),
            found: None,
            there: None,
            unproven: None,
            carried: Carried::default(),
            progress: Arc::default(),
            has_told_of_one: false,
            has_told_of_unordered: false,
        }
    }

    async fn run(&mut self, end: &End) {
        let (mut pause, mut fruitless) = (PAUSE_FIRST, 0);
        loop {
            let is_ending = end.has_come.load(Ordering::Relaxed);
            let is_in_a_hurry = is_ending && end.is_in_a_hurry.load(Ordering::Relaxed);
            let sent = self.progress.fetched_bytes();
            self.look();
            let silence_max = if is_in_a_hurry {
                SILENCE_MAX_IN_A_HURRY
            } else {
                SILENCE_MAX
            };
            let turned = match self.send_newest(silence_max).await {
                // Who waits for the end waits for what is not there yet, and for nothing else.
                Ok(false) if !is_in_a_hurry => self.prove_newest(silence_max).await,
                sent => sent,
            };
            match turned {
                Ok(true) => pause = PAUSE_FIRST,
                // Looked at after the end had come, so there is nothing more to come.
                Ok(false) if is_ending => {
                    if let Some((copy, _)) = self.unproven.take() {
                        self.outbox.drop(&copy);
                    }
                    return;
                }
                Ok(false) => {
                    pause = PAUSE_FIRST;
                    self.fares(None);
                    tokio::select! {
                        () = tokio::time::sleep(LOOK_EVERY) => {}
                        () = end.notify.notified() => {}
                    }
                }
                Err(trouble) => {
                    self.there = None;
                    self.outbox.give_room_back();
                    self.fares(Some(trouble.to_string()));
                    let has_sent = self.progress.fetched_bytes() > sent;
                    fruitless = match (is_in_a_hurry, has_sent) {
                        (true, false) => fruitless + 1,
                        _ => 0,
                    };
                    if fruitless == TRIES_IN_A_HURRY {
                        say(format!(
                            "the last checkpoint is not copied; it is in the volume still: {trouble}"
                        ));
                        return;
                    }
                    let max = if is_ending {
                        PAUSE_MAX_AT_END
                    } else {
                        PAUSE_MAX
                    };
                    let keys = self.upload.keys();
                    tokio::select! {
                        () = tokio::time::sleep(pause.min(max)) => {}
                        // Someone may have put it right.
                        () = until(|| self.upload.keys() != keys) => pause = PAUSE_FIRST,
                        () = end.notify.notified() => {}
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// What is complete here. One whose marker was written anew is another.
    fn look(&mut self) {
        let directory = &self.place.directory;
        let marked = |name: &str| shelf::marked_at(directory, name);
        self.here
            .retain(|name, (then, _)| marked(name) == Some(*then));
        let here = &self.here;
        // A volume that does not answer just now may answer the next time.
        let Ok(entries) = shelf::entries(directory, |name| here.contains_key(name)) else {
            return;
        };
        for entry in entries {
            if let (Ok(found), Some(at)) = (entry.found, marked(&entry.name)) {
                if found.step.is_none() && !std::mem::replace(&mut self.has_told_of_unordered, true)
                {
                    say(format!(
                        "{} is not copied: neither its file `complete` nor its name says its step, so nobody could tell which copy is the newest",
                        entry.name
                    ));
                }
                self.here.insert(entry.name, (at, found));
            }
        }
        self.found
            .get_or_insert_with(|| self.here.keys().cloned().collect());
    }

    fn next(&self, there: &[Duplicate]) -> Option<Duplicate> {
        let sender = Sender {
            job: short(&self.place.job),
            attempt: self.place.attempt,
        };
        let here = self.here.values().map(|(_, it)| it);
        let nothing = BTreeSet::new();
        let found = self.found.as_ref().unwrap_or(&nothing);
        next(sender, here, found, &self.outbox.names(), there)
    }

    /// True if one was sent, and there may be a newer by now.
    async fn send_newest(&mut self, silence_max: Duration) -> Result<bool, Trouble> {
        let asked = self.there.as_deref();
        // Nothing to send, whatever is there: nobody is asked.
        let Some(copy) = self.next(asked.unwrap_or_default()) else {
            return Ok(false);
        };
        let remote = self.upload.open()?;
        let copy = if asked.is_some() {
            copy
        } else {
            let there = list(&remote, silence_max).await?;
            let copy = self.next(&there);
            self.there = Some(there);
            let Some(copy) = copy else {
                self.tidy(&remote, None).await;
                return Ok(false);
            };
            copy
        };
        self.tidy(&remote, Some(&copy)).await;
        let shipment = Shipment {
            dir: self.outbox.put(&copy).map_err(Trouble::Outbox)?,
            to: remote.below(&copy.to_string())?,
            journal: self.outbox.journal(&copy),
            patience: silence_max,
        };
        let shipped = upload(shipment, &self.progress).await?;
        self.unproven = Some((copy.clone(), shipped.receipt));
        let now = Timestamp::now();
        self.carried.uploaded = Some(Uploaded {
            step: copy.step,
            at: Timestamp::from_second(now.as_second())
                .unwrap_or(now)
                .to_string(),
        });
        if !std::mem::replace(&mut self.has_told_of_one, true) {
            say(format!(
                "step {} is copied to {}, as those that follow are",
                copy.step,
                remote.uri()
            ));
        }
        let had_problem = self.carried.upload_problem.is_some();
        self.fares(None);
        if !had_problem {
            self.tell();
        }
        self.there.get_or_insert_default().push(copy);
        self.prune(&remote).await?;
        Ok(true)
    }

    /// Holds the newest copy against what was sent. True if it is not that; then it is removed, and sent again if there is no newer one.
    async fn prove_newest(&mut self, silence_max: Duration) -> Result<bool, Trouble> {
        let Some((copy, receipt)) = &self.unproven else {
            return Ok(false);
        };
        let at = self.upload.open()?.below(&copy.to_string())?;
        let damage = find_damage(&at, receipt, silence_max).await?;
        if let Some(damaged) = &damage {
            // Nobody may go back to it meanwhile.
            remove_upload(&at, silence_max).await?;
            self.carried.uploaded = None;
            let step = copy.step;
            let problem = format!(
                "{}: {damaged} in the copy of step {step} is not what was sent; the copy is removed, and what is newest is sent again",
                at.uri()
            );
            self.there = None;
            self.fares(Some(problem));
        } else {
            self.outbox.drop(copy);
        }
        self.unproven = None;
        Ok(damage.is_some())
    }

    /// What was begun and is not worth finishing, because there is a newer one.
    async fn tidy(&self, remote: &Remote, wanted: Option<&Duplicate>) {
        let own = short(&self.place.job);
        for copy in self.outbox.begun() {
            if Some(&copy) == wanted {
                continue;
            }
            let is_there = self.there.as_ref().is_some_and(|it| it.contains(&copy));
            if !is_there
                && copy.job == own
                && let Ok(begun) = remote.below(&copy.to_string())
                && abandon_upload(&begun, &self.outbox.journal(&copy), SILENCE_MAX)
                    .await
                    .is_err()
            {
                // The next time.
                continue;
            }
            self.outbox.drop(&copy);
        }
    }

    async fn prune(&mut self, remote: &Remote) -> Result<(), Trouble> {
        let (Some(keep), Some(there)) = (self.place.keep, &mut self.there) else {
            return Ok(());
        };
        let beyond: Vec<Duplicate> = excess(there, keep, short(&self.place.job))
            .into_iter()
            .cloned()
            .collect();
        for copy in beyond {
            remove_upload(&remote.below(&copy.to_string())?, SILENCE_MAX).await?;
            there.retain(|it| *it != copy);
        }
        Ok(())
    }

    /// Says what is wrong, once for each thing that is, and when it no longer is.
    fn fares(&mut self, problem: Option<String>) {
        if self.carried.upload_problem == problem {
            return;
        }
        match &problem {
            Some(problem) => say(format!(
                "copies of checkpoints wait, and the training does not: {problem}"
            )),
            None => say("copies of checkpoints get through again".to_owned()),
        }
        self.carried.upload_problem = problem;
        self.tell();
    }

    /// Tells the node.
    fn tell(&self) {
        if let Ok(text) = serde_json::to_string(&self.carried.clone().shortened()) {
            // Who is not told of this is told of the next.
            let _ = shelf::write(&self.status.join(CARRIED), &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;
    use stoke_api::contract::checkpoints::MARKER;

    struct Scene {
        dir: tempfile::TempDir,
        place: Place,
        upload: Upload,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            for name in ["ckpt", "status", "store"] {
                fs::create_dir(dir.path().join(name)).expect("a directory");
            }
            let place = Place {
                directory: dir.path().join("ckpt"),
                job: "uid-1".to_owned(),
                attempt: 1,
                rank: 0,
                keep: Some(2),
                upload: None,
            };
            let upload = Upload {
                uri: format!("file://{}/store", dir.path().display()),
                place: "ns/j".to_owned(),
                endpoint: None,
                keys: None,
                is_shared: false,
            };
            Self { dir, place, upload }
        }

        fn save(&self, step: u64) {
            let path = self.place.directory.join(format!("step-{step}"));
            fs::create_dir(&path).expect("a directory");
            fs::write(path.join("state"), step.to_string()).expect("a file");
            fs::write(path.join(MARKER), "{}").expect("a marker");
        }

        /// One run of an attempt whose program is over.
        fn carry(&self, attempt: u32) -> Carried {
            let place = Place {
                attempt,
                ..self.place.clone()
            };
            let status = self.dir.path().join("status");
            let mut carrier = Carrier::new(&place, &self.upload, &status);
            carrier.look();
            let end = End::default();
            end.has_come.store(true, Ordering::Relaxed);
            end.is_in_a_hurry.store(true, Ordering::Relaxed);
            runtime().expect("a runtime").block_on(carrier.run(&end));
            let text = fs::read_to_string(status.join(CARRIED)).expect("told");
            Carried::parse(&text).expect("JSON")
        }

        fn names(&self, path: &str) -> Vec<String> {
            let path: PathBuf = self.dir.path().join(path);
            let entries = fs::read_dir(path).into_iter().flatten();
            let name = |it: io::Result<fs::DirEntry>| it.expect("one").file_name().into_string();
            let mut names: Vec<String> = entries.map(|it| name(it).expect("a name")).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn the_newest_gets_there_and_older_copies_go() {
        let scene = Scene::new();
        scene.save(1);
        scene.save(2);
        let told = scene.carry(1);
        assert_eq!(told.uploaded.map(|it| it.step), Some(2));
        assert_eq!(told.upload_problem, None);
        assert_eq!(scene.names("store/ns/j"), ["s2.a1.uid.step-2"]);
        // Another attempt begins with it, and sends it no second time.
        scene.carry(2);
        assert_eq!(scene.names("store/ns/j"), ["s2.a1.uid.step-2"]);
        for step in [3, 4] {
            scene.save(step);
            scene.carry(2);
        }
        let two = ["s3.a2.uid.step-3", "s4.a2.uid.step-4"];
        assert_eq!(scene.names("store/ns/j"), two);
        assert_eq!(scene.names("ckpt/.stokehold/outbox"), [""; 0]);
    }

    #[test]
    fn what_an_attempt_had_begun_is_gone_on_with_or_removed() {
        let scene = Scene::new();
        scene.save(1);
        let begun = |name: &str| {
            let copy = Duplicate::parse(name).expect("a name");
            Outbox::of(&scene.place.directory).put(&copy).expect("put");
            let part = scene.dir.path().join("store/ns/j").join(name);
            fs::create_dir_all(&part).expect("a directory");
            fs::write(part.join("state"), "1").expect("a part of it");
        };
        begun("s1.a1.uid.step-1");
        scene.carry(2);
        assert_eq!(scene.names("store/ns/j"), ["s1.a1.uid.step-1"]);
        let whole = scene.names("store/ns/j/s1.a1.uid.step-1");
        assert!(
            whole.contains(&stoke_data::MANIFEST.to_owned()),
            "{whole:?}"
        );
        scene.save(2);
        begun("s2.a2.uid.step-2");
        scene.save(3);
        scene.carry(3);
        assert_eq!(
            scene.names("store/ns/j"),
            ["s1.a1.uid.step-1", "s3.a3.uid.step-3"],
            "a part that nobody finishes goes"
        );
        assert_eq!(scene.names("ckpt/.stokehold/outbox"), [""; 0]);
    }

    #[test]
    fn a_copy_that_is_damaged_in_the_store_is_told_and_sent_again() {
        let scene = Scene::new();
        scene.save(1);
        let status = scene.dir.path().join("status");
        let told = || {
            let text = fs::read_to_string(status.join(CARRIED)).expect("told");
            Carried::parse(&text).expect("JSON")
        };
        let state = scene.dir.path().join("store/ns/j/s1.a1.uid.step-1/state");
        let mut carrier = Carrier::new(&scene.place, &scene.upload, &status);
        carrier.look();
        runtime().expect("a runtime").block_on(async {
            assert!(carrier.send_newest(SILENCE_MAX).await.expect("sent"));
            fs::write(&state, "9").expect("damaged");
            assert!(!carrier.send_newest(SILENCE_MAX).await.expect("it is there"));
            assert!(carrier.prove_newest(SILENCE_MAX).await.expect("looked at"));
            let problem = told().upload_problem.expect("a problem");
            assert!(problem.contains("state in the copy of step 1"), "{problem}");
            assert_eq!(told().uploaded, None);
            assert!(!state.exists(), "nobody goes back to it");
            assert!(carrier.send_newest(SILENCE_MAX).await.expect("sent"));
            assert!(!carrier.prove_newest(SILENCE_MAX).await.expect("looked at"));
        });
        assert_eq!(fs::read_to_string(&state).expect("its state"), "1");
        assert_eq!(told().upload_problem, None);
        assert_eq!(told().uploaded.map(|it| it.step), Some(1));
        assert_eq!(scene.names("ckpt/.stokehold/outbox"), [""; 0]);
    }

    /// Others may wait for what the worker has.
    #[test]
    fn a_store_that_takes_nothing_does_not_hold_the_end_up() {
        let mut scene = Scene::new();
        scene.upload.keys = Some(scene.dir.path().join("no keys"));
        scene.save(1);
        let told = scene.carry(1);
        assert_eq!(told.uploaded, None);
        assert!(told.upload_problem.is_some(), "{told:?}");
        assert_eq!(scene.names("ckpt"), ["step-1"]);
    }
}
