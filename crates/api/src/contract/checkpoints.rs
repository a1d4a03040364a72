//! What a checkpoint is on the disk, which of several is the newest, and whose turn it is to write.
//!
//! A checkpoint is a directory directly under `$STOKE_CHECKPOINT_DIR`. It is complete once its marker is there, a small JSON object, and all
//! that the marker lists is there too. `docs/checkpoints.md` says the same to whoever writes one, in whatever language.
//!
//! Invariant: nothing here compares times, for the clocks of nodes differ.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::copies::Carried;

/// The file that makes a directory a checkpoint. It is written last.
pub const MARKER: &str = "complete";
/// As much of a marker as is read.
pub const MARKER_LENGTH_MAX: u64 = 1 << 20;
/// What is ours in the checkpoint directory: the lock, and who holds it.
pub const OWN_DIR: &str = ".stokehold";
pub const LOCK: &str = "lock";
pub const HOLDER: &str = "attempt";
/// How far the first worker is that brings a copy back, for the others who wait.
pub const RESTORED: &str = "restored";
/// In the status directory: the newest checkpoint, as JSON ([`Saved`]).
pub const SAVED: &str = "saved.json";
/// As much of [`SAVED`] as is read.
pub const SAVED_LENGTH_MAX: usize = 4096;

/// How what starts a worker ends where another attempt has its checkpoints. Outside of what shells, signals and `sysexits.h` use.
pub const EXIT_FENCED: u8 = 83;
/// The same where checkpoints cannot be kept: the volume is not there, is full or cannot be written.
pub const EXIT_NO_VOLUME: u8 = 84;
/// The same where its checkpoints may lie elsewhere, and nobody could be asked.
pub const EXIT_NO_COPIES: u8 = 85;
/// The same where others were waited for in vain: an earlier attempt's processes, or the first worker.
pub const EXIT_NOT_READY: u8 = 86;
/// The same as [`EXIT_NO_COPIES`], because the job gave no keys, or others than the store takes.
pub const EXIT_NO_KEYS: u8 = 87;
/// How the line begins, with the attempt's number and [`NOT_BEGUN`] after it, that says why a worker's program was not begun.
pub const SAID_BY_US: &str = "stokehold: attempt ";
pub const NOT_BEGUN: &str = " does not begin: ";

/// A name that is being written begins and ends like this.
const WRITING: &str = ".writing";
/// And one that is being removed.
const GOING: &str = ".going";

/// What a marker says. All of it is optional.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Marker {
    /// The step that it goes on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Which attempt wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How long it took to write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Every file of it, the marker aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<MarkedFile>>,
}

impl Marker {
    fn parse(text: &str) -> Option<Self> {
        let said: serde_json::Value = serde_json::from_str(text).ok()?;
        // Of an array, fields would be taken by their order.
        let is_object = said.is_object();
        serde_json::from_value(said).ok().filter(|_| is_object)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkedFile {
    /// From the checkpoint's own directory, with `/` between its parts.
    pub path: String,
    pub bytes: u64,
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    pub name: String,
    pub step: Option<u64>,
    pub attempt: u32,
    pub bytes: u64,
    /// How long it took to write, where the marker says.
    pub seconds: Option<f64>,
}

impl Checkpoint {
    /// Newer is greater: by what was trained, and not by when.
    pub(super) fn age(&self) -> (Option<u64>, u32, &str) {
        (self.step, self.attempt, &self.name)
    }
}

/// Why a directory is no checkpoint to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Torn {
    /// Its name says that it is being written, or removed.
    Underway,
    NoMarker,
    /// The marker is no JSON object, or one of other fields' types.
    BadMarker,
    /// There is a marker and nothing else.
    NoFiles,
    Missing(String),
    Short {
        path: String,
        bytes: u64,
        expected: u64,
    },
    /// The marker lists a file outside of the checkpoint.
    Outside(String),
}

impl Torn {
    /// What is half done is nothing to speak of; what claims to be done and is not is.
    pub fn is_worth_telling(&self) -> bool {
        !matches!(self, Self::Underway | Self::NoMarker)
    }
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Underway => f.write_str("its name says that it is not finished"),
            Self::NoMarker => write!(f, "it has no file `{MARKER}`"),
            Self::BadMarker => write!(f, "its file `{MARKER}` is no JSON object of a checkpoint"),
            Self::NoFiles => write!(f, "it has a file `{MARKER}` and no other"),
            Self::Missing(path) => write!(f, "{path} is missing"),
            Self::Short {
                path,
                bytes,
                expected,
            } => write!(f, "{path} has {bytes} bytes of {expected}"),
            Self::Outside(path) => write!(f, "its file `{MARKER}` names {path}, outside of it"),
        }
    }
}

