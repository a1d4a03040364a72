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
            if line.contains("constraint=constraint_memcg") && !of_more_than_the_pod(line) {
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

/// Was it the limit of a group that the pod is in with others: of all pods, or of whatever the node itself is in?
fn of_more_than_the_pod(line: &str) -> bool {
    let group = |field: &str| {
        let rest = line.split_once(field).map(|(_, rest)| rest);
        rest.map(|rest| rest.split([',', ' ']).next().unwrap_or_default())
    };
    group("oom_memcg=").is_some_and(|limited| {
        let of_a_pod = limited.contains("kubepods") || group("task_memcg=").is_some_and(has_pod);
        of_a_pod && !has_pod(limited)
    })
}

/// The process that a line is about: `pid=9188`, `Killed process 9188 (python3)`, `victim process: python3, pid: 9188`.
pub fn process(line: &str) -> Option<u32> {
    let words = ["pid=", "killed process ", "kill process ", "pid: "];
    let rest = words
        .iter()
        .find_map(|words| line.split_once(words).map(|(_, rest)| rest))?;
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    rest[..digits.unwrap_or(rest.len())].parse().ok()
}

/// Does the line say whose limit it was, and not only that it was one?
pub fn names_group(line: &str) -> bool {
    line.contains("oom-kill:")
}

/// Does the line name the pod of this uid?
pub fn names_pod(line: &str, uid: &str) -> bool {
    let (line, uid) = (line.to_ascii_lowercase(), uid.to_ascii_lowercase());
    !uid.is_empty() && (line.contains(&uid) || line.contains(&uid.replace('-', "_")))
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
    !uid.is_empty() && has_pod(&line.to_ascii_lowercase()) && !names_pod(line, uid)
}
