//! What runs of each kind of job used, and who is sized by it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use stoke_api::profile::PROFILE_VERSION;
use stoke_api::{JobProfile, TrainJob};

use super::{Wakes, World};
use crate::mirror::{Change, Key};
use crate::trainjob::fingerprint::Fingerprint;

/// A profile is kept this long after the last run that it has learned from, and for as long as there is a job that learns from it.
const KEPT_DAYS: i64 = 180;
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(24 * KEPT_DAYS);
/// And so many of a namespace: each is some tens of kilobytes here and in the API server.
const KEPT_MAX: usize = 500;

/// A profile that is not needed any more.
#[derive(Debug, Clone)]
pub struct Outlived {
    pub profile: Arc<JobProfile>,
    /// When a run was last put into it.
    pub touched: Timestamp,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Old,
    Many,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Old => write!(f, "no run has touched it for {KEPT_DAYS} days"),
            Self::Many => write!(f, "its namespace has more than {KEPT_MAX}"),
        }
    }
}

impl World {
    pub(super) fn index_learner(&mut self, job: &Key, change: &Change<TrainJob>) {
        if let Some(before) = &change.before {
            let profile = Fingerprint::key(before);
            if let Some(learners) = self.learners.get_mut(&profile) {
                learners.remove(job);
                if learners.is_empty() {
                    self.learners.remove(&profile);
                }
            }
        }
        if let Some(after) = &change.after {
            let learners = self.learners.entry(Fingerprint::key(after)).or_default();
            learners.insert(job.clone());
        }
    }

    /// What runs like a job's used.
    pub fn profile_of(&self, job: &TrainJob) -> Option<&Arc<JobProfile>> {
        self.profiles.get(&Fingerprint::key(job))
    }

    /// Those who wait and would be sized by it are looked at again while it is young and when a run used more than any before: what the
    /// hundredth run adds to it changes little.
    pub(super) fn profile_changed(&mut self, change: &Change<JobProfile>) -> Wakes {
        const YOUNG: u32 = 3;
        self.index_age(change);
        let Some(profile) = change.latest() else {
            return Wakes::default();
        };
        let profiles = change.before.is_none();
        let peak = |profile: &Option<Arc<JobProfile>>| profile.as_ref().map(|it| it.spec.peak);
        if profile.spec.runs > YOUNG && peak(&change.before) == peak(&change.after) {
            return Wakes {
                profiles,
                ..Wakes::default()
            };
        }
        let learners = self.learners.get(&Key::of(&profile.metadata));
        let learners = learners.into_iter().flatten();
        let jobs: Vec<Key> = learners
            .filter(|key| self.rooms.wants(key))
            .cloned()
            .collect();
        self.look_again(&jobs);
        Wakes {
            room: true,
            jobs_waiting: jobs,
            profiles,
            ..Wakes::default()
        }
    }

    /// Keeps them in the order of their age. One of another version is whoever's wrote it.
    fn index_age(&mut self, change: &Change<JobProfile>) {
        let age = |profile: &Option<Arc<JobProfile>>| {
            let profile = profile.as_ref()?;
            let is_ours = profile.spec.version == PROFILE_VERSION;
            let name = profile.metadata.name.as_deref()?;
            is_ours.then(|| (touched(profile), Box::from(name)))
        };
        let Some(profile) = change.latest() else {
            return;
        };
        let namespace = profile.metadata.namespace.clone().unwrap_or_default();
        let ages = self.ages.entry(namespace).or_default();
        if let Some(before) = age(&change.before) {
            ages.remove(&before);
        }
        ages.extend(age(&change.after));
        if ages.is_empty() {
            let namespace = profile.metadata.namespace.as_deref().unwrap_or_default();
            self.ages.remove(namespace);
        }
    }

    /// Is there a job, at whatever stage, whose runs are in it or will be?
    pub fn is_learned_from(&self, profile: &Key) -> bool {
        self.learners.contains_key(profile)
    }

