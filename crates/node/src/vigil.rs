//! What is kept of one run of a container for as long as it is watched: what it used, and a guard over its limit.
//!
//! The engine's node and the agent of a cluster look at containers in different ways and act in different ways; what they make of a look
//! is this.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use stoke_api::Bytes;
use stoke_api::contract::checkpoints::Saved;
use stoke_api::contract::{JobStatus, MemoryTerms};
use stoke_api::digest::ContainerDigest;
use stoke_api::names::{JOB_LABEL, MEMORY_TERMS_ANNOTATION};
use stoke_api::risk::{MemoryRisk, Stage};
use stoke_memory::guard::{Action, Guard, Room, Shortage, Terms};
use stoke_memory::{Digest, Earlier, Place, Point, Sample, Verdict, Watcher};

use crate::cgroup::MemorySample;
use crate::resources;

/// A program says as often as it likes that it has saved; it is told this often at most, and sooner where somebody waits for it.
const SAVES_PAUSE: Duration = Duration::from_secs(10);
const AWAITED_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct Vigil {
    digest: Digest,
    /// Of the worker of a job; of other containers only the use is kept.
    guard: Option<Guard>,
    /// What the worker's series is up to, and the last that was said of it.
    watcher: Watcher,
    verdict: Verdict,
    last: Option<(Duration, Sample)>,
    saves: Saves,
}

/// What a program says of its newest checkpoint.
#[derive(Debug, Clone, Default)]
struct Saves {
    /// What is said at the first look may have been so for long.
    has_begun: bool,
    step: Option<u64>,
    /// The same from what watches over its checkpoints, which knows better.
    seen: Option<Saved>,
    /// What became of its copies has not been told.
    has_more: bool,
    /// When it was seen to be another.
    at: Option<Duration>,
    /// Which one was told last, and when.
    told: Option<(Duration, Duration)>,
}

impl Vigil {
    pub(crate) fn new(terms: Option<Terms>) -> Self {
        Self::resume(terms, None)
    }

    /// Of a run that an earlier process watched.
    pub(crate) fn resume(terms: Option<Terms>, told: Option<ContainerDigest>) -> Self {
        let expected = terms.and_then(|terms| terms.expected);
        let watcher = expected.map_or_else(Watcher::default, |peak| {
            let earlier = Earlier {
                peak: Bytes(peak),
                leaked: false,
            };
            Watcher::with_earlier(Place::Host, earlier)
        });
        Self {
            digest: told.map(Digest::resume).unwrap_or_default(),
            guard: terms.map(Guard::new),
            watcher,
            verdict: Verdict::TooEarly,
            last: None,
            saves: Saves::default(),
        }
    }

    /// One look. `at` is since any fixed moment.
    pub(crate) fn look(
        &mut self,
        at: Duration,
        sample: &MemorySample,
        said: &JobStatus,
        node_is_short: bool,
        room: impl FnOnce() -> Room,
    ) -> Option<Action> {
        let sample = Sample::from(sample);
        self.digest.add(at, &sample, said);
        self.hear(at, said);
        let before = self.last.replace((at, sample));
        let guard = self.guard.as_mut()?;
        // Looks that come quickly one after the other tell it nothing more.
        if before.is_none_or(|(before, _)| before.as_secs() != at.as_secs()) {
            self.verdict = self.watcher.observe(at.as_secs(), &point(&sample, said));
        }
        guard.has_done(self.digest.steps());
        guard.observe(at, &sample, node_is_short, room)
    }

    /// What the program says, without a look.
    pub(crate) fn hear(&mut self, at: Duration, said: &JobStatus) {
        let is_first = !std::mem::replace(&mut self.saves.has_begun, true);
        if let Some(saved) = &said.saved
            && Some(saved) != self.saves.seen.as_ref()
        {
            let known = self.saves.seen.replace(saved.clone());
            if known.is_some_and(|known| known.is_same(saved)) {
                // Something became of its copies.
                self.saves.has_more = true;
            } else {
                self.saves.at = Some(at);
            }
        }
        if self.saves.seen.is_some() {
            return;
        }
        if said.saved_step.is_some() && said.saved_step != self.saves.step {
            self.saves.step = said.saved_step;
            self.saves.at = (!is_first).then_some(at);
        }
    }

    /// When its program was last seen to have written a checkpoint.
    pub(crate) fn saved_at(&self) -> Option<Duration> {
        self.saves.at
    }

