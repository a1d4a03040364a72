//! Pods: what kube-apiserver fills in, what it refuses, and what it lets change.

mod defaults;
mod qos;
mod rules;
mod update;

use std::ops::ControlFlow;

use jiff::Timestamp;
use serde_json::{Value, json};
use stoke_store::{Key, Scan, Write};

use crate::object;
use crate::resource::Resource;
use crate::status::Status;

pub(super) use rules::errors;
pub(super) use update::{take_resources, update_errors};

pub(super) fn on_create(pod: &mut Value, now: Timestamp) {
    defaults::fill(pod);
    pod["status"] = json!({"phase": "Pending", "qosClass": qos::class(pod)});
    let gates = pod["spec"]["schedulingGates"].as_array();
    if gates.is_some_and(|gates| !gates.is_empty()) {
        pod["status"]["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null,
            "lastTransitionTime": object::time(now),
        }]);
    }
}

pub(super) fn on_update(pod: &mut Value) {
    defaults::fill(pod);
    defaults::fill_status(pod);
}

/// The lists of containers a pod has, with the path of each.
const CONTAINER_LISTS: [&str; 2] = ["containers", "initContainers"];

fn containers<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    pod["spec"][list].as_array().into_iter().flatten()
}

fn all_containers(pod: &Value) -> impl Iterator<Item = &Value> {
    CONTAINER_LISTS
        .into_iter()
        .flat_map(|list| containers(pod, list))
}

/// The names of all containers a pod has, in the order in which they start.
pub(crate) fn container_names(pod: &Value) -> impl Iterator<Item = &str> {
    all_containers(pod).filter_map(|container| container["name"].as_str())
}

/// What a pod refers to must be there: its service account and its priority class, whose value it takes.
pub(super) fn check_surroundings(
    write: &Write<'_>,
    resource: &Resource,
    pod: &mut Value,
) -> Result<(), Status> {
    let name = object::name(pod).to_owned();
    let namespace = object::namespace(pod).to_owned();
    let account = pod["spec"]["serviceAccountName"]
        .as_str()
        .unwrap_or("default")
        .to_owned();
    if write
        .get(&Key::new("serviceaccounts", &namespace, &account))?
        .is_none()
    {
        let why = format!(
            "error looking up service account {namespace}/{account}: serviceaccount \"{account}\" not found"
        );
        return Err(Status::forbidden(resource, &name, &why));
    }
    let class = priority_class(write, pod["spec"]["priorityClassName"].as_str())?;
    let named = pod["spec"]["priorityClassName"].as_str();
    if let (None, Some(missing)) = (&class, named.filter(|name| !name.is_empty())) {
        let why = format!("no PriorityClass with name {missing} was found");
        return Err(Status::forbidden(resource, &name, &why));
    }
    let computed = class.as_ref().and_then(|class| class["value"].as_i64());
    let computed = computed.unwrap_or(0);
    if let Some(said) = pod["spec"]["priority"].as_i64()
        && said != computed
    {
        let why = format!(
            "the integer value of priority ({said}) must not be provided in pod spec; priority admission controller \
             computed {computed} from the given PriorityClass name"
        );
        return Err(Status::forbidden(resource, &name, &why));
    }
    let spec = object::child_mut(pod, "spec");
    spec.insert("priority".into(), computed.into());
    if let Some(class) = class {
        object::fill(spec, "priorityClassName", class["metadata"]["name"].clone());
        if let Some(policy) = class["preemptionPolicy"].as_str() {
            object::fill(spec, "preemptionPolicy", policy);
        }
    }
    object::fill(spec, "preemptionPolicy", "PreemptLowerPriority");
    Ok(())
}

const PRIORITY_CLASSES: &str = "priorityclasses.scheduling.k8s.io";

/// The class of that name; without a name, the global default if there is one.
fn priority_class(write: &Write<'_>, name: Option<&str>) -> Result<Option<Value>, Status> {
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        let key = Key::new(PRIORITY_CLASSES, "", name);
        return Ok(match write.get(&key)? {
            Some(stored) => Some(stored.value(&key)?),
            None => None,
        });
    }
    let mut default = None;
    write.scan(
        &Scan::all(PRIORITY_CLASSES),
        |item| match serde_json::from_slice::<Value>(item.document) {
            Ok(class) if class["globalDefault"] == true => {
                default = Some(class);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        },
    )?;
    Ok(default)
}
