//! Programs that ended by themselves, or by a signal: what their log says they died of.

use stoke_api::contract::checkpoints::{
    EXIT_FENCED, EXIT_NO_COPIES, EXIT_NO_KEYS, EXIT_NO_VOLUME, EXIT_NOT_READY,
};
use stoke_api::{Bytes, Reason};

use super::cause::{Cause, Confidence, Framework, Remedy, Shape};
use super::figures::Figures;
use super::log::{Hit, LogDigest};
use super::memory::{grew, host_help, near};
use super::signs::Sign;
use super::{Blame, Diagnosis, Evidence, Terminated, Usage, first_of, told};

pub fn ended(evidence: &Evidence, container: &Terminated, log: Option<&LogDigest>) -> Diagnosis {
    if let Some(found) = not_begun(evidence.rank, container) {
        return found;
    }
    if let Some(found) = kept_out(evidence, container, log) {
        return found;
    }
    // Who goes on after an error and is then ended by a signal did not die of the error.
    let signalled = matches!(container.signal(), Some(1 | 2 | 3 | 9 | 15));
    let silent = || {
        log.and_then(LogDigest::last_resort)
            .filter(|_| container.signal().is_none())
    };
    let fatal = log
        .and_then(LogDigest::fatal)
        .or_else(silent)
        .filter(|hit| container.exit_code != 0 && !(signalled && hit.went_on));
    let read = fatal.and_then(|hit| by_log(evidence, container, hit));
    read.or_else(|| without_volume(evidence, container))
        .or_else(|| waited_in_vain(evidence, container))
        .or_else(|| without_keys(evidence, container))
        .or_else(|| shared_memory_by_use(evidence, container, log))
        .unwrap_or_else(|| crashed(evidence, container, log))
}

/// Its command could not be run at all.
fn not_begun(rank: u32, container: &Terminated) -> Option<Diagnosis> {
    let reasons = ["StartError", "ContainerCannotRun", "CreateContainerError"];
    if !reasons.contains(&container.reason.as_str()) {
        return None;
    }
    let sentence = told(
        format!("rank {rank} could not be started"),
        &container.message,
    );
    let help = "check that the command, workingDir and mounts exist where it runs";
    Some(Diagnosis::job(
        Cause::NotStarted,
        Reason::StartFailed,
        &container.reason,
        sentence,
        help,
    ))
}

/// The word for a worker that another attempt keeps out.
pub const FENCED: &str = "Fenced";

/// What starts a worker did not, because another attempt has its checkpoints, or because where copies of them are does not answer. The
/// program never began. A program's own exit code may be the same: one that has begun has written something else last.
fn kept_out(
    evidence: &Evidence,
    container: &Terminated,
    log: Option<&LogDigest>,
) -> Option<Diagnosis> {
    let path = evidence.checkpoint_path.as_ref()?;
    if log.is_some_and(|log| log.bytes > 0 && !log.is_not_begun) {
        return None;
    }
    let rank = evidence.rank;
    if container.exit_code == i32::from(EXIT_FENCED) {
        let sentence =
            format!("rank {rank} did not begin, for another attempt has the checkpoints in {path}");
        let found = Diagnosis::outside(Cause::Disrupted, Reason::WorkerLost, FENCED, sentence);
        return Some(found);
    }
    (container.exit_code == i32::from(EXIT_NO_COPIES)).then(|| Diagnosis {
        blame: Blame::Outside,
        reason: Reason::WorkerLost,
        ..without_copies(rank, path)
    })
}

/// The same because others were waited for in vain.
fn waited_in_vain(evidence: &Evidence, container: &Terminated) -> Option<Diagnosis> {
    let path = evidence.checkpoint_path.as_ref()?;
    (container.exit_code == i32::from(EXIT_NOT_READY)).then(|| {
        let rank = evidence.rank;
        let sentence = format!(
            "rank {rank} did not begin, for it was too long until it could go on from the checkpoints in {path}"
        );
        Diagnosis::job(
            Cause::CheckpointVolume,
            Reason::StartFailed,
            "CheckpointsNotReady",
            sentence,
            "its log says whether processes of an earlier attempt still hold them, or its first worker said nothing",
        )
    })
}

/// The same because checkpoints could not be kept.
fn without_volume(evidence: &Evidence, container: &Terminated) -> Option<Diagnosis> {
    let path = evidence.checkpoint_path.as_ref()?;
    (container.exit_code == i32::from(EXIT_NO_VOLUME)).then(|| {
        let rank = evidence.rank;
        let sentence =
            format!("rank {rank} did not begin, for no checkpoints can be kept in {path}");
        let help = "its log says whether the volume is missing, read-only, full or another user's";
        Diagnosis::job(
            Cause::CheckpointVolume,
            Reason::StartFailed,
            "NoCheckpointVolume",
            sentence,
            help,
        )
    })
}