    /// Its newest checkpoint, where what watches over them has told.
    pub(crate) fn saved(&self) -> Option<&Saved> {
        self.saves.seen.as_ref()
    }

    /// How long ago its program wrote a checkpoint that is to be told now: each once, and no more often than is good for whoever is told.
    pub(crate) fn news_of_save(&mut self, at: Duration, is_awaited: bool) -> Option<Duration> {
        let saved = self.saves.at?;
        let pause = if is_awaited {
            AWAITED_PAUSE
        } else {
            SAVES_PAUSE
        };
        let has_more = self.saves.has_more;
        let is_told = |(told, when): (Duration, Duration)| {
            (told == saved && !has_more) || at.saturating_sub(when) < pause
        };
        if self.saves.told.is_some_and(is_told) {
            return None;
        }
        self.saves.told = Some((saved, at));
        self.saves.has_more = false;
        Some(at.saturating_sub(saved))
    }

    /// What the worker's memory is up to, where that is worth knowing.
    pub(crate) fn foreseen(&self) -> Option<&Verdict> {
        let matters = matches!(
            self.verdict,
            Verdict::Leak { .. } | Verdict::Climbing { .. }
        );
        matters.then_some(&self.verdict)
    }

    /// What is to be said on the pod, which says what was said before, of growth that is no danger yet, or no more.
    pub(crate) fn forewarning(
        &self,
        before: Option<&MemoryRisk>,
        now: Timestamp,
    ) -> Option<MemoryRisk> {
        // Of other containers of the pod nothing is said, and so nothing is taken back.
        let (Some(guard), Some((_, sample))) = (&self.guard, self.last) else {
            return before.cloned();
        };
        let is_told = before.is_some_and(|before| before.stage == Stage::Foreseen);
        match (self.foreseen(), before) {
            (Some(verdict), None) => Some(MemoryRisk {
                since: now.to_string(),
                why: verdict.to_string(),
                stage: Stage::Foreseen,
                used_bytes: sample.unreclaimable(),
                limit_bytes: sample.limit.unwrap_or(0),
                first_limit_bytes: guard.terms().first,
                checkpoint_asked_at: None,
            }),
            (None, Some(_)) if is_told => None,
            _ => before.cloned(),
        }
    }

    pub(crate) fn gpu(&mut self, id: &str, bytes: u64, since: Duration) {
        self.digest.add_gpu(id, bytes, since);
    }

    pub(crate) fn storage(&mut self, bytes: u64) {
        self.digest.add_storage(bytes);
    }

    /// What was asked for is not to be had. Where it came all the same, there is nothing to refuse.
    pub(crate) fn refused(&mut self, why: String) {
        if let (Some(guard), Some((at, _))) = (&mut self.guard, self.last)
            && guard.asked().is_some()
        {
            guard.refused(at, why);
        }
    }

    /// A danger was told of this pod before this run was looked at, and is to be taken back when there is none.
    pub(crate) fn was_in_danger(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.was_in_danger();
        }
    }

    /// A request for a checkpoint did not get through.
    pub(crate) fn ask_again(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.ask_again();
        }
    }

    /// Looked at as often as is cheap, for something can be done for it and it may be needed before the second is over.
    pub(crate) fn is_alert(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_alert)
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_urgent)
    }

    /// What it was lent beyond its first limit, or is to be promised and does not have yet: no one else may have that.
    pub(crate) fn lent(&self) -> u64 {
        let Some(guard) = &self.guard else {
            return 0;
        };
        let in_force = self.last.and_then(|(_, sample)| sample.limit);
        match (guard.terms().is_promised, guard.asked(), in_force) {
            (true, Some(asked), Some(limit)) => asked.saturating_sub(limit),
            _ => guard.lent(),
        }
    }

    /// What cannot be taken back from it.
    pub(crate) fn used(&self) -> u64 {
        self.last.map_or(0, |(_, sample)| sample.unreclaimable())
    }

    pub(crate) fn peak(&self) -> u64 {
        self.digest.peak()
    }

    /// It is over. `peak` is the kernel's last word, and `ran` how long it was.
    pub(crate) fn end(&mut self, peak: Option<u64>, ran: Option<Duration>, oom_killed: bool) {
        self.digest.end(peak, ran, oom_killed);
    }

    pub(crate) fn told(&self, id: &str) -> Option<ContainerDigest> {
        self.digest.told(id)
    }

    /// What is said on the pod of an action, if it is of a danger.
    pub(crate) fn risk(
        &self,
        action: &Action,
        before: Option<&MemoryRisk>,
        now: Timestamp,
    ) -> Option<MemoryRisk> {
        let first = self.guard.as_ref().map_or(0, |guard| guard.terms().first);
        let (used, stage, limit) = match action {
            Action::Raise { to, danger } => (danger.used, Stage::Raised, *to),
            Action::AskCheckpoint { danger, .. } => (danger.used, Stage::AtTheEnd, danger.limit),
            Action::AskInTime { used, limit, .. } => (*used, Stage::AtTheEnd, *limit),
            Action::GiveBack { .. } | Action::Calm => return None,
        };
        // Files are dated to the second; a checkpoint that is written at once must not seem older than the request.
        let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let asked = (stage == Stage::AtTheEnd).then(|| second.to_string());
        Some(MemoryRisk {
            since: before.map_or_else(|| now.to_string(), |before| before.since.clone()),
            why: match self.foreseen() {
                Some(verdict) => format!("{action} ({verdict})"),
                None => action.to_string(),
            },
            stage,
            used_bytes: used,
            limit_bytes: limit,
            first_limit_bytes: first,
            checkpoint_asked_at: asked.or_else(|| before?.checkpoint_asked_at.clone()),
        })
    }
}

