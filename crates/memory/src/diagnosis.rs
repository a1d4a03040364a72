//! What ended a worker: read from its pod's and its container's status, from what the kernel, the kubelet and its log say, told with the
//! evidence, and judged: the job's own doing, or something done to it from outside.
//!
//! Who did it is believed first: a container that the kubelet calls `OOMKilled`, a pod that it says it evicted. The log is believed
//! about what those cannot know: GPUs, /dev/shm, allocations that were refused.
//!
//! Invariant: exit code 137 alone is no proof of anything.

mod cause;
mod events;
mod figures;
mod kernel;
mod line;
mod log;
mod memory;
mod program;
mod signs;
mod start;

use std::fmt::Write as _;

use stoke_api::trainjob::Finding;
use stoke_api::{Bytes, Reason};

pub use cause::{Cause, Confidence, Framework, Remedy, Resource, Shape};
pub use events::events_may_tell;
pub use figures::Figures;
pub use log::{LogDigest, LogScan};
pub use program::FENCED;
pub use start::may_still_start;

/// What is known of a worker that did not end well.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evidence {
    pub rank: u32,
    pub node: String,
    /// The pod's uid, by which the kernel's lines tell it from others.
    pub uid: String,
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
    /// Its log, or the end of it.
    pub log: Option<LogDigest>,
    /// Reason and message of Events about it and its node, from about when it ended.
    pub events: Vec<(String, String)>,
    /// Lines of its node's kernel log, from its own time.
    pub kernel: Vec<String>,
    pub shm: Option<Usage>,
    pub storage: Option<Usage>,
    /// Where it keeps its checkpoints.
    pub checkpoint_path: Option<String>,
    /// What its memory was seen to do before.
    pub leak: Option<LeakRate>,
}

/// How much of something was used at most, of how much there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub peak: Bytes,
    pub size: Bytes,
}

impl Usage {
    /// Nothing of a size worth speaking of was left.
    fn is_full(self) -> bool {
        self.size.0 > 0 && self.peak.0 >= self.size.0 - self.size.0 / 20
    }
}

/// Memory that grows and is not given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeakRate {
    /// Of the GPU's memory, or of the host's.
    pub gpu: bool,
    pub bytes_per_hour: u64,
    /// Where the job tells its steps.
    pub bytes_per_step: Option<u64>,
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

impl Terminated {
    /// The signal that ended it. A shell counts 128 and the signal.
    fn signal(&self) -> Option<i32> {
        let code = self.exit_code;
        let coded = || match code {
            129..=192 => Some(code - 128),
            -64..=-1 => Some(-code),
            _ => None,
        };
        self.signal.filter(|signal| *signal > 0).or_else(coded)
    }
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
    pub cause: Cause,
    pub confidence: Confidence,
    /// What tells so, as it was found.
    pub quotes: Vec<String>,
    /// What helps, the best first.
    pub remedies: Vec<Remedy>,
    /// What remedies are measured by.
    pub facts: Facts,
    pub reason: Reason,
    pub blame: Blame,
    /// What happened, with its evidence.
    pub sentence: String,
    /// What would help; empty where nothing is known to.
    pub help: String,
    /// The kubelet's word for it, or ours where it has none.
    pub word: String,
}

/// Amounts and names that the evidence gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Of the message about memory, of a GPU or of the host.
    pub figures: Figures,
    pub limit: Option<Bytes>,
    /// The most host memory it used; more than this was asked for, where it was killed.
    pub peak: Option<Bytes>,
    /// What it used of /dev/shm or of local disk, and what there was.
    pub usage: Option<Usage>,
    pub leak: Option<LeakRate>,
    /// Where it ran.
    pub node: String,
    /// The file that could not be written.
    pub path: Option<String>,
    /// The error that ended the program.
    pub error: Option<String>,
}