/// What the files of a directory are that its marker does not list: how many, and how much.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    pub files: u64,
    pub bytes: u64,
}

/// Is this directory a complete checkpoint? `marker` is the marker's text, `size_of` the size of a file in it, and `contents` what all files
/// but the marker are; it is asked for where the marker lists none.
pub fn judge(
    name: &str,
    marker: Option<&str>,
    mut size_of: impl FnMut(&str) -> Option<u64>,
    contents: impl FnOnce() -> Contents,
) -> Result<Checkpoint, Torn> {
    if is_underway(name) {
        return Err(Torn::Underway);
    }
    let marker = marker.ok_or(Torn::NoMarker)?;
    let marker = Marker::parse(marker).ok_or(Torn::BadMarker)?;
    let bytes = match &marker.files {
        Some(files) if files.is_empty() => return Err(Torn::NoFiles),
        Some(files) => {
            let mut sum = 0_u64;
            for MarkedFile { path, bytes } in files {
                if !stays_inside(path) {
                    return Err(Torn::Outside(path.clone()));
                }
                let found = size_of(path).ok_or_else(|| Torn::Missing(path.clone()))?;
                if found < *bytes {
                    return Err(Torn::Short {
                        path: path.clone(),
                        bytes: found,
                        expected: *bytes,
                    });
                }
                sum = sum.saturating_add(found);
            }
            sum
        }
        None => {
            let found = contents();
            if found.files == 0 {
                return Err(Torn::NoFiles);
            }
            found.bytes
        }
    };
    Ok(Checkpoint {
        name: name.to_owned(),
        step: marker.step.or_else(|| step_of(name)),
        attempt: marker.attempt.unwrap_or(0),
        bytes,
        seconds: marker
            .seconds
            .filter(|seconds| seconds.is_finite() && *seconds >= 0.0),
    })
}

/// A hidden name is never a checkpoint's.
pub fn is_underway(name: &str) -> bool {
    name.starts_with('.')
}

/// What a directory will be called that is being written under this name: `step-12` of `.step-12.writing`.
pub fn name_to_be(name: &str) -> &str {
    let shown = name.strip_prefix('.').unwrap_or(name);
    shown.strip_suffix(WRITING).unwrap_or(shown)
}

/// What a checkpoint is called while it is removed, so that a part of one is never taken for it.
pub fn name_while_going(name: &str) -> String {
    format!(".{name}{GOING}")
}

/// The last number in a name: 1200 of `step-1200` and of `epoch=3-step=1200`.
pub fn step_of(name: &str) -> Option<u64> {
    let (before, after) = around_number(name)?;
    name[before.len()..name.len() - after.len()].parse().ok()
}

/// What stands before and after the last number in a name.
fn around_number(name: &str) -> Option<(&str, &str)> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let before = name[..end].trim_end_matches(|c: char| c.is_ascii_digit());
    Some((before, &name[end..]))
}

fn stays_inside(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| part != "..")
}

/// The one to go on from.
pub fn newest<'a>(complete: impl IntoIterator<Item = &'a Checkpoint>) -> Option<&'a Checkpoint> {
    complete.into_iter().max_by(|a, b| a.age().cmp(&b.age()))
}

