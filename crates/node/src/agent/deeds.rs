//! What the agent does for a container whose memory runs out: three patches of its pod, and nothing to the node itself.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use stoke_api::Bytes;
use stoke_api::contract::checkpoints::Saved;
use stoke_api::names::{
    CHECKPOINT_REQUEST_ANNOTATION, IDLE_ANNOTATION, LAST_CHECKPOINT_ANNOTATION,
    MEMORY_RISK_ANNOTATION, SAVED_ANNOTATION,
};
use stoke_api::risk::MemoryRisk;
use stoke_memory::guard::Action;
use tokio::sync::mpsc;

use super::Shared;
use crate::causes;

/// A server that takes longer than this is no help in time; the guard takes the next remedy.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A pod, as patches mean it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: String,
}

/// One patch of one pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Deed {
    pub(super) who: Who,
    kind: Kind,
    /// What it is, for the log.
    line: String,
    pub(super) change: Change,
}

/// A pod's size and what is written on it are changed apart: either may fail without the other.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    Resize(Value),
    Annotate(Map<String, Value>),
}

/// What it is, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Raise,
    GiveBack,
    AskCheckpoint,
    Tell,
}

impl Kind {
    pub(super) const ALL: [Self; 4] =
        [Self::Raise, Self::GiveBack, Self::AskCheckpoint, Self::Tell];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Raise => "raise",
            Self::GiveBack => "give_back",
            Self::AskCheckpoint => "ask_checkpoint",
            Self::Tell => "tell",
        }
    }
}

impl Deed {
    /// The change of a limit that a guard asks for. `is_promised`: what the limit is, the request is too.
    pub(super) fn resizing(
        who: Who,
        container: &str,
        action: &Action,
        is_promised: bool,
    ) -> Option<Self> {
        let (kind, to) = match action {
            Action::Raise { to, .. } => (Kind::Raise, *to),
            Action::GiveBack { to, .. } => (Kind::GiveBack, *to),
            Action::AskCheckpoint { .. } | Action::AskInTime { .. } | Action::Calm => return None,
        };
        Some(Self {
            who,
            kind,
            line: action.to_string(),
            change: Change::Resize(resize(container, to, is_promised)),
        })
    }

    /// Asks for no more than is in force, after the kubelet objected.
    pub(super) fn taking_back(
        who: Who,
        container: &str,
        bytes: u64,
        is_promised: bool,
        why: &str,
    ) -> Self {
        Self {
            who,
            kind: Kind::GiveBack,
            line: format!("its limit cannot be changed: {why}"),
            change: Change::Resize(resize(container, bytes, is_promised)),
        }
    }

    /// Writes on the pod what is to be known of it.
    pub(super) fn telling(who: Who, line: String, annotations: Map<String, Value>) -> Self {
        let kind = if annotations.contains_key(CHECKPOINT_REQUEST_ANNOTATION) {
            Kind::AskCheckpoint
        } else {
            Kind::Tell
        };
        Self {
            who,
            kind,
            line,
            change: Change::Annotate(annotations),
        }
    }

    pub(super) fn asks_for_checkpoint(&self) -> bool {
        self.kind == Kind::AskCheckpoint
    }
}

/// How it stands with the memory of a pod, or that all is well.
pub(super) fn risk(risk: Option<&MemoryRisk>) -> (&'static str, Value) {
    let text = risk.and_then(|risk| serde_json::to_string(risk).ok());
    let text = text.map_or(Value::Null, Value::String);
    (MEMORY_RISK_ANNOTATION, text)
}

/// That a checkpoint is wanted: new with each request.
pub(super) fn request(action: &Action, now: Timestamp) -> (&'static str, Value) {
    let text = format!("{now} {action}");
    (CHECKPOINT_REQUEST_ANNOTATION, text.into())
}

/// That the pod's job has written a checkpoint.
pub(super) fn saved(at: Timestamp) -> (&'static str, Value) {
    (LAST_CHECKPOINT_ANNOTATION, at.to_string().into())
}

/// The same of a checkpoint that is known: which, and how large.
pub(super) fn seen(saved: &Saved) -> [(&'static str, Value); 2] {
    let text = serde_json::to_string(saved).unwrap_or_default();
    [
        (LAST_CHECKPOINT_ANNOTATION, saved.at.clone().into()),
        (SAVED_ANNOTATION, text.into()),
    ]
}

/// That a worker does nothing, or that it does something again.
pub(super) fn idle(told: Option<&str>) -> (&'static str, Value) {
    (IDLE_ANNOTATION, told.map_or(Value::Null, Value::from))
}

fn resize(container: &str, bytes: u64, is_promised: bool) -> Value {
    let amount = json!({"memory": Bytes(bytes).to_string()});
    let mut resources = json!({"limits": amount});
    if is_promised {
        resources["requests"] = amount;
    }
    json!({"spec": {"containers": [{"name": container, "resources": resources}]}})
}

/// Does what is handed in, each pod's by itself: a raise does not wait for another's telling.
pub(super) async fn keep_doing(
    client: Client,
    shared: Arc<Shared>,
    mut deeds: mpsc::Receiver<Deed>,
) {
    while let Some(deed) = deeds.recv().await {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let mut next = Some(deed);
            while let Some(deed) = next {
                let failure = attempt(&client, &deed).await;
                shared.own().count(deed.kind, failure.is_none());
                let mut roster = shared.roster();
                roster.done(&deed, failure.as_deref());
                next = roster.next_after(&deed);
            }
        });
    }
}

