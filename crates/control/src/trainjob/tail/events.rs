//! Events about a worker, and about its node running out of memory.
//!
//! They are asked for, not watched: a cluster has many, and they matter only where a worker was killed and nobody says for whose sake.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::{Api, Client};

/// Of a pod or of a node; they are counted, not repeated, and kept for an hour.
const EVENTS_MAX: u32 = 200;
/// Those of a pod are few; of those of a node, only some are of use.
const KEPT_MAX: usize = 16;
/// The namespace of Events about what has none.
const OF_NODES: &str = "default";
/// What a kubelet and what node-problem-detector call it.
const OF_MEMORY: [&str; 2] = ["SystemOOM", "OOMKilling"];
/// A node's Event is taken to be about a worker that ended at that time: a process may be killed a while before the worker notices.
const SAME_TIME: SignedDuration = SignedDuration::from_secs(30);

/// Reasons and messages, the latest first.
pub async fn read(
    client: &Client,
    namespace: &str,
    pod_uid: &str,
    node: &str,
    ended: Timestamp,
) -> Result<Vec<(String, String)>, String> {
    let list = async |namespace: &str, fields: String| {
        let events: Api<Event> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default().fields(&fields).limit(EVENTS_MAX);
        let listed = events.list(&params).await;
        listed
            .map(|list| list.items)
            .map_err(|error| error.to_string())
    };
    let of_pod = list(namespace, format!("involvedObject.uid={pod_uid}")).await?;
    let fields = format!("involvedObject.kind=Node,involvedObject.name={node}");
    let of_node = list(OF_NODES, fields).await?;
    Ok(telling(of_pod, of_node, ended))
}

fn telling(of_pod: Vec<Event>, of_node: Vec<Event>, ended: Timestamp) -> Vec<(String, String)> {
    let is_of_memory = |event: &Event| {
        let reason = event.reason.as_deref().unwrap_or_default();
        let is_near = |at: Timestamp| ended.duration_since(at).abs() <= SAME_TIME;
        OF_MEMORY.contains(&reason) && last_seen(event).is_some_and(is_near)
    };
    let mut of_node: Vec<Event> = of_node.into_iter().filter(is_of_memory).collect();
    let mut of_pod = of_pod;
    for events in [&mut of_pod, &mut of_node] {
        events.sort_by_key(|event| std::cmp::Reverse(last_seen(event)));
        events.truncate(KEPT_MAX);
    }
    let said = of_pod.into_iter().chain(of_node).map(|event| {
        (
            event.reason.unwrap_or_default(),
            event.message.unwrap_or_default(),
        )
    });
    said.collect()
}

fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref();
    let series = series.and_then(|series| Some(series.last_observed_time.as_ref()?.0));
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    series.max(last).max(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_nodes_events_count_where_they_are_about_memory_and_of_the_time() {
        let event = |reason: &str, field: &str, second: u32| -> Event {
            let mut event = json!({"metadata": {"name": "e"}, "involvedObject": {}, "reason": reason, "message": format!("{second}")});
            let at = format!(
                "2026-01-01T00:{:02}:{:02}.000000Z",
                second / 60,
                second % 60
            );
            match field {
                "series" => event["series"] = json!({"count": 2, "lastObservedTime": at}),
                field => event[field] = json!(at),
            }
            serde_json::from_value(event).expect("an event")
        };
        let ended = "2026-01-01T00:02:00Z".parse().expect("a time");
        let of_pod = vec![
            event("Started", "lastTimestamp", 1),
            event("Killing", "eventTime", 118),
        ];
        let of_node = vec![
            event("SystemOOM", "lastTimestamp", 119),
            event("SystemOOM", "lastTimestamp", 20),
            event("OOMKilling", "series", 130),
            event("NodeHasDiskPressure", "lastTimestamp", 119),
            serde_json::from_value(
                json!({"metadata": {}, "involvedObject": {}, "reason": "SystemOOM"}),
            )
            .expect("an event"),
        ];
        let told = telling(of_pod, of_node, ended);
        let told: Vec<String> = told
            .iter()
            .map(|(reason, at)| format!("{reason} {at}"))
            .collect();
        assert_eq!(
            told,
            [
                "Killing 118",
                "Started 1",
                "OOMKilling 130",
                "SystemOOM 119"
            ]
        );
    }
}