/// Those beyond the newest `keep`. None of `spared`: what was gone on from may be all there is of a run, and what was written last may count
/// its steps anew.
pub fn excess<'a>(
    complete: impl IntoIterator<Item = &'a Checkpoint>,
    keep: u32,
    spared: &[&str],
) -> Vec<&'a Checkpoint> {
    let mut all: Vec<&Checkpoint> = complete.into_iter().collect();
    all.sort_by(|a, b| b.age().cmp(&a.age()));
    let beyond = all.into_iter().skip(keep.max(1) as usize);
    beyond
        .filter(|it| !spared.contains(&it.name.as_str()))
        .collect()
}

/// What an attempt that died has left half done, and nobody goes on from: called only where no one else may write. A directory without a
/// marker is that only where there are complete checkpoints that are named like it: others may be anything, and a program that writes no
/// markers has its own ways.
pub fn is_litter<'a>(
    name: &str,
    torn: &Torn,
    complete: impl IntoIterator<Item = &'a Checkpoint>,
) -> bool {
    match torn {
        Torn::Underway => name.ends_with(WRITING) || name.ends_with(GOING),
        Torn::NoMarker => {
            let around = around_number(name);
            let mut complete = complete.into_iter();
            around.is_some() && complete.any(|it| around_number(&it.name) == around)
        }
        // There is something to look into.
        _ => false,
    }
}

/// Who writes checkpoints in a directory: the value of [`HOLDER`] there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// The job's uid: another job that is given the same volume counts its attempts anew.
    pub job: String,
    pub attempt: u32,
    /// The boot of the machine that it runs on.
    pub boot: String,
    /// The name of the checkpoint that all its workers go on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    pub stage: Stage,
}

/// How far an attempt is that is on record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// It has chosen what to go on from.
    #[default]
    Chosen,
    /// It has not, and an earlier attempt of its job had.
    TakesOver,
    /// It has not, and nobody of its job had: the volume is new to the job.
    Enters,
}

impl Holder {
    /// May this one not begin, because the other is on record?
    pub fn comes_too_late_for(&self, recorded: &Self) -> bool {
        self.job == recorded.job && self.attempt < recorded.attempt
    }

    /// Whether what attempts of this job have written is here, for one of them has begun here.
    pub fn knows_volume(&self, recorded: &Self) -> bool {
        self.job == recorded.job && recorded.stage != Stage::Enters
    }

    /// Must this one end, because the other is on record?
    pub fn gives_way_to(&self, recorded: &Self) -> bool {
        self.job != recorded.job || self.attempt < recorded.attempt
    }
}

/// The newest checkpoint of a job, as what watches it has seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Saved {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// When it was seen to be complete, by the clock of its node, as RFC 3339.
    pub at: String,
    pub bytes: u64,
    /// How long it took to write, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub millis: Option<u64>,
    /// The newest of which there is a copy elsewhere, and what keeps the next from getting there.
    #[serde(flatten)]
    pub carried: Carried,
}

/// The longest name that is told.
const NAME_LENGTH_MAX: usize = 255;

impl Saved {
    /// The same checkpoint, whatever became of its copies.
    pub fn is_same(&self, other: &Self) -> bool {
        let alone = |saved: &Self| Self {
            carried: Carried::default(),
            ..saved.clone()
        };
        alone(self) == alone(other)
    }

    /// Nonsense tells nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let said: Self = serde_json::from_str(text).ok()?;
        let is_plain = !said.name.is_empty() && said.name.len() <= NAME_LENGTH_MAX;
        is_plain.then_some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn checkpoint(name: &str, step: Option<u64>, attempt: u32) -> Checkpoint {
        Checkpoint {
            name: name.to_owned(),
            step,
            attempt,
            bytes: 1,
            seconds: None,
        }
    }

    /// The directory has `state.pt` of 10 bytes.
    fn judged(name: &str, marker: Option<&str>) -> String {
        let size_of = |path: &str| (path == "state.pt").then_some(10);
        let contents = || Contents {
            files: 1,
            bytes: 10,
        };
        match judge(name, marker, size_of, contents) {
            Ok(it) => format!(
                "step {:?} attempt {} of {} bytes in {:?}",
                it.step, it.attempt, it.bytes, it.seconds
            ),
            Err(torn) => torn.to_string(),
        }
    }

