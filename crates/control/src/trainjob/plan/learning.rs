//! What attempts used, put into the profile of runs like them.
//!
//! A node tells what a worker used some time after the worker has ended, and on its pod. So every look at a job compares the pods that
//! there are with what the profile knows: nothing is learned twice, and nothing is lost with an operator.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use stoke_api::profile::{JobProfileSpec, PROFILE_VERSION, Run};
use stoke_api::record::{self, JobRecord};
use stoke_api::trainjob::{Attempt, Outcome};
use stoke_api::{Bytes, JobProfile, TrainJob};
use stoke_memory::History;
use stoke_memory::digest::merge;

use super::{Action, Turn, after};
use crate::trainjob::fingerprint::Fingerprint;
use crate::trainjob::workers::{Stage, Worker};

/// How long after an attempt's end the nodes' word on all of its workers is waited for.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// An attempt that ended otherwise than well, and not for want of memory, says what it needs only if it ran this long.
const TELLING_SECONDS: u64 = 600;

impl Turn<'_> {
    /// Puts into the profile what it lacks. Until when more may come, where it may.
    pub(super) fn learn(&mut self) -> Option<Timestamp> {
        let known = self.observed.profile.as_deref();
        if known.is_some_and(|profile| profile.spec.version != PROFILE_VERSION) {
            return None;
        }
        let fingerprint = Fingerprint::of(self.job);
        let mut spec = known.map_or_else(
            || JobProfileSpec {
                version: PROFILE_VERSION,
                fingerprint: fingerprint.hash.clone(),
                about: fingerprint.about.clone(),
                ..JobProfileSpec::default()
            },
            |profile| profile.spec.clone(),
        );
        let mut awaited = None;
        for attempt in &self.status.attempts.clone() {
            match self.due(attempt) {
                Due::Never => {}
                Due::At { at, is_begun } => {
                    awaited = awaited.max(Some(at));
                    // What comes wakes the job by itself; that nothing more does is for the clock to say.
                    if is_begun {
                        self.wake_at(at);
                    }
                }
                Due::Now => {
                    let workers = self
                        .workers
                        .iter()
                        .filter(|it| it.attempt == attempt.number);
                    let (key, input) = (self.key(attempt), self.observed.input);
                    learn_from(&mut spec, attempt, &key, input, workers);
                }
            }
        }
        let is_learned = known.map_or(!spec.history.is_empty(), |known| known.spec != spec);
        // How the job went is told with what it used, and at the latest before it goes.
        if is_learned || self.goes_at(awaited).is_some_and(|at| at <= self.now) {
            self.keep_record(&mut spec);
        }
        let is_news = known.map_or(spec.last_run.is_some(), |known| known.spec != spec);
        if is_news {
            let metadata = ObjectMeta {
                name: Some(fingerprint.name),
                namespace: Some(self.job.namespace().to_owned()),
                resource_version: known.and_then(|it| it.metadata.resource_version.clone()),
                ..ObjectMeta::default()
            };
            let profile = JobProfile { metadata, spec };
            self.actions.push(Action::Learn(Box::new(profile)));
        }
        awaited
    }

    /// Puts among the jobs that are known how this one went, if it is over.
    fn keep_record(&self, spec: &mut JobProfileSpec) {
        let job = TrainJob {
            metadata: self.job.metadata.clone(),
            spec: self.job.spec.clone(),
            status: Some(self.status.clone()),
        };
        let Some(record) = JobRecord::of(&job) else {
            return;
        };
        let of_it = format!("{}/", record.id);
        let own = spec
            .history
            .iter()
            .filter(|run| run.key.starts_with(&of_it));
        let peak = own.map(|run| run.peak).max();
        let finished = self.status.finished_at.clone();
        spec.last_run = spec.last_run.take().max(finished);
        record::keep(&mut spec.jobs, JobRecord { peak, ..record });
    }

    /// Another job of the same name is another.
    fn key(&self, attempt: &Attempt) -> String {
        format!("{}/{}", record::distinct(self.job), attempt.number)
    }

    /// Can it be said by now what this attempt used?
    fn due(&self, attempt: &Attempt) -> Due {
        let Some(finished) = attempt.finished_at.as_ref() else {
            return Due::Never;
        };
        if attempt.outcome.is_none() || attempt.running_at.is_none() {
            return Due::Never;
        }
        let workers = self
            .workers
            .iter()
            .filter(|it| it.attempt == attempt.number);
        let has_ended = |worker: &&Worker<'_>| {
            worker.is_finished() || matches!(worker.stage(), Stage::Succeeded | Stage::Failed)
        };
        let (told, untold): (Vec<_>, Vec<_>) =
            workers.partition(|worker| worker.digest().is_some());
        let at = after(finished.0, TOLD_WITHIN);
        let is_awaited = untold.iter().any(has_ended) && at > self.now;
        match (is_awaited, told.is_empty()) {
            (true, nobody) => Due::At {
                at,
                is_begun: !nobody,
            },
            (false, true) => Due::Never,
            (false, false) => Due::Now,
        }
    }
}

enum Due {
    Never,
    /// Some have told already, or nobody has.
    At {
        at: Timestamp,
        is_begun: bool,
    },
    Now,
}

fn learn_from<'a>(
    spec: &mut JobProfileSpec,
    attempt: &Attempt,
    key: &str,
    input: Option<Bytes>,
    workers: impl Iterator<Item = &'a Worker<'a>>,
) {
    let digests: Vec<_> = workers.filter_map(Worker::digest).collect();
    let runs = digests.iter().map(|digest| Run {
        key: key.to_owned(),
        at: attempt
            .finished_at
            .as_ref()
            .map_or(0, |at| u64::try_from(at.0.as_second()).unwrap_or_default()),
        seconds: digest.seconds,
        // What is known before a run is what it can be foretold by.
        input: input.or(digest.input_bytes.map(Bytes)),
        peak: Bytes(digest.needed_bytes()),
        median: Bytes(digest.median_bytes),
        censored: digest.oom_killed,
        storage: digest.storage_peak_bytes.map(Bytes),
        shm: Some(Bytes(digest.shm_peak_bytes)).filter(|bytes| bytes.0 > 0),
        gpu: digest.gpus.values().map(|gpu| Bytes(gpu.peak_bytes)).max(),
    });
    let joined = runs.reduce(|mut all, run| {
        all.join(&run);
        all
    });
    let Some(run) = joined.filter(|run| is_telling(attempt, run)) else {
        return;
    };
    let is_new = !spec.history.iter().any(|known| known.key == run.key);
    let (at, peak) = (run.at, run.peak);
    let mut history = History::of(&spec.history);
    history.learn(run);
    let runs = history.runs();
    if runs == spec.history {
        return;
    }
    spec.history = runs;
    spec.peak = spec.peak.max(Some(peak));
    if is_new {
        spec.runs = spec.runs.saturating_add(1);
        let at = Timestamp::from_second(i64::try_from(at).unwrap_or(i64::MAX));
        let at = at.ok().map(Time);
        spec.last_run = spec.last_run.take().max(at);
        let usage = spec.usage.get_or_insert_default();
        for digest in digests {
            merge(usage, digest);
        }
    }
}

/// Does it say what a run like it needs?
fn is_telling(attempt: &Attempt, run: &Run) -> bool {
    let ended_well = attempt.outcome == Some(Outcome::Succeeded);
    run.peak.0 > 0 && (ended_well || run.censored || run.seconds >= TELLING_SECONDS)
}
