//! The defaults of built-in kinds, which their schemas do not carry.
//!
//! Only what clients read back and rely on. Pods, and what the server adds of its own accord, are
//! filled in by admission.

use serde_json::{Map, Value, json};

use super::cells::text;

pub(super) fn fill(kind: &str, object: &mut Value) {
    match kind {
        "Service" => service(object),
        "Endpoints" => each(object, "/subsets", |subset| {
            each(subset, "/ports", |port| set(port, "protocol", "TCP"));
        }),
        "EndpointSlice" => each(object, "/ports", |port| {
            set(port, "name", "");
            set(port, "protocol", "TCP");
        }),
        "Secret" => set(object, "type", "Opaque"),
        "PersistentVolume" => {
            with(object, "spec", |spec| {
                set(spec, "persistentVolumeReclaimPolicy", "Retain");
                set(spec, "volumeMode", "Filesystem");
                if let Some(path) = spec.get_mut("hostPath") {
                    set(path, "type", "");
                }
            });
        }
        "ResourceQuota" => {
            with(object, "spec", |_| {});
            with(object, "status", |_| {});
        }
        "Lease" => with(object, "spec", |_| {}),
        "Node" => with(object, "status", node_status),
        "Event" => event(object),
        "PersistentVolumeClaim" => {
            with(object, "spec", |spec| set(spec, "volumeMode", "Filesystem"));
        }
        "PriorityClass" => {
            set(object, "preemptionPolicy", "PreemptLowerPriority");
            set(object, "value", 0);
        }
        "CustomResourceDefinition" => definition(object),
        _ => {}
    }
}

/// Sets a field that is absent.
fn set(object: &mut Value, field: &str, value: impl Into<Value>) {
    if let Some(fields) = object.as_object_mut()
        && fields.get(field).is_none_or(Value::is_null)
    {
        fields.insert(field.to_owned(), value.into());
    }
}

/// Changes a part of an object, creating it if it is absent.
fn with(object: &mut Value, field: &str, change: impl FnOnce(&mut Value)) {
    if let Some(fields) = object.as_object_mut() {
        change(
            fields
                .entry(field)
                .or_insert_with(|| Value::Object(Map::new())),
        );
    }
}

fn each(object: &mut Value, pointer: &str, change: impl Fn(&mut Value)) {
    if let Some(Value::Array(items)) = object.pointer_mut(pointer) {
        items.iter_mut().for_each(change);
    }
}

fn node_status(status: &mut Value) {
    const INFO: [&str; 10] = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    if let Some(capacity) = status.get("capacity").cloned() {
        set(status, "allocatable", capacity);
    }
    with(status, "daemonEndpoints", |endpoints| {
        set(endpoints, "kubeletEndpoint", json!({"Port": 0}));
    });
    with(status, "nodeInfo", |info| {
        for field in INFO {
            set(info, field, "");
        }
    });
}

/// Both faces show even what an event does not say.
fn event(event: &mut Value) {
    let is_core = text(event, "/apiVersion") == "v1";
    let (source, first, last) = if is_core {
        set(event, "reportingComponent", "");
        set(event, "reportingInstance", "");
        ("source", "firstTimestamp", "lastTimestamp")
    } else {
        let old = [
            "deprecatedSource",
            "deprecatedFirstTimestamp",
            "deprecatedLastTimestamp",
        ];
        (old[0], old[1], old[2])
    };
    set(event, source, json!({}));
    for field in [first, last, "eventTime"] {
        set(event, field, Value::Null);
    }
}

fn service(service: &mut Value) {
    with(service, "spec", |spec| {
        set(spec, "type", "ClusterIP");
        set(spec, "sessionAffinity", "None");
        if text(spec, "/type") != "ExternalName" {
            set(spec, "internalTrafficPolicy", "Cluster");
        }
        each(spec, "/ports", |port| {
            set(port, "protocol", "TCP");
            if let Some(number) = port.get("port").cloned() {
                set(port, "targetPort", number);
            }
        });
    });
    with(service, "status", |status| {
        set(status, "loadBalancer", json!({}));
    });
}

fn definition(definition: &mut Value) {
    let kind = text(definition, "/spec/names/kind").to_owned();
    if kind.is_empty() {
        return;
    }
    with(definition, "spec", |spec| {
        set(spec, "conversion", json!({"strategy": "None"}));
        with(spec, "names", |names| {
            set(names, "singular", kind.to_lowercase());
            set(names, "listKind", format!("{kind}List"));
        });
    });
}
