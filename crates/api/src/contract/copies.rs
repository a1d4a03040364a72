//! Copies of checkpoints in an object store: what they are called, which is sent next, which goes, and which is brought back.
//!
//! A copy is complete once its manifest is there, and only complete ones are told of here. The place of a job's copies is its own: no other
//! job writes there, unless both were given the same name.
//!
//! Invariant: an attempt writes only names that hold its own number, or goes on with what an earlier one had begun to send of the same
//! files. So who was superseded can overwrite nothing that came after it.
//! Invariant: nothing here compares times, for the clocks of nodes differ.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::checkpoints::Checkpoint;

/// Where a worker finds the keys to the store, each in a file of its name.
pub const KEYS_DIR: &str = "/run/stokehold/upload";
pub const KEYS_VOLUME: &str = "stokehold-upload";
/// In our own part of the checkpoint directory: what is being sent, so that nobody can change or remove it meanwhile.
pub const OUTBOX: &str = "outbox";
/// In the status directory: what became of the copies, as JSON ([`Carried`]).
pub const CARRIED: &str = "carried.json";
/// As much of [`CARRIED`] as is read.
pub const CARRIED_LENGTH_MAX: usize = 4096;
const PROBLEM_LENGTH_MAX: usize = 500;

/// A copy, as its name tells it. Newer is greater: by what was trained, and not by when.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duplicate {
    pub step: u64,
    /// Which attempt sent it.
    pub attempt: u32,
    /// The first part of the uid of the job that sent it.
    pub job: String,
    /// The checkpoint's own name.
    pub name: String,
}

impl fmt::Display for Duplicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            attempt,
            job,
            name,
        } = self;
        write!(f, "s{step}.a{attempt}.{job}.{name}")
    }
}

impl Duplicate {
    /// Anything else in that place is not ours.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '.');
        let step = parts.next()?.strip_prefix('s')?.parse().ok()?;
        let attempt = parts.next()?.strip_prefix('a')?.parse().ok()?;
        let (job, name) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        let found = Self {
            step,
            attempt,
            job,
            name,
        };
        // A hidden name is never a checkpoint's.
        let is_plain = !found.name.is_empty() && !found.name.starts_with('.');
        (is_plain && found.to_string() == text).then_some(found)
    }

    fn is_of(&self, checkpoint: &Checkpoint) -> bool {
        Some(self.step) == checkpoint.step && self.name == checkpoint.name
    }
}

/// The first part of a uid, which tells jobs of one name apart.
pub fn short(uid: &str) -> &str {
    uid.split('-').next().unwrap_or_default()
}

/// Where the copies of a job are, below the URI that it gives. With a name, jobs of the namespace that give the same one go on from each
/// other's; without, a job that is deleted and made anew begins anew, as it does with its volume.
pub fn place(namespace: &str, job: &str, uid: &str, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{namespace}/{name}"),
        None => format!("{namespace}/{job}-{}", short(uid)),
    }
}

/// Who sends.
#[derive(Debug, Clone, Copy)]
pub struct Sender<'a> {
    /// The first part of the job's uid.
    pub job: &'a str,
    pub attempt: u32,
}

/// What is sent next: the newest that is here, unless a copy of it is there. Older ones are passed over, and nothing is sent that is older
/// than what this job has there. `found` are those that the attempt began with: a copy of one may be an earlier attempt's, and of one
/// that is in the outbox a part may have arrived.
pub fn next<'a>(
    sender: Sender<'_>,
    here: impl IntoIterator<Item = &'a Checkpoint>,
    found: &BTreeSet<String>,
    outbox: &[Duplicate],
    there: &[Duplicate],
) -> Option<Duplicate> {
    let ordered = here.into_iter().filter(|it| it.step.is_some());
    let newest = ordered.max_by(|a, b| a.age().cmp(&b.age()))?;
    let step = newest.step?;
    let own = |copy: &&Duplicate| copy.job == sender.job;
    let was_found = found.contains(&newest.name);
    let is_there = there
        .iter()
        .filter(|copy| copy.is_of(newest))
        .any(|copy| was_found || (own(&copy) && copy.attempt == sender.attempt));
    if is_there || there.iter().filter(own).any(|copy| copy.step > step) {
        return None;
    }
    let begun = outbox.iter().filter(own).filter(|it| it.is_of(newest));
    let begun = begun.filter(|it| was_found || it.attempt == sender.attempt);
    Some(begun.max().cloned().unwrap_or_else(|| Duplicate {
        step,
        attempt: sender.attempt,
        job: sender.job.to_owned(),
        name: newest.name.clone(),
    }))
}

