//! What an account did, by the API server's audit log, against what its roles let it do: pure, so that the comparison itself is
//! tested without a cluster.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

/// One thing that a role lets someone do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub group: String,
    /// With its subresource: `pods/status`.
    pub resource: String,
    /// Only in this namespace; none: in all.
    pub namespace: Option<String>,
    /// Only the object of this name.
    pub name: Option<String>,
    pub verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.verb)?;
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        write!(f, "{}", self.resource)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        Ok(())
    }
}

/// All that the bindings among `objects` give a service account.
///
/// A wildcard is an error: what it grants cannot be listed, so it cannot be shown to be used.
pub fn rights(
    objects: &[Value],
    namespace: &str,
    account: &str,
) -> Result<BTreeSet<Right>, String> {
    let mut rights = BTreeSet::new();
    for binding in objects {
        let is_binding = matches!(text(binding, "/kind"), "ClusterRoleBinding" | "RoleBinding");
        if !is_binding || !binds(binding, namespace, account) {
            continue;
        }
        let (kind, name) = (
            text(binding, "/roleRef/kind"),
            text(binding, "/roleRef/name"),
        );
        let place =
            (text(binding, "/kind") == "RoleBinding").then(|| text(binding, "/metadata/namespace"));
        let role = objects
            .iter()
            .find(|role| text(role, "/kind") == kind && text(role, "/metadata/name") == name)
            .ok_or_else(|| format!("{kind} {name} is bound but not there"))?;
        for rule in list(role, "/rules") {
            rights.extend(of_rule(rule, place).map_err(|problem| format!("{name}: {problem}"))?);
        }
    }
    Ok(rights)
}

fn binds(binding: &Value, namespace: &str, account: &str) -> bool {
    list(binding, "/subjects").iter().any(|subject| {
        text(subject, "/kind") == "ServiceAccount"
            && text(subject, "/namespace") == namespace
            && text(subject, "/name") == account
    })
}

fn of_rule(rule: &Value, namespace: Option<&str>) -> Result<Vec<Right>, String> {
    if !list(rule, "/nonResourceURLs").is_empty() {
        return Err(format!(
            "a rule for addresses cannot be followed in the log: {rule}"
        ));
    }
    let words = |pointer: &str| {
        let words: Vec<&str> = list(rule, pointer)
            .iter()
            .filter_map(Value::as_str)
            .collect();
        match words.iter().find(|word| word.contains('*')) {
            Some(wildcard) => Err(format!("a wildcard, {wildcard:?} in {pointer}")),
            None => Ok(words),
        }
    };
    let names = words("/resourceNames")?;
    let names: Vec<Option<&str>> = if names.is_empty() {
        vec![None]
    } else {
        names.into_iter().map(Some).collect()
    };
    let (groups, resources, verbs) = (words("/apiGroups")?, words("/resources")?, words("/verbs")?);
    let mut rights = Vec::new();
    for group in &groups {
        for resource in &resources {
            for verb in &verbs {
                for name in &names {
                    rights.push(Right {
                        verb: (*verb).to_owned(),
                        group: (*group).to_owned(),
                        resource: (*resource).to_owned(),
                        namespace: namespace.map(str::to_owned),
                        name: name.map(str::to_owned),
                    });
                }
            }
        }
    }
    Ok(rights)
}

/// How the log differs from the roles. Empty is what it should be.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Asked for and not allowed.
    pub denied: BTreeSet<String>,
    /// Allowed by the roles and never asked for.
    pub spare: BTreeSet<String>,
    /// Done by leave of some other role than these.
    pub borrowed: BTreeSet<String>,
}

/// Compares what the account did with what it may.
///
/// What is denied while its bindings are not there, as when the chart is uninstalled under its pods, is not counted.
pub fn compare(
    rights: &BTreeSet<Right>,
    events: &[Value],
    namespace: &str,
    account: &str,
) -> Differences {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let unbound = unbound(events, account);
    let mut differences = Differences::default();
    let mut used = BTreeSet::new();
    for event in events {
        if text(event, "/user/username") != user {
            continue;
        }
        if text(event, "/annotations/authorization.k8s.io~1decision") == "forbid" {
            let at = text(event, "/requestReceivedTimestamp");
            if !unbound.iter().any(|(from, to)| from <= &at && &at < to) {
                differences.denied.insert(describe(event));
            }
            continue;
        }
        // Addresses without an object (discovery, the server's version) are open to everyone.
        if text(event, "/objectRef/resource").is_empty() {
            continue;
        }
        let covering: Vec<&Right> = rights.iter().filter(|right| covers(right, event)).collect();
        if covering.is_empty() {
            differences.borrowed.insert(describe(event));
        }
        used.extend(covering);
    }
    differences.spare = rights
        .iter()
        .filter(|right| !used.contains(right))
        .map(ToString::to_string)
        .collect();
    differences
}

