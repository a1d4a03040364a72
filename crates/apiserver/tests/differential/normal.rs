//! Takes out of a conversation what two servers cannot have in common, and nothing else.
//!
//! Identities (uids, versions, generated names) become the step in which they were first heard, so that it still shows
//! whether an update kept or changed them; times of today become their precision; ages become ages.

use std::collections::HashMap;
use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use regex::{Captures, Regex};
use serde_json::Value;

/// What a server said in a script, ready to be compared.
pub struct Conversation {
    pub answers: Vec<(String, Value)>,
    /// The versions heard, by their labels, in the order of their numbers.
    pub versions: Vec<String>,
}

pub fn normalised(answers: Vec<(String, Value)>) -> Conversation {
    let mut normal = Normal::default();
    let answers = answers
        .into_iter()
        .map(|(step, mut answer)| {
            normal.step.clone_from(&step);
            normal.learn(&answer);
            normal.value(&mut answer, "");
            (step, answer)
        })
        .collect();
    let mut versions: Vec<(u64, String)> = normal.versions.into_iter().collect();
    versions.sort();
    Conversation {
        answers,
        versions: versions.into_iter().map(|(_, label)| label).collect(),
    }
}

#[derive(Default)]
struct Normal {
    step: String,
    uids: HashMap<String, String>,
    versions: HashMap<u64, String>,
    names: HashMap<String, String>,
}

/// What does not depend on when or by whom it was said.
fn pattern(text: &'static str) -> Regex {
    Regex::new(text).expect("a constant")
}

static UID: LazyLock<Regex> =
    LazyLock::new(|| pattern("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"));
static TIME: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"));
static AGE: LazyLock<Regex> = LazyLock::new(|| pattern(r"^\d+[smh]$"));
/// Versions that messages name.
static TOLD_VERSION: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r"(object meta: |in record \(|current: |too old resource version: \d+ \(|requested: )\d+",
    )
});
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| pattern(r"127\.0\.0\.1:\d+"));

impl Normal {
    /// Generated names are learned first, because they also occur where nothing says that they are.
    fn learn(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                let text = |field: &str| value["metadata"][field].as_str().unwrap_or_default();
                let (base, name) = (text("generateName"), text("name"));
                // Names are cut so that the suffix fits into a label.
                let base = base.get(..58).unwrap_or(base);
                if let Some(suffix) = name.strip_prefix(base)
                    && !base.is_empty()
                    && suffix.len() == 5
                    && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric())
                {
                    let label = format!("{base}<5 of {}>", self.step);
                    self.names.entry(name.to_owned()).or_insert(label);
                }
                fields.values().for_each(|value| self.learn(value));
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(item)),
            _ => {}
        }
    }

    fn value(&mut self, value: &mut Value, field: &str) {
        if value.get("kind").is_some_and(|kind| kind == "Status") {
            forget_order(value);
        }
        match value {
            Value::Object(fields) => {
                // A list's version is the server's, and goes on whatever the script does.
                let is_whole = fields.contains_key("items")
                    || fields.contains_key("rows")
                    || fields.get("type").is_some_and(|kind| kind == "BOOKMARK");
                for (name, value) in fields.iter_mut() {
                    if name == "causes" {
                        say_once(value);
                    }
                    if is_whole && name == "metadata" {
                        forget_version(value);
                    } else if is_whole && name == "object" {
                        forget_version(&mut value["metadata"]);
                        // The same once more, where it is told as a Table.
                        if let Some(metadata) = value.pointer_mut("/rows/0/object/metadata") {
                            forget_version(metadata);
                        }
                    }
                    self.value(value, name);
                }
            }
            Value::Array(items) => {
                for item in items {
                    self.value(item, if field == "cells" { "cell" } else { "" });
                }
            }
            Value::String(text) => *text = self.text(text, field),
            _ => {}
        }
    }

    fn text(&mut self, text: &str, field: &str) -> String {
        match field {
            "resourceVersion" if let Ok(number) = text.parse() => return self.version(number),
            "cell" if AGE.is_match(text) => return "<age>".to_owned(),
            _ => {}
        }
        let step = &self.step;
        let uids = &mut self.uids;
        let mut text = UID
            .replace_all(text, |found: &Captures| {
                let label = next_label(uids.values(), step);
                uids.entry(found[0].to_owned()).or_insert(label).clone()
            })
            .into_owned();
        text = TIME
            .replace_all(&text, |found: &Captures| time(&found[0]))
            .into_owned();
        text = TOLD_VERSION
            .replace_all(&text, "${1}<version>")
            .into_owned();
        text = ADDRESS.replace_all(&text, "<server>").into_owned();
        for (name, label) in &self.names {
            if text.contains(name.as_str()) {
                text = text.replace(name.as_str(), label);
            }
        }
        text
    }

    fn version(&mut self, number: u64) -> String {
        if number == 0 {
            return "0".to_owned();
        }
        let label = next_label(self.versions.values(), &self.step);
        self.versions.entry(number).or_insert(label).clone()
    }
}

/// Schemas of custom kinds are hash maps in kube-apiserver, so what is wrong with an object comes in no order. Messages only
/// repeat the causes then.
fn forget_order(status: &mut Value) {
    let group = status["details"]["group"].as_str().unwrap_or_default();
    if group.is_empty() || group.ends_with(".k8s.io") {
        return;
    }
    if let Some(Value::Array(causes)) = status.pointer_mut("/details/causes")
        && causes.len() > 1
    {
        causes.sort_by_key(Value::to_string);
        if let Some((head, _)) = status["message"]
            .as_str()
            .and_then(|text| text.split_once(": ["))
        {
            status["message"] = format!("{head}: [causes]").into();
        }
    }
}

/// kube-apiserver checks some things several times over, and says so each time.
fn say_once(causes: &mut Value) {
    if let Value::Array(causes) = causes {
        let mut seen = Vec::new();
        causes.retain(|cause| {
            let is_new = !seen.contains(cause);
            seen.push(cause.clone());
            is_new
        });
    }
}

/// `step#2`: the third thing of its sort that was first heard in this step.
fn next_label<'a>(labels: impl Iterator<Item = &'a String>, step: &str) -> String {
    let here = labels.filter(|label| {
        label
            .rsplit_once('#')
            .is_some_and(|(heard, _)| heard == step)
    });
    format!("{step}#{}", here.count())
}

fn forget_version(metadata: &mut Value) {
    for field in ["resourceVersion", "continue"] {
        if let Some(Value::String(text)) = metadata.get_mut(field)
            && !text.is_empty()
        {
            *text = format!("<{field}>");
        }
    }
}

/// A time of today, reduced to its precision. Any other was the script's own.
fn time(text: &str) -> String {
    let Ok(at) = text.parse::<Timestamp>() else {
        return text.to_owned();
    };
    let hour = SignedDuration::from_hours(1);
    if Timestamp::now().duration_since(at).abs() > hour {
        return text.to_owned();
    }
    match text.len() {
        20 => "<second>".to_owned(),
        27 => "<microsecond>".to_owned(),
        _ => "<time>".to_owned(),
    }
}
