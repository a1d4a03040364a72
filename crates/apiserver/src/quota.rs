//! How many objects a namespace may hold: ResourceQuota, as far as it counts.
//!
//! What is counted is the store itself, inside the write that adds an object, so no race lets one too many in. `status.used` is what was
//! counted last: it is written with each object that is added, and by housekeeping after one has gone.
//!
//! Amounts (CPU, memory, storage, devices) and scopes are not limited here, and a quota that names any is refused.

use std::ops::ControlFlow;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};
use stoke_api::quantity::Exact;
use stoke_store::{Key, Scan, Write};

use crate::names;
use crate::object;
use crate::resource::Resource;
use crate::schema::FieldError;
use crate::status::Status;

/// Where quotas are stored.
pub(crate) const QUOTAS: &str = "resourcequotas";

/// What a name in `hard` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted<'a> {
    /// Every object of a resource.
    All(&'a str),
    /// Pods that have not ended.
    LivePods,
    /// What this server never holds.
    Nothing,
}

impl<'a> Counted<'a> {
    fn of(name: &'a str) -> Option<Self> {
        match name {
            "pods" => Some(Self::LivePods),
            "configmaps" | "persistentvolumeclaims" | "resourcequotas" | "secrets" | "services" => {
                Some(Self::All(name))
            }
            "replicationcontrollers" | "services.loadbalancers" | "services.nodeports" => {
                Some(Self::Nothing)
            }
            _ => name.strip_prefix("count/").map(Self::All),
        }
    }

    fn resource(self) -> Option<&'a str> {
        match self {
            Self::All(resource) => Some(resource),
            Self::LivePods => Some("pods"),
            Self::Nothing => None,
        }
    }
}

/// Names of amounts that kube-apiserver limits and this server does not.
fn is_amount(name: &str) -> bool {
    let bare = name
        .strip_prefix("requests.")
        .or_else(|| name.strip_prefix("limits."))
        .unwrap_or(name);
    matches!(bare, "cpu" | "memory" | "ephemeral-storage")
        || name == "requests.storage"
        || bare.starts_with("hugepages-")
        || name.contains('/')
}

/// What is wrong with a quota.
pub(crate) fn errors(quota: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (name, amount) in hard(quota) {
        let path = format!("spec.hard[{name}]");
        let amount = amount.as_str().unwrap_or_default();
        errors.extend(name_errors(name, &path));
        let nanos = Exact::parse(amount).map_or(0, Exact::nanos);
        if nanos < 0 {
            let why = "must be greater than or equal to 0";
            errors.push(FieldError::invalid_text(&path, amount, why));
        }
        if Counted::of(name).is_some() && nanos % 1_000_000_000 != 0 {
            errors.push(FieldError::invalid_text(
                &path,
                amount,
                "must be an integer",
            ));
        }
    }
    for field in ["scopes", "scopeSelector"] {
        let said = &quota["spec"][field];
        if !said.is_null() && *said != Value::Array(Vec::new()) {
            let why = "this server counts all objects of a namespace: leave it out";
            errors.push(FieldError::forbidden(&format!("spec.{field}"), why));
        }
    }
    errors
}

fn name_errors(name: &str, path: &str) -> Vec<FieldError> {
    let invalid = |why: &str| FieldError::invalid_text(path, name, why);
    let unknown = invalid("must be a standard resource for quota");
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        let unknown = (!name.contains('/')).then_some(unknown);
        return wrong
            .iter()
            .map(|why| invalid(why))
            .chain(unknown)
            .collect();
    }
    if Counted::of(name).is_some() {
        return Vec::new();
    }
    if is_amount(name) {
        let why = "this server limits how many objects there are and not what they use: name count/RESOURCE, \
                   count/RESOURCE.GROUP, pods, services, secrets, configmaps or persistentvolumeclaims";
        return vec![FieldError::forbidden(path, why)];
    }
    vec![
        invalid("must be a standard resource type or fully qualified"),
        unknown,
    ]
}

fn hard(quota: &Value) -> impl Iterator<Item = (&String, &Value)> {
    quota["spec"]["hard"].as_object().into_iter().flatten()
}

