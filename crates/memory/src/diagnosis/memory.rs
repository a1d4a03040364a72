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
    let named = kernels.as_ref().is_some_and(|kernels| kernels.named);
    // A program that ended by itself, of something else that it names: a process was killed beside that.
    let of_itself = !said && !by_signal && fatal.is_some() && !child;
    let heard = kernels.is_some() && (by_signal || child || named);
    if of_itself || !(said || counted || heard) {
        return None;
    }
    let at_limit = near(evidence.peak, evidence.limit);
    let of_node = kernels.as_ref().is_some_and(|it| it.place == Where::Node);
    // What is said of the node may be about another pod, and who is at its limit is killed there; what names this pod is about it.
    let node = of_node && (named || at_limit != Some(true));
    let mut quotes = Vec::new();
    if said {
        quotes.push(format!("OOMKilled, exit code {}", container.exit_code));
    }
    if counted {
        quotes.push(format!("oom_kill {}", evidence.oom_kills));
    }
    let both = quotes.len() > 1;
    let own = kernels.as_ref().is_some_and(|kernels| kernels.own);
    let mut lines = kernels.into_iter().flat_map(|kernels| kernels.quotes);
    quotes.extend(lines.next());
    let told_by_child = log.and_then(LogDigest::fatal).filter(|_| child);
    quotes.extend(told_by_child.map(|hit| hit.quote.clone()));
    quotes.extend(lines);
    let found = if node {
        out_of_node(evidence, container, said || counted || named)
    } else {
        out_of_limit(evidence, container, said || both || own)
    };
    Some(found.quoting(quotes))
}

/// What the kernel says of who was killed.
struct Word {
    place: Where,
    /// It names this very pod.
    named: bool,
    /// It is about this pod, named or not.
    own: bool,
    /// The best first.
    quotes: Vec<String>,
}

struct Said {
    place: Where,
    line: String,
    lower: String,
    own: bool,
}

impl Said {
    fn of(place: Where, line: String, own: bool) -> Self {
        let lower = line.to_ascii_lowercase();
        Self {
            place,
            line,
            lower,
            own,
        }
    }
}

/// The kernel's own word, or the kubelet's for it. Lines about other pods do not count.
fn kernels_word(evidence: &Evidence, log: Option<&LogDigest>) -> Option<Word> {
    let uid = &evidence.uid;
    // Of a kill, only the line with the group says whose it was.
    let texts = evidence.kernel.iter();
    let texts = texts.chain(evidence.events.iter().map(|(_, message)| message));
    let others = texts.filter(|text| kernel::of_another(text, uid));
    let others = others.filter_map(|text| kernel::process(&text.to_ascii_lowercase()));
    let others: Vec<u32> = others.collect();
    let about_it = |text: &str| {
        let process = kernel::process(&text.to_ascii_lowercase());
        !kernel::of_another(text, uid) && process.is_none_or(|pid| !others.contains(&pid))
    };
    let lines = evidence.kernel.iter().filter(|line| about_it(line));
    let lines = lines.filter_map(|line| {
        let place = kernel::victim(&line.to_ascii_lowercase())?;
        Some(Said::of(place, line.clone(), true))
    });
    let events = evidence.events.iter();
    let events = events.filter(|(_, message)| about_it(message));
    let events = events.filter_map(|(reason, message)| {
        let place = match reason.as_str() {
            "SystemOOM" => Where::Node,
            _ => kernel::victim(&message.to_ascii_lowercase())?,
        };
        let line = format!("{reason}: {message}");
        Some(Said::of(place, line, kernel::names_pod(message, uid)))
    });
    // A node's Event of a limit is about any of its pods, and not about one that was far from its own.
    let far = near(evidence.peak, evidence.limit) == Some(false);
    let events = events.filter(|said| said.own || said.place == Where::Node || !far);
    let fatal = log.and_then(LogDigest::fatal);
    let in_log = fatal.and_then(|hit| match hit.sign {
        Sign::KernelLimit => Some(Said::of(Where::Limit, hit.quote.clone(), true)),
        Sign::KernelNode => Some(Said::of(Where::Node, hit.quote.clone(), true)),
        _ => None,
    });
    let mut said: Vec<Said> = lines.chain(events).chain(in_log).collect();
    place_by_group(&mut said);
    // A limit that was reached is the nearer cause; and of one kill, the line with the figures says most.
    said.sort_by_key(|said| (said.place == Where::Node, kernel::names_group(&said.lower)));
    let place = said.first()?.place;
    said.retain(|said| said.place == place);
    let named = said.iter().any(|said| kernel::names_pod(&said.lower, uid));
    let own = said.iter().any(|said| said.own);
    // Of its own limit the figures tell all; whose else it was only the names do.
    let mut quotes: Vec<String> = said.into_iter().map(|said| said.line).collect();
    if place == Where::Limit {
        quotes.truncate(1);
    }
    Some(Word {
        place,
        named,
        own,
        quotes,
    })
}

/// Of each kill there are two lines. The one with the figures says `Memory cgroup out of memory` of any group, be it a pod's or that of all
/// pods; the other one names it.
fn place_by_group(said: &mut [Said]) {
    let groups = said.iter().filter(|said| kernel::names_group(&said.lower));
    let groups = groups.filter_map(|said| Some((kernel::process(&said.lower)?, said.place)));
    let groups: Vec<(u32, Where)> = groups.collect();
    for said in said {
        let pid = kernel::process(&said.lower);
        if let Some((_, place)) = groups.iter().find(|(of, _)| Some(*of) == pid) {
            said.place = *place;
        }
    }
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
    let (rank, code) = (evidence.rank, container.exit_code);
    let node = first_of(&evidence.node, "its node");
    let sentence = if container.signal() == Some(9) {
        format!("rank {rank} was killed because {node} had no memory left{used} (exit code {code})")
    } else {
        format!(
            "a process of rank {rank} was killed because {node} had no memory left{used}, and the worker ended (exit code {code})"
        )
    };
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
