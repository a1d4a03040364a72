//! What ended a worker: read from its pod's and its container's status, said with the evidence, and judged: the job's own
//! doing, or something done to it from outside.

use std::fmt::Write as _;

use stoke_api::{Bytes, Reason};

/// What is known of a worker that did not end well.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    pub rank: u32,
    pub node: String,
    pub end: End,
    /// The pod's own reason and message, where something other than its container ended it: `Evicted`.
    pub pod_reason: String,
    pub pod_message: String,
    /// Reason and message of the condition `DisruptionTarget`, where it is true.
    pub disruption: Option<(String, String)>,
    pub container: Option<Terminated>,
    /// Memory limit of the worker.
    pub limit: Option<Bytes>,
    /// The most memory it was seen to use, where someone measured.
    pub peak: Option<Bytes>,
    /// How many of its processes the kernel killed at its limit, where someone counted.
    pub oom_kills: u64,
}

/// How far a worker got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// Its pod has ended.
    #[default]
    Ended,
    /// Its pod was deleted, and not by its job.
    Deleted,
    /// Its node is no more.
    NodeGone,
    /// It did not start in time.
    NeverStarted,
}

/// The word for a worker that its node did not start in time.
pub const NOT_STARTED: &str = "NotStarted";

/// How a container ended, as the kubelet says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terminated {
    pub name: String,
    pub exit_code: i32,
    pub signal: Option<i32>,
    /// `OOMKilled`, `Error`, `StartError`.
    pub reason: String,
    pub message: String,
}

/// Who ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The job's own doing: it counts against `retries`.
    Job,
    /// Done to it from outside: it does not count.
    Outside,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnosis {
    pub reason: Reason,
    pub blame: Blame,
    /// What happened, with its evidence.
    pub sentence: String,
    /// What would help; empty where nothing is known to.
    pub help: String,
    /// The kubelet's word for it, or ours where it has none.
    pub word: String,
}

/// Reads the evidence. Total: whatever it is given, it says something true.
pub fn diagnose(evidence: &Evidence) -> Diagnosis {
    let rank = evidence.rank;
    match evidence.end {
        // What ended before its node or its pod went has an end of its own.
        End::NodeGone if evidence.container.is_none() => outside(
            Reason::WorkerLost,
            "NodeLost",
            format!("rank {rank} was lost with its node {}", evidence.node),
            "",
        ),
        End::NeverStarted => never_started(evidence),
        _ => ended(evidence),
    }
}

fn ended(evidence: &Evidence) -> Diagnosis {
    let rank = evidence.rank;
    let oom = evidence.container.as_ref().filter(|container| {
        // A runtime that did not see the kernel kill a child gives the worker's own end.
        container.reason == "OOMKilled" || (evidence.oom_kills > 0 && container.exit_code != 0)
    });
    if let Some(container) = oom {
        return out_of_memory(evidence, container);
    }
    if let Some((reason, message)) = &evidence.disruption {
        let sentence = match reason.as_str() {
            "PreemptionByScheduler" => format!("rank {rank} was preempted by more important work"),
            // The kubelet says the same word when it makes room and when its machine goes down.
            "TerminationByKubelet" if evidence.pod_reason == "Terminated" => {
                format!("rank {rank} was stopped with {}", evidence.node)
            }
            "TerminationByKubelet" | "EvictionByEvictionAPI" => {
                format!("rank {rank} was evicted from {}", evidence.node)
            }
            "DeletionByTaintManager" => {
                format!("rank {rank} was taken off {} by a taint", evidence.node)
            }
            "DeletionByPodGC" => format!("rank {rank} was lost with its node {}", evidence.node),
            _ => format!("rank {rank} was disrupted on {} ({reason})", evidence.node),
        };
        let message = first_of(&evidence.pod_message, message);
        return outside(Reason::Evicted, reason, told(sentence, message), "");
    }
    match evidence.pod_reason.as_str() {
        "Evicted" => return evicted(evidence),
        "Preempting" | "Preempted" | "Shutdown" | "Terminated" | "NodeShutdown" => {
            let sentence = format!("rank {rank} was stopped by {}", evidence.node);
            let sentence = told(sentence, &evidence.pod_message);
            return outside(Reason::Evicted, &evidence.pod_reason, sentence, "");
        }
        "NodeLost" => {
            let sentence = format!("rank {rank} was lost with its node {}", evidence.node);
            return outside(Reason::WorkerLost, "NodeLost", sentence, "");
        }
        "DeadlineExceeded" => {
            let sentence = format!("rank {rank} ran longer than its pod's activeDeadlineSeconds");
            let help = "remove activeDeadlineSeconds from the template and set maxDuration";
            return job(Reason::DeadlineExceeded, "DeadlineExceeded", sentence, help);
        }
        _ => {}
    }
    match (&evidence.container, evidence.end) {
        (Some(container), End::Ended | End::NodeGone) => crashed(rank, container),
        (_, End::Deleted) => outside(
            Reason::WorkerLost,
            "Deleted",
            format!("rank {rank} was deleted from outside"),
            "",
        ),
        // A pod that failed and never had a container was turned away by its node.
        _ => outside(
            Reason::StartFailed,
            first_of(&evidence.pod_reason, "Rejected"),
            told(
                format!("rank {rank} was turned away by {}", evidence.node),
                &evidence.pod_message,
            ),
            "",
        ),
    }
}

