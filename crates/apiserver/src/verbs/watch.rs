//! Streams of changes.
//!
//! A watch holds a place in the store's log and no queue: when the client is slow, it simply reads later. In the
//! common case (whole objects, no selector) the bytes that are sent are those that the writer encoded.

mod event;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::stream;
use http::StatusCode;
use stoke_store::{Change, Error as StoreError, Revision, Scan, Store, Watcher};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::event::Encoder;
use super::select::Selection;
use crate::reply::json_response;
use crate::request::{ListOptions, RevisionOption, Shape, WatchOptions};
use crate::resource::Resource;
use crate::server::Core;
use crate::status::Status;

/// A watch without a timeout ends after about this long, so that clients spread over time reconnect at different
/// moments.
const TIMEOUT_SECONDS: u64 = 30 * 60;
const TIMEOUT_SECONDS_MAX: u64 = 24 * 3600;
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Objects of the initial state that are read at a time.
const PAGE: usize = 500;

pub(crate) async fn watch(
    core: &Core,
    resource: &Resource,
    namespace: Option<&str>,
    options: ListOptions,
    watch: WatchOptions,
    shape: Shape,
    permit: OwnedSemaphorePermit,
) -> Result<Response, Status> {
    let selection = Selection::new(resource, namespace, &options)?;
    let latest = core
        .store
        .read(|read| read.revision().map_err(Status::from))
        .await?;
    let wants_state = watch
        .send_initial_events
        .unwrap_or(!matches!(options.revision, RevisionOption::Number(_)));
    let mut ended_by = None;
    let start = match options.revision {
        RevisionOption::Number(wanted) if wanted > latest.0 => {
            // Such a number comes from another life of the store; a client that is told so lists again.
            ended_by = Some(Status::expired(format!(
                "resource version {wanted} is unknown here: the newest is {latest}"
            )));
            latest
        }
        RevisionOption::Number(wanted) if !wants_state => Revision(wanted),
        _ => latest,
    };
    let seconds = watch
        .timeout_seconds
        .filter(|seconds| *seconds > 0)
        .unwrap_or(TIMEOUT_SECONDS)
        .min(TIMEOUT_SECONDS_MAX);
    let bookmarks = watch.bookmarks.then(|| {
        let mut ticks = tokio::time::interval_at(Instant::now() + BOOKMARK_EVERY, BOOKMARK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    });
    let encoder = Encoder::new(resource.clone(), selection, shape);
    let feed = Feed {
        state: wants_state.then(|| State {
            after: None,
            end_bookmark: watch.bookmarks && watch.send_initial_events == Some(true),
        }),
        watcher: core.store.watch(Some(&resource.key()), start),
        store: core.store.clone(),
        start,
        encoder,
        bookmarks,
        deadline: Instant::now() + Duration::from_secs(seconds),
        shutdown: core.shutdown.clone(),
        pending: VecDeque::new(),
        ended_by,
        ended: false,
        _permit: permit,
    };
    let frames = stream::unfold(feed, |mut feed| async {
        let frame = feed.next().await?;
        Some((Ok::<_, std::convert::Infallible>(frame), feed))
    });
    Ok(json_response(StatusCode::OK, Body::from_stream(frames)))
}

/// The present state, being sent as `ADDED` events.
struct State {
    after: Option<(String, String)>,
    end_bookmark: bool,
}

struct Feed {
    state: Option<State>,
    start: Revision,
    store: Store,
    watcher: Watcher,
    encoder: Encoder,
    bookmarks: Option<Interval>,
    deadline: Instant,
    shutdown: CancellationToken,
    pending: VecDeque<Bytes>,
    ended_by: Option<Status>,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// What woke a watch up.
enum Wake {
    Changes(Result<Vec<std::sync::Arc<Change>>, StoreError>),
    Bookmark,
    End,
}

impl Feed {
    /// The next frame to send: one event or several, each a line. `None` ends the watch.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.pending.pop_front() {
                return Some(frame);
            }
            if self.ended {
                return None;
            }
            if let Some(status) = self.ended_by.take() {
                self.ended = true;
                return Some(event::error(&status));
            }
            if let Some(state) = self.state.take() {
                self.send_state(state).await;
                continue;
            }
            match self.wake().await {
                Wake::Changes(Ok(changes)) => self.send(&changes),
                Wake::Changes(Err(error)) => self.ended_by = Some(error.into()),
                Wake::Bookmark => {
                    let bookmark = self.encoder.bookmark(self.watcher.seen(), false);
                    self.pending.push_back(bookmark);
                }
                Wake::End => {
                    if self.bookmarks.is_some() {
                        let bookmark = self.encoder.bookmark(self.watcher.seen(), false);
                        self.pending.push_back(bookmark);
                    }
                    self.ended = true;
                }
            }
        }
    }

    async fn wake(&mut self) -> Wake {
        let bookmark = async {
            match &mut self.bookmarks {
                Some(ticks) => ticks.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Wake::End,
            () = tokio::time::sleep_until(self.deadline) => Wake::End,
            changes = self.watcher.next() => Wake::Changes(changes),
            _ = bookmark => Wake::Bookmark,
        }
    }

    fn send(&mut self, changes: &[std::sync::Arc<Change>]) {
        let mut frames = Vec::with_capacity(changes.len());
        for change in changes {
            match self.encoder.change(change) {
                Ok(frame) => frames.extend(frame),
                Err(status) => {
                    self.ended_by = Some(status);
                    break;
                }
            }
        }
        self.pending.extend(join(frames));
    }

    async fn send_state(&mut self, state: State) {
        match self.read_state(&state).await {
            Ok((frames, Some(last))) => {
                self.pending.extend(join(frames));
                self.state = Some(State {
                    after: Some(last),
                    ..state
                });
            }
            Ok((frames, None)) => {
                self.pending.extend(join(frames));
                if state.end_bookmark {
                    let bookmark = self.encoder.bookmark(self.start, true);
                    self.pending.push_back(bookmark);
                }
            }
            Err(status) => self.ended_by = Some(status),
        }
    }

    /// A page of the state at the revision the watch starts from, and where it ended if there is more.
    async fn read_state(
        &mut self,
        state: &State,
    ) -> Result<(Vec<Bytes>, Option<(String, String)>), Status> {
        let start = self.start;
        let key = self.encoder.key();
        let namespace = self.encoder.selection().namespace.clone();
        let after = state.after.clone();
        let mut encoder = self.encoder.clone();
        let (frames, last, encoder) = self
            .store
            .read(move |read| {
                let scan = Scan {
                    resource: &key,
                    namespace: namespace.as_deref(),
                    after: after
                        .as_ref()
                        .map(|(ns, name)| (ns.as_str(), name.as_str())),
                    at: Some(start),
                };
                let mut frames = Vec::new();
                let mut visited = 0;
                let mut last = None;
                let mut failed = None;
                read.scan(&scan, |item| {
                    match encoder.present(&item) {
                        Ok(frame) => frames.extend(frame),
                        Err(status) => failed = Some(status),
                    }
                    visited += 1;
                    if visited == PAGE || failed.is_some() {
                        last = Some((item.namespace.to_owned(), item.name.to_owned()));
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                })?;
                match failed {
                    Some(status) => Err(status),
                    None => Ok((frames, last, encoder)),
                }
            })
            .await?;
        self.encoder = encoder;
        Ok((frames, last))
    }
}

/// One frame for many events: copying a few kilobytes costs less than a chunk on the wire for each.
fn join(mut frames: Vec<Bytes>) -> Option<Bytes> {
    if frames.len() <= 1 {
        return frames.pop();
    }
    let mut joined = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
    for frame in frames {
        joined.extend_from_slice(&frame);
    }
    Some(joined.freeze())
}
