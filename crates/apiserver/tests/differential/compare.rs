//! Where two answers differ.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::normal::Conversation;

/// One place where ours said something else than the real one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    pub script: String,
    pub step: String,
    /// `body.metadata.labels`, `code`, `body.items[a]`.
    pub path: String,
    /// Absent where ours has nothing there.
    pub ours: Option<String>,
    pub real: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(
            f,
            "{}/{} {}\n    ours: {}\n    real: {}",
            self.script,
            self.step,
            self.path,
            shown(&self.ours),
            shown(&self.real)
        )
    }
}

pub fn conversations(script: &str, ours: &Conversation, real: &Conversation) -> Vec<Difference> {
    let mut found = Vec::new();
    for ((step, ours), (_, real)) in ours.answers.iter().zip(&real.answers) {
        let mut walk = Walk {
            script,
            step,
            found: &mut found,
        };
        walk.values("", Some(ours), Some(real));
    }
    // What one of them never said has no place in the other's order.
    let common = |versions: &[String], other: &[String]| -> Vec<String> {
        versions
            .iter()
            .filter(|version| other.contains(version))
            .cloned()
            .collect()
    };
    let (ours, real) = (
        common(&ours.versions, &real.versions),
        common(&real.versions, &ours.versions),
    );
    if ours != real {
        found.push(Difference {
            script: script.to_owned(),
            step: "*".to_owned(),
            path: "order of resourceVersions".to_owned(),
            ours: Some(ours.join(" ")),
            real: Some(real.join(" ")),
        });
    }
    found
}

struct Walk<'a> {
    script: &'a str,
    step: &'a str,
    found: &'a mut Vec<Difference>,
}

impl Walk<'_> {
    fn report(&mut self, path: &str, ours: Option<String>, real: Option<String>) {
        self.found.push(Difference {
            script: self.script.to_owned(),
            step: self.step.to_owned(),
            path: path.to_owned(),
            ours,
            real,
        });
    }

    fn values(&mut self, path: &str, ours: Option<&Value>, real: Option<&Value>) {
        match (ours, real) {
            (Some(Value::Object(ours)), Some(Value::Object(real))) => {
                let names: BTreeSet<&String> = ours.keys().chain(real.keys()).collect();
                for name in names {
                    let path = if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}.{name}")
                    };
                    self.values(&path, ours.get(name), real.get(name));
                }
            }
            (Some(Value::Array(ours)), Some(Value::Array(real))) => {
                match (keys(ours), keys(real)) {
                    (Some(our_keys), Some(real_keys)) => {
                        self.keyed(path, (ours, &our_keys), (real, &real_keys));
                    }
                    _ => {
                        for place in 0..ours.len().max(real.len()) {
                            self.values(
                                &format!("{path}[{place}]"),
                                ours.get(place),
                                real.get(place),
                            );
                        }
                    }
                }
            }
            (ours, real) if ours == real => {}
            (ours, real) => {
                self.report(path, ours.map(Value::to_string), real.map(Value::to_string));
            }
        }
    }

    /// Lists whose items have names are compared by name, and then by order.
    fn keyed(&mut self, path: &str, ours: (&[Value], &[String]), real: (&[Value], &[String])) {
        let find = |(items, keys): (&'_ [Value], &[String]), wanted: &String| {
            keys.iter()
                .position(|key| key == wanted)
                .map(|place| items[place].clone())
        };
        let all: BTreeSet<&String> = ours.1.iter().chain(real.1).collect();
        for key in all {
            let (ours, real) = (find(ours, key), find(real, key));
            self.values(&format!("{path}[{key}]"), ours.as_ref(), real.as_ref());
        }
        let common = |keys: &[String], other: &[String]| -> Vec<String> {
            keys.iter()
                .filter(|key| other.contains(key))
                .cloned()
                .collect()
        };
        let (ours, real) = (common(ours.1, real.1), common(real.1, ours.1));
        // Custom kinds are listed in no order: kube-apiserver keeps them in a hash map.
        if ours != real && path != "body.resources" {
            let path = format!("{path}.order");
            self.report(&path, Some(ours.join(" ")), Some(real.join(" ")));
        }
    }
}

/// What the items of a list are known by, if all have one and no two the same.
fn keys(items: &[Value]) -> Option<Vec<String>> {
    const NAMES: [&str; 7] = [
        "/metadata/name",
        "/name",
        "/resource",
        "/subresource",
        "/version",
        "/groupVersion",
        "/serverAddress",
    ];
    if items.is_empty() {
        return Some(Vec::new());
    }
    NAMES.iter().find_map(|pointer| {
        let names: Option<Vec<String>> = items
            .iter()
            .map(|item| item.pointer(pointer)?.as_str().map(str::to_owned))
            .collect();
        let names = names?;
        let distinct: BTreeSet<&String> = names.iter().collect();
        (distinct.len() == names.len()).then_some(names)
    })
}
