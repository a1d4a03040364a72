//! Workers that the kernel killed for want of memory: at their own limit, or because their machine had none left.

use stoke_api::{Bytes, Reason};

use super::cause::{Cause, Confidence, Remedy};
use super::kernel::{self, Where};
use super::log::LogDigest;
use super::signs::Sign;
use super::{Blame, Diagnosis, Evidence, LeakRate, Terminated, first_of, told};

/// Was it killed for want of memory, by anyone's word who would know?
pub fn killed(evidence: &Evidence, log: Option<&LogDigest>) -> Option<Diagnosis> {
    let container = evidence.container.as_ref()?;
    if container.exit_code == 0 && container.reason != "OOMKilled" {
        return None;
    }
    let said = container.reason == "OOMKilled";
    let counted = evidence.oom_kills > 0;
    let fatal = log.and_then(LogDigest::fatal).map(|hit| hit.sign);
    let by_signal = container.signal() == Some(9);
    let child = matches!(
        fatal,
        Some(Sign::Child | Sign::Launcher | Sign::KernelLimit | Sign::KernelNode)
    );
    let kernels = kernels_word(evidence, log);
    // A program that ended by itself, of something else that it names: a process was killed beside that.
    let of_itself = !said && !by_signal && fatal.is_some() && !child;
    if of_itself || !(said || counted || (kernels.is_some() && (by_signal || child))) {
        return None;
    }
    let at_limit = near(evidence.peak, evidence.limit);
    let node = matches!(kernels, Some((Where::Node, _))) && at_limit != Some(true);
    let mut quotes = Vec::new();
    if said {
        quotes.push(format!("OOMKilled, exit code {}", container.exit_code));
    }
    if counted {
        quotes.push(format!("oom_kill {}", evidence.oom_kills));
    }
    let both = quotes.len() > 1;
    quotes.extend(kernels.iter().map(|(_, quote)| quote.clone()));
    let told_by_child = log.and_then(LogDigest::fatal).filter(|_| child);
    quotes.extend(told_by_child.map(|hit| hit.quote.clone()));
    let found = if node {
        out_of_node(evidence, container, said || counted)
    } else {
        out_of_limit(evidence, container, said || both || kernels.is_some())
    };
    Some(found.quoting(quotes))
}

/// The kernel's own word, or the kubelet's for it. Lines about other pods do not count.
fn kernels_word(evidence: &Evidence, log: Option<&LogDigest>) -> Option<(Where, String)> {
    let lines = evidence
        .kernel
        .iter()
        .filter(|line| !kernel::of_another(line, &evidence.uid));
    let lines =
        lines.filter_map(|line| Some((kernel::victim(&line.to_ascii_lowercase())?, line.clone())));
    let events = evidence
        .events
        .iter()
        .filter(|(_, message)| !kernel::of_another(message, &evidence.uid));
    let events = events.filter_map(|(reason, message)| {
        let place = match reason.as_str() {
            "SystemOOM" => Where::Node,
            _ => kernel::victim(&message.to_ascii_lowercase())?,
        };
        Some((place, format!("{reason}: {message}")))
    });
    let fatal = log.and_then(LogDigest::fatal);
    let in_log = fatal.and_then(|hit| match hit.sign {
        Sign::KernelLimit => Some((Where::Limit, hit.quote.clone())),
        Sign::KernelNode => Some((Where::Node, hit.quote.clone())),
        _ => None,
    });
    let mut said: Vec<(Where, String)> = lines.chain(events).chain(in_log).collect();
    // A limit that was reached is the nearer cause.
    said.sort_by_key(|(place, _)| *place == Where::Node);
    said.into_iter().next()
}

/// Had it used nearly all that it may? None where nobody knows.
pub fn near(peak: Option<Bytes>, limit: Option<Bytes>) -> Option<bool> {
    let (peak, limit) = (peak?, limit?);
    Some(peak.0 >= limit.0 - limit.0 / 10)
}

fn out_of_limit(evidence: &Evidence, container: &Terminated, certain: bool) -> Diagnosis {
    let rank = evidence.rank;
    let limit = evidence.limit.map_or_else(
        || "its memory limit".to_owned(),
        |limit| format!("its memory limit of {}", limit.human()),
    );
    let code = container.exit_code;
    // The kernel may kill a child and let the worker end by itself.
    let whole = container.signal() == Some(9);
    let sentence = if whole {
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
    let leak = evidence.leak.filter(|leak| !leak.gpu);
    let sentence = sentence + &peak + &leak.map_or_else(String::new, grew);
    // A log's end is no message; what it says is quoted.
    let message = container
        .message
        .lines()
        .next()
        .filter(|_| container.message.lines().count() == 1);
    let sentence = told(sentence, message.unwrap_or_default());
    let (help, remedies) = host_help(leak);
    let cause = if whole {
        Cause::ContainerLimit
    } else {
        Cause::ChildKilled
    };
    Diagnosis {
        confidence: if certain {
            Confidence::Certain
        } else {
            Confidence::Likely
        },
        remedies,
        ..Diagnosis::job(cause, Reason::OutOfMemory, "OOMKilled", sentence, help)
    }
}

/// What helps where host memory was too little.
pub fn host_help(leak: Option<LeakRate>) -> (&'static str, Vec<Remedy>) {
    if leak.is_some() {
        let help =
            "find the leak; until then checkpoints let it begin anew before its memory is full";
        return (help, vec![Remedy::RestartInTime, Remedy::MoreMemory]);
    }
    let help = "raise memory.limit, or use less: a smaller batch, fewer loader workers";
    // Where there is no more to be had, one that gets further each time still comes to its end.
    (help, vec![Remedy::MoreMemory, Remedy::RestartInTime])
}

pub fn grew(leak: LeakRate) -> String {
    let hour = Bytes(leak.bytes_per_hour).human();
    let step = leak.bytes_per_step.map_or_else(String::new, |bytes| {
        format!(", {} a step", Bytes(bytes).human())
    });
    let whose = if leak.gpu {
        "its GPU memory"
    } else {
        "its memory"
    };
    format!("; {whose} had been growing by {hour} an hour{step}")
}

fn out_of_node(evidence: &Evidence, container: &Terminated, counted: bool) -> Diagnosis {
    let used = match (evidence.peak, evidence.limit) {
        (Some(peak), Some(limit)) => {
            format!(", though it used {} of its {}", peak.human(), limit.human())
        }
        _ => String::new(),
    };
    let sentence = format!(
        "rank {} was killed because {} had no memory left{used} (exit code {})",
        evidence.rank,
        first_of(&evidence.node, "its node"),
        container.exit_code
    );
    let help = "the next attempt is promised what it uses, and goes to another node where it can";
    Diagnosis {
        confidence: if counted {
            Confidence::Certain
        } else {
            Confidence::Likely
        },
        remedies: vec![Remedy::PromisedMemory, Remedy::OtherNode, Remedy::TryAgain],
        blame: Blame::Outside,
        ..Diagnosis::job(
            Cause::NodeOutOfMemory,
            Reason::OutOfMemory,
            first_of(&container.reason, "OOMKilled"),
            sentence,
            help,
        )
    }
}