/// The copies that are too many: this job's own beyond its newest `keep`.
pub fn excess<'a>(there: &'a [Duplicate], keep: u32, job: &str) -> Vec<&'a Duplicate> {
    let mut own: Vec<&Duplicate> = there.iter().filter(|copy| copy.job == job).collect();
    own.sort_by(|a, b| b.cmp(a));
    own.split_off(own.len().min(keep.max(1) as usize))
}

/// The copies that are worth bringing back, the newest first: those that are ahead of what is here.
pub fn ahead(there: &[Duplicate], here: Option<&Checkpoint>) -> Vec<Duplicate> {
    let here = here.map(|here| here.step);
    let ahead = there.iter().filter(|it| Some(Some(it.step)) > here);
    let mut ahead: Vec<Duplicate> = ahead.cloned().collect();
    ahead.sort_by(|a, b| b.cmp(a));
    ahead
}

/// How much it matters, when an attempt begins, what copies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// There can be none.
    No,
    /// There can hardly be anything newer than what is here; a store that does not answer holds nobody up.
    Briefly,
    /// They may be all there is of a long training. It must not begin anew because a store does not answer.
    UntilAnswered,
}

/// `is_same_volume`: an earlier attempt of this job had this very volume. What it wrote is still there, and nothing is copied that was not there
/// first.
pub fn asking(attempt: u32, is_shared: bool, is_same_volume: bool, has_any: bool) -> Asking {
    if attempt <= 1 && !is_shared {
        Asking::No
    } else if is_same_volume || has_any {
        Asking::Briefly
    } else {
        Asking::UntilAnswered
    }
}

/// The newest copy that is known to be complete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Uploaded {
    pub step: u64,
    /// When it was, by the clock of its node, as RFC 3339.
    pub at: String,
}

/// What became of the copies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Carried {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploaded: Option<Uploaded>,
    /// Why the next is not there yet, where something is wrong. It holds no credential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload_problem: Option<String>,
}

