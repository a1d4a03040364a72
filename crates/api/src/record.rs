//! How a job went, in a few words: kept after the job itself is gone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{Bytes, GpuMilli, GpuRequest};
use crate::reason::Reason;
use crate::trainjob::{Attempt, Phase, TrainJob};

/// Records that a profile keeps: of a job that runs every night, three months.
pub const RECORDS_KEPT: usize = 100;

/// How one job went.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct JobRecord {
    pub name: String,
    /// The beginning of its uid: another job of the same name is another.
    pub id: String,
    /// When it ended, in seconds of Unix time.
    pub at: u64,
    /// `Complete` or `Failed`.
    pub phase: Phase,
    /// Why, as one word.
    pub reason: String,
    /// What the last attempt is held to have died of, where it did not end well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    pub attempts: u32,
    /// Attempts that failed by themselves.
    #[serde(skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// How long it ran, all attempts together.
    pub seconds: u64,
    /// The same, for each GPU that it had.
    #[serde(skip_serializing_if = "is_none")]
    pub gpu_seconds: u64,
    /// The most memory that a worker used, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Bytes>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none(seconds: &u64) -> bool {
    *seconds == 0
}

/// What tells a job from another of the same name: the beginning of its uid.
pub fn distinct(job: &TrainJob) -> &str {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    uid.split('-').next().unwrap_or_default()
}

impl JobRecord {
    /// None while it is not over.
    pub fn of(job: &TrainJob) -> Option<Self> {
        let status = job.status.as_ref().filter(|it| it.phase.is_final())?;
        let at = status.finished_at.as_ref()?.0.as_second();
        let last = status.attempts.last();
        let cause = last.and_then(|attempt| attempt.diagnosis.as_ref());
        let cause = cause.filter(|it| status.phase == Phase::Failed && it.cause != "Unknown");
        let cause = cause.map(|found| found.cause.clone());
        // Nothing has to be found out about it.
        let exit = last.and_then(|attempt| attempt.exit.as_ref());
        let hung = exit.map(|exit| exit.reason.clone());
        let hung = hung.filter(|word| *word == Reason::Hung.to_string());
        Some(Self {
            name: job.name().to_owned(),
            id: distinct(job).to_owned(),
            at: u64::try_from(at).unwrap_or_default(),
            phase: status.phase,
            reason: status.reason.clone(),
            cause: cause.or(hung).unwrap_or_default(),
            attempts: status.attempt,
            failures: status.failures,
            seconds: status.ran_seconds,
            gpu_seconds: gpu_seconds(job),
            peak: None,
        })
    }
}

/// Puts a record among those that are kept, the oldest first. Doing so twice changes nothing, and one that is older than all that are kept
/// is not put back.
pub fn keep(records: &mut Vec<JobRecord>, record: JobRecord) {
    records.retain(|known| known.id != record.id || known.name != record.name);
    let place = records.partition_point(|known| (known.at, &known.id) < (record.at, &record.id));
    records.insert(place, record);
    let excess = records.len().saturating_sub(RECORDS_KEPT);
    records.drain(..excess);
}

/// Of attempts that are not on record any more it is known how long they ran, and held that they had as many workers as the job asks for.
fn gpu_seconds(job: &TrainJob) -> u64 {
    let Some(status) = &job.status else { return 0 };
    let ran = |attempt: &Attempt| {
        let (from, to) = (attempt.running_at.as_ref()?, attempt.finished_at.as_ref()?);
        u64::try_from(to.0.duration_since(from.0).as_secs()).ok()
    };
    let known: Vec<(u64, u64)> = status
        .attempts
        .iter()
        .map(|attempt| (ran(attempt).unwrap_or(0), attempt.nodes.len() as u64))
        .collect();
    let told: u64 = known.iter().map(|(seconds, _)| seconds).sum();
    let untold = status.ran_seconds.saturating_sub(told);
    let workers: u64 = known.iter().map(|(seconds, each)| seconds * each).sum();
    let workers = workers.saturating_add(untold.saturating_mul(job.spec.workers.into()));
    workers.saturating_mul(milli(&job.spec.gpus)) / 1000
}

