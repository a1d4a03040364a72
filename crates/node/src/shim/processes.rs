//! Processes as `/proc` shows them: who descends from whom, and what memory they use. For machines without a cgroup to ask.
//!
//! Any process may end while it is looked at; what cannot be read counts as gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// A mark in the environment of a container's processes, by which one that left its family is still known. Only set where
/// there is no cgroup.
pub(super) const MARK: &str = "STOKEHOLD_CONTAINER";

/// When a process started, in ticks since boot. With its number it names the process for ever.
pub(super) fn start_ticks(pid: u32) -> Option<u64> {
    stat_field(pid, 22)?.parse().ok()
}

/// A field of `/proc/PID/stat`, counted as the manual counts them.
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets that may hold anything, brackets and blanks included.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(number - 3).map(str::to_owned)
}

/// All that descend from `root`, without it.
pub(crate) fn descendants(root: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut left = vec![root];
    let scanned = if listed_children(root).is_none() {
        scan_parents()
    } else {
        BTreeMap::new()
    };
    while let Some(pid) = left.pop() {
        let next =
            listed_children(pid).unwrap_or_else(|| scanned.get(&pid).cloned().unwrap_or_default());
        left.extend(next.into_iter().filter(|child| found.insert(*child)));
    }
    found
}

/// Direct children.
pub(crate) fn children(pid: u32) -> BTreeSet<u32> {
    let listed = listed_children(pid).or_else(|| scan_parents().remove(&pid));
    listed.unwrap_or_default().into_iter().collect()
}

/// Direct children, as the kernel lists them; `None` where it does not.
fn listed_children(pid: u32) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = match fs::read_to_string(task.path().join("children")) {
            Ok(text) => text,
            Err(_) if task.path().exists() => return None,
            Err(_) => continue,
        };
        found.extend(
            text.split_whitespace()
                .filter_map(|word| word.parse::<u32>().ok()),
        );
    }
    Some(found)
}

/// Parent to children, by a look at every process: for kernels that list no children.
fn scan_parents() -> BTreeMap<u32, Vec<u32>> {
    let mut tree: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok());
        let parent = pid.and_then(|pid| stat_field(pid, 4)?.parse::<u32>().ok());
        if let (Some(pid), Some(parent)) = (pid, parent) {
            tree.entry(parent).or_default().push(pid);
        }
    }
    tree
}

/// Whether a process was started with this mark, or one that it begins.
pub(super) fn is_marked(pid: u32, mark: &str) -> bool {
    let wanted = format!("{MARK}={mark}");
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
        environ
            .split(|byte| *byte == 0)
            .any(|entry| entry.starts_with(wanted.as_bytes()))
    })
}

/// Every process of the machine that carries this mark.
pub(super) fn marked(mark: &str) -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| is_marked(*pid, mark))
        .collect()
}

/// Memory of these processes that the kernel could not take back: anonymous and shared, in bytes.
///
/// The cheap sum counts pages that forked processes share as often as they are shared. So when it comes near `limit`, the
/// dear one is taken, which shares them out.
pub(super) fn memory(pids: &BTreeSet<u32>, limit: Option<u64>) -> u64 {
    let sum: u64 = pids.iter().filter_map(|pid| resident(*pid)).sum();
    let near = limit.is_some_and(|limit| sum >= limit / 10 * 9);
    if near && pids.len() > 1 {
        let shared_out = |pid: &u32| proportional(*pid).or_else(|| resident(*pid));
        pids.iter().filter_map(shared_out).sum()
    } else {
        sum
    }
}

fn resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(kilobytes(&status, "RssAnon:")? + kilobytes(&status, "RssShmem:")?)
}

fn proportional(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(kilobytes(&rollup, "Pss_Anon:")? + kilobytes(&rollup, "Pss_Shmem:")?)
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(
        value
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()?
            * 1024,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_itself_and_its_children() {
        let own = std::process::id();
        assert!(start_ticks(own).is_some_and(|ticks| ticks > 0));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep is everywhere");
        assert!(descendants(own).contains(&child.id()));
        assert!(children(own).contains(&child.id()));
        assert!(
            scan_parents()
                .get(&own)
                .is_some_and(|all| all.contains(&child.id()))
        );
        assert!(memory(&BTreeSet::from([own, child.id()]), Some(1)) > 0);
        child.kill().expect("our own child");
        child.wait().expect("our own child");
        assert_eq!(start_ticks(child.id()), None);
    }
}