/// Reads the evidence. Total: whatever it is given, it says something true.
pub fn diagnose(evidence: &Evidence) -> Diagnosis {
    let rank = evidence.rank;
    let found = match evidence.end {
        // What ended before its node or its pod went has an end of its own.
        End::NodeGone if evidence.container.is_none() => Diagnosis::outside(
            Cause::NodeLost,
            Reason::WorkerLost,
            "NodeLost",
            format!("rank {rank} was lost with its node {}", evidence.node),
        ),
        End::NeverStarted => start::never_started(evidence),
        _ => ended(evidence),
    };
    found.with_facts(evidence)
}

fn ended(evidence: &Evidence) -> Diagnosis {
    let read;
    // A kubelet that is asked to gives the end of the log as the container's message.
    let log = match (&evidence.log, &evidence.container) {
        (Some(log), _) => Some(log),
        (None, Some(container)) => {
            read = LogScan::read(container.message.as_bytes());
            Some(&read)
        }
        (None, None) => None,
    };
    events::told_by_events(evidence)
        .or_else(|| memory::killed(evidence, log))
        .or_else(|| interrupted(evidence))
        .unwrap_or_else(|| match (&evidence.container, evidence.end) {
            (Some(container), End::Ended | End::NodeGone) => {
                program::ended(evidence, container, log)
            }
            (_, End::Deleted) => Diagnosis::outside(
                Cause::KilledByPerson,
                Reason::WorkerLost,
                "Deleted",
                format!("rank {} was deleted from outside", evidence.rank),
            ),
            // A pod that failed and never had a container was turned away by its node.
            _ => Diagnosis::outside(
                Cause::NotStarted,
                Reason::StartFailed,
                first_of(&evidence.pod_reason, "Rejected"),
                told(
                    format!(
                        "rank {} was turned away by {}",
                        evidence.rank, evidence.node
                    ),
                    &evidence.pod_message,
                ),
            ),
        })
}

/// Something other than its program ended it, and says so.
fn interrupted(evidence: &Evidence) -> Option<Diagnosis> {
    let (rank, node) = (evidence.rank, &evidence.node);
    if evidence.pod_reason == "Evicted" {
        return Some(evicted(evidence));
    }
    let stopped = |cause, sentence: String, word: &str, message: &str| {
        let found = Diagnosis::outside(cause, Reason::Evicted, word, told(sentence, message));
        Some(found.quoting([format!("{word}: {message}")]))
    };
    if let Some((reason, message)) = &evidence.disruption {
        let (cause, sentence) = match reason.as_str() {
            "PreemptionByScheduler" => (
                Cause::Preempted,
                format!("rank {rank} was preempted by more important work"),
            ),
            // The kubelet says the same word when it makes room and when its machine goes down.
            "TerminationByKubelet" if evidence.pod_reason == "Terminated" => (
                Cause::Disrupted,
                format!("rank {rank} was stopped with {node}"),
            ),
            "TerminationByKubelet" => (
                Cause::NodePressure(resource(&evidence.pod_message)),
                format!("rank {rank} was evicted from {node}"),
            ),
            "EvictionByEvictionAPI" => (
                Cause::Disrupted,
                format!("rank {rank} was evicted from {node}"),
            ),
            "DeletionByTaintManager" => (
                Cause::Disrupted,
                format!("rank {rank} was taken off {node} by a taint"),
            ),
            "DeletionByPodGC" => (
                Cause::NodeLost,
                format!("rank {rank} was lost with its node {node}"),
            ),
            _ => (
                Cause::Disrupted,
                format!("rank {rank} was disrupted on {node} ({reason})"),
            ),
        };
        let message = first_of(&evidence.pod_message, message);
        return stopped(cause, sentence, reason, message);
    }
    // Its kubelet came back and did not find it: the machine was off, and no program chose that.
    let unknown = "ContainerStatusUnknown";
    let container = evidence.container.as_ref();
    if container.is_some_and(|container| container.reason == unknown) {
        let sentence = format!("rank {rank} was not there any more when {node} came back");
        return Some(Diagnosis::outside(
            Cause::NodeLost,
            Reason::WorkerLost,
            unknown,
            sentence,
        ));
    }
    let (word, message) = (&evidence.pod_reason, &evidence.pod_message);
    match word.as_str() {
        "Preempting" | "Preempted" => {
            let sentence = format!("rank {rank} was stopped by {node}");
            stopped(Cause::Preempted, sentence, word, message)
        }
        "Shutdown" | "Terminated" | "NodeShutdown" => {
            let sentence = format!("rank {rank} was stopped by {node}");
            stopped(Cause::Disrupted, sentence, word, message)
        }
        "NodeLost" => Some(Diagnosis::outside(
            Cause::NodeLost,
            Reason::WorkerLost,
            word,
            format!("rank {rank} was lost with its node {node}"),
        )),
        "DeadlineExceeded" => Some(Diagnosis {
            remedies: Vec::new(),
            ..Diagnosis::job(
                Cause::Overdue,
                Reason::DeadlineExceeded,
                word,
                format!("rank {rank} ran longer than its pod's activeDeadlineSeconds"),
                "remove activeDeadlineSeconds from the template and set maxDuration",
            )
        }),
        _ => None,
    }
}