/// Thousandths of a GPU that each worker has. A slice is a seventh of one.
fn milli(gpus: &GpuRequest) -> u64 {
    match gpus {
        GpuRequest::None => 0,
        GpuRequest::Whole(n) => u64::from(*n) * 1000,
        GpuRequest::Fraction(GpuMilli(milli)) => u64::from(*milli),
        GpuRequest::Mig(profile) => {
            let slices = profile.split_once("g.").and_then(|(n, _)| n.parse().ok());
            slices.unwrap_or(0_u64) * 1000 / 7
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(gpus: &str, phase: &str) -> TrainJob {
        serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": "j", "uid": "0a1b-2c3d"},
            "spec": {"command": ["x"], "gpus": gpus, "workers": 3},
            "status": {
                "phase": phase, "reason": "RetriesExhausted", "attempt": 12, "failures": 4, "ranSeconds": 1000, "finishedAt": "2026-01-01T01:00:00Z",
                "attempts": [
                    {"number": 11, "nodes": ["a", "b"], "runningAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:05:00Z"},
                    {"number": 12, "nodes": ["a"], "runningAt": "2026-01-01T00:10:00Z", "finishedAt": "2026-01-01T00:15:00Z",
                        "diagnosis": {"cause": "GpuOutOfMemory", "confidence": "Certain"}},
                ],
            },
        }))
        .expect("a job")
    }

    #[test]
    fn a_job_that_is_over_is_told_in_a_few_words() {
        assert_eq!(JobRecord::of(&job("2", "Running")), None);
        let record = JobRecord::of(&job("2", "Failed")).expect("a record");
        // 400 seconds are of attempts that nobody knows any more, with three workers each.
        assert_eq!(record.gpu_seconds, (300 * 2 + 300 + 400 * 3) * 2);
        let written = serde_json::to_string(&record).expect("json");
        assert_eq!(
            written,
            r#"{"name":"j","id":"0a1b","at":1767229200,"phase":"Failed","reason":"RetriesExhausted","cause":"GpuOutOfMemory","attempts":12,"failures":4,"seconds":1000,"gpuSeconds":4200}"#
        );
        let seconds = |gpus| JobRecord::of(&job(gpus, "Complete")).map(|it| it.gpu_seconds);
        assert_eq!(seconds("0"), Some(0));
        assert_eq!(seconds("0.5"), Some(1050));
        assert_eq!(seconds("1g.10gb"), Some(298), "a seventh");
    }

    #[test]
    fn what_is_kept_is_bounded_and_kept_once() {
        let record = |n: u64| JobRecord {
            name: "j".to_owned(),
            id: n.to_string(),
            at: n,
            ..JobRecord::default()
        };
        let mut records = Vec::new();
        for n in [5, 3, 4, 3, 5] {
            keep(&mut records, record(n));
        }
        let ids = |records: &[JobRecord]| records.iter().map(|it| it.at).collect::<Vec<_>>();
        assert_eq!(ids(&records), [3, 4, 5]);
        for n in 0..300 {
            keep(&mut records, record(n));
        }
        assert_eq!(records.len(), RECORDS_KEPT);
        assert_eq!(ids(&records)[0], 200);
        let before = records.clone();
        keep(&mut records, record(7));
        assert_eq!(records, before, "it is not put back");
        // A hundred of the longest are some tens of kilobytes.
        let long = JobRecord {
            name: "n".repeat(50),
            id: "01234567".to_owned(),
            reason: "RetriesExhausted".to_owned(),
            cause: "GpuOutOfMemory".to_owned(),
            at: u64::MAX,
            seconds: u64::MAX,
            gpu_seconds: u64::MAX,
            peak: Some(Bytes(u64::MAX)),
            ..record(1)
        };
        let bytes = serde_json::to_vec(&vec![long; RECORDS_KEPT]).expect("json");
        assert!(bytes.len() < 40_000, "{}", bytes.len());
    }
}