/// The same because the volume has none, and the keys to where copies are were not taken.
fn without_keys(evidence: &Evidence, container: &Terminated) -> Option<Diagnosis> {
    let path = evidence.checkpoint_path.as_ref()?;
    (container.exit_code == i32::from(EXIT_NO_KEYS)).then(|| without_copies(evidence.rank, path))
}

fn without_copies(rank: u32, path: &str) -> Diagnosis {
    let sentence = format!(
        "rank {rank} did not begin, for there is no checkpoint in {path} and where copies are could not be asked"
    );
    let help = "its log says why; mend the object store or its Secret, or remove checkpoint.upload to begin anew";
    Diagnosis::job(
        Cause::CheckpointVolume,
        Reason::StartFailed,
        "NoCheckpointCopies",
        sentence,
        help,
    )
}

fn by_log(evidence: &Evidence, container: &Terminated, hit: &Hit) -> Option<Diagnosis> {
    let found = match hit.sign {
        Sign::Gpu(framework) => gpu(evidence, framework, hit),
        Sign::SharedMemory => shared_memory(evidence, hit),
        Sign::Disk => disk(evidence, hit),
        Sign::Host => host(evidence, hit),
        // A shell's word for its child's signal says no more than the exit code does.
        Sign::Launcher if !hit.strong && container.signal() == Some(9) => return None,
        Sign::Child | Sign::Launcher | Sign::KernelLimit | Sign::KernelNode => {
            child(evidence, container)
        }
        Sign::BusError if evidence.shm.is_some_and(|shm| !shm.is_full()) => return None,
        Sign::BusError => Diagnosis {
            confidence: Confidence::Possible,
            ..shared_memory(evidence, hit)
        },
        Sign::Interrupt => Diagnosis {
            confidence: Confidence::Likely,
            ..Diagnosis::job(
                Cause::KilledByPerson,
                Reason::WorkerFailed,
                first_of(&container.reason, "Error"),
                format!("rank {} was interrupted (SIGINT)", evidence.rank),
                "",
            )
        },
        Sign::Error => return None,
    };
    let confidence = if hit.strong && !hit.survived {
        found.confidence
    } else {
        Confidence::Possible
    };
    let mut found = Diagnosis {
        confidence,
        ..found
    };
    found.facts.figures = hit.figures;
    found.facts.path.clone_from(&hit.path);
    found.facts.error = Some(hit.quote.clone());
    Some(found.quoting([hit.quote.clone()]))
}

fn gpu(evidence: &Evidence, framework: Framework, hit: &Hit) -> Diagnosis {
    let figures = &hit.figures;
    let leaks = evidence.leak.is_some_and(|leak| leak.gpu);
    let shape = match figures.shape() {
        Shape::Plain | Shape::Fragmentation if leaks => Shape::Leak,
        shape => shape,
    };
    let torch = matches!(framework, Framework::Cuda | Framework::Hip);
    let (help, remedies): (&str, &[Remedy]) = match shape {
        Shape::Fragmentation if torch => (
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use a smaller micro-batch",
            &[
                Remedy::ExpandableSegments,
                Remedy::SmallerMicroBatch,
                Remedy::BiggerGpu,
            ],
        ),
        Shape::CoTenant => (
            "run it where nobody else uses the GPU",
            &[Remedy::OtherNode, Remedy::SmallerMicroBatch],
        ),
        Shape::TooBig => (
            "use a GPU with more memory, or shard the model; a smaller batch helps where the tensor is made of it",
            &[Remedy::BiggerGpu, Remedy::SmallerMicroBatch],
        ),
        Shape::Leak => (
            "find the leak: tensors kept over steps; until then checkpoints let it begin anew before the GPU is full",
            &[
                Remedy::RestartInTime,
                Remedy::BiggerGpu,
                Remedy::SmallerMicroBatch,
            ],
        ),
        Shape::Fragmentation | Shape::Plain => (
            "use a smaller micro-batch with more gradient accumulation, or a GPU with more memory",
            &[
                Remedy::SmallerMicroBatch,
                Remedy::BiggerGpu,
                Remedy::RestartInTime,
            ],
        ),
    };
    let leak = evidence.leak.filter(|_| shape == Shape::Leak);
    let sentence = format!(
        "rank {} ran out of GPU memory ({framework}){}{}",
        evidence.rank,
        in_figures(figures, shape),
        leak.map_or_else(String::new, grew),
    );
    Diagnosis {
        confidence: if figures.tried.is_some() {
            Confidence::Certain
        } else {
            Confidence::Likely
        },
        remedies: remedies.to_vec(),
        ..Diagnosis::job(
            Cause::GpuOutOfMemory { framework, shape },
            Reason::OutOfMemory,
            "GpuOutOfMemory",
            sentence,
            help,
        )
    }
}

