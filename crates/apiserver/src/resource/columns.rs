//! What `kubectl get` prints for each built-in kind.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{
    age, condition, count, flag, list, or_none, shortened, since, text, text_or_none, timestamp,
};
use super::pod_status::PodLine;
use super::{Cell, Column};
use crate::jsonpath::JsonPath;

type Compute = fn(&Value, Timestamp) -> Value;

fn column(name: &str, kind: &str, priority: i32, description: &str, cell: Compute) -> Column {
    Column {
        name: name.to_owned(),
        r#type: kind.to_owned(),
        format: if name == "Name" {
            "name".to_owned()
        } else {
            String::new()
        },
        description: description.to_owned(),
        priority,
        cell: Cell::Compute(cell),
    }
}

fn shown(name: &str, description: &str, cell: Compute) -> Column {
    column(name, "string", 0, description, cell)
}

fn wide(name: &str, description: &str, cell: Compute) -> Column {
    column(name, "string", 1, description, cell)
}

pub(super) fn name() -> Column {
    shown(
        "Name",
        "The name, unique among its kind within a namespace.",
        |object, _| text(object, "/metadata/name").into(),
    )
}

fn age_column() -> Column {
    shown("Age", "How long ago the object was created.", age)
}

/// The columns of a CRD that declares none.
pub(super) fn of_custom() -> Vec<Column> {
    let path = JsonPath::parse(".metadata.creationTimestamp").expect("a constant path parses");
    vec![
        name(),
        Column {
            r#type: "date".into(),
            cell: Cell::Path(path),
            ..age_column()
        },
    ]
}

pub(super) fn of_builtin(group: &str, kind: &str) -> Vec<Column> {
    let mut columns = match (group, kind) {
        (_, "Event") => return event_columns(group),
        ("", "Pod") => pod(),
        ("", "Node") => return node(),
        ("", "Namespace") => vec![shown(
            "Status",
            "Whether the namespace is in use or going.",
            |object, _| text(object, "/status/phase").into(),
        )],
        ("", "Service") => service(),
        ("", "Endpoints") => vec![shown("Endpoints", "Addresses and ports.", |object, _| {
            endpoints(object)
        })],
        ("", "ConfigMap") => vec![shown("Data", "Number of entries.", |object, _| {
            (count(object, "/data") + count(object, "/binaryData")).into()
        })],
        ("", "Secret") => vec![
            shown("Type", "What the secret is for.", |object, _| {
                text(object, "/type").into()
            }),
            shown("Data", "Number of entries.", |object, _| {
                count(object, "/data").into()
            }),
        ],
        ("", "ServiceAccount") => vec![shown("Secrets", "Number of secrets.", |object, _| {
            count(object, "/secrets").into()
        })],
        ("", "ResourceQuota") => vec![
            shown(
                "Request",
                "What there is, of what there may be.",
                |quota, _| quota_line(quota, false).into(),
            ),
            shown("Limit", "The same of limits.", |quota, _| {
                quota_line(quota, true).into()
            }),
        ],
        ("", "PersistentVolume") => return persistent_volume(),
        ("", "PersistentVolumeClaim") => return claim(),
        (_, "EndpointSlice") => endpoint_slice(),
        (_, "Lease") => vec![shown("Holder", "Who holds the lease.", |object, _| {
            text(object, "/spec/holderIdentity").into()
        })],
        (_, "PriorityClass") => return priority_class(),
        (_, "CustomResourceDefinition") => {
            return vec![
                name(),
                column(
                    "Created At",
                    "date",
                    0,
                    "When the definition was created.",
                    |object, _| text(object, "/metadata/creationTimestamp").into(),
                ),
            ];
        }
        _ => Vec::new(),
    };
    columns.insert(0, name());
    let first_wide = columns
        .iter()
        .position(|column| column.priority > 0)
        .unwrap_or(columns.len());
    columns.insert(first_wide, age_column());
    columns
}

fn quota_line(quota: &Value, of_limits: bool) -> String {
    let hard = quota.pointer("/status/hard").and_then(Value::as_object);
    let parts = hard
        .into_iter()
        .flatten()
        .filter(|(name, _)| name.starts_with("limits.") == of_limits)
        .map(|(name, hard)| {
            let used = &quota["status"]["used"][name.as_str()];
            let used = used.as_str().unwrap_or("0");
            format!("{name}: {used}/{}", hard.as_str().unwrap_or_default())
        });
    let mut parts: Vec<String> = parts.collect();
    parts.sort();
    parts.join(", ")
}