fn out_of_memory(evidence: &Evidence, container: &Terminated) -> Diagnosis {
    let rank = evidence.rank;
    let limit = evidence.limit.map_or_else(
        || "its memory limit".to_owned(),
        |limit| format!("its memory limit of {}", limit.human()),
    );
    let code = container.exit_code;
    // The kernel may kill a child and let the worker end by itself.
    let sentence = if matches!(code, 137 | -9) {
        format!("rank {rank} was killed at {limit} (OOMKilled, exit code {code})")
    } else {
        format!(
            "a process of rank {rank} was killed at {limit}, and the worker ended ({}, exit code {code})",
            first_of(&container.reason, "Error")
        )
    };
    let peak = evidence.peak.map_or_else(String::new, |peak| {
        format!(", having used {}", peak.human())
    });
    let sentence = told(sentence + &peak, &container.message);
    let help = "raise memory.limit, or use less: a smaller batch, fewer loader workers";
    job(Reason::OutOfMemory, "OOMKilled", sentence, help)
}

fn evicted(evidence: &Evidence) -> Diagnosis {
    let rank = evidence.rank;
    let message = &evidence.pod_message;
    let sentence = told(
        format!("rank {rank} was evicted from {}", evidence.node),
        message,
    );
    // Over its own limit is the job's doing; a node in need is not.
    let own = ["exceeds the limit", "exceeded its local", "usage exceeds"];
    if own.iter().any(|words| message.contains(words)) {
        let help = "write less to local disk, or ask for more ephemeral-storage in the template";
        job(Reason::Evicted, "Evicted", sentence, help)
    } else {
        outside(Reason::Evicted, "Evicted", sentence, "")
    }
}

