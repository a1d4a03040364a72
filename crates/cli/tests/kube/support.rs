//! The testbed that `make kube-up` starts, as tests find it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::release::succeed;

/// Long enough for a loaded machine; only a broken test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub struct Testbed {
    dir: PathBuf,
}

/// None where there is no testbed, and says so.
pub fn testbed() -> Option<Testbed> {
    let dir = std::env::var_os("STOKE_KUBE_DIR").map_or_else(
        || {
            PathBuf::from(format!(
                "/tmp/stokehold-kube-{}",
                rustix::process::getuid().as_raw()
            ))
        },
        PathBuf::from,
    );
    // Written last: a testbed that is still coming up has none.
    if dir.join("env").exists() {
        // Anyone may make a directory of that name under /tmp, with a kubeconfig that leads anywhere.
        let owner = std::fs::metadata(&dir).map(|dir| dir.uid()).ok();
        let own = rustix::process::getuid().as_raw();
        assert_eq!(owner, Some(own), "{} is not yours", dir.display());
        return Some(Testbed { dir });
    }
    assert!(
        std::env::var_os("STOKE_KUBE_REQUIRED").is_none(),
        "no testbed in {}",
        dir.display()
    );
    eprintln!("skipped: no testbed (make kube-up)");
    None
}

/// The testbed, if it has nodes that run pods.
pub fn testbed_with_nodes() -> Option<Testbed> {
    let testbed = testbed()?;
    if !testbed.has_nodes() {
        eprintln!("skipped: no real nodes (make kube-up as root)");
        return None;
    }
    Some(testbed)
}

impl Testbed {
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The machine, as pods reach it.
    pub fn host(&self) -> String {
        self.fact("STOKE_KUBE_HOST")
    }

    pub fn audit(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// One of the facts that up.sh wrote down.
    fn fact(&self, name: &str) -> String {
        let facts = std::fs::read_to_string(self.dir.join("env")).expect("the testbed's env");
        let value = facts.lines().find_map(|line| {
            let (found, value) = line.split_once('=')?;
            (found == name).then(|| value.replace(['\\', '\''], ""))
        });
        value.unwrap_or_default()
    }

    /// The nodes with a kubelet of their own; none where there is but a control plane.
    pub fn nodes(&self) -> Vec<String> {
        let names = self.fact("STOKE_KUBE_NODES");
        names.split_whitespace().map(str::to_owned).collect()
    }

    pub fn has_nodes(&self) -> bool {
        !self.nodes().is_empty()
    }

    /// What `kubectl get` finds, as JSON.
    pub fn get(&self, arguments: &[&str]) -> Value {
        let mut command = self.kubectl(&["get"]);
        command.args(arguments).args(["-o", "json"]);
        let output = command.output().expect("kubectl");
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Creates all of these.
    pub fn create(&self, objects: &[Value]) {
        if objects.is_empty() {
            return;
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        std::fs::write(file.path(), list.to_string()).expect("a file");
        succeed(self.kubectl(&["create", "-f"]).arg(file.path()));
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command =
            Command::new(program("kubectl").expect("kubectl was looked for by up.sh"));
        command
            .args(arguments)
            .env("KUBECONFIG", self.kubeconfig())
            .stdin(Stdio::null());
        command
    }
}

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// A program that is installed, or that tests/kube/build.sh built.
pub fn program(name: &str) -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = var("STOKE_CACHE_DIR").map(PathBuf::from).or_else(|| {
        let home = || Some(PathBuf::from(var("HOME")?).join(".cache"));
        let cache = var("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
        Some(cache.join("stokehold"))
    });
    let built = cache.map(|cache| cache.join("kube-v1.34.4/bin"));
    let path = var("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).collect::<Vec<_>>();
    let mut places = built.into_iter().chain(installed);
    places.find_map(|place| Some(place.join(name)).filter(|file| file.is_file()))
}

/// helm; none, with a word, where no testbed is demanded and it was not built.
pub fn helm() -> Option<PathBuf> {
    let helm = program("helm");
    if helm.is_none() {
        let is_required = std::env::var_os("STOKE_KUBE_REQUIRED").is_some();
        assert!(!is_required, "no helm (tests/kube/build.sh helm)");
        eprintln!("skipped: no helm (tests/kube/build.sh helm)");
    }
    helm
}

/// Asks until there is an answer.
pub fn eventually<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    eventually_or(what, ask, String::new)
}

/// Asks until there is an answer; where none comes, the failure says what is known.
pub fn eventually_or<T>(
    what: &str,
    mut ask: impl FnMut() -> Option<T>,
    known: impl FnOnce() -> String,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "waited in vain for {what}\n{}",
            known()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}
