//! Selectors: a first line for labels, a second for fields, matched against an object.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stoke_apiserver::selector::{FieldSelector, LabelSelector};

fuzz_target!(|text: &str| {
    let (labels, fields) = text.split_once('\n').unwrap_or((text, ""));
    let object = serde_json::json!({
        "metadata": {"name": "a", "labels": {"a": "b", "example.com/c": ""}},
        "spec": {"nodeName": "n"},
    });
    if let Ok(selector) = LabelSelector::parse(labels) {
        let _ = selector.matches(&object);
        let printed = selector.to_string();
        assert_eq!(LabelSelector::parse(&printed).as_ref(), Ok(&selector), "{printed}");
    }
    if let Ok(selector) = FieldSelector::parse(fields) {
        let _ = selector.matches(&object);
    }
});
