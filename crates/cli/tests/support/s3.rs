//! A real S3 server to copy checkpoints to.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const BUCKET: &str = "bucket";
pub const ACCESS: &str = "AKIDFORUPLOADS";

pub struct Server {
    program: PathBuf,
    objects: PathBuf,
    secret: String,
    host: String,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// With its objects in `objects`; none where it cannot be had, and the test is skipped.
    pub fn start(objects: &Path, secret: &str) -> Option<Self> {
        Self::start_on("127.0.0.1", objects, secret)
    }

    /// On another address of this machine.
    pub fn start_on(host: &str, objects: &Path, secret: &str) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/s3/build.sh");
        let built = Command::new(script)
            .stderr(Stdio::inherit())
            .output()
            .expect("tests/s3/build.sh");
        if built.status.code() == Some(3) {
            assert!(
                std::env::var_os("STOKE_S3_REQUIRED").is_none(),
                "no S3 server, and STOKE_S3_REQUIRED is set"
            );
            eprintln!("skipped: no S3 server to test with");
            return None;
        }
        assert!(built.status.success(), "tests/s3/build.sh failed");
        std::fs::create_dir_all(objects.join(BUCKET)).expect("a bucket");
        let port = TcpListener::bind((host, 0)).and_then(|socket| socket.local_addr());
        let mut server = Self {
            program: PathBuf::from(String::from_utf8_lossy(&built.stdout).trim()),
            objects: objects.to_owned(),
            secret: secret.to_owned(),
            host: host.to_owned(),
            port: port.expect("a port").port(),
            child: None,
        };
        server.revive();
        Some(server)
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it where it was.
    pub fn revive(&mut self) {
        let child = Command::new(&self.program)
            .args(["--port", &format!("{}:{}", self.host, self.port), "--quiet"])
            .arg("posix")
            .arg(&self.objects)
            .env("ROOT_ACCESS_KEY", ACCESS)
            .env("ROOT_SECRET_KEY", &self.secret)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("versitygw"));
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect((self.host.as_str(), self.port)).is_err() {
            assert!(Instant::now() < deadline, "versitygw does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}:{}", self.host, self.port)
    }

    /// A place in the bucket, as the server keeps it.
    pub fn path(&self, below: &str) -> PathBuf {
        self.objects.join(BUCKET).join(below)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
