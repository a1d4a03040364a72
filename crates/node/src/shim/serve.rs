//! The shim's end of `shim.sock`: a thread per client, and the latest status for those who watch.
//!
//! Invariant: the supervisor never waits for a client. It puts its status on the board and answers into a channel.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SOCKET_FILE;
use super::protocol::{Request, Response, ShimStatus};

const CLIENTS_MAX: usize = 64;
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// A client that takes nothing for this long is let go.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// How often a watching thread sees whether its client is still there.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A request, and where its answer goes.
pub(super) struct Asked {
    pub request: Request,
    pub answer: SyncSender<Response>,
}

/// The latest status, for all who watch.
#[derive(Default)]
pub(super) struct Board {
    posted: Mutex<Posted>,
    changed: Condvar,
    clients: AtomicUsize,
    watching: AtomicUsize,
}

#[derive(Default)]
struct Posted {
    /// Counts the posts, so that a watcher knows what it has seen.
    number: u64,
    line: Arc<Vec<u8>>,
    closed: bool,
}

impl Board {
    pub(super) fn post(&self, status: &ShimStatus) {
        let line = to_line(&Response::Status {
            status: status.clone(),
        });
        let mut posted = self.posted();
        posted.number += 1;
        posted.line = Arc::new(line);
        self.changed.notify_all();
    }

    /// No more posts: watchers send what they have not sent and leave. Waits for them, but not for long.
    pub(super) fn close(&self, within: Duration) {
        self.posted().closed = true;
        self.changed.notify_all();
        let deadline = Instant::now() + within;
        while self.watching.load(Ordering::Acquire) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next post after `seen`; `None` in place of its line if time is up first. Gives also whether it was the last.
    fn next(&self, seen: u64) -> (u64, Option<Arc<Vec<u8>>>, bool) {
        let waiting = |posted: &mut Posted| posted.number == seen && !posted.closed;
        let (posted, _) = self
            .changed
            .wait_timeout_while(self.posted(), LOOK_EVERY, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        let line = (posted.number != seen).then(|| Arc::clone(&posted.line));
        (posted.number, line, posted.closed)
    }
}

fn to_line(response: &Response) -> Vec<u8> {
    let mut line = serde_json::to_vec(response).unwrap_or_else(|error| {
        // Nothing in an answer can fail to be written as JSON; if it did, the client should know.
        format!("{{\"is\":\"error\",\"message\":\"{error}\"}}").into_bytes()
    });
    line.push(b'\n');
    line
}

/// Listens in the pod's directory and hands every request to `asked`.
pub(super) fn listen<E: From<Asked> + Send + 'static>(
    dir: &Path,
    board: &Arc<Board>,
    events: &Sender<E>,
) -> io::Result<()> {
    match std::fs::remove_file(dir.join(SOCKET_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = {
        // As in the client: no limit on the length of the directory's path.
        let dir = std::fs::File::open(dir)?;
        UnixListener::bind(format!("/proc/self/fd/{}/{SOCKET_FILE}", dir.as_raw_fd()))?
    };
    let (board, events) = (Arc::clone(board), events.clone());
    thread::Builder::new()
        .name("listen".to_owned())
        .spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else {
                    // Out of descriptors, most likely; they come back as clients leave.
                    thread::sleep(Duration::from_millis(100));
                    continue;
                };
                if board.clients.fetch_add(1, Ordering::AcqRel) >= CLIENTS_MAX {
                    board.clients.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                let (board_of_client, events) = (Arc::clone(&board), events.clone());
                let served = thread::Builder::new()
                    .name("client".to_owned())
                    .spawn(move || {
                        // An error here is a client that went away.
                        let _ = serve(&client, &board_of_client, &events);
                        board_of_client.clients.fetch_sub(1, Ordering::AcqRel);
                    });
                if served.is_err() {
                    board.clients.fetch_sub(1, Ordering::AcqRel);
                }
            }
        })?;
    Ok(())
}

fn serve<E: From<Asked>>(client: &UnixStream, board: &Board, events: &Sender<E>) -> io::Result<()> {
    client.set_write_timeout(Some(WRITE_WITHIN))?;
    let mut reader = BufReader::new(client);
    let mut writer = client;
    loop {
        let mut line = Vec::new();
        (&mut reader)
            .take(REQUEST_BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
        let response = match serde_json::from_slice(&line) {
            Ok(Request::Watch) => {
                board.watching.fetch_add(1, Ordering::AcqRel);
                let outcome = watch(client, board);
                board.watching.fetch_sub(1, Ordering::AcqRel);
                return outcome;
            }
            Ok(request) => ask(request, events),
            Err(error) => Response::Error {
                message: format!("not a request: {error}"),
            },
        };
        writer.write_all(&to_line(&response))?;
    }
}

fn ask<E: From<Asked>>(request: Request, events: &Sender<E>) -> Response {
    let (answer, answered) = mpsc::sync_channel(1);
    let sent = events.send(Asked { request, answer }.into());
    sent.ok()
        .and_then(|()| answered.recv().ok())
        .unwrap_or_else(|| Response::Error {
            message: "the pod has ended".to_owned(),
        })
}

fn watch(mut client: &UnixStream, board: &Board) -> io::Result<()> {
    let mut seen = 0;
    loop {
        let (number, line, last) = board.next(seen);
        seen = number;
        match line {
            Some(line) => client.write_all(&line)?,
            None if is_gone(client) => return Ok(()),
            None => {}
        }
        if last {
            return Ok(());
        }
    }
}

fn is_gone(client: &UnixStream) -> bool {
    let mut look = [PollFd::new(client, PollFlags::RDHUP)];
    poll(&mut look, Some(&Timespec::default())) != Ok(0)
}
