//! Discovery documents from the registry: which groups, versions, resources and verbs there are.
//!
//! Both forms are served: the plain one, a document per group and version, and the aggregated one,
//! which newer clients fetch in two requests.

use std::cmp::Reverse;

use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// What the aggregated documents are, for `Accept` and `Content-Type`.
pub const AGGREGATED_CONTENT_TYPE: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The version of Kubernetes whose types are served.
const MAJOR: &str = "1";
const MINOR: &str = "34";

/// `GET /version`.
pub fn version() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "gitVersion": format!("v{MAJOR}.{MINOR}.0+stokehold.{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, architecture()),
    })
}

/// As Go names it, because clients compare it with what they know from nodes.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `GET /api`; `address` is the server's own `host:port`.
pub fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `GET /apis`.
pub fn groups(resources: &[Resource]) -> Value {
    let groups: Vec<Value> = named_groups(resources)
        .into_iter()
        .map(|group| Value::Object(group_fields(resources, group)))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/G`; `None` if there is no such group.
pub fn group(resources: &[Resource], group: &str) -> Option<Value> {
    let known = named_groups(resources).contains(&group);
    known.then(|| {
        let mut fields = group_fields(resources, group);
        fields.insert("kind".into(), "APIGroup".into());
        fields.insert("apiVersion".into(), "v1".into());
        Value::Object(fields)
    })
}

fn group_fields(resources: &[Resource], group: &str) -> Map<String, Value> {
    let versions: Vec<Value> = versions_of(resources, group)
        .into_iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    let mut fields = Map::new();
    fields.insert("name".into(), group.into());
    fields.insert(
        "preferredVersion".into(),
        versions.first().cloned().unwrap_or_default(),
    );
    fields.insert("versions".into(), versions.into());
    fields
}

/// `GET /api/v1` (group `""`) and `GET /apis/G/V`; `None` if nothing of it is served.
pub fn resources(resources: &[Resource], group: &str, version: &str) -> Option<Value> {
    let mut listed = Vec::new();
    for resource in of_version(resources, group, version) {
        let mut fields = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs(),
        });
        insert_names(&mut fields, resource);
        listed.push(fields);
        for part in parts(resource) {
            let mut fields = json!({
                "name": format!("{}/{}", resource.plural, part.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": part.kind,
                "verbs": part.verbs,
            });
            if (part.group, part.version) != (group, version) {
                fields["group"] = part.group.into();
                fields["version"] = part.version.into();
            }
            listed.push(fields);
        }
    }
    if listed.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version,
        "resources": listed,
    });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// `GET /api`, aggregated.
pub fn aggregated_core(resources: &[Resource]) -> Value {
    aggregated(resources, &[""])
}

/// `GET /apis`, aggregated.
pub fn aggregated_groups(resources: &[Resource]) -> Value {
    aggregated(resources, &named_groups(resources))
}

fn aggregated(resources: &[Resource], groups: &[&str]) -> Value {
    let items: Vec<Value> = groups
        .iter()
        .map(|group| {
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({ "name": group })
            };
            let versions: Vec<Value> = versions_of(resources, group)
                .into_iter()
                .map(|version| {
                    let listed: Vec<Value> = of_version(resources, group, version)
                        .map(aggregated_resource)
                        .collect();
                    json!({"version": version, "freshness": "Current", "resources": listed})
                })
                .collect();
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(resource: &Resource) -> Value {
    // Built-in kinds say their group and version only where they are others than those they are listed under.
    let response_kind = |group: &str, version: &str, kind: &str| {
        let is_own = (group, version) == (resource.group.as_str(), resource.version.as_str());
        let (group, version) = if resource.is_builtin() && is_own {
            ("", "")
        } else {
            (group, version)
        };
        json!({"group": group, "version": version, "kind": kind})
    };
    let mut fields = json!({
        "resource": resource.plural,
        "responseKind": response_kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs(),
    });
    insert_names(&mut fields, resource);
    let parts: Vec<Value> = parts(resource)
        .into_iter()
        .map(|part| {
            json!({
                "subresource": part.name,
                "responseKind": response_kind(part.group, part.version, part.kind),
                "verbs": part.verbs,
            })
        })
        .collect();
    if !parts.is_empty() {
        fields["subresources"] = parts.into();
    }
    fields
}

fn insert_names(fields: &mut Value, resource: &Resource) {
    if !resource.short_names.is_empty() {
        fields["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        fields["categories"] = json!(resource.categories);
    }
}

/// A subresource as discovery shows it: what it answers with, and what can be done with it.
struct Part<'a> {
    name: &'static str,
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    verbs: &'static [&'static str],
}

fn parts(resource: &Resource) -> Vec<Part<'_>> {
    const CHANGE: &[&str] = &["get", "patch", "update"];
    let own = |name, verbs| Part {
        name,
        group: &resource.group,
        version: &resource.version,
        kind: &resource.kind,
        verbs,
    };
    let other = |name, group, version, kind, verbs| Part {
        name,
        group,
        version,
        kind,
        verbs,
    };
    let has = &resource.subresources;
    [
        has.binding
            .then(|| other("binding", "", "v1", "Binding", &["create"])),
        has.eviction
            .then(|| other("eviction", "policy", "v1", "Eviction", &["create"])),
        has.finalize.then(|| own("finalize", &["update"])),
        has.log.then(|| own("log", &["get"])),
        has.resize.then(|| own("resize", CHANGE)),
        has.status.then(|| own("status", CHANGE)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_version<'a>(
    resources: &'a [Resource],
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> {
    resources
        .iter()
        .filter(move |resource| resource.group == group && resource.version == version)
}

/// Every group with a name: the built-in ones in the order of the registry, then the others by name.
fn named_groups(resources: &[Resource]) -> Vec<&str> {
    let mut groups: Vec<&str> = Vec::new();
    for resource in resources {
        if !resource.group.is_empty() && !groups.contains(&resource.group.as_str()) {
            groups.push(&resource.group);
        }
    }
    let builtin = |group: &&str| {
        Resource::builtins()
            .iter()
            .any(|known| known.group == *group)
    };
    let custom = groups.iter().filter(|group| builtin(group)).count();
    groups[custom..].sort_unstable();
    groups
}

/// The versions of a group, the preferred one first.
fn versions_of<'a>(resources: &'a [Resource], group: &str) -> Vec<&'a str> {
    let mut versions: Vec<&str> = Vec::new();
    for resource in resources.iter().filter(|resource| resource.group == group) {
        if !versions.contains(&resource.version.as_str()) {
            versions.push(&resource.version);
        }
    }
    versions.sort_by_key(|version| (Reverse(stability(version)), *version));
    versions
}

/// `v2` before `v1` before `v1beta2` before `v1alpha1`; names that are none of these come last.
fn stability(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let major = rest[..digits].parse().ok()?;
    let rest = &rest[digits..];
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (rank, minor) = match rest.strip_prefix("beta") {
        Some(minor) => (1, minor),
        None => (0, rest.strip_prefix("alpha")?),
    };
    Some((rank, major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_stability() {
        let mut versions = vec![
            "v1alpha1", "foo", "v1", "v10", "v1beta1", "v2", "v1beta10", "v2alpha1", "v",
        ];
        versions.sort_by_key(|version| (Reverse(stability(version)), *version));
        assert_eq!(
            versions,
            [
                "v10", "v2", "v1", "v1beta10", "v1beta1", "v2alpha1", "v1alpha1", "foo", "v"
            ]
        );
    }

    #[test]
    fn both_forms_say_the_same() {
        let served = Resource::builtins();
        let mut plain = Vec::new();
        for (group, version) in [
            ("", "v1"),
            ("events.k8s.io", "v1"),
            ("apiextensions.k8s.io", "v1"),
        ] {
            let list = resources(served, group, version).unwrap();
            for resource in list["resources"].as_array().unwrap() {
                plain.push(format!("{} {}", resource["name"], resource["verbs"]));
            }
        }
        let mut whole = Vec::new();
        for list in [aggregated_core(served), aggregated_groups(served)] {
            for item in list["items"].as_array().unwrap() {
                let name = item["metadata"]["name"].as_str().unwrap_or_default();
                if !matches!(name, "" | "events.k8s.io" | "apiextensions.k8s.io") {
                    continue;
                }
                for resource in item["versions"][0]["resources"].as_array().unwrap() {
                    let name = resource["resource"].as_str().unwrap();
                    whole.push(format!("{name:?} {}", resource["verbs"]));
                    for part in resource["subresources"].as_array().into_iter().flatten() {
                        whole.push(format!(
                            "\"{name}/{}\" {}",
                            part["subresource"].as_str().unwrap(),
                            part["verbs"]
                        ));
                    }
                }
            }
        }
        assert_eq!(plain, whole);
        assert_eq!(resources(served, "", "v2"), None);
        assert_eq!(group(served, "nope"), None);
        assert_eq!(group(served, ""), None, "the core group is not under /apis");
    }
}
