//! Waiting for more of a log, and knowing when there will be no more.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::shim::protocol::ContainerState;
use crate::shim::{self, Life};

/// Longest wait without a look: for filesystems that tell nothing, and to notice that the client has gone.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The same where no more watches are to be had.
const LOOK_EVERY_BLIND: Duration = Duration::from_millis(100);

pub(super) struct Follower {
    pod_dir: PathBuf,
    container: String,
    restart: u32,
    /// Absent where the machine has none left to give (128 a user by default).
    watch: Option<OwnedFd>,
}

impl Follower {
    /// Watches from now on, so what is written while older text is read is not missed.
    pub(super) fn new(pod_dir: &Path, container: &str, restart: u32, log: &Path) -> Self {
        let watch = || {
            let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            inotify::add_watch(&watch, pod_dir, WatchFlags::MOVED_TO)?;
            if let Some(dir) = log.parent() {
                inotify::add_watch(&watch, dir, WatchFlags::MODIFY | WatchFlags::CREATE)?;
            }
            Ok::<_, rustix::io::Errno>(watch)
        };
        Self {
            pod_dir: pod_dir.to_owned(),
            container: container.to_owned(),
            restart,
            watch: watch().ok(),
        }
    }

    /// Whether the run will write no more. Ask before reading on: what was written up to the answer is then all there is.
    pub(super) fn ended(&self) -> bool {
        if !matches!(shim::life(&self.pod_dir), Ok(Life::Running)) {
            return true;
        }
        let Ok(Some(status)) = shim::read_status(&self.pod_dir) else {
            return false;
        };
        let Some(status) = status.container(&self.container) else {
            return true;
        };
        match status.state {
            ContainerState::Running { .. } => status.restart_count != self.restart,
            // Before its first run there is nothing to follow; between two runs, that one has ended.
            ContainerState::Waiting { .. } => status.last.is_some(),
            ContainerState::Terminated(_) => true,
        }
    }

    /// Returns when there may be something new.
    pub(super) fn wait(&self) {
        let Some(watch) = &self.watch else {
            thread::sleep(LOOK_EVERY_BLIND);
            return;
        };
        let timeout = Timespec::try_from(LOOK_EVERY).ok();
        let _ = poll(&mut [PollFd::new(watch, PollFlags::IN)], timeout.as_ref());
        let mut buffer = [const { MaybeUninit::uninit() }; 4096];
        let mut events = Reader::new(watch, &mut buffer);
        // Which events they were does not matter; that they are taken does.
        while events.next().is_ok() {}
    }
}
