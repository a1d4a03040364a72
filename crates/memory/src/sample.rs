//! One look at a container's memory, as everything here wants it.

/// What the kernel said of a container's memory at one moment, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// All of it, page cache included.
    pub usage: u64,
    /// Without inactive page cache, as a kubelet counts.
    pub working_set: u64,
    /// The most ever used, where the kernel counts it.
    pub peak: Option<u64>,
    pub limit: Option<u64>,
    pub anon: u64,
    /// Shared memory and tmpfs, /dev/shm included.
    pub shmem: u64,
    /// Kernel memory that is not given back under pressure.
    pub kernel: u64,
    pub file_active: u64,
    pub file_inactive: u64,
    /// Processes that the kernel killed at the limit.
    pub oom_kills: u64,
    /// How often the limit was reached, reclaim included.
    pub limit_events: u64,
    /// Microseconds in which some process waited for memory, where the kernel counts them.
    pub stalled_usec: Option<u64>,
    /// Processes wait at the limit right now, and go on when it is raised.
    pub held: bool,
}

impl Sample {
    /// What the kernel cannot take back under pressure: what must fit below the limit.
    pub fn unreclaimable(&self) -> u64 {
        [self.shmem, self.kernel]
            .into_iter()
            .fold(self.anon, u64::saturating_add)
    }

    /// What it can.
    pub fn cache(&self) -> u64 {
        self.file_active.saturating_add(self.file_inactive)
    }
}
