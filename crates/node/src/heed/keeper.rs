//! Watches over the checkpoints of a running attempt: sees each that is complete, tells the node of it, and removes those that are too many.
//!
//! Who sends copies of them elsewhere is another process ([`super::carrier`]), which looks for itself: what is slow or hangs there must not keep
//! this one from its work.
//!
//! Invariant: what has no marker is left alone, for the program may be writing it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use jiff::Timestamp;
use stoke_api::contract::checkpoints::{Checkpoint, SAVED, Saved, excess, name_to_be, newest};
use stoke_api::contract::copies::Carried;

use super::outbox::Outbox;
use super::shelf::{self, Entry};

/// Names remembered of what is being written, and of what was found wanting.
const NAMES_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct Keeper {
    has_begun: bool,
    complete: BTreeMap<String, Checkpoint>,
    /// When a directory was first seen without its marker, by the name that it will have.
    begun: BTreeMap<String, Instant>,
    told: BTreeSet<String>,
    /// What was gone on from, and the last that this attempt wrote.
    resumed: Option<String>,
    last: Option<String>,
}

impl Keeper {
    pub(super) fn new(resumed: Option<String>) -> Self {
        Self {
            resumed,
            ..Self::default()
        }
    }

    /// One look at the directory. Gives the checkpoint that is the newest now, if that is news.
    pub(super) fn look(
        &mut self,
        directory: &Path,
        (at, now): (Instant, Timestamp),
        say: &mut dyn FnMut(String),
    ) -> Option<Saved> {
        let known = &self.complete;
        // A volume that does not answer just now may answer the next time.
        let entries = shelf::entries(directory, |name| known.contains_key(name)).ok()?;
        self.complete
            .retain(|name, _| directory.join(name).is_dir());
        let mut news = Vec::new();
        for Entry { name, found } in entries {
            match found {
                Ok(checkpoint) => {
                    news.push(name.clone());
                    self.complete.insert(name, checkpoint);
                }
                Err(torn) => {
                    let to_be = name_to_be(&name);
                    if self.begun.len() < NAMES_MAX && !self.begun.contains_key(to_be) {
                        self.begun.insert(to_be.to_owned(), at);
                    }
                    if torn.is_worth_telling()
                        && self.told.len() < NAMES_MAX
                        && self.told.insert(name.clone())
                    {
                        say(format!("{name} is no checkpoint: {torn}"));
                    }
                }
            }
        }
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let of_news = self.complete.values().filter(|it| news.contains(&it.name));
        let newest = newest(of_news)?.clone();
        let begun = self.begun.remove(&newest.name);
        for name in &news {
            self.begun.remove(name);
        }
        let marked = || shelf::marked_at(directory, &newest.name)?.try_into().ok();
        let seen = if is_first {
            // It is an earlier attempt's. Another node's clock may be ahead.
            marked().map_or(now, |marked: Timestamp| marked.min(now))
        } else {
            self.last = Some(newest.name.clone());
            now
        };
        let took = begun.map(|begun| at.saturating_duration_since(begun).as_secs_f64());
        Some(Saved {
            step: newest.step,
            at: Timestamp::from_second(seen.as_second())
                .unwrap_or(seen)
                .to_string(),
            bytes: newest.bytes,
            millis: newest.seconds.or(took).map(millis),
            name: newest.name,
            carried: Carried::default(),
        })
    }

    /// Removes those beyond the newest `keep`.
    pub(super) fn prune(&mut self, directory: &Path, keep: u32, say: &mut dyn FnMut(String)) {
        let spared: Vec<&str> = self.last.as_deref().into_iter().collect();
        // Until something newer is complete, it is the newest there is.
        let resumed = self.resumed.as_deref().filter(|_| self.last.is_none());
        let sending = Outbox::of(directory).sending();
        let spared = [
            spared,
            resumed.into_iter().chain(sending.as_deref()).collect(),
        ]
        .concat();
        let beyond: Vec<String> = excess(self.complete.values(), keep, &spared)
            .into_iter()
            .map(|it| it.name.clone())
            .collect();
        for name in beyond {
            match shelf::remove(directory, &name) {
                Ok(()) => {}
                // The program may have removed it itself.
                Err(_) if !directory.join(&name).exists() => {}
                Err(error) if self.told.len() < NAMES_MAX && self.told.insert(name.clone()) => {
                    say(format!(
                        "cannot remove the checkpoint {name}, which is one too many: {error}"
                    ));
                }
                Err(_) => continue,
            }
            self.complete.remove(&name);
        }
    }
}

fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// Tells the node.
pub(super) fn tell(status: &Path, saved: &Saved) {
    if let Ok(text) = serde_json::to_string(saved) {
        // Who is not told of one is told of the next.
        let _ = shelf::write(&status.join(SAVED), &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Duration;
    use stoke_api::contract::checkpoints::MARKER;

    struct Scene {
        dir: tempfile::TempDir,
        keeper: Keeper,
        begun: Instant,
        told: Vec<String>,
    }

    impl Scene {
        fn new(resumed: Option<&str>) -> Self {
            Self {
                dir: tempfile::tempdir().expect("a directory"),
                keeper: Keeper::new(resumed.map(str::to_owned)),
                begun: Instant::now(),
                told: Vec::new(),
            }
        }

        fn write(&self, name: &str) {
            let path = self.dir.path().join(name);
            fs::create_dir_all(&path).expect("a directory");
            fs::write(path.join("state"), "0123456789").expect("a file");
        }

        fn finish(&self, name: &str, marker: &str) {
            let path = self.dir.path().join(name);
            let draft = self.dir.path().join(format!(".{name}.writing"));
            if draft.exists() {
                fs::rename(&draft, &path).expect("moved");
            }
            fs::write(path.join(MARKER), marker).expect("a marker");
        }

        fn save(&self, name: &str, marker: &str) {
            self.write(name);
            self.finish(name, marker);
        }

        fn look(&mut self, seconds: u64) -> Option<Saved> {
            let at = self.begun + Duration::from_secs(seconds);
            let now = Timestamp::from_second(2_000_000_000 + seconds as i64).expect("a time");
            let told = &mut self.told;
            self.keeper
                .look(self.dir.path(), (at, now), &mut |line| told.push(line))
        }

        fn prune(&mut self, keep: u32) -> Vec<String> {
            self.keeper
                .prune(self.dir.path(), keep, &mut |line| panic!("{line}"));
            let entries = fs::read_dir(self.dir.path()).expect("a directory");
            let mut names: Vec<String> = entries
                .map(|it| it.expect("one").file_name().into_string().expect("a name"))
                .collect();
            names.sort();
            names
        }
    }

    #[test]
    fn each_checkpoint_is_seen_once_with_how_long_it_took() {
        let mut scene = Scene::new(None);
        assert_eq!(scene.look(0), None, "none yet");
        scene.write(".step-5.writing");
        assert_eq!(scene.look(10), None);
        assert_eq!(scene.look(11), None);
        scene.finish("step-5", r#"{"step": 5}"#);
        let saved = scene.look(13).expect("news");
        assert_eq!((saved.name.as_str(), saved.step), ("step-5", Some(5)));
        assert_eq!((saved.bytes, saved.millis), (21, Some(3_000)));
        assert_eq!(saved.at, "2033-05-18T03:33:33Z");
        assert_eq!(scene.look(14), None, "told");
        // In place, without another name; and one that says how long it took.
        scene.write("step-6");
        assert_eq!(scene.look(15), None);
        scene.finish("step-6", r#"{"seconds": 0.5}"#);
        assert_eq!(scene.look(17).expect("news").millis, Some(500));
        scene.save("step-7", r#"{"files": [{"path": "more", "bytes": 3}]}"#);
        assert_eq!(scene.look(18), None);
        assert_eq!(scene.look(19), None);
        assert_eq!(scene.told, ["step-7 is no checkpoint: more is missing"]);
    }

    #[test]
    fn what_was_there_before_is_dated_by_its_marker_and_no_later_than_now() {
        let mut scene = Scene::new(Some("step-4"));
        scene.save("step-3", "{}");
        scene.save("step-4", "{}");
        let saved = scene.look(0).expect("it tells the node what there is");
        assert_eq!((saved.step, saved.millis), (Some(4), None));
        assert!(saved.at.as_str() < "2033", "{}", saved.at);
    }

    #[test]
    fn too_many_are_removed_but_never_the_last_nor_what_is_being_written() {
        let mut scene = Scene::new(Some("step-9"));
        for name in ["step-8", "step-9"] {
            scene.save(name, "{}");
        }
        scene.write(".step-10.writing");
        scene.write("step-11");
        scene.look(0);
        assert_eq!(
            scene.prune(1),
            [".step-10.writing", "step-11", "step-9"],
            "what it goes on from stays"
        );
        scene.finish("step-10", "{}");
        scene.look(1);
        assert_eq!(scene.prune(1), ["step-10", "step-11"]);
        // A program that counts its steps anew: what it wrote last stays, whatever it is called.
        scene.save("step-1", "{}");
        scene.look(2);
        assert_eq!(scene.prune(1), ["step-1", "step-10", "step-11"]);
        scene.save("step-2", "{}");
        scene.look(3);
        assert_eq!(scene.prune(1), ["step-10", "step-11", "step-2"]);
    }

    /// A volume that knows no second names for a file.
    #[test]
    fn what_is_being_sent_from_where_it_was_written_stays() {
        let mut scene = Scene::new(None);
        let outbox = scene.dir.path().join(".stokehold/outbox");
        fs::create_dir_all(&outbox).expect("a directory");
        fs::write(outbox.join("sending"), "step-1").expect("a name");
        for name in ["step-1", "step-2", "step-3"] {
            scene.save(name, "{}");
        }
        scene.look(0);
        assert_eq!(scene.prune(1), [".stokehold", "step-1", "step-3"]);
        fs::remove_file(outbox.join("sending")).expect("removed");
        assert_eq!(scene.prune(1), [".stokehold", "step-3"]);
    }

    #[test]
    fn the_node_is_told_in_one_piece() {
        let dir = tempfile::tempdir().expect("a directory");
        let saved = Saved {
            name: "step-1".to_owned(),
            ..Saved::default()
        };
        tell(dir.path(), &saved);
        let text = fs::read_to_string(dir.path().join(SAVED)).expect("told");
        assert_eq!(Saved::parse(&text), Some(saved.clone()));
        assert_eq!(fs::read_dir(dir.path()).expect("one").count(), 1);
        tell(&dir.path().join("gone"), &saved);
    }
}
