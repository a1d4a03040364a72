//! Control groups by hand, one file per controller: what the machine has, the groups of pods and their containers, limits, samples.
//!
//! Files of a cgroup can vanish between any two calls, and a file that one kernel has another lacks. So a reading is
//! optional wherever Kubernetes can live without it, and a group that is gone is an empty group.
//!
//! Invariant: nothing outside `stokehold/<engine id>` below the chosen parent is ever created, changed or removed; the one
//! exception is `cgroup.subtree_control` of that parent on v2, without which it could have no children with limits.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use stoke_memory::Sample;

mod detect;
mod file;
mod v1;
mod v2;

pub use detect::{Cgroups, detect, detect_below};

/// What was attempted on a cgroup, and where.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot create the cgroup {}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot write {value:?} to {}", path.display())]
    Write {
        path: PathBuf,
        value: String,
        source: io::Error,
    },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot remove the cgroup {}", path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error("{left} processes of the cgroup {} do not end", path.display())]
    Unkillable { path: PathBuf, left: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupVersion {
    V1,
    V2,
}

impl fmt::Display for CgroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

/// Where one cgroup is: absolute directories, so that it is found again after the engine was started from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "version")]
pub enum CgroupSpec {
    V1(v1::Dirs),
    V2 { path: PathBuf },
}

/// Limits of one container. Absent ones are left at the kernel's default, which is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    pub cpu_request_millis: Option<u64>,
    pub cpu_limit_millis: Option<u64>,
    pub pids_max: Option<u64>,
}

/// One reading of a cgroup's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemorySample {
    pub usage_bytes: u64,
    /// Usage without inactive page cache: what a kubelet reports.
    pub working_set_bytes: u64,
    pub peak_bytes: Option<u64>,
    /// Absent: no limit.
    pub limit_bytes: Option<u64>,
    pub anon_bytes: u64,
    pub shmem_bytes: u64,
    pub active_file_bytes: u64,
    pub inactive_file_bytes: u64,
    /// Kernel memory charged to the group.
    pub kernel_bytes: u64,
    /// What of it is given back under pressure; zero where the kernel does not tell.
    pub kernel_reclaimable_bytes: u64,
    pub swap_bytes: u64,
    /// Processes that the kernel killed at the limit.
    pub oom_kills: u64,
    /// How often the limit was reached, reclaim included.
    pub limit_events: u64,
    /// Processes of the group wait at the limit, for as long as [`CgroupSpec::hold`] is on.
    pub held: bool,
    /// v2 only.
    pub pressure: Option<Pressure>,
}

/// Stall information of a cgroup: averages in percent, totals in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pressure {
    pub some_avg10: f64,
    pub some_total_usec: u64,
    pub full_avg10: f64,
    pub full_total_usec: u64,
}

impl From<&MemorySample> for Sample {
    fn from(sample: &MemorySample) -> Self {
        Self {
            usage: sample.usage_bytes,
            working_set: sample.working_set_bytes,
            peak: sample.peak_bytes,
            limit: sample.limit_bytes,
            anon: sample.anon_bytes,
            shmem: sample.shmem_bytes,
            kernel: sample
                .kernel_bytes
                .saturating_sub(sample.kernel_reclaimable_bytes),
            file_active: sample.active_file_bytes,
            file_inactive: sample.inactive_file_bytes,
            oom_kills: sample.oom_kills,
            limit_events: sample.limit_events,
            stalled_usec: sample.pressure.map(|pressure| pressure.some_total_usec),
            held: sample.held,
        }
    }
}

/// A group's memory, for whoever looks at it again and again.
#[derive(Debug)]
pub(crate) struct Gauge {
    version: CgroupVersion,
    group: file::Group,
}

impl Gauge {
    pub(crate) fn open(spec: &CgroupSpec) -> Self {
        Self {
            version: spec.version(),
            group: file::Group::open(spec.path()),
        }
    }

    pub(crate) fn read(&mut self) -> Result<MemorySample, CgroupError> {
        match self.version {
            CgroupVersion::V1 => v1::memory(&mut self.group),
            CgroupVersion::V2 => v2::memory(&mut self.group),
        }
    }

    /// All memory charged to the group, and nothing else: the cheapest look there is.
    pub(crate) fn usage_bytes(&mut self) -> Option<u64> {
        self.group.number(match self.version {
            CgroupVersion::V1 => v1::USAGE,
            CgroupVersion::V2 => v2::USAGE,
        })
    }
}

impl CgroupSpec {
    /// A group that someone else made, of which only the memory is of interest.
    pub(crate) fn foreign(version: CgroupVersion, memory: PathBuf) -> Self {
        match version {
            CgroupVersion::V1 => Self::V1(v1::Dirs {
                memory,
                cpu: None,
                pids: None,
                cpuacct: None,
            }),
            CgroupVersion::V2 => Self::V2 { path: memory },
        }
    }

    /// The same, with where its CPU time is accounted if that is not in the same place.
    #[must_use]
    pub(crate) fn accounted_in(mut self, directory: Option<PathBuf>) -> Self {
        if let Self::V1(dirs) = &mut self {
            dirs.cpuacct = directory;
        }
        self
    }

    pub fn version(&self) -> CgroupVersion {
        match self {
            Self::V1(_) => CgroupVersion::V1,
            Self::V2 { .. } => CgroupVersion::V2,
        }
    }

