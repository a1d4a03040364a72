//! Version 2: one hierarchy; controllers are handed down level by level, and only leaves hold processes.

use std::fs;
use std::path::Path;

use super::file::{Group, keyed, keyed_all, read, write, write_if_present};
use super::{CgroupError, Limits, MemorySample, Pressure};

/// What is handed down where it is available; only memory is insisted on.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

const CPU_PERIOD_USEC: u64 = 100_000;

pub(super) fn create(path: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(path).map_err(|source| CgroupError::Create {
        path: path.to_owned(),
        source,
    })
}

pub(super) fn create_parent(path: &Path) -> Result<(), CgroupError> {
    create(path)?;
    hand_down(path)
}

/// Lets children of the group have limits. Fails with EBUSY where the group itself holds processes.
pub(super) fn hand_down(path: &Path) -> Result<(), CgroupError> {
    let available = read(&path.join("cgroup.controllers"))?;
    let control = path.join("cgroup.subtree_control");
    let enabled = read(&control)?;
    let has = |list: &str, name: &str| list.split_whitespace().any(|word| word == name);
    for name in CONTROLLERS {
        if has(&enabled, name) {
            continue;
        }
        let done = if has(&available, name) {
            write(&control, &format!("+{name}"))
        } else {
            continue;
        };
        if name == "memory" {
            done?;
        }
    }
    Ok(())
}

/// Whether children of the group can have a memory limit already.
pub(super) fn hands_down_memory(path: &Path) -> bool {
    read(&path.join("cgroup.subtree_control"))
        .is_ok_and(|enabled| enabled.split_whitespace().any(|word| word == "memory"))
}

pub(super) fn limit(path: &Path, limits: &Limits) -> Result<(), CgroupError> {
    if let Some(bytes) = limits.memory_bytes {
        set_memory_limit(path, bytes)?;
    }
    // One killed process takes the container with it, as a kubelet has it: half a training is worth nothing.
    write_if_present(&path.join("memory.oom.group"), "1")?;
    if let Some(millis) = limits.cpu_request_millis {
        write_if_present(&path.join("cpu.weight"), &cpu_weight(millis).to_string())?;
    }
    if let Some(millis) = limits.cpu_limit_millis {
        let quota = (millis.saturating_mul(CPU_PERIOD_USEC) / 1000).max(1000);
        write_if_present(&path.join("cpu.max"), &format!("{quota} {CPU_PERIOD_USEC}"))?;
    }
    if let Some(max) = limits.pids_max {
        write_if_present(&path.join("pids.max"), &max.to_string())?;
    }
    Ok(())
}

/// The linear map from v1's shares (2..=262144) to v2's weight (1..=10000) that container runtimes agree on.
fn cpu_weight(millis: u64) -> u64 {
    1 + (super::v1::cpu_shares(millis) - 2) * 9999 / 262_142
}

pub(super) fn set_memory_limit(path: &Path, bytes: u64) -> Result<(), CgroupError> {
    write(&path.join("memory.max"), &bytes.to_string())?;
    write_if_present(&path.join("memory.swap.max"), "0")
}

/// How far below the limit the kernel begins to slow down whoever still takes memory: the nearer to the limit the more, until it takes
/// minutes to get there.
pub(super) fn brake(limit_bytes: u64) -> u64 {
    limit_bytes - limit_bytes / 8
}

pub(super) fn hold(path: &Path, limit_bytes: u64, hold: bool) -> Result<(), CgroupError> {
    let value = if hold {
        brake(limit_bytes).to_string()
    } else {
        "max".to_owned()
    };
    write_if_present(&path.join("memory.high"), &value)
}

pub(super) const USAGE: &str = "memory.current";

pub(super) fn memory(group: &mut Group) -> Result<MemorySample, CgroupError> {
    let usage_bytes = group.read(USAGE)?.trim().parse().unwrap_or(0);
    let stat = group.text("memory.stat");
    let events = group.text("memory.events");
    let [anon, shmem, active_file, inactive_file, reclaimable] = keyed_all(
        &stat,
        [
            "anon",
            "shmem",
            "active_file",
            "inactive_file",
            "slab_reclaimable",
        ],
    )
    .map(Option::unwrap_or_default);
    // Kernels before 5.18 do not sum it up.
    let kernel_bytes = keyed(&stat, "kernel").unwrap_or_else(|| {
        let parts = ["slab", "kernel_stack", "pagetables", "percpu", "sock"];
        keyed_all(&stat, parts).into_iter().flatten().sum()
    });
    let high = group.number("memory.high");
    let unreclaimable = (anon + shmem + kernel_bytes).saturating_sub(reclaimable);
    Ok(MemorySample {
        usage_bytes,
        working_set_bytes: usage_bytes.saturating_sub(inactive_file),
        peak_bytes: group.number("memory.peak"),
        limit_bytes: group.number("memory.max"),
        anon_bytes: anon,
        shmem_bytes: shmem,
        active_file_bytes: active_file,
        inactive_file_bytes: inactive_file,
        kernel_bytes,
        kernel_reclaimable_bytes: reclaimable,
        swap_bytes: group.number("memory.swap.current").unwrap_or(0),
        oom_kills: keyed(&events, "oom_kill").unwrap_or(0),
        limit_events: keyed(&events, "max").unwrap_or(0),
        // Page cache above it is taken back in passing; what cannot be is what slows processes down.
        held: high.is_some_and(|high| unreclaimable >= high),
        pressure: pressure(&group.text("memory.pressure")),
    })
}

pub(super) fn oom_kills(path: &Path) -> u64 {
    fs::read_to_string(path.join("memory.events"))
        .ok()
        .and_then(|text| keyed(&text, "oom_kill"))
        .unwrap_or(0)
}

pub(super) fn cpu_usec(path: &Path) -> Option<u64> {
    keyed(
        &fs::read_to_string(path.join("cpu.stat")).ok()?,
        "usage_usec",
    )
}

/// The kernel's own way to end a whole group at once (5.14 and newer). False where it is not there.
pub(super) fn kill(path: &Path) -> bool {
    write(&path.join("cgroup.kill"), "1").is_ok()
}

fn pressure(text: &str) -> Option<Pressure> {
    let field = |kind: &str, name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(kind))?
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    Some(Pressure {
        some_avg10: field("some", "avg10")?.parse().ok()?,
        some_total_usec: field("some", "total")?.parse().ok()?,
        full_avg10: field("full", "avg10")?.parse().ok()?,
        full_total_usec: field("full", "total")?.parse().ok()?,
    })
}
