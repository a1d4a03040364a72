//! A kube-apiserver with an etcd and the few controllers that ours does the work of, all on loopback.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::pki_types::CertificateDer;

use super::PAUSE;
use crate::http::{Endpoint, PATIENCE, whole};
use crate::play::http_request;
use crate::script::Step;

/// The version that the cache is keyed by, as in `tests/kube`.
const VERSION: &str = "v1.34.4";
const TOKEN: &str = "differential";

/// What our housekeeping does is done there by these.
const CONTROLLERS: &str =
    "garbage-collector-controller,namespace-controller,serviceaccount-controller";

pub struct Binaries {
    etcd: PathBuf,
    apiserver: PathBuf,
    controllers: PathBuf,
}

impl Binaries {
    /// From the cache; an etcd of any version may also be in `PATH`.
    pub fn find() -> Result<Self, String> {
        let find = |name: &str, others: Vec<PathBuf>| {
            let mut places = cache().into_iter().chain(others);
            let found =
                places.find_map(|place| Some(place.join(name)).filter(|file| file.is_file()));
            found.ok_or_else(|| format!("no {name} to compare with (tests/kube/build.sh {name})"))
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let installed = std::env::split_paths(&path).collect();
        Ok(Self {
            etcd: find("etcd", installed)?,
            apiserver: find("kube-apiserver", Vec::new())?,
            controllers: find("kube-controller-manager", Vec::new())?,
        })
    }
}

impl Binaries {
    /// By its version: 3.4.31, 3.5.13 and all of 3.6 can.
    pub fn tell_progress(&self) -> bool {
        let output = Command::new(&self.etcd).arg("--version").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let text = text.unwrap_or_default();
        let version = text.split_whitespace().find_map(|word| {
            let mut numbers = word.splitn(3, '.').map(str::parse::<u32>);
            Some((
                numbers.next()?.ok()?,
                numbers.next()?.ok()?,
                numbers.next()?.ok()?,
            ))
        });
        match version {
            Some((3, 4, patch)) => patch >= 31,
            Some((3, 5, patch)) => patch >= 13,
            Some((major, minor, _)) => (major, minor) >= (3, 6),
            None => false,
        }
    }
}

fn cache() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let root = set("STOKE_CACHE_DIR").or_else(|| {
        let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        Some(caches?.join("stokehold"))
    });
    Some(root?.join(format!("kube-{VERSION}")).join("bin"))
}

pub struct Real {
    pub endpoint: Endpoint,
    // Before the directory, so that nobody writes there any more when it is removed.
    children: Vec<Process>,
    directory: tempfile::TempDir,
}

/// Killed when it is dropped and, by the kernel, when this process dies without dropping it.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Real {
    pub async fn start(binaries: &Binaries) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params
            .subject_alt_names
            .push(SanType::IpAddress([127, 0, 0, 1].into()));
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(at("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(at("tls.key"), key.serialize_pem()).unwrap();
        std::fs::write(
            at("tokens"),
            format!("{TOKEN},admin,admin,\"system:masters\"\n"),
        )
        .unwrap();
        let [client, peer, port] = free_ports();
        let (client, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let etcd = spawn(
            directory.path(),
            &binaries.etcd,
            &[
                ("data-dir", at("etcd").display().to_string()),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client.clone()),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer.clone()),
                ("initial-cluster", format!("default={peer}")),
                // Nothing here outlives the test.
                ("unsafe-no-fsync", "true".to_owned()),
            ],
        );
        let file = |name: &str| at(name).display().to_string();
        let apiserver = spawn(
            directory.path(),
            &binaries.apiserver,
            &[
                ("etcd-servers", client),
                ("bind-address", "127.0.0.1".to_owned()),
                ("advertise-address", "127.0.0.1".to_owned()),
                ("secure-port", port.to_string()),
                ("endpoint-reconciler-type", "none".to_owned()),
                ("service-cluster-ip-range", "10.96.0.0/16".to_owned()),
                ("cert-dir", file("certificates")),
                ("tls-cert-file", file("tls.crt")),
                ("tls-private-key-file", file("tls.key")),
                ("token-auth-file", file("tokens")),
                ("authorization-mode", "RBAC".to_owned()),
                ("service-account-issuer", "https://localhost".to_owned()),
                ("service-account-key-file", file("tls.crt")),
                ("service-account-signing-key-file", file("tls.key")),
                ("profiling", "false".to_owned()),
            ],
        );
        let certificate = CertificateDer::from(certificate.der().to_vec());
        let mut real = Self {
            endpoint: Endpoint::new("real", port, TOKEN, certificate),
            children: vec![apiserver, etcd],
            directory,
        };
        real.ready().await;
        real
    }

    async fn ready(&mut self) {
        let begun = Instant::now();
        loop {
            for child in &mut self.children {
                let ended = child.0.try_wait().unwrap();
                assert!(ended.is_none(), "ended with {ended:?}\n{}", self.logs());
            }
            if self.is_ready().await {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "not ready in time\n{}",
                self.logs()
            );
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn is_ready(&self) -> bool {
        let Ok(mut connection) = self.endpoint.connect().await else {
            return false;
        };
        let step = Step::new("ready", "GET /readyz");
        let request = http_request(&self.endpoint, &step, step.path(), None, String::new());
        match connection.send(request).await {
            Ok(response) => whole(response).await.is_ok_and(|answer| answer.code == 200),
            Err(_) => false,
        }
    }

    pub fn start_controllers(&mut self, binaries: &Binaries) {
        let at = |name: &str| self.directory.path().join(name);
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.endpoint.port),
                "certificate-authority": at("tls.crt"),
            }}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
            "current-context": "real",
        });
        std::fs::write(at("kubeconfig"), kubeconfig.to_string()).unwrap();
        let child = spawn(
            self.directory.path(),
            &binaries.controllers,
            &[
                ("kubeconfig", at("kubeconfig").display().to_string()),
                ("controllers", CONTROLLERS.to_owned()),
                ("leader-elect", "false".to_owned()),
                ("secure-port", "0".to_owned()),
                ("kube-api-qps", "1000".to_owned()),
                ("kube-api-burst", "1000".to_owned()),
            ],
        );
        self.children.insert(0, child);
    }

    /// The last lines of what the processes said.
    fn logs(&self) -> String {
        let mut shown = String::new();
        for entry in self
            .directory
            .path()
            .read_dir()
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let tail = &lines[lines.len().saturating_sub(15)..];
                let name = path.display().to_string();
                shown.extend([name.as_str(), "\n", &tail.join("\n"), "\n"]);
            }
        }
        shown
    }
}

/// Ports that nobody listens on now.
fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    let listeners = [(); COUNT].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn spawn(directory: &Path, binary: &Path, flags: &[(&str, String)]) -> Process {
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    let log = File::create(directory.join(format!("{name}.log"))).unwrap();
    // From util-linux: the kernel ends the child should this test be killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(binary);
    for (flag, value) in flags {
        command.arg(format!("--{flag}={value}"));
    }
    command
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    Process(
        command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}")),
    )
}
