//! What Events say of a worker whose own status leaves open who ended it.

use stoke_api::Reason;

use super::cause::{Cause, Confidence};
use super::memory::near;
use super::{Diagnosis, End, Evidence, diagnose, evicted, first_of, told};

/// Would Events about the worker and its node be worth reading? They are where something was killed and nobody says for whose sake.
pub fn events_may_tell(evidence: &Evidence) -> bool {
    let found = diagnose(evidence);
    match found.cause {
        Cause::KilledByPerson => evidence.container.is_some() && evidence.end == End::Ended,
        // The kernel's counter does not say whether it was the limit or the machine that had no more.
        Cause::ContainerLimit | Cause::ChildKilled => {
            found.confidence != Confidence::Certain
                || near(evidence.peak, evidence.limit) == Some(false)
        }
        _ => false,
    }
}

/// Who ended it, by an Event about its pod. Only for one that was ended by a signal, of which nothing nearer is known.
pub fn told_by_events(evidence: &Evidence) -> Option<Diagnosis> {
    let container = evidence.container.as_ref()?;
    let by_signal = matches!(container.signal(), Some(9 | 15));
    let has_status = !evidence.pod_reason.is_empty() || evidence.disruption.is_some();
    let by_kernel = container.reason == "OOMKilled" || evidence.oom_kills > 0;
    if !by_signal || has_status || by_kernel || !evidence.kernel.is_empty() {
        return None;
    }
    let mut events = evidence.events.iter();
    let found = events.find_map(|(reason, message)| told_by(evidence, reason, message))?;
    Some(Diagnosis {
        confidence: Confidence::Likely,
        ..found
    })
}

fn told_by(evidence: &Evidence, reason: &str, message: &str) -> Option<Diagnosis> {
    let (rank, node) = (evidence.rank, first_of(&evidence.node, "its node"));
    let outside = |cause, sentence: String| {
        Diagnosis::outside(cause, Reason::Evicted, reason, told(sentence, message))
    };
    let found = match reason {
        "Evicted" => {
            return Some(evicted(&Evidence {
                pod_message: message.to_owned(),
                ..evidence.clone()
            }));
        }
        "Preempted" | "Preempting" => outside(
            Cause::Preempted,
            format!("rank {rank} was preempted by more important work"),
        ),
        "TaintManagerEviction" | "NodeControllerEviction" => outside(
            Cause::Disrupted,
            format!("rank {rank} was taken off {node}"),
        ),
        "Killing" if message.contains("probe") => {
            let probe = if message.contains("startup") {
                "startup"
            } else {
                "liveness"
            };
            Diagnosis::job(
                Cause::Crash,
                Reason::WorkerFailed,
                "Unhealthy",
                format!("rank {rank} was killed by {node}, for its {probe} probe failed"),
                "give the probe in the template more time, or leave it out",
            )
        }
        _ => return None,
    };
    Some(found.quoting([format!("{reason}: {message}")]))
}