fn point<'a>(sample: &Sample, said: &'a JobStatus) -> Point<'a> {
    Point {
        anon: Bytes(sample.anon),
        shmem: Bytes(sample.shmem),
        kernel: Bytes(sample.kernel),
        file_active: Bytes(sample.file_active),
        file_inactive: Bytes(sample.file_inactive),
        working_set: Bytes(sample.working_set),
        limit: sample.limit.map(Bytes),
        step: said.step,
        phase: said.phase.as_deref(),
    }
}

/// What is to be said on a pod: that its node runs out, for as long as it does, else what is to be said of its own memory. `told` is what
/// it says now.
pub(crate) fn said(
    shortage: Option<&Shortage>,
    own: Option<&MemoryRisk>,
    told: Option<&MemoryRisk>,
    now: Timestamp,
) -> Option<MemoryRisk> {
    let Some(shortage) = shortage else {
        return own.cloned();
    };
    // Its figures change each second; that it is short does not.
    let told = told.filter(|told| told.stage == Stage::NodeShort);
    let (since, why) = told.map_or_else(
        || (now.to_string(), shortage.to_string()),
        |told| (told.since.clone(), told.why.clone()),
    );
    Some(MemoryRisk {
        since,
        why,
        stage: Stage::NodeShort,
        ..own.cloned().unwrap_or_default()
    })
}

/// What a pod said of its own memory when it was first seen. That its node ran out is found anew, if it still does.
pub(crate) fn own_risk(told: Option<&MemoryRisk>) -> Option<MemoryRisk> {
    told.filter(|risk| risk.stage != Stage::NodeShort).cloned()
}

/// Whether it is a danger that only a guard takes back.
pub(crate) fn is_danger(own: Option<&MemoryRisk>) -> bool {
    own.is_some_and(|risk| matches!(risk.stage, Stage::Raised | Stage::AtTheEnd))
}

