//! One pod's lines, from the API's `log` subresource.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::resume::Resume;
use super::{AWAY_MAX, Happening, RETRY};
use crate::failure;
use crate::jobs::{self, Life};
use crate::session::Session;

/// A line longer than this is given in pieces.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Between two questions whether a pod that prints nothing is still there.
const QUIET: Duration = Duration::from_millis(300);

/// A line a worker printed. The bytes are the worker's own and may be no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub job: String,
    pub rank: Option<u32>,
    pub at: Option<Timestamp>,
    pub text: Vec<u8>,
}

/// What of the past is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opening {
    pub tail: Option<u32>,
    pub since: Option<Timestamp>,
}

/// Where a pod's lines come from, and how far they were read.
#[derive(Debug)]
pub struct Lines {
    namespace: String,
    pod: String,
    uid: Option<String>,
    container: Option<String>,
    job: String,
    rank: Option<u32>,
    opening: Opening,
    resume: Resume,
    /// The line whose pieces are being read, where it was too long to be read at once.
    torn: Option<Torn>,
}

/// A line of which only the beginning, which has the timestamp, was read.
#[derive(Debug, Clone, Copy)]
struct Torn {
    at: Option<Timestamp>,
    is_new: bool,
}

/// What was read of a stream at once.
struct Piece {
    bytes: Vec<u8>,
    /// The line ends with it.
    is_last: bool,
}

enum Ended {
    /// Nothing more will come.
    Over,
    /// The engine went away while lines were read.
    Broken,
    /// The engine is away.
    Away,
    /// Nobody listens.
    Unheard,
}

impl Lines {
    pub fn of(pod: &Pod, opening: Opening) -> Self {
        let job = pod.labels().get(stoke_api::names::JOB_LABEL);
        Self {
            namespace: pod.namespace().unwrap_or_default(),
            pod: pod.name_any(),
            uid: pod.metadata.uid.clone(),
            container: jobs::worker_container(pod).map(str::to_owned),
            job: job.cloned().unwrap_or_else(|| pod.name_any()),
            rank: jobs::rank_of(pod),
            opening,
            resume: Resume::default(),
            torn: None,
        }
    }