fn in_figures(figures: &Figures, shape: Shape) -> String {
    let human = |bytes: Option<Bytes>| bytes.unwrap_or_default().human();
    let Some(tried) = figures.tried.map(Bytes::human) else {
        return String::new();
    };
    let there = match (figures.total, figures.free) {
        (Some(total), Some(free)) => {
            format!(" with {} of {} free", free.human(), total.human())
        }
        (Some(total), None) => format!(" of {}", total.human()),
        _ => String::new(),
    };
    let why = match shape {
        Shape::Fragmentation => {
            let pieces = human(figures.unallocated);
            format!(", while {pieces} it had reserved were in pieces too small for that")
        }
        Shape::CoTenant => format!(", while other processes had {}", human(figures.foreign())),
        Shape::TooBig => ", more than the GPU has in all".to_owned(),
        Shape::Leak | Shape::Plain => String::new(),
    };
    format!(": {tried} were asked for{there}{why}")
}

fn shared_memory(evidence: &Evidence, hit: &Hit) -> Diagnosis {
    let size = evidence
        .shm
        .map_or_else(String::new, |shm| format!(" of {}", shm.size.human()));
    let tried = hit.figures.tried.map_or_else(String::new, |tried| {
        format!(": {} were asked for", tried.human())
    });
    Diagnosis {
        confidence: if evidence.shm.is_some_and(Usage::is_full) {
            Confidence::Certain
        } else {
            Confidence::Likely
        },
        remedies: vec![Remedy::MoreSharedMemory],
        ..Diagnosis::job(
            Cause::SharedMemory,
            Reason::OutOfMemory,
            "SharedMemory",
            format!("rank {} filled its /dev/shm{size}{tried}", evidence.rank),
            "give it a larger /dev/shm, or use fewer loader workers",
        )
    }
}

/// No word of it, but a signal that a full /dev/shm gives, and a full /dev/shm.
fn shared_memory_by_use(
    evidence: &Evidence,
    container: &Terminated,
    log: Option<&LogDigest>,
) -> Option<Diagnosis> {
    let full = evidence.shm.is_some_and(Usage::is_full);
    let bus_error = container.signal() == Some(7);
    let unexplained = log.and_then(LogDigest::error).is_none() && container.exit_code != 0;
    if !full || !(bus_error || unexplained) {
        return None;
    }
    let size = evidence.shm.unwrap_or_default().size.human();
    let found = Diagnosis::job(
        Cause::SharedMemory,
        Reason::OutOfMemory,
        "SharedMemory",
        format!(
            "rank {} ended with its /dev/shm of {size} full (exit code {})",
            evidence.rank, container.exit_code
        ),
        "give it a larger /dev/shm, or use fewer loader workers",
    );
    Some(Diagnosis {
        confidence: if bus_error {
            Confidence::Likely
        } else {
            Confidence::Possible
        },
        remedies: vec![Remedy::MoreSharedMemory],
        ..found
    })
}

fn disk(evidence: &Evidence, hit: &Hit) -> Diagnosis {
    let rank = evidence.rank;
    let at = hit
        .path
        .as_ref()
        .map_or_else(String::new, |path| format!(" when it wrote {path}"));
    let of_checkpoints = hit.path.as_ref().zip(evidence.checkpoint_path.as_ref());
    if of_checkpoints.is_some_and(|(path, root)| is_under(path, root)) {
        return Diagnosis {
            confidence: Confidence::Certain,
            remedies: Vec::new(),
            ..Diagnosis::job(
                Cause::CheckpointVolume,
                Reason::OutOfStorage,
                "CheckpointVolume",
                format!("the volume of rank {rank}'s checkpoints was full{at}"),
                "raise checkpoint.size, or keep fewer with checkpoint.keep",
            )
        };
    }
    // Where the line names no file, what was measured may tell.
    let full = |usage: Option<Usage>| usage.is_some_and(Usage::is_full);
    if hit.path.is_none() && full(evidence.shm) && !full(evidence.storage) {
        return shared_memory(evidence, hit);
    }
    Diagnosis {
        confidence: if full(evidence.storage) {
            Confidence::Certain
        } else {
            Confidence::Likely
        },
        remedies: vec![Remedy::MoreStorage, Remedy::ScratchVolume],
        ..Diagnosis::job(
            Cause::EphemeralStorage,
            Reason::OutOfStorage,
            "EphemeralStorage",
            format!("rank {rank} found its local disk full{at}"),
            "write less to local disk, or ask for more ephemeral-storage in the template",
        )
    }
}