/// From when to when a binding of the account's name was away. Times of one form compare as text.
fn unbound<'a>(events: &'a [Value], account: &str) -> Vec<(&'a str, &'a str)> {
    const FOR_EVER: &str = "9999";
    let mut gaps: Vec<(&str, &str, &str)> = Vec::new();
    for event in events {
        let resource = text(event, "/objectRef/resource");
        let is_binding = matches!(resource, "clusterrolebindings" | "rolebindings");
        if !is_binding || text(event, "/objectRef/name") != account {
            continue;
        }
        match text(event, "/verb") {
            "delete" => gaps.push((resource, text(event, "/requestReceivedTimestamp"), FOR_EVER)),
            "create" => {
                let there = text(event, "/stageTimestamp");
                let open = gaps
                    .iter_mut()
                    .filter(|(of, _, to)| *of == resource && *to == FOR_EVER);
                open.for_each(|(_, _, to)| *to = there);
            }
            _ => {}
        }
    }
    gaps.into_iter().map(|(_, from, to)| (from, to)).collect()
}

fn covers(right: &Right, event: &Value) -> bool {
    let fits = |limit: &Option<String>, pointer: &str| {
        limit
            .as_deref()
            .is_none_or(|limit| limit == text(event, pointer))
    };
    right.verb == text(event, "/verb")
        && right.group == text(event, "/objectRef/apiGroup")
        && right.resource == resource(event)
        && fits(&right.namespace, "/objectRef/namespace")
        && fits(&right.name, "/objectRef/name")
}

fn resource(event: &Value) -> String {
    let resource = text(event, "/objectRef/resource");
    match text(event, "/objectRef/subresource") {
        "" => resource.to_owned(),
        subresource => format!("{resource}/{subresource}"),
    }
}