    pub fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// Gives every line until the worker is over, across restarts of the engine.
    pub async fn follow(
        mut self,
        session: Session,
        sender: mpsc::Sender<Happening>,
        told: Arc<AtomicU64>,
    ) {
        let mut heard = Instant::now();
        loop {
            let ended = match session.client().await {
                Ok(client) => self.read_to_end(&client, &sender, &told).await,
                Err(_) => Ended::Away,
            };
            match ended {
                Ended::Over | Ended::Unheard => return,
                Ended::Broken => heard = Instant::now(),
                Ended::Away if heard.elapsed() > AWAY_MAX => return,
                Ended::Away => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn read_to_end(
        &mut self,
        client: &Client,
        sender: &mpsc::Sender<Happening>,
        told: &AtomicU64,
    ) -> Ended {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        loop {
            // Asked before the lines are: if it was over then, what is read now is all there is.
            let was_over = match pods.get_opt(&self.pod).await {
                Ok(Some(pod)) if pod.metadata.uid == self.uid => jobs::life_of(&pod) == Life::Over,
                Ok(_) => return Ended::Over,
                Err(_) => return Ended::Away,
            };
            let mut stream = match self.open(&pods, !was_over).await {
                Ok(stream) => Box::pin(stream),
                Err(error) if failure::is_away(&error) => return Ended::Away,
                Err(error) if failure::is_forbidden(&error) => {
                    let unreadable = Happening::Unreadable {
                        pod: self.pod.clone(),
                        error: Box::new(error),
                    };
                    // Whether or not anyone listens, nothing more will come.
                    let _ = sender.send(unreadable).await;
                    return Ended::Over;
                }
                // Cleared away, or over without having printed anything.
                Err(_) if was_over => return Ended::Over,
                Err(_) => {
                    tokio::time::sleep(QUIET).await;
                    continue;
                }
            };
            loop {
                match read_line(&mut stream).await {
                    Ok(Some(piece)) => {
                        told.fetch_add(1, Ordering::Relaxed);
                        if let Some(line) = self.line(piece)
                            && sender.send(Happening::Line(line)).await.is_err()
                        {
                            return Ended::Unheard;
                        }
                    }
                    Ok(None) if was_over => return Ended::Over,
                    Ok(None) => break,
                    Err(_) => return Ended::Broken,
                }
            }
            // The stream ended though the worker had not: it is over now, or the engine said goodbye. Look again.
            tokio::time::sleep(QUIET / 3).await;
        }
    }

    async fn open(
        &mut self,
        pods: &Api<Pod>,
        follow: bool,
    ) -> Result<impl AsyncBufRead + use<>, kube::Error> {
        let resumed = self.resume.open();
        self.torn = None;
        let parameters = LogParams {
            container: self.container.clone(),
            follow,
            timestamps: true,
            since_time: resumed.or(self.opening.since),
            tail_lines: match resumed {
                Some(_) => None,
                None => self.opening.tail.map(i64::from),
            },
            ..LogParams::default()
        };
        pods.log_stream(&self.pod, &parameters).await
    }

    /// The line, or the piece of one, if it is a new one.
    fn line(&mut self, piece: Piece) -> Option<Line> {
        let (begun, text) = if let Some(begun) = self.torn.take() {
            (begun, piece.bytes)
        } else {
            let (at, text) = split_timestamp(piece.bytes);
            let is_new = at.is_none_or(|at| self.resume.is_new(at));
            (Torn { at, is_new }, text)
        };
        self.torn = (!piece.is_last).then_some(begun);
        begun.is_new.then(|| Line {
            job: self.job.clone(),
            rank: self.rank,
            at: begun.at,
            text,
        })
    }

    /// The next line of a stream that [`open`] gave.
    pub async fn next(
        &mut self,
        stream: &mut (impl AsyncBufRead + Unpin),
    ) -> std::io::Result<Option<Line>> {
        loop {
            let Some(piece) = read_line(stream).await? else {
                return Ok(None);
            };
            if let Some(line) = self.line(piece) {
                return Ok(Some(line));
            }
        }
    }
}

/// All that a pod has printed so far, without waiting for more.
pub async fn open(
    client: &Client,
    pod: &Pod,
    opening: Opening,
) -> Result<(Lines, impl AsyncBufRead + use<>), kube::Error> {
    let mut lines = Lines::of(pod, opening);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &lines.namespace);
    let stream = lines.open(&pods, false).await?;
    Ok((lines, stream))
}

/// `2026-11-15T20:39:00.000000001Z text`
fn split_timestamp(mut bytes: Vec<u8>) -> (Option<Timestamp>, Vec<u8>) {
    let Some(space) = bytes.iter().take(64).position(|b| *b == b' ') else {
        // A line without text is its timestamp alone.
        let at = std::str::from_utf8(&bytes)
            .ok()
            .and_then(|text| text.parse().ok());
        return match at {
            Some(at) => (Some(at), Vec::new()),
            None => (None, bytes),
        };
    };
    let at = std::str::from_utf8(&bytes[..space])
        .ok()
        .and_then(|text| text.parse().ok());
    match at {
        Some(at) => (Some(at), bytes.split_off(space + 1)),
        None => (None, bytes),
    }
}

/// A line without its end, or a piece of one that is too long; `None` at the end of the stream.
async fn read_line(stream: &mut (impl AsyncBufRead + Unpin)) -> std::io::Result<Option<Piece>> {
    let mut bytes = Vec::new();
    loop {
        let chunk = stream.fill_buf().await?;
        if chunk.is_empty() {
            let is_last = true;
            return Ok((!bytes.is_empty()).then_some(Piece { bytes, is_last }));
        }
        let room = LINE_BYTES_MAX - bytes.len();
        let end = chunk.iter().take(room).position(|b| *b == b'\n');
        let taken = end.unwrap_or(chunk.len().min(room));
        bytes.extend_from_slice(&chunk[..taken]);
        let used = taken + usize::from(end.is_some());
        stream.consume_unpin(used);
        let is_last = end.is_some();
        if is_last || bytes.len() == LINE_BYTES_MAX {
            return Ok(Some(Piece { bytes, is_last }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timestamp_is_taken_off_and_only_that() {
        let at: Timestamp = "2026-11-15T20:39:00.5Z".parse().unwrap();
        for (raw, stamped, text) in [
            ("2026-11-15T20:39:00.5Z hello world", true, "hello world"),
            ("2026-11-15T20:39:00.5Z  two spaces", true, " two spaces"),
            ("2026-11-15T20:39:00.5Z ", true, ""),
            ("2026-11-15T20:39:00.5Z", true, ""),
            ("hello world", false, "hello world"),
            ("", false, ""),
        ] {
            let (found, rest) = split_timestamp(raw.as_bytes().to_vec());
            assert_eq!(found, stamped.then_some(at), "{raw}");
            assert_eq!(rest, text.as_bytes(), "{raw}");
        }
    }

    /// Only its beginning has a timestamp; when the log is opened anew, its other pieces must be known again all the same.
    #[tokio::test]
    async fn a_line_in_pieces_is_given_once() {
        let mut log = b"2026-11-15T20:39:00.5Z ".to_vec();
        log.extend(std::iter::repeat_n(b'x', 3 * LINE_BYTES_MAX));
        log.extend_from_slice(b"\n2026-11-15T20:39:00.6Z end\n");
        let pod: Pod =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "a"}})).unwrap();
        let mut lines = Lines::of(&pod, Opening::default());
        let mut given = 0;
        for _ in 0..3 {
            lines.resume.open();
            let mut stream = futures::io::Cursor::new(log.clone());
            while let Some(line) = lines.next(&mut stream).await.unwrap() {
                given += line.text.len();
            }
        }
        assert_eq!(given, 3 * LINE_BYTES_MAX + "end".len());
    }

    #[tokio::test]
    async fn lines_are_read_whole_and_long_ones_in_pieces() {
        let long = vec![b'x'; LINE_BYTES_MAX + 3];
        let mut bytes = b"one\n\ntwo\n".to_vec();
        bytes.extend_from_slice(&long);
        bytes.extend_from_slice(b"\nlast");
        let mut stream = futures::io::Cursor::new(bytes);
        let mut lengths = Vec::new();
        while let Some(piece) = read_line(&mut stream).await.unwrap() {
            lengths.push((piece.bytes.len(), piece.is_last));
        }
        let expected =
            [3, 0, 3, LINE_BYTES_MAX, 3, 4].map(|length| (length, length != LINE_BYTES_MAX));
        assert_eq!(lengths, expected);
    }
}
