//! `stoke shim-container`: a fresh process that turns itself into one container.
//!
//! It is told on its stdin, a socket, what to become, and answers on it with the reason if that fails. The socket is closed
//! by the exec, so no answer is the good answer.
//!
//! A container without mounts stays on the host's own root: nothing would look different, but files it writes into `/` itself
//! are kept there, where one with mounts has a root that is thrown away.
//!
//! Invariant: the process is in its cgroup before it does anything that needs memory, and the job inherits nothing of the
//! shim: no descriptor, no environment, no signal disposition, no controlling terminal.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Gid, Pid, PidfdFlags, Resource, Rlimit, Signal, Uid, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};
use serde::{Deserialize, Serialize};

use super::protocol::{ContainerSpec, Mount};
use super::{root, sys};
use crate::cgroup::CgroupSpec;

/// Longest order taken; the API server bounds a pod at far less.
const ORDER_BYTES_MAX: u64 = 16 << 20;
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// As container runtimes have it. More only makes programs slow that close all they might have.
const OPEN_FILES_MAX: u64 = 1 << 20;

const PROBE_ROOT: &str = "root";

/// What the process is to become.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Start(Start),
    Exec(Exec),
    /// Try to build a root with a mount in it, and leave.
    Probe {
        dir: PathBuf,
    },
}

/// The container itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub container: ContainerSpec,
    pub hostname: String,
    pub cgroup: Option<CgroupSpec>,
    /// An empty directory to build the new root on.
    pub root: PathBuf,
    /// The process must not outlive it.
    pub shim_pid: u32,
}

/// A further process inside a running container.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Exec {
    pub container: ContainerSpec,
    pub cgroup: Option<CgroupSpec>,
    pub pid: u32,
    /// When that process started, in the kernel's ticks: with the number it names a process for ever.
    pub start_ticks: u64,
    pub shim_pid: u32,
}

/// How a container gets mounts where its YAML says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountMethod {
    /// With the privilege of root.
    Privileged,
    /// Inside a user namespace that anybody may make.
    UserNamespace,
}

impl MountMethod {
    const ALL: [Self; 2] = [Self::Privileged, Self::UserNamespace];

    fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::UserNamespace => "user namespace",
        }
    }

    /// What a probe answered; `None` for a reason why not.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == text)
    }
}

#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("cannot read what to run: {0}")]
    Order(io::Error),
    #[error("{error}: {}", source_text(.error))]
    Cgroup { error: crate::cgroup::CgroupError },
    #[error(
        "this machine permits no mount namespace, which the mounts of this pod need: {privileged}; as a user namespace: {unprivileged}"
    )]
    NoNamespace {
        privileged: io::Error,
        unprivileged: io::Error,
    },
    #[error("{0}")]
    Root(#[from] root::RootError),
    #[error("cannot run as {what} {wanted}: {source}")]
    Identity {
        what: &'static str,
        wanted: u32,
        source: io::Error,
    },
    #[error("the working directory {} cannot be entered: {source}", path.display())]
    Cwd { path: PathBuf, source: io::Error },
    #[error("there is no command")]
    NoCommand,
    #[error("exec: {program:?}: executable file not found in $PATH")]
    NotFound { program: String },
    #[error("exec: {program:?}: {source}")]
    Exec { program: String, source: io::Error },
    #[error("the container's namespaces cannot be entered: {0}")]
    Enter(io::Error),
    #[error("cannot {doing}: {source}")]
    Step {
        doing: &'static str,
        source: io::Error,
    },
}

fn source_text(error: &crate::cgroup::CgroupError) -> String {
    std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default()
}

fn step<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> InitError {
    move |error| InitError::Step {
        doing,
        source: error.into(),
    }
}

/// The entry of `stoke shim-container`. Returns only if the container could not be made.
pub fn container_main() -> ExitCode {
    // A duplicate that an exec closes; stdin itself becomes /dev/null by then.
    let Ok(talk) = io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let mut talk = UnixStream::from(talk);
    let done = read_order(&mut talk).and_then(|order| match order {
        Order::Start(start) => become_container(&start).map(|never| match never {}),
        Order::Exec(exec) => become_exec(&exec).map(|never| match never {}),
        Order::Probe { dir } => probe(&dir).map(MountMethod::as_str),
    });
    let (text, code) = match done {
        Ok(text) => (text.to_owned(), ExitCode::SUCCESS),
        Err(error) => (error.to_string(), ExitCode::FAILURE),
    };
    // A shim that is gone cannot be told.
    let _ = talk.write_all(text.as_bytes());
    code
}

