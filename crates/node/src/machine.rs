//! What this machine is and how it is doing, read from the kernel.
//!
//! Readings that fail are left out or zero: a node that cannot read its own kernel version can still run pods.

use std::fs;
use std::path::Path;

use crate::cgroup::{CgroupSpec, CgroupVersion};
use crate::gpu::Gpu;
use crate::resources::{Amounts, CPU, EPHEMERAL_STORAGE, GPU, GPU_MILLI, MEMORY, PODS};

/// Kept free for the rest of the machine: a twentieth of the memory, within these bounds.
const RESERVE_MIN_BYTES: u64 = 100 << 20;
const RESERVE_MAX_BYTES: u64 = 4 << 30;

/// What does not change while the node runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) cpu_millis: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
    pub(crate) machine_id: String,
    pub(crate) boot_id: String,
    pub(crate) system_uuid: String,
}

/// What does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) memory_available_bytes: u64,
    pub(crate) disk_available_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) inodes_free: u64,
    pub(crate) inodes: u64,
    pub(crate) processes: u64,
    pub(crate) processes_max: u64,
}

impl Machine {
    /// Reads the machine; `data_dir` tells which disk counts.
    pub(crate) fn read(data_dir: &Path) -> Self {
        let text = |path: &str| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let meminfo = text("/proc/meminfo");
        let total = meminfo_bytes(&meminfo, "MemTotal").unwrap_or(0);
        // Inside a container the machine is as large as the container is allowed to be.
        let limits = [
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ];
        let limit = limits
            .into_iter()
            .filter_map(|path| text(path).parse::<u64>().ok())
            .min();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cpu_millis: cores as u64 * 1000,
            memory_bytes: limit.map_or(total, |limit| limit.min(total)),
            disk_bytes: disk(data_dir)
                .map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
            kernel: text("/proc/sys/kernel/osrelease"),
            os_image: os_image(&text("/etc/os-release")),
            machine_id: text("/etc/machine-id"),
            boot_id: text("/proc/sys/kernel/random/boot_id"),
            // Only root may read it.
            system_uuid: text("/sys/class/dmi/id/product_uuid"),
        }
    }

    /// All there is.
    pub(crate) fn capacity(&self, gpus: &[Gpu], pods_max: u32) -> Amounts {
        let mut amounts = Amounts::from([
            (CPU.to_owned(), self.cpu_millis),
            (MEMORY.to_owned(), self.memory_bytes),
            (EPHEMERAL_STORAGE.to_owned(), self.disk_bytes),
            (PODS.to_owned(), u64::from(pods_max)),
        ]);
        if !gpus.is_empty() {
            amounts.insert(GPU.to_owned(), gpus.len() as u64);
        }
        // Who places pods on devices counts them from 0. Where one did not answer, the numbers have a gap and the choice stays here.
        let counted = (0..).zip(gpus).all(|(index, gpu)| gpu.index == index);
        if counted && !gpus.is_empty() {
            amounts.insert(GPU_MILLI.to_owned(), gpus.len() as u64 * 1000);
        }
        amounts
    }

    /// What pods may have of it: some memory and a tenth of the disk are for the machine itself.
    pub(crate) fn allocatable(&self, gpus: &[Gpu], pods_max: u32) -> Amounts {
        let mut amounts = self.capacity(gpus, pods_max);
        let reserve = (self.memory_bytes / 20).clamp(RESERVE_MIN_BYTES, RESERVE_MAX_BYTES);
        let memory = self.memory_bytes.saturating_sub(reserve);
        amounts.insert(MEMORY.to_owned(), whole_mebibytes(memory));
        let disk = self.disk_bytes - self.disk_bytes / 10;
        amounts.insert(EPHEMERAL_STORAGE.to_owned(), whole_mebibytes(disk));
        amounts
    }
}

impl Load {
    pub(crate) fn read(data_dir: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let disk = disk(data_dir);
        // "0.10 0.20 0.30 2/345 6789": the fourth word is running/all.
        let loadavg = text("/proc/loadavg");
        let processes = loadavg
            .split_whitespace()
            .nth(3)
            .and_then(|word| word.split('/').nth(1)?.parse().ok());
        Self {
            memory_available_bytes: meminfo_bytes(&text("/proc/meminfo"), "MemAvailable")
                .unwrap_or(0),
            disk_available_bytes: disk
                .as_ref()
                .map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize)),
            disk_bytes: disk
                .as_ref()
                .map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
            inodes_free: disk.as_ref().map_or(0, |disk| disk.f_favail),
            inodes: disk.as_ref().map_or(0, |disk| disk.f_files),
            processes: processes.unwrap_or(0),
            processes_max: text("/proc/sys/kernel/pid_max")
                .trim()
                .parse()
                .unwrap_or(u64::MAX),
        }
    }
}