fn limit(amount: &Value) -> u64 {
    let amount = amount.as_str().and_then(Exact::parse);
    amount.and_then(Exact::units).unwrap_or(0)
}

/// Lets one more object of a resource into its namespace, or says which quota is in the way. The quotas' books are written in the same
/// write, unless it is only asked whether.
pub(crate) fn charge(
    write: &mut Write<'_>,
    resource: &Resource,
    new: &Value,
    dry_run: bool,
    now: Timestamp,
) -> Result<(), Status> {
    let added = resource.key();
    // Events come by themselves and go by themselves: Kubernetes counts none either.
    if !resource.namespaced || added == "events" {
        return Ok(());
    }
    let namespace = object::namespace(new);
    for (key, mut quota) in quotas(write, namespace)? {
        let mut used = Map::new();
        let mut over = Vec::new();
        for (name, amount) in hard(&quota) {
            let Some(counted) =
                Counted::of(name).filter(|it| it.resource() == Some(added.as_str()))
            else {
                continue;
            };
            let limit = limit(amount);
            let told = quota["status"]["used"][name.as_str()].as_str();
            let told = told.and_then(|told| told.parse().ok());
            let there = count_up_to(write, namespace, counted, told, limit, now)?;
            if there >= limit {
                over.push((
                    name.clone(),
                    there,
                    amount.as_str().unwrap_or_default().to_owned(),
                ));
            }
            used.insert(name.clone(), (there + 1).to_string().into());
        }
        if !over.is_empty() {
            over.sort();
            return Err(exceeded(resource, new, object::name(&quota), &over));
        }
        if used.is_empty() || dry_run {
            continue;
        }
        object::child_mut(&mut quota["status"], "used").extend(used);
        write.update(&key, quota)?;
    }
    Ok(())
}

/// In the words of kube-apiserver.
fn exceeded(
    resource: &Resource,
    new: &Value,
    quota: &str,
    over: &[(String, u64, String)],
) -> Status {
    let told = |amount: &dyn Fn(&(String, u64, String)) -> String| {
        let parts = over.iter().map(|it| format!("{}={}", it.0, amount(it)));
        parts.collect::<Vec<_>>().join(",")
    };
    let requested = told(&|_| "1".to_owned());
    let used = told(&|it| it.1.to_string());
    let limited = told(&|it| it.2.clone());
    let why = format!(
        "exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}"
    );
    Status::forbidden(resource, object::name(new), &why)
}

/// Counts what a quota that is about to be written speaks of, into its status.
pub(crate) fn tally(write: &Write<'_>, quota: &mut Value, now: Timestamp) -> Result<(), Status> {
    let namespace = object::namespace(quota).to_owned();
    let mut used = Map::new();
    let is_new = object::resource_version(quota).is_empty();
    for (name, _) in hard(quota) {
        let Some(counted) = Counted::of(name) else {
            continue;
        };
        let itself = u64::from(is_new && counted.resource() == Some(QUOTAS));
        let count = count(write, &namespace, counted, now)? + itself;
        used.insert(name.clone(), count.to_string().into());
    }
    let mut status = Map::new();
    if let Some(hard) = quota["spec"].get("hard") {
        status.insert("hard".into(), hard.clone());
        status.insert("used".into(), used.into());
    }
    quota["status"] = status.into();
    Ok(())
}

/// Counts anew for every quota of a namespace, and writes what has changed.
pub(crate) fn recount(
    write: &mut Write<'_>,
    namespace: &str,
    now: Timestamp,
) -> Result<(), Status> {
    for (key, quota) in quotas(write, namespace)? {
        let mut counted = quota.clone();
        tally(write, &mut counted, now)?;
        if counted["status"] != quota["status"] {
            write.update(&key, counted)?;
        }
    }
    Ok(())
}

