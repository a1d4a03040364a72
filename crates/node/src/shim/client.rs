//! The engine's end of `shim.sock`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::SOCKET_FILE;
use super::protocol::{Request, Response, ShimStatus};

/// Longest answer a client takes: far above any status.
const LINE_BYTES_MAX: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error("cannot connect to the shim at {}", path.display())]
    Connect { path: PathBuf, source: io::Error },
    /// The shim has left, or died. Its status file is the last word.
    #[error("the shim ended the connection")]
    Closed,
    #[error("the connection to the shim broke")]
    Broken(#[source] io::Error),
    #[error("the shim answered with a line that is no answer")]
    Decode(#[source] serde_json::Error),
    #[error("the shim answered something else than was asked")]
    Unexpected,
    /// The shim's own words.
    #[error("{0}")]
    Refused(String),
}

/// A connection to one shim: one request at a time, answered in order.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Connection {
    /// Connects to the shim of the pod in `dir`.
    pub async fn open(dir: &Path) -> Result<Self, ConnectionError> {
        let connect = async {
            // A socket's address holds 107 bytes and a data directory's path may be longer; this way round it never matters.
            let dir = File::open(dir)?;
            UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET_FILE}", dir.as_raw_fd())).await
        };
        let stream = connect.await.map_err(|source| ConnectionError::Connect {
            path: dir.join(SOCKET_FILE),
            source,
        })?;
        let (reader, writer) = stream.into_split();
        Ok(Self {
            reader: BufReader::new(reader),
            writer,
        })
    }

    /// Sends a request and waits for its answer. A refusal is an error. For `Watch` use [`Connection::watch`].
    pub async fn request(&mut self, request: &Request) -> Result<Response, ConnectionError> {
        let mut line = serde_json::to_vec(request).map_err(ConnectionError::Decode)?;
        line.push(b'\n');
        self.writer
            .write_all(&line)
            .await
            .map_err(ConnectionError::Broken)?;
        match self.answer().await? {
            Response::Error { message } => Err(ConnectionError::Refused(message)),
            response => Ok(response),
        }
    }

    /// Follows the pod's status: the current one first, then every change.
    pub async fn watch(mut self) -> Result<(ShimStatus, Watch), ConnectionError> {
        match self.request(&Request::Watch).await? {
            Response::Status { status } => Ok((status, Watch { connection: self })),
            _ => Err(ConnectionError::Unexpected),
        }
    }

    async fn answer(&mut self) -> Result<Response, ConnectionError> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX);
        bounded
            .read_until(b'\n', &mut line)
            .await
            .map_err(ConnectionError::Broken)?;
        if line.last() != Some(&b'\n') {
            return Err(ConnectionError::Closed);
        }
        serde_json::from_slice(&line).map_err(ConnectionError::Decode)
    }
}

/// The changes of a pod's status.
#[derive(Debug)]
pub struct Watch {
    connection: Connection,
}

impl Watch {
    /// The next status; `None` once the shim has left, after which the status file is the last word. Not cancel safe: a
    /// dropped call may have read half a line. Keep the future, or drop the watch with it.
    pub async fn next(&mut self) -> Result<Option<ShimStatus>, ConnectionError> {
        match self.connection.answer().await {
            Ok(Response::Status { status }) => Ok(Some(status)),
            Ok(_) => Err(ConnectionError::Unexpected),
            Err(ConnectionError::Closed) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
