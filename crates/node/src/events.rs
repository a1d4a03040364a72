//! Events on pods and claims: what the node did and why, for `kubectl describe`.
//!
//! Written in the background, so that nothing waits for them, and sparingly: the same thing happening again raises a count
//! on the same object, at most every few seconds. Invariant: events are never load-bearing. When the queue is full they
//! are dropped.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::status::time;

const QUEUE_MAX: usize = 1024;
/// How many different events are remembered for counting.
const SERIES_MAX: usize = 1024;
/// How often a repeated event is written.
const REPEAT_EVERY: Duration = Duration::from_secs(5);
const MESSAGE_MAX: usize = 1024;
const COMPONENT: &str = "stokehold-node";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Note {
    uid: String,
    severity: Severity,
    reason: &'static str,
    message: String,
}

/// Where events are handed in.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    queue: mpsc::Sender<(ObjectReference, Note)>,
}

impl Recorder {
    /// A recorder and the task that writes; the task ends when the last recorder is dropped.
    pub(crate) fn start(client: Client, node: &str) -> (Self, tokio::task::JoinHandle<()>) {
        let (queue, notes) = mpsc::channel(QUEUE_MAX);
        let task = tokio::spawn(write_all(client, node.to_owned(), notes));
        (Self { queue }, task)
    }

    pub(crate) fn normal(
        &self,
        about: &ObjectReference,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.record(about, Severity::Normal, reason, message.into());
    }

    pub(crate) fn warning(
        &self,
        about: &ObjectReference,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.record(about, Severity::Warning, reason, message.into());
    }

    fn record(
        &self,
        about: &ObjectReference,
        severity: Severity,
        reason: &'static str,
        mut message: String,
    ) {
        if message.len() > MESSAGE_MAX {
            let cut = (0..=MESSAGE_MAX)
                .rev()
                .find(|at| message.is_char_boundary(*at))
                .unwrap_or(0);
            message.truncate(cut);
        }
        let note = Note {
            uid: about.uid.clone().unwrap_or_default(),
            severity,
            reason,
            message,
        };
        if self.queue.try_send((about.clone(), note)).is_err() {
            tracing::debug!(reason, "an event was dropped: the queue is full");
        }
    }
}

/// The reference under which a pod's events are filed.
pub(crate) fn about(pod: &Pod) -> ObjectReference {
    pod.object_ref(&())
}

/// What was written for one note.
#[derive(Debug)]
struct Series {
    name: String,
    count: i32,
    next_write: Instant,
}

async fn write_all(
    client: Client,
    node: String,
    mut notes: mpsc::Receiver<(ObjectReference, Note)>,
) {
    let mut seen: HashMap<Note, Series> = HashMap::new();
    while let Some((about, note)) = notes.recv().await {
        let namespace = about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let repeated = match seen.get_mut(&note) {
            Some(series) => repeat(&api, series).await,
            None => Ok(false),
        };
        let written = match repeated {
            Ok(false) => {
                let series = begin(&api, &event(&about, &note, &node)).await;
                series.map(|series| {
                    if seen.len() >= SERIES_MAX {
                        // Forgetting only means that the next repetition starts a new object.
                        seen.clear();
                    }
                    seen.insert(note, series);
                })
            }
            repeated => repeated.map(drop),
        };
        if let Err(error) = written {
            tracing::debug!(%error, "an event could not be written");
        }
    }
}

async fn begin(api: &Api<Event>, event: &Event) -> Result<Series, kube::Error> {
    let created = api.create(&PostParams::default(), event).await?;
    Ok(Series {
        name: created.name_any(),
        count: 1,
        next_write: Instant::now() + REPEAT_EVERY,
    })
}

/// False if the object is not there any more: events are kept for a while only, and anyone may delete them.
async fn repeat(api: &Api<Event>, series: &mut Series) -> Result<bool, kube::Error> {
    series.count = series.count.saturating_add(1);
    if Instant::now() < series.next_write {
        return Ok(true);
    }
    series.next_write = Instant::now() + REPEAT_EVERY;
    let patch = json!({"count": series.count, "lastTimestamp": time(Timestamp::now())});
    let params = PatchParams::default();
    match api.patch(&series.name, &params, &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn event(about: &ObjectReference, note: &Note, node: &str) -> Event {
    let now = Timestamp::now();
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let name = about.name.clone().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!(
                "{}.{}",
                &name[..name.len().min(200)],
                &suffix[..16]
            )),
            namespace: Some(
                about
                    .namespace
                    .clone()
                    .unwrap_or_else(|| "default".to_owned()),
            ),
            ..ObjectMeta::default()
        },
        involved_object: about.clone(),
        type_: Some(format!("{:?}", note.severity)),
        reason: Some(note.reason.to_owned()),
        message: Some(note.message.clone()),
        count: Some(1),
        first_timestamp: Some(time(now)),
        last_timestamp: Some(time(now)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}