/// Gives why nothing came of it, if so.
async fn attempt(client: &Client, deed: &Deed) -> Option<String> {
    let Who { namespace, pod, .. } = &deed.who;
    if !deed.line.is_empty() {
        tracing::info!(namespace, pod, "{}", deed.line);
    }
    let result = tokio::time::timeout(ANSWER_WITHIN, perform(client, deed)).await;
    let why = match result {
        Ok(Ok(())) => return None,
        Ok(Err(error)) => explained(&error, &deed.change),
        Err(_) => "the API server does not answer".to_owned(),
    };
    tracing::warn!(namespace, pod, why, "nothing came of it");
    Some(why)
}

async fn perform(client: &Client, deed: &Deed) -> Result<(), kube::Error> {
    let Who {
        namespace,
        pod,
        uid,
    } = &deed.who;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams::default();
    match &deed.change {
        Change::Resize(resize) => pods
            .patch_subresource("resize", pod, &params, &Patch::Strategic(resize))
            .await
            .map(drop),
        Change::Annotate(annotations) => {
            // With the uid: a pod of the same name that came after it is not meant.
            let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
            let patched = pods
                .patch_metadata(pod, &params, &Patch::Merge(&patch))
                .await;
            match patched {
                Err(error) if !is_gone(&error) => Err(error),
                _ => Ok(()),
            }
        }
    }
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

fn explained(error: &kube::Error, change: &Change) -> String {
    match error {
        kube::Error::Api(status) if status.code == 404 && matches!(change, Change::Resize(_)) => {
            "this cluster cannot change the memory of a running pod, which needs Kubernetes 1.33"
                .to_owned()
        }
        kube::Error::Api(status) => status.message.clone(),
        error => causes::chain(error),
    }
}

#[cfg(test)]
mod tests {
    use stoke_memory::guard::{Cannot, Danger, Kind as DangerKind};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn who() -> Who {
        Who {
            namespace: "ml".to_owned(),
            pod: "gpt-1-0".to_owned(),
            uid: "u".to_owned(),
        }
    }

    fn resized(action: &Action, is_promised: bool) -> String {
        match Deed::resizing(who(), "worker", action, is_promised).map(|deed| deed.change) {
            Some(Change::Resize(patch)) => patch.to_string(),
            other => format!("{other:?}"),
        }
    }

    fn told((name, value): (&str, Value)) -> String {
        json!({name: value}).to_string()
    }

    #[test]
    fn each_action_is_a_small_patch() {
        let danger = Danger {
            used: 150 * MIB,
            limit: 160 * MIB,
            kind: DangerKind::Near,
        };
        let raise = Action::Raise {
            to: 512 * MIB,
            danger,
        };
        insta::assert_snapshot!(resized(&raise, false), @r#"{"spec":{"containers":[{"name":"worker","resources":{"limits":{"memory":"512Mi"}}}]}}"#);
        assert!(resized(&raise, true).contains(r#""requests":{"memory":"512Mi"}"#));
        let back = Action::GiveBack {
            to: 160 * MIB,
            needs: 100 * MIB,
        };
        insta::assert_snapshot!(resized(&back, false), @r#"{"spec":{"containers":[{"name":"worker","resources":{"limits":{"memory":"160Mi"}}}]}}"#);
        let ask = Action::AskCheckpoint {
            danger,
            cannot: Cannot::NoRoom,
        };
        assert_eq!(resized(&ask, false), "None");
        let asked = told(request(&ask, Timestamp::UNIX_EPOCH));
        assert!(
            asked.contains(r#""stokehold.dev/checkpoint-request":"1970-01-01T00:00:00Z it uses"#),
            "{asked}"
        );
        let why = MemoryRisk {
            why: "because".to_owned(),
            ..MemoryRisk::default()
        };
        insta::assert_snapshot!(told(risk(Some(&why))), @r#"{"stokehold.dev/memory-risk":"{\"since\":\"\",\"why\":\"because\",\"stage\":\"Raised\",\"usedBytes\":0,\"limitBytes\":0,\"firstLimitBytes\":0}"}"#);
        assert_eq!(told(risk(None)), r#"{"stokehold.dev/memory-risk":null}"#);
    }
}
