//! Workers that did not start.

use stoke_api::Reason;

use super::cause::Cause;
use super::{Blame, Diagnosis, Evidence, NOT_STARTED, told};

pub(super) fn never_started(evidence: &Evidence) -> Diagnosis {
    let message = &evidence.pod_message;
    // The kubelet's or the scheduler's word for it comes first.
    let word = message.split(':').next().unwrap_or_default();
    let sentence = format!(
        "rank {} did not start in time on {}",
        evidence.rank, evidence.node
    );
    let known_as = match word {
        "Unschedulable" => word,
        _ => NOT_STARTED,
    };
    let own = match word {
        "InvalidImageName" | "CreateContainerConfigError" => true,
        "ErrImagePull" | "ImagePullBackOff" => there_is_no_such_image(message),
        // An image that may not be pulled is on some nodes perhaps, and a container that cannot be made here perhaps elsewhere.
        _ => false,
    };
    let sentence = told(sentence, message);
    let found = Diagnosis::job(
        Cause::NotStarted,
        Reason::StartFailed,
        known_as,
        sentence,
        start_help(word),
    );
    Diagnosis {
        blame: if own { Blame::Job } else { Blame::Outside },
        ..found
    }
}

/// Does a registry say that it does not have the image, or not for us? It would say so to every node.
fn there_is_no_such_image(message: &str) -> bool {
    let message = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|words| message.contains(words));
    // Who does not get through to the registry may have not found its name either.
    let unheard = ["dial tcp", "lookup ", "timeout", "deadline exceeded"];
    let refused = [
        "not found",
        "manifest unknown",
        "unauthorized",
        "denied",
        "forbidden",
        "authorization failed",
        "no basic auth credentials",
    ];
    !says(&unheard) && says(&refused)
}

/// Is it over by itself, if one waits, that a container does not start? Takes its node's word for it.
pub fn may_still_start(word: &str) -> bool {
    !matches!(
        word,
        "InvalidImageName"
            | "ErrImageNeverPull"
            | "CreateContainerConfigError"
            | "CreateContainerError"
    )
}

/// What helps a worker that does not start, by its scheduler's or its node's word for it.
fn start_help(word: &str) -> &'static str {
    match word {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable" => {
            "check the image's name and, for a private registry, template.spec.imagePullSecrets"
        }
        "CreateContainerConfigError" => {
            "check the Secrets and ConfigMaps that its variables and volumes name"
        }
        "CreateContainerError" => "check that what it mounts exists where it runs",
        "ContainerCreating" | "PodInitializing" => {
            "its node still waits for an image, a volume or a network: kubectl describe its pod"
        }
        "Unschedulable" => "the next attempt goes to other nodes where it can",
        _ => "",
    }
}
