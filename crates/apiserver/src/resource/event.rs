//! The two faces of events: `v1` as stored, `events.k8s.io/v1` as newer clients see it.
//!
//! The newer kind renamed fields and prefixed those it would rather forget with `deprecated`;
//! nothing is lost in either direction.

use serde_json::Value;

/// `events.k8s.io/v1` name, `v1` name.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Texts that the older face always shows and the newer one only if they say something.
const REPORTER: [&str; 2] = ["reportingComponent", "reportingInstance"];

pub(super) fn to_core(event: &mut Value) {
    rename(event, RENAMED.iter().map(|(new, core)| (*new, *core)));
    if let Some(fields) = event.as_object_mut() {
        for field in REPORTER {
            fields.entry(field).or_insert_with(|| "".into());
        }
    }
}

pub(super) fn from_core(event: &mut Value) {
    if let Some(fields) = event.as_object_mut() {
        for field in REPORTER {
            if fields.get(field).is_some_and(|text| text == "") {
                fields.remove(field);
            }
        }
    }
    rename(event, RENAMED.iter().map(|(new, core)| (*core, *new)));
}

fn rename<'a>(event: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(fields) = event.as_object_mut() else {
        return;
    };
    for (from, to) in names {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}