fn never_started(evidence: &Evidence) -> Diagnosis {
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
    diagnosis(
        if own { Blame::Job } else { Blame::Outside },
        Reason::StartFailed,
        known_as,
        told(sentence, message),
        start_help(word),
    )
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

fn crashed(rank: u32, container: &Terminated) -> Diagnosis {
    let code = container.exit_code;
    if matches!(
        container.reason.as_str(),
        "StartError" | "ContainerCannotRun" | "CreateContainerError"
    ) {
        let sentence = told(
            format!("rank {rank} could not be started"),
            &container.message,
        );
        let help = "check that the command, workingDir and mounts exist where it runs";
        return job(Reason::StartFailed, &container.reason, sentence, help);
    }
    // A shell counts 128 and the signal.
    let signal = container
        .signal
        .filter(|signal| *signal > 0)
        .or_else(|| (code > 128 && code < 128 + 65).then(|| code - 128));
    if let Some(signal) = signal {
        let sentence = format!(
            "rank {rank} was killed by {} (exit code {code})",
            signal_name(signal)
        );
        return job(
            Reason::WorkerFailed,
            first_of(&container.reason, "Error"),
            told(sentence, &container.message),
            signal_help(signal),
        );
    }
    let help = match code {
        0 => "a worker must not end before the whole gang has",
        126 => "the command is there but cannot be executed",
        127 => "the command was not found where it runs",
        _ => "",
    };
    job(
        Reason::WorkerFailed,
        first_of(&container.reason, "Error"),
        told(
            format!("rank {rank} ended with exit code {code}"),
            &container.message,
        ),
        help,
    )
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

fn signal_help(signal: i32) -> &'static str {
    match signal {
        7 => "a bus error is often a full /dev/shm: use fewer loader workers or more memory",
        // Exit 137 alone is no proof: only the kernel's counter makes it out of memory.
        9 => {
            "its memory limit was not reached; someone killed it, or the machine ran out of memory"
        }
        6 | 11 => "the program crashed in native code: look at the end of its log",
        _ => "",
    }
}

fn job(reason: Reason, word: &str, sentence: String, help: &str) -> Diagnosis {
    diagnosis(Blame::Job, reason, word, sentence, help)
}

fn outside(reason: Reason, word: &str, sentence: String, help: &str) -> Diagnosis {
    diagnosis(Blame::Outside, reason, word, sentence, help)
}

fn diagnosis(blame: Blame, reason: Reason, word: &str, sentence: String, help: &str) -> Diagnosis {
    Diagnosis {
        reason,
        blame,
        sentence,
        help: help.to_owned(),
        word: word.to_owned(),
    }
}

impl Diagnosis {
    /// Sentence and help as one.
    pub fn advice(&self) -> String {
        if self.help.is_empty() {
            self.sentence.clone()
        } else {
            format!("{}; {}", self.sentence, self.help)
        }
    }
}

/// A message of someone else's making goes into ours, so it is kept short.
const QUOTE_LENGTH_MAX: usize = 300;

fn told(mut sentence: String, message: &str) -> String {
    let message = message.trim();
    if !message.is_empty() {
        let quote: String = message.chars().take(QUOTE_LENGTH_MAX).collect();
        write!(sentence, ": {}", quote.trim_end_matches('.')).expect("a String takes every write");
    }
    sentence
}

fn first_of<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exit(exit_code: i32, reason: &str, message: &str) -> Evidence {
        Evidence {
            rank: 1,
            node: "n1".to_owned(),
            limit: Some(Bytes::mib(128)),
            container: Some(Terminated {
                name: "worker".to_owned(),
                exit_code,
                signal: None,
                reason: reason.to_owned(),
                message: message.to_owned(),
            }),
            ..Evidence::default()
        }
    }

    fn pod(reason: &str, message: &str) -> Evidence {
        Evidence {
            rank: 1,
            node: "n1".to_owned(),
            pod_reason: reason.to_owned(),
            pod_message: message.to_owned(),
            ..Evidence::default()
        }
    }

    fn says(evidence: &Evidence) -> String {
        let diagnosis = diagnose(evidence);
        let counts = match diagnosis.blame {
            Blame::Job => "counts",
            Blame::Outside => "does not count",
        };
        format!(
            "{} ({}), {counts}: {}",
            diagnosis.reason,
            diagnosis.word,
            diagnosis.advice()
        )
    }

    #[test]
    fn ends_are_told_apart() {
        insta::assert_snapshot!(says(&exit(137, "OOMKilled", "")), @"OutOfMemory (OOMKilled), counts: rank 1 was killed at its memory limit of 128 MiB (OOMKilled, exit code 137); raise memory.limit, or use less: a smaller batch, fewer loader workers");
        insta::assert_snapshot!(says(&exit(1, "OOMKilled", "")), @"OutOfMemory (OOMKilled), counts: a process of rank 1 was killed at its memory limit of 128 MiB, and the worker ended (OOMKilled, exit code 1); raise memory.limit, or use less: a smaller batch, fewer loader workers");
        let counted = Evidence {
            oom_kills: 1,
            ..exit(1, "Error", "")
        };
        insta::assert_snapshot!(says(&counted), @"OutOfMemory (OOMKilled), counts: a process of rank 1 was killed at its memory limit of 128 MiB, and the worker ended (Error, exit code 1); raise memory.limit, or use less: a smaller batch, fewer loader workers");
        let measured = Evidence {
            peak: Some(Bytes::mib(127)),
            ..exit(137, "OOMKilled", "")
        };
        insta::assert_snapshot!(says(&measured), @"OutOfMemory (OOMKilled), counts: rank 1 was killed at its memory limit of 128 MiB (OOMKilled, exit code 137), having used 127 MiB; raise memory.limit, or use less: a smaller batch, fewer loader workers");
        insta::assert_snapshot!(says(&exit(137, "Error", "")), @"WorkerFailed (Error), counts: rank 1 was killed by SIGKILL (exit code 137); its memory limit was not reached; someone killed it, or the machine ran out of memory");
        insta::assert_snapshot!(says(&exit(3, "Error", "ValueError: no such layer.")), @"WorkerFailed (Error), counts: rank 1 ended with exit code 3: ValueError: no such layer");
        insta::assert_snapshot!(says(&exit(127, "Error", "")), @"WorkerFailed (Error), counts: rank 1 ended with exit code 127; the command was not found where it runs");
        insta::assert_snapshot!(says(&exit(139, "Error", "")), @"WorkerFailed (Error), counts: rank 1 was killed by SIGSEGV (exit code 139); the program crashed in native code: look at the end of its log");
        insta::assert_snapshot!(says(&exit(128, "StartError", "no such file: trian.py")), @"StartFailed (StartError), counts: rank 1 could not be started: no such file: trian.py; check that the command, workingDir and mounts exist where it runs");
        let low =
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi. ";
        insta::assert_snapshot!(says(&pod("Evicted", low)), @"Evicted (Evicted), does not count: rank 1 was evicted from n1: The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi");
        let own = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ";
        insta::assert_snapshot!(says(&pod("Evicted", own)), @"Evicted (Evicted), counts: rank 1 was evicted from n1: Pod ephemeral local storage usage exceeds the total limit of containers 1Gi; write less to local disk, or ask for more ephemeral-storage in the template");
        insta::assert_snapshot!(says(&pod("OutOfcpu", "Node didn't have enough resource: cpu")), @"StartFailed (OutOfcpu), does not count: rank 1 was turned away by n1: Node didn't have enough resource: cpu");
        insta::assert_snapshot!(says(&pod("DeadlineExceeded", "")), @"DeadlineExceeded (DeadlineExceeded), counts: rank 1 ran longer than its pod's activeDeadlineSeconds; remove activeDeadlineSeconds from the template and set maxDuration");
        let gone = |end| Evidence { end, ..pod("", "") };
        insta::assert_snapshot!(says(&gone(End::NodeGone)), @"WorkerLost (NodeLost), does not count: rank 1 was lost with its node n1");
        insta::assert_snapshot!(says(&gone(End::Deleted)), @"WorkerLost (Deleted), does not count: rank 1 was deleted from outside");
        insta::assert_snapshot!(says(&gone(End::NeverStarted)), @"StartFailed (NotStarted), does not count: rank 1 did not start in time on n1");
        let waiting = |message: &str| Evidence {
            end: End::NeverStarted,
            ..pod("", message)
        };
        insta::assert_snapshot!(says(&waiting("ImagePullBackOff: not found")), @"StartFailed (NotStarted), counts: rank 1 did not start in time on n1: ImagePullBackOff: not found; check the image's name and, for a private registry, template.spec.imagePullSecrets");
        insta::assert_snapshot!(says(&waiting("Unschedulable: 0/2 nodes are available")), @"StartFailed (Unschedulable), does not count: rank 1 did not start in time on n1: Unschedulable: 0/2 nodes are available; the next attempt goes to other nodes where it can");
        let drained = Evidence {
            end: End::Deleted,
            disruption: Some((
                "EvictionByEvictionAPI".to_owned(),
                "Eviction API: evicting".to_owned(),
            )),
            ..pod("", "")
        };
        insta::assert_snapshot!(says(&drained), @"Evicted (EvictionByEvictionAPI), does not count: rank 1 was evicted from n1: Eviction API: evicting");
        let preempted = Evidence {
            disruption: Some(("PreemptionByScheduler".to_owned(), "make room".to_owned())),
            ..exit(143, "Error", "")
        };
        insta::assert_snapshot!(says(&preempted), @"Evicted (PreemptionByScheduler), does not count: rank 1 was preempted by more important work: make room");
        let stopped = Evidence {
            end: End::Deleted,
            ..exit(143, "Error", "")
        };
        insta::assert_snapshot!(says(&stopped), @"WorkerLost (Deleted), does not count: rank 1 was deleted from outside");
    }

    #[test]
    fn a_start_that_fails_everywhere_is_the_jobs_own_doing() {
        let pulled = |cause: &str| {
            format!(
                "ImagePullBackOff: Back-off pulling image \"acme/vision:1\": ErrImagePull: {cause}"
            )
        };
        let no_secret = r#"CreateContainerConfigError: secret "token" not found"#;
        let table = [
            ("InvalidImageName: couldn't parse image name".to_owned(), Blame::Job),
            (no_secret.to_owned(), Blame::Job),
            (pulled(r#"failed to resolve reference "docker.io/acme/vision:1": docker.io/acme/vision:1: not found"#), Blame::Job),
            (pulled("pull access denied, repository does not exist or may require authorization"), Blame::Job),
            (pulled("unexpected status from HEAD request to https://r.example.com/v2/: 401 Unauthorized"), Blame::Job),
            (pulled("reading manifest 1 in docker.io/acme/vision: manifest unknown"), Blame::Job),
            (pulled("unexpected status from HEAD request to https://r.example.com/v2/: 503 Service Unavailable"), Blame::Outside),
            (pulled(r#"Get "https://r.example.com/v2/": dial tcp: lookup r.example.com on 10.0.0.10:53: no such host"#), Blame::Outside),
            (pulled(r#"Get "https://r.example.com/v2/": net/http: TLS handshake timeout"#), Blame::Outside),
            (r#"ImagePullBackOff: Back-off pulling image "acme/vision:1""#.to_owned(), Blame::Outside),
            (r#"ErrImageNeverPull: Container image "acme/vision:1" is not present with pull policy of Never"#.to_owned(), Blame::Outside),
            ("CreateContainerError: no space left on device".to_owned(), Blame::Outside),
            ("ContainerCreating".to_owned(), Blame::Outside),
            (String::new(), Blame::Outside),
        ];
        for (message, expected) in table {
            let evidence = Evidence {
                end: End::NeverStarted,
                ..pod("", &message)
            };
            assert_eq!(diagnose(&evidence).blame, expected, "{message}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_given_something_is_said(
            code: i32, signal in prop::option::of(any::<i32>()), reason in ".{0,20}", message in ".{0,600}", pod_reason in ".{0,20}",
            container: bool, end in 0..4,
        ) {
            let end = [End::Ended, End::Deleted, End::NodeGone, End::NeverStarted][end as usize];
            let container = container.then(|| Terminated { name: String::new(), exit_code: code, signal, reason, message: message.clone() });
            let evidence = Evidence { end, pod_reason, pod_message: message, container, ..Evidence::default() };
            let diagnosis = diagnose(&evidence);
            prop_assert!(!diagnosis.sentence.is_empty() && !diagnosis.word.is_empty());
            prop_assert!(diagnosis.sentence.chars().count() < 500);
        }
    }
}