/// What may be done for the worker of a job: its name, and the terms. `None` for a pod of no job, and one without a limit.
pub(crate) fn terms(pod: &Pod, react: Duration) -> Option<(String, Terms)> {
    pod.labels().get(JOB_LABEL)?;
    let worker = pod.spec.as_ref()?.containers.first()?;
    let limit = resources::memory_limit(worker)?;
    let said = pod.annotations().get(MEMORY_TERMS_ANNOTATION);
    let said = said.and_then(|text| MemoryTerms::parse(text));
    let first = said.map_or(limit, |said| said.limit.0);
    let terms = Terms {
        first,
        max: said.and_then(|said| said.max).map_or(first, |max| max.0),
        expected: said.and_then(|said| said.expected).map(|bytes| bytes.0),
        restart_steps: said.and_then(|said| said.restart_steps),
        is_promised: resources::qos_class(pod) == "Guaranteed",
        react,
    };
    Some((worker.name.clone(), terms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests_support::pod;
    use serde_json::json;

    const MIB: u64 = 1 << 20;

    #[test]
    fn only_the_worker_of_a_job_is_guarded_and_on_its_own_terms() {
        let of = |labels: serde_json::Value,
                  annotations: serde_json::Value,
                  limits: serde_json::Value| {
            let pod = pod(json!({
                "metadata": {"name": "p", "labels": labels, "annotations": annotations},
                "spec": {"containers": [
                    {"name": "main", "resources": {"limits": limits}}, {"name": "proxy"}]},
            }));
            let terms = terms(&pod, Duration::from_secs(1));
            terms.map(|(name, terms)| (name, terms.first / MIB, terms.max / MIB, terms.is_promised))
        };
        let job = || json!({"stokehold.dev/job": "j"});
        let limit = || json!({"memory": "160Mi"});
        let said = |text: &str| json!({"stokehold.dev/memory-terms": text});
        assert_eq!(of(json!({}), json!({}), limit()), None, "of no job");
        assert_eq!(of(job(), json!({}), json!({})), None, "without a limit");
        let main = |first, max| Some(("main".to_owned(), first, max, false));
        assert_eq!(
            of(job(), json!({}), limit()),
            main(160, 160),
            "nothing is allowed"
        );
        assert_eq!(
            of(job(), said(r#"{"limit": "160Mi", "max": "1Gi"}"#), limit()),
            main(160, 1024)
        );
        // Raised before this process was started.
        let raised = json!({"memory": "512Mi"});
        assert_eq!(
            of(job(), said(r#"{"limit": "160Mi", "max": "1Gi"}"#), raised),
            main(160, 1024)
        );
        assert_eq!(of(job(), said("nonsense"), limit()), main(160, 160));
    }

    #[test]
    fn a_danger_is_told_with_its_beginning() {
        let terms = Terms {
            first: 160 * MIB,
            max: 256 * MIB,
            expected: None,
            is_promised: false,
            react: Duration::from_secs(1),
            restart_steps: None,
        };
        let mut vigil = Vigil::new(Some(terms));
        let mut look = |second: u64, used: u64, limit: u64| {
            let sample = MemorySample {
                anon_bytes: used * MIB,
                limit_bytes: Some(limit * MIB),
                ..MemorySample::default()
            };
            let room = || Room {
                free: 1 << 40,
                unpromised: 0,
            };
            let said = JobStatus::default();
            let action = vigil.look(Duration::from_secs(second), &sample, &said, false, room);
            (action, vigil.clone())
        };
        assert_eq!(look(0, 100, 160).0, None);
        let (action, vigil) = look(1, 155, 160);
        let (noon, later) = (
            Timestamp::UNIX_EPOCH,
            Timestamp::from_second(1_000).unwrap(),
        );
        let raised = vigil.risk(&action.unwrap(), None, noon).unwrap();
        assert_eq!(
            (raised.stage, raised.limit_bytes / MIB),
            (Stage::Raised, 256)
        );
        let (action, vigil) = look(2, 250, 256);
        let end = vigil.risk(&action.unwrap(), Some(&raised), later).unwrap();
        assert_eq!(end.since, noon.to_string());
        assert_eq!(end.checkpoint_asked_at, Some(later.to_string()));
        assert_eq!(
            (end.stage, end.first_limit_bytes / MIB),
            (Stage::AtTheEnd, 160)
        );
        assert_eq!(vigil.risk(&Action::Calm, Some(&end), later), None);
        assert_eq!(vigil.lent(), 96 * MIB);
    }

    #[test]
    fn a_leak_is_told_before_it_is_a_danger_and_only_of_the_worker() {
        let terms = Terms {
            first: 4096 * MIB,
            max: 4096 * MIB,
            expected: None,
            is_promised: false,
            react: Duration::from_secs(1),
            restart_steps: None,
        };
        let leaks = |vigil: &mut Vigil| {
            for second in 0..3100 {
                let sample = MemorySample {
                    anon_bytes: (500 + second) * MIB,
                    limit_bytes: Some(4096 * MIB),
                    ..MemorySample::default()
                };
                let said = JobStatus {
                    step: Some(second),
                    ..JobStatus::default()
                };
                let room = || panic!("nothing is asked for");
                let action = vigil.look(Duration::from_secs(second), &sample, &said, false, room);
                assert_eq!(action, None, "{second}");
            }
        };
        let mut worker = Vigil::new(Some(terms));
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(worker.forewarning(None, now), None);
        leaks(&mut worker);
        let told = worker.forewarning(None, now).expect("it leaks");
        assert_eq!(told.stage, Stage::Foreseen);
        assert_eq!(
            worker.forewarning(Some(&told), now),
            Some(told.clone()),
            "told once"
        );
        let mut other = Vigil::new(None);
        leaks(&mut other);
        assert_eq!(other.forewarning(None, now), None);
        assert_eq!(other.forewarning(Some(&told), now), Some(told));
    }

    #[test]
    fn a_checkpoint_is_told_once_with_its_age_and_not_too_often() {
        let mut vigil = Vigil::new(None);
        let mut look = |second: u64, step: Option<u64>, is_awaited: bool| {
            let at = Duration::from_secs(second);
            let said = JobStatus {
                saved_step: step,
                ..JobStatus::default()
            };
            let room = || panic!("nothing is asked for");
            vigil.look(at, &MemorySample::default(), &said, false, room);
            let age = vigil.news_of_save(at, is_awaited);
            age.map(|age| age.as_secs())
        };
        assert_eq!(look(0, Some(5), false), None, "nobody knows how old it is");
        assert_eq!(look(1, Some(5), false), None);
        assert_eq!(look(2, Some(6), false), Some(0));
        assert_eq!(look(3, None, false), None, "a torn file");
        assert_eq!(look(4, Some(6), false), None, "once");
        assert_eq!(look(5, Some(7), false), None, "too soon");
        assert_eq!(look(7, Some(7), true), Some(2), "it was not just now");
        assert_eq!(look(8, Some(8), true), Some(0), "somebody waits");
        assert_eq!(look(9, Some(9), false), None);
        assert_eq!(look(17, Some(9), false), None);
        assert_eq!(look(18, Some(9), false), Some(9), "not lost");
        let mut begun = Vigil::new(None);
        begun.hear(Duration::ZERO, &JobStatus::default());
        let first = JobStatus {
            saved_step: Some(1),
            ..JobStatus::default()
        };
        begun.hear(Duration::from_secs(4), &first);
        assert_eq!(begun.saved_at(), Some(Duration::from_secs(4)));
        let mut watched = Vigil::new(None);
        let seen = |name: &str| JobStatus {
            saved_step: Some(9),
            saved: Some(Saved {
                name: name.to_owned(),
                ..Saved::default()
            }),
            ..JobStatus::default()
        };
        for (second, name, expected) in [(1, "a", 1), (2, "a", 1), (3, "b", 3)] {
            watched.hear(Duration::from_secs(second), &seen(name));
            assert_eq!(
                watched.saved_at(),
                Some(Duration::from_secs(expected)),
                "{name}"
            );
        }
        assert_eq!(watched.saved().map(|saved| saved.name.as_str()), Some("b"));
    }

    #[test]
    fn a_shortage_hides_what_is_said_of_a_worker_and_loses_nothing() {
        let (noon, later) = (
            Timestamp::UNIX_EPOCH,
            Timestamp::from_second(1_000).unwrap(),
        );
        let shortage = |available: u64| Shortage {
            available,
            reserve: 0,
            per_second: 0,
        };
        let raised = MemoryRisk {
            since: "before".to_owned(),
            limit_bytes: 5,
            ..MemoryRisk::default()
        };
        assert_eq!(said(None, Some(&raised), None, noon), Some(raised.clone()));
        let short = said(Some(&shortage(9 * MIB)), None, None, noon).unwrap();
        assert_eq!(short.stage, Stage::NodeShort);
        let found = shortage(8 * MIB);
        let again = said(Some(&found), None, Some(&short), later);
        assert_eq!(again.as_ref(), Some(&short), "told once");
        // Raised meanwhile: it is short all the same, and the raise is known.
        let both = said(Some(&found), Some(&raised), Some(&short), later).unwrap();
        assert_eq!((both.stage, both.limit_bytes), (Stage::NodeShort, 5));
        assert_eq!((&both.since, &both.why), (&short.since, &short.why));
        let over = said(None, Some(&raised), Some(&both), later);
        assert_eq!(over, Some(raised.clone()));
        assert_eq!(said(None, None, Some(&short), later), None);
        // After a restart, only what is of the worker itself is known.
        assert_eq!(own_risk(Some(&raised)), Some(raised.clone()));
        assert!(is_danger(Some(&raised)));
        assert_eq!(own_risk(Some(&both)), None);
    }
}