    /// The group of one container in a pod's group, or of a pod in the engine's.
    pub fn child(&self, name: &str) -> Self {
        match self {
            Self::V1(dirs) => Self::V1(dirs.child(name)),
            Self::V2 { path } => Self::V2 {
                path: path.join(name),
            },
        }
    }

    /// The directory that stands for the group in messages.
    pub fn path(&self) -> &Path {
        match self {
            Self::V1(dirs) => &dirs.memory,
            Self::V2 { path } => path,
        }
    }

    /// Makes the group if it is not there, ready to have children with limits.
    pub fn create_parent(&self) -> Result<(), CgroupError> {
        match self {
            Self::V1(dirs) => v1::create(dirs),
            Self::V2 { path } => v2::create_parent(path),
        }
    }

    /// Makes a group that processes can join, with its limits.
    pub fn create(&self, limits: &Limits) -> Result<(), CgroupError> {
        match self {
            Self::V1(dirs) => {
                v1::create(dirs)?;
                v1::limit(dirs, limits)
            }
            Self::V2 { path } => {
                v2::create(path)?;
                v2::limit(path, limits)
            }
        }
    }

    /// Moves the calling process into the group.
    pub fn join(&self) -> Result<(), CgroupError> {
        self.dirs()
            .try_for_each(|dir| file::write(&dir.join("cgroup.procs"), "0"))
    }

    /// Changes the memory limit of a living group. A limit below what is in use makes the kernel reclaim, and may make it kill.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<(), CgroupError> {
        match self {
            Self::V1(dirs) => v1::set_memory_limit(dirs, bytes),
            Self::V2 { path } => v2::set_memory_limit(path, bytes),
        }
    }

    /// Has processes wait at the limit, or just below it, instead of being killed there, so that there is time to raise it. Who turns
    /// it on must turn it off again when nobody raises the limit, or they wait for ever. Where the kernel cannot, nothing changes.
    pub fn hold(&self, limit_bytes: u64, hold: bool) -> Result<(), CgroupError> {
        match self {
            Self::V1(dirs) => v1::hold(dirs, hold),
            Self::V2 { path } => v2::hold(path, limit_bytes, hold),
        }
    }

    /// Whether processes wait at the limit right now.
    pub fn is_holding(&self) -> bool {
        match self {
            Self::V1(dirs) => v1::is_holding(dirs),
            Self::V2 { .. } => self.memory().is_ok_and(|sample| sample.held),
        }
    }

    pub fn memory(&self) -> Result<MemorySample, CgroupError> {
        Gauge::open(self).read()
    }

    /// Processes that the kernel killed at the limit so far; zero for a group that is gone.
    pub fn oom_kills(&self) -> u64 {
        match self {
            Self::V1(dirs) => v1::oom_kills(dirs),
            Self::V2 { path } => v2::oom_kills(path),
        }
    }

    /// CPU time used by the group, where it is accounted.
    pub fn cpu_usec(&self) -> Option<u64> {
        match self {
            Self::V1(dirs) => v1::cpu_usec(dirs),
            Self::V2 { path } => v2::cpu_usec(path),
        }
    }

    /// Process ids in the group and in its children; none if it is gone.
    pub fn processes(&self) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for dir in self.dirs() {
            collect_processes(dir, &mut found);
        }
        found
    }

    /// SIGKILL to every process of the group and its children, again and again until none is left or `within` has passed.
    pub fn kill(&self, within: Duration) -> Result<(), CgroupError> {
        let deadline = Instant::now() + within;
        loop {
            let processes = self.processes();
            if processes.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(CgroupError::Unkillable {
                    path: self.path().to_owned(),
                    left: processes.len(),
                });
            }
            self.signal_kill(&processes);
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGKILL once to every process of the group, without waiting.
    pub fn kill_now(&self) {
        self.signal_kill(&self.processes());
    }

    fn signal_kill(&self, processes: &BTreeSet<u32>) {
        if let Self::V2 { path } = self
            && v2::kill(path)
        {
            return;
        }
        for pid in processes {
            if let Some(pid) = Pid::from_raw(*pid as i32) {
                // It may have ended by itself meanwhile; the next look tells.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Removes the group and its children. They must be empty; the kernel needs a moment to let go of ended processes, so
    /// a busy group is tried again for `within`.
    pub fn remove(&self, within: Duration) -> Result<(), CgroupError> {
        let deadline = Instant::now() + within;
        self.dirs().try_for_each(|dir| remove_tree(dir, deadline))
    }

    fn dirs(&self) -> impl Iterator<Item = &Path> {
        let (v1, v2) = match self {
            Self::V1(dirs) => (Some(dirs.iter()), None),
            Self::V2 { path } => (None, Some(path.as_path())),
        };
        v1.into_iter().flatten().chain(v2)
    }
}

fn collect_processes(dir: &Path, found: &mut BTreeSet<u32>) {
    if let Ok(text) = fs::read_to_string(dir.join("cgroup.procs")) {
        // 0 stands for a process of a foreign pid namespace, which cannot be named.
        found.extend(
            text.lines()
                .filter_map(|line| line.parse::<u32>().ok())
                .filter(|pid| *pid != 0),
        );
    }
    for child in children(dir) {
        collect_processes(&child, found);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn remove_tree(dir: &Path, deadline: Instant) -> Result<(), CgroupError> {
    for child in children(dir) {
        remove_tree(&child, deadline)?;
    }
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            Err(source) => {
                return Err(CgroupError::Remove {
                    path: dir.to_owned(),
                    source,
                });
            }
        }
    }
}