/// How much memory there is, and how much of it could be used now, as the kernel says.
pub(crate) fn memory_bytes() -> (u64, u64) {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name| meminfo_bytes(&meminfo, name).unwrap_or(0);
    (of("MemTotal"), of("MemAvailable"))
}

/// What could be used now without anything being swapped or killed: of the machine, and of the container we may be in.
pub(crate) fn available_bytes() -> u64 {
    let (_, machine) = memory_bytes();
    let own = [
        (CgroupVersion::V2, "/sys/fs/cgroup"),
        (CgroupVersion::V1, "/sys/fs/cgroup/memory"),
    ];
    let left = own.into_iter().filter_map(|(version, path)| {
        let sample = CgroupSpec::foreign(version, path.into()).memory().ok()?;
        Some(sample.limit_bytes?.saturating_sub(sample.working_set_bytes))
    });
    left.min().map_or(machine, |left| left.min(machine))
}

/// Numbers that people will read.
fn whole_mebibytes(bytes: u64) -> u64 {
    bytes >> 20 << 20
}

fn disk(path: &Path) -> Option<rustix::fs::StatVfs> {
    rustix::fs::statvfs(path).ok()
}

/// One line of `/proc/meminfo`, in bytes.
fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The system's name for people, from `/etc/os-release`.
fn os_image(text: &str) -> String {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.map_or_else(
        || "Linux".to_owned(),
        |name| name.trim_matches(['"', '\'']).to_owned(),
    )
}

/// The machine's own name, as a Kubernetes name: lower case, and only what a label may hold.
pub fn hostname() -> String {
    let uname = rustix::system::uname();
    node_name(&uname.nodename().to_string_lossy())
}

fn node_name(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = text.chars().map(allowed).take(63).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::simulated;

    #[test]
    fn reads_the_kernels_tables() {
        let meminfo = "MemTotal:       24115204 kB\nMemFree: 1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), Some(24_115_204 * 1024));
        assert_eq!(meminfo_bytes(meminfo, "Mem"), None);
        assert_eq!(meminfo_bytes("MemTotal: lots", "MemTotal"), None);
        assert_eq!(
            os_image("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(os_image(""), "Linux");
    }

    #[test]
    fn any_host_name_becomes_a_node_name() {
        for (host, expected) in [
            ("GPU_Box.local", "gpu-box.local"),
            ("", "localhost"),
            ("--", "localhost"),
            ("größe", "gr--e"),
        ] {
            assert_eq!(node_name(host), expected);
        }
    }

    #[test]
    fn some_is_kept_for_the_machine() {
        let machine = Machine {
            memory_bytes: 16 << 30,
            disk_bytes: 1000 << 20,
            cpu_millis: 8000,
            ..Machine::default()
        };
        let allocatable = machine.allocatable(&simulated(0, 2), 110);
        assert_eq!(allocatable[MEMORY], 15564 << 20);
        assert_eq!(allocatable[EPHEMERAL_STORAGE], 900 << 20);
        assert_eq!(allocatable[GPU], 2);
        assert_eq!(allocatable[GPU_MILLI], 2000);
        let gap = machine.capacity(&simulated(1, 2), 110);
        assert!(
            gap[GPU] == 2 && !gap.contains_key(GPU_MILLI),
            "nobody else can tell which is which"
        );
        assert_eq!(allocatable[CPU], 8000);
        assert!(
            !machine.capacity(&[], 110).contains_key(GPU),
            "no GPUs, no resource"
        );
    }

    #[test]
    fn this_machine_can_be_read() {
        let here = Machine::read(Path::new("/"));
        assert!(here.cpu_millis >= 1000 && here.memory_bytes > 0 && here.disk_bytes > 0);
        let load = Load::read(Path::new("/"));
        assert!(
            load.memory_available_bytes > 0
                && load.processes > 0
                && load.processes_max > load.processes
        );
    }
}
