//! What is to be done for a pod whose shim died before its pod did: it was killed, or the machine went down.

use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;

use super::protocol::{ContainerState, ContainerStatus, Exit, ShimStatus, reason};
use super::run::kill_pid;
use super::{
    Durable, FileError, LOCK_FILE, STATUS_FILE, lock, processes, read_spec, read_status, write_json,
};

const KILL_WITHIN: Duration = Duration::from_secs(5);
const EXIT_UNKNOWN: i32 = 137;

/// Ends what a dead shim left behind and says so in its status: containers that had not ended are `ContainerStatusUnknown`.
/// Gives the last status back, `None` if there never was one. Changes nothing while a shim runs. Blocks while processes die.
///
/// Afterwards [`super::spawn`] may start the pod again; the runs so far then count as restarts.
pub fn settle(dir: &Path) -> Result<Option<ShimStatus>, FileError> {
    let read_error = |source| FileError::Read {
        path: dir.join(LOCK_FILE),
        source,
    };
    let Some(_lock) = lock(dir).map_err(read_error)? else {
        return read_status(dir);
    };
    // What was to run is only needed to find what is left; without it there is nothing to find.
    if let Ok(Some(spec)) = read_spec(dir) {
        match &spec.cgroup {
            Some(cgroup) => {
                // What cannot be killed or removed now is an orphan that the engine meets again.
                let _ = cgroup
                    .kill(KILL_WITHIN)
                    .and_then(|()| cgroup.remove(KILL_WITHIN));
            }
            None => processes::marked(&format!("{}/", spec.uid))
                .into_iter()
                .for_each(kill_pid),
        }
    }
    let Some(mut status) = read_status(dir)? else {
        return Ok(None);
    };
    if !status.finished {
        let now = Timestamp::now();
        status
            .init
            .iter_mut()
            .chain(&mut status.containers)
            .for_each(|container| close(container, now));
        status.finished = true;
        write_json(&dir.join(STATUS_FILE), &status, Durable::Yes)?;
    }
    Ok(Some(status))
}

fn close(container: &mut ContainerStatus, now: Timestamp) {
    let started_at = match container.state {
        ContainerState::Running { started_at, .. } => Some(started_at),
        ContainerState::Waiting { .. } | ContainerState::Terminated(_) => return,
    };
    container.state = ContainerState::Terminated(Exit {
        exit_code: EXIT_UNKNOWN,
        signal: None,
        oom_killed: false,
        reason: reason::CONTAINER_STATUS_UNKNOWN.to_owned(),
        message: Some(
            "the shim that watched this container died, so nobody saw how the container ended"
                .to_owned(),
        ),
        started_at,
        finished_at: now,
        peak_memory_bytes: None,
        oom_kills: container.oom_kills,
    });
}