    #[test]
    fn a_directory_is_complete_when_its_marker_and_all_it_lists_are_there() {
        for (name, marker, expected) in [
            (
                "step-7",
                Some(r#"{"step": 8}"#),
                "step Some(8) attempt 0 of 10 bytes in None",
            ),
            (
                "step-7",
                Some("{}"),
                "step Some(7) attempt 0 of 10 bytes in None",
            ),
            (
                "last",
                Some(r#"{"attempt": 3, "seconds": 1.5, "epoch": 9}"#),
                "step None attempt 3 of 10 bytes in Some(1.5)",
            ),
            (
                "s",
                Some(r#"{"seconds": -1, "files": [{"path": "state.pt", "bytes": 10}]}"#),
                "step None attempt 0 of 10 bytes in None",
            ),
            ("step-7", None, "it has no file `complete`"),
            (
                ".step-7.writing",
                Some("{}"),
                "its name says that it is not finished",
            ),
            (
                "step-7",
                Some(""),
                "its file `complete` is no JSON object of a checkpoint",
            ),
            (
                "step-7",
                Some("[1]"),
                "its file `complete` is no JSON object of a checkpoint",
            ),
            (
                "step-7",
                Some(r#"{"files": []}"#),
                "it has a file `complete` and no other",
            ),
            (
                "step-7",
                Some(r#"{"files": [{"path": "state.pt", "bytes": 11}]}"#),
                "state.pt has 10 bytes of 11",
            ),
            (
                "step-7",
                Some(r#"{"files": [{"path": "optimizer.pt", "bytes": 0}]}"#),
                "optimizer.pt is missing",
            ),
            (
                "step-7",
                Some(r#"{"files": [{"path": "../step-6/state.pt", "bytes": 0}]}"#),
                "its file `complete` names ../step-6/state.pt, outside of it",
            ),
        ] {
            assert_eq!(judged(name, marker), expected, "{name} {marker:?}");
        }
        let empty = judge("step-7", Some("{}"), |_| None, Contents::default);
        assert_eq!(empty, Err(Torn::NoFiles), "a marker alone is none");
    }

    #[test]
    fn a_name_may_say_the_step() {
        for (name, step) in [
            ("step-1200", Some(1200)),
            ("step-00001200", Some(1200)),
            ("epoch=3-step=1200.ckpt", Some(1200)),
            ("7", Some(7)),
            ("best", None),
            ("step-99999999999999999999999", None),
        ] {
            assert_eq!(step_of(name), step, "{name}");
        }
        assert_eq!(name_to_be(".step-12.writing"), "step-12");
        assert_eq!(name_to_be("step-12"), "step-12");
        assert!(is_underway(&name_while_going("step-12")));
    }

    #[test]
    fn what_was_trained_longest_is_newest_whatever_the_clocks_say() {
        let all = [
            checkpoint("b", Some(9), 1),
            checkpoint("a", Some(10), 1),
            checkpoint("c", Some(10), 2),
            checkpoint("z", None, 7),
        ];
        assert_eq!(newest(&all).map(|it| it.name.as_str()), Some("c"));
        assert_eq!(newest(&[]), None);
        let beyond = |keep, spared: &[&str]| -> Vec<String> {
            let found = excess(&all, keep, spared);
            found.into_iter().map(|it| it.name.clone()).collect()
        };
        assert_eq!(beyond(2, &[]), ["b", "z"]);
        assert_eq!(beyond(0, &[]), ["a", "b", "z"], "the newest stays");
        assert_eq!(beyond(1, &["b", "z"]), ["a"]);
        assert_eq!(beyond(9, &[]), [""; 0]);
    }

    proptest! {
        /// Whatever there is: what would be gone on from stays, what is spared stays, and no more go than are too many.
        #[test]
        fn what_is_gone_on_from_is_never_removed(
            steps in proptest::collection::vec((proptest::option::of(0_u64..6), 0_u32..3), 0..12),
            keep in 0_u32..5,
            spared in proptest::collection::vec(0_usize..12, 0..3),
        ) {
            let named = steps.iter().enumerate();
            let all: Vec<Checkpoint> = named
                .map(|(i, (step, attempt))| checkpoint(&format!("c{i}"), *step, *attempt))
                .collect();
            let spared: Vec<&str> = spared
                .iter()
                .filter_map(|i| all.get(*i))
                .map(|it| it.name.as_str())
                .collect();
            let gone = excess(&all, keep, &spared);
            let left: Vec<&Checkpoint> = all.iter().filter(|it| !gone.contains(it)).collect();
            prop_assert_eq!(newest(left.iter().copied()), newest(&all));
            prop_assert!(spared.iter().all(|name| left.iter().any(|it| it.name == *name)));
            prop_assert!(left.len() >= all.len().min(keep.max(1) as usize));
            prop_assert!(left.len() <= keep.max(1) as usize + spared.len());
        }
    }

    #[test]
    fn only_what_is_half_done_and_named_like_the_others_is_litter() {
        let complete = [checkpoint("step-00000002", Some(2), 1)];
        for (name, torn, complete, expected) in [
            (".step-3.writing", Torn::Underway, &[][..], true),
            (".step-3.going", Torn::Underway, &[], true),
            (".cache", Torn::Underway, &complete, false),
            (OWN_DIR, Torn::Underway, &complete, false),
            ("step-3", Torn::NoMarker, &complete, true),
            ("step-3", Torn::NoMarker, &[], false),
            ("tensorboard", Torn::NoMarker, &complete, false),
            ("run-2", Torn::NoMarker, &complete, false),
            ("step-3", Torn::Missing("a".to_owned()), &complete, false),
        ] {
            assert_eq!(is_litter(name, &torn, complete), expected, "{name}");
        }
    }

    #[test]
    fn a_later_attempt_takes_over_and_an_earlier_one_never_does() {
        let holder = |job: &str, attempt| Holder {
            job: job.to_owned(),
            attempt,
            ..Holder::default()
        };
        for (own, recorded, too_late, gives_way) in [
            (holder("j", 2), holder("j", 1), false, false),
            (holder("j", 2), holder("j", 2), false, false),
            (holder("j", 1), holder("j", 2), true, true),
            // Another job with the same volume: who gets the lock has it.
            (holder("k", 1), holder("j", 2), false, true),
        ] {
            assert_eq!(
                (
                    own.comes_too_late_for(&recorded),
                    own.gives_way_to(&recorded)
                ),
                (too_late, gives_way),
                "{own:?} {recorded:?}"
            );
        }
    }

    #[test]
    fn a_volume_is_the_jobs_own_once_an_attempt_has_begun_there() {
        let holder = |job: &str, stage| Holder {
            job: job.to_owned(),
            stage,
            ..Holder::default()
        };
        let own = holder("j", Stage::Enters);
        for (recorded, expected) in [
            (holder("j", Stage::Chosen), true),
            (holder("j", Stage::TakesOver), true),
            (holder("j", Stage::Enters), false),
            (holder("k", Stage::Chosen), false),
        ] {
            assert_eq!(own.knows_volume(&recorded), expected, "{recorded:?}");
            let text = serde_json::to_string(&recorded).expect("JSON");
            assert_eq!(serde_json::from_str::<Holder>(&text).ok(), Some(recorded));
        }
        // As it was written before there were stages.
        let old = serde_json::from_str::<Holder>(r#"{"job": "j", "attempt": 1, "boot": "b"}"#);
        assert_eq!(old.expect("a record").stage, Stage::Chosen);
    }

    #[test]
    fn what_is_told_of_a_checkpoint_is_read_back() {
        let saved = Saved {
            name: "step-8".to_owned(),
            step: Some(8),
            at: "2027-01-15T08:00:00Z".to_owned(),
            bytes: 10,
            millis: Some(250),
            carried: Carried::default(),
        };
        let text = serde_json::to_string(&saved).expect("JSON");
        assert_eq!(Saved::parse(&text), Some(saved));
        for nothing in ["", "{}", "[]", r#"{"name": ""}"#, r#"{"name": 3}"#] {
            assert_eq!(Saved::parse(nothing), None, "{nothing}");
        }
    }
}