    /// Profiles to be deleted, the oldest of each namespace first, so many at most.
    ///
    /// Age is what has passed until the latest run of all: a clock that jumps ahead makes nothing old.
    pub fn outlived(&self, now: Timestamp, most: usize) -> Vec<Outlived> {
        let latest = self.ages.values().filter_map(BTreeSet::last);
        let latest = latest.map(|(touched, _)| *touched).max();
        let now = latest.map_or(now, |latest| latest.min(now));
        let old = now.saturating_sub(KEPT_FOR).unwrap_or(Timestamp::MIN);
        let mut found = Vec::new();
        for (namespace, ages) in &self.ages {
            let mut excess = ages.len().saturating_sub(KEPT_MAX);
            for (touched, name) in ages {
                let why = match (*touched < old, excess) {
                    _ if found.len() >= most => return found,
                    (true, _) => Why::Old,
                    (false, 1..) => Why::Many,
                    (false, 0) => break,
                };
                let key = Key::new(namespace, name);
                if self.is_learned_from(&key) {
                    continue;
                }
                excess = excess.saturating_sub(1);
                found.extend(self.profiles.get(&key).map(|profile| Outlived {
                    profile: profile.clone(),
                    touched: *touched,
                    why,
                }));
            }
        }
        found
    }
}

/// When a run was last put into it.
fn touched(profile: &JobProfile) -> Timestamp {
    let created = profile.metadata.creation_timestamp.as_ref();
    let touched = profile.spec.last_run.as_ref().or(created);
    touched.map_or(Timestamp::MIN, |time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainjob::fixtures::{at, config, job};
    use kube::runtime::watcher::Event;
    use serde_json::json;

    const DAY: i64 = 86_400;

    fn profile(name: &str, version: u32, last_run: i64) -> JobProfile {
        serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "JobProfile",
            "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": at(0).to_string()},
            "spec": {"version": version, "fingerprint": "f", "lastRun": at(last_run).to_string()},
        }))
        .expect("a profile")
    }

    fn world(profiles: impl IntoIterator<Item = JobProfile>) -> World {
        let mut world = World::new(config());
        for profile in profiles {
            world.watched(Event::Apply(profile));
        }
        world
    }

    fn outlived(world: &World, now: i64) -> Vec<(String, Why)> {
        let found = world.outlived(at(now), usize::MAX).into_iter();
        found
            .map(|it| (it.profile.metadata.name.clone().unwrap_or_default(), it.why))
            .collect()
    }

    #[test]
    fn what_no_run_has_touched_for_long_is_outlived_unless_a_job_learns_from_it() {
        let job = job(json!({"command": ["python", "train.py"]}));
        let used = Fingerprint::of(&job).name;
        let mut world = world([
            profile("old", PROFILE_VERSION, -181 * DAY),
            profile("young", PROFILE_VERSION, -179 * DAY),
            profile("foreign", PROFILE_VERSION + 1, -400 * DAY),
            profile(&used, PROFILE_VERSION, -400 * DAY),
            profile("new", PROFILE_VERSION, 0),
        ]);
        world.watched(Event::Apply(job.clone()));
        assert_eq!(outlived(&world, 0), [("old".to_owned(), Why::Old)]);
        assert_eq!(
            outlived(&world, 4000 * DAY),
            [("old".to_owned(), Why::Old)],
            "a clock that jumps makes nothing old"
        );
        assert_eq!(outlived(&world, -10 * DAY), [], "nor does one that lags");
        world.watched(Event::Delete(job));
        assert_eq!(
            outlived(&world, 0),
            [(used, Why::Old), ("old".to_owned(), Why::Old)]
        );
        // A run touches it.
        world.watched(Event::Apply(profile("old", PROFILE_VERSION, DAY)));
        let left = outlived(&world, DAY);
        assert!(left.iter().all(|(name, _)| name != "old"), "{left:?}");
        for name in ["old", "young", "new"] {
            let known = world.profiles.get(&Key::new("default", name)).cloned();
            let known = known.expect("it is known").as_ref().clone();
            world.watched(Event::Delete(known));
        }
        assert_eq!(world.ages["default"].len(), 1, "what is gone has no age");
    }

    #[test]
    fn of_many_the_oldest_go_first_and_some_at_a_time() {
        let mut world = world((0..KEPT_MAX as i64 + 3).map(|i| {
            let name = format!("p{i:03}");
            profile(&name, PROFILE_VERSION, i)
        }));
        let many = |names: &[&str]| -> Vec<(String, Why)> {
            let named = names.iter().map(|name| ((*name).to_owned(), Why::Many));
            named.collect()
        };
        assert_eq!(outlived(&world, 1000), many(&["p000", "p001", "p002"]));
        assert_eq!(world.outlived(at(1000), 2).len(), 2);
        // Whose jobs are there stays, and the next oldest goes.
        let learner = Key::new("default", "j");
        let second = Key::new("default", "p001");
        world.learners.entry(second).or_default().insert(learner);
        assert_eq!(outlived(&world, 1000), many(&["p000", "p002", "p003"]));
    }
}