/// The kubelet ended it, for its node's sake or for what it used itself.
fn evicted(evidence: &Evidence) -> Diagnosis {
    let message = &evidence.pod_message;
    let sentence = told(
        format!("rank {} was evicted from {}", evidence.rank, evidence.node),
        message,
    );
    let lower = message.to_ascii_lowercase();
    // Over its own limit is the job's doing; a node in need is not.
    let own = [
        "exceeds the limit",
        "exceeded its local",
        "usage exceeds",
        "exceeds the total limit",
    ];
    let found = if own.iter().any(|words| lower.contains(words)) {
        let shm = is_shared_memory(&lower);
        let (cause, help, remedies) = if shm {
            let help = "use fewer loader workers, or a larger /dev/shm";
            (Cause::SharedMemory, help, vec![Remedy::MoreSharedMemory])
        } else {
            let help =
                "write less to local disk, or ask for more ephemeral-storage in the template";
            let remedies = vec![Remedy::MoreStorage, Remedy::ScratchVolume];
            (Cause::EphemeralStorage, help, remedies)
        };
        Diagnosis {
            remedies,
            ..Diagnosis::job(cause, Reason::Evicted, "Evicted", sentence, help)
        }
    } else {
        let resource = resource(&lower);
        let promised = match resource {
            Resource::Memory => vec![Remedy::PromisedMemory, Remedy::OtherNode, Remedy::TryAgain],
            Resource::Storage => {
                vec![Remedy::MoreStorage, Remedy::OtherNode, Remedy::TryAgain]
            }
            Resource::Processes => vec![Remedy::OtherNode, Remedy::TryAgain],
        };
        Diagnosis {
            remedies: promised,
            ..Diagnosis::outside(
                Cause::NodePressure(resource),
                Reason::Evicted,
                "Evicted",
                sentence,
            )
        }
    };
    let mut found = found.quoting([format!("Evicted: {message}")]);
    if found.cause == Cause::NodePressure(Resource::Memory) {
        found.facts.peak = used(message);
    }
    found
}

/// What a container was using, by the kubelet's message; of several the most.
fn used(message: &str) -> Option<Bytes> {
    let amounts = message.split("was using ").skip(1);
    let amounts = amounts.filter_map(|rest| rest.split([',', ' ']).next()?.parse().ok());
    amounts.max()
}

/// A volume that is memory is not disk: the kubelet names the volume.
fn is_shared_memory(message: &str) -> bool {
    let volume = message.split_once("emptydir volume").map(|(_, rest)| rest);
    volume.is_some_and(|rest| {
        let name = rest.trim_start_matches([' ', '"', '\\']);
        let name = name.split(['"', ' ', '\\']).next().unwrap_or_default();
        name.split(['-', '_', '.'])
            .any(|part| part == "shm" || part == "dshm")
    })
}

