//! A pod for a test: built, started, watched and cleaned up.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stoke_node::cgroup::{self, Cgroups};
use stoke_node::shim::protocol::{
    Backoff, ContainerSpec, ContainerState, ContainerStatus, Exit, Request, Response,
    RestartPolicy, ShimSpec, ShimStatus, VERSION,
};
use stoke_node::shim::{self, Connection, Life};

/// More than anything here takes, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Pod {
    pub dir: PathBuf,
    pub spec: ShimSpec,
    cgroups: Cgroups,
    // Removed with the pod.
    _home: tempfile::TempDir,
}

pub fn exe() -> PathBuf {
    std::env::current_exe().expect("we run")
}

/// `sh -c SCRIPT`.
pub fn sh(name: &str, script: &str) -> ContainerSpec {
    container(name, &["sh", "-c", script])
}

pub fn container(name: &str, argv: &[&str]) -> ContainerSpec {
    ContainerSpec {
        name: name.to_owned(),
        argv: argv.iter().map(|&word| word.to_owned()).collect(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        ..ContainerSpec::default()
    }
}

impl Pod {
    pub fn new(policy: RestartPolicy, containers: Vec<ContainerSpec>) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let uid = uid_of(home.path());
        let cgroups = cgroup::detect(&format!("test-{}", std::process::id()));
        let dir = home.path().join(&uid);
        std::fs::create_dir(&dir).expect("a directory of our own");
        let spec = ShimSpec {
            version: VERSION,
            namespace: "default".to_owned(),
            name: "test".to_owned(),
            hostname: "test-0".to_owned(),
            restart_policy: policy,
            cgroup: cgroups.pod(&uid),
            uid,
            tmpfs: Vec::new(),
            init: Vec::new(),
            containers,
            log_max_bytes: 10 << 20,
            log_max_files: 5,
            backoff: Backoff {
                initial_ms: 50,
                max_ms: 200,
            },
        };
        Self {
            dir,
            spec,
            cgroups,
            _home: home,
        }
    }

    /// One container called `main`, never restarted.
    pub fn of(container: ContainerSpec) -> Self {
        Self::new(RestartPolicy::Never, vec![container])
    }

    pub fn without_cgroup(mut self) -> Self {
        self.spec.cgroup = None;
        self
    }

    pub fn start(self) -> Self {
        shim::spawn(&self.dir, &self.spec, &exe())
            .unwrap_or_else(|error| panic!("{error}\n{}", self.own_log()));
        self
    }

    pub fn own_log(&self) -> String {
        std::fs::read_to_string(self.dir.join("shim.log")).unwrap_or_default()
    }

    /// A new empty directory beside the pod's own files.
    pub fn volume(&self, name: &str) -> PathBuf {
        let path = self.dir.join("volumes").join(name);
        std::fs::create_dir_all(&path).expect("a directory of our own");
        path
    }

    pub fn status(&self) -> ShimStatus {
        shim::read_status(&self.dir)
            .expect("readable")
            .expect("written before the shim is ready")
    }

    /// Follows the status until `wanted`, and gives every one seen on the way.
    pub fn watch_until(&self, wanted: impl Fn(&ShimStatus) -> bool) -> Vec<ShimStatus> {
        let seen = on_a_runtime(async {
            let mut seen = Vec::new();
            if let Ok(connection) = Connection::open(&self.dir).await
                && let Ok((first, mut watch)) = connection.watch().await
            {
                seen.push(first);
                while !seen.last().is_some_and(&wanted) {
                    match watch.next().await {
                        Ok(Some(status)) => seen.push(status),
                        _ => break,
                    }
                }
            }
            if !seen.last().is_some_and(&wanted) {
                seen.push(self.status());
            }
            seen
        });
        let last = seen.last().expect("at least one");
        assert!(
            wanted(last),
            "the shim left before: {last:#?}\n{}",
            self.own_log()
        );
        seen
    }

    pub fn wait_finished(&self) -> ShimStatus {
        let last = self
            .watch_until(|status| status.finished)
            .pop()
            .expect("at least one");
        assert_eq!(self.status(), last, "what was told is what is on disk");
        last
    }

    /// Waits until the container runs, and gives its process id.
    pub fn wait_running(&self, name: &str) -> u32 {
        let seen = self.watch_until(|status| pid_in(status, name).is_some());
        seen.last()
            .and_then(|status| pid_in(status, name))
            .expect("just seen")
    }

    pub fn ask(&self, request: Request) -> Result<Response, shim::ConnectionError> {
        on_a_runtime(async { Connection::open(&self.dir).await?.request(&request).await })
    }

    pub fn stop(&self, grace_seconds: u64) {
        let request = Request::Stop {
            grace_seconds,
            reason: "Test".to_owned(),
        };
        assert_eq!(self.ask(request).expect("answered"), Response::Done);
    }

    /// The whole log of a run, records joined.
    pub fn log(&self, name: &str, restart: u32) -> String {
        let bytes = stoke_node::logs::tail(&self.dir, name, restart, u64::MAX, usize::MAX)
            .expect("readable");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if matches!(shim::life(&self.dir), Ok(Life::Running)) {
            let request = Request::Stop {
                grace_seconds: 0,
                reason: "Over".to_owned(),
            };
            let _ = self.ask(request);
            wait_until("the shim leaves", || {
                !matches!(shim::life(&self.dir), Ok(Life::Running))
            });
        }
        self.cgroups.release();
    }
}

fn uid_of(home: &Path) -> String {
    let name = home
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    format!(
        "{}-{}",
        std::process::id(),
        name.trim_start_matches('.').to_lowercase()
    )
}

pub fn pid_in(status: &ShimStatus, name: &str) -> Option<u32> {
    match &status.container(name)?.state {
        ContainerState::Running { pid, .. } => Some(*pid),
        _ => None,
    }
}

pub fn exit_of(container: &ContainerStatus) -> &Exit {
    match &container.state {
        ContainerState::Terminated(exit) => exit,
        other => panic!("{} has not ended: {other:?}", container.name),
    }
}

pub fn exit_in<'a>(status: &'a ShimStatus, name: &str) -> &'a Exit {
    exit_of(status.container(name).expect("a container of that name"))
}

pub fn on_a_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, future)
            .await
            .expect("in time")
    })
}

/// For what nobody announces.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_alive(pid: u32) -> bool {
    // A zombie that waits for its parent is dead.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('Z'))
    })
}
