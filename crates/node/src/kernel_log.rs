//! What the kernel's log says of processes that it killed for want of memory: whose limit it was, and how much they used.
//!
//! The log is everyone's, so of it nothing is kept but lines about the pod that is asked for. Where it may not be read it is as if it
//! said nothing.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

pub(crate) const DEVICE: &str = "/dev/kmsg";
/// Of the longest log that kernels are built with, all of it.
const READ_MAX: usize = 64 << 20;
/// A record is never longer.
const RECORD_MAX: usize = 8 << 10;
const KILLS_MAX: usize = 1024;
const LINES_MAX: usize = 4;
/// As the kernel has them: the number of the process is at the end of names of groups that may be long.
const LINE_LENGTH_MAX: usize = 1000;
/// One part in so many, as clocks of machines go.
const DRIFT: u32 = 2000;
/// A container may be killed before it is known to have started.
const SLACK: Duration = Duration::from_secs(2);

/// Whose lines are wanted.
#[derive(Debug, Clone)]
pub(crate) struct Victim {
    /// Of the pod, which the names of its cgroups hold.
    pub(crate) uid: String,
    /// The container's own process, for where there are no cgroups.
    pub(crate) pid: Option<u32>,
    /// How long ago it started: numbers of processes are used again.
    pub(crate) age: Duration,
}

/// The lines about the victim, the latest last. Blocks for as long as the log takes to read.
pub(crate) fn kills_of(victim: &Victim, device: &Path) -> Vec<String> {
    let uptime = clock_gettime(ClockId::Monotonic);
    let uptime = Duration::try_from(uptime).unwrap_or_default();
    // Records have the scheduler's clock, which nobody keeps right.
    let drift = uptime / DRIFT;
    let since = uptime.saturating_sub(victim.age + SLACK + drift);
    about(victim, since, &kills(device))
}

/// The latest records of kills. The kernel gives one record a read, the oldest first, and says when it has no more.
fn kills(device: &Path) -> VecDeque<String> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(device);
    let Ok(mut log) = opened else {
        return VecDeque::new();
    };
    let (mut kills, mut buffer, mut read) = (VecDeque::new(), vec![0; RECORD_MAX], 0);
    while read < READ_MAX {
        match log.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                read += count;
                let text = String::from_utf8_lossy(&buffer[..count]);
                let lines = text.lines().filter(|line| is_of_a_kill(line));
                kills.extend(lines.map(str::to_owned));
                kills.drain(..kills.len().saturating_sub(KILLS_MAX));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // What was to be read next was overwritten; there is more.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::PIPE) => {}
            Err(_) => break,
        }
    }
    kills
}

fn is_of_a_kill(line: &str) -> bool {
    line.contains("oom-kill:") || line.contains("Killed process ")
}

/// Those of the records that are about the victim, as text. Of each kill there are two: the first has the groups in it, and the process;
/// the second the process alone.
fn about<'a>(
    victim: &Victim,
    since: Duration,
    records: impl IntoIterator<Item = &'a String>,
) -> Vec<String> {
    let mut pids: Vec<u32> = victim.pid.into_iter().collect();
    let mut found = Vec::new();
    for record in records {
        let Some((_, text)) = split(record).filter(|(at, _)| *at >= since) else {
            continue;
        };
        let is_named = !victim.uid.is_empty() && text.contains(&victim.uid);
        let pid = number_after(text, "pid=").or_else(|| number_after(text, "Killed process "));
        let is_known = pid.is_some_and(|pid| pids.contains(&pid));
        // A group that is not the pod's, where it is known which it is.
        let is_other = text.contains("task_memcg=") && text.contains("/pod") && !is_named;
        if is_other || !(is_named || is_known) {
            continue;
        }
        pids.extend(pid);
        found.push(text.chars().take(LINE_LENGTH_MAX).collect());
    }
    found.split_off(found.len().saturating_sub(LINES_MAX))
}

/// `6,29589,62972532454,-;oom-kill:constraint=...`: microseconds since the machine started, and what is said.
fn split(record: &str) -> Option<(Duration, &str)> {
    let (head, text) = record.split_once(';')?;
    let at = head.split(',').nth(2)?.parse().ok()?;
    Some((Duration::from_micros(at), text))
}

fn number_after(text: &str, words: &str) -> Option<u32> {
    let (_, rest) = text.split_once(words)?;
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0d1f2a3b-4c5d-6e7f-8091-a2b3c4d5e6f7";

    fn kill(second: u64, group: &str, pid: u32) -> [String; 2] {
        let at = second * 1_000_000;
        [
            format!(
                "6,100,{at},-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},task_memcg={group},task=python3,pid={pid},uid=0"
            ),
            format!(
                "3,101,{at},-;Memory cgroup out of memory: Killed process {pid} (python3) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:30kB oom_score_adj:0"
            ),
        ]
    }

    fn victim(pid: Option<u32>) -> Victim {
        Victim {
            uid: UID.to_owned(),
            pid,
            age: Duration::from_secs(60),
        }
    }

    #[test]
    fn only_lines_about_the_pod_are_told() {
        let own = format!("/s/stokehold/e1/pod{UID}/worker");
        let other = own.replace("0d1f2a3b", "77777777");
        let log: Vec<String> = [
            kill(10, &own, 11),
            kill(100, &other, 12),
            kill(101, &own, 13),
            kill(102, "/system.slice", 14),
        ]
        .concat();
        let pids = |pid, since| -> Vec<u32> {
            let found = about(&victim(pid), Duration::from_secs(since), &log);
            let pid = |line: &String| number_after(line, "pid=");
            let killed = |line: &String| number_after(line, "Killed process ");
            let both = found
                .iter()
                .filter_map(|line| pid(line).or_else(|| killed(line)));
            both.collect()
        };
        assert_eq!(pids(None, 50), [13, 13]);
        assert_eq!(pids(None, 0), [11, 11, 13, 13]);
        assert_eq!(pids(None, 200), [0; 0], "all of it is of another time");
        assert_eq!(pids(Some(14), 50), [13, 13, 14, 14], "known by its number");
        let none: [String; 0] = [];
        assert_eq!(about(&victim(None), Duration::ZERO, &none), none);
    }

    #[test]
    fn a_log_is_read_to_its_end_and_nonsense_is_passed_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kmsg");
        let own = format!("/e1/pod{UID}/worker");
        let mut log = b"6,1,2,-;Linux version 6.1\n SUBSYSTEM=cpu\n;\n3,1,x,-;Killed process 9 (a)\n\xff\xfe\n".to_vec();
        let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("a time");
        log.extend_from_slice(kill(now.as_secs(), &own, 13).join("\n").as_bytes());
        std::fs::write(&path, &log).expect("a file");
        let found = kills_of(&victim(None), &path);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("oom-kill:") && found[1].contains("anon-rss:8000kB"));
        assert!(kills_of(&victim(None), &dir.path().join("absent")).is_empty());
        assert!(kills_of(&victim(None), dir.path()).is_empty());
    }
}