/// What the node was low on, by the kubelet's message.
fn resource(message: &str) -> Resource {
    let message = message.to_ascii_lowercase();
    let of = message
        .split_once("low on resource:")
        .map_or(message.as_str(), |(_, rest)| rest);
    let of = of.split(". ").next().unwrap_or_default();
    if of.contains("storage") || of.contains("disk") || of.contains("inode") || of.contains("fs") {
        Resource::Storage
    } else if of.contains("pid") {
        Resource::Processes
    } else {
        Resource::Memory
    }
}

impl Diagnosis {
    fn job(cause: Cause, reason: Reason, word: &str, sentence: String, help: &str) -> Self {
        Self {
            cause,
            confidence: Confidence::Certain,
            quotes: Vec::new(),
            remedies: vec![Remedy::TryAgain],
            facts: Facts::default(),
            reason,
            blame: Blame::Job,
            sentence,
            help: help.to_owned(),
            word: word.to_owned(),
        }
    }

    fn outside(cause: Cause, reason: Reason, word: &str, sentence: String) -> Self {
        Self {
            blame: Blame::Outside,
            ..Self::job(cause, reason, word, sentence, "")
        }
    }

    fn quoting(mut self, quotes: impl IntoIterator<Item = String>) -> Self {
        let quotes = quotes.into_iter().map(|quote| clipped(&quote));
        self.quotes.extend(quotes.filter(|quote| !quote.is_empty()));
        self.quotes.truncate(QUOTES_MAX);
        self
    }

    fn with_facts(mut self, evidence: &Evidence) -> Self {
        self.facts.limit = evidence.limit;
        self.facts.peak = evidence.peak.or(self.facts.peak);
        self.facts.leak = evidence.leak;
        self.facts.node.clone_from(&evidence.node);
        self.facts.usage = match self.cause {
            Cause::SharedMemory => evidence.shm,
            Cause::EphemeralStorage | Cause::NodePressure(Resource::Storage) => evidence.storage,
            _ => None,
        };
        self
    }

    /// Sentence and help as one.
    pub fn advice(&self) -> String {
        if self.help.is_empty() {
            self.sentence.clone()
        } else {
            format!("{}; {}", self.sentence, self.help)
        }
    }

    /// The same as a status keeps it.
    pub fn finding(&self) -> Finding {
        let gpu = match self.cause {
            Cause::GpuOutOfMemory { shape, .. } => Some(shape),
            _ => None,
        };
        Finding {
            cause: self.cause.to_string(),
            shape: gpu.map_or_else(String::new, |shape| shape.to_string()),
            confidence: self.confidence.to_string(),
            tried: self.facts.figures.tried,
            used: match gpu {
                Some(_) => self.facts.figures.allocated.or(self.facts.figures.own),
                None => self.facts.peak,
            },
            error: self.facts.error.clone().unwrap_or_default(),
            quotes: self.quotes.clone(),
            remedies: self.remedies.iter().map(ToString::to_string).collect(),
        }
    }
}

/// A status keeps several attempts, so each keeps little.
const QUOTES_MAX: usize = 4;
/// A message of someone else's making goes into ours, so it is kept short.
const QUOTE_LENGTH_MAX: usize = 300;

fn clipped(text: &str) -> String {
    let text = text.trim().trim_end_matches(':');
    text.chars().take(QUOTE_LENGTH_MAX).collect()
}

fn told(mut sentence: String, message: &str) -> String {
    let message = message.trim();
    if !message.is_empty() {
        let quote: String = message.chars().take(QUOTE_LENGTH_MAX).collect();
        write!(sentence, ": {}", quote.trim_end_matches('.')).expect("a String takes every write");
    }
    sentence
}

pub(crate) fn first_of<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
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
        insta::assert_snapshot!(says(&exit(137, "ContainerStatusUnknown", "The container could not be located")), @"WorkerLost (ContainerStatusUnknown), does not count: rank 1 was not there any more when n1 came back");
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
