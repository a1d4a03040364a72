//! What the kernel and the kubelet say of processes that were killed for want of memory.

/// Whose memory was used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// The worker's own, at its limit.
    Limit,
    /// The machine's, or all that pods may have of it.
    Node,
}

/// Reads a line of the kernel's log, in lower case.
pub fn victim(line: &str) -> Option<Where> {
    if line.contains("oom-kill:") && line.contains("constraint=") {
        return Some(
            if line.contains("constraint=constraint_memcg") && !of_all_pods(line) {
                Where::Limit
            } else {
                Where::Node
            },
        );
    }
    if line.contains("memory cgroup out of memory") {
        return Some(Where::Limit);
    }
    let killed = ["killed process", "kill process"];
    let global = line.contains("out of memory:") && killed.iter().any(|words| line.contains(words));
    (global || line.contains("system oom encountered")).then_some(Where::Node)
}

/// Was it the limit of all pods together, and not of one?
fn of_all_pods(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("oom_memcg=") else {
        return false;
    };
    let group = rest.split([',', ' ']).next().unwrap_or_default();
    group.contains("kubepods") && !has_pod(group)
}

/// A pod's own cgroup has its uid in its name, with dashes or, by systemd's rules, with underscores.
fn has_pod(group: &str) -> bool {
    group.match_indices("pod").any(|(at, _)| {
        let uid: Vec<u8> = group[at + 3..].bytes().take(36).collect();
        uid.len() >= 32
            && uid
                .iter()
                .all(|byte| byte.is_ascii_hexdigit() || b"-_".contains(byte))
    })
}

/// Is the line about another pod than the one of this uid?
pub fn of_another(line: &str, uid: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let uid = uid.to_ascii_lowercase();
    !uid.is_empty()
        && has_pod(&line)
        && !line.contains(&uid)
        && !line.contains(&uid.replace('-', "_"))
}