fn is_under(path: &str, root: &str) -> bool {
    let root = root.trim_end_matches('/');
    path.strip_prefix(root)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn host(evidence: &Evidence, hit: &Hit) -> Diagnosis {
    let tried = hit.figures.tried;
    let asked = tried.map_or_else(String::new, |tried| {
        format!(": {} were asked for", tried.human())
    });
    let peak = evidence.peak.map_or_else(String::new, |peak| {
        format!(", when it had used at most {}", peak.human())
    });
    let of = evidence
        .limit
        .map_or_else(String::new, |limit| format!(" of its {}", limit.human()));
    // Far from its limit it was refused by something else: an address space limit, the machine's own rules.
    let far = match (evidence.peak, evidence.limit) {
        (Some(peak), Some(limit)) => {
            peak.0.saturating_add(tried.unwrap_or_default().0) < limit.0 / 5 * 4
        }
        _ => false,
    };
    let leak = evidence.leak.filter(|leak| !leak.gpu);
    let (help, remedies) = if far {
        let help = "its limit was far: look for ulimit -v, vm.overcommit_memory and vm.max_map_count on the node";
        (help, vec![Remedy::OtherNode])
    } else {
        host_help(leak)
    };
    let peak = if peak.is_empty() { peak } else { peak + &of };
    Diagnosis {
        confidence: if near(evidence.peak, evidence.limit) == Some(true) {
            Confidence::Certain
        } else {
            Confidence::Likely
        },
        remedies,
        ..Diagnosis::job(
            Cause::HostAllocation,
            Reason::OutOfMemory,
            "HostAllocation",
            format!(
                "rank {} was refused memory{asked}{peak}{}",
                evidence.rank,
                leak.map_or_else(String::new, grew)
            ),
            help,
        )
    }
}

/// One of its processes was killed, by whom nobody counted.
fn child(evidence: &Evidence, container: &Terminated) -> Diagnosis {
    let sentence = format!(
        "a process of rank {} was killed by SIGKILL, and the worker ended (exit code {})",
        evidence.rank, container.exit_code
    );
    let leak = evidence.leak.filter(|leak| !leak.gpu);
    // The kernel kills at the limit; whoever was far from it was killed by someone else.
    if near(evidence.peak, evidence.limit) == Some(false) {
        return Diagnosis {
            confidence: Confidence::Possible,
            remedies: vec![Remedy::TryAgain, Remedy::OtherNode],
            ..Diagnosis::job(
                Cause::ChildKilled,
                Reason::WorkerFailed,
                first_of(&container.reason, "Error"),
                sentence,
                "its memory limit was not reached; someone killed it, or the machine ran out of memory",
            )
        };
    }
    let (help, remedies) = host_help(leak);
    Diagnosis {
        confidence: Confidence::Likely,
        remedies,
        ..Diagnosis::job(
            Cause::ChildKilled,
            Reason::OutOfMemory,
            first_of(&container.reason, "Error"),
            sentence,
            help,
        )
    }
}

fn crashed(evidence: &Evidence, container: &Terminated, log: Option<&LogDigest>) -> Diagnosis {
    let (rank, code) = (evidence.rank, container.exit_code);
    let error = log.and_then(LogDigest::error);
    // Its own message says it better than a line of its log; one of many lines is its log.
    let message = match container.message.trim() {
        text if text.is_empty() || text.lines().count() > 1 => error.unwrap_or(text),
        text => text,
    };
    let word = first_of(&container.reason, "Error");
    let mut found = if let Some(signal) = container.signal() {
        let sentence = format!(
            "rank {rank} was killed by {} (exit code {code})",
            signal_name(signal)
        );
        let (cause, confidence) = match signal {
            9 => (Cause::KilledByPerson, Confidence::Possible),
            1 | 2 | 3 | 15 => (Cause::KilledByPerson, Confidence::Likely),
            7 if evidence.shm.is_none() => (Cause::SharedMemory, Confidence::Possible),
            _ => (Cause::Crash, Confidence::Certain),
        };
        let remedies = match cause {
            Cause::SharedMemory => vec![Remedy::MoreSharedMemory],
            _ => vec![Remedy::TryAgain],
        };
        Diagnosis {
            confidence,
            remedies,
            ..Diagnosis::job(
                cause,
                Reason::WorkerFailed,
                word,
                told(sentence, message),
                signal_help(signal),
            )
        }
    } else {
        let help = match code {
            0 => "a worker must not end before the whole gang has",
            126 => "the command is there but cannot be executed",
            127 => "the command was not found where it runs",
            _ => "",
        };
        let sentence = told(format!("rank {rank} ended with exit code {code}"), message);
        let known = code == 0 || !message.is_empty() || !help.is_empty();
        Diagnosis {
            confidence: if known {
                Confidence::Certain
            } else {
                Confidence::Possible
            },
            ..Diagnosis::job(
                if known { Cause::Crash } else { Cause::Unknown },
                Reason::WorkerFailed,
                word,
                sentence,
                help,
            )
        }
    };
    found.facts.error = error.map(str::to_owned);
    found.quoting(error.map(str::to_owned))
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
