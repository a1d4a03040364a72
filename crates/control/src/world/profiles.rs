//! What runs of each kind of job used, and who is sized by it.

use std::sync::Arc;

use stoke_api::{JobProfile, TrainJob};

use super::{Wakes, World};
use crate::mirror::{Change, Key};
use crate::trainjob::fingerprint::Fingerprint;

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
        let Some(profile) = change.latest() else {
            return Wakes::default();
        };
        let peak = |profile: &Option<Arc<JobProfile>>| profile.as_ref().map(|it| it.spec.peak);
        if profile.spec.runs > YOUNG && peak(&change.before) == peak(&change.after) {
            return Wakes::default();
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
            ..Wakes::default()
        }
    }
}