fn pod() -> Vec<Column> {
    vec![
        shown("Ready", "Containers that are ready, of all.", |pod, _| {
            PodLine::of(pod).ready().into()
        }),
        shown("Status", "What the pod is doing.", |pod, _| {
            PodLine::of(pod).status.into()
        }),
        shown(
            "Restarts",
            "How often containers were restarted, and when last.",
            |pod, now| PodLine::of(pod).restarts(now).into(),
        ),
        wide("IP", "The address of the pod.", |pod, _| {
            text_or_none(pod, "/status/podIP")
        }),
        wide("Node", "The node the pod is bound to.", |pod, _| {
            text_or_none(pod, "/spec/nodeName")
        }),
        wide(
            "Nominated Node",
            "The node that is being freed for the pod.",
            |pod, _| text_or_none(pod, "/status/nominatedNodeName"),
        ),
        wide(
            "Readiness Gates",
            "Gates that are passed, of all.",
            |pod, _| {
                let gates = list(pod, "/spec/readinessGates");
                let is_passed = |gate: &&Value| {
                    condition(pod, text(gate, "/conditionType"))
                        .is_some_and(|found| text(found, "/status") == "True")
                };
                or_none(if gates.is_empty() {
                    String::new()
                } else {
                    format!("{}/{}", gates.iter().filter(is_passed).count(), gates.len())
                })
            },
        ),
    ]
}

fn node() -> Vec<Column> {
    vec![
        name(),
        shown("Status", "Whether the node takes pods.", |node, _| {
            node_status(node).into()
        }),
        shown("Roles", "Roles, from labels.", |node, _| {
            or_none(node_roles(node))
        }),
        age_column(),
        shown("Version", "The version of the node's agent.", |node, _| {
            text(node, "/status/nodeInfo/kubeletVersion").into()
        }),
        wide("Internal-IP", "Address inside the cluster.", |node, _| {
            address(node, "InternalIP")
        }),
        wide("External-IP", "Address outside the cluster.", |node, _| {
            address(node, "ExternalIP")
        }),
        wide("OS-Image", "The operating system.", |node, _| {
            info(node, "osImage")
        }),
        wide("Kernel-Version", "The kernel.", |node, _| {
            info(node, "kernelVersion")
        }),
        wide("Container-Runtime", "What runs containers.", |node, _| {
            info(node, "containerRuntimeVersion")
        }),
    ]
}