impl Carried {
    /// Nonsense tells nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let said: Self = serde_json::from_str(text).ok()?;
        Some(said.shortened())
    }

    pub fn shortened(mut self) -> Self {
        let shorten = |text: String| text.chars().take(PROBLEM_LENGTH_MAX).collect();
        self.upload_problem = self.upload_problem.map(shorten);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(name: &str, step: Option<u64>) -> Checkpoint {
        Checkpoint {
            name: name.to_owned(),
            step,
            attempt: 0,
            bytes: 1,
            seconds: None,
        }
    }

    fn copies(names: &[&str]) -> Vec<Duplicate> {
        let parse = |name: &&str| Duplicate::parse(name).expect("a copy's name");
        names.iter().map(parse).collect()
    }

    #[test]
    fn a_name_tells_what_it_is_a_copy_of_and_whose() {
        let copy = Duplicate {
            step: 1200,
            attempt: 3,
            job: "0f3c1d2e".to_owned(),
            name: "epoch=1.step=1200".to_owned(),
        };
        assert_eq!(copy.to_string(), "s1200.a3.0f3c1d2e.epoch=1.step=1200");
        assert_eq!(Duplicate::parse(&copy.to_string()), Some(copy));
        for other in [
            "step-1200",
            "s1.a1.j",
            "s1.a1.j.",
            "s1.a1.j..x",
            "s01.a1.j.x",
            "s1.a+1.j.x",
            "s.a1.j.x",
            "s1.b1.j.x",
            "",
        ] {
            assert_eq!(Duplicate::parse(other), None, "{other}");
        }
        let uid = "0f3c1d2e-1111-2222-3333-444444444444";
        assert_eq!(place("ns", "train", uid, None), "ns/train-0f3c1d2e");
        assert_eq!(place("ns", "train", uid, Some("gpt")), "ns/gpt");
    }

    #[test]
    fn the_newest_is_sent_unless_it_is_there() {
        let all = [
            here("step-5", Some(5)),
            here("step-6", Some(6)),
            here("best", None),
        ];
        for (what, found, outbox, there, expected) in [
            (
                "nothing there",
                "",
                &[][..],
                &[][..],
                Some("s6.a3.j.step-6"),
            ),
            (
                "an older one there",
                "",
                &[],
                &["s5.a3.j.step-5"],
                Some("s6.a3.j.step-6"),
            ),
            ("it is there", "", &[], &["s6.a3.j.step-6"], None),
            (
                "an earlier attempt's is not what was written since",
                "",
                &[],
                &["s6.a2.j.step-6"],
                Some("s6.a3.j.step-6"),
            ),
            (
                "an earlier attempt's of what it began with",
                "step-6",
                &[],
                &["s6.a2.j.step-6"],
                None,
            ),
            (
                "another job's of what it began with",
                "step-6",
                &[],
                &["s6.a7.k.step-6"],
                None,
            ),
            ("this job was further", "", &[], &["s9.a2.j.step-9"], None),
            (
                "another job was further",
                "",
                &[],
                &["s9.a2.k.step-9"],
                Some("s6.a3.j.step-6"),
            ),
            (
                "a part has arrived",
                "step-6",
                &["s6.a2.j.step-6", "s5.a2.j.step-5"],
                &[],
                Some("s6.a2.j.step-6"),
            ),
            (
                "a part of what has been written anew has arrived",
                "",
                &["s6.a2.j.step-6"],
                &[],
                Some("s6.a3.j.step-6"),
            ),
            (
                "another job's part",
                "step-6",
                &["s6.a2.k.step-6"],
                &[],
                Some("s6.a3.j.step-6"),
            ),
        ] {
            let found = BTreeSet::from([found.to_owned()]);
            let sender = Sender {
                job: "j",
                attempt: 3,
            };
            let next = next(sender, &all, &found, &copies(outbox), &copies(there));
            let next = next.map(|it| it.to_string());
            assert_eq!(next.as_deref(), expected, "{what}");
        }
        let sender = Sender {
            job: "j",
            attempt: 3,
        };
        let unordered = [here("best", None)];
        assert_eq!(next(sender, &unordered, &BTreeSet::new(), &[], &[]), None);
    }

    #[test]
    fn only_a_jobs_own_copies_beyond_the_newest_go() {
        let there = copies(&[
            "s1.a1.j.x",
            "s3.a1.j.x",
            "s3.a2.j.x",
            "s2.a3.j.x",
            "s0.a1.k.x",
        ]);
        let gone = |keep| -> Vec<String> {
            let excess = excess(&there, keep, "j");
            excess.into_iter().map(ToString::to_string).collect()
        };
        assert_eq!(gone(2), ["s2.a3.j.x", "s1.a1.j.x"]);
        assert_eq!(gone(0).len(), 3, "the newest stays");
        assert_eq!(gone(4), [""; 0]);
    }

    #[test]
    fn what_is_ahead_is_brought_back_newest_first() {
        let there = copies(&["s5.a1.j.x", "s7.a1.j.x", "s7.a2.j.x", "s6.a9.j.x"]);
        let ahead = |here: Option<&Checkpoint>| -> Vec<String> {
            let ahead = ahead(&there, here);
            ahead.into_iter().map(|it| it.to_string()).collect()
        };
        assert_eq!(
            ahead(None),
            ["s7.a2.j.x", "s7.a1.j.x", "s6.a9.j.x", "s5.a1.j.x"]
        );
        assert_eq!(ahead(Some(&here("x", Some(6)))), ["s7.a2.j.x", "s7.a1.j.x"]);
        assert_eq!(ahead(Some(&here("x", Some(7)))), [""; 0]);
        assert_eq!(ahead(Some(&here("x", None))).len(), 4);
    }

    #[test]
    fn a_store_that_does_not_answer_holds_up_only_who_has_nothing_else() {
        for (attempt, is_shared, is_same_volume, has_any, expected) in [
            (1, false, false, false, Asking::No),
            (1, true, false, false, Asking::UntilAnswered),
            (1, true, false, true, Asking::Briefly),
            (2, false, true, false, Asking::Briefly),
            (2, false, false, true, Asking::Briefly),
            (2, false, false, false, Asking::UntilAnswered),
        ] {
            let asked = asking(attempt, is_shared, is_same_volume, has_any);
            assert_eq!(
                asked, expected,
                "{attempt} {is_shared} {is_same_volume} {has_any}"
            );
        }
    }

    #[test]
    fn what_is_told_is_read_back_and_no_longer_than_a_status_may_be() {
        let told = Carried {
            uploaded: Some(Uploaded {
                step: 8,
                at: "2027-01-15T08:00:00Z".to_owned(),
            }),
            upload_problem: Some("x".repeat(2 * PROBLEM_LENGTH_MAX)),
        };
        let text = serde_json::to_string(&told).expect("JSON");
        assert_eq!(Carried::parse(&text), Some(told.shortened()));
        assert_eq!(Carried::parse("{}"), Some(Carried::default()));
        assert_eq!(Carried::parse(""), None);
    }
}
