//! Version 1: one hierarchy per controller, and the files that the memory, cpu and pids controllers have there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::{Group, keyed, keyed_all, number, write, write_if_present};
use super::{CgroupError, Limits, MemorySample};

/// A group's directory in each hierarchy. Without `cpu` or `pids` those limits are not enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Dirs {
    pub memory: PathBuf,
    #[serde(default)]
    pub cpu: Option<PathBuf>,
    #[serde(default)]
    pub pids: Option<PathBuf>,
    /// Its own hierarchy on some machines, the same as `cpu` on others.
    #[serde(default)]
    pub cpuacct: Option<PathBuf>,
}

impl Dirs {
    pub(super) fn child(&self, name: &str) -> Self {
        let below = |dir: &Option<PathBuf>| dir.as_ref().map(|dir| dir.join(name));
        Self {
            memory: self.memory.join(name),
            cpu: below(&self.cpu),
            pids: below(&self.pids),
            cpuacct: below(&self.cpuacct),
        }
    }

    /// Each directory once; memory first, so that a process is under its limit before anything else.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Path> {
        let cpuacct = self
            .cpuacct
            .as_deref()
            .filter(|dir| Some(*dir) != self.cpu.as_deref());
        [
            Some(self.memory.as_path()),
            self.cpu.as_deref(),
            self.pids.as_deref(),
            cpuacct,
        ]
        .into_iter()
        .flatten()
    }
}

/// The kernel rounds "no limit" down to a page; anything this large is none.
const UNLIMITED: u64 = 1 << 62;

const CPU_PERIOD_USEC: u64 = 100_000;

pub(super) fn create(dirs: &Dirs) -> Result<(), CgroupError> {
    for dir in dirs.iter() {
        fs::create_dir_all(dir).map_err(|source| CgroupError::Create {
            path: dir.to_owned(),
            source,
        })?;
    }
    // Old kernels count a child's memory in its parent only if told so before the first grandchild is made.
    if number(&dirs.memory.join("memory.use_hierarchy")) == Some(0) {
        write(&dirs.memory.join("memory.use_hierarchy"), "1")?;
    }
    Ok(())
}

pub(super) fn limit(dirs: &Dirs, limits: &Limits) -> Result<(), CgroupError> {
    if let Some(bytes) = limits.memory_bytes {
        set_memory_limit(dirs, bytes)?;
    }
    if let Some(cpu) = &dirs.cpu {
        if let Some(millis) = limits.cpu_request_millis {
            write_if_present(&cpu.join("cpu.shares"), &cpu_shares(millis).to_string())?;
        }
        if let Some(millis) = limits.cpu_limit_millis {
            write_if_present(&cpu.join("cpu.cfs_period_us"), &CPU_PERIOD_USEC.to_string())?;
            // The kernel refuses less than a millisecond.
            let quota = (millis.saturating_mul(CPU_PERIOD_USEC) / 1000).max(1000);
            write_if_present(&cpu.join("cpu.cfs_quota_us"), &quota.to_string())?;
        }
    }
    if let (Some(pids), Some(max)) = (&dirs.pids, limits.pids_max) {
        write_if_present(&pids.join("pids.max"), &max.to_string())?;
    }
    Ok(())
}

/// A kubelet's conversion: 1024 shares are one CPU.
pub(super) fn cpu_shares(millis: u64) -> u64 {
    (millis.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

pub(super) fn set_memory_limit(dirs: &Dirs, bytes: u64) -> Result<(), CgroupError> {
    let memory = dirs.memory.join("memory.limit_in_bytes");
    let with_swap = dirs.memory.join("memory.memsw.limit_in_bytes");
    let value = bytes.to_string();
    // Memory and swap together may never be below memory alone, so the order depends on the direction.
    if number(&memory).is_some_and(|current| current < bytes) {
        write_if_present(&with_swap, &value)?;
        write(&memory, &value)
    } else {
        write(&memory, &value)?;
        write_if_present(&with_swap, &value)
    }
}

/// The kernel then lets whoever touches a page wait until there is room, and refuses what cannot wait.
pub(super) fn hold(dirs: &Dirs, hold: bool) -> Result<(), CgroupError> {
    let value = if hold { "1" } else { "0" };
    write_if_present(&dirs.memory.join("memory.oom_control"), value)
}

pub(super) fn is_holding(dirs: &Dirs) -> bool {
    let control = fs::read_to_string(dirs.memory.join("memory.oom_control")).unwrap_or_default();
    holds(&control)
}

fn holds(oom_control: &str) -> bool {
    let is_on = |key: &str| keyed(oom_control, key) == Some(1);
    is_on("oom_kill_disable") && is_on("under_oom")
}

pub(super) const USAGE: &str = "memory.usage_in_bytes";

pub(super) fn memory(group: &mut Group) -> Result<MemorySample, CgroupError> {
    let usage_bytes = group.read(USAGE)?.trim().parse().unwrap_or(0);
    // `total_` includes child groups; a job may make its own.
    let [anon, shmem, active_file, inactive_file, swap] = keyed_all(
        &group.text("memory.stat"),
        [
            "total_rss",
            "total_shmem",
            "total_active_file",
            "total_inactive_file",
            "total_swap",
        ],
    )
    .map(Option::unwrap_or_default);
    let oom_control = group.text("memory.oom_control");
    Ok(MemorySample {
        usage_bytes,
        working_set_bytes: usage_bytes.saturating_sub(inactive_file),
        peak_bytes: group.number("memory.max_usage_in_bytes"),
        limit_bytes: group
            .number("memory.limit_in_bytes")
            .filter(|limit| *limit < UNLIMITED),
        anon_bytes: anon,
        shmem_bytes: shmem,
        active_file_bytes: active_file,
        inactive_file_bytes: inactive_file,
        kernel_bytes: group.number("memory.kmem.usage_in_bytes").unwrap_or(0),
        kernel_reclaimable_bytes: 0,
        swap_bytes: swap,
        oom_kills: keyed(&oom_control, "oom_kill").unwrap_or(0),
        limit_events: group.number("memory.failcnt").unwrap_or(0),
        held: holds(&oom_control),
        pressure: None,
    })
}

pub(super) fn oom_kills(dirs: &Dirs) -> u64 {
    fs::read_to_string(dirs.memory.join("memory.oom_control"))
        .ok()
        .and_then(|text| keyed(&text, "oom_kill"))
        .unwrap_or(0)
}

pub(super) fn cpu_usec(dirs: &Dirs) -> Option<u64> {
    number(&dirs.cpuacct.as_ref()?.join("cpuacct.usage")).map(|nanos| nanos / 1000)
}

/// Whether the directory is really one of the memory controller.
pub(super) fn has_memory(dir: &Path) -> io::Result<()> {
    fs::metadata(dir.join("memory.limit_in_bytes")).map(drop)
}
