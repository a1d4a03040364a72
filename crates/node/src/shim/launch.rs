//! Starting a process that becomes a container, or something inside one: the shim's end of `shim-container`.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::init::{MountMethod, Order};

/// Longest reason taken from a container that could not start.
const REASON_BYTES_MAX: u64 = 16 << 10;

/// How the process's attempt to become what it was told ended: `Err` is the reason it gave.
pub(super) type Handshake = Result<(), String>;

/// Starts the process and, from a thread, tells it what to become; `then` gets the outcome.
///
/// Must be called from the thread that lives as long as the shim: the kernel takes the death of the calling thread for the
/// death of the parent, and the container with it.
pub(super) fn launch(
    order: &Order,
    stdout: io::PipeWriter,
    stderr: io::PipeWriter,
    then: impl FnOnce(Handshake) + Send + 'static,
) -> io::Result<u32> {
    let order = serde_json::to_vec(order)?;
    let (ours, theirs) = UnixStream::pair()?;
    let child = command(Path::new("/proc/self/exe"), theirs)
        .stdout(Stdio::from(OwnedFd::from(stdout)))
        .stderr(Stdio::from(OwnedFd::from(stderr)))
        .spawn()?;
    // Collected by the supervisor, which waits for all children at once.
    let pid = child.id();
    let talk = move || {
        then(match tell(ours, &order) {
            Ok(reason) if reason.is_empty() => Ok(()),
            Ok(reason) => Err(reason),
            Err(error) => Err(format!("the starting process cannot be talked to: {error}")),
        });
    };
    thread::Builder::new()
        .name("handshake".to_owned())
        .spawn(talk)?;
    Ok(pid)
}

fn command(exe: &Path, stdin: UnixStream) -> Command {
    let mut command = Command::new(exe);
    command
        .arg0("stoke")
        .arg("shim-container")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(stdin)));
    command
}

/// Sends the order and reads until the other end is closed, by an exec or by the process's end.
fn tell(mut socket: UnixStream, order: &[u8]) -> io::Result<String> {
    socket.write_all(order)?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    socket.take(REASON_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// What this machine lets a container have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// How mounts at paths of the pod's choice can be made, or why they cannot. Without it, pods with mounts are refused.
    pub mounts: Result<MountMethod, String>,
    /// Whether `runAsUser` and the like can be followed.
    pub change_user: bool,
}

/// Tries, in a process of its own, what containers will need. Blocks for some milliseconds.
pub fn capabilities(stoke_exe: &Path) -> Capabilities {
    Capabilities {
        mounts: probe_mounts(stoke_exe),
        change_user: rustix::process::geteuid().is_root(),
    }
}

fn probe_mounts(stoke_exe: &Path) -> Result<MountMethod, String> {
    let dir = std::env::temp_dir().join(format!("stokehold-probe-{}", std::process::id()));
    let outcome = std::fs::create_dir(&dir).and_then(|()| {
        let order = serde_json::to_vec(&Order::Probe { dir: dir.clone() })?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut child = command(stoke_exe, theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let answer = tell(ours, &order);
        child.wait()?;
        answer
    });
    // What the probe mounted is gone with it.
    let _ = std::fs::remove_dir_all(&dir);
    let answer = outcome.map_err(|error| format!("the probe could not run: {error}"))?;
    MountMethod::parse(&answer).ok_or(answer)
}