/// Without the object's name, so that a thousand pods are one line.
fn describe(event: &Value) -> String {
    if text(event, "/objectRef/resource").is_empty() {
        return format!("{} {}", text(event, "/verb"), text(event, "/requestURI"));
    }
    let group = text(event, "/objectRef/apiGroup");
    let right = Right {
        verb: text(event, "/verb").to_owned(),
        group: group.to_owned(),
        resource: resource(event),
        namespace: None,
        name: None,
    };
    right.to_string()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const USER: &str = "system:serviceaccount:ns:op";

    fn roles(rules: Value, local: Value) -> Vec<Value> {
        let subjects = json!([{"kind": "ServiceAccount", "name": "op", "namespace": "ns"}]);
        vec![
            json!({"kind": "ClusterRole", "metadata": {"name": "op"}, "rules": rules}),
            json!({"kind": "ClusterRole", "metadata": {"name": "other"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
            json!({"kind": "ClusterRoleBinding", "roleRef": {"kind": "ClusterRole", "name": "op"}, "subjects": subjects}),
            json!({"kind": "Role", "metadata": {"name": "op", "namespace": "ns"}, "rules": local}),
            json!({"kind": "RoleBinding", "metadata": {"namespace": "ns"}, "roleRef": {"kind": "Role", "name": "op"}, "subjects": subjects}),
        ]
    }

    fn example() -> BTreeSet<Right> {
        let roles = roles(
            json!([
                {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "patch"]},
                {"apiGroups": ["stokehold.dev"], "resources": ["trainjobs"], "verbs": ["list"]},
            ]),
            json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["op"], "verbs": ["update"]}]),
        );
        rights(&roles, "ns", "op").expect("roles that can be listed")
    }

    /// `verb group/resource[/subresource] namespace name`, with `-` for what is not there.
    fn event(text: &str) -> Value {
        let words: Vec<&str> = text
            .split(' ')
            .map(|word| if word == "-" { "" } else { word })
            .collect();
        let (group, resource) = words[1].split_once('/').expect("a group");
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        json!({
            "verb": words[0], "user": {"username": USER},
            "objectRef": {"apiGroup": group, "resource": resource, "subresource": subresource, "namespace": words[2], "name": words[3]},
            "annotations": {"authorization.k8s.io/decision": "allow"},
        })
    }

    #[test]
    fn roles_are_read_through_their_bindings() {
        let said: Vec<String> = example().iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(said.join("\n"), @"
        get pods
        patch pods
        get pods/status
        patch pods/status
        update coordination.k8s.io/leases op in ns
        list stokehold.dev/trainjobs
        ");
        let nobody = rights(&roles(json!([]), json!([])), "ns", "someone-else");
        assert_eq!(nobody, Ok(BTreeSet::new()));
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        for rule in [
            json!({"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]}),
            json!({"apiGroups": [""], "resources": ["pods/*"], "verbs": ["get"]}),
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}),
            json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}),
        ] {
            let roles = roles(json!([rule]), json!([]));
            assert!(rights(&roles, "ns", "op").is_err(), "{rule}");
        }
        let unbound = json!({"kind": "ClusterRoleBinding", "roleRef": {"kind": "ClusterRole", "name": "gone"},
            "subjects": [{"kind": "ServiceAccount", "name": "op", "namespace": "ns"}]});
        assert!(rights(&[unbound], "ns", "op").is_err());
    }

    #[test]
    fn the_log_is_compared_with_the_roles() {
        let all = [
            "get /pods a x",
            "get /pods/status a x",
            "patch /pods b y",
            "patch /pods/status b y",
            "list stokehold.dev/trainjobs - -",
            "update coordination.k8s.io/leases ns op",
        ];
        let rights = example();
        let compare = |events: &[&str]| {
            let events: Vec<Value> = events.iter().map(|text| event(text)).collect();
            compare(&rights, &events, "ns", "op")
        };
        assert_eq!(compare(&all), Differences::default());

        // The subresource is another thing than the resource, one namespace or name another than the next.
        let without = compare(&all[1..]);
        assert_eq!(without.spare, BTreeSet::from(["get pods".to_owned()]));
        for foreign in [
            "update coordination.k8s.io/leases other op",
            "update coordination.k8s.io/leases ns another",
            "list /pods - -",
            "get apps/pods a x",
        ] {
            let found = compare(&[&all[..], &[foreign]].concat());
            assert_eq!(found.borrowed.len(), 1, "{foreign}");
            assert!(found.spare.is_empty(), "{foreign}");
        }
    }

    #[test]
    fn what_was_denied_is_no_use() {
        let mut denied = event("get /pods a x");
        denied["annotations"]["authorization.k8s.io/decision"] = json!("forbid");
        let mut stranger = event("list /secrets a x");
        stranger["user"]["username"] = json!("system:serviceaccount:other:op");
        let discovery = json!({"verb": "get", "user": {"username": USER}, "requestURI": "/version",
            "annotations": {"authorization.k8s.io/decision": "allow"}});
        let found = compare(&example(), &[denied, stranger, discovery], "ns", "op");
        assert_eq!(found.denied, BTreeSet::from(["get pods".to_owned()]));
        assert!(found.borrowed.is_empty());
        assert!(found.spare.contains("get pods"));
    }

    #[test]
    fn without_its_binding_an_account_is_denied_with_reason() {
        let binding = |verb: &str, at: &str| {
            let mut event = event(&format!(
                "{verb} rbac.authorization.k8s.io/rolebindings ns op"
            ));
            event["user"]["username"] = json!("admin");
            event["requestReceivedTimestamp"] = json!(at);
            event["stageTimestamp"] = json!(at);
            event
        };
        let denied_at = |at: &str| {
            let mut event = event("get /secrets a x");
            event["annotations"]["authorization.k8s.io/decision"] = json!("forbid");
            event["requestReceivedTimestamp"] = json!(at);
            event
        };
        let gone = [
            binding("delete", "2026-01-01T00:00:10Z"),
            binding("create", "2026-01-01T00:00:20Z"),
        ];
        for (at, counted) in [
            ("09", true),
            ("10", false),
            ("15", false),
            ("20", true),
            ("25", true),
        ] {
            let denied = denied_at(&format!("2026-01-01T00:00:{at}Z"));
            let found = compare(&example(), &[&gone[..], &[denied]].concat(), "ns", "op");
            assert_eq!(!found.denied.is_empty(), counted, "at {at}");
        }
        let denied = denied_at("2026-01-01T00:00:25Z");
        let found = compare(&example(), &[gone[0].clone(), denied], "ns", "op");
        assert!(found.denied.is_empty(), "it never came back");
    }
}
