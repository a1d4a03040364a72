//! A real S3 server, and a wire to it that can be slow and that counts.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use stoke_data::{Credentials, Remote};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub const SECRET: &str = "a-key-that-must-not-be-told";
pub const ACCESS: &str = "AKIDFORTESTS";
pub const BUCKET: &str = "bucket";

/// The server, as tests/s3/build.sh has it; none where it cannot be had, and the test is skipped.
fn program() -> Option<PathBuf> {
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/s3/build.sh");
    let built = Command::new(script)
        .stderr(Stdio::inherit())
        .output()
        .expect("tests/s3/build.sh");
    match built.status.code() {
        Some(0) => Some(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim())),
        Some(3) => {
            assert!(
                std::env::var_os("STOKE_S3_REQUIRED").is_none(),
                "no S3 server, and STOKE_S3_REQUIRED is set"
            );
            eprintln!("skipped: no S3 server to test with");
            None
        }
        _ => panic!("tests/s3/build.sh failed"),
    }
}

pub struct Server {
    program: PathBuf,
    pub dir: PathBuf,
    port: u16,
    child: Option<Child>,
    _tmp: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    pub async fn start() -> Option<Self> {
        let tmp = tempfile::tempdir().expect("a directory");
        let dir = tmp.path().to_owned();
        Self::start_in(tmp, dir).await
    }

    /// With its objects in `dir`.
    pub async fn start_in(tmp: tempfile::TempDir, dir: PathBuf) -> Option<Self> {
        let program = program()?;
        std::fs::create_dir_all(dir.join("objects").join(BUCKET)).expect("a bucket");
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .expect("a port")
            .port();
        let mut server = Self {
            program,
            dir,
            port,
            child: None,
            _tmp: tmp,
        };
        server.revive().await;
        Some(server)
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it where it was.
    pub async fn revive(&mut self) {
        let child = Command::new(&self.program)
            .args([
                "--port",
                &format!("127.0.0.1:{}", self.port),
                "--quiet",
                "--keep-alive",
                "posix",
            ])
            .arg(self.dir.join("objects"))
            .env("ROOT_ACCESS_KEY", ACCESS)
            .env("ROOT_SECRET_KEY", SECRET)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("versitygw"));
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert!(Instant::now() < deadline, "versitygw does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// A place in the bucket, reached through `port`.
    pub fn at(port: u16, prefix: &str) -> Remote {
        let endpoint = format!("http://127.0.0.1:{port}");
        Remote::open(
            &format!("s3://{BUCKET}/{prefix}"),
            Some(&endpoint),
            &keys(SECRET),
        )
        .expect("a remote")
    }

    pub fn remote(&self, prefix: &str) -> Remote {
        Self::at(self.port, prefix)
    }

    pub fn store(&self) -> Arc<dyn ObjectStore> {
        let builder = AmazonS3Builder::new()
            .with_endpoint(format!("http://127.0.0.1:{}", self.port))
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(BUCKET)
            .with_access_key_id(ACCESS)
            .with_secret_access_key(SECRET);
        Arc::new(builder.build().expect("a store"))
    }

    pub async fn put(&self, key: &str, bytes: Vec<u8>) {
        self.store()
            .put(&Path::parse(key).expect("a key"), bytes.into())
            .await
            .expect("a put");
    }

    /// Many objects, many at a time.
    pub async fn put_all(&self, objects: impl IntoIterator<Item = (String, Vec<u8>)>) {
        let store = self.store();
        let puts = futures::stream::iter(objects).map(|(key, bytes)| {
            let store = store.clone();
            async move {
                store
                    .put(&Path::parse(key).expect("a key"), bytes.into())
                    .await
                    .expect("a put")
            }
        });
        puts.buffer_unordered(32).for_each(|_| async {}).await;
    }
}

pub fn keys(secret: &str) -> Credentials {
    Credentials::new([
        ("AWS_ACCESS_KEY_ID".to_owned(), ACCESS.to_owned()),
        ("AWS_SECRET_ACCESS_KEY".to_owned(), secret.to_owned()),
    ])
}

/// Bytes that look like nothing else, the same for the same seed.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

/// A wire between a client and a server.
#[derive(Clone)]
pub struct Wire {
    pub port: u16,
    /// What came from the server.
    pub down: Arc<AtomicU64>,
    /// What went to it.
    pub up: Arc<AtomicU64>,
    /// Bytes a second for all connections together; 0 is no limit.
    limit: Arc<AtomicU64>,
}

impl Wire {
    pub async fn to(server: &Server, bytes_per_second: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let wire = Self {
            port: listener.local_addr().expect("an address").port(),
            down: Arc::default(),
            up: Arc::default(),
            limit: Arc::new(AtomicU64::new(bytes_per_second)),
        };
        let (this, target) = (wire.clone(), server.port());
        let pace = Arc::new(tokio::sync::Mutex::new(()));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (this, pace) = (this.clone(), pace.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else {
                        return;
                    };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    let up = carry(
                        from_client,
                        to_server,
                        this.up.clone(),
                        this.limit.clone(),
                        pace.clone(),
                    );
                    let down = carry(
                        from_server,
                        to_client,
                        this.down.clone(),
                        this.limit.clone(),
                        pace,
                    );
                    // Whoever hangs up first ends both.
                    tokio::select! { () = up => {}, () = down => {} }
                });
            }
        });
        wire
    }

    pub fn unlimited(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    pub async fn until(&self, counter: &AtomicU64, bytes: u64) {
        while counter.load(Ordering::Relaxed) < bytes {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    counter: Arc<AtomicU64>,
    limit: Arc<AtomicU64>,
    pace: Arc<tokio::sync::Mutex<()>>,
) {
    let mut buffer = vec![0; 32 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let limit = limit.load(Ordering::Relaxed);
        if limit > 0 {
            let _turn = pace.lock().await;
            tokio::time::sleep(Duration::from_secs_f64(read as f64 / limit as f64)).await;
        }
        counter.fetch_add(read as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