fn read_order(talk: &mut UnixStream) -> Result<Order, InitError> {
    let mut text = Vec::new();
    talk.take(ORDER_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(InitError::Order)?;
    serde_json::from_slice(&text).map_err(|error| InitError::Order(error.into()))
}

/// What a function that ends in an exec gives back.
enum Never {}

fn become_container(start: &Start) -> Result<Never, InitError> {
    let container = &start.container;
    join(start.cgroup.as_ref())?;
    if let Some(adjust) = container.oom_score_adj {
        // Best effort, as documented: lowering it needs a privilege.
        let _ = fs::write("/proc/self/oom_score_adj", adjust.to_string());
    }
    let own_hostname = if container.mounts.is_empty() {
        // A user namespace only for a name would take away more than the name is worth (setuid programs, for one).
        sys::unshare(UnshareFlags::NEWUTS).is_ok()
    } else {
        enter_namespaces()?;
        true
    };
    if own_hostname {
        rustix::system::sethostname(start.hostname.as_bytes()).map_err(step("set the hostname"))?;
    }
    if !container.mounts.is_empty() {
        root::enter(&start.root, &container.mounts)?;
    }
    run(container, start.shim_pid)
}

fn become_exec(exec: &Exec) -> Result<Never, InitError> {
    join(exec.cgroup.as_ref())?;
    enter_container(exec.pid, exec.start_ticks).map_err(InitError::Enter)?;
    run(&exec.container, exec.shim_pid)
}

fn join(cgroup: Option<&CgroupSpec>) -> Result<(), InitError> {
    cgroup
        .map_or(Ok(()), CgroupSpec::join)
        .map_err(|error| InitError::Cgroup { error })
}

/// Mount and host name namespaces: as root, else inside a user namespace where the user keeps the own number.
fn enter_namespaces() -> Result<MountMethod, InitError> {
    let wanted = UnshareFlags::NEWNS | UnshareFlags::NEWUTS;
    let privileged = match sys::unshare(wanted) {
        Ok(()) => return Ok(MountMethod::Privileged),
        Err(error) => error,
    };
    match enter_user_namespace(wanted) {
        Ok(()) => Ok(MountMethod::UserNamespace),
        Err(unprivileged) => Err(InitError::NoNamespace {
            privileged,
            unprivileged,
        }),
    }
}

/// A user namespace, and `with` owned by it. The user and group stay what they are, for the process and for its files.
pub(super) fn enter_user_namespace(with: UnshareFlags) -> io::Result<()> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    sys::unshare(UnshareFlags::NEWUSER | with)?;
    // The kernel wants this before an unprivileged process may map its group; older ones do not have it.
    match fs::write("/proc/self/setgroups", "deny") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

fn enter_container(pid: u32, start_ticks: u64) -> io::Result<()> {
    let gone = || io::Error::new(io::ErrorKind::NotFound, "the container has ended");
    let target = Pid::from_raw(pid as i32).ok_or_else(gone)?;
    let handle = pidfd_open(target, PidfdFlags::empty())?;
    // If the number was reused, this is another process's start; if it is reused from now on, the handle leads nowhere.
    if super::processes::start_ticks(pid) != Some(start_ticks) {
        return Err(gone());
    }
    let mut differing = ThreadNameSpaceType::empty();
    for (name, kind) in [
        ("user", ThreadNameSpaceType::USER),
        ("mnt", ThreadNameSpaceType::MOUNT),
        ("uts", ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME),
    ] {
        // One's own user namespace cannot be entered again.
        if fs::read_link(format!("/proc/{pid}/ns/{name}"))?
            != fs::read_link(format!("/proc/self/ns/{name}"))?
        {
            differing |= kind;
        }
    }
    if !differing.is_empty() {
        move_into_thread_name_spaces(handle.as_fd(), differing)?;
    }
    Ok(())
}

/// The last steps, common to containers and what runs inside them.
fn run(container: &ContainerSpec, shim_pid: u32) -> Result<Never, InitError> {
    rustix::process::setsid().map_err(step("start a session"))?;
    raise_open_files();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    sys::close_on_exec_from(3).map_err(step("close inherited files"))?;
    sys::reset_signals();
    take_identity(container)?;
    if container.no_new_privileges {
        rustix::thread::set_no_new_privs(true).map_err(step("give up new privileges"))?;
    }
    // After the change of user, which would clear it. If the shim dies, nobody would be left to say how the job ended.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(step("follow the shim"))?;
    if rustix::process::getppid() != Pid::from_raw(shim_pid as i32) {
        return Err(step("follow the shim")(io::Error::other("it is gone")));
    }
    let cwd = container.cwd.as_deref().unwrap_or(Path::new("/"));
    std::env::set_current_dir(cwd).map_err(|source| InitError::Cwd {
        path: cwd.to_owned(),
        source,
    })?;
    let (program, arguments) = container.argv.split_first().ok_or(InitError::NoCommand)?;
    let path = find_program(program, container)?;
    let source = Command::new(path)
        .arg0(program)
        .args(arguments)
        .env_clear()
        .envs(container.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .exec();
    Err(InitError::Exec {
        program: program.clone(),
        source,
    })
}

/// Containers are used to more open files than a login shell gets. Best effort.
fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(OPEN_FILES_MAX).min(OPEN_FILES_MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    }
}

fn take_identity(container: &ContainerSpec) -> Result<(), InitError> {
    let differs = |wanted: Option<u32>, own: u32| wanted.filter(|wanted| *wanted != own);
    let uid = differs(container.uid, rustix::process::geteuid().as_raw());
    let gid = differs(container.gid, rustix::process::getegid().as_raw());
    if uid.is_none() && gid.is_none() && container.groups.is_empty() {
        return Ok(());
    }
    if let Some(uid) = container.uid {
        // So that /dev/stdout can be opened by its name.
        let owner = Some(Uid::from_raw(uid));
        let _ = rustix::fs::fchown(io::stdout(), owner, None);
        let _ = rustix::fs::fchown(io::stderr(), owner, None);
    }
    let refused = |what, wanted| {
        move |error: rustix::io::Errno| InitError::Identity {
            what,
            wanted,
            source: error.into(),
        }
    };
    let groups: Vec<Gid> = container
        .groups
        .iter()
        .map(|group| Gid::from_raw(*group))
        .collect();
    match rustix::thread::set_thread_groups(&groups) {
        // Nobody asked for groups by name: keep those we have.
        Err(_) if groups.is_empty() => {}
        other => other.map_err(refused(
            "member of group",
            container.groups.first().copied().unwrap_or(0),
        ))?,
    }
    if let Some(gid) = gid {
        let id = Gid::from_raw(gid);
        rustix::thread::set_thread_res_gid(id, id, id).map_err(refused("group", gid))?;
    }
    if let Some(uid) = uid {
        let id = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(id, id, id).map_err(refused("user", uid))?;
    }
    Ok(())
}

/// As a shell finds it, with the container's own `PATH`.
fn find_program(program: &str, container: &ContainerSpec) -> Result<PathBuf, InitError> {
    if program.contains('/') {
        return Ok(program.into());
    }
    let path = container.env.iter().rfind(|(name, _)| name == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| value.as_str());
    let found = path
        .split(':')
        .map(|dir| {
            Path::new(if dir.is_empty() { "." } else { dir })
                .join(OsStr::from_bytes(program.as_bytes()))
        })
        .find(|candidate| {
            fs::metadata(candidate)
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        });
    match found {
        Some(found) if !program.is_empty() => Ok(found),
        _ => Err(InitError::NotFound {
            program: program.to_owned(),
        }),
    }
}

fn probe(dir: &Path) -> Result<MountMethod, InitError> {
    let method = enter_namespaces()?;
    let root = dir.join(PROBE_ROOT);
    fs::create_dir(&root).map_err(step("make a directory"))?;
    let mount = Mount {
        source: dir.to_owned(),
        target: "/stokehold-probe/mount".into(),
        read_only: true,
    };
    root::enter(&root, &[mount])?;
    Ok(method)
}
