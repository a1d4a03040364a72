//! Everything this process brought into the world, however it detached itself.
//!
//! MPI's daemons put themselves and their ranks into sessions and groups of their own. A pod's end takes them all along,
//! by its cgroup or its PID namespace; a machine that gives a pod neither has only this.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

/// Between two looks at who is left. There is no event to wait for: they are not our children until they are orphans.
const LOOK: Duration = Duration::from_millis(20);

/// From now on, what loses its parent becomes a child of this process, not of init, and can be found.
pub fn adopt() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Ends all of them: asks, waits, kills.
pub fn end(grace: Duration) {
    let deadline = Instant::now() + grace;
    let own = getpid().as_raw_nonzero().get();
    let mut asked = BTreeSet::new();
    loop {
        let left = of(own, &processes());
        if left.is_empty() {
            return;
        }
        let overdue = Instant::now() >= deadline;
        for pid in &left {
            if overdue || asked.insert(*pid) {
                let signal = if overdue { Signal::KILL } else { Signal::TERM };
                if let Some(pid) = Pid::from_raw(*pid) {
                    let _ = kill_process(pid, signal);
                }
            }
        }
        if overdue {
            return;
        }
        thread::sleep(LOOK);
    }
}

/// The parent of every process that is not yet a zombie.
fn processes() -> BTreeMap<i32, i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, living_parent(&stat)?))
        })
        .collect()
}

/// `pid (name) state ppid ...`, where the name may hold anything, brackets too.
fn living_parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

fn of(ancestor: i32, parents: &BTreeMap<i32, i32>) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut new = vec![ancestor];
    while let Some(parent) = new.pop() {
        for (&pid, _) in parents.iter().filter(|(_, of)| **of == parent) {
            if found.insert(pid) {
                new.push(pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_read_whatever_the_process_calls_itself() {
        let table = [
            ("7 (orted) S 3 7 7 0", Some(3)),
            ("7 (a ) R 9 (b) S 3 7", Some(3)),
            ("7 (orted) Z 3 7 7 0", None),
            ("7 (orted", None),
            ("", None),
        ];
        for (stat, parent) in table {
            assert_eq!(living_parent(stat), parent, "{stat}");
        }
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let parents = BTreeMap::from([(2, 1), (3, 1), (4, 2), (5, 4), (6, 3), (1, 0)]);
        assert_eq!(of(2, &parents), BTreeSet::from([4, 5]));
        assert_eq!(of(1, &parents), BTreeSet::from([2, 3, 4, 5, 6]));
        assert_eq!(of(6, &parents), BTreeSet::new());
    }
}