fn quotas(write: &Write<'_>, namespace: &str) -> Result<Vec<(Key, Value)>, Status> {
    let mut found = Vec::new();
    write.scan(&Scan::namespace(QUOTAS, namespace), |item| {
        let key = Key::new(QUOTAS, item.namespace, item.name);
        // What cannot be read limits nothing; it cannot have been written here.
        if let Ok(quota) = serde_json::from_slice(item.document) {
            found.push((key, quota));
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn count(
    write: &Write<'_>,
    namespace: &str,
    counted: Counted<'_>,
    now: Timestamp,
) -> Result<u64, Status> {
    Ok(match counted {
        Counted::Nothing => 0,
        Counted::All(resource) => write.count(&Scan::namespace(resource, namespace))?,
        Counted::LivePods => {
            let mut live = 0;
            write.scan(&Scan::namespace("pods", namespace), |item| {
                live += u64::from(is_live(item.document, now));
                ControlFlow::Continue(())
            })?;
            live
        }
    })
}

/// The same, without reading every pod of a namespace for each that is added: while all of them together are below the limit, what was
/// told last will do for the books.
fn count_up_to(
    write: &Write<'_>,
    namespace: &str,
    counted: Counted<'_>,
    told: Option<u64>,
    limit: u64,
    now: Timestamp,
) -> Result<u64, Status> {
    if counted == Counted::LivePods
        && let Some(told) = told
    {
        let all = write.count(&Scan::namespace("pods", namespace))?;
        if all < limit {
            return Ok(told.min(all));
        }
    }
    count(write, namespace, counted, now)
}

/// As Kubernetes counts pods: not those that have ended, nor those that are long past the time they had to.
pub(crate) fn is_live(pod: &[u8], now: Timestamp) -> bool {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<Timestamp>,
        deletion_grace_period_seconds: Option<i64>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct PodStatus {
        phase: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Pod {
        metadata: Metadata,
        status: PodStatus,
    }
    let pod: Pod = serde_json::from_slice(pod).unwrap_or_default();
    let Metadata {
        deletion_timestamp,
        deletion_grace_period_seconds,
    } = pod.metadata;
    let is_overdue = deletion_timestamp
        .zip(deletion_grace_period_seconds)
        .is_some_and(|(at, grace)| now.duration_since(at) > SignedDuration::from_secs(grace));
    !matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") && !is_overdue
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_limited_is_refused() {
        let said = |spec: Value| {
            let errors = errors(&json!({"spec": spec}));
            let told = errors
                .iter()
                .map(|error| format!("{}: {}", error.path, error.detail));
            told.collect::<Vec<_>>().join("\n")
        };
        let hard = |name: &str, amount: &str| said(json!({"hard": {name: amount}}));
        for name in [
            "pods",
            "count/pods",
            "count/trainjobs.stokehold.dev",
            "count/deployments.apps",
            "secrets",
            "services.nodeports",
        ] {
            assert_eq!(hard(name, "3"), "", "{name}");
        }
        for name in [
            "cpu",
            "requests.memory",
            "limits.cpu",
            "requests.nvidia.com/gpu",
            "requests.storage",
        ] {
            assert!(
                hard(name, "3").contains("Forbidden: this server limits how many objects"),
                "{name}"
            );
        }
        insta::assert_snapshot!(hard("jobs", "3"), @r#"
        spec.hard[jobs]: Invalid value: "jobs": must be a standard resource type or fully qualified
        spec.hard[jobs]: Invalid value: "jobs": must be a standard resource for quota
        "#);
        insta::assert_snapshot!(hard("pods", "1500m"), @r#"spec.hard[pods]: Invalid value: "1500m": must be an integer"#);
        insta::assert_snapshot!(hard("pods", "-1"), @r#"spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0"#);
        insta::assert_snapshot!(said(json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]})), @"spec.scopes: Forbidden: this server counts all objects of a namespace: leave it out");
    }

    #[test]
    fn a_pod_that_has_ended_is_not_counted() {
        let now: Timestamp = "2026-01-01T00:00:40Z".parse().expect("a time");
        let live = |pod: Value| is_live(pod.to_string().as_bytes(), now);
        let deleted = |grace: u32| json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}});
        assert!(live(json!({})));
        assert!(live(json!({"status": {"phase": "Running"}})));
        assert!(!live(json!({"status": {"phase": "Succeeded"}})));
        assert!(!live(json!({"status": {"phase": "Failed"}})));
        assert!(live(deleted(60)));
        assert!(!live(deleted(30)));
    }
}
