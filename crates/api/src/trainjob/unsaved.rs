//! What would be lost if a job were interrupted now.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{TrainJobSpec, TrainJobStatus};
use crate::quantity::GpuRequest;

/// Work since the newest checkpoint, or since the attempt began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsaved {
    pub seconds: u64,
    /// The same times GPUs, or times workers where they have none.
    pub total_seconds: u64,
    pub has_gpus: bool,
}

impl Unsaved {
    /// Of a job whose workers run.
    pub fn of(spec: &TrainJobSpec, status: &TrainJobStatus, now: &Time) -> Option<Self> {
        let attempt = status.current_attempt()?;
        let since = since(status)?;
        let seconds = now.0.duration_since(since.0).as_secs();
        let seconds = u64::try_from(seconds).unwrap_or(0);
        let workers = attempt.nodes.len() as u64;
        // A slice is counted as the GPU that it is a part of: what it is worth nobody says.
        let milli = match &spec.gpus {
            GpuRequest::None => 0,
            GpuRequest::Whole(count) => u64::from(*count) * 1000,
            GpuRequest::Fraction(part) => u64::from(part.0),
            GpuRequest::Mig(_) => 1000,
        };
        let of_one = if milli == 0 { 1000 } else { milli };
        Some(Self {
            seconds,
            total_seconds: seconds.saturating_mul(workers).saturating_mul(of_one) / 1000,
            has_gpus: milli > 0,
        })
    }

    /// What `total_seconds` is counted in.
    pub fn unit(self) -> &'static str {
        if self.has_gpus { "GPU" } else { "worker" }
    }
}

/// From when on work is not in a checkpoint; `None` where no worker runs.
pub fn since(status: &TrainJobStatus) -> Option<&Time> {
    let attempt = status.current_attempt()?;
    let begun = attempt.running_at.as_ref()?;
    if attempt.outcome.is_some() {
        return None;
    }
    // What is older than the attempt is what it began with.
    let saved = status.last_checkpoint.as_ref();
    Some(saved.filter(|saved| saved.0 > begun.0).unwrap_or(begun))
}

#[cfg(test)]
mod tests {
    use super::super::TrainJob;
    use super::*;
    use serde_json::{Value, json};

    fn job(gpus: Value, saved: Option<&str>, outcome: Option<&str>) -> TrainJob {
        serde_json::from_value(json!({
            "apiVersion": "stokehold.dev/v1alpha1", "kind": "TrainJob", "metadata": {"name": "j"},
            "spec": {"command": ["a"], "gpus": gpus},
            "status": {"attempt": 2, "lastCheckpoint": saved, "attempts": [{
                "number": 2, "nodes": ["a", "b"], "runningAt": "2027-01-15T08:00:00Z", "outcome": outcome}]},
        }))
        .expect("a job")
    }

    #[test]
    fn work_since_the_last_checkpoint_of_the_attempt_is_unsaved() {
        let now = Time("2027-01-15T09:00:00Z".parse().expect("a time"));
        let of = |gpus: Value, saved, outcome| {
            let job = job(gpus, saved, outcome);
            let unsaved = Unsaved::of(&job.spec, job.status.as_ref()?, &now)?;
            Some((unsaved.seconds, unsaved.total_seconds, unsaved.unit()))
        };
        assert_eq!(of(json!(0), None, None), Some((3600, 7200, "worker")));
        assert_eq!(of(json!(4), None, None), Some((3600, 28_800, "GPU")));
        assert_eq!(of(json!("0.5"), None, None), Some((3600, 3600, "GPU")));
        let (before, since) = ("2027-01-15T07:00:00Z", "2027-01-15T08:59:00Z");
        assert_eq!(of(json!(1), Some(before), None), Some((3600, 7200, "GPU")));
        assert_eq!(of(json!(1), Some(since), None), Some((60, 120, "GPU")));
        assert_eq!(of(json!(1), None, Some("Failed")), None, "it does not run");
        let ahead = Some("2027-01-15T09:30:00Z");
        assert_eq!(
            of(json!(1), ahead, None),
            Some((0, 0, "GPU")),
            "a clock ahead"
        );
    }
}
