//! `stoke shim DIR`: from a fresh process to the pod's supervisor, and out.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::thread::UnshareFlags;

use super::protocol::{ShimSpec, ShimStatus, Tmpfs, VERSION};
use super::run::with_cause;
use super::serve::{Board, listen};
use super::supervise::{Event, Supervisor};
use super::{ROOT_DIR, SOCKET_FILE, init, lock, read_spec, read_status, spawn, sys};

/// How long the last watchers may take to read the last status.
const FAREWELL_WITHIN: Duration = Duration::from_secs(1);

/// The entry of `stoke shim [--detach] DIR`. Must be called before the process has a second thread.
pub fn main(dir: &Path, detach: bool) -> ExitCode {
    if detach {
        return spawn::detach(dir);
    }
    match prepare(dir) {
        Ok((supervisor, events, _lock)) => {
            // Whoever started us may be gone already.
            let _ = writeln!(io::stdout(), "{}", spawn::READY);
            supervise(dir, supervisor, &events);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            let _ = writeln!(io::stdout(), "{}", reason.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

struct Prepared {
    supervisor: Supervisor,
    board: Arc<Board>,
}

fn supervise(dir: &Path, mut prepared: Prepared, events: &Receiver<Event>) {
    prepared.supervisor.run(events);
    // From here on the status file is the last word, and nobody should find the door open.
    let _ = std::fs::remove_file(dir.join(SOCKET_FILE));
    prepared.board.close(FAREWELL_WITHIN);
}

/// Everything that can fail, up to the first status and the open door.
fn prepare(dir: &Path) -> Result<(Prepared, Receiver<Event>, File), String> {
    let failed = |doing: &'static str| move |error: io::Error| format!("cannot {doing}: {error}");
    let lock = lock(dir).map_err(failed("take the pod's lock"))?;
    let lock = lock.ok_or(spawn::ANOTHER)?;
    sys::ignore_requests_to_end();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let (spec, previous) = read_files(dir)?;
    // Orphans of the pod come to us and not to init, so that none is lost.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| format!("cannot adopt orphans: {error}"))?;
    mount_volumes(&spec.tmpfs)?;
    if let Some(cgroup) = &spec.cgroup {
        cgroup.create_parent().map_err(|error| with_cause(&error))?;
    }
    std::fs::create_dir_all(dir.join(ROOT_DIR)).map_err(failed("make a directory"))?;

    // Only now threads: namespaces are settled.
    let (sender, events) = mpsc::channel();
    let (spawned, children) = mpsc::channel();
    let board = Arc::new(Board::default());
    let mut supervisor = Supervisor::new(
        dir,
        spec,
        previous.as_ref(),
        Arc::clone(&board),
        sender.clone(),
        spawned,
    );
    supervisor
        .announce()
        .map_err(|error| match std::error::Error::source(&error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })?;
    listen(dir, &board, &sender).map_err(failed("listen"))?;
    let wait = move || wait_for_children(&sender, &children);
    thread::Builder::new()
        .name("children".to_owned())
        .spawn(wait)
        .map_err(failed("start a thread"))?;
    Ok((Prepared { supervisor, board }, events, lock))
}

fn read_files(dir: &Path) -> Result<(ShimSpec, Option<ShimStatus>), String> {
    let with_cause = |error: super::FileError| match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let spec = read_spec(dir).map_err(with_cause)?;
    let spec =
        spec.ok_or_else(|| format!("there is no {} in {}", super::SPEC_FILE, dir.display()))?;
    if spec.version != VERSION {
        return Err(format!(
            "this shim speaks version {VERSION}, the pod was written in {}",
            spec.version
        ));
    }
    // A torn status of an earlier shim only costs its restart counts.
    Ok((spec, read_status(dir).unwrap_or_default()))
}

/// Memory-backed volumes, in a mount namespace of the shim's own: they vanish with it and the host never sees them.
fn mount_volumes(volumes: &[Tmpfs]) -> Result<(), String> {
    if volumes.is_empty() {
        return Ok(());
    }
    if let Err(privileged) = sys::unshare(UnshareFlags::NEWNS) {
        init::enter_user_namespace(UnshareFlags::NEWNS).map_err(|unprivileged| {
            format!(
                "this machine permits no mount namespace, which memory-backed volumes need: {privileged}; \
                 as a user namespace: {unprivileged}"
            )
        })?;
    }
    mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .map_err(|error| format!("cannot detach from the host's mounts: {error}"))?;
    for volume in volumes {
        let size = volume
            .size_bytes
            .map(|bytes| format!(",size={bytes}"))
            .unwrap_or_default();
        let options = std::ffi::CString::new(format!("mode=1777{size}")).unwrap_or_default();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(
            c"stokehold",
            &volume.path,
            c"tmpfs",
            flags,
            options.as_c_str(),
        )
        .map_err(|error| {
            format!(
                "cannot mount a memory-backed volume at {}: {error}",
                volume.path.display()
            )
        })?;
    }
    Ok(())
}

/// Waits until some child has ended and lets the supervisor collect it. It leaves the child where it is, so that the
/// process number stays taken until the supervisor knows.
fn wait_for_children(events: &Sender<Event>, spawned: &Receiver<()>) {
    let (done, collected) = mpsc::sync_channel(1);
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(_) => {
                if events.send(Event::Child(done.clone())).is_err() || collected.recv().is_err() {
                    return;
                }
            }
            Err(Errno::CHILD) => {
                if spawned.recv().is_err() {
                    return;
                }
            }
            Err(_) => {}
        }
    }
}