fn node_status(node: &Value) -> String {
    let ready = condition(node, "Ready").map(|condition| text(condition, "/status"));
    let mut status = match ready {
        Some("True") => "Ready",
        Some("False" | "Unknown") => "NotReady",
        _ => "Unknown",
    }
    .to_owned();
    if flag(node, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn node_roles(node: &Value) -> String {
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role),
                None if key == "kubernetes.io/role" => value.as_str(),
                None => None,
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.join(",")
}

fn address(node: &Value, kind: &str) -> Value {
    let found = list(node, "/status/addresses")
        .iter()
        .find(|address| text(address, "/type") == kind);
    or_none(
        found
            .map(|address| text(address, "/address").to_owned())
            .unwrap_or_default(),
    )
}

fn info(node: &Value, name: &str) -> Value {
    let info = text(node, &format!("/status/nodeInfo/{name}"));
    if info.is_empty() {
        "<unknown>".into()
    } else {
        info.into()
    }
}

fn service() -> Vec<Column> {
    vec![
        shown("Type", "How the service is reached.", |service, _| {
            text(service, "/spec/type").into()
        }),
        shown("Cluster-IP", "The address of the service.", |service, _| {
            text_or_none(service, "/spec/clusterIP")
        }),
        shown(
            "External-IP",
            "Addresses outside the cluster.",
            |service, _| external_ip(service),
        ),
        shown("Port(s)", "Ports and protocols.", |service, _| {
            let ports = list(service, "/spec/ports").iter().map(|port| {
                let protocol = text(port, "/protocol");
                let protocol = if protocol.is_empty() { "TCP" } else { protocol };
                match count(port, "/nodePort") {
                    0 => format!("{}/{protocol}", count(port, "/port")),
                    node_port => format!("{}:{node_port}/{protocol}", count(port, "/port")),
                }
            });
            or_none(ports.collect::<Vec<_>>().join(","))
        }),
        wide(
            "Selector",
            "The labels of the pods behind the service.",
            |service, _| {
                let selector = service.pointer("/spec/selector").and_then(Value::as_object);
                let terms = selector.into_iter().flatten();
                let terms = terms
                    .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
                or_none(terms.collect::<Vec<_>>().join(","))
            },
        ),
    ]
}

fn external_ip(service: &Value) -> Value {
    let mut ips: Vec<&str> = list(service, "/spec/externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match text(service, "/spec/type") {
        "ExternalName" => return text_or_none(service, "/spec/externalName"),
        "LoadBalancer" => {
            let ingress = list(service, "/status/loadBalancer/ingress").iter();
            ips.extend(ingress.map(|ingress| match text(ingress, "/ip") {
                "" => text(ingress, "/hostname"),
                ip => ip,
            }));
            if ips.is_empty() {
                return "<pending>".into();
            }
        }
        _ => {}
    }
    or_none(ips.join(","))
}

fn endpoints(object: &Value) -> Value {
    let mut shown = Vec::new();
    for subset in list(object, "/subsets") {
        for address in list(subset, "/addresses") {
            let ip = text(address, "/ip");
            let ports = list(subset, "/ports");
            if ports.is_empty() {
                shown.push(ip.to_owned());
            }
            shown.extend(
                ports
                    .iter()
                    .map(|port| format!("{ip}:{}", count(port, "/port"))),
            );
        }
    }
    or_none(shortened(shown))
}

fn endpoint_slice() -> Vec<Column> {
    vec![
        shown("AddressType", "The family of the addresses.", |slice, _| {
            text(slice, "/addressType").into()
        }),
        shown("Ports", "Ports of every endpoint.", |slice, _| {
            let ports = list(slice, "/ports")
                .iter()
                .map(|port| count(port, "/port").to_string());
            let ports = shortened(ports.collect());
            if ports.is_empty() {
                "<unset>".into()
            } else {
                ports.into()
            }
        }),
        shown("Endpoints", "Addresses.", |slice, _| {
            let addresses = list(slice, "/endpoints")
                .iter()
                .flat_map(|endpoint| list(endpoint, "/addresses"))
                .filter_map(|address| address.as_str().map(str::to_owned));
            let addresses = shortened(addresses.collect());
            if addresses.is_empty() {
                "<unset>".into()
            } else {
                addresses.into()
            }
        }),
    ]
}

fn access_modes(object: &Value, pointer: &str) -> String {
    let short = |mode: &Value| match mode.as_str() {
        Some("ReadWriteOnce") => "RWO",
        Some("ReadOnlyMany") => "ROX",
        Some("ReadWriteMany") => "RWX",
        Some("ReadWriteOncePod") => "RWOP",
        _ => "?",
    };
    list(object, pointer)
        .iter()
        .map(short)
        .collect::<Vec<_>>()
        .join(",")
}

fn volume_mode(object: &Value) -> Value {
    let mode = text(object, "/spec/volumeMode");
    if mode.is_empty() {
        "<unset>".into()
    } else {
        mode.into()
    }
}

fn unset(text: &str) -> Value {
    if text.is_empty() {
        "<unset>".into()
    } else {
        text.into()
    }
}

fn persistent_volume() -> Vec<Column> {
    vec![
        name(),
        shown("Capacity", "Size.", |volume, _| {
            text(volume, "/spec/capacity/storage").into()
        }),
        shown("Access Modes", "Who may mount it at once.", |volume, _| {
            access_modes(volume, "/spec/accessModes").into()
        }),
        shown(
            "Reclaim Policy",
            "What happens when its claim goes.",
            |volume, _| text(volume, "/spec/persistentVolumeReclaimPolicy").into(),
        ),
        shown(
            "Status",
            "Where the volume is in its life.",
            |volume, _| match volume.pointer("/metadata/deletionTimestamp") {
                Some(at) if !at.is_null() => "Terminating".into(),
                _ => text(volume, "/status/phase").into(),
            },
        ),
        shown(
            "Claim",
            "The claim it is bound to.",
            |volume, _| match text(volume, "/spec/claimRef/name") {
                "" => "".into(),
                claim => format!("{}/{claim}", text(volume, "/spec/claimRef/namespace")).into(),
            },
        ),
        shown("StorageClass", "Its class.", |volume, _| {
            text(volume, "/spec/storageClassName").into()
        }),
        shown(
            "VolumeAttributesClass",
            "Its attributes class.",
            |volume, _| unset(text(volume, "/spec/volumeAttributesClassName")),
        ),
        shown("Reason", "Why it is in its status.", |volume, _| {
            text(volume, "/status/reason").into()
        }),
        age_column(),
        wide("VolumeMode", "File system or block.", |volume, _| {
            volume_mode(volume)
        }),
    ]
}

fn claim() -> Vec<Column> {
    vec![
        name(),
        shown(
            "Status",
            "Where the claim is in its life.",
            |claim, _| match claim.pointer("/metadata/deletionTimestamp") {
                Some(at) if !at.is_null() => "Terminating".into(),
                _ => text(claim, "/status/phase").into(),
            },
        ),
        shown("Volume", "The volume it is bound to.", |claim, _| {
            text(claim, "/spec/volumeName").into()
        }),
        shown("Capacity", "The size it got.", |claim, _| {
            match text(claim, "/spec/volumeName") {
                "" => "".into(),
                _ => text(claim, "/status/capacity/storage").into(),
            }
        }),
        shown(
            "Access Modes",
            "Who may mount it at once.",
            |claim, _| match text(claim, "/spec/volumeName") {
                "" => "".into(),
                _ => access_modes(claim, "/status/accessModes").into(),
            },
        ),
        shown("StorageClass", "The class it asks for.", |claim, _| {
            text(claim, "/spec/storageClassName").into()
        }),
        shown(
            "VolumeAttributesClass",
            "The attributes class it asks for.",
            |claim, _| unset(text(claim, "/spec/volumeAttributesClassName")),
        ),
        age_column(),
        wide("VolumeMode", "File system or block.", |claim, _| {
            volume_mode(claim)
        }),
    ]
}

fn priority_class() -> Vec<Column> {
    vec![
        name(),
        column(
            "Value",
            "integer",
            0,
            "The priority of its pods.",
            |class, _| count(class, "/value").into(),
        ),
        column(
            "Global-Default",
            "boolean",
            0,
            "Whether pods without a class get this one.",
            |class, _| flag(class, "/globalDefault").into(),
        ),
        age_column(),
        shown(
            "PreemptionPolicy",
            "Whether its pods may displace others.",
            |class, _| text(class, "/preemptionPolicy").into(),
        ),
    ]
}

/// Both faces of events print the same; their fields have other names.
fn event_columns(group: &str) -> Vec<Column> {
    let core = group.is_empty();
    vec![
        shown("Last Seen", "When it happened last.", |event, now| {
            let series = timestamp(event, "/series/lastObservedTime");
            let last =
                timestamp(event, "/lastTimestamp").or(timestamp(event, "/deprecatedLastTimestamp"));
            let last = series.or(last).or(first_seen(event));
            since(last, now).into()
        }),
        shown("Type", "Normal or Warning.", |event, _| {
            text(event, "/type").into()
        }),
        shown("Reason", "What happened, in one word.", |event, _| {
            text(event, "/reason").into()
        }),
        shown(
            "Object",
            "What it happened to.",
            if core {
                |event, _| object_of(event, "/involvedObject")
            } else {
                |event, _| object_of(event, "/regarding")
            },
        ),
        wide(
            "Subobject",
            "The part of the object.",
            if core {
                |event, _| text(event, "/involvedObject/fieldPath").into()
            } else {
                |event, _| text(event, "/regarding/fieldPath").into()
            },
        ),
        wide("Source", "Who says so.", |event, _| {
            event_source(event).into()
        }),
        shown("Message", "What happened.", |event, _| {
            match text(event, "/message") {
                "" => text(event, "/note").trim().into(),
                message => message.trim().into(),
            }
        }),
        wide("First Seen", "When it happened first.", |event, now| {
            since(first_seen(event), now).into()
        }),
        column(
            "Count",
            "string",
            1,
            "How often it happened.",
            |event, _| {
                let counts = ["/series/count", "/count", "/deprecatedCount"]
                    .map(|pointer| count(event, pointer));
                counts
                    .into_iter()
                    .find(|count| *count > 0)
                    .unwrap_or(1)
                    .into()
            },
        ),
        Column {
            priority: 1,
            ..name()
        },
    ]
}

fn first_seen(event: &Value) -> Option<Timestamp> {
    ["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"]
        .iter()
        .find_map(|pointer| timestamp(event, pointer))
}

fn object_of(event: &Value, pointer: &str) -> Value {
    let part = |name: &str| text(event, &format!("{pointer}/{name}"));
    format!("{}/{}", part("kind").to_lowercase(), part("name")).into()
}

fn event_source(event: &Value) -> String {
    let from = |source: &str| {
        let component = text(event, &format!("/{source}/component"));
        let host = text(event, &format!("/{source}/host"));
        if component.is_empty() || host.is_empty() {
            component.to_owned()
        } else {
            format!("{component}, {host}")
        }
    };
    let controller = ["/reportingComponent", "/reportingController"]
        .map(|pointer| text(event, pointer))
        .into_iter()
        .find(|controller| !controller.is_empty());
    let instance = text(event, "/reportingInstance");
    [from("source"), from("deprecatedSource")]
        .into_iter()
        .find(|source| !source.is_empty())
        .unwrap_or_else(|| match controller {
            Some(controller) if !instance.is_empty() => format!("{controller}, {instance}"),
            Some(controller) => controller.to_owned(),
            None => String::new(),
        })
}
